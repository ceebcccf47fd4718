"""The pages for operators: every command in a box marked `sh` runs, page by page, with real processes."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

import simfl
from simfl.deploy.authority import sites_of
from simfl.deploy.kits import accept, join, sign_requests
from simfl.deploy.processes import free_port, stop
from simfl.deploy.study import read_study

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "operate").glob("*.md"))
NEEDS = ("bash", "curl", "openssl", "tar")
# What was started ends with the page, whatever happens; `kill %1` needs job control.
PRELUDE = "set -euo pipefail -m\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait || true' EXIT\n"


def script_of(page):
    return "\n".join(re.findall(r"^```sh\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL))


@pytest.fixture
def consortium(tmp_path):
    """The folder of docs/operate/index.md: three of four hospitals, all kits made with requests."""
    study_path, requests = tmp_path / "study.toml", tmp_path / "requests"
    here = {'\n[[party]]\nname = "long-beach"\n': "", "8002": str(free_port()), "n_trees = 100": "n_trees = 4"}
    text = (ROOT / "examples" / "heart" / "study.toml").read_text()
    for old, new in here.items():
        assert old in text
        text = text.replace(old, new)
    study_path.write_text(text.replace("[engine]", "patience = 20\n[engine]"))
    for name, table in simfl.datasets.heart().items():
        (tmp_path / name).mkdir()
        own = f'name = "{name}"\ndata = "{name}.csv"\nstudy = "study.toml"\nkit = "../kits/{name}"\n'
        (tmp_path / name / "party.toml").write_text(own)
        shutil.copy(study_path, tmp_path / name)
        table.to_csv(tmp_path / name / f"{name}.csv", index=False)
    study = read_study(study_path)
    requests.mkdir()
    for name in sites_of(study):
        (requests / f"{name}.csr").write_bytes(join(study, name, tmp_path / "kits" / name))
    sign_requests(study, tmp_path / "kits", requests)
    for name in sites_of(study):
        accept(study, name, tmp_path / "kits" / name, (requests / f"{name}.pem").read_bytes())
    return tmp_path


@pytest.mark.parametrize("page", [page for page in PAGES if script_of(page)], ids=lambda page: page.stem)
def test_the_commands_of_the_page_run(page, consortium):
    missing = [name for name in NEEDS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"the pages use {', '.join(missing)}, which is not installed")
    port = read_study(consortium / "study.toml").engine.port
    here = {"8002": port, "9464": free_port(), "hub.example.org": "localhost", "hub2.example.org": socket.gethostname()}
    script = re.sub("|".join(map(re.escape, here)), lambda found: str(here[found[0]]), script_of(page))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = [shutil.which("bash"), "-c", PRELUDE + script]
    process = subprocess.Popen(
        words, cwd=consortium, env=os.environ | {"PATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        said = process.communicate(timeout=600)[0].decode()
    finally:
        stop([process])  # and all that it started
    assert process.returncode == 0, said[-4000:]
    for model in ("first", "second", "four"):
        assert (f"runs/{model}" in script) == (consortium / "runs" / model / "model.ubj").exists()


def test_every_command_of_the_pages_exists():
    from typer.main import get_command

    from simfl import cli

    known = get_command(cli.app).commands
    for page in PAGES:
        used = set(re.findall(r"(?:^|\s|`|! )simfl ([a-z]+)", script_of(page)))
        assert used <= set(known), page
