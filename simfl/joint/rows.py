"""Where the rows of a party are in the trees of a batch: sums per cell, splits, and leaf values onto rows.

All sums are sums of integers: the same bits in any order and on any number of threads. Threads share out the open
nodes (dense rows) or the trees (sparse rows); each cell is written by one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numba import njit

from simfl.arrays import AnyArray, Doubles, Floats, Ints, Longs
from simfl.joint import _dense, _sparse
from simfl.joint.level import MOST_CELLS, Followed, Level, Splits
from simfl.outbox.rule import Cells

SMALL = 500_000  # rows times slots, under a millisecond: below that a second thread does not pay
PARTS_PER_THREAD = 4  # so that no thread waits long for the last
ONE_ROW = 1 << 24  # parts that a row counts as, where rows count more or less
LIGHT = 0.25  # of the weight of its party's heaviest row: a lighter row counts as less than one


# Writes the rows that a tree takes and (g << 32) + h of each; returns how many.
Take = Callable[[int, Ints, Longs], int]


class BinnedRows:
    """A dense table as bins: one byte per value, row by row, padded so that rows start at even places in the cache."""

    def __init__(self, bins: AnyArray) -> None:
        self.n_rows, self.n_columns = bins.shape
        self.stride = _stride(self.n_columns)
        self.flat = _aligned(self.n_rows * self.stride)
        self.bins[:] = bins

    @property
    def bins(self) -> AnyArray:
        """Rows by columns."""
        return self.flat.reshape(self.n_rows, self.stride)[:, : self.n_columns]


@dataclass(frozen=True, eq=False)
class SparseRows:
    """A sparse table as bins, column by column; what is absent is missing."""

    start: Longs  # per column: its first entry; one more at the end
    row: Ints  # per entry
    bin: AnyArray  # uint8, per entry
    n_rows: int


class Placement:
    """The rows of one party in the trees of a batch. `counts_as`: what each row counts, in parts of `ONE_ROW`."""

    def __init__(
        self, rows: BinnedRows | SparseRows, n_trees: int, threads: int, counts_as: Longs | None = None
    ) -> None:
        self.n_trees, self._counts_as = n_trees, counts_as
        self._kept: _Kept = _InNodeOrder(rows, n_trees) if isinstance(rows, BinnedRows) else _ByColumn(rows, n_trees)
        self._pools: dict[int, ThreadPoolExecutor] = {}  # by their number of threads: alone a party has more of them
        self.threads = threads  # may change: a party that is asked alone has those of all

    def begin(self, take: Take) -> Roots:
        """All rows to the roots. Rows that are not taken have no part in sums."""
        rows, totals = np.zeros(self.n_trees, np.int64), np.zeros(self.n_trees, np.int64)

        def work(t: int) -> None:
            rows[t], totals[t] = self._kept.begin(t, take)

        self._run(work, range(self.n_trees))
        sizes = [np.abs(self._kept.packed[t] >> 32).astype(np.float64) for t in range(self.n_trees)]
        return Roots(rows, totals >> 32, totals & _dense.LOW_HALF, sizes)

    def sums(self, level: Level, shift: int) -> Cells:
        """Per cell what there is of this party's rows. `shift`: the unit of g^2, as a power of two."""
        cells = self._added(level, self._kept.packed, shift)
        if self._counts_as is None:
            return cells
        parts = self._added(level, self._kept.in_order(self._counts_as), shift)
        return cells._replace(rows=((parts.G << 32) + parts.H) // ONE_ROW)

    def _added(self, level: Level, each: Any, shift: int) -> Cells:
        """Per cell: the number of rows, and sums of their packed numbers."""
        cells = Cells(*np.zeros((5, level.n_cells), np.int64))
        self._run(lambda part: self._kept.sums(part, level.question, each, shift, cells), self._parts(level))
        return cells

    def split(self, level: Level, splits: Splits, joined: AnyArray, *, last: bool = False) -> None:
        """Rows of a node go left where the mask has the bit of the cell that theirs is `joined` with.

        After the last level nothing is summed.
        """
        if last:
            return
        slot, left, child, n_numbers = splits
        self._kept.make_room(n_numbers)
        own = own_left(slot, left, level.cell_start, joined)
        self._run(lambda part: self._kept.split(part, level.question, slot, own, child), self._parts(level))

    def add_values(self, finished: Followed, margins: Floats, output: int) -> bool:
        """Add the values of a tree's leaves to the margins of the rows; False where that is not known here."""
        n = len(margins)
        n_parts = self.threads if n * finished.depth >= SMALL else 1
        edges, kept = [n * part // n_parts for part in range(n_parts + 1)], self._kept
        if isinstance(kept, _ByColumn):
            return False
        self._run(lambda part: kept.add_leaf_values(part, finished, margins, output), [*pairwise(edges)])
        return True

    def rows_in(self, tree: int, node: int) -> Ints:
        """The rows that a tree takes that are in a node: of a dense table."""
        return self._kept.rows_in(tree, node)

    def _parts(self, level: Level) -> list[tuple[int, int]]:
        """Ranges of open nodes for the threads, with about the same work each."""
        if self.threads == 1 or not level.n_nodes:
            return [(0, level.n_nodes)]
        work = np.cumsum(self._kept.work(level))
        if work[-1] < SMALL:
            return [(0, level.n_nodes)]
        n_parts = self.threads * PARTS_PER_THREAD
        aims = work[-1] * np.arange(1, n_parts) // n_parts
        ends = self._kept.allowed_ends(level, np.searchsorted(work, aims, side="right"))
        edges = np.unique([0, *ends, level.n_nodes]).tolist()
        return list(pairwise(edges))

    def _run(self, work: Callable[[Any], None], parts: Sequence[Any]) -> None:
        if self.threads == 1 or len(parts) == 1:
            for part in parts:
                work(part)
        else:
            list(self._threads().map(work, parts))  # raises what a thread raised

    def _threads(self) -> ThreadPoolExecutor:
        """As many as there are for this party now."""
        kept = self._pools.get(self.threads)
        if kept is None:
            kept = self._pools[self.threads] = ThreadPoolExecutor(self.threads, thread_name_prefix="simfl-joint")
        return kept


@dataclass(frozen=True)
class Roots:
    """What there is of this party's rows in the roots of a batch: per tree."""

    rows: Longs
    G: Longs
    H: Longs
    sizes: list[Doubles]  # |g| of each row


class _Kept(Protocol):
    """The rows in the form that suits them."""

    packed: Longs  # per tree and row: its gradient and hessian

    def begin(self, t: int, take: Take) -> tuple[int, int]: ...
    def make_room(self, n_numbers: int) -> None: ...
    def rows_in(self, t: int, node: int) -> Ints: ...
    def work(self, level: Level) -> Longs: ...
    def allowed_ends(self, level: Level, ends: Longs) -> Longs: ...
    def in_order(self, each: Longs) -> Any: ...
    def sums(self, part: tuple[int, int], question: Any, each: Any, shift: int, cells: Cells) -> None: ...
    def split(self, part: tuple[int, int], question: Any, slot: Ints, left: AnyArray, child: Ints) -> None: ...


class _InNodeOrder:
    """Dense rows: those that a tree takes in node order, gradients too. `_bounds`: where those of a node begin and end.

    All rows go down the finished tree once: rows of joined cells were not always where their values lead.
    """

    def __init__(self, rows: BinnedRows, n_trees: int) -> None:
        self._rows = rows.flat, rows.stride
        self._order = np.empty((n_trees, rows.n_rows), dtype=np.int32)
        self.packed = np.empty((n_trees, rows.n_rows), dtype=np.int64)
        self._bounds = np.zeros((n_trees, 1, 2), dtype=np.int64)

    def begin(self, t: int, take: Take) -> tuple[int, int]:
        n = take(t, self._order[t], self.packed[t])
        self._bounds[t, 0], self.packed[t, n:] = (0, n), 0
        return n, int(self.packed[t, :n].sum())

    def make_room(self, n_numbers: int) -> None:
        self._bounds = _grown(self._bounds, n_numbers)

    def rows_in(self, t: int, node: int) -> Ints:
        first, end = self._bounds[t, node]
        return self._order[t, first:end]

    def work(self, level: Level) -> Longs:
        own = self._bounds[level.tree, level.node]
        rows: Longs = own[:, 1] - own[:, 0]
        work: Longs = rows * (1 + np.diff(level.slot_start))
        return work

    def allowed_ends(self, level: Level, ends: Longs) -> Longs:
        return ends

    def in_order(self, each: Longs) -> Longs:
        """A number per row, as `packed` has them; whatever behind those that a tree takes."""
        return np.take(each, self._order, mode="clip")

    def sums(self, part: tuple[int, int], question: Any, each: Longs, shift: int, cells: Cells) -> None:
        _dense.sum_cells(*self._rows, self._order, each, shift, self._bounds, part, question, cells)

    def split(self, part: tuple[int, int], question: Any, slot: Ints, left: AnyArray, child: Ints) -> None:
        _dense.split_nodes(*self._rows, self._order, self.packed, self._bounds, part, question, slot, left, child)

    def add_leaf_values(self, part: tuple[int, int], finished: Followed, margins: Floats, output: int) -> None:
        (first, last), (bins, stride) = part, self._rows
        _dense.add_leaf_values(bins[first * stride :], stride, finished, margins[first:last], output)


class _ByColumn:
    """Sparse rows: the entries by column, and per tree the node that each row is in, taken or not."""

    def __init__(self, rows: SparseRows, n_trees: int) -> None:
        self._entries = rows.start, rows.row, rows.bin
        self._number = np.zeros((n_trees, rows.n_rows), dtype=np.int32)
        self.packed = np.empty((n_trees, rows.n_rows), dtype=np.int64)
        self._taken = np.ones((n_trees, rows.n_rows), dtype=bool)

    def begin(self, t: int, take: Take) -> tuple[int, int]:
        rows, packed = np.empty_like(self._number[t]), np.empty_like(self.packed[t])
        n = take(t, rows, packed)
        self._number[t], self._taken[t], self.packed[t] = 0, False, 0
        self.packed[t, rows[:n]], self._taken[t, rows[:n]] = packed[:n], True
        return n, int(packed[:n].sum())

    def make_room(self, n_numbers: int) -> None:
        """Nothing is kept per node."""

    def rows_in(self, t: int, node: int) -> Ints:
        return np.flatnonzero((self._number[t] == node) & self._taken[t]).astype(np.int32)

    def work(self, level: Level) -> Longs:
        n_entries = np.diff(self._entries[0])[level.feature]
        ends = np.concatenate([[0], np.cumsum(n_entries)])[level.slot_start]
        return np.diff(ends) + 1

    def allowed_ends(self, level: Level, ends: Longs) -> Longs:
        return np.searchsorted(level.tree, level.tree[np.minimum(ends, level.n_nodes - 1)])  # whole trees

    def _trees(self, part: tuple[int, int], question: Any) -> list[tuple[int, int, int, Ints]]:
        """Per tree among these open nodes: the first and last of them, and the open node of each of its rows."""
        tree, node = question[0][part[0] : part[1]], question[1]
        out = []
        for t in np.unique(tree).tolist():
            first, last = (part[0] + np.searchsorted(tree, [t, t + 1])).tolist()
            n_numbers = max(int(self._number[t].max(initial=0)), int(node[first:last].max())) + 1
            out.append((t, first, last, _sparse.open_nodes(self._number[t], question[0], node, t, n_numbers)))
        return out

    def in_order(self, each: Longs) -> list[Longs]:
        """A number per row, for every tree."""
        return [each] * len(self.packed)

    def sums(self, part: tuple[int, int], question: Any, each: Any, shift: int, cells: Cells) -> None:
        slot_start, feature = question[2], question[3]
        for t, first, last, place in self._trees(part, question):
            own = np.arange(slot_start[first], slot_start[last])
            visits = own[np.argsort(feature[own], kind="stable")]
            rows = place, self._taken[t]
            sizes = _dense.sizes_of.py_func(each[t], shift)
            _sparse.sum_cells(self._entries, *rows, each[t], visits, question, cells.rows, cells.G, cells.H)
            again = np.zeros_like(cells.rows)  # they are counted already
            _sparse.sum_cells(self._entries, *rows, sizes, visits, question, again, cells.sizes, cells.squares)

    def split(self, part: tuple[int, int], question: Any, slot: Ints, left: AnyArray, child: Ints) -> None:
        for t, first, last, place in self._trees(part, question):
            own = first + np.flatnonzero(slot[first:last] >= 0)
            visits = own[np.argsort(question[3][slot[own]], kind="stable")]
            _sparse.split_rows(self._entries, place, visits, question, slot, left, child, self._number[t])


def own_left(slot: Ints, left: AnyArray, cell_start: Ints, joined: AnyArray) -> AnyArray:
    """Per open node the cells of its split whose rows go left at this party."""
    out = np.zeros_like(left)
    _own_left(slot, left, cell_start, joined, out)
    return out


@njit(nogil=True, cache=True)
def _own_left(slot, left, cell_start, joined, out):  # type: ignore[no-untyped-def]
    one = np.uint64(1)
    for k in range(len(slot)):
        if slot[k] >= 0:
            first = cell_start[slot[k]]
            for cell in range(cell_start[slot[k] + 1] - first):
                to = np.uint64(joined[first + cell] % MOST_CELLS)  # rows that are joined nowhere are in no sum below
                out[k] |= ((left[k] >> to) & one) << np.uint64(cell)


def counted_as(weight: Floats | None) -> Longs | None:
    """What each row of a party counts as towards `min_group`, in parts of `ONE_ROW`; None: all of them as one.

    A row that has a quarter of the weight of the heaviest counts as one, a lighter one as less. So the rows of a party
    that count as n have n / 4 times the weight of their heaviest at least, whatever cells are merged; to count by the
    weight alone would leave few cells where weights differ at all. The measure is the heaviest row of the party, not
    that of a node: counts that change with the node would show where it is. Rows of weight zero count as none, also
    where a party has no others to train on.

    >>> counted_as(np.array([8, 2, 1], dtype=np.float32)) / ONE_ROW
    array([1. , 1. , 0.5])
    """
    if weight is None or weight.min() == weight.max() > 0:
        return None
    share = weight.astype(np.float64) / (LIGHT * float(weight.max() or 1.0))
    parts: Longs = np.floor(np.minimum(share, 1.0) * ONE_ROW).astype(np.int64)
    return parts


def _grown(kept: AnyArray, n_numbers: int) -> AnyArray:
    """Room for this many nodes per tree."""
    if n_numbers <= kept.shape[1]:
        return kept
    out = np.zeros((kept.shape[0], 2 * n_numbers, *kept.shape[2:]), dtype=kept.dtype)
    out[:, : kept.shape[1]] = kept
    return out


def _stride(n_columns: int) -> int:
    """Bytes per row: a power of two up to 32, then a multiple of 32, so that few rows cross a cache line.

    >>> _stride(5), _stride(28), _stride(123)
    (8, 32, 128)
    """
    return max(-(-n_columns // 32) * 32, 1) if n_columns > 16 else 1 << max(n_columns - 1, 0).bit_length()


def _aligned(n_bytes: int) -> AnyArray:
    """Zeros that start at a cache line."""
    raw = np.zeros(n_bytes + _dense.LINE, dtype=np.uint8)
    first = -raw.ctypes.data % _dense.LINE
    return raw[first : first + n_bytes]
