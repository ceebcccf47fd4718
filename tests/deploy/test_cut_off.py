"""Parties in network namespaces of their own; one of them is cut off for a while."""

import json
import os
import shutil
import subprocess
import threading
import time

import pytest

pytest.importorskip("nvflare")

from simfl.deploy import run as runs
from simfl.deploy.processes import LocalProcesses
from simfl.deploy.study import read_study
from tests.deploy.studies import PARTIES, slow_down, without_paths, write_study

NETWORK = f"10.{77 + os.getpid() % 100}.{os.getpid() // 100 % 200}"
BRIDGE = f"sfl{os.getpid() % 100000}"


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)  # noqa: S607


def may_make_namespaces():
    if shutil.which("ip") is None:
        return False
    try:
        ip("netns", "add", f"{BRIDGE}-try")
        ip("netns", "del", f"{BRIDGE}-try")
    except subprocess.CalledProcessError:
        return False
    return True


@pytest.fixture
def namespaces():
    """A bridge with the hub on it, and a namespace with its own link per party."""
    if not may_make_namespaces():
        pytest.skip("`ip netns` is not permitted here")
    links = {}
    try:
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("addr", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        for number, party in enumerate(PARTIES):
            space, outer, inner = f"{BRIDGE}-{party}", f"{BRIDGE}o{number}", f"{BRIDGE}i{number}"
            ip("netns", "add", space)
            links[party] = (space, outer)
            ip("link", "add", outer, "type", "veth", "peer", "name", inner)
            ip("link", "set", inner, "netns", space)
            ip("link", "set", outer, "master", BRIDGE, "up")
            ip("-n", space, "addr", "add", f"{NETWORK}.{10 + number}/24", "dev", inner)
            ip("-n", space, "link", "set", inner, "up")
            ip("-n", space, "link", "set", "lo", "up")
        yield links
    finally:
        for space, _ in links.values():
            subprocess.run(["ip", "netns", "del", space], check=False)  # noqa: S607
        subprocess.run(["ip", "link", "del", BRIDGE], check=False)  # noqa: S607


def test_a_party_that_is_cut_off_is_missed_and_comes_back(namespaces, tmp_path, monkeypatch):
    study_path = write_study(tmp_path, 200, 200, patience=10, on_dropout='"continue"')
    study = read_study(study_path)
    shared = tmp_path / "shared.toml"
    shared.write_text(without_paths(study_path.read_text()))
    space = {party: ["ip", "netns", "exec", name] for party, (name, _) in namespaces.items()}
    state = {}

    def cut(record, connected):
        if record.round >= 5 and "cut" not in state:
            ip("link", "set", namespaces["west"][1], "down")
            state["cut"] = record.round
        if record.absent and "back" not in state:
            state["back"] = True
            slow_down(local, "north", until=lambda: "joined" in state)
            threading.Thread(target=mend, daemon=True).start()
        if "back" in state and not record.absent:
            state["joined"] = True

    def mend():
        time.sleep(2)
        ip("link", "set", namespaces["west"][1], "up")

    monkeypatch.setattr(runs, "POLL", 0.05)
    with LocalProcesses(study, tmp_path, tmp_path / "kits", f"{NETWORK}.1", space, shared) as local:
        listener = runs.Listener(tree=cut)
        folder = runs.run_study(shared, kit=local.kits["submitter"], out=tmp_path / "run", listener=listener)
    history = json.loads((folder / "history.json").read_bytes())
    missed = history["missed"]["west"]
    assert list(history["missed"]) == ["west"]
    assert missed == list(range(missed[0], missed[-1] + 1))
    assert len(history["trees"]) == 200
    assert "west" in {tree["builder"] for tree in history["trees"][missed[-1] + 1 :]}
