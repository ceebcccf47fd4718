"""Small groups are joined with their neighbours, because a sum of few rows reveals much about each of them.

A group is the rows of one party whose gradients are added onto the same row of the builder. The party itself makes
sure that each of its groups has at least `min_group` of its rows before anything is sent: it need not trust anybody's
count. First a row of a small group tries its other similar rows; they are the nearest rows there are. What is left
joins the group of the row beside it, in an order in which similar rows are adjacent
(`preprocessing.similarity.order_by_likeness`).
"""

import numpy as np
from numba import njit

from simfl.arrays import Ints

PASSES = 3
SPREAD = 4  # a group can grow by this many times min_group beyond the largest that the search led to


def join_small_groups(similar: Ints, drawn: Ints, order: Ints, n_rows: int, min_group: int) -> Ints | None:
    """For each row the builder's row that its gradient goes to; None if there are not even `min_group` rows.

    `similar` (rows, k) are the candidates of each row, `drawn` the one that was drawn for this tree.

    >>> rows = np.array([[0, 1], [0, 1], [1, 0], [2, 0]], dtype=np.int32)
    >>> join_small_groups(rows, rows[:, 0].copy(), np.arange(4, dtype=np.int32), n_rows=3, min_group=2)
    array([0, 0, 0, 0], dtype=int32)
    """
    if len(drawn) < min_group:
        return None
    counts = np.bincount(drawn, minlength=n_rows)
    goes_to = drawn.copy()
    for _ in range(PASSES if similar.shape[1] > 1 else 0):
        if not _try_others(similar, goes_to, counts, min_group):
            break
    _join_neighbours(goes_to, order, counts, min_group)
    return goes_to


@njit(nogil=True, cache=True)
def _try_others(similar, goes_to, counts, min_group):  # type: ignore[no-untyped-def]
    """Rows of small groups move to the fullest group of their other similar rows. Did any?"""
    moved = False
    for i in range(len(goes_to)):
        here = goes_to[i]
        if counts[here] >= min_group:
            continue
        best = here
        for j in range(similar.shape[1]):
            if counts[similar[i, j]] > counts[best]:
                best = similar[i, j]
        if best != here:
            counts[here] -= 1
            counts[best] += 1
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
def _join_neighbours(goes_to, order, counts, min_group):  # type: ignore[no-untyped-def]
    """Small groups join the group of the row before (or after) them in the order, until none is small."""
    parent = np.arange(len(counts))
    joined = True
    while joined:
        joined = False
        for at in range(len(order)):
            here = _root(parent, goes_to[order[at]])
            if counts[here] >= min_group:
                continue
            for step in (-1, 1):
                if 0 <= at + step < len(order):
                    other = _root(parent, goes_to[order[at + step]])
                    if other != here:
                        into, out_of = (other, here) if counts[other] >= counts[here] else (here, other)
                        parent[out_of] = into
                        counts[into] += counts[out_of]
                        counts[out_of] = 0
                        joined = True
                        break
    for i in range(len(goes_to)):
        goes_to[i] = _root(parent, goes_to[i])
