"""What a table has spent of its privacy, over runs and restarts."""

import math
import re
import shlex
import stat
import subprocess
import sys
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

import simfl
from simfl import messages as msg
from simfl.data.schema import Schema
from simfl.errors import FileError, PrivacyError, ProtocolError
from simfl.params import train_params
from simfl.party import sealing
from simfl.privacy import ledger as ledgers
from simfl.privacy.guarantee import multiplier
from simfl.privacy.ledger import Account, Event, Ledger, Limit, TableFacts, event_of
from simfl.transport.local import LocalTransport
from tests.wire import Recorder, grow_together, joint_sessions, rows

DELTA = 1e-5
TABLE = TableFacts(data="/a/table.csv", label="y", content="00")


def event(epsilon):
    return event_of(train_params(recipe="joint", epsilon=epsilon, delta=DELTA, rows=1000))


def ledger(folder, total=10.0, delta=DELTA):
    return Ledger(folder / "ledger", "Party 'north'", Limit(total, delta))


def charge(where, run, epsilon=1.0, study="one"):
    where.charge(run, study, event(epsilon), TABLE)


def account(folder, run="r", total=10.0):
    (folder / run).mkdir(exist_ok=True)
    return Account(ledger(folder, total), run, "one", TABLE, folder / run / "released.json")


# --- composition -----------------------------------------------------------------------------------------------------


def test_runs_compose_as_one_gaussian_mechanism(tmp_path):
    found = ledger(tmp_path)
    for number, z in enumerate((3.0, 4.0, 12.0)):
        found.charge(f"run-{number}", "one", Event(multiplier=z, epsilon=1.0, delta=DELTA), TABLE)
    together = 1 / math.sqrt(1 / 9 + 1 / 16 + 1 / 144)  # by hand: 144 / 26, under the root
    assert together == pytest.approx(math.sqrt(144 / 26))
    assert found.spent() == pytest.approx(dp_accounting.get_epsilon_gaussian(together, DELTA))
    oracle = PLDAccountant()  # convolves the three
    for z in (3.0, 4.0, 12.0):
        oracle.compose(dp_accounting.GaussianDpEvent(z))
    assert found.spent() == pytest.approx(oracle.get_epsilon(DELTA), rel=1e-3)


def test_four_equal_runs_cost_less_than_four_times_one(tmp_path):
    found = ledger(tmp_path, total=None)
    for number in range(4):
        charge(found, f"run-{number}")
    assert found.spent() == pytest.approx(dp_accounting.get_epsilon_gaussian(multiplier(1.0, DELTA) / 2, DELTA))
    assert 2.0 < found.spent() < 2.4
    assert found.left() == math.inf


def test_what_is_left_can_be_spent_to_the_last_bit_and_no_more(tmp_path):
    found = ledger(tmp_path, total=5.0)
    assert found.left() == pytest.approx(5.0)
    charge(found, "first", 3.0)
    left = found.left()
    assert 2.0 < left < 5.0
    with pytest.raises(PrivacyError):
        charge(found, "more", left + 0.001)
    charge(found, "second", left)
    assert found.spent() == pytest.approx(5.0)
    assert found.left() == pytest.approx(0.0, abs=0.01)


def test_a_large_delta_does_not_make_a_study_cheap(tmp_path):
    found = ledger(tmp_path, total=2.0)
    weak = event_of(train_params(recipe="joint", epsilon=1.0, delta=0.5, rows=1))  # hardly any noise
    with pytest.raises(PrivacyError, match=r"asks for 9\.8"):
        found.check("r", "one", weak)


def test_a_refusal_says_what_is_spent_asked_and_left_and_the_hub_learns_none_of_it(tmp_path):
    found = ledger(tmp_path, total=4.0)
    charge(found, "first", 3.0)
    with pytest.raises(PrivacyError) as refused:
        charge(found, "second", 3.0)
    said = str(refused.value)
    assert "Party 'north' has spent epsilon 3 on this table in 1 runs" in said
    assert re.search(r"asks for 3, together 4\.\d+; epsilon_total is 4, so a study with up to 2\.\d+ would fit", said)
    assert "raise epsilon_total in party.toml" in said
    assert refused.value.public == "epsilon_total of this party would be exceeded"
    assert [entry.run for entry in found.entries()] == ["first"]


# --- runs and restarts -----------------------------------------------------------------------------------------------


def test_a_restart_renaming_and_editing_the_table_begin_no_new_account(tmp_path):
    charge(ledger(tmp_path), "first", 6.0)
    other = TableFacts(data="/b/renamed.csv", label="z", content="ff")
    with pytest.raises(PrivacyError):
        ledger(tmp_path).charge("second", "two", event(9.0), other)
    assert ledger(tmp_path).spent() == pytest.approx(6.0)


