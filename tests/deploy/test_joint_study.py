"""Studies with recipe = "joint", with real endpoints: the hub gets to see no model, everybody else has the same one."""

import json

import msgspec
import pytest

pytest.importorskip("nvflare")

import simfl
from simfl.deploy import check
from simfl.deploy import run as runs
from simfl.deploy.orders import ORDER_FILE
from simfl.deploy.study import parse_study, read_study
from simfl.errors import EngineError, PrivacyError, StudyError
from simfl.hub.joint import open_joint_journal
from simfl.privacy import boxes
from simfl.report.record import RunRecord
from tests.deploy.one_process import open_federation
from tests.deploy.studies import PARTIES

N_TREES = 12


def joint(text):
    """The study, with its trees grown together."""
    chosen = '[parameters]\nrecipe = "joint"\nlearning_rate = 0.4\nmin_group = 5\nvalidation_fraction = 0.25'
    return text.replace("rematch = 10\n", "").replace("[parameters]", chosen)


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """A study for three parties, and the federation that trains it in this process."""
    return open_federation(tmp_path, monkeypatch, N_TREES, 240, joint)


def models_of(federation):
    found = {name: list((federation.kits / name).glob("runs/*/model.ubj")) for name in PARTIES}
    return {name: paths[0].read_bytes() for name, paths in found.items() if paths}


def test_the_submitter_and_every_party_have_one_model_and_the_hub_has_none(federation, tmp_path):
    folder = runs.run_study(federation.study, out=tmp_path / "run")
    model = (folder / "model.ubj").read_bytes()
    assert models_of(federation) == dict.fromkeys(PARTIES, model)
    assert simfl.load(folder / "model.ubj").n_trees == N_TREES
    at_hub = next((federation.kits / "hub").glob("runs/*"))
    assert not (at_hub / "model.ubj").exists()
    assert all(b"learner" not in path.read_bytes() for path in at_hub.iterdir() if path.is_file())
    for known, record in zip(*(RunRecord.load(place).history for place in (at_hub, folder)), strict=True):
        assert known.train == {} != record.train
        assert known.bytes == record.bytes > 0
    trees = json.loads((folder / "history.json").read_bytes())["trees"]
    assert [tree["round"] for tree in trees] == list(range(N_TREES))
    assert all(tree["train"] for tree in trees)
    at_party = RunRecord.load(next((federation.kits / "north").glob("runs/*")))
    assert [r.train for r in at_party.history] == [tree["train"] for tree in trees]
    assert {gain.party for gain in at_party.gains} == {"north"}
    assert not RunRecord.load(at_hub).gains


def test_the_hub_has_the_model_where_nothing_is_masked(federation, tmp_path):
    federation.study.write_text(federation.study.read_text().replace("min_group", "masked = false\nmin_group"))
    shown = []
    listener = runs.Listener(tree=lambda record, connected: shown.append(record))
    folder = runs.run_study(federation.study, out=tmp_path / "run", listener=listener)
    at_hub = next((federation.kits / "hub").glob("runs/*"))
    assert (at_hub / "model.ubj").read_bytes() == (folder / "model.ubj").read_bytes()
    assert models_of(federation) == dict.fromkeys(PARTIES, (folder / "model.ubj").read_bytes())
    assert all(record.train for record in shown)


def test_a_training_continues_by_itself_when_a_job_is_lost(federation, tmp_path):
    said = []
    listener = runs.Listener(tell=said.append, tree=federation.lose_first_job(at=3))
    folder = runs.run_study(federation.study, out=tmp_path / "run", listener=listener)
    assert "the job ended (FINISHED:EXECUTION_EXCEPTION): continuing from the journal" in said
    assert [record.round for record in RunRecord.load(folder).history] == list(range(N_TREES))
    assert models_of(federation) == dict.fromkeys(PARTIES, (folder / "model.ubj").read_bytes())


def test_a_party_that_died_is_missed_for_whole_batches_and_takes_part_again(federation, tmp_path):
    text = federation.study.read_text().replace(f"n_trees = {N_TREES}", "n_trees = 60").replace('"stop"', '"continue"')
    federation.study.write_text(text)
    said = []
    listener = runs.Listener(said.append, federation.lose("south", at=3, until_missed=True))
    folder = runs.run_study(federation.study, out=tmp_path / "run", listener=listener)
    assert "south is back: continuing together" in said
    missed = json.loads((folder / "history.json").read_bytes())["missed"]["south"]
    assert missed == list(range(missed[0], missed[-1] + 1))
    assert missed[0] % 2 == (missed[-1] + 1) % 2 == 0
    assert missed[-1] + 1 < 60
    assert models_of(federation) == dict.fromkeys(PARTIES, (folder / "model.ubj").read_bytes())


def test_a_party_that_is_away_at_the_end_builds_the_model_with_a_resume(federation, tmp_path):
    federation.study.write_text(federation.study.read_text().replace('"stop"', '"continue"'))
    said = []
    listener = runs.Listener(said.append, federation.lose("south", at=3))
    folder = runs.run_study(federation.study, out=tmp_path / "run", listener=listener)
    assert any(
        text.startswith("the model has not reached south: when they are back, run `simfl train ") for text in said
    )
    assert {*models_of(federation)} == {"north", "west"}
    federation.away.clear()
    runs.run_study(federation.study, out=tmp_path / "run", resume=True)
    assert models_of(federation) == dict.fromkeys(PARTIES, (folder / "model.ubj").read_bytes())


