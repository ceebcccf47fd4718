# mypy: allow-untyped-defs, allow-untyped-calls
"""Kernels for dense rows. Per tree the rows are in node order, and their gradients with them.

The cells of one node stay in the first-level cache while its rows pass by, in tiles: the bins of the next tile are
fetched while those of this one are added. Offsets are unsigned on purpose: for signed ones Numba tests each for a
count from the end.
"""

import numpy as np
from numba import njit

from simfl.joint._part import part
from simfl.joint.level import N_BINS
from simfl.training._early import fetch_early

TILE = 64  # rows that are added side by side, while the next ones are fetched
LINE = 64  # bytes of a cache line
LINES_EARLY = 4  # of a row; longer rows are not fetched early
LOW_HALF = 0xFFFFFFFF  # of a packed pair: h; g is above it
WALKERS = 256  # rows that go down a tree side by side

_U = np.uint64
_WORDS = _U(N_BINS // 32)  # of 32 bits: whether a bin goes right


# --- sums per cell ---------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def sizes_of(packed, shift):
    """Of a packed pair |g| and, in coarser units, g^2 (never too low), packed in the same way."""
    size = abs(packed >> 32)
    return (size << 32) + (size * size >> shift) + (size > 0)


@njit(nogil=True, cache=True)
def sum_cells(bins, stride, order, packed, shift, bounds, nodes, question, cells):
    """Per cell of the open nodes first to last: rows, and sums of g, h, |g| and g^2. Sums are packed until the end."""
    (tree, node, slot_start, feature, cell_start, table), (first, last) = question, nodes
    counts, G, H, sizes, squares = cells
    at, sums = np.empty(TILE, dtype=np.uint64), np.empty((2, TILE), dtype=np.int64)
    for k in range(first, last):
        t, begin, end = tree[k], bounds[tree[k], node[k], 0], bounds[tree[k], node[k], 1]
        for tile in range(begin, end, TILE):
            n = _U(min(TILE, end - tile))
            for i in range(n):
                at[i], sums[0, i] = _U(order[t, _U(tile) + i]) * _U(stride), packed[t, _U(tile) + i]
                sums[1, i] = sizes_of(sums[0, i], shift)
                later = _U(order[t, min(tile + i + TILE, order.shape[1] - 1)]) * _U(stride)
                for line in range(0, min(stride, LINES_EARLY * LINE), LINE):
                    fetch_early(bins, later + _U(line))
            for s in range(slot_start[k], slot_start[k + 1]):
                start, own, f = _U(cell_start[s]), _U(s * N_BINS), _U(feature[s])
                for i in range(n):
                    cell = start + _U(table[own + _U(bins[at[i] + f])])
                    counts[cell] += 1
                    G[cell] += sums[0, i]
                    sizes[cell] += sums[1, i]
        for c in range(cell_start[slot_start[k]], cell_start[slot_start[k + 1]]):
            G[c], H[c] = G[c] >> 32, G[c] & LOW_HALF
            sizes[c], squares[c] = sizes[c] >> 32, sizes[c] & LOW_HALF


# --- nodes -----------------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def split_nodes(bins, stride, order, packed, bounds, nodes, question, slot, left, child):
    """The rows of the open nodes first to last go to the children."""
    (tree, node, _, feature, _, table), (first, last) = question, nodes
    longest = 0
    for k in range(first, last):
        longest = max(longest, bounds[tree[k], node[k], 1] - bounds[tree[k], node[k], 0])
    spare, spare_packed = np.empty(longest, dtype=np.int32), np.empty(longest, dtype=np.int64)
    goes_left = np.empty(N_BINS, dtype=np.uint8)
    for k in range(first, last):
        if slot[k] < 0:
            continue
        for value in range(N_BINS):
            goes_left[value] = (left[k] >> _U(table[slot[k] * N_BINS + value])) & _U(1)
        t, begin, end = tree[k], bounds[tree[k], node[k], 0], bounds[tree[k], node[k], 1]
        rule = _U(feature[slot[k]]), goes_left
        middle = _partition(bins, stride, order[t], packed[t], begin, end, rule, spare, spare_packed)
        bounds[t, child[k], 0], bounds[t, child[k], 1] = begin, middle
        bounds[t, child[k] + 1, 0], bounds[t, child[k] + 1, 1] = middle, end


@part
def _partition(bins, stride, order, packed, begin, end, rule, spare, spare_packed):
    """Rows that go left to the front, in their order, without a jump that the processor would have to guess."""
    feature, goes_left = rule
    n_left, n_right, last = _U(begin), _U(0), _U(order.size - 1)
    for i in range(_U(begin), _U(end)):
        fetch_early(bins, _U(order[min(i + _U(TILE), last)]) * _U(stride) + feature)
        row, value = order[i], packed[i]
        is_left = _U(goes_left[bins[_U(row) * _U(stride) + feature]])
        order[n_left], packed[n_left] = row, value
        spare[n_right], spare_packed[n_right] = row, value
        n_left += is_left
        n_right += _U(1) - is_left
    for i in range(n_right):
        order[n_left + i], packed[n_left + i] = spare[i], spare_packed[i]
    return n_left


@njit(nogil=True, cache=True)
def add_leaf_values(bins, stride, tree, margins, output):
    """Every row goes down a finished tree, and gets the value of its leaf. Leaves lead to themselves.

    The rows of a block take their steps side by side, so that none of them waits for its own next step.
    """
    steps, goes_right, values, depth = tree
    node = np.zeros(WALKERS, dtype=np.uint32)
    for first in range(0, margins.shape[0], WALKERS):
        n, start = _U(min(WALKERS, margins.shape[0] - first)), _U(first) * _U(stride)
        for _ in range(depth):
            at = start
            for i in range(n):
                k = _U(node[i])
                step = steps[k]
                value = _U(bins[at + (step & _U(LOW_HALF))])
                word = goes_right[k * _WORDS + (value >> _U(5))]
                node[i] = (step >> _U(32)) + (_U(word) >> (value & _U(31)) & _U(1))
                at += _U(stride)
        for i in range(n):
            margins[_U(first) + i, output] += values[_U(node[i])]
            node[i] = 0