def test_a_resumed_run_is_charged_once_and_a_new_one_in_full(tmp_path):
    for _ in range(3):
        account(tmp_path).charge(event(3.0))
    assert ledger(tmp_path).spent() == pytest.approx(3.0)
    account(tmp_path, "other").charge(event(3.0))
    assert len(ledger(tmp_path).entries()) == 2


def test_a_run_cannot_become_another_study_or_a_cheaper_one(tmp_path):
    charge(ledger(tmp_path), "r", 3.0)
    for study, epsilon in (("two", 3.0), ("one", 9.0)):
        with pytest.raises(PrivacyError, match="for another study"):
            charge(ledger(tmp_path), "r", epsilon, study)


SUMS = [np.arange(4, dtype=np.uint64)]


def exit_of(one):
    """A party's exit under noise for six steps."""
    noise = sealing.Noise(bytes(32), epsilon=3.0, n_steps=6)
    return sealing.Sealing("Party 'north'", one_budget=True, noise=noise, account=one)


def test_what_a_run_released_counts_after_a_restart(tmp_path):
    for job in range(3):
        one = account(tmp_path)
        one.charge(event(3.0))
        for number in (2 * job, 2 * job + 1):
            exit_of(one).noisy_together(SUMS, number, b"")
        with one.releases() as released:
            assert sorted(step.split()[1] for step in released) == [str(number) for number in range(2 * job + 2)]
    again = exit_of(account(tmp_path))
    again.noisy_together(SUMS, 5, b"")  # the same has the same noise
    for sums, number, state in ((SUMS, 6, b""), (SUMS, 5, b"other trees"), ([SUMS[0] + 1], 5, b"")):
        with pytest.raises(PrivacyError, match="or for more than epsilon was counted for"):
            again.noisy_together(sums, number, state)


STUDY = {"epsilon": 3.0, "rows": 150, "n_trees": 4, "max_depth": 2, "random_state": 5}


def members(folder, sizes=(60, 50, 40), total=10.0):
    """Parties that keep what they spend, and the key of their noise."""
    schema = Schema.from_toml({f"x{j}": {"low": -3, "high": 3} for j in range(6)})
    parties = [simfl.Party(f"p{i}", *rows(n, i), schema=schema) for i, n in enumerate(sizes)]
    made = joint_sessions(parties, folder=folder)
    for session in made:
        session.sealing.account = account(folder / session.name, total=total)
    return made


def test_a_new_job_of_the_same_run_does_not_renew_the_noise(tmp_path):
    grow_together(LocalTransport(members(tmp_path), 1), **STUDY)
    assert ledger(tmp_path / "p0").spent() == pytest.approx(3.0)
    with pytest.raises(PrivacyError, match="asked for sums that it has sent before, from another table"):
        grow_together(LocalTransport(members(tmp_path, (59, 50, 40)), 1), **STUDY)
    assert ledger(tmp_path / "p0").spent() == pytest.approx(3.0)


def test_a_start_is_refused_where_another_run_was_charged_since_the_handshake(tmp_path):
    session, *others = members(tmp_path, total=4.0)
    session.sealing.account.ledger.check("r", "one", event(3.0))  # as at the handshake
    charge(ledger(tmp_path / "p0", 4.0), "another", 3.0)
    seen = Recorder([session, *others])
    with pytest.raises(PrivacyError, match="has spent epsilon 3 on this table in 1 runs"):
        grow_together(seen, **STUDY)
    assert not seen.questions(msg.Add)
    with pytest.raises(ProtocolError, match="asked for Add before a training began"):
        session.handle(msg.Add(step=0, result=None))


