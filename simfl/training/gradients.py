"""Gradients of one party's rows, summed onto the rows of another party that they resemble: the core of stage 2."""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from simfl.arrays import Doubles, Floats, Ints, Longs
from simfl.preprocessing.splitmix import STEP, RowTokens, below, mix, row_token, row_tokens
from simfl.training._early import fetch_early

_AHEAD = 64  # rows that are drawn before the first of them is added


class Landed(NamedTuple):
    """What was added onto the rows of a builder."""

    sums: Doubles  # (rows, outputs, 2): gradients and hessians side by side, so that memory is fetched once
    tokens: (
        RowTokens  # a random number per row, from the seed and the rows that were added: in whatever order it stands
    )


def sum_onto_similar(similar_rows: Ints, g: Floats, h: Floats, n_rows: int, seed: int) -> Landed:
    """Gradients and hessians, each row's added onto one of its similar rows among the builder's `n_rows`.

    The paper has one similar row. We keep several and draw one for each tree (from its `seed`), so that over many
    trees a gradient reaches the whole neighbourhood; sharing it out over the neighbours within one tree is
    measurably worse.

    >>> ones = np.ones((3, 1), dtype=np.float32)
    >>> sum_onto_similar(np.array([[2], [0], [2]], dtype=np.int32), ones, ones, n_rows=4, seed=0).sums[..., 0].ravel()
    array([1., 0., 2., 0.])
    """
    landed = Landed(np.zeros((n_rows, g.shape[1], 2)), np.zeros(n_rows, dtype=np.uint64))
    ahead = np.empty(_AHEAD, dtype=np.uint64), np.empty(_AHEAD, dtype=np.uint64)
    _sum_onto_similar(similar_rows, np.uint64(seed), g, h, *landed, *ahead)
    return landed


def draw_similar(similar_rows: Ints, seed: int) -> Ints:
    """The similar row that each row's gradient goes to under this seed."""
    n, k = similar_rows.shape
    return similar_rows[np.arange(n), below.py_func(row_tokens(seed, n), k)].astype(np.int32)  # type: ignore[no-untyped-call]


def weighted(own: Floats, sums: Longs, exponent: int, places: Ints | None, spare: int = 0) -> Floats:
    """The paper's weighted gradients: the builder's own plus the sums of the others, on one grid.

    On a grid sums are exact, so that the tree does not depend on the number of threads. `places`: the row that each of
    the sums belongs to; None: they are in the order of the rows. The builder's own numbers have `spare` more bits.

    >>> own, sums = np.array([[0.3], [0.7]], dtype=np.float32), np.array([[1], [2]])
    >>> weighted(own, sums, -2, np.array([1, 0])).ravel(), weighted(own, sums, -2, np.array([1, 0]), spare=2).ravel()
    (array([0.75, 1.  ], dtype=float32), array([0.8125, 0.9375], dtype=float32))
    """
    total = np.empty_like(own)
    rows = np.arange(len(own), dtype=np.int32) if places is None else places
    _add_on_grid(own, sums, rows, math.ldexp(1.0, exponent - spare), 1 << spare, total)
    return total


def sum_per_leaf(leaf: Ints, g: Floats, h: Floats, output: int, n_leaves: int) -> tuple[Doubles, Doubles]:
    """Gradients and hessians of one output, added up in every leaf."""
    G, H = (np.bincount(leaf, each[:, output], n_leaves).astype(np.float64) for each in (g, h))
    return G, H


def most_uses(similar_rows: Ints, n_rows: int) -> int:
    """How many rows can be drawn onto one row at most: a bound on the sums."""
    return int(np.bincount(similar_rows.ravel(), minlength=n_rows).max())


def add_values(margin: Floats, output: int, leaf: Ints, values: Floats) -> None:
    """Add every row's leaf value to its margin."""
    margin[:, output] += values[leaf]


@njit(nogil=True, cache=True)
def _sum_onto_similar(similar, seed, g, h, sums, tokens, drawn, rows):  # type: ignore[no-untyped-def]
    n, width = similar.shape[0], np.uint64(2 * g.shape[1])
    for start in range(0, n, len(rows)):
        size = len(rows) if start + len(rows) <= n else n - start
        for i in range(size):  # where they land is in no order of memory: it is fetched early
            drawn[i] = row_token(seed, start + i)
            rows[i] = similar[start + i, below(drawn[i], similar.shape[1])]
            fetch_early(sums, rows[i] * width)
            fetch_early(tokens, rows[i])
        for i in range(size):
            tokens[rows[i]] += mix(drawn[i] + STEP)
            for output in range(g.shape[1]):
                sums[rows[i], output, 0] += g[start + i, output]
                sums[rows[i], output, 1] += h[start + i, output]


@njit(nogil=True, cache=True)
def _add_on_grid(own, sums, places, grid, times, total):  # type: ignore[no-untyped-def]
    for i in range(len(places)):
        row = places[i]
        for output in range(own.shape[1]):
            total[row, output] = (np.rint(np.float64(own[row, output]) / grid) + times * sums[i, output]) * grid
