"""Tree traversal: the leaf that each row of a party falls into.

Raw values decide, not bins: a tree from another party has thresholds that are not among this party's quantile cuts, so
binned rows would take wrong turns. A missing value takes the default direction, as in XGBoost.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numba import njit
from scipy import sparse

from simfl.arrays import AnyArray, Floats, Ints, Table
from simfl.training._early import fetch_early
from simfl.training.trees import LEAF, Tree

BLOCK = 64  # rows that go down a tree side by side
LINE = 16  # cells that are fetched at once


class Walker(Protocol):
    """A table whose rows can be sent down trees."""

    def leaf_numbers(self, tree: Tree) -> Ints:
        """The leaf that each row falls into, counted among the leaves from 0."""


def walker(X: Table, *, by_level: bool = False) -> Walker:
    """The rows in the form that is fastest to traverse. `by_level`: trees may split categories by their levels."""
    return _Sparse(X) if sparse.issparse(X) and not by_level else _Dense(X)


def leaf_numbers(tree: Tree, X: Table) -> Ints:
    """The leaf of each row, for a table that is used only once."""
    return walker(X).leaf_numbers(tree)


class _Dense:
    def __init__(self, X: Floats) -> None:
        self.cells = np.ascontiguousarray(X)
        self.has_missing = _has_missing(self.cells)

    def leaf_numbers(self, tree: Tree) -> Ints:
        out = np.empty(len(self.cells), dtype=np.int32)
        if tree.goes_right is not None:
            arrays = (tree.level_set, tree.goes_right, tree.feature, tree.threshold, tree.default_left, tree.left)
            _walk_levels(self.cells, *arrays, _leaf_places(tree), out)
            return out
        cut = np.where(tree.feature == LEAF, np.float32(np.nan), tree.threshold)  # at a leaf: nothing reaches it
        missing = np.float32(np.nan) if self.has_missing else None
        _descend(self.cells, missing, cut, *_signposts(tree), np.empty(BLOCK, dtype=np.uint32), out)
        return out


class _Sparse:
    def __init__(self, X: Table) -> None:
        self.X = X

    def leaf_numbers(self, tree: Tree) -> Ints:
        out = np.empty(self.X.shape[0], dtype=np.int32)
        arrays = (tree.feature, tree.threshold, tree.default_left, tree.left, _leaf_places(tree), out)
        _walk_sparse(self.X.data, self.X.indices, self.X.indptr, *arrays)
        return out


def _leaf_places(tree: Tree) -> Ints:
    """The place of every node among the leaves, where it is one."""
    return np.cumsum(tree.feature == LEAF, dtype=np.int32) - np.int32(1)


def _signposts(tree: Tree) -> tuple[AnyArray, AnyArray, int]:
    """The tree as blocks of rows traverse it, in which a leaf leads to itself: see `_put_up`. And its depth."""
    posts, to_left = np.empty((4, len(tree.feature)), dtype=np.uint32), np.empty(len(tree.feature), dtype=np.bool_)
    return posts, to_left, _put_up(tree.feature, tree.default_left, tree.left, posts, to_left)


# --- compiled: plain loops, because NumPy's functions would have to be compiled, too ---------------------------------


@njit(nogil=True, cache=True)
def _put_up(feature, default_left, left, posts, to_left):  # type: ignore[no-untyped-def]
    """Per node: its feature, the next node, its place among the leaves, its depth. The depth of the tree.

    Unsigned numbers spare a test for negative indices at every step.
    """
    n_leaves, depth = 0, 0
    posts[3, 0] = 0
    for node in range(len(feature)):
        posts[0, node], posts[1, node], posts[2, node], to_left[node] = 0, node, n_leaves, True
        if feature[node] == LEAF:
            n_leaves += 1
        else:
            a = left[node]
            posts[0, node], posts[1, node], to_left[node] = feature[node], a, default_left[node]
            depth = posts[3, node] + 1
            posts[3, a], posts[3, a + 1] = depth, depth
    return depth


@njit(nogil=True, cache=True)
def _descend(X, missing, cut, posts, to_left, depth, at, out):  # type: ignore[no-untyped-def]
    """Values from the node's cut on go right. `missing`: None if there are none."""
    # A block of rows goes down level by level without branches, so that the processor works on many rows at once.
    cells, width = X.ravel(), np.uint64(X.shape[1])
    feature_of, next_of, place = posts[0], posts[1], posts[2]
    for start in range(0, len(out), BLOCK):
        size = BLOCK if start + BLOCK <= len(out) else len(out) - start
        last = start + 2 * BLOCK if start + 2 * BLOCK <= len(out) else len(out)
        later, end = np.uint64(start + size) * width, np.uint64(last) * width
        while later < end:  # the next block's rows
            fetch_early(cells, later)
            later += np.uint64(LINE)
        for i in range(size):
            at[i] = 0
        for _ in range(depth):
            for i in range(size):
                node = at[i]
                x = cells[np.uint64(start + i) * width + feature_of[node]]
                if missing is None:
                    goes_right = x >= cut[node]
                else:
                    is_missing = x != x  # NaN differs from itself
                    goes_right = (~is_missing & (x >= cut[node])) | (is_missing & ~to_left[node])
                at[i] = next_of[node] + np.uint32(goes_right)
        for i in range(size):
            out[start + i] = place[at[i]]


@njit(nogil=True, cache=True)
def _has_missing(X):  # type: ignore[no-untyped-def]
    for row in range(X.shape[0]):
        for column in range(X.shape[1]):
            if X[row, column] != X[row, column]:
                return True
    return False


@njit(nogil=True, cache=True)
def _walk_levels(X, level_set, goes_right, feature, threshold, default_left, left, place, out):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        node = 0
        while feature[node] >= 0:
            x = X[i, feature[node]]
            if np.isnan(x):
                goes_left = default_left[node]
            elif level_set[node] < 0:
                goes_left = x < threshold[node]
            else:  # a level that the builder has never seen is in no set: it goes left, as in XGBoost
                level = int(x)
                goes_left = level >= goes_right.shape[1] or not goes_right[level_set[node], level]
            node = left[node] if goes_left else left[node] + 1
        out[i] = place[node]


@njit(nogil=True, cache=True)
def _walk_sparse(data, indices, indptr, feature, threshold, default_left, left, place, out):  # type: ignore[no-untyped-def]
    for i in range(len(indptr) - 1):
        node = 0
        while feature[node] >= 0:
            x = np.float32(np.nan)  # an entry that is not stored is missing
            low, high = indptr[i], indptr[i + 1]
            while low < high:
                middle = (low + high) // 2
                if indices[middle] < feature[node]:
                    low = middle + 1
                else:
                    high = middle
            if low < indptr[i + 1] and indices[low] == feature[node]:
                x = data[low]
            goes_left = default_left[node] if np.isnan(x) else x < threshold[node]
            node = left[node] if goes_left else left[node] + 1
        out[i] = place[node]
