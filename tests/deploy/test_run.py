"""The steps between machines, as far as they go without a network."""

import json
import re
import stat
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from cryptography import x509
from typer.testing import CliRunner

pytest.importorskip("nvflare")

import simfl
from simfl import messages as msg
from simfl.cli.app import app, main
from simfl.deploy import check, folders, processes, submitter
from simfl.deploy import run as runs
from simfl.deploy.answers import Piece, Status
from simfl.deploy.endpoints import HubEndpoint, PartyEndpoint
from simfl.deploy.kits import provision
from simfl.deploy.orders import Order
from simfl.deploy.party_file import read_party_file
from simfl.deploy.study import read_study, write_examples
from simfl.deploy.tables import open_table
from simfl.errors import EngineError, FileError, StudyError
from simfl.hub.journal import Grew, open_journal
from simfl.report import page as report
from simfl.report.record import RunRecord
from simfl.transport.local import LocalTransport
from tests.deploy.one_process import open_federation
from tests.deploy.studies import PARTIES, in_one_process, write_study
from tests.wire import sessions

run = CliRunner().invoke


@pytest.fixture
def study(tmp_path):
    write_examples(tmp_path)
    (tmp_path / "north.csv").write_text("age,smoker,ward,outcome\n61,yes,surgery,1\n50,no,other,0\n")
    return tmp_path / "study.toml"


def test_init_writes_both_files_or_none(study, tmp_path):
    assert {path.name for path in tmp_path.glob("*.toml")} == {"study.toml", "party.toml"}
    assert stat.S_IMODE((tmp_path / "party.toml").stat().st_mode) == 0o600  # it can hold a secret
    study.unlink()
    with pytest.raises(FileError, match=r"party\.toml is there already and is left as it is"):
        write_examples(tmp_path)
    assert not study.exists()


def test_a_missing_kit_names_the_command_that_makes_one(study):
    with pytest.raises(FileError, match=r"`simfl join .*study\.toml --name submitter` makes one"):
        runs.run_study(study)


def test_check_tells_the_size_and_everything_that_will_leave(study):
    result = run(app, ["check", str(study), str(study.parent / "party.toml")])
    assert result.exit_code == 0, result.output
    assert "2 rows, 3 columns" in result.output
    assert "0 (1 rows), 1 (1 rows)" in result.output
    assert all(kind.__name__ in result.output for kind in msg.Reply.__args__)


def test_check_refuses_a_party_that_is_not_in_the_study(study):
    file = study.parent / "party.toml"
    file.write_text(file.read_text().replace('"north"', '"east"', 1))
    with pytest.raises(StudyError, match=r"'east'; the study has \['north', 'south'\]"):
        check.check(study, file)


def certificate(kit):
    name = "server.crt" if (kit / "startup" / "server.crt").exists() else "client.crt"
    return x509.load_pem_x509_certificate((kit / "startup" / name).read_bytes())


def common_name(kit):
    return certificate(kit).subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value


def test_provision_makes_one_identity_per_site(study):
    kits = provision(read_study(study), study.parent / "kits")
    assert set(kits) == {"hub", "submitter", "north", "south"}
    assert [common_name(kits[name]) for name in ("hub", "north", "south")] == ["localhost", "north", "south"]
    assert all(stat.S_IMODE(kit.stat().st_mode) == 0o700 for kit in kits.values())
    assert json.loads((kits["north"] / "startup" / "fed_client.json").read_text())["servers"][0]["service"] == {
        "target": "localhost:8002",
        "scheme": "tcp",
    }


def test_a_kit_allows_no_code_but_simfls_own(study):
    kits = provision(read_study(study), study.parent / "kits")
    for name in ("hub", "north"):
        resources = json.loads((kits[name] / "local" / "resources.json").read_text())
        ours = [c for c in resources["class_allow_list"] if not c.startswith("nvflare.collab.runtime.")]
        assert ours == ["simfl.deploy.endpoints.HubEndpoint", "simfl.deploy.endpoints.PartyEndpoint"]
        assert resources["class_list_enforcement_mode"] == "enforce"
        rights = json.loads((kits[name] / "local" / "authorization.json").read_text())["permissions"]
        assert list(rights) == ["submitter"]
        assert rights["submitter"]["byoc"] == rights["submitter"]["shell_commands"] == "none"


