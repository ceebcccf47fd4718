"""Trees grown by all parties at once: the steps, as one party takes them. No keys, no messages.

A batch is a few trees that are grown in lockstep from the same gradients. In its first step the parties agree on a
seed and on the size of their gradients; everybody reads that total. Then, level by level, they count their rows in the
cells that are asked about (everybody reads), and sum up gradients and hessians in those cells that have enough rows.
One party, the reader of the batch, learns these totals, finds the best splits and announces them. Everybody else checks
that they are among those that were asked about. All sums are of integers: every party computes the same bits.
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
from simfl.joint import coarse, decisions, guard, sending
from simfl.joint.batch import Batch
from simfl.joint.cuts import binned
from simfl.joint.grown import followed
from simfl.joint.level import EMPTY, Followed, Level
from simfl.joint.parts import Parts, shaped
from simfl.joint.rounding import ALL, take_rows
from simfl.joint.rows import Placement, counted_as
from simfl.joint.sending import Sent
from simfl.joint.setting import Setting
from simfl.joint.shared import Shared
from simfl.joint.weights import FeatureWeights
from simfl.training.gradients import add_values
from simfl.training.losses import loss_of
from simfl.training.pruning import most_leaves
from simfl.training.schedule import batch_size
from simfl.training.traversal import Walker
from simfl.training.trees import Tree

T = TypeVar("T")
SEED_WORDS = 4
NOTHING = -149  # a power of two: no float32 above zero is smaller
_NO_TOTALS: Longs = np.zeros(0, np.int64)
_NO_SUMS = _NO_TOTALS, _NO_TOTALS, _NO_TOTALS


@dataclass
class Following:
    """Rows that follow the model: those that a party trains on, or those that it set aside."""

    walker: Walker
    y: Floats  # classes as numbers
    weight: Floats | None
    margin: Floats

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
    """What only this party knows. `secret` is behind its noise, its rounding and its part of the seed."""

    X: Table
    train: Following
    validation: Following | None
    secret: bytes
    threads: int = 1
    shared: Shared | None = None  # with the other parties of this process


class _Now(NamedTuple):
    """Where a batch stands for this party. The batch itself may be shared, and a step ahead."""

    level: Level
    depth: int
    counted: bool
    sent: Sent | None = None


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
        self._own_sizes: Doubles = np.zeros(2 * setting.n_outputs)  # sums of |g| and of h in the batch
        self._batch: Batch | None = None
        self._now = _Now(EMPTY, 0, False)
        self._settled = self._chain = _chained(
            repr(setting.parties).encode(), b""
        )  # up to the last batch; up to this step
        self._rows = binned(own.X, setting.cuts)
        self._placement = self._new_placement(setting.n_outputs)
        self._sums = _NO_SUMS  # this party's counts, G and H of the level

    # --- the steps ---------------------------------------------------------------------------------------------------

    @property
    def step(self) -> str:
        """In words."""
        if self._batch is None:
            return f"batch {len(self.batches)}, start"
        what = "sums" if self._now.counted else "counts"
        return f"batch {len(self.batches)}, level {self._now.depth}, {what}"

    @property
    def reader(self) -> int | None:
        """The number of the party that learns the total of this step; None: everybody does."""
        return self._readers_turn if self._batch is not None and self._now.counted else None

    @property
    def next_reader(self) -> int | None:
        """The same of the next step, where it is certain what comes: sums after counts."""
        return self._readers_turn if self._batch is not None and not self._now.counted else None

    @property
    def _readers_turn(self) -> int | None:
        n = len(self.setting.parties)
        return len(self.batches) % n if n > 1 else None

    def contribution(self) -> Parts:
        """What this party adds."""
        if self._batch is None:
            return self._start_parts()
        return self._sum_parts() if self._now.counted else self._count_parts()

    def read(self, total: Parts) -> bytes:
        """What follows from a total."""
        batch = self._batch
        if batch is None:
            words, floats = shaped(total, [(np.uint64, SEED_WORDS), (np.float64, self._n_sums)])
            return words.astype("<u8").tobytes() + floats.astype("<f8").tobytes()
        if not self._now.counted:
            (words,) = shaped(total, [(self.setting.counting.word, self._now.level.n_cells)])
            return words.tobytes()
        return self._once("read", lambda: self._decide(batch, total))

    def _decide(self, batch: Batch, total: Parts) -> bytes:
        G, H = shaped(total, [(np.uint32, batch.n_sent)] * 2)
        return decisions.encode(batch.decide(*(part.view(np.int32).astype(np.int64) for part in (G, H))))

    def apply(self, decision: bytes) -> None:
        """Check what was decided, and move to the next step."""
        self._placement.threads = self.threads
        if self._batch is None:
            self._begin(decision)
        elif not self._now.counted:
            self._take_counts(self._batch, decision)
        else:
            self._split(self._batch, decision)

    def _new_batch(self, work: Callable[[], Batch]) -> Batch:
        """In one process all parties have the same one. One that was given up with trees half grown is not used."""
        shared = self.own.shared
        if shared is None:
            return work()
        return shared.once((repr(self.setting.params), self._chain), work, lambda batch: batch.is_new)

    def _once(self, what: str, work: Callable[[], T]) -> T:
        """What follows for every party alike. In one process the first one works it out."""
        shared = self.own.shared
        return shared.once((self._batch, self._chain, what), work) if shared and self._batch else work()

    def replay(self, decision: bytes) -> None:
        """Adopt a finished batch of a training that is under way."""
        self._adopt(decisions.decode(decision), decision)

    # --- the start of a batch ----------------------------------------------------------------------------------------

    def _key(self, purpose: str) -> int:
        """A secret number of this party for one step: the same if the same parties do it again after the same steps.

        After others it is not: equal noise on two questions would show the difference of their answers.
        """
        text = repr((purpose, len(self.batches), self._chain)).encode()
        return int.from_bytes(hashlib.blake2b(text, key=self.own.secret[:64], digest_size=8).digest(), "little")

    def _start_parts(self) -> Parts:
        words = np.random.default_rng(self._key("seed")).integers(0, 2**64, SEED_WORDS, np.uint64, endpoint=False)
        g, h = self._gradients()
        sizes = np.concatenate([np.abs(g).sum(axis=0, dtype=np.float64), h.sum(axis=0, dtype=np.float64)])
        aside, metrics = self.own.validation, np.array(self._metrics)
        weights = np.array([self.own.train.total_weight, aside.total_weight if aside else 0.0])
        if not self.setting.whole:
            sizes = coarse.rounded_up(sizes, sizes / max(len(g), 1))
            weights, metrics = self._coarse_metrics(weights, metrics)
        self._own_sizes = sizes
        return [words, np.concatenate([sizes, weights, metrics])]

    def _coarse_metrics(self, weights: Doubles, metrics: Doubles) -> tuple[Doubles, Doubles]:
        """Of rows that were set aside: their weight, and the metric that early stopping watches, with noise."""
        names, aside, total = self.loss.sums, self.own.validation, weights[1]
        found = metrics.reshape(-1, 2, len(names))
        sent, weight = np.zeros_like(found), 0.0
        if aside is not None and total > 0:
            weight, n_rows = float(coarse.rounded_up(total, total / len(aside.y))), len(aside.y)
            watched = np.s_[:, 1, names.index(self.loss.metric)]
            sent[watched] = coarse.metric(found[watched], n_rows, self.own.secret) * weight / total
        return np.array([0.0, weight]), sent.ravel()

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
        if (sizes < self._own_sizes).any():  # finer steps and less noise than this party's rows need
            raise ProtocolError(
                "The gradients of all parties together are smaller than this party's. Somebody sends false sums, and "
                "masks hide who. Have every party check its labels and weights."
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
        self._place(batch, output)

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

    def _place(self, batch: Batch, output: AnyArray) -> None:
        """All rows into the roots, with rounded gradients."""
        g, h = self._gradients()
        units, share = np.ldexp(1.0, batch.exponents), int(self.setting.share * ALL)

        def take(t: int, rows: Ints, packed: Longs) -> int:
            keys = np.array([self._key(f"rounding {t}"), self._key(f"rows {t}")], np.uint64)
            return int(take_rows(g, h, output[t], units[:, t].copy(), keys, share, rows, packed))

        if self._placement.n_trees != batch.n_trees:
            self._placement = self._new_placement(batch.n_trees)
        self._totals = self._placement.begin(take)
        self._own_gradients = None
        self._sums = self._placement.sums(self._now.level)

    def _new_placement(self, n_trees: int) -> Placement:
        counts_as = counted_as(self.own.train.weight) if self.setting.guarded else None
        return Placement(self._rows, n_trees, self.threads, counts_as)

    def _gradients(self) -> tuple[Floats, Floats]:
        """Of this party's rows. In a batch they are asked for twice."""
        if self._own_gradients is None:
            train = self.own.train
            self._own_gradients = self.loss.gradients(train.margin, train.y, train.weight)
        return self._own_gradients

    # --- a level -----------------------------------------------------------------------------------------------------

    def _count_parts(self) -> Parts:
        return [self.setting.counting.sent(self._sums[0], self._key(self.step))]  # noise of its own in every step

    def _take_counts(self, batch: Batch, decision: bytes) -> None:
        counting = self.setting.counting
        words = decisions.numbers(decision, counting.word, self._now.level.n_cells)

        def work() -> _Now:
            batch.take_counts(counting.total(words))
            return _now(batch)

        self._now = self._once(f"counts {_short(decision)}", work)
        self._chain = _chained(self._chain, decision)

    def _sum_parts(self) -> Parts:
        sent, root = self._now.sent, self._now.depth == 0
        if sent is None:
            raise ProtocolError("No sums were asked for yet.")
        law = guard.sum_noise(len(self.setting.parties), self.setting.bits) if self.setting.guarded else None
        return [
            sending.sums(cells, total if root else _NO_TOTALS, sent, law, self._key(f"{self.step} {i}"))
            for i, (cells, total) in enumerate(zip(self._sums[1:], self._totals, strict=True))
        ]

    def _split(self, batch: Batch, raw: bytes) -> None:
        decision = decisions.decode(raw)
        before = self._now
        splits, self._now = self._once(f"split {_short(raw)}", lambda: (batch.split(decision), _now(batch)))
        last = self._now.depth == before.depth
        self._placement.split(before.level, splits, last=last)
        if last:
            self._adopt(decision, raw, batch)
            return
        if decision.trees:
            raise ProtocolError("The reader announced finished trees in a level that is not the last one.")
        self._chain = _chained(self._chain, raw)
        self._sums = self._placement.sums(self._now.level)

    # --- the end of a batch ------------------------------------------------------------------------------------------

    def _adopt(self, decision: decisions.LevelDecision, raw: bytes, batch: Batch | None = None) -> None:
        """The finished trees become part of the model."""
        outputs, d = self.setting.n_outputs, len(self.setting.cuts.points)
        found = self._once(f"trees {_short(raw)}", lambda: self._finished_trees(decision))
        trees = [tree for tree, _ in found]
        ways = self._once(f"ways {_short(raw)}", lambda: self._followed(batch, trees)) if batch else None
        for tree, gain in found:
            self.weights.add(tree, gain)
        for first in range(0, len(trees), outputs):
            self._follow(trees[first : first + outputs], first, ways)
            total = np.zeros(d)
            for tree, gain in found[first : first + outputs]:
                np.add.at(total, tree.feature[tree.feature >= 0], gain[tree.feature >= 0])
            self.gains.append(total)
        self.batches.append(raw)
        self._settled = self._chain = _chained(self._settled, raw)
        self._batch, self._sums = None, _NO_SUMS

    def _finished_trees(self, decision: decisions.LevelDecision) -> list[tuple[Tree, Floats]]:
        """The trees of a batch and what their splits have gained: as many as belong to it, none too large."""
        wanted = self._n_rounds * self.setting.n_outputs
        if wanted <= 0 or len(decision.trees) != wanted:
            raise ProtocolError(f"The reader announced {len(decision.trees)} finished trees where {wanted} belong.")
        found = [decisions.unpack_tree(tree, self.setting.cuts.levels) for tree in decision.trees]
        if max(tree.n_leaves for tree, _ in found) > most_leaves(self.params):
            raise ProtocolError("The reader announced a tree with more leaves than the study allows.")
        return found

    def _followed(self, batch: Batch, trees: list[Tree]) -> list[Followed]:
        """The finished trees as rows follow them, if they follow from those that were grown."""
        if any(np.abs(tree.value).max() > batch.most_value(t, tree.n_leaves) for t, tree in enumerate(trees)):
            raise ProtocolError("The reader announced a leaf value that no sums of these gradients give.")
        return [followed(batch.nodes, t, tree, self.setting.cuts) for t, tree in enumerate(trees)]

    def _follow(self, trees: list[Tree], first: int, ways: list[Followed] | None) -> None:
        """One round: the margins of this party's rows, and its metrics."""
        self.rounds.append(trees)
        own, self._own_gradients = self.own, None
        if ways is None:
            own.train.add(trees)
        else:
            for output in range(len(trees)):
                self._placement.add_values(first + output, ways[first + output], own.train.margin, output)
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
        found = self.loss.finish(sums, float(weight)) if weight > 0 else {}
        return {name: value for name, value in found.items() if self.setting.whole or name == self.loss.metric}

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
    return _Now(batch.level, batch.depth, batch.counted, batch.sent)


def _chained(before: bytes, decision: bytes) -> bytes:
    """A digest of everything up to a decision."""
    return hashlib.blake2b(before + decision, digest_size=16).digest()


def _short(decision: bytes) -> str:
    """Two decisions are the same if their digests are."""
    return hashlib.blake2b(decision, digest_size=16).hexdigest()
