"""Leaf values and pruning with the sums of all parties. Not in the paper.

The builder sees only its own rows, so some of its splits do not hold for everybody. It grows a few levels deeper
than asked for, with no lower bounds; the leaf sums of all parties then give the true sums, and so the true gain, of
every node. Splits that do not pay are removed until the tree has at most as many leaves as one of `max_depth`.
"""

import numpy as np
from numba import njit

from simfl.arrays import Doubles, Floats, Ints, Mask
from simfl.params import Params
from simfl.training.trees import LEAF, Tree, children


def prune(tree: Tree, G: Doubles, H: Doubles, params: Params) -> tuple[Tree, Floats]:
    """The pruned tree with its leaf values, and the value that each leaf of the old tree now has.

    `G` and `H` are the sums over all parties in each of the old leaves.
    """
    node_G, node_H = node_sums(tree, G), node_sums(tree, H)
    own = score(node_G, node_H, params)
    kept = np.empty(len(own), dtype=np.bool_)
    _keep_what_pays(tree.left, own, node_H, params.gamma, params.min_child_weight, own.copy(), kept)
    _remove_weakest(tree.left, kept, own, most_leaves(params))
    value = (params.learning_rate * _bounded(tree, kept, weight(node_G, node_H, params), params)).astype(np.float32)
    nodes = np.arange(len(kept))
    end = nodes.copy()
    _find_ends(tree.left, kept, end)
    stays = end == nodes
    return _without(tree, kept, stays, value), value[end[tree.leaves]]


def keep_all(tree: Tree, G: Doubles, H: Doubles, params: Params) -> tuple[Tree, Floats]:
    """The tree as it was grown, with leaf values from the sums of all parties, within the constraints on columns."""
    weights = _bounded(tree, tree.feature != LEAF, weight(node_sums(tree, G), node_sums(tree, H), params), params)
    values = (params.learning_rate * weights[tree.leaves]).astype(np.float32)
    return tree.with_leaf_values(values), values


def most_leaves(params: Params) -> int:
    """How many leaves a tree of this depth can have."""
    return 1 << (params.max_depth or 31)


def node_sums(tree: Tree, leaf_values: Doubles) -> Doubles:
    """The sums of all nodes from the sums of the leaves."""
    sums = np.zeros(len(tree.feature))
    sums[tree.leaves] = leaf_values
    _add_up(tree.left, sums)
    return sums


def gain_of_features(tree: Tree, kept: Tree, G: Doubles, H: Doubles, params: Params, n_features: int) -> Doubles:
    """What the splits of each feature gained for all parties together. `kept` is `tree` after the pruning."""
    gains, before = np.zeros(n_features), np.zeros(len(kept.left), dtype=np.int64)
    own = score(node_sums(tree, G), node_sums(tree, H), params)
    _add_gains(tree.left, kept.left, kept.feature, own, before, gains)
    return gains


def weight(G: Doubles, H: Doubles, params: Params) -> Doubles:
    """XGBoost's best value of a node with these sums, before shrinkage."""
    shrunk = np.sign(G) * np.maximum(np.abs(G) - params.reg_alpha, 0.0)
    below = H + params.reg_lambda
    value = np.where((H > 0) & (below > 0), -shrunk / np.where(below > 0, below, 1.0), 0.0)
    limit = params.max_delta_step
    return np.clip(value, -limit, limit) if limit else value


def score(G: Doubles, H: Doubles, params: Params) -> Doubles:
    """Twice the loss that the node's best value removes, as XGBoost computes it."""
    w = weight(G, H, params)
    return -(2 * G * w + (H + params.reg_lambda) * w * w) - 2 * params.reg_alpha * np.abs(w)


def _bounded(tree: Tree, kept: Mask, weights: Doubles, params: Params) -> Doubles:
    """The weights of all nodes, changed so that no constraint on a column is broken.

    The builder has kept the constraints for its own sums; the sums of all parties ask for other values. As in
    XGBoost, the middle between two children becomes a bound for all nodes below them.
    """
    if not params.monotone_constraints:
        return weights
    weights, signs = weights.copy(), np.array(params.monotone_constraints, dtype=np.int8)
    _keep_bounds(tree.left, tree.feature, kept, signs, weights)
    return weights


