"""`simfl forget` and the table of what is kept, on the files of real runs."""

import hashlib
import io
import json
import re
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from simfl.deploy import run as runs
from simfl.deploy import traces
from simfl.deploy.forget import Home, find, read_record
from simfl.deploy.party_file import read_party_file
from simfl.deploy.study import digest_of, ledger_of
from simfl.errors import FileError, StudyError
from simfl.joint import private_rule
from tests.deploy.one_process import Federation
from tests.deploy.studies import PARTIES, without_paths, write_study

ROOT = Path(__file__).parents[2]
KINDS = {
    "similar": "validation_fraction = 0.25",
    "joint": 'recipe = "joint"\nlearning_rate = 0.4\nmin_group = 5',
    "private": 'recipe = "joint"\nepsilon = 4.0\nrows = 360',
}
JOB = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


@pytest.fixture
def federation(tmp_path, monkeypatch, request):
    """Three parties and a hub in this process, with a study of one kind."""
    study = write_study(tmp_path, 6, 120)
    made = Federation(tmp_path, {party: tmp_path / f"{party}.csv" for party in PARTIES}, seed=5)
    made.study = tmp_path / "shared.toml"
    text = without_paths(study.read_text())
    kind = getattr(request, "param", "similar")
    if kind == "private":
        text = text.replace('= "number"', "= { low = -3, high = 3 }").replace("validation_fraction", "# ")
    made.study.write_text(text.replace("rematch = 10", KINDS[kind]))
    (made.kits / "hub" / "startup").mkdir(parents=True)
    (made.kits / "hub" / "startup" / "fed_server.json").touch()
    monkeypatch.setattr("nvflare.fuel.flare_api.flare_api.new_secure_session", made.session)
    monkeypatch.setattr(runs, "POLL", 0.01)
    monkeypatch.setattr(private_rule, "LOCKSTEP", 2)
    return made


def files_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def kept_as(place, path):
    """The row of the table that a file of this place is of."""
    path = JOB.sub("JOB", path)
    at_kit = path.startswith(("JOB/", "store/")) or ("/" not in path and not path.startswith(("ledger", "forgotten")))
    found = [row for row in traces.KEPT if row.place == place and row.covers(f"kit/{path}" if at_kit else path)]
    assert found, f"{path} at the {place} is in no row of traces.py"
    return found[0]


def check_gone(place, before, after):
    """All that the table says goes with `simfl forget` is gone, and nothing else."""
    own = {path for path in before if not path.startswith(("startup/", "local/")) and path != "party.toml"}
    stays = {path for path in own if kept_as(place, path).until != traces.FORGET}
    assert after & own == stays
    assert after - before == {"forgotten", "forgotten.lock"}
    assert len(own) > len(stays)


@pytest.mark.parametrize("federation", KINDS, indirect=True)
def test_the_table_names_every_file_and_forget_removes_those_it_says(federation, tmp_path, simfl_command):
    runs.run_study(federation.study)
    federation.close()
    for name, place in {"north": "party", "hub": "hub", "": "submitter"}.items():
        home = federation.kits / name if name else tmp_path
        ours = home if name else tmp_path / "runs"
        (run,) = Home.at(home).runs
        before = files_in(ours) if name else {f"runs/{path}" for path in files_in(ours)}
        assert simfl_command("forget", run, home, "--yes") == 0
        after = files_in(ours) if name else {p for p in files_in(tmp_path) if p.startswith(("runs/", "forgotten"))}
        check_gone(place, before, after)
        assert Home.at(home).runs == {}


def test_the_record_says_what_when_and_with_which_digests_and_is_private(federation, tmp_path, simfl_command, capsys):
    runs.run_study(federation.study)
    federation.close()
    home = Home.at(federation.kits / "north" / "party.toml")
    ((run, (folder,)),) = home.runs.items()
    model = folder / "model.ubj"
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    assert simfl_command("forget", run, home.root, "--yes") == 0
    began, ended = read_record(home.root)
    assert (began.state, ended.state, began.run, began.who) == ("removing", "removed", run, "north")
    assert began.files[f"runs/{run}/model.ubj"] == digest
    assert began.study == digest_of(federation.study.read_bytes())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", ended.date)
    file = home.root / "forgotten"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert simfl_command("forget", run, home.root, "--yes") == 1
    assert f"It was forgotten here at {ended.date}. Runs that are there: none." in plain(capsys)
    file.write_bytes(file.read_bytes().replace(b"north", b"south", 1))
    with pytest.raises(FileError, match="was changed after it was written"):
        read_record(home.root)


def plain(capsys):
    return " ".join("".join(capsys.readouterr()).split())


def test_it_asks_first_and_a_dry_run_removes_nothing(federation, simfl_command, capsys, monkeypatch):
    runs.run_study(federation.study)
    federation.close()
    home = federation.kits / "north"
    (run,) = Home.at(home).runs
    before = files_in(home)
    assert simfl_command("forget", run, home, "--dry-run") == 0
    assert "model.ubj" in plain(capsys)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert simfl_command("forget", run, home) == 1
    assert files_in(home) == before
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert simfl_command("forget", run, home) == 0
    assert not (home / "runs" / run).exists()


