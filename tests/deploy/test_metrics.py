"""Health and figures over HTTP, read by Prometheus' own parser."""

import contextlib
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

pytest.importorskip("nvflare")

from simfl import messages as msg
from simfl.deploy import metrics
from simfl.deploy import run as runs
from simfl.deploy.kits import provision
from simfl.deploy.metrics import FIGURES, Figures, FiguresFile, Watched, note_refusal, serving
from simfl.deploy.processes import free_port
from simfl.deploy.study import read_study
from simfl.errors import EngineError
from simfl.transport.base import Traffic
from tests.deploy.studies import PARTIES, without_paths, write_study
from tests.deploy.waiting import LONG, within

KINDS = {kind.__name__ for kind in (*msg.Reply.__args__, *msg.Request.__args__)}
NAMES = {
    "simfl_info": {"version", "site"},
    "simfl_up": set(),
    "simfl_ready": set(),
    "simfl_refusals": set(),
    "simfl_certificate_expires": set(),
    "simfl_trees": {"run"},
    "simfl_bytes": {"run", "direction", "kind"},
    "simfl_party_present": {"run", "party"},
    "simfl_hop_seconds": {"run", "kind"},
}

OF_THE_HUB = ("simfl_trees", "simfl_party_present")


def get(port, path):
    """Status and text of an answer."""
    try:
        with urllib.request.urlopen(f"http://localhost:{port}{path}", timeout=LONG) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def parsed(text):
    return {family.name: family.samples for family in text_string_to_metric_families(text)}


@pytest.fixture
def study(tmp_path):
    """A study of three parties with kits, where nothing runs yet."""
    path = write_study(tmp_path, 3, 60, patience=20)
    text = without_paths(path.read_text())
    port = f"[engine]\nport = {free_port()}\n"
    (tmp_path / "shared.toml").write_text(re.sub(r"(?=\[\[party\]\])", port, text, count=1))
    study = read_study(tmp_path / "shared.toml")
    for party, kit in provision(study, tmp_path / "kits").items():
        if party in PARTIES:
            own = f'name = "{party}"\ndata = "../{party}.csv"\nkit = "../kits/{kit.name}"\nstudy = "../shared.toml"\n'
            (tmp_path / party).mkdir()
            (tmp_path / party / "party.toml").write_text(own + '[require]\nmatching = "any"\n')
    return tmp_path / "shared.toml"


def test_off_unless_asked_for(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(metrics, "ThreadingHTTPServer", lambda *words: opened.append(words))
    with serving(Watched(tmp_path, tmp_path), None):
        assert opened == []


def test_where_no_engine_runs_nothing_is_ready(study):
    port, kit = free_port(), study.parent / "kits" / "hub"
    with serving(Watched(kit, kit / "runs"), port):
        assert get(port, "/healthz") == (200, "yes\n")
        assert get(port, "/readyz") == (503, "no\n")
        assert get(port, "/else")[0] == 404
        found = parsed(get(port, "/metrics")[1])
        assert found["simfl_up"][0].value == 0
        assert found["simfl_certificate_expires"][0].value > time.time() + 300 * 86400
        with (
            pytest.raises(EngineError, match=f"--metrics-port {port} cannot be used"),
            serving(Watched(kit, kit), port),
        ):
            pass
    with pytest.raises(urllib.error.URLError):
        get(port, "/healthz")


def test_the_figures_of_the_last_training_are_shown(study, tmp_path):
    kit = study.parent / "kits" / "hub"
    traffic = Traffic()
    for party in PARTIES:
        traffic.count(party, msg.Finish(previous=[]), 10, msg.Done(), 5, time.perf_counter() - 0.5)
    (kit / "runs" / "a-run").mkdir(parents=True)
    file = FiguresFile(kit / "runs" / "a-run")
    file.figures.count(traffic)
    file.figures.trees, file.figures.present = 7, {"north": True, "south": False}
    file.save()
    note_refusal(kit)
    note_refusal(kit)
    found = parsed(Watched(kit, kit / "runs").text())
    values = {(s.name, *sorted(s.labels.items())): s.value for samples in found.values() for s in samples}
    run = ("run", "a-run")
    assert values["simfl_trees_total", run] == 7
    assert values["simfl_bytes_total", ("direction", "sent"), ("kind", "Finish"), run] == 30
    assert values["simfl_bytes_total", ("direction", "received"), ("kind", "Done"), run] == 15
    assert values["simfl_hop_seconds_count", ("kind", "Finish"), run] == 3
    assert 1.5 <= values["simfl_hop_seconds_sum", ("kind", "Finish"), run] < 3
    assert values["simfl_party_present", ("party", "south"), run] == 0
    assert values["simfl_refusals_total",] == 2


def test_a_file_is_not_written_more_often_than_anybody_reads(tmp_path):
    file = FiguresFile(tmp_path)
    file.save()
    before = (tmp_path / FIGURES).stat().st_mtime_ns
    for _ in range(100):
        file.figures.answered("Grow", "Grown", 1, 2, 0.1)
        file.save()
    assert (tmp_path / FIGURES).stat().st_mtime_ns == before
    file.save(now=True)
    kept = msgspec.json.decode((tmp_path / FIGURES).read_bytes(), type=Figures)
    assert (kept.hops, kept.sent) == ({"Grow": 100}, {"Grown": 200})


@contextlib.contextmanager
def running(*commands):
    """Processes of the command line, until the end."""
    words = [Path(sys.executable).with_name("simfl")]
    started = [
        subprocess.Popen([*words, *map(str, command)], stdout=subprocess.DEVNULL, start_new_session=True)
        for command in commands
    ]
    try:
        yield
    finally:
        for process in started:
            process.send_signal(signal.SIGINT)
        for process in started:
            process.wait(LONG)


def test_a_hub_and_its_parties_tell_how_they_are_and_nothing_of_their_rows(study, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "POLL", 0.05)
    ports = {name: free_port() for name in ("hub", *PARTIES)}
    hub = ["hub", "start", study.parent / "kits" / "hub"]
    commands = {name: ["party", "start", study.parent / name / "party.toml"] for name in PARTIES} | {"hub": hub}
    with running(*([*commands[name], "--metrics-port", port] for name, port in ports.items())):
        for port in ports.values():
            assert within(LONG, lambda port=port: _status(port, "/readyz") == 200)
            assert get(port, "/healthz") == (200, "yes\n")
        folder = runs.run_study(study, kit=study.parent / "kits" / "submitter", out=tmp_path / "out")
        texts = {name: get(port, "/metrics")[1] for name, port in ports.items()}
    assert (folder / "model.ubj").exists()
    for name, text in texts.items():
        found = parsed(text)
        assert {family: set(sample.labels) for family, samples in found.items() for sample in samples} == {
            family: labels for family, labels in NAMES.items() if name == "hub" or family not in OF_THE_HUB
        }
        assert {s.labels["kind"] for s in (*found["simfl_bytes"], *found["simfl_hop_seconds"])} <= KINDS
        assert sum(sample.value for sample in found["simfl_bytes"]) > 1000
    assert parsed(texts["hub"])["simfl_trees"][0].value == 3
    assert [sample.value for sample in parsed(texts["hub"])["simfl_party_present"]] == [1.0] * 3


def _status(port, path):
    try:
        return get(port, path)[0]
    except OSError:
        return 0
