"""The submitter's side of a training: begin it or resume it, and see it through.

A job that FLARE lost is submitted again and continues from the hub's journal. A party that was lost and is back takes
part again with a new job. For a hub that is gone it waits a while; a job that the hub still runs is followed on.
Everything that a resume needs is in the run folder.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from simfl import model as models
from simfl.callbacks import TreeRecord, duration, logger
from simfl.deploy.answers import MOST_RECORDS, STALE, Piece, Question, Status
from simfl.deploy.course import DONE, Course, facts_of, stage_of
from simfl.deploy.folders import begin_run, latest_run, remove_partial_files
from simfl.deploy.job import write_job
from simfl.deploy.logs import FLARE_LOG, LOG, Format, Listening, Log, keep_flare_apart, tell
from simfl.deploy.orders import ORDER_FILE, SEALED, Order, RunInfo, results_of
from simfl.deploy.processes import LocalProcesses
from simfl.deploy.study import Study, read_study
from simfl.deploy.submitter import HubLost, Submitter, submitter_kit
from simfl.deploy.way import NotYet, try_way
from simfl.errors import EngineError, SimFLError, StudyError, TrainingStopped
from simfl.messages import SignedKey
from simfl.privacy import boxes
from simfl.privacy.certificates import SUBMITTER
from simfl.privacy.keys import OF_A_KIT, Identity, sign_key
from simfl.report import assemble
from simfl.report.record import PartyFacts, Recorder, RunRecord
from simfl.storage import owned, write_atomically
from simfl.transport.flare import SLOW

POLL = 0.5  # seconds between two questions to the hub
RETRIES = 3  # how often in a row a job may be lost without a new tree
SETTLE = 10.0  # seconds after its loss from which a party that the hub hears again is taken in with a new job
WAIT_FOR_PARTIES = 120.0
WAIT_FOR_HUB = 600.0  # seconds that a training waits for a hub that is gone
REMIND = 300.0  # seconds after which a party that is slow again is named again
RECEIVER_FILE = "receiver.key"  # opens the model, where the hub does not get to see it


@dataclass
class Listener:
    """Gets sentences about what happens, and every tree with the parties that are connected."""

    tell: Callable[[str], None] = lambda text: None
    tree: Callable[[TreeRecord, list[str]], None] = lambda record, connected: None
    terminal: IO[str] | None = None  # where the lines of the log are shown, too
    log_format: Format = "text"

    def say(self, event: str, text: str, *, level: int = logging.INFO) -> None:
        """Tell an event."""
        tell(event, text, level=level)
        self.tell(text)


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
    listener, study = listener or Listener(), _readable(study_path, local)
    if not resume and not local:
        kit = submitter_kit(study_path, kit)
    folder, info = latest_run(study_path, study, out) if resume else begin_run(study_path, study, out, local)
    with owned(folder), _logging(folder, listener):
        remove_partial_files(folder)
        if info.finished:
            listener.say("ended", "this training is finished already")
            return folder
        kit = None if info.local else submitter_kit(study_path, kit)
        again = f"simfl train {study_path} --resume" + (f" --out {out}" if out else "")
        run = _Run.open(study, folder, info, listener, again)
        try:
            _conduct(run, study_path, kit, info)
        except KeyboardInterrupt:
            run.course.end("stopped", f"stopped by Ctrl-C. All finished trees are kept; to continue: {again}")
            raise
        except TrainingStopped as error:
            run.course.end("stopped", f"stopped: {error}", str(error))
            raise
        except SimFLError as error:
            run.course.end("failed", f"the training has failed: {error}", str(error))
            raise
    return folder


def _conduct(run: _Run, study_path: Path, kit: Path | None, info: RunInfo) -> None:
    """See the training through, and say what is left to do."""
    with ExitStack() as stack:
        run.recorder = stack.enter_context(_recording(run.study, run.folder))
        if kit is None:
            run.enter("provisioning a hub and all parties on this machine")
            processes = LocalProcesses(run.study, study_path.resolve().parent, run.folder / "federation")
            processes.give_keys(info.run)
            kit, run.check = stack.enter_context(processes).kits["submitter"], processes.check
        if SEALED in results_of(run.study):
            run.identity = _identity(kit)
            run.order = msgspec.structs.replace(run.order, receiver=_receiver(run.folder, run.identity, info.run))
        run.enter("connecting to the hub")
        without_model = _with_hub(kit, run)
    run.course.end(DONE, f"the training is finished; the model is {run.folder / 'model.ubj'}")
    if without_model:
        away = ", ".join(without_model)
        run.listener.say("note", f"the model has not reached {away}: when they are back, run `{run.again}`")
    else:
        write_atomically(run.folder / ORDER_FILE, msgspec.json.encode(msgspec.structs.replace(info, finished=True)))


@contextmanager
def _logging(folder: Path, listener: Listener) -> Iterator[None]:
    """Have the events of this process written to log.txt in the run folder, and to the terminal."""
    level = logger.level
    with closing(Log(folder, "submitter", listener.terminal, listener.log_format)) as log:
        handler = Listening(log)
        if listener.terminal is not None:
            keep_flare_apart(folder)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = listener.terminal is None  # else each would be in FLARE's file, too
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = True


def _readable(path: Path, local: bool) -> Study:
    """The study, unless it says where the parties' data is."""
    study = read_study(path)
    if not local and any(party.data for party in study.party):
        raise StudyError(
            f"{path} names the parties' files. That is only for --local-processes; where the data is belongs into each "
            "party's own party.toml."
        )
    return study


