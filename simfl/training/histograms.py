"""How a builder grows a tree by itself, where leaf values come from the sums of all parties: by histograms of its rows.

XGBoost's time for a deep tree on few rows goes by nodes times bins: a thousand nodes, most with a few dozen rows, each
with a histogram of all columns. Here a node costs what its rows cost. Cut points, gain and rules are XGBoost's: with
the same gradients it finds the same splits, but for gains that are equal to six digits, and for rows whose gradients
are below 2**-30 of the sum of all. Not in the paper.

Gradients are integers, packed as (g << 32) + h: one addition for both, the same bits in any order. A row has one entry
per column, the number of its bin among those of all columns. The bin that most rows of a column have, or a missing
value of a sparse row, has no entry: its sum is what remains of the node's.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xgboost as xgb
from scipy import sparse

from simfl.arrays import AnyArray, Floats, Ints, Longs, Table
from simfl.errors import ParameterError
from simfl.params import Params
from simfl.training._histograms import by_level, grow, pack
from simfl.training.trees import LEAF, Tree, children, deeper

DEEPEST = 64  # a histogram is kept per level
MOST_BINS = 2**16  # of all columns together: an entry has two bytes
FEWEST_ROWS = 1000  # with fewer XGBoost takes a millisecond; nobody should wait for a compiler
OFTEN = 0.3  # of the rows: a bin that more rows have gets no entries
BITS = 30  # of the sums of |g| and of h over all rows
TOP = 2  # depth at which the parts of a tree begin that are grown side by side
MANY_ENTRIES = 200_000  # with fewer, threads wait for each other


class Columns(NamedTuple):
    """The bins of all columns, one column after the other: its numbers in ascending order, then its missing values."""

    first: Ints  # per column: its first bin; one more at the end
    missing: Ints  # per column: the bin of its missing values, or -1
    unwritten: Ints  # per column: the bin that has no entries, or -1


class Entries(NamedTuple):
    """The bins of all rows."""

    start: Longs  # per row: its first entry; one more at the end
    bin: AnyArray  # uint16, ascending within a row
    width: int  # how many every row has, if all have one for every column; else 0


@dataclass(frozen=True, eq=False)
class Histogrammed:
    """A party's rows in bins, with XGBoost's cut points."""

    columns: Columns
    entries: Entries
    threshold: Floats  # per bin: what is below is in this one or in one before

    @property
    def n_rows(self) -> int:
        """How many there are."""
        return len(self.entries.start) - 1


def fits(params: Params) -> bool:
    """Whether trees of these parameters can be grown here. If not, XGBoost grows them."""
    bound = params.monotone_constraints or params.interaction_constraints or params.max_delta_step
    shallow = 0 < deeper(params).max_depth <= DEEPEST
    return bool(params.leaf_values != "builder" and shallow and params.colsample_bytree == 1 and not bound)


# --- bins ------------------------------------------------------------------------------------------------------------


def histogrammed(X: Table, binned: xgb.QuantileDMatrix) -> Histogrammed | None:
    """The rows in XGBoost's bins; None where these are too many, or the rows too few."""
    if X.shape[0] < FEWEST_ROWS:
        return None
    start, values = binned.get_quantile_cut()
    most = np.finfo(np.float32).max  # the last cut point is beyond all values, and can be infinite
    cuts = [np.minimum(own[1:], most).astype(np.float32) for own in np.split(values, start[1:-1].astype(np.int64))]
    if sum(map(len, cuts)) + len(cuts) >= MOST_BINS:
        return None
    return _of_sparse(X, cuts) if sparse.issparse(X) else _of_dense(np.asarray(X, dtype=np.float32), cuts)


