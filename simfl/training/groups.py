"""Small groups are joined with their neighbours, because a sum of few rows reveals much about each of them.

A group is the rows of one party whose gradients are added onto the same row of the builder. The party itself makes
sure that each of its groups has at least `min_group` of its rows before anything is sent: it need not trust anybody's
count. Rows that have weights count by them: a group is large enough if no row has more than 1 / `min_group` of its
weight. First a row of a small group tries its other similar rows; they are the nearest rows there are. What is left
joins the group of the row beside it, in an order in which similar rows are adjacent
(`preprocessing.similarity.order_by_likeness`).
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from simfl.arrays import Doubles, Floats, Ints, Longs

PASSES = 3
SPREAD = 4  # a group can grow by this many times min_group beyond the largest that the search led to


class Joined(NamedTuple):
    """Rows in groups that are large enough."""

    rows: Longs | None  # those that are in one; None: all
    goes_to: Ints  # for each of them the builder's row that its gradient goes to


def join_small_groups(
    similar: Ints, drawn: Ints, order: Ints, n_rows: int, min_group: int, weight: Floats | None = None
) -> Joined | None:
    """Every row in a group that is large enough; None if all of them together are not.

    `similar` (rows, k) are the candidates of each row, `drawn` the one that was drawn for this tree. Rows that no group
    can hide are in none: see `able_rows`.

    >>> rows = np.array([[0, 1], [0, 1], [1, 0], [2, 0]], dtype=np.int32)
    >>> join_small_groups(rows, rows[:, 0].copy(), np.arange(4, dtype=np.int32), n_rows=3, min_group=2).goes_to
    array([0, 0, 0, 0], dtype=int32)
    """
    rows = None if weight is None else able_rows(weight, min_group)
    if rows is not None and weight is not None:
        place = np.full(len(weight), -1, np.int32)
        place[rows] = np.arange(len(rows))
        similar, drawn, weight, order = similar[rows], drawn[rows], weight[rows], place[order]
        order = order[order >= 0]
    if len(drawn) < min_group:
        return None
    each = np.ones(len(drawn)) if weight is None else weight.astype(np.float64)
    goes_to = drawn.copy()
    groups = _groups(goes_to, each, n_rows)
    for _ in range(PASSES if similar.shape[1] > 1 else 0):
        if not _try_others(similar, goes_to, each, *groups, min_group):
            break
        if weight is not None:
            groups = _groups(goes_to, each, n_rows)
    _join_neighbours(goes_to, order, *groups, min_group)
    return Joined(rows, goes_to)


def able_rows(weight: Floats, min_group: int) -> Longs | None:
    """The rows that a group can hide; None: all.

    A row of weight zero hides none of its group. Nor is there a group for a row that has more than 1 / `min_group` of
    the weight of all rows.

    >>> able_rows(np.array([1, 9, 1, 0, 1], dtype=np.float32), 3)
    array([0, 2, 4])
    """
    order = np.argsort(weight, kind="stable")
    upwards = weight[order].astype(np.float64)
    fits = (upwards > 0) & (np.cumsum(upwards) >= min_group * upwards)
    n = int(np.flatnonzero(fits)[-1]) + 1 if fits.any() else 0
    rows: Longs = np.sort(order[int(np.searchsorted(upwards, 0.0, side="right")) : n])
    return None if len(rows) == len(weight) else rows


def _groups(goes_to: Ints, weight: Doubles, n_rows: int) -> tuple[Doubles, Doubles]:
    """Per group: its weight, and that of its heaviest row."""
    heaviest = np.zeros(n_rows)
    np.maximum.at(heaviest, goes_to, weight)
    return np.bincount(goes_to, weight, n_rows).astype(np.float64), heaviest


@njit(nogil=True, cache=True)
def _try_others(similar, goes_to, weight, total, heaviest, min_group):  # type: ignore[no-untyped-def]
    """Rows of small groups move to the fullest group of their other similar rows. Did any?

    A group that a heavy row has left is taken for smaller than it is, until groups are counted again.
    """
    moved = False
    for i in range(len(goes_to)):
        here, own = goes_to[i], weight[i]
        if total[here] >= min_group * heaviest[here]:
            continue
        best, limit = here, heaviest[here]
        for j in range(similar.shape[1]):
            other = similar[i, j]
            heavy = max(heaviest[other], own)
            if total[other] * limit > total[best] * heavy:  # more of the heaviest row's weight
                best, limit = other, heavy
        if best != here:
            total[here] -= own
            total[best] += own
            heaviest[best] = max(heaviest[best], own)
            goes_to[i] = best
            moved = True
    return moved


@njit(nogil=True, cache=True)
def _root(parent, group):  # type: ignore[no-untyped-def]
    while parent[group] != group:
        parent[group] = parent[parent[group]]
        group = parent[group]
    return group


@njit(nogil=True, cache=True)
def _join_neighbours(goes_to, order, total, heaviest, min_group):  # type: ignore[no-untyped-def]
    """Small groups join the group of the row before (or after) them in the order, until none is small."""
    parent = np.arange(len(total))
    joined = True
    while joined:
        joined = False
        for at in range(len(order)):
            here = _root(parent, goes_to[order[at]])
            if total[here] >= min_group * heaviest[here]:
                continue
            for step in (-1, 1):
                if 0 <= at + step < len(order):
                    other = _root(parent, goes_to[order[at + step]])
                    if other != here:
                        into, out_of = (other, here) if total[other] >= total[here] else (here, other)
                        parent[out_of] = into
                        total[into] += total[out_of]
                        heaviest[into] = max(heaviest[into], heaviest[out_of])
                        total[out_of] = 0
                        joined = True
                        break
    for i in range(len(goes_to)):
        goes_to[i] = _root(parent, goes_to[i])
