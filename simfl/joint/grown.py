"""A tree as it was grown, and what becomes of it: the finished tree must be a pruning of it."""

from __future__ import annotations

import numpy as np
from numba import njit

from simfl.arrays import Floats, Ints
from simfl.errors import ProtocolError
from simfl.joint import decisions
from simfl.joint.candidates import Nodes
from simfl.joint.cuts import Cuts
from simfl.joint.level import Followed
from simfl.training.trees import LEAF, Tree, children

BEYOND = np.float32(3e38)  # a threshold that all values are below


def _thresholds(cuts: Cuts, feature: Ints, cut: Ints) -> Floats:
    """The value of each cut. Behind the last point every value is below."""
    first = np.cumsum([0, *map(len, cuts.points)])
    points = np.append(np.concatenate(cuts.points), BEYOND).astype(np.float32)
    inside = (cut >= 0) & (cut < np.diff(first)[feature])
    return np.where(inside, points[np.where(inside, first[feature] + cut, -1)], np.where(cut < 0, -BEYOND, BEYOND))


def grown_tree(nodes: Nodes, tree: int, cuts: Cuts) -> Tree:
    """A tree as it was grown, with thresholds for its cuts and without values."""
    own = nodes.of_tree(tree)
    feature = nodes.feature[own]
    by_level = (feature != LEAF) & (cuts.levels[feature] > 0)
    threshold = np.where((feature != LEAF) & ~by_level, _thresholds(cuts, feature, nodes.cut[own]), np.float32(0))
    goes_left = np.unpackbits(nodes.levels_left[own[by_level]], axis=1, bitorder="little").astype(bool)
    return Tree(
        feature=feature.astype(np.int32),
        threshold=threshold,
        default_left=nodes.missing_left[own] & (feature != LEAF),
        left=children(feature),
        value=np.zeros(len(own), np.float32),
        **decisions.level_sets(~goes_left, by_level, cuts.levels[feature[by_level]]),
    )


def place_in(grown: Tree, final: Tree) -> Ints:
    """For every node of a pruned tree its number in the tree as it was grown; refuses anything but a pruning."""
    places = np.zeros(len(final.feature), np.int32)
    same = _find_places(
        grown.feature, grown.threshold, grown.default_left, grown.left,
        final.feature, final.threshold, final.default_left, final.left, places,
    )  # fmt: skip
    if not same or not _same_level_sets(grown, final, places):
        raise ProtocolError("A finished tree is not the one that was grown.")
    return places


def _same_level_sets(grown: Tree, final: Tree, places: Ints) -> bool:
    """Whether the splits of categories are those of the tree as it was grown."""
    if grown.level_set is None or grown.goes_right is None:
        return final.level_set is None
    inner = np.flatnonzero(final.feature != LEAF)
    before = grown.level_set[places[inner]]
    if final.level_set is None or final.goes_right is None:
        return not (before >= 0).any()
    after, by_level = final.level_set[inner], before >= 0
    if ((after >= 0) != by_level).any():
        return False
    ours, theirs = grown.goes_right[before[by_level]], final.goes_right[after[by_level]]
    n = min(ours.shape[1], theirs.shape[1])  # each is as wide as the widest column that it splits
    same = (ours[:, :n] == theirs[:, :n]).all() and not ours[:, n:].any() and not theirs[:, n:].any()
    return bool(same)


def followed(nodes: Nodes, tree: int, final: Tree, cuts: Cuts) -> Followed:
    """A finished tree as rows follow it, if it is a pruning of the tree as it was grown."""
    own, grown = nodes.of_tree(tree), grown_tree(nodes, tree, cuts)
    value, known = np.zeros(len(own), np.float32), np.zeros(len(own), bool)
    leaves = place_in(grown, final)[final.leaves]
    value[leaves], known[leaves] = final.value[final.leaves], True
    _hand_down(grown.left, value, known)
    stays = known | (grown.left == LEAF)
    left = np.where(stays, np.arange(len(own)), grown.left).astype(np.uint64)
    feature = np.where(stays, 0, grown.feature).astype(np.uint64)
    goes_right = np.where(stays[:, None], np.uint8(0), ~nodes.levels_left[own]).view("<u4").astype(np.uint32)
    return Followed((left << np.uint64(32)) | feature, goes_right.ravel(), value, _depth(final))


def _depth(tree: Tree) -> int:
    """How many steps the longest way has."""
    level, depth = tree.left[:1], 0
    while (level := level[level != LEAF]).size:
        level, depth = tree.left[np.concatenate([level, level + 1])], depth + 1
    return depth


@njit(nogil=True, cache=True)
def _find_places(feature, threshold, default, left, new_feature, new_threshold, new_default, new_left, places):  # type: ignore[no-untyped-def]
    for node in range(len(new_feature)):
        if new_feature[node] == LEAF:
            continue
        old = places[node]
        if feature[old] != new_feature[node] or threshold[old] != new_threshold[node]:
            return False
        if default[old] != new_default[node]:
            return False
        places[new_left[node]], places[new_left[node] + 1] = left[old], left[old] + 1
    return True


@njit(nogil=True, cache=True)
def _hand_down(left, value, known):  # type: ignore[no-untyped-def]
    for node in range(len(left)):
        if left[node] != LEAF and known[node]:
            child = left[node]
            value[child] = value[child + 1] = value[node]
            known[child] = known[child + 1] = True