def test_a_new_party_leaves_the_others_kits_valid_and_renewing_changes_one(study):
    out = study.parent / "kits"
    before = {name: certificate(kit).serial_number for name, kit in provision(read_study(study), out).items()}
    study.write_text(study.read_text() + '[[party]]\nname = "west"\n')
    kits = provision(read_study(study), out)
    after = {name: certificate(kit).serial_number for name, kit in kits.items()}
    assert after.items() > before.items()
    assert common_name(kits["west"]) == "west"
    renewed = {n: certificate(k).serial_number for n, k in provision(read_study(study), out, ["south"]).items()}
    assert [name for name in after if renewed[name] != after[name]] == ["south"]
    with pytest.raises(EngineError, match="no certificate of nobody"):
        provision(read_study(study), out, ["nobody"])


def test_paths_in_a_shared_study_are_refused(study):
    study.write_text(study.read_text().replace("# data", "data"))
    with pytest.raises(StudyError, match="only for --local-processes"):
        runs.run_study(study)


def test_trying_out_needs_the_files(study):
    with pytest.raises(StudyError, match="north, south"):
        runs.run_study(study, local=True)


def test_without_a_kit_the_next_step_is_told(study):
    with pytest.raises(FileError, match="simfl provision"):
        runs.run_study(study)


def test_resume_needs_a_training_of_the_same_study(study):
    with pytest.raises(FileError, match="no training to resume"):
        runs.run_study(study, resume=True)
    folder, info = folders.begin_run(study, read_study(study), None, False)
    assert folders.latest_run(study, read_study(study), None) == (folder, info)
    study.write_text(study.read_text() + "\n# changed")
    with pytest.raises(StudyError, match="has changed since"):
        runs.run_study(study, resume=True)


def test_a_study_whose_name_begins_alike_has_other_trainings(study):
    folder, info = folders.begin_run(study, read_study(study), None, False)
    longer = study.with_name("longer.toml")
    longer.write_text(re.sub(r'^name = "([^"]+)"', r'name = "\1-later"', study.read_text(), count=1, flags=re.M))
    folders.begin_run(longer, read_study(longer), None, False)  # sorts last
    assert folders.latest_run(study, read_study(study), None) == (folder, info)


class Lying:
    """A hub that answers what it likes."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def ask(self, job, question):
        return self.answers.pop(0)


def test_a_hub_that_sends_no_data_is_not_asked_for_ever():
    run = SimpleNamespace(again="simfl train study.toml --resume", job="")
    assert runs._RunningJob(Lying(Piece(size=2, data=b"a"), Piece(size=2, data=b"b")), run, "1")._fetch("m") == b"ab"
    with pytest.raises(EngineError, match="did not hand out m"):
        runs._RunningJob(Lying(Piece(size=9, data=b"a"), Piece(size=9, data=b"")), run, "1")._fetch("m")


@pytest.mark.parametrize(
    "answer", [{"type": "Piece", "size": 2**40, "data": ""}, {"type": "Status", "stage": 5}, "nonsense"]
)
def test_an_answer_of_another_form_is_an_error_and_no_crash(answer):
    with pytest.raises(EngineError, match="same version of simfl everywhere"):
        submitter._as(Status | Piece, answer)


def test_a_run_folder_is_not_used_twice(study, tmp_path):
    folders.begin_run(study, read_study(study), tmp_path / "run", False)
    with pytest.raises(FileError, match="--resume"):
        folders.begin_run(study, read_study(study), tmp_path / "run", False)


def test_what_is_not_a_kit_is_not_started(tmp_path, study):
    with pytest.raises(FileError, match="not a hub's kit"):
        processes.run_hub(tmp_path)
    with pytest.raises(FileError, match="names no kit"):
        processes.run_party(tmp_path / "party.toml")


def test_a_hub_that_does_not_start_names_its_log(tmp_path, monkeypatch):
    at_once = [sys.executable, "-c", ""]
    monkeypatch.setattr(processes, "start", lambda *_, within: subprocess.Popen(at_once))
    study = read_study(write_study(tmp_path, 30, 20))
    local = processes.LocalProcesses(study, tmp_path, tmp_path / "federation")
    with pytest.raises(EngineError, match=re.escape(str(tmp_path / "federation" / "hub" / "flare.txt"))), local:
        pass
    assert local.processes["hub"].returncode == 0


def test_errors_at_the_command_line_are_sentences(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["simfl", "train", str(tmp_path / "none.toml")])
    with pytest.raises(SystemExit):
        main()
    assert "Error:" in capsys.readouterr().err


def test_init_takes_the_columns_of_a_table(tmp_path):
    table = tmp_path / "patients.csv"
    table.write_text("age,ward,smoker,died\n60,surgery,True,0\n71,medicine,False,1\n50,surgery,False,0\n")
    write_examples(tmp_path, table, "died")
    study = read_study(tmp_path / "study.toml")
    assert study.label == "died"
    assert study.columns == {"age": "number", "ward": ["medicine", "surgery"], "smoker": "boolean"}
    assert study.weight is None


def test_init_takes_a_column_of_weights(tmp_path):
    table = tmp_path / "patients.csv"
    table.write_text('age,"how ""often""",died\n60,1,0\n71,2.5,1\n50,1,0\n')
    words = ["init", str(tmp_path), "--from", str(table), "--label", "died", "--weight", 'how "often"']
    assert CliRunner().invoke(app, words).exit_code == 0
    study = read_study(tmp_path / "study.toml")
    assert study.weight == 'how "often"'
    assert study.columns == {"age": "number"}


