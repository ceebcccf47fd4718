"""A federation whose sites made their own keys, as FLARE processes: it trains, and refuses who is revoked."""

import contextlib
import ssl

import pytest

pytest.importorskip("nvflare")

from simfl.deploy import run as runs
from simfl.deploy.authority import sites_of
from simfl.deploy.kits import accept, join, revoke, sign_requests
from simfl.deploy.processes import LocalProcesses, stop
from simfl.deploy.study import read_study
from simfl.errors import FileError
from tests.deploy.studies import in_one_process, without_paths, write_study
from tests.transport.test_flare import knocks


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A hub and three parties, running from kits that were made by `simfl join` and `simfl provision --requests`."""
    folder = tmp_path_factory.mktemp("joined")
    study_path = write_study(folder, 3, 60, patience=20)
    study, kits, requests = read_study(study_path), folder / "kits", folder / "requests"
    requests.mkdir()
    for name in sites_of(study):
        (requests / f"{name}.csr").write_bytes(join(study, name, kits / name))
    sign_requests(study, kits, requests)
    for name in sites_of(study):
        accept(study, name, kits / name, (requests / f"{name}.pem").read_bytes())
    keys = {path: path.read_bytes() for path in kits.glob("*/startup/*.key")}
    local = LocalProcesses(study, folder, kits, approved=folder / "shared.toml")
    assert len(keys) == 5
    assert all(path.read_bytes() == key for path, key in keys.items())  # the sites' own
    with local, pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "POLL", 0.05)
        patch.setattr(runs, "SETTLE", 1.0)
        local.study_path, local.shared = study_path, folder / "shared.toml"
        local.shared.write_text(without_paths(study_path.read_text()))
        yield local


def test_sites_with_their_own_keys_train_and_a_revoked_one_is_out(federation, tmp_path):
    folder = runs.run_study(federation.shared, kit=federation.kits["submitter"], out=tmp_path / "run")
    assert (folder / "model.ubj").read_bytes() == in_one_process(federation.study_path)
    written = [path for name in ("hub", "north") for path in federation.kits[name].rglob("*") if path.is_file()]
    assert [path for path in written if path.stat().st_mode & 0o077] == []

    with contextlib.suppress(TimeoutError):
        assert knocks(federation, federation.kits["south"], 3.0)
    revoke(federation.study, federation.folder, "south")
    stop([federation.processes["south"]])
    with pytest.raises((ssl.SSLError, ConnectionError)):  # the running hub has the new list
        knocks(federation, federation.kits["south"])
    with contextlib.suppress(TimeoutError):  # the hub waits for the first word
        assert knocks(federation, federation.kits["north"], 3.0)  # or has spoken: the end would be b""
    with pytest.raises(FileError, match="is revoked"):
        federation.start("south")
