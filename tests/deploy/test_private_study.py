"""Studies with recipe = "joint" and epsilon, with real endpoints: the ledger, restarts, refusals, and the promise."""

import json

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

pytest.importorskip("nvflare")
pytest.importorskip("dp_accounting")

import simfl
from simfl import messages as msg
from simfl.cli.app import app
from simfl.deploy import run as runs
from simfl.deploy.endpoints import PartyEndpoint
from simfl.deploy.party_file import read_party_file
from simfl.deploy.study import ledger_of, parse_study
from simfl.errors import StudyError
from simfl.joint import private_rule
from simfl.report.page import render
from simfl.report.record import RunRecord
from tests.deploy.one_process import Federation
from tests.deploy.studies import PARTIES, without_paths, write_study

N_TREES = 12
LOOKS_AND_BATCHES = 2 + N_TREES // 2 + 1  # and the last result
PRIVATE = 'recipe = "joint"\nepsilon = 4.0\nrows = 600\nn_trees = 12\nmax_depth = 3\nrandom_state = 5\n'


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """A private study for three parties, with a limit of 10 at north."""
    text = write_study(tmp_path, N_TREES, 200).read_text().replace('= "number"', "= { low = -3, high = 3 }")
    text = without_paths(text)
    head, rest = text.split("[parameters]")
    made = Federation(tmp_path, {party: tmp_path / f"{party}.csv" for party in PARTIES}, seed=5)
    made.study = tmp_path / "shared.toml"
    made.study.write_text(f"{head}[parameters]\n{PRIVATE}[[party]]{rest.split('[[party]]', 1)[1]}")
    made.file = made.kits / "north" / "party.toml"
    made.file.write_text(made.file.read_text() + "\nepsilon_total = 10.0\n")
    monkeypatch.setattr("nvflare.fuel.flare_api.flare_api.new_secure_session", made.session)
    monkeypatch.setattr(runs, "POLL", 0.01)
    monkeypatch.setattr(runs, "SETTLE", 0.0)
    monkeypatch.setattr(private_rule, "LOCKSTEP", 2)
    return made


def ledger(federation, party="north"):
    return ledger_of(read_party_file(federation.kits / party / "party.toml"))


def models_of(federation):
    found = {name: list((federation.kits / name).glob("runs/*/model.ubj")) for name in PARTIES}
    return {name: paths[0].read_bytes() for name, paths in found.items() if paths}


def test_a_private_study_is_charged_once_and_says_what_it_promises(federation, tmp_path):
    folder = runs.run_study(federation.study, out=tmp_path / "run")
    model = simfl.load(folder / "model.ubj")
    assert models_of(federation) == dict.fromkeys(PARTIES, (folder / "model.ubj").read_bytes())
    assert (model.n_trees, model.epsilon) == (N_TREES, 4.0)
    assert "even if the hub and all other parties collude" in model.guarantee
    for party in PARTIES:
        (entry,) = ledger(federation, party).entries()
        assert entry.event.epsilon == 4.0
        (released,) = (federation.kits / party).glob("runs/*/released.json")
        assert len(json.loads(released.read_bytes())) == 2 + N_TREES // 2
        (key,) = (federation.kits / party).glob("runs/*/noise.key")
        assert key.stat().st_mode & 0o077 == 0
    at_party = RunRecord.load(next((federation.kits / "north").glob("runs/*")))
    assert at_party.guarantee == model.guarantee
    page = render(RunRecord.load(folder))
    assert "adding or removing any one row" in page
    assert "600 (declared)" in page


def test_the_hub_knows_no_number_of_rows(federation, tmp_path):
    runs.run_study(federation.study, out=tmp_path / "run")
    at_hub = next((federation.kits / "hub").glob("runs/*"))
    prepared = json.loads((at_hub / "prepared.json").read_bytes())
    assert prepared["n_rows"] == prepared["n_validation_rows"] == [0, 0, 0]
    assert {p.n_rows for p in RunRecord.load(at_hub).parties} == {0}
    on = {p.name for p in RunRecord.load(at_hub).protections if p.on}
    assert {"Noise (differential privacy)", "Masked sums"} <= on


def test_a_row_more_or_less_shows_in_noisy_sums_alone(federation, tmp_path, monkeypatch):
    """All that north answers, and all that hub and submitter keep, with and without a row like no other."""
    sent, answer = [], PartyEndpoint.answer

    def recorded(self, question):
        reply = answer(self, question)
        if self.name == "north":
            sent[-1].append((type(question).__name__, type(reply).__name__, without_noise(reply)))
        return reply

    monkeypatch.setattr(PartyEndpoint, "answer", recorded)
    table, kept = pd.read_csv(tmp_path / "north.csv"), []
    strange = pd.DataFrame([{**dict.fromkeys(table.columns, np.nan), "x0": 1e9, "x1": -1e9, "y": 1}])
    for number, own in enumerate([table, pd.concat([strange, table, strange])]):
        sent.append([])
        own.to_csv(tmp_path / "north.csv", index=False)
        folder = runs.run_study(federation.study, out=tmp_path / f"run-{number}")
        at_hub = max((federation.kits / "hub").glob("runs/*"), key=lambda path: path.stat().st_mtime)
        kept.append([without_clock(home / "run.json") for home in (folder, at_hub)])
    assert len(sent[0]) == 8 + LOOKS_AND_BATCHES
    assert sent[0] == sent[1]
    assert kept[0] == kept[1]