@pytest.mark.parametrize(
    ("labels", "objective"),
    [("01", "binary:logistic"), ("0123456", "multi:softprob"), ("abc", "multi:softprob"), ("", "reg:squarederror")],
)
def test_init_finds_the_objective_of_a_label_and_names_the_file(tmp_path, labels, objective):
    table = tmp_path / "my table.csv"
    rows = [f"{60 + n},{n % 3},{labels[n % len(labels)] if labels else n / 7}" for n in range(42)]
    table.write_text("\n".join(["age,code,y", *rows]) + "\n")
    write_examples(tmp_path, table, "y")
    study = read_study(tmp_path / "study.toml")
    assert study.parameters["objective"] == objective
    assert study.parameters["early_stopping_rounds"] == 20
    assert (
        'code = "number"  # or, if these are codes without an order: ["0", "1", "2"]'
        in (tmp_path / "study.toml").read_text()
    )
    assert read_party_file(tmp_path / "party.toml").data == str(table)


def test_check_rehearses_the_study_and_tells_which_protections_are_on(tmp_path):
    study = write_study(tmp_path, 30, 200)
    (tmp_path / "party.toml").write_text('name = "north"\ndata = "north.csv"\n')
    found = check.check(study, tmp_path / "party.toml").rehearsed
    assert {p.name for p in found.protections if p.on} >= {"Blind matching", "Masked sums"}
    assert {"HiddenRows", "RowSums", "LeafSums", "Grown"} <= set(found.sent)
    study.write_text(study.read_text().replace("rematch = 10", 'masked = false\nmatching = "shared"\nmin_group = 5'))
    result = run(app, ["check", str(study), str(tmp_path / "party.toml")])
    assert result.exit_code == 0, result.output
    shown = " ".join(result.output.split())
    assert "Masked sums off" in shown
    assert "Blind matching off" in shown
    assert "Small groups on" in shown


def test_a_party_of_one_class_is_checked_without_a_rehearsal(tmp_path):
    study = write_study(tmp_path, 30, 200)
    lines = (tmp_path / "north.csv").read_text().split("\n")
    one = [lines[0], *(line[:-1] + "1" for line in lines[1:] if line)]
    (tmp_path / "north.csv").write_text("\n".join(one) + "\n")
    (tmp_path / "party.toml").write_text('name = "north"\ndata = "north.csv"\n')
    found = check.check(study, tmp_path / "party.toml")
    assert found.classes == {"1": 200}
    assert found.rehearsed is None


def test_a_rare_class_takes_part_in_the_rehearsal():
    y = np.zeros(100_000, dtype=int)
    y[:10] = 1
    drawn = check._draw_rows(y, classes=True)
    assert len(drawn) == check.REHEARSED_ROWS
    assert y[drawn].sum() >= 1


# --- whole trainings, with FLARE's network left out ------------------------------------------------------------------


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """A study for three parties, and the federation that trains it in this process."""
    return open_federation(tmp_path, monkeypatch, 12, 120)


def resume(federation, tmp_path):
    """The command that an error names."""
    return f"simfl train {federation.study} --resume --out {tmp_path / 'run'}"


