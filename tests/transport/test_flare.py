"""The real thing: provisioned kits, mutual TLS, separate processes, FLARE jobs. One federation for all tests here."""

import contextlib
import json
import shutil
import socket
import ssl
import threading
from functools import partial

import msgspec
import numpy as np
import psutil
import pytest

pytest.importorskip("nvflare")

from nvflare.collab import CollabCallError

from simfl import messages as msg
from simfl import wire
from simfl.deploy import run as runs
from simfl.deploy.course import read_stage
from simfl.deploy.job import write_job
from simfl.deploy.kits import provision
from simfl.deploy.orders import Order
from simfl.deploy.processes import LocalProcesses, start, stop
from simfl.deploy.study import read_study
from simfl.deploy.submitter import Submitter
from simfl.errors import EngineError, PartyLeft, ProtocolError, StudyError
from simfl.report import page as report
from simfl.report.record import RunRecord
from simfl.transport import flare
from simfl.transport.lifetime import note_left, who_left
from tests.deploy.studies import PARTIES, in_one_process, slow_down, without_paths, write_study
from tests.deploy.waiting import LONG, within

TREES = "n_trees = 12"


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A hub and three parties, running."""
    folder = tmp_path_factory.mktemp("federation")
    study_path = write_study(folder, 12, 200, patience=20)
    local = LocalProcesses(read_study(study_path), folder, folder / "kits", approved=folder / "shared.toml")
    with local, pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "POLL", 0.05)
        patch.setattr(runs, "SETTLE", 1.0)
        local.study_path = study_path
        local.shared = folder / "shared.toml"  # as between machines: without anybody's paths
        local.shared.write_text(without_paths(study_path.read_text()))
        yield local


def train(federation, out, **more):
    seen = []
    listener = runs.Listener(tree=lambda record, connected: seen.append((record, connected)))
    folder = runs.run_study(federation.shared, kit=federation.kits["submitter"], out=out, listener=listener, **more)
    return folder, seen


@pytest.fixture(scope="module")
def trained(federation, tmp_path_factory):
    """A whole training through FLARE."""
    return train(federation, tmp_path_factory.mktemp("run") / "one")


def test_local_and_flare_grow_the_same_trees(federation, trained):
    folder, _ = trained
    wanted = in_one_process(federation.study_path)
    found = [folder / "model.ubj", *(next(federation.kits[p].glob("runs/*/model.ubj")) for p in PARTIES)]
    assert len(found) == 4  # the submitter and every party
    assert all(path.read_bytes() == wanted for path in found)


def test_every_tree_is_told_with_builder_metric_bytes_and_who_is_there(trained):
    _, seen = trained
    assert [record.round for record, _ in seen] == list(range(12))
    assert {record.builder for record, _ in seen} == set(PARTIES)
    assert all(record.bytes > 0 and record.train and connected == list(PARTIES) for record, connected in seen)


def test_the_history_comes_with_the_model(trained):
    folder, _ = trained
    history = json.loads((folder / "history.json").read_bytes())
    assert len(history["trees"]) == 12
    assert history["missed"] == {}
    assert history["rows"] == dict.fromkeys(PARTIES, 200)
    assert set(history["traffic"]) == set(PARTIES)


def test_the_record_of_the_run_says_what_was_really_sent(federation, trained):
    folder, _ = trained
    found = [folder, *(next(federation.kits[p].glob("runs/*/run.json")).parent for p in PARTIES)]
    for home in found:
        run = RunRecord.load(home)
        on = {p.name for p in run.protections if p.on}
        assert {"Blind matching", "Masked sums", "No statistics of tree nodes"} <= on
        assert not on & {"No ids of similar rows", "Small groups", "Noise (differential privacy)"}
        assert run.status == "finished"
        assert len(run.history) == 12
        assert report.write(home).stat().st_size > 100_000
    whole, at_south = (RunRecord.load(home) for home in (found[0], found[2]))
    assert {f"at {party}" for party in PARTIES} <= set(whole.versions)
    assert [name for name in at_south.versions if name.startswith("at ")] == ["at south"]  # of the others, nothing
    assert set(at_south.traffic) == {"south"}
    assert set(at_south.similarity.equal_hashes) == {"south"}


def test_a_partys_journal_lists_what_left(federation, trained):
    from simfl.party.journal import open_journal

    entries = open_journal(next(federation.kits["north"].glob("runs/*/journal"))).entries
    kinds = {entry.answer for entry in entries}
    assert {
        "Greeting",
        "Description",
        "FeatureSums",
        "SealedSecret",
        "HiddenRows",
        "Done",
        "RowSums",
        "Grown",
        "LeafSums",
    } <= kinds
    assert all(entry.bytes_out > 0 for entry in entries)


def test_a_finished_training_is_not_trained_again(federation, trained):
    folder, _ = trained
    before = (folder / "model.ubj").stat().st_mtime_ns
    train(federation, folder, resume=True)
    assert (folder / "model.ubj").stat().st_mtime_ns == before


def test_a_training_continues_by_itself_when_a_partys_job_is_killed(federation, tmp_path):
    said, killed = [], []

    def kill_once(record, connected):
        if not killed and record.round >= 4:
            killed.extend(psutil.Process(federation.processes["south"].pid).children(recursive=True))
            for job in killed:
                job.kill()

    slow = federation.shared.read_text().replace(TREES, "n_trees = 60")
    folder = train_another(federation, slow, tmp_path / "run", runs.Listener(said.append, kill_once))
    assert any(text.endswith("continuing from the journal") for text in said)
    local = federation.shared.with_name("slow-local.toml")
    local.write_text(federation.study_path.read_text().replace(TREES, "n_trees = 60"))
    assert (folder / "model.ubj").read_bytes() == in_one_process(local)
    assert not list(folder.glob("**/.*"))


def train_another(federation, text, out, listener):
    """Train another study, which all parties have approved."""
    before = federation.shared.read_text()
    federation.shared.write_text(text)
    try:
        return runs.run_study(federation.shared, kit=federation.kits["submitter"], out=out, listener=listener)
    finally:
        federation.shared.write_text(before)


def test_a_study_that_nobody_has_approved_is_not_trained(federation, tmp_path):
    weaker = federation.shared.with_name("weaker.toml")
    weaker.write_text(federation.shared.read_text().replace("[parameters]", "[parameters]\nmasked = false"))
    with pytest.raises(StudyError, match=r"north: the study that was sent .* is not the one that it has approved"):
        runs.run_study(weaker, kit=federation.kits["submitter"], out=tmp_path / "run")
    assert not list(federation.kits["north"].glob("runs/*weaker*"))


def test_a_party_that_died_is_missed_and_takes_part_again_when_it_is_back(federation, tmp_path):
    text = federation.shared.read_text().replace(TREES, "n_trees = 150").replace("patience = 20", "patience = 10")
    text = text.replace('"stop"', '"continue"').replace("rematch = 10", "rematch = 64")
    said, killed = [], []

    def kill_once(record, connected):
        if not killed and record.round >= 3:
            killed.append(federation.processes["south"])
            stop(killed)
            federation.start("south")
        if record.absent and len(killed) == 1:
            killed.append(None)
            slow_down(federation, "north", until=lambda: "south is back: continuing together" in said)

    folder = train_another(federation, text, tmp_path / "run", runs.Listener(said.append, kill_once))
    history = json.loads((folder / "history.json").read_bytes())
    missed = history["missed"]["south"]
    assert list(history["missed"]) == ["south"]
    assert missed == list(range(missed[0], missed[-1] + 1))
    assert len(history["trees"]) == 150
    assert "south" in {tree["builder"] for tree in history["trees"][missed[-1] + 1 :]}
    assert next(federation.kits["south"].glob("runs/*/model.ubj"))
    told = read_stage(next(federation.kits["north"].glob(f"runs/{history['run']}")))
    assert (told.tree, told.n_trees) == (150, 150)  # trees, and not turns: those of south passed while it was away


# --- strangers -------------------------------------------------------------------------------------------------------


def knocks(federation, certificate=None, patience=LONG):
    """Open a TLS connection to the hub with this kit's certificate, or with none. What the hub says to it in time."""
    context = ssl.create_default_context(cafile=str(federation.kits["hub"] / "startup" / "rootCA.pem"))
    context.check_hostname = False
    if certificate:
        startup = certificate / "startup"
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    with (
        socket.create_connection(("localhost", federation.engine.port), timeout=LONG) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as connection,
    ):
        connection.settimeout(patience)
        return connection.recv(1)