def test_a_release_is_on_the_disk_before_its_noise_is_drawn(tmp_path, monkeypatch):
    one = account(tmp_path)
    one.charge(event(3.0))

    def die(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(sealing.discrete, "draw", die)
    with pytest.raises(KeyboardInterrupt):
        exit_of(one).noisy_together(SUMS, 0, b"")
    with account(tmp_path).releases() as released:
        assert [step.split()[:2] for step in released] == [["step", "0"]]


def test_a_crash_while_a_run_is_written_down_counts_it(tmp_path, monkeypatch):
    charge(ledger(tmp_path), "first", 2.0)
    write, calls = ledgers.write_atomically, []

    def die_at_the_second(path, data, **given):
        calls.append(path)
        if len(calls) == 2:
            raise KeyboardInterrupt
        write(path, data, **given)

    monkeypatch.setattr(ledgers, "write_atomically", die_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        charge(ledger(tmp_path), "second", 2.0)
    monkeypatch.setattr(ledgers, "write_atomically", write)
    assert [entry.run for entry in ledger(tmp_path).entries()] == ["first", "second"]
    charge(ledger(tmp_path), "third", 2.0)
    assert [entry.run for entry in ledger(tmp_path).entries()] == ["first", "second", "third"]


def test_without_the_record_of_its_releases_a_run_has_none_left(tmp_path):
    one = account(tmp_path)
    one.charge(event(3.0))
    for content in (b'{"step 0": 1}', b"[1]", b'["step 0', b"", None):
        one.file.unlink()
        if content is not None:
            one.file.write_bytes(content)
        with pytest.raises(FileError, match="counts as released"):
            account(tmp_path).charge(event(3.0))


MANY = """
import sys
from pathlib import Path
from simfl.privacy.ledger import Event, Ledger, Limit, TableFacts
ledger = Ledger(Path(sys.argv[1]), "Party 'north'", Limit(None, 1e-5))
table = TableFacts(data="d", label=None, content="")
for number in range(20):
    ledger.charge(f"{sys.argv[2]}-{number}", "one", Event(multiplier=9.0, epsilon=1.0, delta=1e-5), table)
"""


def test_two_processes_at_the_same_time_lose_nothing(tmp_path):
    path = tmp_path / "ledger"
    both = [subprocess.Popen([sys.executable, "-c", MANY, str(path), name]) for name in ("a", "b")]
    assert [process.wait() for process in both] == [0, 0]
    assert len({entry.run for entry in ledger(tmp_path).entries()}) == 40


# --- the file --------------------------------------------------------------------------------------------------------


def repair(error):
    """Run the command that a refusal names."""
    command = str(error.value).split("run: ", 1)[-1].split("Run: ", 1)[-1]
    subprocess.run(shlex.split(command), check=True)


def test_the_ledger_is_for_its_owner_alone(tmp_path):
    charge(ledger(tmp_path), "first")
    files = list(tmp_path.iterdir())
    assert {path.name for path in files} == {"ledger", "ledger.copy", "ledger.lock"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    for name in ("ledger", "ledger.copy"):
        (tmp_path / name).chmod(0o644)
        with pytest.raises(FileError, match=r"Other users .*\. Run: chmod 600") as refused:
            ledger(tmp_path).spent()
        repair(refused)
        assert ledger(tmp_path).spent() == pytest.approx(1.0)


def damaged(data):
    """A file with each part of it changed, and cut off at many places."""
    lines = data.split(b"\n")
    yield from (data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(0, len(data), 7))
    yield from (data[:at] for at in range(0, len(data) - 1, 11) if data[at - 1 : at] != b"\n")  # whole lines are sound
    yield b"\n".join([lines[0], lines[2], *lines[3:]])  # a line is gone
    yield data + b"more"


def test_a_damaged_ledger_is_refused_with_the_command_that_mends_it(tmp_path):
    charge(ledger(tmp_path), "first", 2.0)
    charge(ledger(tmp_path), "second", 2.0)
    before = ledger(tmp_path).entries()
    for name in ("ledger", "ledger.copy"):
        path = tmp_path / name
        sound = path.read_bytes()
        for data in damaged(sound):
            path.write_bytes(data)
            with pytest.raises(FileError, match=r"is damaged.* run: cp -p "):
                ledger(tmp_path).check("third", "one", event(1.0))
        with pytest.raises(FileError) as refused:
            ledger(tmp_path).entries()
        repair(refused)
        assert ledger(tmp_path).entries() == before


def test_a_ledger_that_is_gone_or_was_cut_back_is_not_taken_for_a_new_one(tmp_path):
    charge(ledger(tmp_path), "first", 2.0)
    old = (tmp_path / "ledger").read_bytes()
    charge(ledger(tmp_path), "second", 2.0)
    (tmp_path / "ledger").write_bytes(old)
    assert len(ledger(tmp_path).entries()) == 2
    (tmp_path / "ledger").unlink()
    with pytest.raises(FileError, match="is gone, its copy is there") as refused:
        charge(ledger(tmp_path), "third", 2.0)
    repair(refused)
    assert len(ledger(tmp_path).entries()) == 2
    charge(replace(ledger(tmp_path), path=tmp_path / "another"), "x", 2.0)
    (tmp_path / "ledger.copy").write_bytes((tmp_path / "another").read_bytes())
    with pytest.raises(FileError, match="are not of one ledger"):
        ledger(tmp_path).entries()
