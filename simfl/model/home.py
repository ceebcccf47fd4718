"""A shared model at one party: corrections learned at home.

A correction is a list of rounds of trees whose leaf values are added to the shared model's scores: new trees, or the
trees that are there already, with steps for their leaves. How many rounds of it help is found by cross-validation on
the party's own rows; none is a possible answer. Nothing leaves the party.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol

import numpy as np
import xgboost as xgb

from simfl.arrays import AnyArray, Doubles, Floats, Table
from simfl.data.schema import Schema, xgboost_types
from simfl.training.gradients import sum_per_leaf
from simfl.training.losses import Loss, in_matrix
from simfl.training.traversal import walker
from simfl.training.trees import Tree, all_trees, split_conditions

How = Literal["auto", "trees", "leaves"]
Rounds = list[list[Tree]]
FOLDS: Final = 5
LEAST_ROWS: Final = 10  # fewer are not cut into folds: nothing is learned from them


@dataclass(frozen=True)
class Home:
    """A party's own rows with the shared model's scores: rows, labels as numbers, weights, and margins."""

    X: Table
    y: Floats
    weight: Floats | None
    margin: Floats

    def part(self, rows: AnyArray) -> Home:
        """Some of the rows."""
        return Home(self.X[rows], self.y[rows], None if self.weight is None else self.weight[rows], self.margin[rows])

    def scores(self, loss: Loss, correction: Correction) -> list[float]:
        """The sum of the main metric over the rows after 0, 1, ... rounds of a correction."""
        margin = self.margin.copy()
        found = [loss.metric_sums(margin, self.y, self.weight)[loss.metric]]
        for step in correction.steps(self):
            margin += step
            found.append(loss.metric_sums(margin, self.y, self.weight)[loss.metric])
        return found


class Correction(Protocol):
    """What was learned at home."""

    def steps(self, home: Home) -> Iterator[Floats]:
        """What each round adds to the scores of these rows."""

    def rounds(self, n: int) -> Rounds:
        """The first n rounds."""


Learn = Callable[[Home], Correction]


@dataclass(frozen=True)
class NewTrees:
    """Trees of XGBoost's own. It says where rows end; only those kept become `Tree`s."""

    booster: xgb.Booster
    n_rounds: int
    n_outputs: int
    types: dict[str, Any]

    def steps(self, home: Home) -> Iterator[Floats]:
        """What each round adds to the scores of these rows."""
        if not self.n_rounds:
            return
        rows = xgb.DMatrix(home.X, nthread=1, **self.types)
        leaves = self.booster.predict(rows, pred_leaf=True).reshape(len(home.y), -1).astype(np.intp)
        values = [conditions[leaf] for conditions, leaf in zip(split_conditions(self.booster), leaves.T, strict=True)]
        for first in range(0, len(values), self.n_outputs):
            yield np.column_stack(values[first : first + self.n_outputs])

    def rounds(self, n: int) -> Rounds:
        """The first n rounds, read."""
        trees = all_trees(self.booster[:n])
        return [trees[first : first + self.n_outputs] for first in range(0, len(trees), self.n_outputs)]


@dataclass(frozen=True)
class LeafSteps:
    """The shared model's trees, whose leaves hold the steps."""

    trees: Rounds
    by_level: bool

    def steps(self, home: Home) -> Iterator[Floats]:
        """What the leaves add to the scores of these rows."""
        walk = walker(home.X, by_level=self.by_level)
        for trees in self.trees:
            yield np.column_stack([tree.value[tree.leaves][walk.leaf_numbers(tree)] for tree in trees])

    def rounds(self, n: int) -> Rounds:
        """The first n rounds."""
        return self.trees[:n]


@dataclass(frozen=True)
class Continuation:
    """How corrections are learned."""

    learned: Mapping[str, Any]  # the objective with its settings, in XGBoost's words
    loss: Loss
    schema: Schema | None
    n_trees: int
    learning_rate: float
    max_depth: int
    reg_lambda: float
    seed: int

    @property
    def by_level(self) -> bool:
        """Whether trees may split categories."""
        return self.schema is not None and self.schema.has_categories

    def new_trees(self, home: Home) -> Correction:
        """More trees, grown by XGBoost from where the shared model ends."""
        n_outputs = home.margin.shape[1]
        margin = home.margin if n_outputs > 1 else home.margin[:, 0]
        types = xgboost_types(self.schema)
        fixed = {"weight": home.weight, "base_margin": margin, "nthread": 1, **types}
        rows = xgb.QuantileDMatrix(home.X, **in_matrix(home.y), **fixed)
        settings: dict[str, Any] = {**self.learned, "learning_rate": self.learning_rate, "nthread": 1}
        settings |= {"max_depth": self.max_depth, "reg_lambda": self.reg_lambda, "seed": self.seed}
        if n_outputs > 1:
            settings["num_class"] = n_outputs
        booster = xgb.Booster(settings, [rows])
        for number in range(self.n_trees):  # as xgb.train does it, without its callbacks
            booster.update(rows, number)
        return NewTrees(booster, self.n_trees, n_outputs, types)

    def leaf_steps(self, rounds: Rounds) -> Learn:
        """The trees that are there, each with a step for its leaves, one after the other as boosting would take it."""

        def learn(home: Home) -> Correction:
            walk, margin, found = walker(home.X, by_level=self.by_level), home.margin.copy(), []
            for trees in rounds:
                g, h = self.loss.gradients(margin, home.y, home.weight)
                steps = []
                for output, tree in enumerate(trees):
                    leaf = walk.leaf_numbers(tree)
                    G, H = sum_per_leaf(leaf, g, h, output, tree.n_leaves)
                    step = (-self.learning_rate * G / (H + self.reg_lambda)).astype(np.float32)
                    margin[:, output] += step[leaf]
                    steps.append(tree.with_leaf_values(step))
                found.append(steps)
            return LeafSteps(found, self.by_level)

        return learn

    def chosen(self, home: Home, ways: dict[str, Learn]) -> tuple[str, Rounds]:
        """The best way by cross-validation, learned again on all rows, with as many rounds as were best."""
        n = len(home.y)
        if n < LEAST_ROWS:
            return next(iter(ways)), []
        fold = np.random.default_rng(self.seed).permutation(n) % FOLDS
        best: tuple[float, str, int] | None = None
        for way, learn in ways.items():
            total = self._validated(home, learn, fold)
            rounds = int(total.argmin())
            if best is None or total[rounds] < best[0]:
                best = float(total[rounds]), way, rounds
        if best is None or best[2] == 0:
            return next(iter(ways)), []
        return best[1], ways[best[1]](home).rounds(best[2])

    def _validated(self, home: Home, learn: Learn, fold: AnyArray) -> Doubles:
        """Per number of rounds the metric of rows that the correction has not seen."""
        scores = [
            home.part(np.flatnonzero(fold == k)).scores(self.loss, learn(home.part(np.flatnonzero(fold != k))))
            for k in range(FOLDS)
        ]
        total: Doubles = np.sum([own[: min(map(len, scores))] for own in scores], axis=0)
        return total


def corrected(rounds: Rounds, way: str, correction: Rounds) -> Rounds:
    """The rounds of the shared model with a correction put in: further rounds, or steps added to the leaves."""
    if way == "trees":
        return [*rounds, *correction]
    stepped = [
        [replace(tree, value=tree.value + step.value) for tree, step in zip(trees, steps, strict=True)]
        for trees, steps in zip(rounds, correction, strict=False)
    ]
    return [*stepped, *rounds[len(stepped) :]]
