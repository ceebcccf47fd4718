"""The submitter's side of a training: begin it or resume it, and see it through.

A job that FLARE lost is submitted again and continues from the hub's journal. A party that was lost and is back takes
part again with a new job. Everything that a resume needs is in the run folder.
"""

from __future__ import annotations

import math
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import msgspec

from simfl.callbacks import TreeRecord
from simfl.deploy.endpoints import MOST_RECORDS, RESULTS, Order, Piece, Question, Status, remove_partial_files
from simfl.deploy.processes import LocalProcesses
from simfl.deploy.study import Study, read_study
from simfl.deploy.submitter import Submitter, write_job
from simfl.errors import EngineError, FileError, StudyError
from simfl.report.record import PartyFacts, Recorder, RunRecord
from simfl.storage import write_atomically

POLL = 0.5  # seconds between two questions to the hub
RETRIES = 3  # how often in a row a job may be lost without a new tree
SETTLE = 10.0  # seconds after its loss from which a party that the hub hears again is taken in with a new job
STALE = 25.0  # a party reports every ten seconds: one that is this far behind the others is not connected
WAIT_FOR_PARTIES = 120.0
ORDER_FILE = "order.json"


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """order.json in the submitter's run folder: what `--resume` needs."""

    run: str
    seed: int
    local: bool
    finished: bool = False


@dataclass
class Listener:
    """Gets sentences about what happens, and every tree with the parties that are connected."""

    tell: Callable[[str], None] = lambda text: None
    tree: Callable[[TreeRecord, list[str]], None] = lambda record, connected: None
    _stage: str = field(default="", init=False)

    def enter(self, stage: str) -> None:
        """Tell a new stage, once."""
        if stage != self._stage:
            self._stage = stage
            self.tell(stage)


def run_study(
    study_path: Path,
    *,
    kit: Path | None = None,
    out: Path | None = None,
    resume: bool = False,
    local: bool = False,
    listener: Listener | None = None,
) -> Path:
    """Train a study between machines; returns the run folder, with model.ubj, history.json and run.json."""
    listener = listener or Listener()
    study = read_study(study_path)
    if not local and any(party.data for party in study.party):
        raise StudyError(
            f"{study_path} names the parties' files. That is only for --local-processes; where the data is belongs "
            "into each party's own party.toml."
        )
    folder, info = _latest(study_path, study, out) if resume else _begin(study_path, study, out, local)
    remove_partial_files(folder)
    if info.finished:
        listener.tell("this training is finished already")
        return folder
    kit = None if info.local else _submitter_kit(study_path, kit)
    order = Order(run=info.run, study=(folder / "study.toml").read_text(encoding="utf-8"), seed=info.seed)
    with ExitStack() as stack:
        run = _Run(study, order, folder, listener, stack.enter_context(_recording(study, folder)))
        if kit is None:
            listener.enter("provisioning a hub and all parties on this machine")
            processes = LocalProcesses(study, study_path.resolve().parent, folder / "federation")
            kit, run.check = stack.enter_context(processes).kits["submitter"], processes.check
        listener.enter("connecting to the hub")
        without_model = _see_through(stack.enter_context(closing(Submitter(kit))), run)
    if without_model:
        away = ", ".join(without_model)
        listener.tell(f"the model has not reached {away}: when they are back, run `simfl train --resume`")
    else:
        write_atomically(folder / ORDER_FILE, msgspec.json.encode(msgspec.structs.replace(info, finished=True)))
    return folder


# --- the run folder --------------------------------------------------------------------------------------------------


def _begin(study_path: Path, study: Study, out: Path | None, local: bool) -> tuple[Path, RunInfo]:
    """A new run folder."""
    now = f"{study.name}-{datetime.now():%Y%m%d-%H%M%S}"
    folder = (out or _runs(study_path) / now).resolve()
    if (folder / ORDER_FILE).exists():
        raise FileError(f"{folder} holds a training already. Use --resume to continue it, or another --out.")
    folder.mkdir(parents=True, exist_ok=True)
    seed = study.parameters.get("random_state")
    seed = secrets.randbits(62) if seed is None else seed
    info = RunInfo(run=f"{now}-{secrets.token_hex(2)}", seed=seed, local=local)
    write_atomically(folder / "study.toml", study_path.read_bytes())
    write_atomically(folder / ORDER_FILE, msgspec.json.encode(info))
    return folder, info


def _latest(study_path: Path, study: Study, out: Path | None) -> tuple[Path, RunInfo]:
    """The run folder to resume: the one given, or the study's latest."""
    found = [out.resolve()] if out else sorted(_runs(study_path).glob(f"{study.name}-*"))
    found = [folder for folder in found if (folder / ORDER_FILE).exists()]
    if not found:
        raise FileError(f"There is no training to resume in {out or _runs(study_path)}. Leave out --resume.")
    folder = found[-1]
    if (folder / "study.toml").read_bytes() != study_path.read_bytes():
        raise StudyError(
            f"{study_path} has changed since {folder} began. Put it back (a copy is {folder / 'study.toml'}), or start "
            "a new training without --resume."
        )
    return folder, msgspec.json.decode((folder / ORDER_FILE).read_bytes(), type=RunInfo)


def _runs(study_path: Path) -> Path:
    return study_path.resolve().parent / "runs"


def _submitter_kit(study_path: Path, given: Path | None) -> Path:
    kit = (given or study_path.parent / "kits" / "submitter").resolve()
    if not (kit / "startup" / "fed_admin.json").exists():
        raise FileError(
            f"There is no submitter's kit at {kit}. Give --kit, or run `simfl provision {study_path}` first; "
            "to try the study out on this machine alone: --local-processes."
        )
    return kit