# --- the run folder --------------------------------------------------------------------------------------------------


def _identity(kit: Path) -> Identity | None:
    parts = [kit / "startup" / name for name in OF_A_KIT]
    return Identity.read(*parts) if all(part.exists() for part in parts) else None


def _receiver(folder: Path, identity: Identity | None, run: str) -> SignedKey:
    """The key that the model is to be sealed for, signed with the kit's certificate, where it has one."""
    file = folder / RECEIVER_FILE
    if not file.exists():
        write_atomically(file, boxes.new_key(), private=True)
    public = boxes.public_half(file.read_bytes())
    return sign_key(identity, SUBMITTER, public, run) if identity else SignedKey(key=public)


def open_sealed(folder: Path, study: Study, run: str, identity: Identity | None) -> None:
    """Open the model that a party signed and sealed, and complete what the hub wrote without getting to see it."""
    data = boxes.open_box((folder / RECEIVER_FILE).read_bytes(), (folder / SEALED).read_bytes())
    model = models.from_bytes(boxes.content_of(data, study.parties, run, identity), f"The model in {folder / SEALED}")
    model.save(folder / "model.ubj", history=False)  # first: a hub can spoil the record, but not the model
    file = folder / "history.json"
    try:
        history = assemble.completed_history(file.read_bytes(), model, vouched=True)
        record = assemble.completed(RunRecord.load(folder), model, vouched=True)
    except (msgspec.MsgspecError, LookupError, TypeError, RecursionError):
        raise EngineError(f"The hub handed out no valid record of the training. The model is in {folder}.") from None
    write_atomically(file, history)
    record.save(folder)


@contextmanager
def _recording(study: Study, folder: Path) -> Iterator[Recorder]:
    """Keep run.json up to date, for `simfl watch`, until the hub's own record replaces it."""
    recorder = Recorder(folder, study.name, [PartyFacts(name=party, n_rows=0) for party in study.parties])
    known = RunRecord.load(folder).history if (folder / "run.json").exists() else []
    recorder.before_training(study.parties, study.params())
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
    course: Course
    again: str  # the command that resumes it
    recorder: Recorder | None = None
    identity: Identity | None = None  # of the submitter, where a model is sealed for it
    check: Callable[[], None] = lambda: None  # raises when a local process has ended
    job: str = ""  # submitted, and not known to have ended
    lost: int = 0  # jobs and hubs in a row, without a new tree
    newest: int = -1  # tree
    counted: int = -1  # the newest tree at the last loss

    @classmethod
    def open(cls, study: Study, folder: Path, info: RunInfo, listener: Listener, again: str) -> _Run:
        """Of a run folder."""
        order = Order(run=info.run, study=(folder / "study.toml").read_bytes().decode(), seed=info.seed)
        listener.say("began", f"the training {info.run}; its folder is {folder}")
        stage = stage_of(study, info.run, "starting")
        return cls(study, order, folder, listener, Course(folder, stage), again)

    def enter(self, stage: str) -> None:
        """Tell a new stage, once."""
        if stage != self.course.stage.stage:
            self.course.enter(stage)
            self.listener.tell(stage)

    def tree(self, record: TreeRecord, connected: list[str]) -> None:
        """Pass a tree on. A resumed job reports the earlier ones again."""
        self.newest = max(self.newest, record.round)
        self.listener.tree(record, connected)
        known = self.recorder.record.history if self.recorder else []
        if self.recorder and (not known or record.round > known[-1].round):
            self.recorder.after_tree(record)
            self.course.rounds(record.round + 1, facts_of(record), record.absent)

    def count_loss(self) -> bool:
        """A job or the hub is lost. False: once too often."""
        self.lost = 1 if self.newest > self.counted else self.lost + 1
        self.counted = self.newest
        return self.lost <= RETRIES

    def given_up(self, fact: str) -> EngineError:
        """The end of a training that gets nowhere."""
        return EngineError(
            f"The training was lost {self.lost} times in a row ({fact}). All finished trees are kept: look at {LOG} "
            f"and {FLARE_LOG} in the hub's kit, then run `{self.again}`."
        )