def _without(tree: Tree, kept: Mask, stays: Mask, value: Floats) -> Tree:
    """The tree without the removed splits. What stays is still in breadth-first order."""
    inner = kept[stays]
    feature = np.where(inner, tree.feature[stays], LEAF).astype(np.int32)
    return Tree(
        feature=feature,
        threshold=np.where(inner, tree.threshold[stays], np.float32(0)),
        default_left=tree.default_left[stays] & inner,
        left=children(feature),
        value=np.where(inner, np.float32(0), value[stays]),
        level_set=None if tree.level_set is None else np.where(inner, tree.level_set[stays], -1).astype(np.int32),
        goes_right=tree.goes_right,
    )


def _remove_weakest(left: Ints, kept: Mask, own: Doubles, most: int) -> None:
    """Remove the lowest splits that gain least until there are few enough leaves. Changes `kept`."""
    surplus = int(kept.sum()) + 1 - most
    if surplus > 0:
        gain, weakest = np.empty(len(kept)), np.empty(len(kept), dtype=np.int64)
        _find_turns(left, kept, own, gain, weakest)
        nodes = np.flatnonzero(kept)[::-1]  # at the same turn from the lowest up
        kept[nodes[np.lexsort((weakest[nodes], gain[nodes]))[:surplus]]] = False


# Nodes are in breadth-first order, so that children come after their parent. `left` is LEAF at a leaf.


@njit(nogil=True, cache=True)
def _add_up(left, sums):  # type: ignore[no-untyped-def]
    for node in range(len(left) - 1, -1, -1):
        if left[node] != LEAF:
            sums[node] = sums[left[node]] + sums[left[node] + 1]


@njit(nogil=True, cache=True)
def _add_gains(left_before, left, feature, own, before, gains):  # type: ignore[no-untyped-def]
    """`before`: the number of each node before the pruning, to be filled in from 0 at the root."""
    for node in range(len(left)):
        if left[node] != LEAF:
            child = left_before[before[node]]
            before[left[node]], before[left[node] + 1] = child, child + 1
            gains[feature[node]] += own[child] + own[child + 1] - own[before[node]]


@njit(nogil=True, cache=True)
def _keep_what_pays(left, own, H, gamma, min_child_weight, best, kept):  # type: ignore[no-untyped-def]
    """Bottom up: a split stays if all splits below and itself gain more than gamma each. Then only what is reached."""
    for node in range(len(left) - 1, -1, -1):
        kept[node] = False
        if left[node] != LEAF:
            a, b = left[node], left[node] + 1
            gained = best[a] + best[b] - gamma
            if gained > own[node] and H[a] >= min_child_weight and H[b] >= min_child_weight:
                best[node], kept[node] = gained, True
    for node in range(len(left)):
        if left[node] != LEAF and not kept[node]:
            kept[left[node]] = kept[left[node] + 1] = False


@njit(nogil=True, cache=True)
def _find_turns(left, kept, own, gain, weakest):  # type: ignore[no-untyped-def]
    """When each split goes, if the one that gains least always goes first, but none before those below it.

    Its turn comes with the last of these: the one, of it and all below, that gains most, or has the highest number.
    """
    for node in range(len(left) - 1, -1, -1):
        if kept[node]:
            a = left[node]
            gain[node], weakest[node] = own[a] + own[a + 1] - own[node], node
            for child in range(a, a + 2):
                later = gain[child] > gain[node] or (gain[child] == gain[node] and weakest[child] > weakest[node])
                if kept[child] and later:
                    gain[node], weakest[node] = gain[child], weakest[child]


@njit(nogil=True, cache=True)
def _find_ends(left, kept, end):  # type: ignore[no-untyped-def]
    """For every old node the node in which its rows end now. At first each is its own."""
    for node in range(len(left)):
        if left[node] != LEAF and not kept[node]:
            end[left[node]] = end[left[node] + 1] = end[node]


@njit(nogil=True, cache=True)
def _keep_bounds(left, feature, kept, signs, weights):  # type: ignore[no-untyped-def]
    low, high = np.full(len(left), -np.inf), np.full(len(left), np.inf)
    for node in range(len(left)):
        weights[node] = min(max(weights[node], low[node]), high[node])
        if kept[node]:
            a, b = left[node], left[node] + 1
            low[a] = low[b] = low[node]
            high[a] = high[b] = high[node]
            sign = signs[feature[node]]
            if sign != 0:
                of_a = min(max(weights[a], low[a]), high[a])
                of_b = min(max(weights[b], low[b]), high[b])
                middle = (of_a + of_b) / 2
                if sign > 0:
                    high[a] = low[b] = middle
                else:
                    low[a] = high[b] = middle
