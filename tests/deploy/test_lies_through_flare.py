"""A hub that lies, in a genuine kit's own process: what real parties refuse, through FLARE, and what reaches the hub.

`tests/adversary/test_lying_hub.py` has all lies; here are the main ones, told in honest runs.
"""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from simfl.deploy import job
from simfl.deploy import run as runs
from simfl.deploy.endpoints import CLASSES
from simfl.deploy.processes import LocalProcesses
from simfl.deploy.study import read_study
from tests.adversary import lying_endpoint
from tests.adversary.lying_endpoint import ANSWERS, LIES, LIES_AFTER_A_LOSS, MISSED, LyingHub
from tests.deploy.studies import PARTIES, in_one_process, without_paths, write_study

ROOT = Path(__file__).parents[2]
LYING = f"{lying_endpoint.__name__}.{LyingHub.__name__}"
PATIENT, PLACE = "Zebedee-Quimby", "secret-place"


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Three honest parties beside tables with names of patients, and a hub whose own code lies."""
    folder = tmp_path_factory.mktemp("lying")
    tables = folder / PLACE
    tables.mkdir()
    study_path = write_study(tables, 4, 60, patience=20, on_dropout='"continue"')
    study_path.write_text(study_path.read_text().replace("rematch = 10", "rematch = 2\nmin_group = 5"))
    for name in PARTIES:
        head, *rows = (tables / f"{name}.csv").read_text().splitlines()
        named = [f"{row},{PATIENT}-{n}" for n, row in enumerate(rows)]
        (tables / f"{name}.csv").write_text("\n".join([f"{head},patient", *named]) + "\n")
    own_code = {"hub": ["env", f"PYTHONPATH={ROOT}"]}
    approved = folder / "shared.toml"
    local = LocalProcesses(read_study(study_path), tables, folder / "kits", within=own_code, approved=approved)
    local.study_path, local.approved = study_path, approved
    allow(local.kits["hub"] / "local" / "resources.json", LYING)
    with local, pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "POLL", 0.2)
        patch.setattr(job, "CLASSES", (LYING, CLASSES[1]))
        yield local


def allow(resources, name):
    """A hub may change its own kit."""
    content = json.loads(resources.read_text())
    content["class_allow_list"].append(name)
    resources.write_text(json.dumps(content))


def train(federation, out, study):
    """Train a study that all parties have approved; returns its folder."""
    federation.approved.write_text(study)
    return runs.run_study(federation.approved, kit=federation.kits["submitter"], out=out)


def answers(federation):
    return json.loads((federation.kits["hub"] / ANSWERS).read_text())


def check_refused(told, lies):
    """Every lie was told, and refused with its rule."""
    assert [lie.name for lie in lies if lie.name not in told] == []
    wrong = {lie.name: told[lie.name] for lie in lies if lie.rule not in told[lie.name]}
    assert wrong == {}
    assert [name for name, answer in told.items() if not answer.startswith("refused: ")] == []


def check_nothing_private(federation, texts):
    """Neither these texts nor any file of the hub has a name, a path or a cell of a table."""
    files = [p for p in federation.kits["hub"].rglob("*") if p.is_file()]
    assert "log.txt" in {p.name for p in files}
    written = b"\n".join(path.read_bytes() for path in files) + "\n".join(texts).encode()
    assert PATIENT.encode() not in written
    assert PLACE.encode() not in written
    said = "\n".join([*texts, *(p.read_text() for p in files if p.suffix in (".log", ".txt"))])
    numbers = {*re.findall(r"-?\d+\.\d{3,}(?!\d| s\b)", said)}  # the pace of a training is in seconds
    for name in PARTIES:
        rows = (federation.study_path.parent / f"{name}.csv").read_text().splitlines()[1:]
        assert numbers & {cell for row in rows for cell in row.split(",")} == set()


def test_every_lie_is_refused_and_the_model_is_the_honest_one(federation, tmp_path):
    folder = train(federation, tmp_path / "run", without_paths(federation.study_path.read_text()))
    told = answers(federation)
    check_refused(told, LIES)
    check_nothing_private(federation, list(told.values()))
    assert (folder / "model.ubj").read_bytes() == in_one_process(federation.study_path)
    missed = json.loads((federation.kits["hub"] / MISSED).read_text())
    assert missed == dict.fromkeys(PARTIES, 0)  # every question was a plain message, and so was its answer


def test_a_round_is_not_repeated_over_fewer(federation, tmp_path):
    lost = without_paths(federation.study_path.read_text()).replace("rematch = 2", "rematch = 0")
    folder = train(federation, tmp_path / "run", lost)
    told = answers(federation)
    check_refused(told, LIES_AFTER_A_LOSS)
    check_nothing_private(federation, list(told.values()))
    assert json.loads((folder / "history.json").read_bytes())["missed"].keys() == {lying_endpoint.LOST}
