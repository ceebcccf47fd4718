"""A hub that burned down: its folder comes back from a backup, an older one than the last tree, and nothing is lost."""

import shutil

import pytest

pytest.importorskip("nvflare")

import msgspec

import simfl
from simfl import messages as msg
from simfl.deploy import run as runs
from simfl.deploy.endpoints import HubEndpoint
from simfl.deploy.orders import ORDER_FILE
from simfl.hub.joint import JointEntry
from simfl.hub.journal import Entry, Grew, open_journal
from simfl.storage import Journal
from tests.deploy.one_process import open_federation
from tests.deploy.studies import in_one_process


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


def from_protocol(version, path, kind):
    """The journal as an earlier version of SimFL would have left it: other trees, and other parameters that it knew."""
    kept = [
        msgspec.structs.replace(entry, protocol=version) if hasattr(entry, "protocol") else entry
        for entry in Journal(kind, path).entries
    ]
    path.unlink()
    journal = Journal(kind, path)
    for entry in kept:
        journal.append(entry)
    journal.close()


@pytest.mark.parametrize(("recipe", "kind"), [("similar", Entry), ("joint", JointEntry)])
def test_a_training_that_an_older_version_began_names_both_and_the_way_out(tmp_path, monkeypatch, recipe, kind):
    federation = open_federation(
        tmp_path, monkeypatch, 12, 120, lambda text: text.replace("rematch = 10", f'recipe = "{recipe}"')
    )

    def upgraded(record, connected):
        if record.round == 3 and len(federation.jobs) == 1:
            federation.jobs[0].end()
            [journal] = (federation.kits / "hub").glob("runs/*/journal")
            from_protocol(msg.VERSION - 1, journal, kind)
            stage_1 = journal.parent / "prepared.json"  # its parameters differ, too: the version is named all the same
            text = stage_1.read_text()
            assert '"random_state":5' in text
            stage_1.write_text(text.replace('"random_state":5', '"random_state":6'))

    words = (
        f"begun with version {msg.VERSION - 1} of the protocol, and this is version {msg.VERSION}.*Start a new training"
    )
    with pytest.raises(simfl.SimFLError, match=words):
        runs.run_study(federation.study, out=tmp_path / "run", listener=runs.Listener(tree=upgraded))


@pytest.mark.parametrize("recipe", ["similar", "joint"])
def test_stage_1_of_an_older_version_begins_anew(tmp_path, monkeypatch, recipe):
    federation = open_federation(
        tmp_path, monkeypatch, 6, 120, lambda text: text.replace("rematch = 10", f'recipe = "{recipe}"')
    )
    before = HubEndpoint._enter

    def upgraded(self, stage):
        before(self, stage)
        if stage == "training" and len(federation.jobs) == 1:
            [file] = (federation.kits / "hub").glob("runs/*/prepared.json")
            text = file.read_text()
            assert f'"protocol":{msg.VERSION}' in text
            older = text.replace(f'"protocol":{msg.VERSION}', f'"protocol":{msg.VERSION - 1}')
            file.write_text(older.replace('"random_state":5', '"random_state":6'))  # what nobody would continue with
            self.collected.wait()  # until the job is ended

    def end_first(stage):
        if stage == "training" and len(federation.jobs) == 1:
            federation.jobs[0].end()

    monkeypatch.setattr(HubEndpoint, "_enter", upgraded)
    folder = runs.run_study(federation.study, out=tmp_path / "run", listener=runs.Listener(tell=end_first))
    assert len(federation.jobs) == 2
    if recipe == "similar":
        assert (folder / "model.ubj").read_bytes() == in_one_process(tmp_path / "study.toml")
    [file] = (federation.kits / "hub").glob("runs/*/prepared.json")
    assert f'"protocol":{msg.VERSION}' in file.read_text()


def test_a_finished_training_of_an_older_version_still_gives_its_results(tmp_path, monkeypatch):
    federation = open_federation(tmp_path, monkeypatch, 3, 60)
    folder = runs.run_study(federation.study, out=tmp_path / "run")
    model = (folder / "model.ubj").read_bytes()
    [journal] = (federation.kits / "hub").glob("runs/*/journal")
    from_protocol(msg.VERSION - 1, journal, Entry)
    order = folder / ORDER_FILE
    order.write_bytes(order.read_bytes().replace(b'"finished":true', b'"finished":false'))
    (folder / "model.ubj").unlink()
    told = []
    runs.run_study(federation.study, out=folder, resume=True, listener=runs.Listener(tell=told.append))
    assert (folder / "model.ubj").read_bytes() == model
    assert any("finished before, and its results stand" in text and "version" in text for text in told)


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