def _with_hub(kit: Path, run: _Run) -> list[str]:
    """See the training through, also when the hub goes and comes back. Returns the parties without a model."""
    submitter = Submitter(kit)
    while True:
        try:
            with closing(submitter):
                return _see_through(submitter, run)
        except HubLost as loss:
            if not run.count_loss():
                raise run.given_up(str(loss)) from None
            submitter = _reconnect(kit, run, loss)


def _reconnect(kit: Path, run: _Run, loss: HubLost) -> Submitter:
    """Wait for a hub that is gone, for a while."""
    until = time.monotonic() + WAIT_FOR_HUB
    run.listener.say("lost", f"{loss}; waiting for it, for at most {duration(WAIT_FOR_HUB)}", level=logging.WARNING)
    while time.monotonic() < until:
        run.check()
        try:
            try_way(kit)
            found = Submitter(kit)
        except (NotYet, HubLost):
            time.sleep(POLL)
        else:
            run.listener.say("connected", "connected to the hub again")
            return found
    raise EngineError(
        f"The hub did not come back within {duration(WAIT_FOR_HUB)} ({loss}). All finished trees are kept: start it "
        f"(simfl hub start), then run `{run.again}`."
    )


def _see_through(submitter: Submitter, run: _Run) -> list[str]:
    """Submit a job, and another when it was lost, until the results are here. Returns the parties without a model."""
    job = _still_running(submitter, run)
    while True:
        job = job or _submitted(submitter, run)
        run.course.begin_pace()
        if job.follow():
            return job.without_model
        in_time = run.count_loss()
        if job.back:
            run.listener.say("back", f"{', '.join(job.back)} is back: continuing together")
        elif not in_time:
            raise run.given_up(job.state)
        else:
            say = f"the job ended ({job.state}): continuing from the journal"
            run.listener.say("lost", say, level=logging.WARNING)
        job = None


def _still_running(submitter: Submitter, run: _Run) -> _RunningJob | None:
    """The job of this training that the hub runs, or is about to: the line to it broke, or this program ended."""
    job = run.job or submitter.job_of(run.order.run)
    if job and submitter.runs(job):
        run.listener.say("found", "the hub still runs this training: following it")
        run.lost = 0  # neither is lost
        return _RunningJob(submitter, run, job)
    if run.job:
        submitter.abort(run.job)  # should it be just about to start
        run.job = ""
    return None


def _submitted(submitter: Submitter, run: _Run) -> _RunningJob:
    """A new job, when the parties are there."""
    _await_parties(submitter, run)
    try:
        job = submitter.submit(write_job(run.folder / ".job", run.order, run.study))
    finally:
        shutil.rmtree(run.folder / ".job", ignore_errors=True)
    run.enter("starting at the hub and at all parties")
    return _RunningJob(submitter, run, job)


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
        run.enter(f"waiting for {names} to connect")
        if waited > max(WAIT_FOR_PARTIES, study.patience):
            raise EngineError(
                f"Not connected to the hub: {names}. Start them (simfl party start party.toml), then run `{run.again}`."
            )
        time.sleep(POLL)