def test_a_relative_run_folder_is_found(federation, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = runs.run_study(federation.study, out=runs.Path("run"))
    assert folder == tmp_path / "run"
    assert simfl.load("run/model.ubj").n_trees == 12
    assert runs.run_study(federation.study, out=runs.Path("run"), resume=True) == folder
    assert len(federation.jobs) == 1


def test_a_changed_parameter_or_table_at_a_resume_is_named(federation, tmp_path):
    def prepare(study, n_rows=40):
        rng = np.random.default_rng(0)
        rows = [(rng.normal(size=(n, 12)), np.arange(n) % 2) for n in (n_rows, 40, 40)]
        parties = [simfl.Party(name, *table) for name, table in zip(PARTIES, rows, strict=True)]
        end = HubEndpoint(Order(run="r", study=study, seed=5).to_text())
        return end._prepare(LocalTransport(sessions(parties, secret=5)), tmp_path)

    study = federation.study.read_text()
    before = prepare(study)
    assert prepare(study).params == before.params
    with pytest.raises(StudyError, match=r"began \(n_hashes: None then, 7 now\)\. Put it back, or start a new"):
        prepare(study.replace("n_trees", "n_hashes = 7\nn_trees"))
    with pytest.raises(StudyError, match=r"began \(the rows of north: 40 then, 41 now\)"):
        prepare(study, n_rows=41)


def test_a_training_continues_by_itself_when_a_job_is_lost(federation, tmp_path):
    said = []
    listener = runs.Listener(tell=said.append, tree=federation.lose_first_job(at=4))
    folder = runs.run_study(federation.study, out=tmp_path / "run", listener=listener)
    assert "the job ended (FINISHED:EXECUTION_EXCEPTION): continuing from the journal" in said
    assert (folder / "model.ubj").read_bytes() == in_one_process(tmp_path / "study.toml")
    assert [record.round for record in RunRecord.load(folder).history] == list(range(12))
    journal = open_journal(next((federation.kits / "hub").glob("runs/*/journal")))
    signers = [[tree.signed.builder for tree in entry.adopted] for entry in journal.of(Grew)]
    assert signers == [[PARTIES[n % 3]] for n in range(12)]  # the others summed over nothing else


def test_a_training_that_is_lost_again_and_again_is_given_up(federation, tmp_path, monkeypatch):
    monkeypatch.setattr(federation, "do_app_command", None)
    monkeypatch.setattr(federation, "get_job_status", lambda job: "FINISHED:ABORTED")
    with pytest.raises(EngineError, match=r"lost 4 times in a row \(FINISHED:ABORTED\)\. All finished trees are kept"):
        runs.run_study(federation.study, out=tmp_path / "run")
    assert len(federation.jobs) == 4


def test_a_party_that_died_is_missed_and_takes_part_again_when_it_is_back(federation, tmp_path):
    text = federation.study.read_text().replace("n_trees = 12", "n_trees = 60").replace('"stop"', '"continue"')
    federation.study.write_text(text)
    said = []
    listener = runs.Listener(said.append, federation.lose("south", at=3, until_missed=True))
    folder = runs.run_study(federation.study, out=tmp_path / "run", listener=listener)
    assert "south is back: continuing together" in said
    history = json.loads((folder / "history.json").read_bytes())
    missed = history["missed"]["south"]
    assert list(history["missed"]) == ["south"]
    assert missed == list(range(missed[0], missed[-1] + 1))
    assert "south" in {tree["builder"] for tree in history["trees"][missed[-1] + 1 :]}


def test_a_party_that_is_slow_with_every_answer_is_named_once():
    said, job = [], runs._RunningJob.__new__(runs._RunningJob)
    job.run, job._told = SimpleNamespace(listener=runs.Listener(said.append)), {}
    for waiting in (["north"], [], ["north"], ["north", "south"]):
        job._tell_waiting(waiting)
    assert said == [f"waiting for an answer of {name} for 10 seconds now" for name in ("north", "south")]


def test_a_party_that_is_away_at_the_end_gets_the_model_with_a_resume(federation, tmp_path):
    text = federation.study.read_text().replace('"stop"', '"continue"')
    federation.study.write_text(text)
    said = []
    listener = runs.Listener(said.append, federation.lose("south", at=3))
    folder = runs.run_study(federation.study, out=tmp_path / "run", listener=listener)
    assert f"the model has not reached south: when they are back, run `{resume(federation, tmp_path)}`" in said
    own = federation.kits / "south"
    assert not list(own.glob("runs/*/model.ubj"))
    federation.away.clear()
    runs.run_study(federation.study, out=tmp_path / "run", resume=True)
    assert next(own.glob("runs/*/model.ubj")).read_bytes() == (folder / "model.ubj").read_bytes()


def test_a_party_that_cannot_keep_the_model_is_named_and_gets_it_with_a_resume(federation, tmp_path, monkeypatch):
    said, answer = [], PartyEndpoint.answer

    def fail(self, message):
        if self.name == "south" and isinstance(message, msg.TakeModel):
            raise FileError("model.ubj cannot be written: No space left on device.")
        return answer(self, message)

    monkeypatch.setattr(PartyEndpoint, "answer", fail)
    runs.run_study(federation.study, out=tmp_path / "run", listener=runs.Listener(said.append))
    assert "south: Party 'south': a file cannot be used (its own log says which)" in said
    assert f"the model has not reached south: when they are back, run `{resume(federation, tmp_path)}`" in said
    found = {party for party in PARTIES if list((federation.kits / party).glob("runs/*/model.ubj"))}
    assert found == {*PARTIES} - {"south"}
    monkeypatch.setattr(PartyEndpoint, "answer", answer)
    runs.run_study(federation.study, out=tmp_path / "run", resume=True)
    assert list((federation.kits / "south").glob("runs/*/model.ubj"))


def test_every_mismatch_of_every_party_is_in_one_message_without_its_values(federation, tmp_path, caplog):
    (tmp_path / "north.csv").write_text("x0,x1,y\n1,two,0\n3,4,1\n")
    (tmp_path / "west.csv").write_text("nothing\n")
    with pytest.raises(StudyError) as refused:
        runs.run_study(federation.study, out=tmp_path / "run")
    said = str(refused.value)
    assert "north: column 'x2' is missing" in said
    assert "column 'x1' has 1 values that are not numbers" in said
    assert "two" not in said
    assert "as 'two'" in caplog.text  # the party's own log has it
    assert "west: the label column 'y' is missing" in said
    assert "south" not in said


CLINIC = """name = "clinic"
label = "died"
[columns]
age = "number"
ward = ["a", "b", "c", "d", "e", "f"]
sex = ["f", "m"]
dose = "number"
[parameters]
n_trees = 10
max_depth = 4
random_state = 5
rematch = 4
validation_fraction = 0.25
"""


def write_clinic(folder):
    """A study with categories for the same parties, each with a table of its own."""
    rng = np.random.default_rng(1)
    for name in PARTIES:
        n = 240
        ward, sex = rng.choice(list("abcdef"), n), rng.choice(["f", "m"], n)
        age, dose = rng.normal(60, 10, n).round(1), rng.normal(size=n).round(3)
        died = ((age > 60) & np.isin(ward, ["a", "d"]) | (dose + 0.5 * rng.normal(size=n) > 1)).astype(int)
        table = pd.DataFrame({"age": age, "ward": ward, "sex": sex, "dose": dose, "died": died})
        table.to_csv(folder / f"{name}.csv", index=False)
    (folder / "clinic.toml").write_text(CLINIC + "".join(f'[[party]]\nname = "{name}"\n' for name in PARTIES))
    return folder / "clinic.toml"


def test_categories_travel_and_each_party_learns_its_own_gain(federation, tmp_path):
    study = write_clinic(tmp_path).rename(federation.study)
    folder = runs.run_study(study, out=tmp_path / "run")
    model = simfl.load(folder / "model.ubj")
    opened = [open_table(read_study(study), name, tmp_path / f"{name}.csv")[0] for name in PARTIES]
    alike = simfl.train(opened, callbacks=[], **read_study(study).parameters)
    X = pd.read_csv(tmp_path / "north.csv").drop(columns="died")
    assert np.array_equal(alike.margins(X), model.margins(X))
    assert report.write(folder).exists()
    for name in PARTIES:
        (own,) = (federation.kits / name).glob("runs/*")
        run = RunRecord.load(own)
        assert {(g.party, g.rows, g.metric) for g in run.gains} == {(name, name, "logloss"), (name, name, "error")}
        assert {p.name: p.on for p in run.protections}["Noise (differential privacy)"] is False
        assert report.write(own).exists()
    assert not RunRecord.load(folder).gains  # nobody else learns of it
