"""The rule at the one exit: no number stands for fewer than k of this party's own rows, and every number has noise.

A party applies it alone. It asks nobody and believes nobody: only its own rows count.

1. **Group.** Cells of a table are joined with their neighbours until each has none or at least k of the party's own
   rows, and no row is nearly all of a sum (official statistics know both: threshold and dominance rule). The rows of a
   joined cell go where the cell goes. A union of good cells is good, so sums of such cells are good, too.
2. **Noise** by cell key: it follows from the rows behind a number and from a secret of this party. The same rows have
   the same noise in whatever question, so asking again tells nothing more.

What the rule cannot stop: who knows all other rows of a sum, and finds many sums with and without one row. Differential
privacy (epsilon) is for that.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit

from simfl.arrays import AnyArray, Doubles, Longs
from simfl.preprocessing.splitmix import mix, row_tokens

DOMINANCE: Final = 1.25  # (sum of |g|)^2 is at least this many times the sum of g^2
NOISE: Final = 0.5  # deviation of the noise on a sum, in mean rows of this party
HARD: Final = 0.25  # and no less than this part of the largest row behind it
COUNT_NOISE: Final = 2.0  # deviation of the noise on a count, and of that on a sum over all rows
BITS: Final = 14
NORMAL: Final[Doubles] = np.array([NormalDist().inv_cdf((k + 0.5) / 2**BITS) for k in range(2**BITS)])
NORMAL.setflags(write=False)
NOWHERE: Final = 255  # joined with no cell: the rows of the node are too few, and are in no sum


class Cells(NamedTuple):
    """What a party knows of each cell of a level: its rows, and sums over them in whole units."""

    rows: Longs  # by what they count
    G: Longs
    H: Longs
    sizes: Longs  # of |g|
    squares: Longs  # of g^2, in other units


class Scale(NamedTuple):
    """How large the noise on sums of one batch is, in units. Per tree of the batch."""

    key: AnyArray  # uint64, one per output: trees of the same gradients have the same noise
    gradient: Doubles  # at least
    largest: Doubles  # of |g|: the noise that follows the rows of a sum is no larger than HARD times this
    square: Doubles  # the unit of `Cells.squares`
    hessian: Doubles


@dataclass(frozen=True)
class Rule:
    """One party's rule. `least`: the fewest own rows behind a number; `secret`: behind its noise."""

    least: int
    secret: bytes = field(repr=False)

    @property
    def is_on(self) -> bool:
        """Whether there is anything to protect: not with one party alone, nor with min_group=1."""
        return self.least > 1

    def key(self, *purpose: Any) -> int:
        """A secret number for one purpose."""
        text = repr(purpose).encode()
        return int.from_bytes(hashlib.blake2b(text, key=self.secret[:64], digest_size=8).digest(), "little")

    def of_all(self, sums: Doubles, n_rows: float, *purpose: Any) -> Doubles:
        """Sums over all rows of this party: zero where there are too few, else with noise in proportion.

        The noise follows from the purpose alone: a sum that changes from tree to tree keeps its share of noise.
        """
        if not self.is_on:
            return sums
        if n_rows < self.least:
            return np.zeros_like(sums)
        drawn = NORMAL[row_tokens(self.key(*purpose), len(sums)) >> np.uint64(64 - BITS)]
        noisy: Doubles = sums * np.maximum(1.0 + COUNT_NOISE / n_rows * drawn, 0.0)
        return noisy

    def of_classes(self, weights: Doubles, rows: AnyArray, *purpose: Any) -> Doubles:
        """The weight of each class: classes of too few rows are joined with the largest. With noise."""
        if not self.is_on:
            return weights
        if rows.sum() < self.least:
            return np.zeros_like(weights)
        out, small, largest = weights.copy(), rows < self.least, int(rows.argmax())
        small[largest] = False
        out[largest] += out[small].sum()
        out[small] = 0.0
        drawn = NORMAL[row_tokens(self.key(*purpose), len(out)) >> np.uint64(64 - BITS)]
        noisy: Doubles = np.maximum(out + (out > 0) * COUNT_NOISE * weights.sum() / rows.sum() * drawn, 0.0)
        return noisy

    def counts(self, cells: Longs, tokens: AnyArray, start: Longs) -> Longs:
        """Rows per cell of several columns: cells of too few rows are joined with a neighbour of the same column.

        `tokens`: per cell the sum of the secret numbers of its rows; `start`: per column its first cell, and the end.
        The last cell of a column, of missing values, is joined with the largest where it has too few.
        """
        if not self.is_on:
            return cells
        out = np.zeros(len(cells), np.int64)
        _counts(cells, tokens.copy(), start, self.least, COUNT_NOISE, NORMAL, out)
        return out

    def join(self, level: Any, cells: Cells, ordered: AnyArray, has_missing: AnyArray) -> AnyArray:
        """For every cell the one of its slot that its rows are counted in. `ordered`: per slot, not a category."""
        if not self.is_on:
            places: AnyArray = np.arange(len(cells.rows)) - np.repeat(level.cell_start[:-1], np.diff(level.cell_start))
            return places.astype(np.uint8)
        joined = np.empty(len(cells.rows), np.uint8)
        _join_cells(level.feature, level.cell_start, *cells, ordered, has_missing, self.least, joined)
        return joined