def _of_dense(X: Floats, cuts: list[Floats]) -> Histogrammed:
    """Column by column; what most rows have is not written."""
    n, d = X.shape
    bins, written = np.empty((n, d), np.uint16), np.ones((n, d), bool)
    first, missing, unwritten, threshold = [0], [], [], []
    for j, own in enumerate(cuts):
        bins[:, j], is_missing = _bins(X[:, j], own)
        has_missing = bool(is_missing.any())
        counts = np.bincount(bins[:, j], minlength=len(own) + has_missing)
        most = int(counts.argmax())
        unwritten.append(first[-1] + most if counts[most] > OFTEN * n else LEAF)
        written[:, j] = bins[:, j] != most if unwritten[-1] >= 0 else True
        missing.append(first[-1] + len(own) if has_missing else LEAF)
        threshold += [own, np.zeros(int(has_missing), np.float32)]
        bins[:, j] += np.uint16(first[-1])
        first.append(first[-1] + len(own) + has_missing)
    start = np.concatenate([[0], np.cumsum(written.sum(axis=1))])
    return _made(first, missing, unwritten, threshold, start, bins[written])


def _of_sparse(X: sparse.csr_matrix, cuts: list[Floats]) -> Histogrammed:
    """What is absent is missing, and has no entry."""
    columns = X.tocsc()
    bins = np.empty(columns.nnz, np.uint16)
    first, threshold = [0], []
    for j, own in enumerate(cuts):
        part = slice(columns.indptr[j], columns.indptr[j + 1])
        bins[part] = first[-1] + _bins(columns.data[part].astype(np.float32), own)[0]
        threshold += [own, np.zeros(1, np.float32)]
        first.append(first[-1] + len(own) + 1)
    rows = sparse.csc_matrix((bins, columns.indices, columns.indptr), X.shape).tocsr()
    rows.sort_indices()
    missing = [end - 1 for end in first[1:]]
    return _made(first, missing, missing, threshold, rows.indptr, rows.data)


def _bins(values: Floats, cuts: Floats) -> tuple[AnyArray, AnyArray]:
    """XGBoost's bins: how many cut points a value is not below. Missing values have the one after the last."""
    is_missing = np.isnan(values)
    found = np.minimum(np.searchsorted(cuts, values, side="right"), max(len(cuts) - 1, 0))
    return np.where(is_missing, len(cuts), found).astype(np.uint16), is_missing


def _made(
    first: list[int],
    missing: list[int],
    unwritten: list[int],
    threshold: list[Floats],
    start: AnyArray,
    bins: AnyArray,
) -> Histogrammed:
    columns = Columns(*(np.array(numbers, np.int32) for numbers in (first, missing, unwritten)))
    width = len(missing) if len(bins) == (len(start) - 1) * len(missing) else 0
    return Histogrammed(columns, Entries(start.astype(np.int64), bins, width), np.concatenate(threshold))


# --- growing ---------------------------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """XGBoost's rule of a split, in the units of packed gradients."""

    reg_lambda: float
    reg_alpha: float
    min_child_weight: float
    gamma: float
    unit: float  # of a gain
    depth: int
    few: int  # rows: with fewer, a node is summed up by itself


class _Room:
    """Where a tree, or a part of one, is grown."""

    def __init__(self, n_rows: int, n_bins: int, depth: int) -> None:
        self.sums = np.zeros((depth + 1, n_bins), np.int64)  # one per depth, and one for nodes of few rows
        self.nodes = np.empty((7, min(2 ** (depth + 1), 2 * n_rows + 1)), np.int32)
        self.stack = np.empty((depth + 2, 5), np.int64)
        gains = np.empty(n_bins, np.float32)
        self.of_bins = np.empty(n_bins, np.int64), np.empty(n_bins, np.int32), gains, gains.view(np.int32)