def test_an_unknown_run_lists_those_that_are_there(federation, simfl_command, capsys):
    runs.run_study(federation.study)
    federation.close()
    home = federation.kits / "north"
    (run,) = Home.at(home).runs
    for wrong in ("nothing", "../north", "runs"):
        assert simfl_command("forget", wrong, home, "--yes") == 1
        assert f"There is no run '{wrong}' at {home}. Runs that are there: {run}." in plain(capsys)
    assert (home / "runs" / run / "model.ubj").exists()


def test_a_run_in_progress_is_refused_everywhere(federation, tmp_path, simfl_command, capsys):
    text = federation.study.read_text().replace("n_trees = 6", "n_trees = 30")
    federation.study.write_text(text)
    refused = Counter()

    def try_to(record, connected):
        for home in (federation.kits / "north", federation.kits / "hub", tmp_path):
            (run,) = Home.at(home).runs
            if simfl_command("forget", run, home, "--yes") == 1:
                refused[home] += "is in progress here: nothing was removed" in plain(capsys)

    runs.run_study(federation.study, listener=runs.Listener(tree=try_to))
    assert len(refused) == 3
    assert min(refused.values()) >= 1
    assert len(list(federation.kits.glob("*/runs/*/model.ubj"))) == 4


@pytest.mark.parametrize("federation", ["private"], indirect=True)
def test_a_forgotten_run_is_not_resumed_and_what_it_spent_stays_spent(federation, tmp_path, simfl_command):
    folder = runs.run_study(federation.study, out=tmp_path / "run")
    federation.close()
    home = federation.kits / "north"
    ledger = ledger_of(read_party_file(home / "party.toml"))
    spent = ledger.spent()
    (run,) = Home.at(home).runs
    assert simfl_command("forget", run, home, "--yes") == 0
    assert ledger.spent() == spent > 0
    order = folder / "order.json"
    order.write_text(json.dumps(json.loads(order.read_text()) | {"finished": False}))
    for name in runs.results_of(runs.read_study(federation.study)):
        next((federation.kits / "hub").glob(f"runs/*/{name}")).unlink()
    with pytest.raises(StudyError, match=f"north: the run '{run}' was forgotten here"):
        runs.run_study(federation.study, out=tmp_path / "run", resume=True)
    assert Home.at(home).runs == {}


def test_a_ledger_inside_a_run_folder_stays(tmp_path, simfl_command, capsys):
    inside = tmp_path / "runs" / "try" / "federation" / "north"
    inside.mkdir(parents=True)
    (tmp_path / "runs" / "try" / "model.ubj").write_bytes(b"a model")
    for name in ("ledger", "ledger.copy", "party.toml"):
        (inside / name).write_text("simfl ledger 1\n" if "ledger" in name else "name = 'north'\n")
    assert simfl_command("forget", "try", "--yes") == 0
    assert files_in(tmp_path / "runs") == {f"try/federation/north/{name}" for name in ("ledger", "ledger.copy")}
    assert "What was spent stays spent" in plain(capsys)
    assert sorted(read_record(tmp_path)[0].kept)[0].endswith("north/ledger")


def test_what_a_link_leads_to_stays(tmp_path, simfl_command):
    (tmp_path / "runs" / "try").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "table.csv").touch()
    (tmp_path / "runs" / "try" / "link").symlink_to(tmp_path / "elsewhere")
    assert simfl_command("forget", "try", "--yes") == 0
    assert (tmp_path / "elsewhere" / "table.csv").exists()
    assert not (tmp_path / "runs" / "try").exists()


def test_a_run_can_be_named_by_its_folder_if_that_is_clear(tmp_path):
    for folder, run in {"runs/a": "a-1", "b": "a-2", "runs/b": "b-1"}.items():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "order.json").write_text(json.dumps({"run": run}))
    assert find(Home.at(tmp_path), "a").run == "a-1"
    with pytest.raises(FileError, match="'b' names several runs: a-2, b-1"):
        find(Home.at(tmp_path), "b")


def test_through_flare_the_table_names_every_file_too(tmp_path):
    study = write_study(tmp_path, 4, 120)
    study.write_text(study.read_text().replace("rematch = 10", KINDS["joint"]))
    command = [sys.executable, "-m", "simfl"]
    subprocess.run([*command, "train", study, "--local-processes", "--out", tmp_path / "run"], check=True, timeout=600)
    for name, place in {"north": "party", "hub": "hub"}.items():
        home = tmp_path / "run" / "federation" / name
        before = files_in(home)
        assert any(JOB.match(path) for path in before)
        (run,) = Home.at(home).runs
        subprocess.run([*command, "forget", run, home, "--yes"], check=True, timeout=300)
        check_gone(place, before, files_in(home))


def test_the_documentation_has_the_table():
    text = (ROOT / "docs" / "retention.md").read_text()
    rows = [
        f"| {row.place} | {', '.join(f'`{f}`' for f in row.files)} | {row.holds} | {row.until} |" for row in traces.KEPT
    ]
    assert [line for line in text.splitlines() if re.match(r"\| (party|hub|submitter) \|", line)] == rows
