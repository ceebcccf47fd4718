"""Cut points from counts: a grid that fits any column, the rows per cell summed over all parties, points at quantiles.

The first grid needs no range: its cells are of equal size in the order of all float32 numbers, by sign, exponent and
leading bits, as in DDSketch. Where the rows are it is divided further, twice, and they are counted again. Only total
counts enter the choice, so it is the same at every party, on any machine.

A value becomes a bin of one byte: the number of points that do not exceed it. So `bin <= j` means `value < points[j]`,
XGBoost's own comparison. A category has no points: its bins are its levels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from scipy import sparse

from simfl.arrays import AnyArray, Floats, Ints, Longs, Mask, Table
from simfl.joint.level import MISSING
from simfl.joint.rows import BinnedRows, SparseRows
from simfl.params import MOST_CUTS
from simfl.preprocessing.splitmix import mix
from simfl.preprocessing.splitmix import row_tokens as tokens_of

FIRST = 256  # cells of one column's first grid
FINEST = 512  # and of the grid that is chosen from
ROWS_PER_CELL = 8  # of the finer grid, on average: counts have noise
ALL_CELLS = 2**18  # of all columns together: text has thousands
COARSEST = 16
ALL_POINTS = 2**16  # of all columns together: every node remembers which of them were asked about
MASS = 16  # a cell with more than this part of the rows may be a single value: it gets no more parts than that
DENSE = 16  # from one entry per this many cells on, dense rows are faster (a9a: 1.7 times at one in nine)
FEW_MISSING = 10  # fewer missing values of all parties have no cell of their own: counts have noise
END = 0x7F800000  # the place of infinity among all float32 numbers in their order


_NO_POINTS: Floats = np.empty(0, dtype=np.float32)
_ALL = slice(None)


@dataclass(frozen=True, eq=False)
class Grid:
    """Per column: the points between cells, and the number of levels (0 for numbers)."""

    points: tuple[Floats, ...]
    levels: Ints

    @property
    def start(self) -> Longs:
        """Per column the first of its cells; one more at the end. The last cell of a column counts missing values."""
        return np.cumsum([0, *(self.n_bins(j) + 1 for j in range(len(self.points)))])

    def n_bins(self, column: int) -> int:
        """How many bins the known values of a column can be in."""
        levels = int(self.levels[column])
        return min(levels, MISSING) if levels else len(self.points[column]) + 1


@dataclass(frozen=True, eq=False)
class Cuts(Grid):
    """At most 254 points per column, and whether any row has a missing value there."""

    has_missing: Mask


def grid(levels: AnyArray) -> Grid:
    """The first grid, the same for all columns of numbers. `levels` has 0 for these."""
    known = np.asarray(levels, dtype=np.int32)
    most, shift = _most_cells(known == 0, FIRST), 24
    while 2 * (END >> shift) + 2 > most:
        shift += 1
    points = _numbers(np.arange(-(END >> shift), (END >> shift) + 1) << shift)
    return Grid(tuple(_NO_POINTS if n else points for n in known), known)


def refined(grid: Grid, counts: Longs) -> Grid:
    """The grid with cells divided in proportion to their rows; neighbours without rows become one."""
    start, finer = grid.start, []
    most = _most_cells(np.diff(start) > 2, FINEST)
    for j, points in enumerate(grid.points):
        own = counts[start[j] : start[j + 1] - 1]
        finer.append(points if not len(points) else _refined(points, own, most))
    return Grid(tuple(finer), grid.levels)


def _refined(points: Floats, counts: Longs, most: int) -> Floats:
    """One column."""
    known = int(counts.sum())
    rows = np.minimum(counts, 1 + known // MASS)
    n = 1 + rows * min(most, known // ROWS_PER_CELL) // max(int(rows.sum()), 1)
    edges = np.concatenate([[-END], _places_of(points), [END]])
    low, high = edges[:-1], edges[1:]
    step = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
    inner = np.repeat(low, n) + np.repeat(high - low, n) * step // np.repeat(n, n)
    first = np.cumsum(n) - n
    empty = np.append(False, (counts[1:] == 0) & (counts[:-1] == 0))  # the lower edge of these says nothing
    keep = np.ones(len(inner), bool)
    keep[first[empty]] = False
    keep[0] = False  # the lowest number of all
    return _numbers(np.unique(inner[keep]))


def _numbers(places: Longs) -> Floats:
    """float32 numbers by their place in the order of all of them; zero is at 0."""
    bits = np.abs(places).astype(np.uint32) | np.where(places < 0, np.uint32(0x80000000), np.uint32(0))
    return bits.view(np.float32)


def _places_of(numbers: Floats) -> Longs:
    """The inverse of `_numbers`."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32).astype(np.int64)
    places: Longs = np.where(bits & 0x80000000, -(bits & 0x7FFFFFFF), bits)
    return places


def cell_counts(X: Table, grid: Grid, tokens: AnyArray) -> tuple[Longs, AnyArray]:
    """How many of these rows are in each cell of the grid, and the sum of their tokens."""
    start = grid.start
    counts, sums = np.zeros(start[-1], dtype=np.int64), np.zeros(start[-1], dtype=np.uint64)
    columns = X.tocsc() if sparse.issparse(X) else X
    for j in range(len(grid.points)):
        own, missing = slice(start[j], start[j + 1]), int(start[j + 1] - start[j] - 1)
        rows = columns.indices[columns.indptr[j] : columns.indptr[j + 1]] if sparse.issparse(X) else _ALL
        bins = _bins(_column(columns, j), grid, j, missing=missing)
        _add_rows(bins, tokens[rows], counts[own], sums[own])
        if sparse.issparse(X):  # absent entries
            counts[own][-1] += X.shape[0] - len(bins)
            sums[own][-1:] += tokens.sum(keepdims=True) - tokens[rows].sum(keepdims=True)
    return counts, sums