class HistogramGrower:
    """Grows one tree after the other, each from given gradients: the structure alone. All leaf values are zero.

    With several threads the parts of a large tree that begin at depth `TOP` are grown side by side: the same tree.
    """

    def __init__(self, rows: Histogrammed, params: Params) -> None:
        self.rows, self.params, self.threads = rows, deeper(params), 1
        n, n_bins, n_entries = rows.n_rows, int(rows.columns.first[-1]), len(rows.entries.bin)
        self._order, self._packed = np.empty(n, np.int32), np.empty(n, np.int64)
        self._aside = np.empty(n, np.int32), np.empty(n, np.int64), np.empty(n, np.uint8)
        self._few = n_bins * n // max(n_entries, 1)
        shallow = TOP < self.params.max_depth < math.log2(n)  # a part of a deep tree would need room for all rows
        self._in_parts = n_entries >= MANY_ENTRIES and shallow
        self._rooms = [_Room(n, n_bins, self.params.max_depth) for _ in range(2**TOP if self._in_parts else 1)]
        self._pools: dict[int, ThreadPoolExecutor] = {}  # by how many threads

    def grow(self, g: Floats, h: Floats, seed: int) -> Tree:
        """The next tree."""
        n, rule = self._place(g, h, seed)
        in_parts = self._in_parts and self.threads > 1
        feature, cut, default_left, left = (
            self._parts(n, rule) if in_parts else self._part(0, n, rule, self._rooms[0])[:4]
        )
        n_nodes, order = len(left), np.empty_like(left)
        by_level(left, order)
        inner = left[order] != LEAF
        feature = np.where(inner, feature[order], LEAF).astype(np.int32)
        return Tree(
            feature=feature,
            threshold=np.where(inner, self.rows.threshold[np.where(inner, cut[order], 0)], np.float32(0)),
            default_left=(default_left[order] == 1) & inner,
            left=children(feature),
            value=np.zeros(n_nodes, np.float32),
        )

    def _part(self, begin: int, end: int, rule: Rule, room: _Room) -> Ints:
        """The nodes of a tree of these rows."""
        own, rows = slice(begin, end), self.rows
        order, packed = self._order[own], self._packed[own]
        spare = (*(array[own] for array in self._aside), *room.of_bins)
        n_nodes = grow(rows.entries, rows.columns, order, packed, rule, room.sums, room.nodes, spare, room.stack)
        return room.nodes[:, :n_nodes]

    def _parts(self, n: int, rule: Rule) -> Ints:
        """The same in parts: the nodes down to `TOP`, and below each of those there a tree of its own."""
        top = self._part(0, n, rule._replace(depth=TOP), self._rooms[0]).copy()
        roots = np.flatnonzero(top[6] == TOP)
        roots = roots[np.argsort(top[4, roots] - top[5, roots], kind="stable")]  # the largest first
        below = rule._replace(depth=rule.depth - TOP)
        begins, ends = top[4:6, roots].tolist()
        parts = self._threads().map(self._part, begins, ends, [below] * len(roots), self._rooms)
        return _joined(top[:4], roots, [part[:4] for part in parts])

    def _threads(self) -> ThreadPoolExecutor:
        if self.threads not in self._pools:
            self._pools[self.threads] = ThreadPoolExecutor(self.threads, thread_name_prefix="simfl-grow")
        return self._pools[self.threads]

    def _place(self, g: Floats, h: Floats, seed: int) -> tuple[int, Rule]:
        """All rows that count into the root, with gradients as integers."""
        params, share = self.params, self.params.subsample
        if share is not None and share < 1:
            taken = np.random.default_rng(seed).random(len(g), dtype=np.float32) < share
            g, h = g * taken, h * taken
        unit_g, unit_h = _unit(g), _unit(h)
        n = pack(g, h, unit_g, unit_h, self._order, self._packed)
        return n, Rule(
            params.reg_lambda / unit_h,
            params.reg_alpha / unit_g,
            max(params.min_child_weight / unit_h, 1.0),  # somebody must be there
            params.gamma,
            unit_g * unit_g / unit_h,
            params.max_depth,
            self._few,
        )


def _joined(top: Ints, roots: AnyArray, parts: list[Ints]) -> Ints:
    """One tree: each part's root takes its place, its other nodes follow at the end."""
    joined, end = [top], top.shape[1]
    for root, part in zip(roots, parts, strict=True):
        left = part[3]
        left[left != LEAF] += end - 1
        top[:, root] = part[:, 0]
        joined.append(part[:, 1:])
        end += part.shape[1] - 1
    return np.concatenate(joined, axis=1)


def _unit(values: Floats) -> float:
    """A power of two, so that the sum of all has `BITS` bits."""
    total = float(np.abs(values).sum(dtype=np.float64))
    if not math.isfinite(total):
        raise ParameterError("A gradient is not finite: the training diverges. Lower learning_rate.")
    return math.ldexp(1.0, math.frexp(total or 1.0)[1] - BITS)
