"""The two ends of a training between machines: the hub's and a party's.

FLARE starts `HubEndpoint` at the hub and `PartyEndpoint` at every party. Both are the same hub and party as in one
process, with a transport between them and a folder each, from which an interrupted training continues. Of
SimFL, a kit allows a job to name these two classes and no others.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec

from simfl import hub
from simfl import messages as msg
from simfl import model as models
from simfl.callbacks import Callback, TreeRecord, logger
from simfl.deploy.answers import MOST_RECORDS, PARTY_FILE, PIECE, Piece, Question, Status, versions
from simfl.deploy.course import DONE, Course, facts_of, stage_of
from simfl.deploy.folders import open_run_folder, remove_partial_files
from simfl.deploy.logs import mark_events, tell
from simfl.deploy.metrics import FiguresFile, note_refusal
from simfl.deploy.opening import check_unchanged, handshake, read_prepared
from simfl.deploy.orders import SEALED, Order, results_of
from simfl.deploy.party_file import PartyFile, read_party_file
from simfl.deploy.study import Study, approved_study, digest_of, ledger_of, parse_study
from simfl.deploy.tables import open_table
from simfl.errors import DataError, PartyLost, PrivacyError, ProtocolError, SimFLError, StudyError, TrainingStopped
from simfl.federation import account, model_of
from simfl.hub.journal import open_journal
from simfl.model.compare import check_same
from simfl.params import cores, is_private
from simfl.party import Session
from simfl.party.journal import Answered
from simfl.party.journal import open_journal as open_party_journal
from simfl.party.terms import Terms
from simfl.privacy.keys import OF_A_KIT, Identity
from simfl.privacy.ledger import Account, TableFacts, event_of
from simfl.report import assemble
from simfl.report.record import RunRecord
from simfl.storage import Journal, owned, write_atomically
from simfl.transport.base import Transport
from simfl.transport.flare import FlareTransport, HubEnd, SiteEnd

PREPARED = "prepared.json"  # what stage 1 found
RELEASES = "released.json"  # at a party: what a run with epsilon has released
LET_GO = 20.0  # seconds that a new job waits for an earlier one of the same run to end
STOPPED = "somebody ran `simfl stop`. All finished trees are kept; `simfl train --resume` continues"
STOP_LINGER = 10.0  # seconds that a stopped training tells of it, to whoever follows it
LINGER = 120.0  # seconds that the hub waits for the submitter to fetch the results


# --- the hub's end ---------------------------------------------------------------------------------------------------


class HubEndpoint(HubEnd, Callback):
    """The hub of a training: handshake, stage 1, stage 2, and the model to everybody."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order = Order.from_text(order)
        self.study = parse_study(self.order.study)
        self.patience, self.run = self.study.patience, self.order.run
        self.status = Status()
        self.transport: FlareTransport | None = None
        self.course: Course | None = None
        self.greetings: dict[str, msg.Greeting] = {}
        self.restarted = False
        self.results: dict[str, bytes] = {}
        self.collected = threading.Event()
        self.figures: FiguresFile | None = None

    def conduct(self, transport: FlareTransport, folder: Path) -> None:
        """Run the training; then wait until the submitter has fetched the results."""
        transport.parties = [party for party in self.study.parties if party in transport.sites]
        self.transport = transport
        with ExitStack() as holding:
            try:
                own = open_run_folder(folder, self.order.run)
                holding.enter_context(owned(own, patience=LET_GO))
                remove_partial_files(own)
                self.course, self.figures = self._begin(own), FiguresFile(own)
                self._note(now=True)
                self.results = self._run(transport, own)
                self._end("done", f"the training {self.run} is finished: {own}")
            except TrainingStopped as error:
                self._end("stopped", f"the training {self.run} was stopped: {error}", str(error))
            except SimFLError as error:
                self._end("failed", f"the training {self.run} has failed: {error}", str(error))
                note_refusal(folder)
            except (ArithmeticError, LookupError, OSError, TypeError, ValueError) as error:  # FLARE's lead to a retry
                logger.exception("The hub failed.")
                fact = f"The hub failed ({type(error).__name__}: {error})."
                self._end("failed", fact, fact)
                raise
            self.collected.wait(STOP_LINGER if self.status.stage == "stopped" else LINGER)

    def _begin(self, folder: Path) -> Course:
        tell("began", f"the training {self.run} of the study {digest_of(self.order.study.encode())} begins")
        return Course(folder, stage_of(self.study, self.run, "starting", self.job))

    def _enter(self, stage: str) -> None:
        self.status.stage = stage
        if self.course is not None:
            self.course.enter(stage)

    def _end(self, stage: str, text: str, error: str = "") -> None:
        self._note(now=True)
        self.status.error, self.status.stage = error or self.status.error, stage
        if self.course is not None:
            self.course.end(DONE if stage == "done" else stage, text, error)
        else:
            tell("ended", text)

    def enter_process(self) -> None:
        """Events of this process are written to its output."""
        super().enter_process()
        mark_events()

    def progress(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Answer the submitter: a piece of a result, or the status."""
        question = msgspec.convert(asked, Question)
        if question.collected:
            self.collected.set()
        if question.stop and self.transport is not None:
            self.transport.stop(STOPPED)
        file, at = self.results.get(question.file), question.at
        answer = self._status(question.since) if file is None else Piece(size=len(file), data=file[at : at + PIECE])
        return dict(msgspec.to_builtins(answer))

    def after_tree(self, record: TreeRecord) -> None:
        """A tree is finished: keep its record for the submitter."""
        self.status.records.append(record)
        if self.course is not None:
            self.course.rounds(record.round + 1, facts_of(record), record.absent)
        self._note()

    def _note(self, *, now: bool = False) -> None:
        """Keep the figures of this training up to date, for whoever asks at --metrics-port."""
        if self.figures is not None and self.transport is not None and (now or self.figures.is_due):
            known = self.figures.figures  # counted again from all hops: not after every tree
            known.trees = max(known.trees, self.course.stage.tree if self.course else 0)
            known.present = {party: party in self.transport.parties for party in self.study.parties}
            known.count(self.transport.traffic)
            self.figures.save(now=now)

    def _status(self, since: int) -> Status:
        records = [record for record in self.status.records if record.round >= since][:MOST_RECORDS]
        connected = list(self.transport.parties) if self.transport else []
        waiting, left = (self.transport.waiting(), sorted(self.transport.left())) if self.transport else ([], [])
        now = {"connected": connected, "waiting": waiting, "left": left, "time": time.time()}
        return msgspec.structs.replace(self.status, records=records, **now)

    def _run(self, transport: Transport, folder: Path) -> dict[str, bytes]:
        """The results, from this training or as an earlier job left them; every party gets them too.

        Where an earlier job left them, the parties adopt all trees again: they compare the model with them.
        """
        files = {name: folder / name for name in results_of(self.study)}
        finished = all(path.exists() for path in files.values())
        try:
            trained = self._train(transport, folder)
            if not finished:
                self._write(transport, trained, folder)
        except SimFLError as error:
            if not finished:
                raise
            self.status.error = (  # the submitter gets the results all the same
                "The training was finished before, and its results stand. A party that lacks them cannot get them "
                f"now: {error}"
            )
        results = {name: path.read_bytes() for name, path in files.items()}
        self._enter("handing out the model")
        self._hand_out(transport, results)
        return results

    def _train(self, transport: Transport, folder: Path) -> hub.Training | hub.GrownTogether:
        together = self.study.params().recipe == "joint"
        opened: Journal[Any] = (hub.open_joint_journal if together else open_journal)(folder / "journal")
        with closing(opened) as journal:  # first: one that another version began is refused before anybody is asked
            self.restarted |= bool(journal.entries)
            recovery = hub.Recovery(journal, self.study.parties_needed)
            self._enter("handshake")
            self.greetings = handshake(transport, self.study, self.order)
            prepared = self._prepare(transport, folder)
            self._enter("training")
            if together:
                return self._grow_together(transport, prepared, recovery)
            params = msgspec.structs.replace(self.study.params(), random_state=self.order.seed)
            return hub.train(transport, prepared, params, callbacks=[self], recovery=recovery)

    def _grow_together(
        self, transport: Transport, prepared: hub.Prepared, recovery: hub.Recovery[Any]
    ) -> hub.GrownTogether:
        """The joint recipe. Where the hub sees nothing, the model is sealed for the submitter."""
        sealed = SEALED in results_of(self.study)
        if sealed and self.order.receiver is None:
            raise StudyError("The hub gets to see no model, and the order names no key of its receiver.")
        order = hub.JointOrder(self.order.receiver if sealed else None)
        params = self.study.params()
        return hub.train_together(transport, prepared, params, order, callbacks=[self], recovery=recovery)

    def _prepare(self, transport: Transport, folder: Path) -> hub.Prepared:
        """Stage 1, or what an earlier job left of it."""
        params = msgspec.structs.replace(self.study.params(), random_state=self.order.seed)
        self._enter("comparing tables" if params.recipe == "joint" else "finding similar rows")
        file = folder / PREPARED
        if prepared := read_prepared(file):
            check_unchanged(prepared, params, hub.describe(transport, params, prepared.seed, prepared.schema))
            if not prepared.has_similar_rows or hub.recall(transport, transport.parties, 0):
                self.restarted = True
                return prepared
        missing = [party for party in self.study.parties if party not in transport.parties]
        if missing:
            raise PartyLost(missing, "a training begins with all parties. Start them and run `simfl train` again.")
        file.unlink(missing_ok=True)  # the parties are about to replace their similar rows
        prepared = hub.prepare(transport, params)
        write_atomically(file, msgspec.json.encode(prepared))
        return prepared

    def _write(self, transport: Transport, trained: hub.Training | hub.GrownTogether, folder: Path) -> None:
        """History and record of the run, and its model, which is sealed where the hub does not get to see it."""
        prepared, model = trained.prepared, self._model_of(trained)
        known = assemble.FinishedTraining(
            self.study.name, prepared, trained.params, model, transport.traffic, trained.history
        )
        history: dict[str, Any] = {"run": self.order.run, "rows": prepared.rows, "trees": known.rounds}
        history |= {"missed": trained.missed, "traffic": transport.traffic.since(None)}
        write_atomically(folder / "history.json", msgspec.json.format(msgspec.json.encode(history)))
        assemble.at_hub(known, trained.missed, self.greetings, restarted=self.restarted).save(folder)
        if model is not None:  # what depends on the clock stays out of the model: the same trees, the same file
            model.save(folder / "model.ubj", history=False)
        elif isinstance(trained, hub.GrownTogether):
            write_atomically(folder / SEALED, trained.sealed)

    def _model_of(self, trained: hub.Training | hub.GrownTogether) -> models.Model | None:
        """The model, if the hub gets to see it."""
        if isinstance(trained, hub.Training):
            return model_of(trained)
        if SEALED in results_of(self.study):
            return None
        model = models.from_bytes(trained.sealed, "The model of the first party")
        return models.with_account(model, account(model.history, trained.history), {})

    def _hand_out(self, transport: Transport, results: dict[str, bytes]) -> None:
        """Send the results to everybody who is connected; the others get them with the next --resume."""
        model, history, record = (results[name] for name in results_of(self.study))
        model = b"" if SEALED in results else model  # every party has built it by itself
        known = msgspec.json.decode(record, type=RunRecord)
        records = {party: msgspec.json.encode(assemble.for_party(known, party)) for party in transport.parties}
        questions = {party: msg.TakeModel(model=model, history=history, record=r) for party, r in records.items()}
        self.status.without_model = [party for party in self.study.parties if party not in questions]
        try:
            transport.ask_all(questions)
        except PartyLost as lost:
            self.status.without_model += lost.parties
        except SimFLError:  # a party could not keep it: no reason to fail, and asking the others again does no harm
            for party, question in questions.items():
                try:
                    transport.ask_all({party: question})
                except SimFLError as error:
                    self.status.without_model.append(party)
                    self.status.error = self.status.error or f"{party}: {error}"


# --- a party's end ---------------------------------------------------------------------------------------------------


def _learned(study: Study) -> str | None:
    return ", ".join(study.target.learned) if study.target else None


class PartyEndpoint(SiteEnd):
    """A party of a training: its table, and the folder of the run."""

    def __init__(self) -> None:
        super().__init__()
        self.session: Session | None = None
        self.study: Study | None = None
        self.folder: Path | None = None
        self.journal: Journal[Answered] | None = None
        self.greeted: msg.Greet | None = None  # the study and run that this job is for
        self.holding = ExitStack()  # the folder of the run is in use as long as this process lives
        self.course: Course | None = None
        self._noted: Counter[str] = Counter()  # what the journal has of `Session.shown`
        self.figures: FiguresFile | None = None
        self._asked = 0.0  # when the question that is being answered came

    def open(self, name: str, folder: Path) -> None:
        """The job starts. The table is read later, when the hub has sent the study."""
        self.kit = folder
        self.name, self.file = name, Path(os.environ.get(PARTY_FILE) or folder / "party.toml")

    def answer(self, message: msg.Request) -> msg.Reply:
        """Answer a message of the hub."""
        self._asked = time.perf_counter()
        try:
            return self._reply_to(message)
        except SimFLError:
            note_refusal(self.kit)
            raise

    def _reply_to(self, message: msg.Request) -> msg.Reply:
        if isinstance(message, msg.Greet):
            return self._greet(message)
        if self.folder is not None and isinstance(message, msg.TakeModel):
            self._take_model(message, self.folder)
            if self.course is not None:
                self.course.end(DONE, f"the training {self.folder.name} is finished; the model is in {self.folder}")
            return msg.Done()
        if self.session is None:
            raise ProtocolError(f"Party {self.name!r} was called before the handshake.")
        return self.session.handle(message)

    def answered(self, question: msg.Request, bytes_in: int, answer: msg.Reply, bytes_out: int) -> None:
        """Write down in this party's journal what leaves it, and how far the training has come."""
        if self.course is not None and self.session is not None:
            follow(self.course, self.session, question, answer)
        if self.figures is not None:
            taken, known = time.perf_counter() - self._asked, self.figures.figures
            known.answered(type(question).__name__, type(answer).__name__, bytes_in, bytes_out, taken)
            self.figures.save(now=isinstance(question, msg.TakeModel))
        if self.journal is not None and self.session is not None:
            kinds = {"question": type(question).__name__, "answer": type(answer).__name__}
            new, self._noted = self.session.shown - self._noted, self.session.shown.copy()
            entry = Answered(
                time=time.time(), bytes_in=bytes_in, bytes_out=bytes_out, shows=list(new.elements()), **kinds
            )
            self.journal.append(entry, sync=isinstance(answer, msg.Done | msg.Matched))

    def enter_process(self) -> None:
        """Events of this process are written to its output."""
        super().enter_process()
        mark_events()

    def _greet(self, message: msg.Greet) -> msg.Greeting:
        """Read the table through the study. Problems are part of the answer: the hub collects those of all parties."""
        installed = {**versions(), "python": platform.python_version()}
        problems: list[str] = []
        try:
            if message.simfl != (own := installed["simfl"]) or message.version != msg.VERSION:
                fact = f"simfl {own} is installed, the hub has {message.simfl}: install the same everywhere"
                raise StudyError(fact, public=fact)
            self._open(message)
        except SimFLError as error:
            tell("refused", f"this party takes no part: {error}", level=logging.ERROR)
            problems.append(self._public(error))
            note_refusal(self.kit)
        return msg.Greeting(problems=problems, versions=installed)

    def _public(self, error: SimFLError) -> str:
        """What the hub may know. With epsilon, how many cells of a table do not fit is no business of others."""
        private = self.study is not None and is_private(self.study.params())
        return type(error)("").public if private and isinstance(error, DataError) else error.public

    def _open(self, message: msg.Greet) -> None:
        if self.greeted is not None and message != self.greeted:
            raise PrivacyError(
                "it has joined another study or run in this job already. Start a new job for another one"
            )
        own = read_party_file(self.file)
        if own.name != self.name:
            raise PrivacyError(f"its party file is of {own.name!r}, its certificate of {self.name!r}")
        self.study = approved_study(own, message.study.encode())
        if self.greeted is not None:
            return  # the same once more
        if event := event_of(self.study.params()):
            ledger_of(own).check(message.run, digest_of(message.study.encode()), event)
        folder = open_run_folder(self.file.parent, message.run)
        with ExitStack() as opening:  # what is refused lets the folder go
            opening.enter_context(owned(folder, patience=LET_GO))
            remove_partial_files(folder)
            self._open_run(message, self.study, own, folder)
            self.holding = opening.pop_all()

    def _open_run(self, message: msg.Greet, study: Study, own: PartyFile, folder: Path) -> None:
        """Read the table, and what an earlier job left in the folder."""
        kept, digest = folder / "study.toml", digest_of(message.study.encode())
        if kept.exists() and kept.read_bytes() != message.study.encode():
            raise PrivacyError(
                f"the run {message.run!r} is one of another study. Start a new training, without --resume"
            )
        session = self._open_session(study, own, folder)
        if event_of(study.params()):
            facts = TableFacts(data=str(own.source), label=_learned(study), content=own.source.digest()[:32])
            session.sealing.account = Account(ledger_of(own), message.run, digest, facts, folder / RELEASES)
        write_atomically(kept, message.study.encode())
        self.folder, self.journal = folder, open_party_journal(folder / "journal")
        session.shown.update(fact for entry in self.journal.of(Answered) for fact in entry.shows)  # of earlier jobs
        self._noted, self.session = session.shown.copy(), session
        self.figures = FiguresFile(folder)
        tell("approved", f"the study {study.name} is the one that this party approved ({digest})")
        course = Course(folder, stage_of(study, message.run, "handshake", self.job))
        self.course, self.greeted = course, message  # last: who was refused before has not joined

    def _open_session(self, study: Study, own: PartyFile, folder: Path) -> Session:
        identity = self._identity(own)
        party, _ = open_table(study, own.name, own.source, own.person)
        session = Session(
            party,
            secret=None if own.secret is None else bytes.fromhex(own.secret),
            identity=identity,
            folder=folder,
            terms=terms_of(study),
            run=folder.name,
        )
        session.n_jobs = own.n_jobs or cores()
        return session

    def _identity(self, own: PartyFile) -> Identity | None:
        """The certificate of the kit. Without one, nobody can tell whose keys are whose."""
        kit = self.file.parent / (own.kit or ".") / "startup"
        files = [kit / name for name in OF_A_KIT]
        if any(file.exists() for file in files):
            return Identity.read(*files)
        if own.require.signed:
            raise PrivacyError(
                "it has no certificate, so that the hub could make up keys of others. `simfl join` makes a kit: set "
                "kit = ... in its party.toml (to try things out without one: signed = false in its [require])"
            )
        return None

    def _take_model(self, message: msg.TakeModel, folder: Path) -> None:
        """Keep the model and its record, if it is the model that this party has trained. Else nothing is written."""
        file, own = folder / "model.ubj", self._own_model()
        model, vouched = own or self._received(message, file), own is not None
        try:
            record = msgspec.json.decode(message.record, type=RunRecord)
            history = assemble.completed_history(message.history, model, vouched=vouched)
        except (msgspec.DecodeError, LookupError, TypeError, RecursionError):
            raise ProtocolError(f"Party {self.name!r} received an invalid record of the run.") from None
        if own is not None:
            own.save(file, history=False)
        else:
            write_atomically(file, message.model)
        write_atomically(folder / "history.json", history)
        self._keep_record(assemble.completed(record, model, vouched=vouched), model, folder)

    def _own_model(self) -> models.Model | None:
        """The model of trees that were grown together: every party has built it by itself."""
        session = self.session
        if session is None or self.study is None or self.study.params().recipe != "joint":
            return None
        if not session.together.machine.finished:
            raise ProtocolError(f"Party {self.name!r} was given a model before its training ended.")
        return session.model

    def _received(self, message: msg.TakeModel, file: Path) -> models.Model:
        """The model that the hub sends, if it is the one that this party knows."""
        adopted = self.session.adopted if self.session else None
        if adopted is None:
            raise ProtocolError(f"Party {self.name!r} was given a model before its training ended.")
        if file.exists() and file.read_bytes() != message.model:
            raise ProtocolError(f"Party {self.name!r} was given another model than the one that it has of this run.")
        model = models.from_bytes(message.model, "The hub's model.ubj")  # refuses what XGBoost must not see
        check_same(model, adopted, f"Party {self.name!r}")
        return model

    def _keep_record(self, record: RunRecord, model: models.Model, folder: Path) -> None:
        """Write the record of the run, with this party's gain in it."""
        if (folder / "run.json").exists() and RunRecord.load(folder).gains:
            return  # measured before the hub was restarted
        if self.session is not None and self.study is not None and self.journal is not None:
            answered = list(self.journal.of(Answered))
            record = assemble.as_sent(record, self.session, self.study.parameters, answered)
            try:
                record = assemble.with_own_gain(record, self.session, model, self.study.parameters)
            except Exception as error:  # noqa: BLE001 - a training does not fail because a figure is missing
                note = f"What {self.name} gains over being alone could not be measured ({type(error).__name__})."
                record = msgspec.structs.replace(record, notes=[note])
        record.save(folder)


def follow(course: Course, session: Session, question: msg.Request, answer: msg.Reply) -> None:
    """Tell how far the training has come, by what a party is asked."""
    match question:
        case msg.Hash() | msg.SumFeatures():
            course.enter("finding similar rows")
        case msg.Start() | msg.StartTogether():
            course.enter("training", "the training begins")
    if isinstance(question, msg.SumOntoRows | msg.Grow):
        course.rounds(session.training.n_rounds)
    elif session.adopted is not None:
        course.rounds(len(session.adopted.rounds))
    elif isinstance(answer, msg.Addend):
        course.rounds(answer.n_trees)


def terms_of(study: Study) -> Terms:
    """What a party holds the hub to."""
    schema = study.schema if study.columns else None
    return Terms(tuple(study.parties), study.params(), min(study.parties_needed, len(study.parties)), schema)


CLASSES = (f"{__name__}.{HubEndpoint.__name__}", f"{__name__}.{PartyEndpoint.__name__}")
