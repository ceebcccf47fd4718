"""Trees grown together through FLARE, between real processes: the hub lies and is refused, and a party is killed."""

import json
from pathlib import Path

import numpy as np
import psutil
import pytest

pytest.importorskip("nvflare")

import simfl
from simfl.deploy import folders, job
from simfl.deploy import run as runs
from simfl.deploy.endpoints import CLASSES
from simfl.deploy.processes import LocalProcesses
from simfl.deploy.study import read_study
from simfl.errors import SimFLError
from simfl.report import page
from simfl.report.record import RunRecord
from tests.adversary.lying_endpoint import ANSWERS, JOINT_LIES
from tests.deploy.studies import PARTIES, in_one_process, without_paths, write_study
from tests.deploy.test_lies_through_flare import LYING, allow, check_refused
from tests.wire import model_bits

ROOT = Path(__file__).parents[2]
N_TREES, LOCKSTEP = 20, 4


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A study of three honest parties, and a hub whose own code lies."""
    folder = tmp_path_factory.mktemp("joint")
    study = write_study(folder, N_TREES, 240, patience=5)
    joint = f'recipe = "joint"\nlearning_rate = {0.8 / LOCKSTEP}\nmin_group = 5\nvalidation_fraction = 0.25'
    study.write_text(study.read_text().replace("rematch = 10", joint))
    approved = folder / "shared.toml"
    approved.write_text(without_paths(study.read_text()))
    code = {name: ["env", f"PYTHONPATH={ROOT}"] for name in ("hub", *PARTIES)}
    local = LocalProcesses(read_study(study), folder, folder / "kits", within=code, approved=approved)
    local.study_path = study
    allow(local.kits["hub"] / "local" / "resources.json", LYING)
    with local, pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "POLL", 0.1)
        patch.setattr(job, "CLASSES", (LYING, CLASSES[1]))
        yield local


@pytest.fixture(scope="module")
def trained(federation, tmp_path_factory):
    """The run folder of a training in which a party's job was killed in the middle of a batch; and what was said."""
    out, said = tmp_path_factory.mktemp("run") / "run", []
    _, order = folders.begin_run(federation.approved, read_study(federation.approved), out, False)
    federation.give_keys(order.run)

    def kill(record, connected):
        if record.round == 2 * LOCKSTEP - 1 and "killed" not in said:
            said.append("killed")
            for job in psutil.Process(federation.processes["west"].pid).children(recursive=True):
                job.kill()

    for _ in range(4):
        try:
            listener = runs.Listener(said.append, kill)
            runs.run_study(
                federation.approved, kit=federation.kits["submitter"], out=out, resume=True, listener=listener
            )
            return out, said
        except SimFLError as error:  # on_dropout = "stop"
            said.append(str(error))
    raise AssertionError(said)


def folder_of(federation, name):
    (found,) = (federation.kits[name] / "runs").iterdir()
    return found


def test_the_model_is_that_of_one_process_although_a_party_was_killed_in_a_batch(federation, trained):
    out, said = trained
    after = said[said.index("killed") + 1 :]
    assert any("continuing from the journal" in text or "no sign of life" in text for text in after)
    assert (out / "model.ubj").read_bytes() == in_one_process(federation.study_path)
    for party in PARTIES:
        assert (folder_of(federation, party) / "model.ubj").read_bytes() == (out / "model.ubj").read_bytes()
    assert json.loads((out / "history.json").read_bytes())["missed"] == {}


def test_a_party_takes_part_again_within_the_run(federation, trained):
    assert len(list((federation.kits["west"] / "runs").iterdir())) == 1
    assert all(process.poll() is None for process in federation.processes.values())


def test_every_lie_was_refused(federation, trained):
    check_refused(json.loads((federation.kits["hub"] / ANSWERS).read_text()), JOINT_LIES)


def test_the_hub_has_no_number_of_the_model_and_no_metric(federation, trained):
    model, record = simfl.load(trained[0] / "model.ubj"), RunRecord.load(trained[0])
    trees = model_bits(model)["learner"]["gradient_booster"]["model"]["trees"]
    numbers = {np.float32(v).tobytes() for tree in trees for v in tree["split_conditions"] if abs(v) > 1e-3}
    files = [p for p in federation.kits["hub"].rglob("*") if p.is_file()]
    written = b"\n".join(p.read_bytes() for p in files)
    assert len(numbers) > 50
    assert len([number for number in numbers if number in written]) <= 1  # by chance
    assert not [p for p in files if p.name == "model.ubj"]
    metrics = {
        str(value)[:10] for tree in record.history for value in (tree.train["logloss"], tree.validation["logloss"])
    }
    assert len(metrics) > N_TREES
    assert not [value for value in metrics if value.encode() in written]


def test_submitter_and_parties_have_a_report_with_metrics(federation, trained):
    for place in (trained[0], *(folder_of(federation, party) for party in PARTIES)):
        record = RunRecord.load(place)
        assert len(record.history) == N_TREES
        assert all(tree.train and tree.validation for tree in record.history)
        assert all(tree["train"] for tree in json.loads((place / "history.json").read_bytes())["trees"])
        assert page.write(place).exists()