def sums(cells: Cells, joined: AnyArray, level: Any, ordered: AnyArray, scale: Scale) -> tuple[AnyArray, AnyArray]:
    """Sums of joined cells as they are sent: up to each cut where cells are ordered, else per cell; with noise.

    The last one of each slot is left out: it follows from the node's total.
    """
    n = level.n_cells - len(level.feature)
    G, H = np.empty(n, np.uint32), np.empty(n, np.uint32)
    tree = np.repeat(level.tree, np.diff(level.slot_start)).astype(np.int64)
    _sums(level.cell_start, tree, *cells, joined, ordered, *scale, NORMAL, G, H)
    return G, H


def totals(all_rows: Cells, least: int, scale: Scale) -> tuple[AnyArray, AnyArray]:
    """Sums over all rows of each tree, with noise; zero where they are too few."""
    out_G, out_H = np.zeros(len(scale.key), np.uint32), np.zeros(len(scale.key), np.uint32)
    _totals(*all_rows, least, *scale, NORMAL, out_G, out_H)
    return out_G, out_H


# --- kernels ---------------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def is_good(rows, size, square, least):  # type: ignore[no-untyped-def]
    """Whether a sum over these rows may leave."""
    return rows >= least and np.float64(size) * size >= DOMINANCE * square


@njit(nogil=True, cache=True)
def _heaviest(rows, first, order, begin, end):  # type: ignore[no-untyped-def]
    best = order[begin]
    for p in range(begin, end):
        best = order[p] if rows[first + order[p]] > rows[first + best] else best
    return best


@njit(nogil=True, cache=True)
def _put(joined, first, order, begin, end, target):  # type: ignore[no-untyped-def]
    for p in range(begin, end):
        joined[first + order[p]] = target


@njit(nogil=True, cache=True)
def _join_run(rows, sizes, squares, first, order, n, least, joined, groups):  # type: ignore[no-untyped-def]
    """Join neighbours in this order. Returns False where all of them together are no good cell.

    `groups`: room to note where each group begins, and its sums.
    """
    begin, n_groups = 0, 0
    own, size, square = 0, 0, 0.0
    for p in range(n):
        cell = first + order[p]
        joined[cell] = order[p]
        own, size, square = own + rows[cell], size + sizes[cell], square + squares[cell]
        if own > 0 and is_good(own, size, square, least):
            _put(joined, first, order, begin, p + 1, _heaviest(rows, first, order, begin, p + 1))
            groups[n_groups, 0], groups[n_groups, 1] = begin, own
            groups[n_groups, 2], groups[n_groups, 3] = size, square
            n_groups, begin, own, size, square = n_groups + 1, p + 1, 0, 0, 0.0
    if own == 0:
        return True
    while n_groups > 0:  # what is left joins those before it
        n_groups -= 1
        own, size = own + np.int64(groups[n_groups, 1]), size + np.int64(groups[n_groups, 2])
        square += groups[n_groups, 3]
        if is_good(own, size, square, least):
            begin = np.int64(groups[n_groups, 0])
            _put(joined, first, order, begin, n, _heaviest(rows, first, order, begin, n))
            return True
    return False


