"""Trees grown together, at the hub: it asks all parties, adds their vectors, and passes on what follows.

It knows neither what the numbers mean nor the total: every vector is masked, and so is their sum. All that it looks at
is that the parties take the same step in the same form from the same state. What those need who come later (the labels,
the cuts, the end of every batch of trees) it keeps in its journal, sealed as it is. A batch in which a party was lost
is grown again by those who are present.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from simfl import messages as msg
from simfl import wire
from simfl.callbacks import EVERYBODY, Callback, TreeRecord, logger
from simfl.errors import DataError, FewRowsWarning, FileError, ParameterError, PartyLost, ProtocolError
from simfl.hub.asking import ask_all, ask_each, refuse_unless, sent_by
from simfl.hub.handshake import agree_on_masks, exchange_keys
from simfl.hub.journal import Scored, Stopped, of_this_protocol
from simfl.hub.labels import check_labels
from simfl.hub.preparation import Prepared
from simfl.hub.presence import Recovery, welcome_back
from simfl.hub.training import check_warm_start, checked_for
from simfl.messages import ClassLabel
from simfl.model.xgboost_document import WarmStart
from simfl.params import Params, declared_classes, is_private, train_params
from simfl.privacy.additive import Parts, add, same_form
from simfl.storage import Journal
from simfl.transport.base import Transport

FEW_GROUPS = 8  # of `min_group` rows: with fewer in all hardly any split has enough on both sides
Metrics = tuple[dict[str, float], dict[str, float]]  # of a round, on training and on validation rows

# --- the journal -----------------------------------------------------------------------------------------------------


class BeganTogether(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A training began."""

    params: Params
    classes: list[ClassLabel] | None
    protocol: int


