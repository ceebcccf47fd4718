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
from simfl.params import Params
from simfl.training import ubjson

LEAF = -1
CELLS_PER_THREAD = 250_000  # below that, XGBoost's threads wait for each other longer than they work
TREES_PER_BOOSTER = 64  # a booster keeps its trees, and saves all of them where only the last is asked for


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

    def __init__(self, rows: xgb.QuantileDMatrix, params: Params, threads: int) -> None:
        self.rows, self.params, self.threads = rows, deeper(params), threads
        self._trees_per_booster = 1 if params.colsample_bytree < 1 else TREES_PER_BOOSTER
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
        return from_booster(self._booster)


def xgboost_params(params: Params, seed: int, threads: int) -> dict[str, Any]:
    """Our parameters as XGBoost takes them."""
    names = (
        "learning_rate max_depth min_child_weight gamma reg_lambda reg_alpha max_delta_step subsample colsample_bytree "
        "max_bin"
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


def deeper(params: Params) -> Params:
    """The parameters of a tree that is going to be pruned: deeper, with all bounds left to the pruning."""
    if not params.extra_depth or not params.max_depth:
        return params
    depth = params.max_depth + params.extra_depth
    return msgspec.structs.replace(params, max_depth=depth, min_child_weight=0.0, gamma=0.0)


def threads_for(X: Table, most: int) -> int:
    """How many threads pay off for a table of this size."""
    cells = X.nnz if sparse.issparse(X) else X.size
    return max(1, min(int(cells) // CELLS_PER_THREAD, most))


def from_booster(booster: xgb.Booster) -> Tree:
    """The last tree of a booster, in breadth-first order and without its statistics."""
    return _tree(ubjson.last_object(bytes(booster.save_raw("ubj")), first_key="base_weights"))


def all_trees(booster: xgb.Booster) -> list[Tree]:
    """All trees of a booster."""
    return [_tree(saved) for saved in _saved(booster)]


def split_conditions(booster: xgb.Booster) -> list[Floats]:
    """Per tree of a booster that was trained here, in its own order of the nodes: the threshold, or a leaf's value."""
    return [saved["split_conditions"] for saved in _saved(booster)]


def _saved(booster: xgb.Booster) -> list[dict[str, Any]]:
    document = ubjson.decode(bytes(booster.save_raw("ubj")))
    trees: list[dict[str, Any]] = document["learner"]["gradient_booster"]["model"]["trees"]
    return trees


def _tree(saved: dict[str, AnyArray]) -> Tree:
    """Of all that XGBoost saves, structure and leaf values; no statistics are read."""
    order = breadth_first(saved["left_children"], saved["right_children"])
    left = saved["left_children"][order]
    inner = left >= 0
    feature = np.where(inner, saved["split_indices"][order], LEAF).astype(np.int32)
    conditions = saved["split_conditions"][order]
    if not np.isfinite(conditions).all():
        raise ParameterError("A tree has values beyond float32: the training diverges. Lower learning_rate.")
    return Tree(
        feature=feature,
        threshold=np.where(inner, conditions, np.float32(0)),
        default_left=saved["default_left"][order].astype(bool) & inner,
        left=children(feature),
        value=np.where(inner, np.float32(0), conditions),
        **_level_sets(saved, order),
    )


def breadth_first(left: AnyArray, right: AnyArray) -> AnyArray:
    """The nodes level by level. XGBoost numbers them as it makes them."""
    level = np.zeros(1, dtype=np.int32)
    levels = []
    while len(level):
        levels.append(level)
        inner = level[left[level] >= 0]
        level = np.stack([left[inner], right[inner]], axis=1).ravel()
    return np.concatenate(levels)


def _level_sets(saved: dict[str, AnyArray], order: AnyArray) -> dict[str, AnyArray]:
    """Which levels go right at the splits of categories; nothing for a tree without such splits."""
    nodes, levels = saved["categories_nodes"], saved["categories"]
    if not len(nodes):
        return {}
    goes_right = np.zeros((len(nodes), levels.max() + 1), dtype=bool)
    level_set = np.full(len(saved["left_children"]), -1, dtype=np.int32)
    for number, (node, begin, size) in enumerate(
        zip(nodes, saved["categories_segments"], saved["categories_sizes"], strict=True)
    ):
        goes_right[number, levels[begin : begin + size]] = True
        level_set[node] = number
    return {"level_set": level_set[order], "goes_right": goes_right}