@njit(nogil=True, cache=True)
def _join_all(rows, sizes, squares, first, order, n, least, joined):  # type: ignore[no-untyped-def]
    """All rows of a node are in one cell, or in none."""
    own, size, square = 0, 0, 0.0
    for p in range(n):
        cell = first + order[p]
        own, size, square = own + rows[cell], size + sizes[cell], square + squares[cell]
    good = is_good(own, size, square, least)
    _put(joined, first, order, 0, n, _heaviest(rows, first, order, 0, n) if good else NOWHERE)


@njit(nogil=True, cache=True)
def _join_nearest(rows, sizes, squares, first, value, n, least, joined):  # type: ignore[no-untyped-def]
    """Levels that are too few join the good one with the nearest value. Returns False where that is not enough."""
    for c in range(n):
        joined[first + c] = c
        if rows[first + c] == 0 or is_good(rows[first + c], sizes[first + c], np.float64(squares[first + c]), least):
            continue
        nearest = -1
        for other in range(n):
            at = first + other
            if rows[at] > 0 and is_good(rows[at], sizes[at], np.float64(squares[at]), least):
                if nearest < 0 or abs(value[other] - value[c]) < abs(value[nearest] - value[c]):
                    nearest = other
        if nearest < 0:
            return False
        joined[first + c] = nearest
    for target in range(n):
        own, size, square = 0, 0, 0.0
        for c in range(n):
            if joined[first + c] == target:
                own, size, square = own + rows[first + c], size + sizes[first + c], square + squares[first + c]
        if own > 0 and not is_good(own, size, square, least):
            return False
    return True


@njit(nogil=True, cache=True)
def _join_missing(rows, sizes, squares, first, order, n, least, all_good, joined):  # type: ignore[no-untyped-def]
    """The cell behind the others has the missing values: too few of them are joined with the largest."""
    cell = first + n
    joined[cell] = n
    order[n] = n
    if not all_good:
        _join_all(rows, sizes, squares, first, order, n + 1, least, joined)
        return
    if rows[cell] == 0 or is_good(rows[cell], sizes[cell], np.float64(squares[cell]), least):
        return
    target = joined[first + _heaviest(rows, first, order, 0, n)] if n else 0
    own, size, square = rows[cell], sizes[cell], np.float64(squares[cell])
    for c in range(n):
        if joined[first + c] == target:
            own, size, square = own + rows[first + c], size + sizes[first + c], square + squares[first + c]
    if is_good(own, size, square, least):
        joined[cell] = target
    else:
        _join_all(rows, sizes, squares, first, order, n + 1, least, joined)


@njit(nogil=True, cache=True)
def _join_cells(  # type: ignore[no-untyped-def]
    feature, cell_start, rows, G, H, sizes, squares, ordered, has_missing, least, joined
):
    order, value, groups = np.empty(256, np.int64), np.empty(256), np.empty((256, 4))
    for s in range(len(feature)):
        first = np.int64(cell_start[s])
        n = np.int64(cell_start[s + 1]) - first - (1 if has_missing[s] else 0)
        for p in range(n):
            order[p] = p if feature[s] & 1 else n - 1 - p
        all_good = False
        if not ordered[s]:  # of a category: neighbours are levels with about the same best value
            for p in range(n):
                order[p], value[p] = p, G[first + p] / (H[first + p] + 1.0)
            for p in range(1, n):
                q = p
                while q > 0 and value[order[q - 1]] > value[order[q]]:
                    order[q - 1], order[q] = order[q], order[q - 1]
                    q -= 1
            all_good = _join_nearest(rows, sizes, squares, first, value, n, least, joined)
        if not all_good:
            all_good = _join_run(rows, sizes, squares, first, order, n, least, joined, groups)
        if has_missing[s]:
            _join_missing(rows, sizes, squares, first, order, n, least, all_good, joined)
        elif not all_good:
            _join_all(rows, sizes, squares, first, order, n, least, joined)


