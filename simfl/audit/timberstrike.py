"""Rows from all trees of a model together, in the manner of TimberStrike (Di Gennaro et al. 2025, arXiv 2506.07605).

A leaf of a boosted classifier is an equation about the rows in it: value = -rate G / (H + lambda). Whoever also sees
the sum of hessians of each leaf (XGBoost's `sum_hessian`, as Flower and others sent it) has two equations, and knows
from the first tree how many rows of each label are in each leaf.

TimberStrike goes tree by tree: an integer program puts rows into leaves, and each row keeps the box that is left. Here
all trees are solved at once: a row with given values has a known leaf, so a known gradient, in every tree. A whole
table is guessed, and its rows are changed one at a time until the equations hold (annealing). That is simpler, and uses
equations of values alone just as well. Beside the published rates (docs/results/attacks.md): level or better on
diabetes, a little below on stroke. The measure is TimberStrike's own (`matched_share`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np
from scipy.optimize import linear_sum_assignment

from simfl.arrays import AnyArray, Doubles, Floats, Longs, Mask
from simfl.audit import _search
from simfl.model import Model, warm_start
from simfl.training.losses import loss_named
from simfl.training.trees import Tree

TOLERANCE = 0.319  # of a number, in deviations: TimberStrike's
PROPOSALS = 1000  # per row
HOT, COLD = 3.0, 0.005  # errors squared, in rows


@dataclass(frozen=True)
class Forest:
    """All trees of a binary classifier as flat arrays. `number`: a threshold, or the value of a leaf."""

    start: Longs  # per tree: its root
    left: Longs
    feature: Longs
    number: Floats
    default_left: Mask
    before: Longs  # per tree: the number of trees whose values are behind its gradients
    base: float  # the margin that all rows start from

    @classmethod
    def of(cls, trees: Sequence[Tree], base: float, batches: Iterable[int] = repeat(1)) -> Forest:
        """Trees of a batch share their gradients. `batches`: their sizes, as many as it takes."""
        sizes = [len(tree.feature) for tree in trees]
        start = np.cumsum([0, *sizes[:-1]]).astype(np.int64)
        left = np.concatenate([tree.left + first for tree, first in zip(trees, start, strict=True)])
        feature = np.concatenate([tree.feature for tree in trees]).astype(np.int64)
        number = np.concatenate([np.where(tree.feature < 0, tree.value, tree.threshold) for tree in trees])
        default_left = np.concatenate([tree.default_left for tree in trees])
        before = first_of_batch(len(trees), batches)
        return cls(start, left.astype(np.int64), feature, number.astype(np.float32), default_left, before, base)

    @property
    def arrays(self) -> tuple[AnyArray, ...]:
        """As the kernels take it."""
        return self.start, self.left, self.feature, self.number, self.default_left, self.before

    @property
    def tree_of_node(self) -> Longs:
        """Per node: its tree."""
        return np.searchsorted(self.start, np.arange(len(self.feature)), side="right") - 1

    def sums(self, X: AnyArray, y: AnyArray) -> tuple[Doubles, Doubles]:
        """Per leaf the sums of gradients and hessians of rows: what `sum_hessian` and the value give away."""
        G, H = np.zeros(len(self.feature)), np.zeros(len(self.feature))
        _search.add_sums(X.astype(np.float32), y.astype(np.float64), self.base, self.arrays, G, H)
        return G, H

    def trace(self, X: AnyArray, y: AnyArray) -> tuple[Longs, Doubles, Doubles]:
        """Per row and tree: its leaf, and its gradient and hessian before that tree."""
        leaf, g, h = _search.trace(X.astype(np.float32), y.astype(np.float64), self.base, self.arrays)
        return leaf, g, h


def first_of_batch(n: int, batches: Iterable[int]) -> Longs:
    """Per tree the first one of its batch.

    >>> first_of_batch(7, [1, 1, 2, 4]).tolist()
    [0, 1, 2, 2, 4, 4, 4]
    """
    found: list[int] = []
    for size in batches:
        if len(found) >= n:
            break
        found += [len(found)] * size
    return np.array(found[:n], dtype=np.int64)


def forest_of(model: Model, batches: Iterable[int] = repeat(1)) -> Forest:
    """The trees of a binary classifier and the margin that it starts from."""
    found = warm_start(model)
    base = float(loss_named(found.objective).margin(found.base_score)[0])
    return Forest.of([tree for trees in found.rounds for tree in trees], base, batches)


@dataclass(frozen=True)
class Equations:
    """What the rows in each leaf add up to: asked (G + slope H) = target, and asked_h H = target_h."""

    asked: Doubles
    slope: Doubles
    target: Doubles
    asked_h: Doubles
    target_h: Doubles

    @classmethod
    def of_values(cls, forest: Forest, rate: float, reg_lambda: float) -> Equations:
        """From the model alone: value (H + lambda) = -rate G."""
        leaf = forest.feature < 0
        slope = np.where(leaf, forest.number.astype(np.float64) / rate, 0.0)
        nothing = np.zeros(len(slope))
        return cls(leaf.astype(np.float64), slope, -reg_lambda * slope, nothing, nothing)

    def with_sums(self, G: Doubles, H: Doubles, seen: Mask) -> Equations:
        """The same where the sums of some nodes are seen."""
        return Equations(
            asked=self.asked,
            slope=np.where(seen, 0.0, self.slope),
            target=np.where(seen, G, self.target),
            asked_h=np.where(seen, self.asked, 0.0),
            target_h=np.where(seen, H, 0.0),
        )

    def only(self, nodes: Mask) -> Equations:
        """Those of some nodes: the trees of one party."""
        return replace(self, asked=self.asked * nodes, asked_h=self.asked_h * nodes)

    def without(self, G: Doubles, H: Doubles) -> Equations:
        """After rows that the attacker knows are taken off."""
        return replace(self, target=self.target - (G + self.slope * H), target_h=self.target_h - H)

    def misfit(self, G: Doubles, H: Doubles) -> float:
        """The root mean square error, in rows, of rows with these sums."""
        errors = self.asked * (G + self.slope * H - self.target), self.asked_h * (H - self.target_h)
        squares = sum(float((e**2).sum()) for e in errors)
        return float(np.sqrt(squares / max(self.asked.sum() + self.asked_h.sum(), 1.0)))


def rows_behind(
    forest: Forest, equations: Equations, start: tuple[AnyArray, AnyArray], pool: AnyArray, seed: int, effort: int
) -> tuple[Floats, Floats]:
    """Rows and labels that fulfil the equations: from a first guess, with values that occur in a pool of rows."""
    X, y = start[0].astype(np.float32), start[1].astype(np.float64)
    used = equations.asked, equations.slope, equations.asked_h
    error = -np.stack([equations.asked * equations.target, equations.asked_h * equations.target_h])
    schedule = effort * len(X), HOT, COLD
    _search.anneal(X, y, pool.astype(np.float32), forest.arrays, forest.base, used, error, schedule, seed)
    return X, y.astype(np.float32)


def matched_share(found: AnyArray, truth: AnyArray, is_category: Mask) -> Doubles:
    """Per true row: the share of its values that the found row has which it is paired with. TimberStrike's measure.

    Rows are paired so that the total is largest; a number counts within .319 deviations, a category must be equal.
    The label is a column like the others. Where the numbers of rows differ, as many of each are drawn at random.

    >>> matched_share(np.array([[1.0, 7.0], [5.0, 2.0]]), np.array([[5.0, 2.0], [1.0, 3.0]]), np.array([True, True]))
    array([1. , 0.5])
    """
    rng, n = np.random.default_rng(42), min(len(found), len(truth))
    found, truth = (a if len(a) == n else a[rng.permutation(len(a))[:n]] for a in (found, truth))
    hits = np.zeros((n, n), dtype=np.int32)
    for column, category in enumerate(is_category):
        within = 1e-9 if category else TOLERANCE * np.nanstd(_known(truth[:, column]))
        near = np.abs(truth[:, column, None] - found[None, :, column]) <= within
        hits += near | (np.isnan(truth[:, column, None]) & np.isnan(found[None, :, column]))
    rows, partners = linear_sum_assignment(hits, maximize=True)
    return np.asarray(hits[rows, partners] / len(is_category), dtype=np.float64)


def uniform_rows(low: Doubles, high: Doubles, levels: Sequence[AnyArray | None], n: int, seed: int) -> Doubles:
    """Rows of somebody who knows nothing but the range of each number and the levels of each category."""
    rng = np.random.default_rng([seed, 31])
    columns = [
        rng.uniform(low[j], high[j], n) if known is None else rng.choice(known, n) for j, known in enumerate(levels)
    ]
    return np.column_stack(columns)


def _known(values: Doubles) -> Doubles:
    """A column with its missing values; zeros where it has no value at all, whose deviation nobody can tell."""
    return np.zeros_like(values) if np.isnan(values).all() else values
