"""Another user of the machine, who reads what lies open."""

import os
import stat

import numpy as np
import pytest

pytest.importorskip("nvflare")

from simfl.deploy.kits import provision
from simfl.deploy.processes import run_hub, run_party
from simfl.deploy.study import read_study, write_examples
from simfl.deploy.submitter import Submitter
from simfl.errors import FileError
from simfl.federation import Preparation, prepare
from simfl.party import Party
from simfl.party.journal import open_journal

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def open_to_others(folder):
    return [path for path in (folder, *folder.rglob("*")) if path.lstat().st_mode & OTHERS]


@pytest.fixture(autouse=True)
def _usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def kits(tmp_path):
    write_examples(tmp_path)
    return provision(read_study(tmp_path / "study.toml"), tmp_path / "kits")


def test_all_that_provisioning_writes_is_private(kits):
    folder = kits["hub"].parent
    assert (folder / ".authority").is_dir()
    assert open_to_others(folder) == []


def test_the_authority_keeps_no_private_key_but_the_roots(kits):
    files = [path for path in (kits["hub"].parent / ".authority").rglob("*") if path.is_file()]
    assert [path.name for path in files if b"PRIVATE KEY" in path.read_bytes()] == ["root.key"]


def test_the_common_secret_and_the_row_ids_are_private(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 6)), rng.integers(0, 2, 60)
    parties = [Party("north", X[:30], y[:30]), Party("south", X[30:], y[30:])]
    ready = prepare(parties, matching="blind", n_hashes=4, random_state=0)
    ready.save(tmp_path / "ready")
    kept = list((tmp_path / "ready").rglob("*.npz"))
    assert kept
    assert not any(path.stat().st_mode & OTHERS for path in kept)
    assert Preparation.load(tmp_path / "ready", parties)


def test_a_journal_is_private(tmp_path):
    open_journal(tmp_path / "run" / "journal").close()
    assert not (tmp_path / "run" / "journal").stat().st_mode & OTHERS


def test_no_party_starts_from_a_party_file_with_a_secret_that_others_can_read(kits, tmp_path):
    file = tmp_path / "party.toml"
    file.write_text(f'name = "north"\ndata = "north.csv"\nkit = "kits/north"\nsecret = "{bytes(32).hex()}"\n')
    file.chmod(0o644)  # `simfl init` made it private
    with pytest.raises(FileError, match=r"can read .*party\.toml\. Run: chmod"):
        run_party(file)


@pytest.mark.parametrize("name", ["hub", "north", "submitter"])
@pytest.mark.parametrize("what", ["startup", "key"])
def test_nothing_starts_from_a_kit_that_others_can_read(kits, tmp_path, name, what):
    startup = kits[name] / "startup"
    loose = startup if what == "startup" else startup / f"{'server' if name == 'hub' else 'client'}.key"
    loose.chmod(loose.stat().st_mode | 0o040)
    run = {"hub": run_hub, "submitter": Submitter, "north": lambda _: run_party(tmp_path / "party.toml")}[name]
    with pytest.raises(FileError, match=rf"can read .*{loose.name}\. Run: chmod -R go-rwx .*{name}$"):
        run(kits[name])
