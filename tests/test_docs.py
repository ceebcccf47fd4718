import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import simfl

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page):
    links = re.findall(r"\]\(([^)#:]+)[^):]*\)", page.read_text())
    assert all((page.parent / link).exists() for link in links)


def test_the_commands_of_the_tutorial_run(tmp_path):
    text = (ROOT / "docs" / "tutorial.md").read_text()
    blocks = re.findall(r"```(python|sh)\n(.*?)```", text, flags=re.S)
    # The files come from the first block of Python; the model from the commands themselves.
    code = next(code for kind, code in blocks if kind == "python")
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=120)
    lines = [line for kind, code in blocks if kind == "sh" for line in code.strip().splitlines()]
    assert lines
    command = Path(sys.executable).with_name("simfl")
    for line in lines:
        subprocess.run([command, *shlex.split(line)[1:]], cwd=tmp_path, check=True, timeout=300, env=os.environ)
    assert (tmp_path / "runs" / "heart" / "report.html").stat().st_size > 500_000
    assert (tmp_path / "predictions.csv").read_text().startswith("prediction,probability of 0,probability of 1")


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda path: path.name)
def test_every_notebook_runs(path, tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat: pip install 'simfl[docs]'")
    nbclient = pytest.importorskip("nbclient", reason="notebooks need nbclient: pip install 'simfl[docs]'")
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "notebooks are kept without outputs"
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    assert (tmp_path / "runs" / "notebook" / "report.html").exists()


def test_the_claims_of_the_paper_stand_in_the_how_to_as_they_were_measured():
    how_to = (ROOT / "docs" / "howto" / "reproduce-the-paper.md").read_text()
    measured = (ROOT / "docs" / "results" / "paper.md").read_text().split("\n## ")[0]
    rows = [line.replace("](", "](../results/") for line in measured.splitlines() if line.startswith("|")]
    assert len(rows) > 10
    assert "\n".join(rows) in how_to


def test_the_four_hospitals_are_ready_for_one_machine_and_for_four():
    from simfl.deploy.party_file import read_party_file
    from simfl.deploy.study import read_study
    from simfl.deploy.tables import open_party

    home = ROOT / "examples" / "heart"
    study, local = read_study(home / "study.toml"), read_study(home / "one-machine.toml")
    plain = [type(party)(name=party.name) for party in local.party]
    assert msgspec.structs.replace(local, party=plain) == study
    tables = simfl.datasets.heart()
    assert study.parties == list(tables)
    for name, table in tables.items():
        _, party, notes = open_party(home / "study.toml", home / name / "party.toml")
        assert (len(party.rows.y), notes) == (len(table), [])
        assert next(p.data for p in local.party if p.name == name).endswith(f"datasets/heart/{name}.csv")
        assert read_party_file(home / name / "party.toml").require.broken_by(study) == []