def test_a_stranger_without_a_certificate_is_refused(federation):
    with pytest.raises((ssl.SSLError, ConnectionError)):
        knocks(federation)


def test_a_certificate_of_another_project_is_refused(federation, tmp_path):
    others = provision(msgspec.structs.replace(federation.study, name="others"), tmp_path)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        knocks(federation, others["north"])


def test_a_certificate_of_this_project_is_let_in(federation):
    with contextlib.suppress(TimeoutError):  # the hub waits for the first word
        assert knocks(federation, federation.kits["north"], 3.0)  # or has spoken: the end would be b""


def test_a_party_cannot_use_another_partys_name(federation, tmp_path):
    kit = tmp_path / "impostor"
    shutil.copytree(federation.kits["north"], kit)
    config = kit / "startup" / "fed_client.json"
    config.write_text(config.read_text().replace('"fqsn": "north"', '"fqsn": "south"'))
    log = federation.kits["hub"] / "flare.txt"
    process = start(kit, {})
    refused = "authenticated as 'north' but claimed endpoint 'south' requires identity 'south'"
    try:
        assert within(LONG, lambda: refused in log.read_text())
    finally:
        stop([process])


def forged_job(federation, folder, component):
    """A job whose two ends are this component."""
    job = write_job(folder, Order(run="forged", study="", seed=0), federation.study)
    for path in job.glob("*/config/*.json"):
        config = json.loads(path.read_text())
        config["components"][0] |= component
        path.write_text(json.dumps(config))
    return job