class Decided(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A decision that parties joining later will need: labels, cuts, or the end of a batch of trees."""

    kept: msg.Kept
    n_trees: int  # rounds that are finished with it
    absent: list[str]
    bytes: int  # since the last one
    seconds: float


JointEntry = BeganTogether | Decided | Scored | Stopped
JointRecovery = Recovery[JointEntry]


def open_joint_journal(path: Path | None = None) -> Journal[JointEntry]:
    """The journal of a training: a file, or in memory."""
    journal: Journal[JointEntry] = Journal(JointEntry, path)
    return of_this_protocol(journal, [began.protocol for began in journal.of(BeganTogether)])


class Facts(NamedTuple):
    """Of a finished round: its part of the bytes and seconds of its batch, and who had no part in it."""

    bytes: int
    seconds: float
    absent: list[str]


@dataclass
class JointState:
    """Where a training stands. The entries of its journal are the only thing that changes it."""

    began: BeganTogether | None = None
    kept: list[msg.Kept] = field(default_factory=list)
    rounds: list[Facts] = field(default_factory=list)
    history: list[TreeRecord] = field(default_factory=list)
    missed: dict[str, list[int]] = field(default_factory=dict)
    stopped: bool = False

    def apply(self, entry: JointEntry) -> None:
        """Let an event happen."""
        match entry:
            case BeganTogether():
                self.began = entry
            case Decided():
                self._decide(entry)
            case Scored():
                self.history.append(entry.record)
            case Stopped():
                self.stopped = True

    def _decide(self, entry: Decided) -> None:
        n = entry.n_trees - len(self.rounds)
        if n < 0:
            raise FileError("The journal of this training is not in order. Start a new training.")
        self.kept.append(entry.kept)
        for _ in range(n):
            for party in entry.absent:
                self.missed.setdefault(party, []).append(len(self.rounds))
            self.rounds.append(Facts(entry.bytes // n, entry.seconds / n, entry.absent))


# --- the training ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GrownTogether:
    """What a training leaves behind at the hub: the model as a party sealed it, and how it came about."""

    prepared: Prepared
    params: Params
    sealed: bytes
    history: list[TreeRecord]  # without metrics, where the hub sees none
    missed: dict[str, list[int]]


@dataclass(frozen=True)
class JointOrder:
    """What a training is for: the key of the model's receiver, and the model that it continues from."""

    receiver: msg.SignedKey | None = None  # None: the hub may see the model
    warm_start: WarmStart | None = None


def train_together(
    transport: Transport,
    prepared: Prepared,
    params: Params,
    order: JointOrder,
    *,
    callbacks: Sequence[Callback] = (),
    recovery: JointRecovery | None = None,
) -> GrownTogether:
    """Grow all trees together, and fetch the model."""
    recovery = recovery or Recovery(open_joint_journal())
    checked = checked_for(prepared, params)
    _advise(sum(prepared.n_rows), checked)
    return _Trainer(transport, prepared, checked, order, recovery).run(callbacks)


def _advise(n_rows: int, params: Params) -> None:
    """Say it where the guard leaves hardly a split. With epsilon nobody is told the number of rows."""
    least = params.min_group
    if not is_private(params) and least > 1 and n_rows < FEW_GROUPS * least:
        warnings.warn(
            f"{n_rows} rows to train on are few for recipe='joint': no sum is over fewer than {least} rows "
            "(min_group), so hardly any tree can be split. Try recipe='similar'.",
            FewRowsWarning,
            stacklevel=6,
        )


def agree_on_cuts(transport: Transport, prepared: Prepared) -> Prepared:
    """Let the parties agree on cut points, for many trainings."""
    begun = time.perf_counter()
    params = train_params(recipe="joint", masked=prepared.params.masked)
    masked = _exchange_keys(transport, params, len(prepared.parties))
    question = msg.StartTogether(
        params=params, classes=None, parties=[*transport.parties], masked=masked, cuts_only=True
    )
    ask_all(transport, question, msg.Done)
    adding, agreed = Adding(transport), []
    while True:
        reply, kept = adding.add()
        agreed += [kept] if kept else []
        if reply.finished:
            return msgspec.structs.replace(
                prepared, agreed=agreed, seconds=prepared.seconds + time.perf_counter() - begun
            )


def _agreed(prepared: Prepared, params: Params) -> list[msg.Kept]:
    """What was agreed on beforehand, if it is sealed (or not) as in this training."""
    return [*prepared.agreed] if bool(params.masked) == bool(prepared.params.masked) else []


def _exchange_keys(transport: Transport, params: Params, n_parties: int) -> bool:
    """New keys, if vectors are to be masked; whether they are."""
    masked = transport.deployed if params.masked is None else params.masked
    if masked and n_parties == 1:
        exchange_keys(transport)  # nobody to hide among, but the hub sees nothing either
    elif masked:
        agree_on_masks(transport, params, n_parties=n_parties)
    return masked


class _Trainer:
    """One training."""

    def __init__(
        self, transport: Transport, prepared: Prepared, params: Params, order: JointOrder, recovery: JointRecovery
    ) -> None:
        self.transport, self.prepared, self.params, self.order = transport, prepared, params, order
        self.recovery, self.state = recovery, JointState(kept=_agreed(prepared, params))
        for entry in recovery.journal.entries:
            self.state.apply(entry)
        self._since = time.perf_counter(), transport.traffic.total
        self._seen, self._blind = 0, False  # rounds whose metrics came in since the start; whether none ever do

    def run(self, callbacks: Sequence[Callback]) -> GrownTogether:
        """From the first tree (or the first that the journal does not have) to the model."""
        parties, state = self.prepared.parties, self.state
        logger.info("training begins: %d trees, grown together by %d parties", self.params.n_trees, len(parties))
        self._begin()
        for callback in callbacks:
            callback.before_training(parties, self.params)
        sealed = None
        try:
            while sealed is None:
                sealed = self._grow_with_those_present(callbacks)
        finally:
            for callback in callbacks:
                callback.after_training(state.history)
        return GrownTogether(self.prepared, self.params, sealed, state.history, state.missed)

    def _record(self, entry: JointEntry, *, sync: bool = True) -> None:
        self.state.apply(entry)
        self.recovery.journal.append(entry, sync=sync)

    def _begin(self) -> None:
        """The classes of all parties, or those of the journal where not all are present."""
        began, start = self.state.began, self.order.warm_start
        classes: list[ClassLabel] | None
        if is_private(self.params):
            classes = declared_classes(self.params)
            if start is not None:
                raise ParameterError("epsilon begins from nothing: an earlier model may know more of the rows.")
        elif began is not None and set(self.transport.parties) != set(self.prepared.parties):
            classes = began.classes
        else:
            question = msg.DescribeLabels(objective=self.params.objective)
            classes = check_labels(ask_all(self.transport, question, msg.Classes), self.params)
        if start is not None:
            check_warm_start(start, self.prepared, self.params, classes)
            classes = start.classes
        now = BeganTogether(params=self.params, classes=classes, protocol=msg.VERSION)
        if began is None:
            self._record(now)
        elif began != now:
            raise DataError(
                "This training began with other parameters or labels: its journal does not fit any more. Start a new "
                "training, without --resume."
            )

    # --- with those who are present ----------------------------------------------------------------------------------

    def _grow_with_those_present(self, callbacks: Sequence[Callback]) -> bytes | None:
        """Grow until the end, or until a party is lost or comes back. The sealed model, when it is finished."""
        try:
            adding = self._start()
            while True:
                reply, kept = adding.add()
                if kept is not None:
                    self._keep(kept, reply.n_trees)
                self._score(reply.metrics, callbacks)
                if reply.finished or self.state.stopped:
                    return self._fetch_model()
                if kept is not None and welcome_back(self.transport, self.prepared.parties):
                    return None
        except PartyLost as lost:
            if is_private(self.params):  # the noise of all is needed
                raise
            self.recovery.leave_out(lost, self.transport)
            return None

    def _start(self) -> Adding:
        """New keys, and everybody where the journal ends."""
        transport, params, warm = self.transport, self.params, self.order.warm_start
        masked = _exchange_keys(transport, params, len(self.prepared.parties))
        question = msg.StartTogether(
            params=params,
            classes=self.state.began.classes if self.state.began else None,
            parties=[*transport.parties],
            masked=masked,
            kept=[*self.state.kept],
            warm_start=[wire.adopted(tree) for trees in (warm.rounds if warm else []) for tree in trees],
            base_score=warm.base_score.tolist() if warm else [],
        )
        ask_all(transport, question, msg.Done)
        self._seen, self._blind = 0, masked
        return Adding(transport)

    def _keep(self, kept: msg.Kept, n_trees: int) -> None:
        """Write down what those need who come later."""
        now, total = time.perf_counter(), self.transport.traffic.total
        absent = [party for party in self.prepared.parties if party not in self.transport.parties]
        spent, seconds = total - self._since[1], now - self._since[0]
        self._record(Decided(kept=kept, n_trees=n_trees, absent=absent, bytes=spent, seconds=seconds))
        self._since = now, total

    def _score(self, metrics: Sequence[Metrics], callbacks: Sequence[Callback]) -> None:
        """Tell the callbacks of new trees: with their metrics, where the hub may see them."""
        state, first = self.state, self._seen
        self._seen = len(state.rounds) if self._blind else first + len(metrics)
        if self._seen > len(state.rounds):
            fact = f"the metrics of {self._seen} trees, where {len(state.rounds)} are finished"
            raise _invalid(self.transport.parties, fact)
        for number in range(len(state.history), self._seen):
            train, validation = ({}, {}) if self._blind else metrics[number - first]
            facts = state.rounds[number]._asdict()
            record = TreeRecord(round=number, builder=EVERYBODY, train=train, validation=validation, **facts)
            self._record(Scored(record=record), sync=False)
            asked = [callback.after_tree(record) for callback in callbacks]  # every callback is called
            if any(asked) and not state.stopped:
                self._record(Stopped())

    def _fetch_model(self) -> bytes:
        first = self.transport.parties[0]
        question = msg.SendModel(receiver=self.order.receiver)
        return ask_each(self.transport, {first: question}, msg.SealedModel)[first].sealed


# --- one addition after the other ------------------------------------------------------------------------------------


def _invalid(parties: Sequence[str], fact: str) -> ProtocolError:
    """What all of them say alike cannot be."""
    names = f"Part{'y' if len(parties) == 1 else 'ies'} {', '.join(map(repr, parties))}"
    return ProtocolError(
        f"{names} sent an invalid message: {fact}. Install the same version of simfl everywhere; "
        "`simfl train --resume` continues from the last whole batch."
    )


# What an addend says of where its party stands.
SAME = ("step", "exchange", "digest", "name", "n_trees", "keep", "finished", "metrics")


class Adding:
    """Adds what the parties send, step by step, and passes the total on with the next question."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.step = -1
        self.total: msg.Total | None = None  # of the last step

    def add(self) -> tuple[msg.Addend, msg.Kept | None]:
        """One addition: where all parties stand, and what is to be kept of what was passed on before."""
        self.step += 1
        replies = ask_all(self.transport, msg.Add(step=self.step, total=self.total), msg.Addend)
        first = self._same(replies)
        parts = wire.pack_parts(self._add_up(replies))
        self.total = msg.Total(step=first.step, exchange=first.exchange, parts=parts)
        kept = next((reply.kept for reply in replies.values() if reply.kept is not None), None)
        if first.keep and kept is None:
            raise ProtocolError(f"Party {next(iter(replies))!r} did not seal what was decided in step {self.step - 1}.")
        return first, kept if first.keep else None

    def _same(self, replies: Mapping[str, msg.Addend]) -> msg.Addend:
        """Where the parties stand, if it is the same place."""
        name, first = next(iter(replies.items()))
        for party, reply in replies.items():
            for fact in SAME:
                mine, theirs = getattr(reply, fact), getattr(first, fact)
                if mine != theirs or reply.step != self.step:
                    raise ProtocolError(
                        f"Parties {name!r} and {party!r} differ in {fact!r} in step {self.step} ({first.name}): they "
                        "are not in the same state any more. The training ends here; `simfl train --resume` continues "
                        "from the last whole batch."
                    )
        return first

    def _add_up(self, replies: Mapping[str, msg.Addend]) -> Parts:
        vectors: list[Parts] = []
        for party, reply in replies.items():
            with sent_by(party):
                parts = wire.unpack_parts(reply.parts)
                refuse_unless(same_form(parts, vectors[0] if vectors else parts), "numbers of another form than others")
            vectors.append(parts)
        return add(vectors)