def without_noise(reply):
    """A reply without noisy sums, what follows from them, and keys, which are new every time."""
    if isinstance(reply, msg.Addend):
        sizes = [(part.dtype, len(part.data) > 8) for part in reply.parts]
        return replace(reply, parts=[], digest=b"", exchange=b"", announced=None), sizes
    return None if isinstance(reply, msg.PublicKey | msg.SealedModel) else reply


def without_clock(path):
    """A record of a run without times, bytes (totals are compressed) and what the model learned."""
    record = json.loads(path.read_bytes())
    for name in ("started", "seconds", "timeline", "traffic", "importance", "command"):
        record.pop(name, None)
    record["history"] = [{k: v for k, v in one.items() if k not in ("seconds", "bytes")} for one in record["history"]]
    return record


def test_a_lost_job_goes_on_with_the_same_noise(federation, tmp_path):
    def lose_once(record, connected):
        if record.round == 5 and len(federation.jobs) == 1:
            federation.jobs[0].end()

    folder = runs.run_study(federation.study, out=tmp_path / "run", listener=runs.Listener(tree=lose_once))
    assert len(federation.jobs) == 2
    assert models_of(federation) == dict.fromkeys(PARTIES, (folder / "model.ubj").read_bytes())
    for party in PARTIES:
        assert len(ledger(federation, party).entries()) == 1
        (released,) = (federation.kits / party).glob("runs/*/released.json")
        steps = [key.split()[1] for key in json.loads(released.read_bytes())]
        assert sorted(steps) == sorted(map(str, range(2 + N_TREES // 2)))  # none with a second noise


def test_a_run_that_exceeds_the_limit_does_not_start(federation, tmp_path):
    for number in range(4):
        runs.run_study(federation.study, out=tmp_path / f"run-{number}")
    with pytest.raises(StudyError, match="north: epsilon_total of this party would be exceeded"):
        runs.run_study(federation.study, out=tmp_path / "run-4")


def test_check_says_what_it_would_spend_and_rehearses(federation):
    result = CliRunner().invoke(app, ["check", str(federation.study), str(federation.file)])
    assert result.exit_code == 0, result.output
    assert "The study would spend epsilon 4 (delta 1e-05). Spent so far: 0 in 0 runs" in result.output
    assert "Of epsilon_total = 10, one more study may have up to 10." in result.output
    assert "adding or removing any one row, against everybody" in " ".join(result.output.split())
    assert "discrete noise for epsilon = 4" in " ".join(result.output.split())


def test_a_limit_admits_no_joint_study_without_epsilon(federation, tmp_path):
    text = federation.study.read_text().replace("epsilon = 4.0\nrows = 600\n", "")
    federation.study.write_text(text)
    with pytest.raises(StudyError, match=r"epsilon_total = 10\.0, and the study has no epsilon"):
        runs.run_study(federation.study, out=tmp_path / "run")


def test_a_study_must_declare_ranges(federation):
    text = federation.study.read_text().replace("x3 = { low = -3, high = 3 }", 'x3 = "number"')
    with pytest.raises(StudyError, match=r"where the values of x3 lie: write x3 = \{ low = ..., high = ... \}"):
        parse_study(text)
    with pytest.raises(StudyError, match=r"declare them in \[columns\]"):
        parse_study('name = "a"\nlabel = "y"\n[parameters]\n' + PRIVATE + '[[party]]\nname = "north"')


def test_epsilon_needs_the_joint_recipe(federation):
    text = federation.study.read_text()
    for other in ("", 'recipe = "similar"\n'):
        with pytest.raises(StudyError, match=r"\[parameters\] epsilon is a parameter of recipe='joint'.*Set recipe="):
            parse_study(text.replace('recipe = "joint"\n', other))


def test_how_much_of_a_table_does_not_fit_stays_with_its_party(federation, tmp_path):
    table = pd.read_csv(tmp_path / "south.csv").astype(object)
    table.loc[:6, "x1"] = "many"
    table.to_csv(tmp_path / "south.csv", index=False)
    with pytest.raises(StudyError) as refused:
        runs.run_study(federation.study, out=tmp_path / "run")
    assert str(refused.value).endswith("- south: its table cannot be used (its own log says why)")


def test_a_column_of_the_party_names_persons(federation, tmp_path):
    federation.study.write_text(
        federation.study.read_text().replace("rows = 600", "rows = 600\nmax_rows_per_person = 2")
    )
    with pytest.raises(StudyError, match=r"does not say whose row it is.*person = \"patient\""):
        runs.run_study(federation.study, out=tmp_path / "refused")
    for party in PARTIES:
        table = pd.read_csv(tmp_path / f"{party}.csv")
        table.assign(patient=np.arange(len(table)) // 3).to_csv(tmp_path / f"{party}.csv", index=False)
        file = federation.kits / party / "party.toml"
        file.write_text(file.read_text().replace("n_jobs", 'person = "patient"\nn_jobs'))
    folder = runs.run_study(federation.study, out=tmp_path / "run")
    assert "all rows of any one person (at most 2 at the party)" in simfl.load(folder / "model.ubj").guarantee
    session = federation.jobs[-1].sites["north"].end.session
    assert len(session.together.machine.mine.rows.y) == 134  # two of every three, and of 200 rows the last two
    assert all(ledger(federation, party).entries()[-1].event.rows == 2 for party in PARTIES)
