"""The way of a consortium, step by step: what the commands `init`, `check`, `provision`, `hub`, `party` and `train` do.

Whoever starts trainings (the submitter) watches over them: a job that FLARE lost is submitted again and goes on from
the hub's journal, and a party that was lost and is back takes part again.
"""

from __future__ import annotations

import base64
import contextlib
import math
import os
import secrets
import shutil
import socket
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil

from simfl import hub
from simfl import messages as msg
from simfl.arrays import AnyArray
from simfl.callbacks import TreeRecord
from simfl.deploy.endpoints import CLASSES, PARTY_FILE, RESULTS, Order, sweep
from simfl.deploy.study import EXAMPLE_PARTY, Study, example, open_own, parse_study, read_party_file, read_study
from simfl.errors import EngineError, FileError, StudyError
from simfl.params import guarded_columns
from simfl.party import Party
from simfl.privacy.observed import Protection, protections
from simfl.privacy.tokens import secret_of
from simfl.report.record import PartyFacts, Recorder, RunRecord
from simfl.storage import write_atomically
from simfl.transport import flare
from simfl.transport.local import LocalTransport

POLL = 0.5  # seconds between two questions to the hub
RETRIES = 3  # how often in a row a job may be lost without a new tree
SETTLE = 10.0  # a lost party that the hub has heard of so long after the loss is taken in with a new job
REHEARSED_ROWS, REHEARSED_TREES = 2000, 4
STALE = 25.0  # a site says every ten seconds that it is there: who is so far behind the others is not
WAIT_FOR_SITES = 120.0


# --- init, check, provision ------------------------------------------------------------------------------------------


def init(folder: Path, table: Path | None = None, label: str | None = None) -> list[Path]:
    """Write an example study.toml and party.toml, unless they are there; the columns are those of the table."""
    written = []
    for name, text in (("study.toml", example(table, label)), ("party.toml", EXAMPLE_PARTY)):
        target = folder / name
        if target.exists():
            raise FileError(f"{target} is there already and is left as it is.")
        write_atomically(target, text.encode())
        written.append(target)
    return written


@dataclass(frozen=True)
class Checked:
    """What `check` found: the table's size, notes, what will leave the house, and what a rehearsal showed."""

    rows: int
    columns: int
    classes: dict[str, int]
    notes: list[str]
    leaves: list[tuple[str, str]]
    rehearsed: Rehearsal | None  # None: too few rows


@dataclass(frozen=True)
class Rehearsal:
    """A short training among parties made of one's own rows: the protections that the messages showed, and bytes."""

    rows: int
    trees: int
    protections: list[Protection]
    sent: dict[str, int]  # bytes that left the first of them, by kind of message


def check(study_path: Path, party_path: Path) -> Checked:
    """Does a party's file fit the study? Nothing is sent anywhere."""
    study, party, notes = open_own(study_path, party_path)
    classes: dict[str, int] = {}
    if study.params()[1].objective != "reg:squarederror":
        for label in party.rows.y.tolist():
            classes[str(label)] = classes.get(str(label), 0) + 1
    rows, columns = party.rows.X.shape
    return Checked(rows, columns, classes, notes, what_leaves(), rehearse(study, party))


def rehearse(study: Study, party: Party) -> Rehearsal | None:
    """Play the study with parties made of one's own rows, masked as between machines, and look at what is sent."""
    first, second = study.params()
    drawn = _spread(party.rows.y, classes=second.objective != "reg:squarederror")
    if len(study.parties) < 2 or len(drawn) < 10 * len(study.parties):
        return None
    shares = [drawn[place :: len(study.parties)] for place in range(len(study.parties))]
    members = [party.part(name, np.sort(rows)) for name, rows in zip(study.parties, shares, strict=True)]
    transport = LocalTransport(members)
    masked = first.masked is not False
    seed = study.parameters.get("random_state") or 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what to be warned of is told by the protections
        prepared = hub.prepare(transport, msgspec.structs.replace(first, masked=masked, random_state=seed))
        trees = min(second.n_trees, REHEARSED_TREES)
        hub.train(
            transport,
            prepared,
            msgspec.structs.replace(second, masked=masked, n_trees=trees, rematch=min(second.rematch or 0, 2)),
        )
    sent = dict(transport.traffic.sent[study.parties[0]])
    guarded = guarded_columns(first, party.rows.X.shape[1])
    return Rehearsal(len(drawn), trees, protections(transport.traffic.observed(), guarded), sent)