@contextmanager
def _recording(study: Study, folder: Path) -> Iterator[Recorder]:
    """Keep run.json up to date, for `simfl watch`, until the hub's own record replaces it."""
    recorder = Recorder(folder, study.name, [PartyFacts(name=party, n_rows=0) for party in study.parties])
    known = RunRecord.load(folder).history if (folder / "run.json").exists() else []
    recorder.before_training(study.parties, study.params()[1])
    recorder.record = msgspec.structs.replace(recorder.record, history=known)
    try:
        yield recorder
    except BaseException:
        recorder.after_training(recorder.record.history)
        raise


# --- one job after the other -----------------------------------------------------------------------------------------


@dataclass
class _Run:
    """What the steps below share."""

    study: Study
    order: Order
    folder: Path
    listener: Listener
    recorder: Recorder
    check: Callable[[], None] = lambda: None  # raises when a local process has ended


def _see_through(submitter: Submitter, run: _Run) -> list[str]:
    """Submit a job, and another when it was lost, until the results are here. Returns the parties without a model."""
    lost, trees = 0, -1  # jobs in a row without a new tree; the last tree seen
    while True:
        _await_parties(submitter, run)
        job = _RunningJob(submitter, run)
        if job.follow():
            return job.without_model
        lost = 1 if job.seen > trees else lost + 1
        trees = max(trees, job.seen)
        if job.back:
            run.listener.tell(f"{', '.join(job.back)} is back: continuing together")
        elif lost > RETRIES:
            raise EngineError(
                f"The training was lost {lost} times in a row ({job.state}). All finished trees are kept: "
                "look at log.txt in the hub's kit, then run `simfl train --resume`."
            )
        else:
            run.listener.tell(f"the job ended ({job.state}): continuing from the journal")


def _await_parties(submitter: Submitter, run: _Run) -> None:
    """Wait for all parties; for a training that has begun, after a while for as many as the study asks for."""
    study = run.study
    needed = study.parties_needed if (run.folder / "began").exists() else len(study.parties)
    begun = time.monotonic()
    while True:
        run.check()
        heard = submitter.heard()
        latest = max(heard.values(), default=0.0)
        missing = [party for party in study.parties if heard.get(party, -math.inf) < latest - STALE]
        waited = time.monotonic() - begun
        if not missing or (len(study.parties) - len(missing) >= needed and waited > study.patience):
            return
        names = ", ".join(missing)
        run.listener.enter(f"waiting for {names} to connect")
        if waited > max(WAIT_FOR_PARTIES, study.patience):
            raise EngineError(f"Not connected to the hub: {names}. Start them: simfl party start party.toml")
        time.sleep(POLL)


class _RunningJob:
    """One job, as the submitter sees it."""

    def __init__(self, submitter: Submitter, run: _Run) -> None:
        self.submitter, self.run = submitter, run
        self.seen = -1  # the last tree
        self.state = ""  # in FLARE's words
        self.back: list[str] = []  # parties that were lost and are connected again
        self.without_model: list[str] = []
        self._lost_at: dict[str, float] = {}
        try:
            self.id = submitter.submit(write_job(run.folder / ".job", run.order, run.study))
        finally:
            shutil.rmtree(run.folder / ".job", ignore_errors=True)

    def follow(self) -> bool:
        """Follow the job until it ends. True: the results are here. A job that cannot get there is aborted."""
        done = False
        try:
            while not (done := self._look()) and not self.back and not self.state.startswith("FINISHED"):
                time.sleep(POLL)
        finally:
            if not done:
                self.submitter.abort(self.id)
        return done

    def _look(self) -> bool:
        status = self.submitter.ask(self.id, Question(since=self.seen + 1))
        if not isinstance(status, Status):
            self.state = self.submitter.status(self.id)
            return False
        done = self._take(status)
        self.back = [] if done else self._returned(status)
        return done

    def _take(self, status: Status) -> bool:
        """Pass on what is new. True: the training is done and the results are here."""
        for record in status.records:
            self.seen = record.round
            self.run.listener.tree(record, status.connected)
            known = self.run.recorder.record.history
            if not known or record.round > known[-1].round:  # a resumed job reports the earlier trees again
                self.run.recorder.after_tree(record)
        if status.stage == "training":
            (self.run.folder / "began").touch()
        elif status.stage == "failed":
            self.submitter.ask(self.id, Question(collected=True))
            raise StudyError(status.error) if status.error else EngineError("The training failed at the hub.")
        elif status.stage != "done":
            self.run.listener.enter(status.stage)
        if status.stage != "done" or len(status.records) == MOST_RECORDS:
            return False
        self.without_model = status.without_model
        if status.error:
            self.run.listener.tell(status.error)
        for name in RESULTS:
            write_atomically(self.run.folder / name, self._fetch(name))
        self.submitter.ask(self.id, Question(collected=True))
        return True

    def _fetch(self, name: str) -> bytes:
        data = b""
        while True:
            piece = self.submitter.ask(self.id, Question(file=name, at=len(data)))
            if not isinstance(piece, Piece):
                raise EngineError(f"The hub did not hand out {name}. It is kept there: run `simfl train --resume`.")
            data += piece.data
            if len(data) >= piece.size:
                return data

    def _returned(self, status: Status) -> list[str]:
        """Lost parties that have connected again: a running job does not take them in, a new one does."""
        absent = [party for party in self.run.study.parties if party not in status.connected]
        if status.stage != "training" or not absent:
            self._lost_at = {}
            return []
        for party in absent:
            self._lost_at.setdefault(party, status.time)
        heard = self.submitter.heard()
        return [party for party in absent if heard.get(party, 0.0) - self._lost_at[party] > SETTLE]
