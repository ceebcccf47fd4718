"""A hub that hands out another model than the one that was trained, or at another time."""

import json

import pytest
from msgspec.structs import replace

pytest.importorskip("nvflare")

import simfl
from simfl import messages as msg
from simfl.deploy import run as runs
from simfl.deploy.endpoints import PartyEndpoint
from simfl.errors import SimFLError
from simfl.model.xgboost_document import to_booster, to_document
from simfl.privacy.observed import Protection
from simfl.report import assemble
from simfl.report.record import RunRecord
from tests.deploy.one_process import open_federation
from tests.deploy.studies import PARTIES
from tests.deploy.test_joint_study import joint
from tests.wire import parties


@pytest.fixture
def federation(tmp_path, monkeypatch):
    return open_federation(tmp_path, monkeypatch, 6, 60)


def changed(data, change):
    """The file of a model whose document was changed."""
    document = to_document(simfl.load(data).booster)
    change(document["learner"])
    return bytes(to_booster(document).save_raw("ubj"))


def lies(data, folder):
    """False models, and what is said of them."""
    (folder / "true.ubj").write_bytes(data)

    def lie(change):
        return changed(folder / "true.ubj", change)

    def leaf(learner):
        tree = learner["gradient_booster"]["model"]["trees"][3]
        tree["split_conditions"][tree["left_children"].index(-1)] += 1e-5

    def one_more(learner):
        model = learner["gradient_booster"]["model"]
        model["trees"].append(model["trees"][-1] | {"id": len(model["trees"])})
        model["tree_info"].append(0)
        model["iteration_indptr"].append(len(model["trees"]))
        model["gbtree_model_param"]["num_trees"] = str(len(model["trees"]))

    def start(learner):
        learner["learner_model_param"]["base_score"] = "[3E-1]"

    other = folder / "other.ubj"
    simfl.train(parties(30, 30), callbacks=[], n_trees=6, random_state=0).save(other, history=False)
    return {
        "list of columns differs": other.read_bytes(),
        "tree 4 differs": lie(leaf),
        "the trees of 7 rounds, and 6 were adopted": lie(one_more),
        "base score differs": lie(start),
    }


def files(end):
    return {path.name for path in end.folder.iterdir()}


def test_a_party_keeps_only_the_model_that_it_trained(federation, tmp_path, monkeypatch):
    answer, said, problems = PartyEndpoint.answer, [], []

    def refuse(end, question, fact):
        before = files(end)
        try:
            answer(end, question)
        except SimFLError as error:
            said.append(fact)
            if fact not in str(error) or files(end) != before:
                problems.append(str(error))
        else:
            problems.append(f"accepted: {fact}")

    def lying(end, question):
        model = msg.TakeModel(model=b"", history=b"[]", record=b"{}")
        if end.name == "south" and isinstance(question, msg.Start | msg.SumPerLeaf | msg.Finish):
            refuse(end, model, "before its training ended")
        if end.name != "south" or not isinstance(question, msg.TakeModel):
            return answer(end, question)
        false = lies(question.model, tmp_path)
        for fact, data in false.items():
            refuse(end, replace(question, model=data), fact)
        refuse(end, replace(question, record=b"{"), "invalid record")
        reply = answer(end, question)
        answer(end, question)  # the same again is no harm
        for data in false.values():
            refuse(end, replace(question, model=data), "another model than the one that it has of this run")
        return reply

    monkeypatch.setattr(PartyEndpoint, "answer", lying)
    folder = runs.run_study(federation.study, out=tmp_path / "run")
    assert problems == []
    assert len({*said}) == 7
    (own,) = (federation.kits / "south").glob("runs/*")
    assert (own / "model.ubj").read_bytes() == (folder / "model.ubj").read_bytes()


def test_a_model_of_trees_grown_together_is_taken_at_their_end(tmp_path, monkeypatch):
    federation = open_federation(tmp_path, monkeypatch, 6, 60, joint)
    answer, problems = PartyEndpoint.answer, []

    def lying(end, question):
        if end.name == "south" and isinstance(question, msg.Add) and question.step % 4 == 3:
            try:
                answer(end, msg.TakeModel(model=b"", history=b'{"trees": []}', record=b"{}"))
            except SimFLError as error:
                problems.append(str(error))
        return answer(end, question)

    monkeypatch.setattr(PartyEndpoint, "answer", lying)
    folder = runs.run_study(federation.study, out=tmp_path / "run")
    assert {*problems} == {"Party 'south' was given a model before its training ended."}
    (own,) = (federation.kits / "south").glob("runs/*")
    assert (own / "model.ubj").read_bytes() == (folder / "model.ubj").read_bytes()


def test_a_report_without_a_gain_does_not_repeat_what_the_hub_claims(federation, tmp_path, monkeypatch):
    """A party that cannot measure its gain still says itself what it sent."""

    def fail(*given):
        raise ValueError("one class only")

    def claimed(record, party):
        claim = [Protection(name="Noise (differential privacy)", on=True, meaning="says the hub")]
        return replace(honest(record, party), protections=claim)

    honest = assemble.for_party
    monkeypatch.setattr(assemble, "with_own_gain", fail)
    monkeypatch.setattr(assemble, "for_party", claimed)
    runs.run_study(federation.study, out=tmp_path / "run")
    for party in PARTIES:
        (own,) = (federation.kits / party).glob("runs/*")
        record = RunRecord.load(own)
        assert record.notes == [f"What {party} gains over being alone could not be measured (ValueError)."]
        assert "Masked sums" in {p.name for p in record.protections if p.on}
        assert not any("says the hub" in p.meaning for p in record.protections)


def test_line_ends_are_part_of_a_study(federation, tmp_path):
    """A file with the line ends of Windows is the same everywhere, byte for byte."""
    federation.study.write_bytes(federation.study.read_bytes().replace(b"\n", b"\r\n"))
    runs.run_study(federation.study, out=tmp_path / "run")
    (own,) = (federation.kits / "north").glob("runs/*")
    assert (own / "study.toml").read_bytes() == federation.study.read_bytes()


def test_the_folder_of_a_run_is_private(federation, tmp_path):
    runs.run_study(federation.study, out=tmp_path / "run")
    for place in ("hub", *PARTIES):
        (own,) = (federation.kits / place).glob("runs/*")
        assert own.stat().st_mode & 0o077 == 0


def test_a_report_at_a_party_says_what_it_did_itself(federation, tmp_path):
    runs.run_study(federation.study, out=tmp_path / "run")
    for party in PARTIES:
        (own,) = (federation.kits / party).glob("runs/*")
        record = json.loads((own / "run.json").read_bytes())
        on = {p["name"] for p in record["protections"] if p["on"]}
        assert {"Masked sums", "Blind matching"} <= on
        assert not {"Noise (differential privacy)", "Small groups", "No ids of similar rows"} & on
