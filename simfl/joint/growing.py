"""Trees grown by all parties at once: the steps, as one party takes them. No keys, no messages.

A batch is a few trees that are grown in lockstep from the same gradients. In its first step the parties agree on a
seed and on the size of their gradients. Then, level by level, they sum up gradients and hessians in the cells that are
asked about. Each party sends what its own rule allows (`simfl/outbox/rule.py`). All parties read the totals, and find
the same splits: all sums are of integers, and every party computes the same bits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from simfl.arrays import AnyArray, Doubles, Floats, Ints, Longs, Table
from simfl.errors import ProtocolError
from simfl.joint import decisions
from simfl.joint.batch import Batch
from simfl.joint.cuts import binned
from simfl.joint.grown import followed
from simfl.joint.level import Followed, Level, Splits
from simfl.joint.parts import Parts, shaped
from simfl.joint.rounding import ALL, take_rows
from simfl.joint.rows import ONE_ROW, Placement, Roots, counted_as
from simfl.joint.setting import Setting
from simfl.joint.shared import Shared
from simfl.joint.weights import FeatureWeights
from simfl.outbox import rule as outbox
from simfl.outbox.rule import Cells, Rule, Scale
from simfl.training.gradients import add_values
from simfl.training.losses import loss_of
from simfl.training.pruning import most_leaves
from simfl.training.schedule import batch_size
from simfl.training.traversal import Walker
from simfl.training.trees import Tree

T = TypeVar("T")
SEED_WORDS = 4
NOTHING = -149  # a power of two: no float32 above zero is smaller
SQUARE_BITS = 31  # of the sum of all g^2 of a party, in units that fit


def counts(y: Floats, weight: Floats | None) -> Doubles:
    """What each row counts towards `min_group`."""
    parts = counted_as(weight)
    return np.ones(len(y)) if parts is None else parts / ONE_ROW


@dataclass
class Following:
    """Rows that follow the model: those that a party trains on, or those that it set aside."""

    walker: Walker
    y: Floats  # classes as numbers
    weight: Floats | None
    margin: Floats

    @property
    def counting(self) -> float:
        """How many rows these are, as `min_group` counts them."""
        return float(counts(self.y, self.weight).sum())

    @property
    def total_weight(self) -> float:
        """Of all rows."""
        return float(len(self.y) if self.weight is None else self.weight.sum(dtype=np.float64))

    def add(self, trees: list[Tree]) -> None:
        """A round of trees, one per output."""
        for output, tree in enumerate(trees):
            add_values(self.margin, output, self.walker.leaf_numbers(tree), tree.value[tree.leaves])


@dataclass(frozen=True)
class Own:
    """What only this party knows."""

    X: Table
    train: Following
    validation: Following | None
    rule: Rule
    threads: int = 1
    shared: Shared | None = None  # with the other parties of this process


class _Now(NamedTuple):
    """The level that this party is in. The batch itself may be shared, and a level ahead."""

    level: Level
    depth: int
    ordered: AnyArray
    has_missing: AnyArray
    n_sent: int


class _Mine(NamedTuple):
    """This party's rows in a level: its cells, and those that they are joined with."""

    cells: Cells
    joined: AnyArray


class Scores(NamedTuple):
    """The metrics after a round, over all parties."""

    train: dict[str, float]
    validation: dict[str, float]