def _spread(y: AnyArray, *, classes: bool) -> AnyArray:
    """Rows to rehearse with: of every class, by turns; none where there is one class only."""
    order = np.random.default_rng(0).permutation(len(y))
    if not classes:
        return order[:REHEARSED_ROWS]
    labels = y[order].astype(str)
    found = np.unique(labels)
    if len(found) < 2:
        return order[:0]
    place = np.empty(len(order))
    for label in found:
        of_it = np.flatnonzero(labels == label)
        place[of_it] = np.arange(len(of_it)) / len(of_it)  # each class is spread over all places
    return order[np.argsort(place, kind="stable")][:REHEARSED_ROWS]


def what_leaves() -> list[tuple[str, str]]:
    """Every kind of reply with what it tells, from `messages.py`."""
    told = []
    for kind in msg.Reply.__args__:
        text = " ".join((kind.__doc__ or "").split("\n")[0].split())
        told.append((kind.__name__, text.split(": ", 1)[-1]))
    return told


def provision(study_path: Path, out: Path, renew: tuple[str, ...] = ()) -> dict[str, Path]:
    """Write the kits of a study. Run again, sites that are new get a kit; `renew` gives sites a new certificate."""
    study = read_study(study_path)
    return _provision(study, out, study.engine.host, study.engine.port, renew)


def _provision(study: Study, out: Path, host: str, port: int, renew: tuple[str, ...] = ()) -> dict[str, Path]:
    return flare.provision(
        out, project=study.name, host=host, port=port, sites=study.parties, classes=CLASSES, renew=renew
    )


# --- hub and party ---------------------------------------------------------------------------------------------------


def run_hub(kit: Path) -> int:
    """Be the hub, in the foreground."""
    if not (kit / "startup" / "fed_server.json").exists():
        raise FileError(f"{kit} is not a hub's kit. `simfl provision study.toml` writes it as kits/hub.")
    return _foreground(kit, {})


def run_party(party_path: Path) -> int:
    """Be a party, in the foreground."""
    own = read_party_file(party_path)
    if own.kit is None or not (Path(own.kit) / "startup" / "fed_client.json").exists():
        raise FileError(f"{party_path} names no kit of a party (kit = {own.kit!r}). Ask who ran `simfl provision`.")
    return _foreground(Path(own.kit), {PARTY_FILE: str(party_path.resolve())})


def _foreground(kit: Path, environment: dict[str, str]) -> int:
    process = flare.start(kit, environment)
    try:
        return process.wait()
    except KeyboardInterrupt:
        return 130
    finally:
        stop([process])


def stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """End processes and all that they started."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        process.kill()
        process.wait()


# --- train -----------------------------------------------------------------------------------------------------------


ORDER = "order.json"


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """order.json in the submitter's run folder: what `--resume` needs."""

    run: str
    seed: int
    local: bool
    finished: bool = False


