"""Where a training stands. Its journal's entries are the only thing that changes it, live and replayed alike."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from simfl import wire
from simfl.arrays import Doubles
from simfl.callbacks import Callback, TreeRecord
from simfl.errors import FileError
from simfl.hub.journal import Began, Entry, Grew, Passed, Rematched, Scored, Stopped
from simfl.storage import Journal
from simfl.training.losses import loss_of
from simfl.training.trees import Tree
from simfl.transport.base import Traffic


@dataclass
class State:
    """The trees so far and how they came about."""

    n_features: int
    began: Began | None = None
    rounds: list[list[Tree]] = field(default_factory=list)
    gains: list[Doubles] = field(default_factory=list)  # per round and feature: what its splits gained for all parties
    history: list[TreeRecord] = field(default_factory=list)
    moved: float = 0.0  # how far the trees can have moved a margin
    last: Grew | None = None  # the last round
    next_turn: int = 0  # the first that nobody has taken or lost
    has_passed: bool = False  # whether a party was lost in the last turn
    matched: Rematched | None = None  # the last rematch
    best_round: int | None = None  # where early stopping watches
    stopped: bool = False
    missed: dict[str, list[int]] = field(default_factory=dict)  # per party: the rounds that it had no part in

    def apply(self, entry: Entry) -> None:
        """Let an event happen."""
        match entry:
            case Began():
                self._expect(self.began is None, "a second beginning")
                self.began = entry
            case Grew():
                self._expect(entry.round == len(self.rounds), f"round {entry.round} after {len(self.rounds)} rounds")
                self._grow(entry)
            case Scored():
                self._expect(
                    entry.record.round == len(self.history),
                    f"a score of round {entry.record.round}",
                )
                self.history.append(entry.record)
                self._stop_early(entry.record)
            case Stopped():
                self.stopped = True
            case Passed():
                self.next_turn, self.has_passed = entry.turn + 1, True
            case Rematched():
                self.matched = entry

    def _expect(self, sound: bool, fact: str) -> None:
        if not sound:
            raise FileError(f"The journal of this training is not in order: {fact}. Start a new training.")

    def _grow(self, entry: Grew) -> None:
        self.last, self.next_turn, self.has_passed = entry, entry.turn + 1, False
        self.rounds.append([wire.tree_of(tree, self.n_features) for tree in entry.trees])
        self.moved += sum(float(np.abs(tree.value).max()) for tree in self.rounds[-1])
        if entry.gains is not None:
            self.gains.append(np.array(entry.gains))
        for party in entry.absent:
            self.missed.setdefault(party, []).append(entry.round)

    def _stop_early(self, record: TreeRecord) -> None:
        if self.began is None or not self.began.params.early_stopping_rounds:
            return
        loss, best = loss_of(self.began.params), self.best_round
        value = loss.cost(record.validation)
        # Without a lost party a loss is over other rows: it is not compared, and counting starts again.
        before = None if best is None else self.history[best]
        alike = before is not None and before.absent == record.absent
        if before is None or not alike or value < loss.cost(before.validation):
            self.best_round = record.round
        self.stopped |= record.round - (self.best_round or 0) >= self.began.params.early_stopping_rounds


class Events:
    """Writes down what happens, applies it to the state, and calls the callbacks."""

    def __init__(self, journal: Journal[Entry], state: State, callbacks: Sequence[Callback], traffic: Traffic) -> None:
        self.journal, self.state, self.callbacks, self.traffic = journal, state, callbacks, traffic
        self._clock, self._bytes = time.perf_counter(), traffic.total
        for entry in journal.entries:
            state.apply(entry)

    def record(self, entry: Entry, *, sync: bool = True) -> None:
        """Something happened."""
        self.state.apply(entry)
        self.journal.append(entry, sync=sync)

    def score(self, train: dict[str, float], validation: dict[str, float]) -> None:
        """The metrics of the last round came in. Every callback gets them and can stop the training."""
        now, n_bytes = time.perf_counter(), self.traffic.total
        record = TreeRecord(
            round=len(self.state.history),
            builder=self.state.last.builder if self.state.last else "",
            train=train,
            validation=validation,
            bytes=n_bytes - self._bytes,
            seconds=now - self._clock,
            absent=self.state.last.absent if self.state.last else [],
        )
        self._clock, self._bytes = now, n_bytes
        self.record(Scored(record=record), sync=False)  # the next tree's entry brings it to the disk
        asked = [callback.after_tree(record) for callback in self.callbacks]  # every callback is called
        if any(asked):
            self.record(Stopped())
