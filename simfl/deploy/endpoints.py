"""The two ends of a training between machines: what the hub does there and what a party does.

FLARE starts `HubSite` at the hub and `PartySite` at every party; both are the same hub and party as in one process,
with a transport between them and a folder each in which nothing is lost. These two are the only classes that a kit
allows a job to name.
"""

from __future__ import annotations

import base64
import os
import platform
import re
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from simfl import hub, wire
from simfl import messages as msg
from simfl import model as models
from simfl.callbacks import Callback, TreeRecord
from simfl.deploy.study import Study, open_table, parse_study, read_party_file
from simfl.errors import DataError, PartyLost, ProtocolError, SimFLError, StudyError
from simfl.hub.journal import Answered, Journal, missed_trees
from simfl.params import TrainParams, cores
from simfl.party import Party
from simfl.privacy.keys import Identity
from simfl.privacy.observed import shows
from simfl.report import assemble
from simfl.report.record import RunRecord
from simfl.storage import write_atomically
from simfl.transport.flare import FlareTransport, HubEnd, SiteEnd

PARTY_FILE = "SIMFL_PARTY_FILE"  # the environment variable that tells a site's job where its party.toml is
CLASSES = ("simfl.deploy.endpoints.HubSite", "simfl.deploy.endpoints.PartySite")
RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
RESULTS = ("model.ubj", "history.json", "run.json")
PIECE = 512 * 1024  # of the model, per answer to the submitter
LINGER = 120.0  # seconds that the hub waits for the submitter to fetch the result


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the submitter orders: a study, under a name that stays the same when it is taken up again."""

    run: str
    study: str
    seed: int

    def to_text(self) -> str:
        """As an argument in a job's configuration, where FLARE would read braces as its own."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()

    @classmethod
    def from_text(cls, text: str) -> Order:
        """Back again."""
        return msgspec.json.decode(base64.urlsafe_b64decode(text), type=cls)