def row_tokens(X: Table, key: int) -> AnyArray:
    """A number per row that follows from its values and a secret: the same row has the same one in whatever table."""
    out = np.zeros(X.shape[0], np.uint64)
    columns, keys = X.tocsc() if sparse.issparse(X) else X, tokens_of(key, X.shape[1])
    for j in range(X.shape[1]):
        values = np.ascontiguousarray(_column(columns, j), np.float32).view(np.uint32).astype(np.uint64)
        rows = columns.indices[columns.indptr[j] : columns.indptr[j + 1]] if sparse.issparse(X) else _ALL
        out[rows] += mix.py_func(values ^ keys[j : j + 1])  # type: ignore[no-untyped-call]
    tokens: AnyArray = mix.py_func(out)  # type: ignore[no-untyped-call]
    return tokens


def choose(grid: Grid, total: Longs, max_bin: int, least: int) -> Cuts:
    """Points at the quantiles of the total counts; between two points there are at least `least` rows."""
    start = grid.start
    divisible = np.array([len(own) > 0 for own in grid.points], bool)
    most = min(max_bin - 1, MOST_CUTS, max(ALL_POINTS // max(int(divisible.sum()), 1), COARSEST))
    points = [
        own[_chosen(total[start[j] : start[j + 1] - 1], most, max(least, 1))] if divisible[j] else _NO_POINTS
        for j, own in enumerate(grid.points)
    ]
    return Cuts(tuple(points), grid.levels, has_missing=total[start[1:] - 1] >= max(least, FEW_MISSING))


def binned(X: Table, cuts: Cuts) -> BinnedRows | SparseRows:
    """The rows as bins. A sparse table with many entries becomes a dense one, where an absent entry is missing."""
    columns = X.tocsc() if sparse.issparse(X) else X
    if sparse.issparse(X) and X.nnz * DENSE < X.shape[0] * X.shape[1]:
        parts = [_bins(_column(columns, j), cuts, j, MISSING).astype(np.uint8) for j in range(X.shape[1])]
        start, row = columns.indptr.astype(np.int64), columns.indices.astype(np.int32)
        return SparseRows(start, row, np.concatenate(parts), X.shape[0])
    out = np.full(X.shape, MISSING, dtype=np.uint8)
    for j in range(X.shape[1]):
        rows = columns.indices[columns.indptr[j] : columns.indptr[j + 1]] if sparse.issparse(X) else slice(None)
        out[rows, j] = _bins(_column(columns, j), cuts, j, MISSING)
    return BinnedRows(out)


def _most_cells(have_some: Mask, most: int) -> int:
    """Of a column, where these columns share all cells."""
    return min(max(ALL_CELLS // max(int(have_some.sum()), 1), COARSEST), most)


def _column(columns: Table, j: int) -> Floats:
    """The values of a column; of a sparse table only those that are present."""
    if sparse.issparse(columns):
        return columns.data[columns.indptr[j] : columns.indptr[j + 1]]  # type: ignore[no-any-return]
    return columns[:, j]  # type: ignore[no-any-return]


def _bins(values: Floats, grid: Grid, j: int, missing: int) -> AnyArray:
    out = np.empty(len(values), np.uint16)
    if grid.levels[j]:
        _levels(values, grid.n_bins(j) - 1, missing, out)
    else:
        _places(values, grid.points[j], missing, out)
    return out


def _chosen(counts: Longs, most: int, least: int) -> Longs:
    """The numbers of at most `most` points: the smallest aim of rows per bin that needs no more, by bisection."""
    out = np.empty(len(counts), dtype=np.int64)
    low, high = least, max(least, int(counts.sum()))
    while low < high:
        aim = (low + high) // 2
        if _place(counts, aim, least, out) <= most:
            high = aim
        else:
            low = aim + 1
    return out[: _place(counts, low, least, out)]


@njit(nogil=True, cache=True)
def _levels(values, last, missing, out):  # type: ignore[no-untyped-def]
    for i in range(len(values)):
        out[i] = missing if np.isnan(values[i]) else min(np.int64(values[i]), last)


@njit(nogil=True, cache=True)
def _places(values, points, missing, out):  # type: ignore[no-untyped-def]
    """How many points do not exceed each value: halving without a jump that the processor would have to guess."""
    for i in range(len(values)):
        value, first, n = values[i], 0, len(points)
        while n > 1:
            half = n >> 1
            first += half if points[first + half - 1] <= value else 0
            n -= half
        if n == 1 and points[first] <= value:
            first += 1
        out[i] = missing if np.isnan(value) else first


@njit(nogil=True, cache=True)
def _add_rows(bins, tokens, counts, sums):  # type: ignore[no-untyped-def]
    for i in range(len(bins)):
        counts[bins[i]] += 1
        sums[bins[i]] += tokens[i]


@njit(nogil=True, cache=True)
def _place(counts, aim, least, out):  # type: ignore[no-untyped-def]
    """Close a bin where it has `aim` rows, or `least` before a cell that has `aim` alone. Returns how many points.

    A point is in the middle of the empty cells around it.
    """
    n, rows, last = 0, 0, -1  # `last`: the last cell with rows
    for cell in range(counts.size):
        if counts[cell] == 0:
            continue
        if rows >= aim or (rows >= least and counts[cell] >= aim):
            out[n] = (last + cell - 1) // 2  # point j is between cells j and j + 1
            n, rows = n + 1, 0
        rows += counts[cell]
        last = cell
    return n - 1 if n > 0 and rows < least else n