def test_the_sealed_model_opens_for_its_submitter_only(federation, tmp_path):
    folder = runs.run_study(federation.study, out=tmp_path / "run")
    assert (folder / runs.RECEIVER_FILE).stat().st_mode & 0o077 == 0
    (folder / runs.RECEIVER_FILE).write_bytes(bytes(range(32)))
    with pytest.raises(PrivacyError, match="cannot be opened"):
        runs.open_sealed(folder, read_study(federation.study), "run", None)


@pytest.mark.parametrize(
    ("sender", "signer", "run", "fact"),
    [
        ("north", "north", "another run", "the signature is not by its certificate"),
        ("north", "south", None, "its certificate is of 'south'"),
        ("hub", "submitter", None, "it is no party of the study"),
        ("north", None, None, "it is not signed"),
        (None, None, None, "no model of a party"),
    ],
)
def test_the_submitter_takes_no_model_that_the_hub_put_into_a_box(federation, tmp_path, sender, signer, run, fact):
    folder = runs.run_study(federation.study, out=tmp_path / "run")
    before = (folder / "model.ubj").read_bytes()
    own, name = runs._identity(federation.kits / "submitter"), json.loads((folder / ORDER_FILE).read_bytes())["run"]
    other = simfl.train([simfl.Party("north", [[0.0], [1.0]], [0, 1])], n_trees=1, callbacks=[])
    content = bytes(other.booster.save_raw("ubj"))
    if sender:
        identity = runs._identity(federation.kits / signer) if signer else None
        content = boxes.signed(content, sender, run or name, identity)
    key = boxes.public_half((folder / runs.RECEIVER_FILE).read_bytes())
    (folder / runs.SEALED).write_bytes(boxes.close(key, content))
    with pytest.raises(PrivacyError, match=fact):
        runs.open_sealed(folder, read_study(federation.study), name, own)
    assert (folder / "model.ubj").read_bytes() == before


def test_what_the_hub_says_of_the_trees_does_not_count_beside_a_signed_model(federation, tmp_path):
    folder = runs.run_study(federation.study, out=tmp_path / "run")
    true, history = RunRecord.load(folder), json.loads((folder / "history.json").read_bytes())
    false = [msgspec.structs.replace(record, train={"logloss": 0.001}) for record in true.history]
    msgspec.structs.replace(true, history=false, importance=[]).save(folder)
    lies = {**history, "trees": msgspec.to_builtins(false)}
    (folder / "history.json").write_text(json.dumps(lies))
    (folder / "model.ubj").unlink()
    run, own = (
        json.loads((folder / ORDER_FILE).read_bytes())["run"],
        runs._identity(federation.kits / "submitter"),
    )
    study = read_study(federation.study)
    runs.open_sealed(folder, study, run, own)
    assert RunRecord.load(folder) == true
    assert json.loads((folder / "history.json").read_bytes()) == history
    (folder / "model.ubj").unlink()
    (folder / "history.json").write_text("{}")
    with pytest.raises(EngineError, match="no valid record"):
        runs.open_sealed(folder, study, run, own)
    assert simfl.load(folder / "model.ubj").n_trees == N_TREES


def test_a_submitter_without_a_certificate_of_the_study_gets_no_model(federation, tmp_path):
    for file in (federation.kits / "submitter" / "startup").glob("client.*"):
        file.unlink()
    with pytest.raises(StudyError, match=r"'submitter@simfl.org' is refused: it is not signed"):
        runs.run_study(federation.study, out=tmp_path / "run")
    assert not list((federation.kits / "hub").glob("runs/*/model.sealed"))


def test_the_hubs_journal_holds_sealed_decisions(federation, tmp_path):
    runs.run_study(federation.study, out=tmp_path / "run")
    at_hub = next((federation.kits / "hub").glob("runs/*"))
    entries = open_joint_journal(at_hub / "journal").entries
    sealed = [entry.result.announced.sealed for entry in entries if hasattr(entry, "result")]
    assert len(sealed) == 4 + 2 + (N_TREES - 2) // 2  # moments, cells, finer cells, labels; 1, 1, 2, 2, ... trees


def test_a_rehearsal_of_a_joint_study_shows_masked_sums(federation, tmp_path):
    file = federation.kits / "north" / "party.toml"
    found = check.check(federation.study, file)
    assert found.refusals == []
    on = {p.name for p in found.rehearsed.protections if p.on}
    assert {"Masked sums", "Small groups", "Shared cut points", "Blind matching", "No ids of similar rows"} <= on
    said = {p.name: p.meaning for p in found.rehearsed.protections}
    assert said["Masked sums"].endswith("left under masks: the hub could read neither these nor their totals.")
    assert said["Small groups"] == "Every sum held at least 5 rows of all parties, by counts with noise."
    assert said["No ids of similar rows"] == "No row has a neighbour: no ids were sent."
    assert found.rehearsed.sent["Addend"] > 0


def test_parameters_of_another_recipe_are_refused_in_a_study(federation):
    text = federation.study.read_text().replace("min_group", "n_hashes = 3\nmin_group")
    with pytest.raises(
        StudyError, match=r"\[parameters\] n_hashes is a parameter of recipe='similar' and recipe='paper' only"
    ):
        parse_study(text)
    assert read_study(federation.study).params().min_group == 5