@njit(nogil=True, cache=True)
def _noisy(G, H, square, key, least_g, largest, unit, scale_h, normal):  # type: ignore[no-untyped-def]
    """A pair of sums with its noise: the same sums of the same batch have the same."""
    token = mix(np.uint64(key) ^ mix(np.uint64(G) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(H)))
    g, h = normal[token >> np.uint64(64 - BITS)], normal[(token >> np.uint64(64 - 2 * BITS)) & np.uint64(2**BITS - 1)]
    own = HARD * min(np.sqrt(square * unit), largest)
    scale = own if own > least_g else least_g
    return np.uint32(G + np.int64(np.rint(scale * g))), np.uint32(H + np.int64(np.rint(scale_h * h)))


@njit(nogil=True, cache=True)
def _sums(  # type: ignore[no-untyped-def]
    cell_start, tree, rows, G, H, sizes, squares, joined, ordered, key, least_g, largest, unit, scale_h, normal,
    out_G, out_H,
):  # fmt: skip
    n, at = np.zeros(256, np.int64), 0
    g, h, q = np.zeros(256, np.int64), np.zeros(256, np.int64), np.zeros(256, np.int64)
    for s in range(len(ordered)):
        first, n_cells, t = cell_start[s], cell_start[s + 1] - cell_start[s], tree[s]
        for c in range(n_cells):
            n[c] = g[c] = h[c] = q[c] = 0
        for c in range(n_cells):
            to = joined[first + c]
            if to == NOWHERE:
                continue
            n[to], g[to] = n[to] + rows[first + c], g[to] + G[first + c]
            h[to], q[to] = h[to] + H[first + c], q[to] + squares[first + c]
        for c in range(n_cells - 1):
            if c > 0 and ordered[s]:
                n[c], g[c], h[c], q[c] = n[c] + n[c - 1], g[c] + g[c - 1], h[c] + h[c - 1], q[c] + q[c - 1]
            if n[c] > 0:
                out_G[at], out_H[at] = _noisy(
                    g[c], h[c], q[c], key[t], least_g[t], largest[t], unit[t], scale_h[t], normal
                )
            else:
                out_G[at], out_H[at] = 0, 0
            at += 1


@njit(nogil=True, cache=True)
def _totals(  # type: ignore[no-untyped-def]
    rows, G, H, sizes, squares, least, key, least_g, largest, unit, scale_h, normal, out_G, out_H
):
    for t in range(len(out_G)):
        if rows[t] > 0 and is_good(rows[t], sizes[t], np.float64(squares[t]), least):
            out_G[t], out_H[t] = _noisy(
                G[t], H[t], squares[t], key[t], least_g[t], largest[t], unit[t], scale_h[t], normal
            )


@njit(nogil=True, cache=True)
def _counts(rows, tokens, start, least, noise, normal, out):  # type: ignore[no-untyped-def]
    most = 1
    for j in range(len(start) - 1):
        most = max(most, start[j + 1] - start[j])
    order, sums = np.empty(most + 1, np.int64), np.zeros(len(rows), np.uint64)
    joined, groups = np.empty(len(rows), np.int64), np.empty((most + 1, 4))
    nothing = np.zeros(len(rows), np.int64)
    for j in range(len(start) - 1):
        first = start[j]
        n = start[j + 1] - first - 1
        for p in range(n):
            order[p] = p
        all_good = _join_run(rows, nothing, nothing, first, order, n, least, joined, groups)
        _join_missing(rows, nothing, nothing, first, order, n, least, all_good, joined)
        for c in range(first, start[j + 1]):
            to = first + joined[c]
            if joined[c] == NOWHERE:
                continue
            out[to] += rows[c]
            sums[to] += tokens[c]
        for c in range(first, start[j + 1]):
            if out[c] > 0:
                drawn = noise * normal[mix(sums[c]) >> np.uint64(64 - BITS)]
                out[c] = max(out[c] + np.int64(np.rint(drawn)), 0)
