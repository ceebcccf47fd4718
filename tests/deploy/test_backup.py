"""A hub that burned down: its folder comes back from a backup, an older one than the last tree, and nothing is lost."""

import shutil

import pytest

pytest.importorskip("nvflare")

import simfl
from benchmarks.chaos import in_one_process
from simfl.deploy import run as runs
from simfl.deploy.orders import ORDER_FILE
from simfl.hub.journal import Grew, open_journal
from tests.deploy.one_process import open_federation


def burn_down(federation, backup, *, saved_at, lost_at):
    """Copy the hub's folder in one round; in a later one end everything and put the copy in its place."""
    hub = federation.kits / "hub"

    def after_tree(record, connected):
        if record.round == saved_at and len(federation.jobs) == 1:
            shutil.copytree(hub, backup)
        if record.round == lost_at and len(federation.jobs) == 1:
            federation.jobs[0].end()
            shutil.rmtree(hub)
            shutil.copytree(backup, hub)

    return after_tree


def test_a_hub_restored_from_an_older_backup_gives_the_same_model(tmp_path, monkeypatch):
    federation = open_federation(tmp_path, monkeypatch, 12, 120)
    tree = burn_down(federation, tmp_path / "backup", saved_at=3, lost_at=8)
    folder = runs.run_study(federation.study, out=tmp_path / "run", listener=runs.Listener(tree=tree))
    kept = open_journal(next((tmp_path / "backup").glob("runs/*/journal")))
    assert 4 <= len(list(kept.of(Grew))) < 9  # the backup lacks trees that everybody had
    assert len(federation.jobs) == 2
    assert (folder / "model.ubj").read_bytes() == in_one_process(tmp_path / "study.toml")


def test_trees_grown_together_survive_it_too(tmp_path, monkeypatch):
    def joint(text):
        return text.replace("rematch = 10", 'recipe = "joint"')

    federation = open_federation(tmp_path, monkeypatch, 12, 120, joint)
    tree = burn_down(federation, tmp_path / "backup", saved_at=3, lost_at=8)
    folder = runs.run_study(federation.study, out=tmp_path / "run", listener=runs.Listener(tree=tree))
    assert simfl.load(folder / "model.ubj").n_trees == 12
    models = [next((federation.kits / party).glob("runs/*/model.ubj")).read_bytes() for party in federation.parties]
    assert models == [(folder / "model.ubj").read_bytes()] * 3


def test_a_submitter_that_lost_its_folder_asks_for_a_training_that_is_gone(tmp_path, monkeypatch):
    federation = open_federation(tmp_path, monkeypatch, 3, 60)
    folder = runs.run_study(federation.study, out=tmp_path / "run")
    model = (folder / "model.ubj").read_bytes()
    shutil.copytree(folder, tmp_path / "saved")
    shutil.rmtree(folder)
    with pytest.raises(simfl.errors.FileError, match="no training to resume"):
        runs.run_study(federation.study, out=folder, resume=True)
    folder.mkdir()
    for name in ("study.toml", ORDER_FILE):  # all that a backup must have of it, but for the key of a sealed model
        text = (tmp_path / "saved" / name).read_bytes()
        (folder / name).write_bytes(text.replace(b'"finished":true', b'"finished":false'))
    runs.run_study(federation.study, out=folder, resume=True)
    assert (folder / "model.ubj").read_bytes() == model
