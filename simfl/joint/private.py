"""Trees grown together under differential privacy: drawn at random, with noisy sums in their leaves. Nothing else.

A batch is one step: every party sums up the gradients and hessians of its rows in the leaves of trees that all parties
draw alike (`drawn.py`), noise is added at its exit (`party/sealing.py`), and everybody reads the total and works out
the leaf values. No moments, exact counts, labels or metrics are added up: what the trees need is declared in the study.

Two steps come before, of the same kind and under the same bound. Rows are counted in the cells of every column, with
noise: so cut points are where the rows are. Then each column has a small tree of its own, which does not stay: its
noisy sums say which columns are drawn more often, and where the model starts if the study does not declare it.

A row is one vector per tree: its gradients and, times a constant, its hessians, over all outputs, in whole units. Its
vectors of all trees together have a length that the noise was made for (`Budget.longest`). Every party keeps a filter:
what is left of that length for each of its rows. A row that has used it up is left out from then on. What a row uses
depends on nothing but itself and on totals that were read before, so adding or removing it changes all totals together
by no more than that length, whatever the other rows are (individual accounting: Feldman and Zrnic 2021; for Gaussian
noise: Smith and Thakurta 2022, Koskela et al. 2022). Nobody but the party knows what is left.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import sparse

from simfl.arrays import Doubles, Floats, Ints, Longs, Table
from simfl.errors import ParameterError
from simfl.joint.column_weights import column_weights
from simfl.joint.decisions import numbers
from simfl.joint.drawn import Columns, draw, draw_alone
from simfl.joint.growing import Following
from simfl.joint.machine import Labelled, Metrics, Mine, Plan
from simfl.joint.parts import Parts, shaped
from simfl.joint.private_rule import PrivateSettings
from simfl.joint.refined_cuts import refined_cuts
from simfl.training.gradients import add_values
from simfl.training.losses import Loss, loss_of
from simfl.training.traversal import walker
from simfl.training.trees import Tree

Sums = tuple[Doubles, Doubles]  # gradients and hessians of the leaves of a tree, with noise
Stage = Literal["counts", "columns", "trees"]
RAREST = 1e-3  # class: noise may say that there is none
LEAST_UNITS = 64  # of a gradient of one: fewer would be coarse


@dataclass(frozen=True)
class Budget:
    """How long the vectors of a row may be over all trees together, and the deviation of the noise in a total."""

    longest: float  # in units: sums are whole numbers of them
    noise: float

    def units(self, settings: PrivateSettings) -> float:
        """How many units a gradient of one has."""
        found = self.longest / math.sqrt(settings.row_budget * settings.n_trees)
        if found < LEAST_UNITS:
            raise ParameterError(
                f"epsilon leaves too little for {settings.n_trees} trees. Raise epsilon, or lower n_trees."
            )
        return found


class Filter:
    """What is left of each row: whole numbers, so that the bound is exact."""

    def __init__(self, n_rows: int, longest: float) -> None:
        self.left = np.full(n_rows, math.floor(longest**2), dtype=np.int64)

    def take(self, vectors: Doubles, n_times: int) -> Longs:
        """These vectors in whole units, each shortened so that `n_times` of it are no more than what is left.

        A vector that is no number has no length that could be bounded: it becomes zero.
        """
        vectors = np.where(np.isfinite(vectors).all(axis=1, keepdims=True), vectors, 0.0)
        squared = n_times * (vectors * vectors).sum(axis=1)
        shorter = np.sqrt(self.left / np.maximum(squared, np.maximum(self.left, 1)))  # at most one
        whole: Longs = np.trunc(vectors * shorter[:, None]).astype(np.int64)
        used = n_times * (whole * whole).sum(axis=1)
        whole[used > self.left] = 0  # where the arithmetic of doubles went a hair too far
        self.left -= np.where(used > self.left, 0, used)
        return whole


class PrivateMachine:
    """One party's part in a private training."""

    best_round: None = None

    def __init__(self, plan: Plan, mine: Mine, settings: PrivateSettings, budget: Budget) -> None:
        self.plan, self.mine, self.settings, self.budget = plan, mine, settings, budget
        self.loss, self.units = loss_of(plan.params), budget.units(settings)
        points = [np.empty(0, np.float32) if own is None else own for own in plan.declared or ()]
        self.columns = Columns(points, plan.n_levels)
        self.base_score = _start_value(plan) if plan.base_score is None else plan.base_score
        self.keeps = False
        self.kept: list[bytes] = []
        self.rounds: list[list[Tree]] = []
        self.gains: list[Doubles] = []
        self._counted = [j for j, own in enumerate(points) if len(own) > settings.n_cuts]  # columns
        self._stage: Stage = "counts" if self._counted else "columns"
        self._rows = self._following(mine.rows)
        self._filter = Filter(len(mine.rows.y), budget.longest)
        self._batch: list[Tree] = []
        self._leaves: list[Ints] = []  # of this party's rows, per tree of the batch (or column that is counted)
        self._vectors: Longs = np.empty((0, 1), np.int64)  # of its rows: gradients and hessians (or one number)
        self._digest = hashlib.blake2b(repr((plan.params, plan.parties)).encode(), digest_size=16)
        self._begin()

    def _begin(self) -> None:
        """Draw the trees of the next step, and take what this party's rows have left for it."""
        if self._stage == "counts":
            self._leaves = [_cells(self.mine.rows.X, j, self.columns.points[j]) for j in self._counted]
            ones = np.ones((len(self._rows.y), 1))
            self._vectors = self._filter.take(self._scale * ones, len(self._counted))
            return
        shared = self.mine.shared
        self._batch = shared.once((self.digest(), "trees"), self._draw) if shared else self._draw()
        if self._batch:
            own = self._rows
            self._leaves = [own.walker.leaf_numbers(tree) for tree in self._batch]
            g, h = (part.astype(np.float64) for part in self.loss.gradients(own.margin, own.y, own.weight))
            both = np.concatenate([g, self.settings.hessian_weight * h], axis=1)
            if self._stage == "trees":
                both = _shortened(
                    both, self.settings.longest * (1.0 if own.weight is None else own.weight.astype(np.float64))
                )
            self._vectors = self._filter.take(self._scale * both, len(self._batch) // self.plan.n_outputs)

    @property
    def _scale(self) -> float:
        """How many units a gradient of one (or a row that is counted) has in this step."""
        rule = self.settings
        return self.units * {"counts": rule.count_scale, "columns": rule.first_scale, "trees": 1.0}[self._stage]

    def _draw(self) -> list[Tree]:
        """At first one tree per column and output; then as many as are grown in lockstep."""
        seed, outputs, rule = self.plan.params.random_state, self.plan.n_outputs, self.settings
        if self._stage == "columns":
            all_columns = range(len(self.columns.points))
            each = [draw_alone(self.columns, j, (seed, "column", j)) for j in all_columns]
            return [tree for tree in each for _ in range(outputs)]
        done = len(self.rounds)
        numbers = range(done * outputs, min(done + rule.lockstep, rule.n_trees) * outputs)
        return [draw(self.columns, rule.depth, (seed, number)) for number in numbers]

    # --- the steps ---------------------------------------------------------------------------------------------------

    @property
    def step(self) -> str:
        """In words."""
        n = len(self.rounds) // self.settings.lockstep
        return {"counts": "noisy counts", "columns": "noisy sums per column"}.get(self._stage, f"batch {n}, noisy sums")

    @property
    def finished(self) -> bool:
        """Whether all trees have their values."""
        return len(self.rounds) >= self.settings.n_trees

    @property
    def n_rounds(self) -> int:
        """How many are finished."""
        return len(self.rounds)

    @property
    def n_batches(self) -> int:
        """How many steps there are."""
        return bool(self._counted) + 1 - (-self.settings.n_trees // self.settings.lockstep)

    def contribution(self) -> Parts:
        """The sums of this party's rows per leaf: all gradients, then all hessians. Noise is added at the exit."""
        outputs = 1 if self._stage == "counts" else self.plan.n_outputs
        sums = [
            _sums(self._vectors[:, first + t % outputs], leaf, n)
            for first in range(0, self._vectors.shape[1], outputs)
            for t, (leaf, n) in enumerate(zip(self._leaves, self._n_leaves, strict=True))
        ]
        return [np.concatenate(sums).view(np.uint64)]

    @property
    def _n_leaves(self) -> list[int]:
        if self._stage == "counts":
            return [len(self.columns.points[j]) + 1 for j in self._counted]
        return [tree.n_leaves for tree in self._batch]

    @property
    def _n_words(self) -> int:
        return (1 if self._stage == "counts" else 2) * sum(self._n_leaves)

    def read(self, total: Parts) -> bytes:
        """What follows from a total: itself."""
        (words,) = shaped(total, [(np.uint64, self._n_words)])
        return words.astype("<u8").tobytes()

    def apply(self, decision: bytes) -> None:
        """Take on what follows from the total of this step."""
        words = numbers(decision, np.uint64, self._n_words).view(np.int64).astype(np.float64) / self._scale
        ends = np.cumsum(self._n_leaves)[:-1]
        if self._stage == "counts":
            self._choose_cuts(np.split(words, ends))
        else:
            G, H = (np.split(part, ends) for part in np.split(words, 2))
            sums = [(g, h / self.settings.hessian_weight) for g, h in zip(G, H, strict=True)]
            self._learn_from_columns(sums) if self._stage == "columns" else self._adopt(sums)
        self._stage = "columns" if self._stage == "counts" else "trees"
        self.keeps = True
        self.kept.append(decision)
        self._digest.update(hashlib.blake2b(decision, digest_size=16).digest())
        self._begin()

    def _choose_cuts(self, counts: list[Doubles]) -> None:
        """Cut points where the rows are."""
        points, deviation = list(self.columns.points), self.budget.noise / self._scale
        for j, own in zip(self._counted, counts, strict=True):
            points[j] = points[j][refined_cuts(own, deviation, self.settings.n_cuts)]
        self.columns = replace(self.columns, points=points)

    def _learn_from_columns(self, sums: list[Sums]) -> None:
        """How often columns are drawn, and the start value where none is declared. Of several outputs, all alike."""
        outputs, deviation = self.plan.n_outputs, self.budget.noise / self._scale
        each = [column_weights(sums[output::outputs], deviation) for output in range(outputs)]
        self.columns = replace(self.columns, weights=[sum(own) for own in zip(*each, strict=True)])
        if self.plan.base_score is None:
            before = self.loss.margin(self.base_score)
            self.base_score = _shares_after(self.loss, sums, outputs)
            self._rows.margin += (self.loss.margin(self.base_score) - before).astype(np.float32)

    def _values(self, G: Doubles, H: Doubles) -> Doubles:
        """Leaf values from noisy sums. Where nothing is known of the hessian there is no step."""
        rule = self.settings
        slope = np.maximum(H, 0.0) + rule.reg_lambda
        steps = np.divide(-G, slope, out=np.zeros_like(G), where=slope > 0)
        return rule.learning_rate * np.clip(steps, -rule.most_step, rule.most_step)

    def _adopt(self, sums: list[Sums]) -> None:
        """The trees of the batch get their values and become part of the model."""
        outputs, finished = self.plan.n_outputs, []
        for t, (tree, own) in enumerate(zip(self._batch, sums, strict=True)):
            finished.append(tree.with_leaf_values(self._values(*own)))
            add_values(self._rows.margin, t % outputs, self._leaves[t], finished[t].value[tree.leaves])
        for first in range(0, len(finished), outputs):
            self.rounds.append(finished[first : first + outputs])

    def resume(self, decisions: Sequence[bytes]) -> None:
        """Take on what was kept of a training that is under way."""
        for decision in decisions:
            self.apply(decision)

    def digest(self) -> bytes:
        """Of everything that was applied so far."""
        return self._digest.digest()

    def metrics(self, first: int = 0) -> list[Metrics]:
        """None are sent: every round, from this one on, has empty ones."""
        return [({}, {})] * (len(self.rounds) - first)

    def _following(self, rows: Labelled) -> Following:
        margin = np.array(self.loss.margin(self.base_score), dtype=np.float32)
        walk = walker(rows.X, by_level=bool(np.any(self.plan.n_levels)))
        return Following(walk, rows.y, rows.weight, np.tile(margin, (len(rows.y), 1)))


def _shortened(vectors: Doubles, longest: Doubles | float) -> Doubles:
    """No row's vector is longer than this. The filter counts what is left of it: this is for accuracy alone."""
    length = np.sqrt((vectors * vectors).sum(axis=1))
    shorter: Doubles = vectors * np.minimum(1.0, longest / np.maximum(length, 1e-300))[:, None]
    return shorter


def _sums(values: Longs, leaf: Ints, n_leaves: int) -> Longs:
    """Exact: below 2**53 doubles are. What is in no leaf has the number behind the last."""
    sums: Longs = np.bincount(leaf, weights=values, minlength=n_leaves)[:n_leaves].astype(np.int64)
    return sums


def _cells(X: Table, j: int, points: Floats) -> Ints:
    """The cell of each row in a column. Missing values are in none: they get the number behind the last."""
    values = X[:, [j]].tocsc() if sparse.issparse(X) else X[:, j]
    found: Ints = np.full(X.shape[0], len(points) + 1, np.int32)
    rows = values.indices if sparse.issparse(X) else np.flatnonzero(~np.isnan(values))
    known = values.data if sparse.issparse(X) else values[rows]
    found[rows] = np.where(np.isnan(known), len(points) + 1, np.searchsorted(points, known, side="right"))
    return found


def _shares_after(loss: Loss, sums: list[Sums], outputs: int) -> Doubles:
    """The start value from the totals of the first step: how far the classes are from the shares assumed there.

    Each gradient is the share that is assumed less the one that is there: p - G / n, with n = H / (p (1 - p)).
    """
    p = 1.0 / max(outputs, 2)
    found = []
    for output in range(outputs):
        G, H = (math.fsum(x for own in sums[output::outputs] for x in own[part].tolist()) for part in (0, 1))
        share = p - p * (1.0 - p) * G / H if H > 0 else p
        found.append(min(max(share, RAREST), 1.0 - RAREST))
    shares = found if outputs > 1 else [1.0 - found[0], found[0]]
    return loss.start(shares, math.fsum(shares))


def _start_value(plan: Plan) -> Doubles:
    """No label has a part in it."""
    n = max(plan.n_outputs, 2)
    return loss_of(plan.params).start([1.0] * n, float(n))
