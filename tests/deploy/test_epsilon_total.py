"""`epsilon_total` of a party, through the real endpoints of hub and parties."""

import json
import re
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

pytest.importorskip("nvflare")

from simfl.cli.app import app
from simfl.deploy import endpoints
from simfl.deploy import run as runs
from simfl.deploy.party_file import read_party_file
from simfl.deploy.study import ledger_of
from simfl.errors import StudyError
from simfl.joint.private_rule import LOCKSTEP
from tests.deploy.one_process import open_federation
from tests.deploy.studies import PARTIES


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """Three parties, a study with epsilon 4, and a limit of 10 at north."""

    def private(text):
        declared = text.replace('= "number"', "= { low = -3, high = 3 }")
        return declared.replace("rematch = 10", 'recipe = "joint"\nepsilon = 4.0\nrows = 180')

    made = open_federation(tmp_path, monkeypatch, 6, 60, private)
    made.file = made.kits / "north" / "party.toml"
    made.file.write_text(made.file.read_text() + "\nepsilon_total = 10.0\n")
    return made


def ledger(federation, party="north"):
    return ledger_of(read_party_file(federation.kits / party / "party.toml"))


def test_ten_runs_with_new_names_do_not_average_the_noise_away(federation, tmp_path, caplog):
    for number in range(4):
        runs.run_study(federation.study, out=tmp_path / f"run-{number}")
    for number in range(4, 10):
        with pytest.raises(StudyError) as refused:
            runs.run_study(federation.study, out=tmp_path / f"run-{number}")
        said = str(refused.value)
        assert said.endswith("- north: epsilon_total of this party would be exceeded")
        assert not re.search(r"\d", said)  # the hub learns no figure
    assert len(ledger(federation).entries()) == 4
    assert 8.0 < ledger(federation).spent() <= 10.0
    assert "asks for 4, together" in next(r.getMessage() for r in caplog.records if r.levelname == "ERROR")
    assert len(list((federation.kits / "north" / "runs").iterdir())) == 4  # of a refused run, nothing is kept
    assert len(ledger(federation, "south").entries()) == 4  # it has no limit, and writes down what was started


def test_a_run_that_is_resumed_is_charged_once_and_keeps_its_budget(federation, tmp_path):
    federation.study.write_text(federation.study.read_text().replace("n_trees = 6", "n_trees = 60"))

    def lose_twice(record, connected):
        if record.round in (9, 29) and len(federation.jobs) == record.round // 20 + 1:
            federation.jobs[-1].end()

    folder = runs.run_study(federation.study, out=tmp_path / "run", listener=runs.Listener(tree=lose_twice))
    assert len(federation.jobs) == 3
    trees = json.loads((folder / "history.json").read_bytes())["trees"]
    assert len(trees) == 60
    for party in PARTIES:
        assert len(ledger(federation, party).entries()) == 1
        (released,) = (federation.kits / party).glob("runs/*/released.json")
        steps = [step.split()[1] for step in json.loads(released.read_bytes())]
        assert sorted(steps) == sorted(
            map(str, range(2 + 60 // LOCKSTEP))
        )  # two looks at the columns, and every batch once
        assert list((federation.kits / party).glob("runs/*/model.ubj"))


def test_both_runs_pass_the_handshake_and_only_the_first_starts(federation):
    federation.file.write_text(federation.file.read_text().replace("10.0", "5.0"))
    first, second = endpoints.PartyEndpoint(), endpoints.PartyEndpoint()
    study = federation.study.read_text()
    for end, run in ((first, "a"), (second, "b")):
        end.open("north", federation.kits / "north")
        question = endpoints.msg.Greet(version=endpoints.msg.VERSION, simfl=version("simfl"), run=run, study=study)
        assert end.answer(question).problems == []
    event = endpoints.event_of(first.study.params())
    first.session.sealing.account.charge(event)
    with pytest.raises(endpoints.PrivacyError, match="has spent epsilon 4 "):
        second.session.sealing.account.charge(event)
    for end in (first, second):
        end.journal.close()


def test_a_limit_admits_no_study_without_epsilon(federation, tmp_path):
    federation.study.write_text(federation.study.read_text().replace("epsilon = 4.0\nrows = 180", ""))
    with pytest.raises(StudyError, match=r"epsilon_total = 10\.0, and the study has no epsilon"):
        runs.run_study(federation.study, out=tmp_path / "run")


def test_check_says_what_the_study_would_spend_and_what_is_left(federation, tmp_path):
    def said():
        result = CliRunner().invoke(app, ["check", str(federation.study), str(federation.file)])
        assert result.exit_code == 0, result.output
        return result.output

    first = said()
    assert "The study would spend epsilon 4 (delta 1e-05). Spent so far: 0 in 0 runs" in first
    assert "Of epsilon_total = 10, one more study may have up to 10." in first
    assert not ledger(federation).path.exists()
    runs.run_study(federation.study, out=tmp_path / "run")
    assert "Spent so far: 4 in 1 runs" in said()
    federation.file.write_text(federation.file.read_text().replace("10.0", "5.0"))
    assert "This party would not take part: Party 'north' has spent epsilon 4 " in said()