@dataclass
class Progress:
    """Who wants to know: called with what happens."""

    tell: Callable[[str], None] = lambda text: None
    tree: Callable[[TreeRecord, list[str]], None] = lambda record, connected: None
    stage: str = field(default="", init=False)
    without: list[str] = field(default_factory=list, init=False)  # parties that have not got the model
    _recorder: Recorder | None = field(default=None, init=False)

    def enter(self, stage: str) -> None:
        """Tell a new stage, once."""
        if stage != self.stage:
            self.stage = stage
            self.tell(stage)

    @contextlib.contextmanager
    def recording(self, study: Study, folder: Path) -> Iterator[None]:
        """Keep run.json up to date, for `simfl watch`, until the hub's own record takes its place."""
        recorder = Recorder(folder, study.name, [PartyFacts(name=party, n_rows=0) for party in study.parties])
        known = RunRecord.load(folder).history if (folder / "run.json").exists() else []
        recorder.before_training(study.parties, study.params()[1])
        recorder.record = msgspec.structs.replace(recorder.record, history=known)
        self._recorder = recorder
        try:
            yield
        except BaseException:
            recorder.after_training(recorder.record.history)
            raise
        finally:
            self._recorder = None

    def keep(self, record: TreeRecord) -> None:
        """Write down a tree, unless a job that was taken up again tells of it once more."""
        if self._recorder is not None:
            known = self._recorder.record.history
            if not known or record.round > known[-1].round:
                self._recorder.after_tree(record)


