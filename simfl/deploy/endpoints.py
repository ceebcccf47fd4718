"""The two ends of a training between machines: the hub's and a party's.

FLARE starts `HubEndpoint` at the hub and `PartyEndpoint` at every party. Both are the same hub and party as in one
process, with a transport between them and a folder each, from which an interrupted training continues. A kit allows a
job to name these two classes and no others.
"""

from __future__ import annotations

import base64
import os
import platform
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from simfl import hub, wire
from simfl import messages as msg
from simfl import model as models
from simfl.callbacks import Callback, TreeRecord, logger
from simfl.deploy.study import PartyFile, Study, approved_study, parse_study, read_party_file
from simfl.deploy.tables import open_table
from simfl.errors import DataError, FileError, PartyLost, PrivacyError, ProtocolError, SimFLError, StudyError
from simfl.federation import model_of
from simfl.hub.journal import open_journal
from simfl.params import PrepareParams, cores
from simfl.party import Session
from simfl.party.journal import Answered
from simfl.party.journal import open_journal as open_party_journal
from simfl.party.terms import Terms
from simfl.privacy.keys import Identity
from simfl.privacy.observed import shows
from simfl.report import assemble
from simfl.report.record import RunRecord
from simfl.storage import Journal, write_atomically
from simfl.transport.base import Transport
from simfl.transport.flare import FlareTransport, HubEnd, SiteEnd

PARTY_FILE = "SIMFL_PARTY_FILE"  # the environment variable that says where a party's party.toml is
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
PREPARED = "prepared.json"  # what stage 1 found
RESULTS = ("model.ubj", "history.json", "run.json")
PIECE = 512 * 1024  # bytes of a result per answer to the submitter
MOST_RECORDS = 200  # trees per answer to the submitter
LINGER = 120.0  # seconds that the hub waits for the submitter to fetch the results


# --- between the submitter and the hub -------------------------------------------------------------------------------


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the submitter orders: a study, under a name that stays the same when it is resumed."""

    run: str
    study: str
    seed: int

    def to_text(self) -> str:
        """The order as an argument in a job's configuration, where FLARE would interpret braces."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()

    @classmethod
    def from_text(cls, text: str) -> Order:
        """The order that `to_text` wrote."""
        return msgspec.json.decode(base64.urlsafe_b64decode(text), type=cls)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What the submitter asks: the status with the trees from `since` on, or a piece of a result file."""

    since: int = 0
    file: str = ""
    at: int = 0  # where the piece begins
    collected: bool = False  # the submitter needs nothing more


class Status(msgspec.Struct, kw_only=True, tag=True):
    """How the training is going."""

    stage: str = "starting"
    error: str = ""
    records: list[TreeRecord] = []
    connected: list[str] = []
    without_model: list[str] = []  # parties that have not received the model
    time: float = 0.0  # by the hub's clock


class Piece(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A piece of a result file."""

    size: int  # of the whole file
    data: bytes


# --- the hub's end ---------------------------------------------------------------------------------------------------