class _RunningJob:
    """One job, as the submitter sees it."""

    def __init__(self, submitter: Submitter, run: _Run, job: str) -> None:
        self.submitter, self.run, self.id = submitter, run, job
        run.job = job
        self.seen = -1  # the last tree of this job
        self.state = ""  # in FLARE's words
        self.back: list[str] = []  # parties that were lost and are connected again
        self.without_model: list[str] = []
        self._lost_at: dict[str, float] = {}
        self._told: dict[str, float] = {}  # when it was said that a party is waited for
        self._left: list[str] = []  # who has said goodbye
        self._ready = False  # the hub's end of the job answers
        self._answered = time.monotonic()  # when it did, or its silence was told

    def follow(self) -> bool:
        """Follow the job until it ends. True: the results are here. A job that cannot get there is aborted."""
        done = lost = False
        try:
            while not (done := self._look()) and not self.back and not self.state.startswith("FINISHED"):
                time.sleep(POLL)
        except HubLost:
            lost = True  # the hub may run it still
            raise
        finally:
            if not done and not lost:
                self.submitter.abort(self.id)
        self.run.job = ""
        return done

    def _look(self) -> bool:
        self._ready = self._ready or self.submitter.ready(self.id)
        status = self.submitter.ask(self.id, Question(since=self.seen + 1)) if self._ready else None
        if not isinstance(status, Status):
            self.state = self.submitter.status(self.id)
            self._tell_silence()
            return False
        self._answered = time.monotonic()
        self._tell_left(status.left)
        done = self._take(status)
        self.back = [] if done else self._returned(status)
        return done

    def _take(self, status: Status) -> bool:
        """Pass on what is new. True: the training is done and the results are here."""
        for record in status.records:
            self.seen = record.round
            self.run.tree(record, status.connected)
        if status.stage == "training":
            (self.run.folder / "began").touch()
        elif status.stage in ("failed", "stopped"):
            self.submitter.ask(self.id, Question(collected=True))
            if status.stage == "stopped":
                raise TrainingStopped(
                    f"`simfl stop` ended it. All finished trees are kept; to continue: {self.run.again}"
                )
            raise StudyError(status.error) if status.error else EngineError("The training failed at the hub.")
        if status.stage != "done":
            self.run.enter(status.stage)
            self._tell_waiting(status.waiting)
        if status.stage != "done" or len(status.records) == MOST_RECORDS:
            return False
        self.without_model = status.without_model
        if status.error:
            self.run.listener.say("note", status.error, level=logging.WARNING)
        for name in results_of(self.run.study):
            write_atomically(self.run.folder / name, self._fetch(name))
        if (self.run.folder / SEALED).exists():
            open_sealed(self.run.folder, self.run.study, self.run.order.run, self.run.identity)
        self.submitter.ask(self.id, Question(collected=True))
        return True

    def _tell_left(self, left: list[str]) -> None:
        """Say who has left, once."""
        for party in left:
            if party not in self._left:
                self.run.listener.say("left", f"{party} has left (stopped by its operator)", level=logging.WARNING)
        self._left = left

    def _tell_silence(self) -> None:
        """Say that the hub's part of a training that runs gives no answer; again after a while."""
        if self._ready and time.monotonic() - self._answered > REMIND:
            self.run.listener.say("waiting", "the hub's part of the training gives no answer", level=logging.WARNING)
            self._answered = time.monotonic()

    def _tell_waiting(self, waiting: list[str]) -> None:
        """Say for whom the training waits. A party that is slow with every answer is not named with every answer."""
        now = time.monotonic()
        new = [party for party in waiting if now - self._told.get(party, -math.inf) > REMIND]
        if new:
            self.run.listener.say("waiting", f"waiting for an answer of {', '.join(new)} for {SLOW:g} seconds now")
        self._told |= dict.fromkeys(new, now)

    def _fetch(self, name: str) -> bytes:
        data = b""
        while True:
            piece = self.submitter.ask(self.id, Question(file=name, at=len(data)))
            if not isinstance(piece, Piece) or (piece.size > len(data) and not piece.data):
                raise EngineError(f"The hub did not hand out {name}. It is kept there: run `{self.run.again}`.")
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