def train(
    study_path: Path,
    *,
    kit: Path | None = None,
    out: Path | None = None,
    resume: bool = False,
    local: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Train a study; returns the run folder, with model.ubj, history.json and run.json."""
    progress = progress or Progress()
    study = read_study(study_path)
    if not local and any(member.data for member in study.party):
        raise StudyError(
            f"{study_path} names the parties' files. That is only for --local-processes; where the data lies belongs "
            "into each party's own party.toml."
        )
    folder, info = _resumed(study_path, study, out) if resume else _new(study_path, study, out, local)
    sweep(folder)
    study = parse_study((folder / "study.toml").read_text())
    if info.finished:
        progress.tell("this training is finished already")
        return folder
    submitter = kit or study_path.resolve().parent / "kits" / "submitter"
    if not info.local and not (submitter / "startup" / "fed_admin.json").exists():
        raise FileError(
            f"There is no submitter's kit at {submitter}. Give --kit, or run `simfl provision {study_path}` first; "
            "to try the study out on this machine alone: --local-processes."
        )
    order = Order(run=info.run, study=(folder / "study.toml").read_text(), seed=info.seed)
    with progress.recording(study, folder):
        if info.local:
            with LocalProcesses(study, study_path.resolve().parent, folder / "federation", progress) as federation:
                _watch_over(federation.kits["submitter"], study, order, folder, progress, federation.check)
        else:
            _watch_over(submitter, study, order, folder, progress)
    if progress.without:
        away = ", ".join(progress.without)
        progress.tell(f"the model has not reached {away}: when they are back, run `simfl train --resume`")
    else:
        write_atomically(folder / ORDER, msgspec.json.encode(msgspec.structs.replace(info, finished=True)))
    return folder


def _new(study_path: Path, study: Study, out: Path | None, local: bool) -> tuple[Path, RunInfo]:
    folder = out or _runs(study_path) / f"{study.name}-{datetime.now():%Y%m%d-%H%M%S}"
    if (folder / ORDER).exists():
        raise FileError(f"{folder} holds a training already. Use --resume to go on with it, or another --out.")
    folder.mkdir(parents=True, exist_ok=True)
    seed = study.parameters.get("random_state")
    seed = secrets.randbits(62) if seed is None else seed
    name = f"{study.name}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    info = RunInfo(run=name, seed=seed, local=local)
    write_atomically(folder / "study.toml", study_path.read_bytes())
    write_atomically(folder / ORDER, msgspec.json.encode(info))
    return folder, info


def _resumed(study_path: Path, study: Study, out: Path | None) -> tuple[Path, RunInfo]:
    """The run folder to go on with: the one given, or the study's latest."""
    found = [out] if out else sorted(_runs(study_path).glob(f"{study.name}-*"))
    found = [folder for folder in found if (folder / ORDER).exists()]
    if not found:
        raise FileError(f"There is no training to resume in {out or _runs(study_path)}. Leave out --resume.")
    folder = found[-1]
    if (folder / "study.toml").read_bytes() != study_path.read_bytes():
        raise StudyError(
            f"{study_path} has changed since {folder} began. Put it back (a copy is {folder / 'study.toml'}), or start "
            "a new training without --resume."
        )
    return folder, msgspec.json.decode((folder / ORDER).read_bytes(), type=RunInfo)


def _runs(study_path: Path) -> Path:
    return study_path.resolve().parent / "runs"


def _watch_over(
    kit: Path, study: Study, order: Order, folder: Path, progress: Progress, check: Callable[[], None] = lambda: None
) -> None:
    """Submit, and submit again when a job was lost, until the model is here."""
    submitter = _connect(kit, progress)
    try:
        _await_sites(submitter, study, folder, progress, check)
        tries, trees = 0, -1
        while True:
            job = _submit(submitter, study, order, folder)
            try:
                watched = _Job(submitter, job, study, folder, progress)
                if watched.follow():
                    return
            except BaseException:
                submitter.abort(job)
                raise
            submitter.abort(job)
            tries = 1 if watched.seen > trees else tries + 1
            trees = max(trees, watched.seen)
            if tries > RETRIES and not watched.rejoin:
                raise EngineError(
                    f"The training was lost {tries} times in a row ({watched.status}). All finished trees are kept: "
                    "look at log.txt in the hub's kit, then run `simfl train --resume`."
                )
            progress.tell(watched.why or f"the job ended ({watched.status}): going on from the journal")
            _await_sites(submitter, study, folder, progress, check)
    finally:
        submitter.close()


def _submit(submitter: flare.Submitter, study: Study, order: Order, folder: Path) -> str:
    hub = {"path": CLASSES[0], "args": {"order": order.to_text()}}
    site: dict[str, Any] = {"path": CLASSES[1], "args": {}}
    least = study.least or len(study.parties)
    written = flare.write_job(folder / ".job", order.run, hub, site, study.parties, least)
    try:
        return submitter.submit(written)
    finally:
        shutil.rmtree(folder / ".job", ignore_errors=True)


def _connect(kit: Path, progress: Progress) -> flare.Submitter:
    progress.enter("connecting to the hub")
    return flare.Submitter(kit)


def _await_sites(
    submitter: flare.Submitter, study: Study, folder: Path, progress: Progress, check: Callable[[], None]
) -> None:
    """All parties for a beginning; for a training that has begun, as many as the study asks for."""
    least = study.least if (folder / "began").exists() and study.least else len(study.parties)
    until = time.monotonic() + max(WAIT_FOR_SITES, study.patience)
    soon = time.monotonic() + study.patience
    while True:
        check()
        heard = submitter.heard()
        latest = max(heard.values(), default=0.0)
        missing = [party for party in study.parties if heard.get(party, -math.inf) < latest - STALE]
        if not missing or (len(study.parties) - len(missing) >= least and time.monotonic() > soon):
            return
        progress.enter(f"waiting for {', '.join(missing)} to connect")
        if time.monotonic() > until:
            raise EngineError(
                f"Not connected to the hub: {', '.join(missing)}. Start them: simfl party start party.toml"
            )
        time.sleep(POLL)


class _Job:
    """One job, as the submitter sees it."""

    def __init__(self, submitter: flare.Submitter, job: str, study: Study, folder: Path, progress: Progress) -> None:
        self.submitter, self.job, self.study, self.folder, self.progress = submitter, job, study, folder, progress
        self.seen = -1  # the last tree
        self.status, self.why, self.rejoin = "", "", False
        self._lost_at: dict[str, float] = {}

    def follow(self) -> bool:
        """Until it ends. True: the model is here."""
        while True:
            told = self.submitter.progress(self.job, {"since": self.seen + 1})
            if told is None:
                self.status = self.submitter.status(self.job)
                if self.status.startswith("FINISHED"):
                    return False
            elif self._take(told):
                return True
            elif self._somebody_is_back(told):
                return False
            time.sleep(POLL)

    def _take(self, told: dict[str, Any]) -> bool:
        for raw in told["records"]:
            record = msgspec.convert(raw, TreeRecord)
            self.seen = record.round
            self.progress.tree(record, told["connected"])
            self.progress.keep(record)
        if told["stage"] not in ("training", "done", "failed"):
            self.progress.enter(told["stage"])
        if told["stage"] == "training":
            (self.folder / "began").touch()
        if told["stage"] == "failed":
            self.submitter.progress(self.job, {"collected": True})
            raise StudyError(told["error"]) if told["error"] else EngineError("The training failed at the hub.")
        if told["stage"] != "done" or len(told["records"]) == 200:
            return False
        self.progress.without = told["without"]
        for name in RESULTS:
            write_atomically(self.folder / name, self._fetch(name))
        self.submitter.progress(self.job, {"collected": True})
        return True

    def _fetch(self, name: str) -> bytes:
        data = b""
        while True:
            answer = self.submitter.progress(self.job, {"file": name, "at": len(data)})
            if answer is None or "piece" not in answer:
                raise EngineError(f"The hub did not hand out {name}. It is kept there: run `simfl train --resume`.")
            data += base64.b64decode(answer["piece"])
            if len(data) >= answer["size"]:
                return data

    def _somebody_is_back(self, told: dict[str, Any]) -> bool:
        """Whether a lost party has connected anew: a running job does not take sites in, a new one does."""
        absent = [party for party in self.study.parties if party not in told["connected"]]
        if told["stage"] != "training" or not absent:
            self._lost_at = {}
            return False
        for party in absent:
            self._lost_at.setdefault(party, told["time"])
        heard = self.submitter.heard()
        back = [party for party in absent if heard.get(party, 0.0) - self._lost_at[party] > SETTLE]
        self.rejoin = bool(back)
        self.why = f"{', '.join(back)} is back: going on together" if back else ""
        return self.rejoin


class LocalProcesses:
    """A provisioned hub and all parties, as processes on this machine. They end with the block."""

    def __init__(
        self,
        study: Study,
        at: Path,
        folder: Path,
        progress: Progress,
        host: str = "localhost",
        within: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        missing = [member.name for member in study.party if not member.data]
        if missing:
            raise StudyError(f'--local-processes needs data = "..." in the [[party]] of {", ".join(missing)}.')
        self.study, self.folder, self.progress = study, folder, progress
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        progress.enter("provisioning a hub and all parties on this machine")
        folder.mkdir(parents=True, exist_ok=True)
        self.host, self.port, self.within = host, free_port(), dict(within or {})
        self.kits = _provision(study, folder, host, self.port)
        threads = max((os.cpu_count() or 1) // len(study.party), 1)
        seed = study.parameters.get("random_state")  # as in one process, a seed stands in for the parties' secret
        secret = "" if seed is None else f'secret = "{secret_of(seed).hex()}"\n'
        for member in study.party:
            data = msgspec.json.encode(str(at / str(member.data))).decode()  # quoted as TOML does
            text = f'name = "{member.name}"\ndata = {data}\nkit = "."\nn_jobs = {threads}\n{secret}'
            write_atomically(self.kits[member.name] / "party.toml", text.encode())

    def __enter__(self) -> LocalProcesses:
        self.start("hub")
        wait_for_port(self.host, self.port, self.processes["hub"])
        for party in self.study.parties:
            self.start(party)
        return self

    def __exit__(self, *_: object) -> None:
        stop(list(self.processes.values()))

    def check(self) -> None:
        """Raise if one of the processes has ended."""
        ended = [name for name, process in self.processes.items() if process.poll() is not None]
        if ended:
            raise EngineError(f"The process of {', '.join(ended)} has ended. Its log: {self.folder / ended[0]}.log")

    def start(self, name: str) -> None:
        """Start the hub or a party, also anew."""
        kit = self.kits[name]
        environment = {} if name == "hub" else {PARTY_FILE: str(kit / "party.toml")}
        log = self.folder / f"{name}.log"
        self.processes[name] = flare.start(kit, environment, log, self.within.get(name, ()))


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_port(host: str, port: int, process: subprocess.Popen[bytes], seconds: float = 60.0) -> None:
    """Wait until the hub listens."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
            return
        time.sleep(0.1)
    raise EngineError(f"The hub did not start. Look into its log, {process.args!r}.")