class HubSite(HubEnd):
    """The hub of a training: handshake, stage 1, stage 2, and the model to everybody."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order = Order.from_text(order)
        self.study = parse_study(self.order.study)
        self.patience, self.run = self.study.patience, self.order.run
        self.watch = _Watch()
        self.greetings: dict[str, msg.Greeting] = {}
        self.restarted = False
        self.before: dict[str, int] = {}  # what the messages of stage 1 showed, if that was before this start
        self.result: dict[str, bytes] = {}
        self.collected = threading.Event()

    def conduct(self, transport: FlareTransport, folder: Path) -> None:
        """Hold the training; then wait until the submitter has fetched what came out of it."""
        transport.parties = [party for party in self.study.parties if party in transport.sites]
        self.watch.transport = transport
        try:
            self.result = self._train(transport, folder / "runs" / check_run(self.order.run))
            self.watch.stage = "done"
        except SimFLError as error:
            self.watch.error = str(error)
            self.watch.stage = "failed"
        self.collected.wait(LINGER)

    def _train(self, transport: FlareTransport, folder: Path) -> dict[str, bytes]:
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        finished = {name: folder / name for name in RESULTS}
        if not all(path.exists() for path in finished.values()):
            self.watch.stage = "handshake"
            self.greetings = handshake(transport, self.study, self.order)
            prepared = self._prepare(transport, folder)
            self.watch.stage = "training"
            journal = Journal(folder / "journal")
            self.restarted = bool(journal.entries)
            params = msgspec.structs.replace(self.study.params()[1], random_state=self.order.seed)
            try:
                training = hub.train(transport, prepared, params, [self.watch], journal, self.study.least)
            finally:
                journal.close()
            self._write(transport, training, journal, folder)
        else:
            greet(transport, self.order)  # they only have to know the folder
        result = {name: path.read_bytes() for name, path in finished.items()}
        self.watch.stage = "handing out"
        self._hand_out(transport, result)
        return result

    def _hand_out(self, transport: FlareTransport, result: dict[str, bytes]) -> None:
        """The model to everybody who is there; the others get it with the next --resume."""
        model, history, record = (result[name] for name in RESULTS)
        known = msgspec.json.decode(record, type=RunRecord)
        questions = {
            party: msg.TakeModel(
                model=model, history=history, record=msgspec.json.encode(assemble.for_party(known, party))
            )
            for party in transport.parties
        }
        self.watch.without = [party for party in self.study.parties if party not in questions]
        try:
            transport.ask_all(questions)
        except PartyLost as lost:
            self.watch.without += lost.parties
        except SimFLError as error:  # it is at the hub and with the others: no reason to fail
            self.watch.error = str(error)

    def _prepare(self, transport: FlareTransport, folder: Path) -> hub.Prepared:
        """Stage 1, or what is left of an earlier one if nobody's rows have changed."""
        self.watch.stage = "finding similar rows"
        params = msgspec.structs.replace(self.study.params()[0], random_state=self.order.seed)
        file = folder / "prepared.json"
        everybody = transport.parties == self.study.parties
        if file.exists():
            prepared = msgspec.json.decode(file.read_bytes(), type=hub.Prepared)
            described = hub.describe(transport, params, prepared.seed)
            rows = dict(zip(prepared.parties, prepared.n_rows, strict=True))
            changed = [party for party, d in described.items() if d.n_rows != rows.get(party)]
            if changed or prepared.params != params:
                raise DataError(
                    f"The tables of {changed} have other numbers of rows than when this training began. "
                    "Start a new training, without --resume."
                )
            if not prepared.most_uses or hub.recall(transport, transport.parties, None):
                self.before = msgspec.json.decode((folder / "shown.json").read_bytes(), type=dict[str, int])
                return prepared
        if not everybody:
            missing = [party for party in self.study.parties if party not in transport.parties]
            raise PartyLost(missing, "a training begins with all parties. Start them and run `simfl train` again.")
        file.unlink(missing_ok=True)  # what it stands for is about to change
        prepared = hub.prepare(transport, params)
        write_atomically(folder / "shown.json", msgspec.json.encode(transport.traffic.observed()))
        write_atomically(file, msgspec.json.encode(prepared))
        return prepared

    def _write(self, transport: FlareTransport, training: hub.Training, journal: Journal, folder: Path) -> None:
        prepared = training.prepared
        model = models.build(
            training.rounds,
            training.base_score,
            training.params.objective,
            prepared.n_features,
            models.About(
                classes=training.classes,
                history=training.history,
                traffic={},
                schema=prepared.schema,
                gain=np.sum(training.gains, axis=0).tolist() if training.gains else None,
                epsilon=training.params.epsilon,
                delta=None if training.params.epsilon is None else training.params.delta,
            ),
        )
        missed = missed_trees(journal.entries)
        history = {
            "run": self.order.run,
            "rows": dict(zip(prepared.parties, prepared.n_rows, strict=True)),
            "trees": training.history,
            "missed": missed,
            "traffic": transport.traffic.since(None),
        }
        write_atomically(folder / "history.json", msgspec.json.format(msgspec.json.encode(history)))
        finished = assemble.FinishedTraining(
            self.study.name, prepared, training.params, model, transport.traffic, self.before
        )
        restarted = self.restarted or bool(self.before)
        assemble.at_hub(finished, missed, self.greetings, restarted=restarted).save(folder)
        # What depends on the clock stays out of the model: the same trees, the same file.
        model.save(folder / "model.ubj", history=False)

    def progress(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The stage, the trees since the one asked for, who is there; at the end the model, piece by piece."""
        if asked.get("collected"):
            self.collected.set()
        name, at = asked.get("file"), int(asked.get("at", 0))
        if name in self.result:
            data = self.result[name]
            return {"size": len(data), "piece": base64.b64encode(data[at : at + PIECE]).decode()}
        return self.watch.tell(int(asked.get("since", 0)))


class _Watch(Callback):
    """What the submitter is told."""

    def __init__(self) -> None:
        self.stage, self.error = "starting", ""
        self.without: list[str] = []  # parties that have not got the model
        self.records: list[TreeRecord] = []
        self.transport: FlareTransport | None = None

    def before_training(self, parties: Sequence[str], params: TrainParams) -> None:
        """Note nothing: the journal's trees come first."""

    def after_tree(self, record: TreeRecord) -> None:
        """Keep the record for whoever asks."""
        self.records.append(record)

    def tell(self, since: int) -> dict[str, Any]:
        """All that happened from a tree on."""
        records = [msgspec.to_builtins(record) for record in self.records if record.round >= since]
        connected = list(self.transport.parties) if self.transport else []
        return {
            "stage": self.stage,
            "error": self.error,
            "records": records[:200],
            "connected": connected,
            "without": self.without,
            "time": time.time(),
        }


def handshake(transport: FlareTransport, study: Study, order: Order) -> dict[str, msg.Greeting]:
    """Does every table fit the study, and do they all fit together? All that is wrong, in one error."""
    greetings = greet(transport, order)
    problems = [f"{party}: {problem}" for party, g in greetings.items() for problem in g.problems]
    sound = [party for party, greeting in greetings.items() if not greeting.problems]
    problems += _mismatches(transport, sound, study, order.seed)
    if problems:
        raise StudyError("\n- ".join(["The parties and the study do not fit together.", *problems]))
    return greetings


def greet(transport: FlareTransport, order: Order) -> dict[str, msg.Greeting]:
    """Tell everybody the study and the name of the run."""
    question = msg.Greet(version=msg.VERSION, simfl=version("simfl"), run=order.run, study=order.study)
    replies = transport.ask_all(dict.fromkeys(transport.parties, question))
    return {party: wire.expect(msg.Greeting, reply, party) for party, reply in replies.items()}


def _mismatches(transport: FlareTransport, parties: list[str], study: Study, seed: int) -> list[str]:
    """How the tables and the labels of these parties differ from one another."""
    if not parties:
        return []
    first, second = study.params()
    describe = msg.Describe(version=msg.VERSION, validation_fraction=first.validation_fraction, seed=seed)
    problems = []
    checks: list[tuple[msg.Request, Callable[[Any], Any]]] = [
        (describe, lambda replies: hub.check_same_form(replies)),
        (
            msg.DescribeLabels(objective=second.objective, only_classes=True),
            lambda replies: hub.check_labels(replies, second, only_classes=True),
        ),
    ]
    for question, check in checks:
        try:
            check(transport.ask_all(dict.fromkeys(parties, question)))
        except (DataError, StudyError) as error:
            problems.append(str(error))
    return problems


class PartySite(SiteEnd):
    """A party of a training: its table, and the folder of the run."""

    def __init__(self) -> None:
        super().__init__()
        self.party: Party | None = None
        self.study: Study | None = None
        self.folder: Path | None = None
        self.journal: Journal | None = None

    def open(self, name: str, folder: Path) -> None:
        """The job starts here. The table is read when the hub has said which study it is."""
        self.name, self.file = name, Path(os.environ.get(PARTY_FILE) or folder / "party.toml")

    def answered(self, question: msg.Request, bytes_in: int, answer: msg.Reply, bytes_out: int) -> None:
        """Note what left."""
        if self.journal is not None:
            kinds = {"question": type(question).__name__, "answer": type(answer).__name__}
            seen = shows(question, answer)
            entry = Answered(time=time.time(), bytes_in=bytes_in, bytes_out=bytes_out, shows=seen, **kinds)
            self.journal.append(entry, sync=isinstance(answer, msg.Taken | msg.Matched | msg.SimilarTaken))

    def answer(self, message: msg.Request) -> msg.Reply:
        """Answer a message of the hub."""
        if isinstance(message, msg.Greet):
            return self._greet(message)
        if self.folder is not None and isinstance(message, msg.TakeModel):
            write_atomically(self.folder / "history.json", message.history)
            write_atomically(self.folder / "model.ubj", message.model)
            self._record(message.record, self.folder)
            return msg.Taken()
        if self.party is None:
            raise ProtocolError(f"Party {self.name!r} was asked before it was greeted.")
        return self.party.handle(message)

    def _record(self, known: bytes, folder: Path) -> None:
        """Keep the record of the run, with one's own gain in it."""
        try:
            record = msgspec.json.decode(known, type=RunRecord)
        except msgspec.DecodeError as error:
            raise ProtocolError(f"Party {self.name!r} got a record of the run that is none: {error}.") from None
        if (folder / "run.json").exists() and RunRecord.load(folder).gains:
            return  # measured before the hub was started anew
        if self.party is not None and self.study is not None:
            try:
                trained = models.load(folder / "model.ubj")
                answered = list(self.journal.of(Answered)) if self.journal else []
                record = assemble.at_party(record, self.party, trained, self.study.parameters, answered)
            except Exception as error:  # noqa: BLE001 - the model is here; its training does not fail for a figure
                note = f"What {self.name} gains over being alone could not be measured ({type(error).__name__})."
                record = msgspec.structs.replace(record, notes=[note])
        record.save(folder)

    def _greet(self, message: msg.Greet) -> msg.Greeting:
        """Read the table through the study. Whatever is wrong is said, not raised."""
        problems: list[str] = []
        if message.simfl != version("simfl") or message.version != msg.VERSION:
            problems.append(
                f"simfl {version('simfl')} is installed, the hub has {message.simfl}: install the same everywhere"
            )
        else:
            try:
                self._open(message)
            except SimFLError as error:
                problems.append(str(error))
        installed = {name: version(name) for name in ("simfl", "xgboost", "numpy", "nvflare")}
        return msg.Greeting(
            version=msg.VERSION, problems=problems, versions=installed | {"python": platform.python_version()}
        )

    def _open(self, message: msg.Greet) -> None:
        study, own = parse_study(message.study), read_party_file(self.file)
        self.study = study
        if own.name != self.name:
            raise StudyError(f"{self.file} is of party {own.name!r}, the certificate of {self.name!r}")
        self.folder = self.file.parent / "runs" / check_run(message.run)
        self.folder.mkdir(parents=True, exist_ok=True)
        sweep(self.folder)
        write_atomically(self.folder / "study.toml", message.study.encode())
        self.journal = Journal(self.folder / "journal")
        self.party, _ = open_table(study, self.name, Path(own.data))
        self.party.n_jobs, self.party.folder = own.n_jobs or cores(), self.folder
        self.party.secret = own.common_secret()
        self.party.must_mask = len(study.parties) > 1 and study.params()[1].masked is not False
        kit = self.file.parent / (own.kit or ".") / "startup"
        files = [kit / name for name in ("client.crt", "client.key", "rootCA.pem")]
        if all(file.exists() for file in files):
            self.party.identity = Identity.read(*files)


def check_run(name: str) -> str:
    """A run's name, if a folder can be called so."""
    if not RUN.fullmatch(name):
        raise ProtocolError(f"A training cannot be called {name!r}.")
    return name


def sweep(folder: Path) -> None:
    """Remove what a kill left half written: all that is finished has a name without a dot in front."""
    for left in folder.glob(".*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)