def test_a_job_that_brings_code_is_refused(federation, tmp_path):
    job = forged_job(federation, tmp_path, {"path": "evil.Hub", "args": {}})
    for app in ("app_server", "app_party"):
        (job / app / "custom").mkdir()
        (job / app / "custom" / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Hub: pass\n")
    assert _ends(federation, job) != "FINISHED:COMPLETED"
    assert not (tmp_path / "ran").exists()


def test_a_job_that_names_another_class_is_refused(federation, tmp_path):
    target = tmp_path / "ran"
    job = forged_job(federation, tmp_path, {"path": "subprocess.Popen", "args": {"args": ["touch", str(target)]}})
    assert _ends(federation, job) != "FINISHED:COMPLETED"
    assert not target.exists()


def _ends(federation, job):
    submitter = Submitter(federation.kits["submitter"])
    try:
        number = submitter.submit(job)
    except EngineError as error:
        return str(error)
    else:
        assert within(LONG, lambda: submitter.status(number).startswith("FINISHED"))
        return submitter.status(number)
    finally:
        submitter.close()


# --- frames, without a network ---------------------------------------------------------------------------------------


RUN = flare.run_tag("one")


@pytest.mark.parametrize(
    "frame",
    [
        flare.pack_frame(flare._DONE, b"body", flare.run_tag("another"), 7),  # of another run
        flare.pack_frame(flare._DONE, b"body", RUN, 6),  # to another question
        b"",
        b"\1",
        "text",
        None,
        flare._HEAD.pack(9, 0, RUN, 7),
        flare._HEAD.pack(1, 5, RUN, 7) + b"four",
        flare._HEAD.pack(3, 2**63, RUN, 7),
        flare._HEAD.pack(3, 10, RUN, 7) + b"and more",
    ],
)
def test_a_reply_that_is_none_is_refused_with_the_name_of_the_party(frame):
    with pytest.raises(ProtocolError, match="'north'"):
        flare.unpack_frame(frame, "north", RUN, 7)


def test_a_frame_survives_the_journey():
    for kind, body, seen in ((flare._DONE, b"body", b"body"), (flare._LARGE, bytes(1000), b"")):
        frame = flare.pack_frame(kind, body, RUN, 7)
        assert flare.unpack_frame(frame, "a", RUN, 7) == (kind, len(body), seen)


def test_a_job_serves_one_run():
    class Echo(flare.SiteEnd):
        def open(self, name, folder):
            pass

        def answer(self, message):
            return msg.SumFeatures()

        def answered(self, question, bytes_in, answer, bytes_out):
            pass

    class FromHub:
        caller = "server"

    site, data = Echo(), wire.encode(msg.SumFeatures())
    first = site.ask(RUN, 1, len(data), data, FromHub)
    assert flare.unpack_frame(first, "a", RUN, 1)[0] == flare._DONE
    other = site.ask(flare.run_tag("another"), 2, len(data), data, FromHub)
    with pytest.raises(ProtocolError, match="another run"):
        flare.unpack_frame(other, "a", flare.run_tag("another"), 2)


class Silent:
    """A site that takes a question and does not answer."""

    def __init__(self):
        self.asked, self.over = 0, threading.Event()

    def __call__(self, timeout):
        return self

    def ask(self, *question):
        self.asked += 1
        self.over.wait(LONG)
        raise CollabCallError("north", "ask", RuntimeError("timeout"))

    alive = ask


def test_a_party_that_said_goodbye_is_not_waited_for(tmp_path):
    north = Silent()
    transport = flare.FlareTransport({"north": north}, {}, 3600.0, "run", partial(who_left, tmp_path))
    threading.Timer(0.5, note_left, (tmp_path, "north")).start()
    with pytest.raises(PartyLeft, match=r"No answer from 'north': stopped by its operator\."):
        transport.ask_all({"north": msg.SumFeatures()})
    transport.parties = []
    assert transport.returned() == []
    assert north.asked == 1  # and nobody knocks at its door any more
    north.over.set()
    transport.close()


def test_a_large_message_comes_in_pieces(monkeypatch):
    monkeypatch.setattr(flare, "PIECE", 1000)
    body = bytes(np.random.default_rng(0).integers(0, 256, 4321, dtype=np.uint8))
    assert flare.fetch(lambda at: body[at : at + 1000], len(body), "The hub") == body


@pytest.mark.parametrize("piece", [lambda at: b"", lambda at: bytes(2000), lambda at: None])
def test_a_piece_of_the_wrong_length_is_refused(piece, monkeypatch):
    monkeypatch.setattr(flare, "PIECE", 1000)
    with pytest.raises(ProtocolError, match="The hub"):
        flare.fetch(piece, 4321, "The hub")