class Growing:
    """One party's part in growing the trees."""

    def __init__(self, setting: Setting, own: Own) -> None:
        self.setting, self.own, self.params = setting, own, setting.params
        self.loss, self.threads = loss_of(setting.params), own.threads
        self.weights = FeatureWeights(len(setting.cuts.points))
        self.rounds: list[list[Tree]] = []
        self.gains: list[Doubles] = []  # per round: what each column has gained
        self.batches: list[bytes] = []  # the last decision of each
        self.scores: list[Scores] = []
        self.best_round: int | None = None  # where early stopping watches
        self.finished = False
        self._metrics: list[float] = []  # this party's sums of the rounds since the last score
        self._own_gradients: tuple[Floats, Floats] | None = None
        self._batch: Batch | None = None
        self._now: _Now | None = None
        self._mine: _Mine | None = None
        self._chain = self._settled = b""  # digests of what was decided in all, and of the batches alone
        self._rows = binned(own.X, setting.cuts)
        self._counts_as = counted_as(own.train.weight)
        self._placement = self._new_placement(setting.n_outputs)

    # --- the steps ---------------------------------------------------------------------------------------------------

    @property
    def step(self) -> str:
        """Name of the current step, for logs."""
        return f"batch {len(self.batches)}, " + (f"level {self._now.depth}" if self._now else "start")

    def contribution(self) -> Parts:
        """What this party adds."""
        return self._start_parts() if self._now is None else self._sum_parts(self._now)

    def read(self, total: Parts) -> bytes:
        """A total as bytes, if it has the form of what was added."""
        if self._now is None:
            words, floats = shaped(total, [(np.uint64, SEED_WORDS), (np.float64, self._n_sums)])
            return words.astype("<u8").tobytes() + floats.astype("<f8").tobytes()
        parts = shaped(total, [(np.uint32, self._now.n_sent)] * 2)
        return b"".join(part.astype("<u4").tobytes() for part in parts)

    def apply(self, total: bytes) -> None:
        """Take on what follows from a total, and move to the next step."""
        self._placement.threads = self.threads
        if self._batch is None or self._now is None:
            self._begin(total)
        else:
            self._split(self._batch, self._now, total)

    def _new_batch(self, work: Callable[[], Batch]) -> Batch:
        """In one process all parties have the same one. One that was given up with trees half grown is not used."""
        shared = self.own.shared
        if shared is None:
            return work()
        return shared.once((repr(self.setting.params), self._chain), work, lambda batch: batch.is_new)

    def _once(self, what: str, work: Callable[[], T]) -> T:
        """Memoise a result that every party would compute identically (in-process runs)."""
        shared = self.own.shared
        return shared.once((self._batch, self._chain, what), work) if shared and self._batch else work()

    def replay(self, finished: bytes) -> None:
        """Adopt a finished batch of a training that is under way."""
        found = decisions.decode(finished, self.setting.cuts.levels)
        if len(found) != self._n_rounds * self.setting.n_outputs or not found:
            raise ProtocolError(f"{len(found)} trees were finished before, where {self._n_rounds} rounds belong.")
        if max(tree.n_leaves for tree, _ in found) > most_leaves(self.params):
            raise ProtocolError("A tree was finished before with more leaves than the study allows.")
        self._adopt(found, finished)

    # --- the start of a batch ----------------------------------------------------------------------------------------

    def _key(self, *purpose: object) -> int:
        """A secret number of this party for one step: the same if the same parties do it again after the same steps."""
        return self.own.rule.key(*purpose, len(self.batches), self._settled)

    def _start_parts(self) -> Parts:
        words = np.random.default_rng(self._key("seed")).integers(0, 2**64, SEED_WORDS, np.uint64, endpoint=False)
        g, h = self._gradients()
        sizes = np.concatenate([np.abs(g).sum(axis=0, dtype=np.float64), h.sum(axis=0, dtype=np.float64)])
        metrics = np.array(self._metrics).reshape(-1, 2, len(self.loss.sums))
        weights, rule = np.zeros(2), self.own.rule
        for k, rows in enumerate((self.own.train, self.own.validation)):
            if rows is not None:
                n = rows.counting
                (weights[k],) = rule.of_all(np.array([rows.total_weight]), n, "weight", k)
                for round_ in metrics:
                    round_[k] = rule.of_all(round_[k], n, "metrics", k)
        sizes = rule.of_all(sizes, self.own.train.counting, "sizes")
        return [words, np.concatenate([sizes, weights, metrics.ravel()])]

    @property
    def _n_sums(self) -> int:
        return 2 * self.setting.n_outputs + 2 + 2 * len(self.loss.sums) * (len(self.rounds) - len(self.scores))

    def _begin(self, decision: bytes) -> None:
        n, outputs = 8 * SEED_WORDS, self.setting.n_outputs
        floats = decisions.numbers(decision[n:], np.float64, self._n_sums)
        sizes, weights, metrics = np.split(floats, [2 * outputs, 2 * outputs + 2])
        if not (np.isfinite([*sizes, *weights]).all() and min(*sizes, *weights) >= 0):
            raise ProtocolError(
                "The gradients of all parties are not finite: the training diverges. Lower learning_rate."
            )
        self._score(metrics, weights)
        self.finished = self.finished or len(self.rounds) >= self.params.n_trees
        if self.finished:
            return
        # Without the metrics: who resumes a training sends those of all rounds again.
        self._chain = _chained(self._chain, decision[: n + sizes.nbytes])
        seed = int.from_bytes(hashlib.blake2b(decision[:n], digest_size=8).digest(), "little")
        output = np.tile(np.arange(outputs), self._n_rounds)
        exponents = self._resolution(sizes)[:, output]
        sizes = sizes.reshape(2, -1)[:, output]
        batch = self._new_batch(lambda: Batch(self.setting, seed, sizes, exponents, self.weights.matrix))
        self._batch, self._now = batch, _now(batch)
        self._place(batch, self._now, output)

    @property
    def _n_rounds(self) -> int:
        """Of the next batch."""
        n = len(self.rounds)
        return min(batch_size(n, self.setting.lockstep), self.params.n_trees - n)

    def _resolution(self, sizes: Doubles) -> AnyArray:
        """As powers of two: the mean row has about as many bits as it should.

        Where all gradients are zero their unit is next to nothing, and so is the noise: it is counted in units.
        """
        n, bits = max(self.setting.n_rows, 1), self.setting.bits
        exponents = [math.frexp(size / n)[1] - bits if size > 0 else NOTHING for size in sizes]
        return np.array(exponents).reshape(2, -1)

    def _place(self, batch: Batch, now: _Now, output: AnyArray) -> None:
        """All rows into the roots, with rounded gradients."""
        g, h = self._gradients()
        units, share = np.ldexp(1.0, batch.exponents), int(self.setting.share * ALL)
        if self.own.train.counting < self.own.rule.least:
            share = 0

        def take(t: int, rows: Ints, packed: Longs) -> int:
            keys = np.array([self._key("rounding", int(output[t])), self._key("rows", t)], np.uint64)
            return int(take_rows(g, h, output[t], units[:, t].copy(), keys, share, rows, packed))

        if self._placement.n_trees != batch.n_trees:
            self._placement = self._new_placement(batch.n_trees)
        self._roots = self._placement.begin(take)
        self._scale, self._shift = self._scale_of(self._roots, output)
        self._own_gradients = None
        self._look(now)

    def _scale_of(self, roots: Roots, output: AnyArray) -> tuple[Scale, int]:
        """How large this party's noise is in this batch, and the unit of squares."""
        n, most = np.maximum(roots.rows, 1), np.array([size.max(initial=0.0) for size in roots.sizes])
        squares = max(float((size * size).sum()) for size in roots.sizes)
        shift = max(math.frexp(squares + n.max())[1] - SQUARE_BITS, 0)
        mean = np.array([size.sum() for size in roots.sizes]) / n
        key = np.array([self._key("noise", int(k)) for k in output], np.uint64)
        unit, on = np.full(len(n), 2.0**shift), float(self.own.rule.is_on)
        return Scale(key, on * outbox.NOISE * mean, on * most, unit, on * outbox.NOISE * roots.H / n), shift

    def _all_rows(self, roots: Roots) -> Cells:
        """What there is of this party's rows in each tree."""
        share = self.own.train.counting / max(len(self.own.train.y), 1)
        sizes = np.array([size.sum() for size in roots.sizes]).astype(np.int64)
        squares = np.ceil([float((size * size).sum()) for size in roots.sizes] / self._scale.square).astype(np.int64)
        return Cells(np.floor(roots.rows * share).astype(np.int64), roots.G, roots.H, sizes, squares)

    def _look(self, now: _Now) -> None:
        """Sum up this party's rows in the cells of a level, and join those that are too small."""
        cells = self._placement.sums(now.level, self._shift)
        joined = self.own.rule.join(now.level, cells, now.ordered, now.has_missing)
        self._mine = _Mine(cells, joined)

    def _new_placement(self, n_trees: int) -> Placement:
        return Placement(self._rows, n_trees, self.threads, self._counts_as)

    def _gradients(self) -> tuple[Floats, Floats]:
        """Of this party's rows. In a batch they are asked for twice."""
        if self._own_gradients is None:
            train = self.own.train
            self._own_gradients = self.loss.gradients(train.margin, train.y, train.weight)
        return self._own_gradients

    # --- a level -----------------------------------------------------------------------------------------------------

    def _sum_parts(self, now: _Now) -> Parts:
        if self._mine is None:
            raise ProtocolError("No sums were asked for yet.")
        parts = outbox.sums(self._mine.cells, self._mine.joined, now.level, now.ordered, self._scale)
        if now.depth:
            return [*parts]
        of_roots = outbox.totals(self._all_rows(self._roots), self.own.rule.least, self._scale)
        return [np.concatenate(pair) for pair in zip(parts, of_roots, strict=True)]

    def _split(self, batch: Batch, now: _Now, total: bytes) -> None:
        def work() -> tuple[Splits, _Now | None]:
            words = np.frombuffer(total, "<u4").view("<i4").astype(np.int64).reshape(2, -1)
            splits = batch.advance(*words)
            return splits, None if batch.finished else _now(batch)

        splits, then = self._once(f"split {_short(total)}", work)
        if self._mine is not None and then is not None:
            self._placement.split(now.level, splits, self._mine.joined)
        self._mine, self._now = None, then
        self._chain = _chained(self._chain, total)
        if then is None:
            self._adopt(batch.finished, decisions.encode(batch.finished), batch)
        else:
            self._look(then)

    # --- the end of a batch ------------------------------------------------------------------------------------------

    def _adopt(self, found: list[tuple[Tree, Floats]], finished: bytes, batch: Batch | None = None) -> None:
        """The finished trees become part of the model."""
        outputs, d = self.setting.n_outputs, len(self.setting.cuts.points)
        trees = [tree for tree, _ in found]
        ways = self._once("ways", lambda: self._followed(batch, trees)) if batch else None
        for tree, gain in found:
            self.weights.add(tree, gain)
        for first in range(0, len(trees), outputs):
            self._follow(trees[first : first + outputs], ways and ways[first : first + outputs])
            total = np.zeros(d)
            for tree, gain in found[first : first + outputs]:
                np.add.at(total, tree.feature[tree.feature >= 0], gain[tree.feature >= 0])
            self.gains.append(total)
        self.batches.append(finished)
        self._settled = self._chain = _chained(self._settled, finished)
        self._batch = self._now = self._mine = None

    def _followed(self, batch: Batch, trees: list[Tree]) -> list[Followed]:
        """The finished trees as rows follow them."""
        return [followed(batch.nodes, t, tree, self.setting.cuts) for t, tree in enumerate(trees)]

    def _follow(self, trees: list[Tree], ways: list[Followed] | None) -> None:
        """One round: the margins of this party's rows, and its metrics."""
        self.rounds.append(trees)
        own, self._own_gradients = self.own, None
        if not ways or not all(self._placement.add_values(way, own.train.margin, k) for k, way in enumerate(ways)):
            own.train.add(trees)
        if own.validation:
            own.validation.add(trees)
        for rows in (own.train, own.validation):
            sums = self.loss.all_sums(rows.margin, rows.y, rows.weight) if rows else {}
            self._metrics += [sums.get(name, 0.0) for name in self.loss.sums]

    def _score(self, metrics: Doubles, weights: Doubles) -> None:
        """The metrics of the last batch over all parties. Early stopping watches those of rows set aside."""
        names = self.loss.sums
        for sums in metrics.reshape(-1, 2, len(names)):
            done = [
                self._finish(dict(zip(names, own.tolist(), strict=True)), w)
                for own, w in zip(sums, weights, strict=True)
            ]
            self.scores.append(Scores(*done))
            self._stop_early(len(self.scores) - 1)
        self._metrics = []

    def _finish(self, sums: dict[str, float], weight: float) -> dict[str, float]:
        """The metrics of all that were sent."""
        return self.loss.finish(sums, float(weight)) if weight > 0 else {}

    def _stop_early(self, number: int) -> None:
        patience = self.params.early_stopping_rounds
        if not patience or self.finished:
            return
        value, best = self._watched(number), self.best_round
        if best is None or value < self._watched(best):
            self.best_round = number
        self.finished = number - (self.best_round or 0) >= patience

    def _watched(self, number: int) -> float:
        return self.loss.cost(self.scores[number].validation)


def _now(batch: Batch) -> _Now:
    return _Now(batch.level, batch.depth, batch.ordered, batch.has_missing, batch.n_sent)


def _chained(before: bytes, decision: bytes) -> bytes:
    """A digest of everything up to a decision."""
    return hashlib.blake2b(before + decision, digest_size=16).digest()


def _short(decision: bytes) -> str:
    """Two decisions are the same if their digests are."""
    return hashlib.blake2b(decision, digest_size=16).hexdigest()
