"""Pruning with the sums of all parties. Not in the paper.

The builder sees only its own rows, so some of its splits do not hold for everybody. It grows a few levels deeper
than asked for, with no lower bounds; the leaf sums of all parties then give the true sums, and so the true gain, of
every node. Splits that do not pay are taken back until the tree has at most as many leaves as one of `max_depth`.
"""

from __future__ import annotations

import heapq

import numpy as np

from simfl.arrays import AnyArray, Doubles, Floats, Mask
from simfl.params import TrainParams
from simfl.training.trees import LEAF, Tree, children, weight


def prune(tree: Tree, G: Doubles, H: Doubles, params: TrainParams) -> tuple[Tree, Floats]:
    """The pruned tree with its leaf values, and the value that each leaf of the old tree now has.

    `G` and `H` are the sums over all parties in each of the old leaves.
    """
    node_G, node_H = node_sums(tree, G), node_sums(tree, H)
    kept = _splits_that_pay(tree, node_G, node_H, params)
    _take_back_weakest(tree, kept, score(node_G, node_H, params), most_leaves(params))
    value = (params.learning_rate * weight(node_G, node_H, params)).astype(np.float32)
    end = _where_rows_end(tree, kept)
    return _without(tree, kept, end, value), value[end[tree.leaves]]


def most_leaves(params: TrainParams) -> int:
    """How many leaves a tree of this depth can have."""
    by_depth = 2**params.max_depth if params.max_depth else 2**31
    return min(by_depth, params.max_leaves or by_depth)


def node_sums(tree: Tree, leaf_values: Doubles) -> Doubles:
    """The sums of all nodes from the sums of the leaves."""
    sums = np.zeros(len(tree.feature))
    sums[tree.leaves] = leaf_values
    for node in np.flatnonzero(tree.feature != LEAF)[::-1]:
        sums[node] = sums[tree.left[node]] + sums[tree.left[node] + 1]
    return sums


def score(G: Doubles, H: Doubles, params: TrainParams) -> Doubles:
    """Twice the loss that the node's best value takes away, as XGBoost reckons."""
    w = weight(G, H, params)
    return -(2 * G * w + (H + params.reg_lambda) * w * w) - 2 * params.reg_alpha * np.abs(w)


def _splits_that_pay(tree: Tree, G: Doubles, H: Doubles, params: TrainParams) -> Mask:
    """Bottom up: a split stays if all that hangs on it gains more than gamma per split."""
    own = score(G, H, params)
    best, kept = own.copy(), np.zeros(len(own), dtype=bool)
    for node in np.flatnonzero(tree.feature != LEAF)[::-1]:
        a, b = tree.left[node], tree.left[node] + 1
        gained = best[a] + best[b] - params.gamma
        if gained > own[node] and min(H[a], H[b]) >= params.min_child_weight:
            best[node], kept[node] = gained, True
    reachable = _reachable(tree, kept)
    return kept & reachable


def _reachable(tree: Tree, kept: Mask) -> Mask:
    reachable = np.zeros(len(kept), dtype=bool)
    reachable[0] = True
    for node in np.flatnonzero(tree.feature != LEAF):
        reachable[tree.left[node] : tree.left[node] + 2] = reachable[node] and kept[node]
    return reachable


def _take_back_weakest(tree: Tree, kept: Mask, own: Doubles, most: int) -> None:
    """Take back the least gaining last splits until there are few enough leaves. Changes `kept`."""
    surplus = int(kept.sum()) + 1 - most
    if surplus <= 0:
        return
    parent = np.zeros(len(kept), dtype=np.int64)
    inner = np.flatnonzero(tree.feature != LEAF)
    parent[tree.left[inner]] = parent[tree.left[inner] + 1] = inner

    def is_last(node: int) -> bool:
        return bool(kept[node]) and not kept[tree.left[node]] and not kept[tree.left[node] + 1]

    def gain(node: int) -> float:
        return float(own[tree.left[node]] + own[tree.left[node] + 1] - own[node])

    heap = [(gain(node), node) for node in inner.tolist() if is_last(node)]
    heapq.heapify(heap)
    for _ in range(surplus):
        _, node = heapq.heappop(heap)
        kept[node] = False
        above = int(parent[node])
        if node and is_last(above):
            heapq.heappush(heap, (gain(above), above))


def _where_rows_end(tree: Tree, kept: Mask) -> AnyArray:
    """For every old node the node at which its rows come to rest now."""
    end = np.arange(len(kept))
    for node in np.flatnonzero(tree.feature != LEAF):
        for child in (tree.left[node], tree.left[node] + 1):
            if not kept[node]:
                end[child] = end[node]
    return end


def _without(tree: Tree, kept: Mask, end: AnyArray, value: Floats) -> Tree:
    """The tree without the splits that were taken back."""
    stays = np.flatnonzero(end == np.arange(len(end)))  # still breadth first
    inner = kept[stays]
    feature = np.where(inner, tree.feature[stays], LEAF).astype(np.int32)
    return Tree(
        feature=feature,
        threshold=np.where(inner, tree.threshold[stays], np.float32(0)),
        default_left=tree.default_left[stays] & inner,
        left=children(feature),
        value=np.where(inner, np.float32(0), value[stays]),
    )