class HubEndpoint(HubEnd, Callback):
    """The hub of a training: handshake, stage 1, stage 2, and the model to everybody."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order = Order.from_text(order)
        self.study = parse_study(self.order.study)
        self.patience, self.run = self.study.patience, self.order.run
        self.status = Status()
        self.transport: Transport | None = None
        self.greetings: dict[str, msg.Greeting] = {}
        self.restarted = False
        self.shown_before: dict[str, int] = {}  # what the messages of stage 1 showed, if an earlier job ran it
        self.results: dict[str, bytes] = {}
        self.collected = threading.Event()

    def conduct(self, transport: FlareTransport, folder: Path) -> None:
        """Run the training; then wait until the submitter has fetched the results."""
        transport.parties = [party for party in self.study.parties if party in transport.sites]
        self.transport = transport
        try:
            self.results = self._run(transport, open_run_folder(folder, self.order.run))
            self.status.stage = "done"
        except SimFLError as error:
            self.status.error, self.status.stage = str(error), "failed"
        except (ArithmeticError, LookupError, OSError, TypeError, ValueError) as error:  # FLARE's own lead to a retry
            self.status.error, self.status.stage = f"The hub failed ({type(error).__name__}: {error}).", "failed"
            raise
        self.collected.wait(LINGER)

    def progress(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Answer the submitter: a piece of a result, or the status."""
        question = msgspec.convert(asked, Question)
        if question.collected:
            self.collected.set()
        file, at = self.results.get(question.file), question.at
        answer = self._status(question.since) if file is None else Piece(size=len(file), data=file[at : at + PIECE])
        return dict(msgspec.to_builtins(answer))

    def after_tree(self, record: TreeRecord) -> None:
        """A tree is finished: keep its record for the submitter."""
        self.status.records.append(record)

    def _status(self, since: int) -> Status:
        records = [record for record in self.status.records if record.round >= since][:MOST_RECORDS]
        connected = list(self.transport.parties) if self.transport else []
        return msgspec.structs.replace(self.status, records=records, connected=connected, time=time.time())

    def _run(self, transport: Transport, folder: Path) -> dict[str, bytes]:
        """The results, from this training or as an earlier job left them; every party gets them too."""
        files = {name: folder / name for name in RESULTS}
        if all(path.exists() for path in files.values()):
            greet(transport, self.order)
            prepared = read_json(folder / PREPARED, hub.Prepared)  # the parties measure their gain on the same rows
            hub.describe(transport, prepared.params, prepared.seed, prepared.schema)
        else:
            self._train(transport, folder)
        results = {name: path.read_bytes() for name, path in files.items()}
        self.status.stage = "handing out"
        self._hand_out(transport, results)
        return results

    def _train(self, transport: Transport, folder: Path) -> None:
        self.status.stage = "handshake"
        self.greetings = handshake(transport, self.study, self.order)
        prepared = self._prepare(transport, folder)
        self.status.stage = "training"
        params = msgspec.structs.replace(self.study.params()[1], random_state=self.order.seed)
        with closing(open_journal(folder / "journal")) as journal:
            self.restarted = bool(journal.entries)
            recovery = hub.Recovery(journal, self.study.parties_needed)
            training = hub.train(transport, prepared, params, callbacks=[self], recovery=recovery)
        self._write(transport, training, folder)

    def _prepare(self, transport: Transport, folder: Path) -> hub.Prepared:
        """Stage 1, or what an earlier job left of it."""
        self.status.stage = "finding similar rows"
        params = msgspec.structs.replace(self.study.params()[0], random_state=self.order.seed)
        file, shown = folder / PREPARED, folder / "shown.json"
        if file.exists():
            prepared: hub.Prepared = read_json(file, hub.Prepared)
            check_unchanged(prepared, params, hub.describe(transport, params, prepared.seed, prepared.schema))
            if not prepared.has_similar_rows or hub.recall(transport, transport.parties, 0):
                self.shown_before = read_json(shown, dict[str, int])
                return prepared
        missing = [party for party in self.study.parties if party not in transport.parties]
        if missing:
            raise PartyLost(missing, "a training begins with all parties. Start them and run `simfl train` again.")
        file.unlink(missing_ok=True)  # the parties are about to replace their similar rows
        prepared = hub.prepare(transport, params)
        write_atomically(shown, msgspec.json.encode(transport.traffic.observed()))
        write_atomically(file, msgspec.json.encode(prepared))
        return prepared

    def _write(self, transport: Transport, training: hub.Training, folder: Path) -> None:
        prepared, model = training.prepared, model_of(training, training.history, {})
        history: dict[str, Any] = {"run": self.order.run, "rows": prepared.rows, "trees": training.history}
        history |= {"missed": training.missed, "traffic": transport.traffic.since(None)}
        write_atomically(folder / "history.json", msgspec.json.format(msgspec.json.encode(history)))
        study, before = self.study.name, self.shown_before
        finished = assemble.FinishedTraining(study, prepared, training.params, model, transport.traffic, before)
        restarted = self.restarted or bool(before)
        assemble.at_hub(finished, training.missed, self.greetings, restarted=restarted).save(folder)
        # What depends on the clock stays out of the model: the same trees, the same file.
        model.save(folder / "model.ubj", history=False)

    def _hand_out(self, transport: Transport, results: dict[str, bytes]) -> None:
        """Send the results to everybody who is connected; the others get them with the next --resume."""
        model, history, record = (results[name] for name in RESULTS)
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
                    self.status.error = f"{party}: {error}"


