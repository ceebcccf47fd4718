"""Trees: grown by XGBoost from given gradients, kept as plain arrays in breadth-first order.

XGBoost's own statistics of a node (`sum_hessian`, `base_weights`, `loss_changes`) reveal how many rows of the builder
reach it: they never enter a `Tree`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import xgboost as xgb
from scipy import sparse

from simfl.arrays import AnyArray, Floats, Ints, Mask, Table
from simfl.errors import ParameterError
from simfl.params import TrainParams

LEAF = -1
CELLS_PER_THREAD = 250_000  # below that, XGBoost's threads wait for each other longer than they work
TREES_PER_BOOSTER = 256  # a booster keeps its trees: bounds the memory of a long training


@dataclass(frozen=True)
class Tree:
    """Nodes in breadth-first order. `feature` is LEAF at a leaf; `value` counts only there."""

    feature: Ints
    threshold: Floats
    default_left: Mask
    left: Ints  # the right child is the next node
    value: Floats
    level_set: Ints | None = None  # per node: its row of `goes_right`, or -1 for a comparison of numbers
    goes_right: Mask | None = None  # per set and level of a category: whether it goes right; the others go left

    @property
    def n_leaves(self) -> int:
        """How many leaves there are."""
        return len(self.feature) // 2 + 1

    @cached_property
    def leaves(self) -> AnyArray:
        """The nodes that are leaves."""
        return np.flatnonzero(self.feature == LEAF)

    def with_leaf_values(self, values: AnyArray) -> Tree:
        """The same structure with other leaf values."""
        value = np.zeros(len(self.feature), dtype=np.float32)
        value[self.leaves] = values
        return replace(self, value=value)


def children(feature: Ints) -> Ints:
    """The left child of every node: in breadth-first order it follows from which nodes are leaves.

    >>> children(np.array([5, 3, -1, -1, -1], dtype=np.int32))
    array([ 1,  3, -1, -1, -1], dtype=int32)
    """
    inner = feature != LEAF
    return np.where(inner, 2 * np.cumsum(inner) - 1, LEAF).astype(np.int32)


# --- growing ---------------------------------------------------------------------------------------------------------


class Grower:
    """Grows one tree after the other with XGBoost, each from given gradients.

    The booster is kept from tree to tree: a new one costs several times what a small tree does. Where columns are
    sampled it is new for every tree, so that a tree depends on its own seed alone. Rows are sampled here, as XGBoost
    does it: those left out get gradients of zero.
    """

    def __init__(self, rows: xgb.QuantileDMatrix, params: TrainParams, threads: int) -> None:
        self.rows, self.params, self.threads = rows, deeper(params), threads
        shares = (params.colsample_bytree, params.colsample_bylevel, params.colsample_bynode)
        self._trees_per_booster = 1 if min(shares) < 1 else TREES_PER_BOOSTER
        self._booster: xgb.Booster | None = None
        self._n_trees = 0

    def grow(self, g: Floats, h: Floats, seed: int) -> Tree:
        """The next tree."""
        share = self.params.subsample
        if share is not None and share < 1:
            taken = np.random.default_rng(seed).random(len(g), dtype=np.float32) < share
            g, h = g * taken, h * taken
        number = self._n_trees % self._trees_per_booster
        if number == 0 or self._booster is None:
            settings = xgboost_params(self.params, seed, self.threads) | {"subsample": 1.0}
            self._booster = xgb.Booster(settings, [self.rows])
        self._booster.boost(self.rows, number, grad=g, hess=h)
        self._n_trees += 1
        return from_booster(self._booster if number == 0 else self._booster[number : number + 1])


def xgboost_params(params: TrainParams, seed: int, threads: int) -> dict[str, Any]:
    """Our parameters as XGBoost takes them."""
    names = (
        "learning_rate max_depth max_leaves grow_policy min_child_weight gamma reg_lambda reg_alpha max_delta_step "
        "subsample colsample_bytree colsample_bylevel colsample_bynode max_bin max_cat_to_onehot max_cat_threshold"
    )
    # The objective plays no part in growing; base_score must be zero on the margin scale.
    fixed: dict[str, Any] = {"objective": "reg:squarederror", "base_score": 0.0, "tree_method": "hist", "verbosity": 0}
    if params.monotone_constraints is not None:
        fixed["monotone_constraints"] = str(tuple(params.monotone_constraints))
    if params.interaction_constraints is not None:
        fixed["interaction_constraints"] = str([list(group) for group in params.interaction_constraints])
    given = {name: getattr(params, name) for name in names.split()}
    given = {name: value for name, value in given.items() if value is not None}
    return given | fixed | {"seed": seed, "nthread": threads}


def deeper(params: TrainParams) -> TrainParams:
    """The parameters of a tree that is going to be pruned: deeper, with all bounds left to the pruning."""
    if not params.extra_depth or not params.max_depth:
        return params
    depth = params.max_depth + params.extra_depth
    return msgspec.structs.replace(params, max_depth=depth, max_leaves=0, min_child_weight=0.0, gamma=0.0)


def threads_for(X: Table, most: int) -> int:
    """How many threads pay off for a table of this size."""
    cells = X.nnz if sparse.issparse(X) else X.size
    return max(1, min(int(cells) // CELLS_PER_THREAD, most))


class _SavedTree(msgspec.Struct):
    """What is read of a tree as XGBoost saves it: structure and leaf values, no statistics."""

    left_children: list[int]
    right_children: list[int]
    split_indices: list[int]
    split_conditions: list[float]
    default_left: list[int]
    categories: list[int]
    categories_nodes: list[int]
    categories_segments: list[int]
    categories_sizes: list[int]


class _Trees(msgspec.Struct):
    trees: list[_SavedTree]


class _GradientBooster(msgspec.Struct):
    model: _Trees


class _Learner(msgspec.Struct):
    gradient_booster: _GradientBooster


class _Saved(msgspec.Struct):
    learner: _Learner


_decoder = msgspec.json.Decoder(_Saved)


def from_booster(booster: xgb.Booster, number: int = 0) -> Tree:
    """A tree of a booster (as a rule it has one), in breadth-first order and without its statistics."""
    return _tree(_saved(booster)[number])


def all_trees(booster: xgb.Booster) -> list[Tree]:
    """All trees of a booster."""
    return [_tree(saved) for saved in _saved(booster)]


def _saved(booster: xgb.Booster) -> list[_SavedTree]:
    try:
        return _decoder.decode(booster.save_raw("json")).learner.gradient_booster.model.trees
    except msgspec.DecodeError:  # JSON has no infinity
        raise ParameterError("A tree has values beyond float32: the training diverges. Lower learning_rate.") from None


def _tree(saved: _SavedTree) -> Tree:
    order = [0]
    for node in order:  # the list grows while it is read: breadth first
        if saved.left_children[node] >= 0:
            order += [saved.left_children[node], saved.right_children[node]]
    left = np.array(saved.left_children)[order]
    inner = left >= 0
    feature = np.where(inner, np.array(saved.split_indices)[order], LEAF).astype(np.int32)
    conditions = np.array(saved.split_conditions, dtype=np.float32)[order]
    return Tree(
        feature=feature,
        threshold=np.where(inner, conditions, np.float32(0)),
        default_left=np.array(saved.default_left, dtype=bool)[order] & inner,
        left=children(feature),
        value=np.where(inner, np.float32(0), conditions),
        **_level_sets(saved, order),
    )


def _level_sets(saved: _SavedTree, order: list[int]) -> dict[str, AnyArray]:
    """Which levels go right at the splits of categories; nothing for a tree without such splits."""
    if not saved.categories_nodes:
        return {}
    goes_right = np.zeros((len(saved.categories_nodes), max(saved.categories) + 1), dtype=bool)
    level_set = np.full(len(saved.left_children), -1, dtype=np.int32)
    for number, node in enumerate(saved.categories_nodes):
        begin = saved.categories_segments[number]
        goes_right[number, saved.categories[begin : begin + saved.categories_sizes[number]]] = True
        level_set[node] = number
    return {"level_set": level_set[order], "goes_right": goes_right}
