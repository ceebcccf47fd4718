"""Cut points from counts: a public grid, the rows per cell summed over all parties, and points at their quantiles.

The first grid is a function of the common mean and deviation of each column. Where the rows are it is divided further,
and they are counted again. Only total counts and grids enter the choice, so it is the same at every party, on any
machine: exponentials come from `decimal`, not from a machine's library.

A value becomes a bin of one byte: the number of points that do not exceed it. So `bin <= j` means `value < points[j]`,
XGBoost's own comparison. A category has no points: its bins are its levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache

import numpy as np
from numba import njit
from scipy import sparse

from simfl.arrays import AnyArray, Doubles, Floats, Ints, Longs, Mask, Table
from simfl.joint.level import MISSING
from simfl.joint.rows import BinnedRows, SparseRows
from simfl.params import MOST_CUTS

REACH = 1e4  # the outermost points of the first grid, in deviations
FINE = 0.5  # deviations from the mean within which they are evenly spaced
FIRST = 256  # cells of one column's first grid
FINEST = 512  # and of the grid that is chosen from
ROWS_PER_CELL = 8  # of the finer grid, on average: counts have noise
ALL_CELLS = 2**18  # of all columns together: text has thousands
COARSEST = 16
ALL_POINTS = 2**16  # of all columns together: every node remembers which of them were asked about
MASS = 16  # a cell with more than this part of the rows may be a single value: it gets no more parts than that
DENSE = 16  # from one entry per this many cells on, dense rows are faster (a9a: 1.7 times at one in nine)
FEW_MISSING = 10  # fewer missing values of all parties have no cell of their own: counts have noise


_NO_POINTS: Floats = np.empty(0, dtype=np.float32)


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


def grid(mean: Doubles, deviation: Doubles, levels: Sequence[int] | AnyArray) -> Grid:
    """The first grid: fine near the mean, ever coarser away from it. `levels` has 0 for a column of numbers.

    A column that does not vary (deviation zero, or beyond float32) has no points.
    """
    known = np.asarray(levels, dtype=np.int32)
    varies = (known == 0) & (deviation > 0) & (deviation < np.finfo(np.float32).max)
    steps = _steps(_most_cells(varies, FIRST) - 1)
    points = [_as_points(m + s * steps) if v else _NO_POINTS for m, s, v in zip(mean, deviation, varies, strict=True)]
    return Grid(tuple(points), known)


def parts(grid: Grid, counts: Longs) -> Longs:
    """Into how many parts each cell of the first grid is divided: in proportion to its rows."""
    out, start = np.ones(len(counts), dtype=np.int64), grid.start
    most = _most_cells(np.diff(start) > 2, FINEST)
    for j, points in enumerate(grid.points):
        inner = slice(start[j] + 1, start[j] + len(points))  # the outermost cells have no end
        known = int(counts[start[j] : start[j + 1] - 1].sum())
        if len(points) > 1 and known > 0:
            rows = np.minimum(counts[inner], 1 + known // MASS)
            out[inner] += rows * min(most, known // ROWS_PER_CELL) // max(int(rows.sum()), 1)
    return out


def divided(grid: Grid, parts: Longs) -> Grid:
    """The grid with every cell divided evenly."""
    start, finer = grid.start, []
    for j, points in enumerate(grid.points):
        low, high = points[:-1].astype(np.float64), points[1:].astype(np.float64)
        n = parts[start[j] + 1 : start[j] + len(points)]
        step = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
        inner = np.repeat(low, n) + np.repeat((high - low) / n, n) * step
        finer.append(np.append(inner, points[-1:]).astype(np.float32))
    return Grid(tuple(finer), grid.levels)


def consistent(counts: Longs, first: Longs, total: Longs) -> Longs:
    """Noisy counts, lowered by the same number in each group of cells so that they sum up to no more than its total.

    So cells without rows have none again. `first`: the first cell of each group, and one more at the end.

    >>> consistent(np.array([2, 100, -1, 3, 7]), np.array([0, 4, 5]), np.array([99, 9])).tolist()
    [0, 98, 0, 1, 7]
    """
    out = np.maximum(counts, 0)
    _lower(out, first, total)
    return out


def cell_counts(X: Table, grid: Grid) -> Longs:
    """How many of these rows are in each cell of the grid."""
    start = grid.start
    out = np.zeros(start[-1], dtype=np.int64)
    columns = X.tocsc() if sparse.issparse(X) else X
    for j in range(len(grid.points)):
        own = out[start[j] : start[j + 1]]
        bins = _bins(_column(columns, j), grid, j, missing=len(own) - 1)
        own += np.bincount(bins, minlength=len(own))
        own[-1] += X.shape[0] - len(bins)  # absent entries
    return out


def choose(grid: Grid, total: Longs, max_bin: int, least: int, rare: Mask | None = None) -> Cuts:
    """Points at the quantiles of the total counts; between two points there are at least `least` rows.

    A `rare` column has too few known values for any split: it gets no points, and its missing values no cell.
    """
    start, rare = grid.start, np.zeros(len(grid.points), bool) if rare is None else rare
    divisible = ~rare & np.array([len(own) > 0 for own in grid.points], bool)
    most = min(max_bin - 1, MOST_CUTS, max(ALL_POINTS // max(int(divisible.sum()), 1), COARSEST))
    points = [
        own[_chosen(total[start[j] : start[j + 1] - 1], most, max(least, 1))] if divisible[j] else _NO_POINTS
        for j, own in enumerate(grid.points)
    ]
    return Cuts(tuple(points), grid.levels, has_missing=~rare & (total[start[1:] - 1] >= max(least, FEW_MISSING)))


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


@lru_cache(maxsize=8)
def _steps(n_points: int) -> Doubles:
    """The points of a column with mean 0 and deviation 1: FINE * sinh(x), evenly in x, up to REACH."""
    exact = Context(prec=30)
    far = exact.ln(Decimal(2 * REACH / FINE))  # arcsinh, but for 1e-9
    places = [exact.divide(Decimal(2 * k - n_points + 1), Decimal(n_points - 1)) for k in range(n_points)]  # -1 to 1
    powers = [float(exact.exp(exact.multiply(far, place))) for place in places]
    steps: Doubles = FINE * 0.5 * (np.array(powers) - np.array(powers[::-1]))
    steps.setflags(write=False)
    return steps


def _as_points(values: Doubles) -> Floats:
    with np.errstate(over="ignore"):
        points = np.unique(values.astype(np.float32))
    return points[np.isfinite(points)]


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
def _lower(counts, first, total):  # type: ignore[no-untyped-def]
    for group in range(len(first) - 1):
        own = counts[first[group] : first[group + 1]]
        low, high, most = 0, 0, total[group] if total[group] > 0 else 0
        for cell in range(len(own)):
            high = own[cell] if own[cell] > high else high
        while low < high:  # the least number that is enough; what smaller cells have is lost
            less, rest = (low + high) // 2, 0
            for cell in range(len(own)):
                rest += own[cell] - less if own[cell] > less else 0
            if rest <= most:
                high = less
            else:
                low = less + 1
        for cell in range(len(own)):
            own[cell] = own[cell] - low if own[cell] > low else 0


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