def read_json(path: Path, kind: Any) -> Any:
    """What an earlier job wrote into the folder of the run."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise FileError(f"{path} cannot be read ({error}). Start a new training, without --resume.") from None


def check_unchanged(prepared: hub.Prepared, params: PrepareParams, described: Mapping[str, msg.Description]) -> None:
    """Refuse to resume a training whose tables or parameters have changed since it began."""
    changes = [(f"the rows of {party}", prepared.rows.get(party), d.n_rows) for party, d in described.items()]
    changes += [(name, getattr(prepared.params, name), getattr(params, name)) for name in params.__struct_fields__]
    facts = [f"{what}: {then!r} then, {now!r} now" for what, then, now in changes if then != now]
    if facts:
        raise StudyError(
            f"This training cannot be resumed, because something has changed since it began ({'; '.join(facts)}). Put "
            "it back, or start a new training without --resume."
        )


def handshake(transport: Transport, study: Study, order: Order) -> dict[str, msg.Greeting]:
    """Check that every table fits the study and that they all fit together. All problems come in one error."""
    greetings = greet(transport, order)
    problems = [f"{party}: {problem}" for party, g in greetings.items() for problem in g.problems]
    sound = [party for party, greeting in greetings.items() if not greeting.problems]
    problems += _mismatches(transport, sound, study, order.seed)
    if problems:
        raise StudyError("\n- ".join(["The parties and the study do not fit together.", *problems]))
    return greetings


def greet(transport: Transport, order: Order) -> dict[str, msg.Greeting]:
    """Send everybody the study and the name of the run."""
    question = msg.Greet(version=msg.VERSION, simfl=version("simfl"), run=order.run, study=order.study)
    replies = transport.ask_all(dict.fromkeys(transport.parties, question))
    return {party: wire.expect(msg.Greeting, reply, party) for party, reply in replies.items()}


def _mismatches(transport: Transport, parties: list[str], study: Study, seed: int) -> list[str]:
    """How the tables and the labels of these parties differ from one another."""
    if not parties:
        return []
    first, second = study.params()
    checks: list[tuple[msg.Request, Callable[[Any], Any]]] = [
        (hub.description_request(first, seed), hub.check_same_form),
        (msg.DescribeLabels(objective=second.objective), lambda replies: hub.check_labels(replies, second)),
    ]
    problems = []
    for question, check in checks:
        try:
            check(transport.ask_all(dict.fromkeys(parties, question)))
        except (DataError, StudyError) as error:
            problems.append(str(error))
    return problems


# --- a party's end ---------------------------------------------------------------------------------------------------


class PartyEndpoint(SiteEnd):
    """A party of a training: its table, and the folder of the run."""

    def __init__(self) -> None:
        super().__init__()
        self.session: Session | None = None
        self.study: Study | None = None
        self.folder: Path | None = None
        self.journal: Journal[Answered] | None = None
        self.greeted: msg.Greet | None = None  # the study and run that this job is for

    def open(self, name: str, folder: Path) -> None:
        """The job starts. The table is read later, when the hub has sent the study."""
        self.name, self.file = name, Path(os.environ.get(PARTY_FILE) or folder / "party.toml")

    def answer(self, message: msg.Request) -> msg.Reply:
        """Answer a message of the hub."""
        if isinstance(message, msg.Greet):
            return self._greet(message)
        if self.folder is not None and isinstance(message, msg.TakeModel):
            self._take_model(message, self.folder)
            return msg.Done()
        if self.session is None:
            raise ProtocolError(f"Party {self.name!r} was called before the handshake.")
        return self.session.handle(message)

    def answered(self, question: msg.Request, bytes_in: int, answer: msg.Reply, bytes_out: int) -> None:
        """Write down in this party's journal what leaves it."""
        if self.journal is not None:
            kinds = {"question": type(question).__name__, "answer": type(answer).__name__}
            seen = shows(question, answer)
            entry = Answered(time=time.time(), bytes_in=bytes_in, bytes_out=bytes_out, shows=seen, **kinds)
            self.journal.append(entry, sync=isinstance(answer, msg.Done | msg.Matched))

    def _greet(self, message: msg.Greet) -> msg.Greeting:
        """Read the table through the study. Problems are part of the answer: the hub collects those of all parties."""
        installed = {name: version(name) for name in ("simfl", "xgboost", "numpy", "nvflare")}
        installed["python"] = platform.python_version()
        problems: list[str] = []
        try:
            if message.simfl != (own := installed["simfl"]) or message.version != msg.VERSION:
                fact = f"simfl {own} is installed, the hub has {message.simfl}: install the same everywhere"
                raise StudyError(fact, public=fact)
            self._open(message)
        except SimFLError as error:
            logger.error("This party cannot take part: %s", error)
            problems.append(error.public)
        return msg.Greeting(problems=problems, versions=installed)

    def _open(self, message: msg.Greet) -> None:
        if self.greeted is not None and message != self.greeted:
            raise PrivacyError("it has joined another study or run in this job already")
        own = read_party_file(self.file)
        if own.name != self.name:
            raise PrivacyError(f"its party file is of {own.name!r}, its certificate of {self.name!r}")
        self.study = approved_study(own, message.study.encode())
        if self.greeted is not None:
            return  # the same once more
        folder = open_run_folder(self.file.parent, message.run)
        kept = folder / "study.toml"
        if kept.exists() and kept.read_bytes() != message.study.encode():
            raise PrivacyError(f"the run {message.run!r} is one of another study")
        self.session = self._open_session(self.study, own, folder)
        write_atomically(kept, message.study.encode())
        self.folder, self.journal = folder, open_party_journal(folder / "journal")
        self.greeted = message

    def _open_session(self, study: Study, own: PartyFile, folder: Path) -> Session:
        party, _ = open_table(study, own.name, Path(own.data))
        kit = self.file.parent / (own.kit or ".") / "startup"
        files = [kit / name for name in ("client.crt", "client.key", "rootCA.pem")]
        session = Session(
            party,
            secret=None if own.secret is None else bytes.fromhex(own.secret),
            identity=Identity.read(*files) if any(file.exists() for file in files) else None,
            folder=folder,
            terms=terms_of(study),
            run=folder.name,
        )
        session.n_jobs = own.n_jobs or cores()
        return session

    def _take_model(self, message: msg.TakeModel, folder: Path) -> None:
        """Keep the model and its record, if it is a sound model."""
        received = folder / ".received.ubj"
        try:
            write_atomically(received, message.model)
            model = models.load(received)  # refuses what XGBoost must not see
            write_atomically(folder / "model.ubj", message.model)
        finally:
            received.unlink(missing_ok=True)
        write_atomically(folder / "history.json", message.history)
        self._keep_record(message.record, model, folder)

    def _keep_record(self, sent: bytes, model: models.Model, folder: Path) -> None:
        """Write the record of the run, with this party's gain in it."""
        try:
            record = msgspec.json.decode(sent, type=RunRecord)
        except msgspec.DecodeError as error:
            raise ProtocolError(f"Party {self.name!r} received an invalid record of the run: {error}.") from None
        if (folder / "run.json").exists() and RunRecord.load(folder).gains:
            return  # measured before the hub was restarted
        if self.session is not None and self.study is not None and self.journal is not None:
            try:
                answered = list(self.journal.of(Answered))
                record = assemble.at_party(record, self.session, model, self.study.parameters, answered)
            except Exception as error:  # noqa: BLE001 - a training does not fail because a figure is missing
                note = f"What {self.name} gains over being alone could not be measured ({type(error).__name__})."
                record = msgspec.structs.replace(record, notes=[note])
        record.save(folder)


def terms_of(study: Study) -> Terms:
    """What a party holds the hub to."""
    first, second = study.params()
    schema = study.schema if study.columns else None
    return Terms(tuple(study.parties), first, second, min(study.parties_needed, len(study.parties)), schema)


CLASSES = (f"{__name__}.{HubEndpoint.__name__}", f"{__name__}.{PartyEndpoint.__name__}")


def open_run_folder(parent: Path, run: str) -> Path:
    """The folder of a run, new or as an earlier job left it."""
    if not RUN_NAME.fullmatch(run):
        raise ProtocolError(f"A training cannot be called {run!r}.")
    folder = parent / "runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    remove_partial_files(folder)
    return folder


def remove_partial_files(folder: Path) -> None:
    """Remove what a kill left half written. Only unfinished files have a name that begins with a dot."""
    for left in folder.glob(".*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)
