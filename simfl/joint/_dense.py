# mypy: allow-untyped-defs, allow-untyped-calls
"""Kernels for dense rows. Per tree the rows are in node order, and their gradients with them.

The cells of one node stay in the first-level cache while its rows pass by, in tiles: the bins of the next tile are
fetched while those of this one are added. Offsets are unsigned on purpose: for signed ones Numba tests each for a
count from the end. Numba keeps compiled kernels by the file they are in: after a change in `_vectors`, delete this
folder's `__pycache__`.
"""

import numpy as np
from numba import njit

from simfl.joint._part import part
from simfl.joint._vectors import BITS, TILE, add_masked, add_row, count_masks
from simfl.joint.level import MOST_CELLS, N_BINS
from simfl.training._early import fetch_early

LANES = 8  # slots that are added side by side: as many as there are registers for
FEW_CELLS = 5  # of each slot of a node: up to here masks are faster
FEW_ROWS = 64  # of a node: below that the tables of masks do not pay
LINE = 64  # bytes of a cache line
LINES_EARLY = 4  # of a row; longer rows are not fetched early
LOW_HALF = 0xFFFFFFFF  # of a packed pair: h; g is above it
WALKERS = 256  # rows that go down a tree side by side

_U = np.uint64
_BINS = _U(N_BINS)
_WORDS = _U(N_BINS // 32)  # of 32 bits: whether a bin goes right
_BLOCK = 2 * LANES * MOST_CELLS  # numbers per block of slots: a sum and a count per cell and lane


# --- sums per cell ---------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def sum_cells(bins, stride, order, packed, bounds, nodes, question, counts, G, H):
    """Per cell of the open nodes first to last: rows, and sums of g and h."""
    (tree, node, slot_start, feature, cell_start, table), (first, last) = question, nodes
    most_slots = 0
    for k in range(first, last):
        most_slots = max(most_slots, slot_start[k + 1] - slot_start[k])
    cells = np.empty((most_slots // LANES + 1) * _BLOCK, dtype=np.int64)
    lookup = np.empty(most_slots * BITS * N_BINS, dtype=np.uint8)  # at most one group per slot
    at, sums, masks = np.empty(TILE, dtype=np.uint64), np.empty(TILE, dtype=np.int64), np.empty(TILE, dtype=np.uint8)
    for k in range(first, last):
        slots = slot_start[k], slot_start[k + 1]
        t, begin, end = tree[k], bounds[tree[k], node[k], 0], bounds[tree[k], node[k], 1]
        by_masks = end - begin >= FEW_ROWS and _fits_masks(slots, cell_start)
        if by_masks:
            _clear_masks(cells, slots)
            _make_lookup(table, slots, cell_start, lookup)
        else:
            _clear(cells, slots, cell_start)
        for tile in range(begin, end, TILE):
            n = min(TILE, end - tile)
            _load_tile(bins, stride, order[t], packed[t], tile, n, at, sums)
            if by_masks:
                _add_tile_by_masks(bins, at, sums, n, feature, slots, cell_start, lookup, masks, cells)
            else:
                _add_tile(bins, at, sums, n, feature, slots, table, cells)
        if by_masks:
            _write_masks(cells, slots, cell_start, _total(packed[t], begin, end), end - begin, counts, G, H)
        else:
            _write(cells, slots, cell_start, counts, G, H)


@part
def _place(slot, cell):
    """Where the cell of a slot of the node is: slots side by side in blocks, so that they never share a cache set."""
    return slot // LANES * _BLOCK + 2 * (cell * LANES + slot % LANES)


@part
def _clear(cells, slots, cell_start):
    for s in range(slots[0], slots[1]):
        for cell in range(cell_start[s + 1] - cell_start[s]):
            place = _place(s - slots[0], cell)
            cells[place] = cells[place + 1] = 0


@part
def _write(cells, slots, cell_start, counts, G, H):
    for s in range(slots[0], slots[1]):
        for cell in range(cell_start[s + 1] - cell_start[s]):
            place, out = _place(s - slots[0], cell), cell_start[s] + cell
            counts[out] = cells[place + 1]
            G[out], H[out] = cells[place] >> 32, cells[place] & LOW_HALF


@part
def _load_tile(bins, stride, order, packed, tile, n, at, sums):
    """Where the rows of a tile are, and their gradients; the rows of the next tile are asked for."""
    n_lines = (stride + LINE - 1) // LINE
    for i in range(n):
        at[i] = _U(order[tile + i]) * _U(stride)
        sums[i] = packed[tile + i]
        if n_lines <= LINES_EARLY:
            later = _U(order[min(tile + i + TILE, order.size - 1)]) * _U(stride)
            for line in range(n_lines):
                fetch_early(bins, later + _U(line * LINE))


@part
def _add_tile(bins, at, sums, n, feature, slots, table, cells):
    s, end = slots
    while s < end:
        left, place = end - s, _U(_place(s - slots[0], 0))
        if left >= 8:
            _add_eight(bins, at, sums, n, feature[s : s + 8], table, _U(s), cells, place)
            s += 8
        elif left >= 4:
            _add_four(bins, at, sums, n, feature[s : s + 4], table, _U(s), cells, place)
            s += 4
        else:
            _add_one(bins, at, sums, n, _U(feature[s]), table, _U(s), cells, place)
            s += 1


@njit(nogil=True, cache=True, inline="always")
def _add(bins, at, table, slot, cells, place, packed):
    cell = _U(table[slot * _BINS + _U(bins[at])])
    add_row(cells, place + cell * _U(2 * LANES), packed)


@njit(nogil=True, cache=True, inline="always")
def _add_to_four(bins, row, features, table, s, cells, place, packed):
    f0, f1, f2, f3 = features
    _add(bins, row + f0, table, s, cells, place, packed)
    _add(bins, row + f1, table, s + _U(1), cells, place + _U(2), packed)
    _add(bins, row + f2, table, s + _U(2), cells, place + _U(4), packed)
    _add(bins, row + f3, table, s + _U(3), cells, place + _U(6), packed)


@njit(nogil=True, cache=True, inline="always")
def _four(feature, first):
    return _U(feature[first]), _U(feature[first + 1]), _U(feature[first + 2]), _U(feature[first + 3])


@part
def _add_eight(bins, at, sums, n, feature, table, s, cells, place):
    some, others = _four(feature, 0), _four(feature, 4)
    for i in range(_U(n)):
        row, packed = at[i], sums[i]
        _add_to_four(bins, row, some, table, s, cells, place, packed)
        _add_to_four(bins, row, others, table, s + _U(4), cells, place + _U(8), packed)


@part
def _add_four(bins, at, sums, n, feature, table, s, cells, place):
    features = _four(feature, 0)
    for i in range(_U(n)):
        _add_to_four(bins, at[i], features, table, s, cells, place, sums[i])


@part
def _add_one(bins, at, sums, n, feature, table, s, cells, place):
    for i in range(_U(n)):
        _add(bins, at[i] + feature, table, s, cells, place, sums[i])


# --- sums of slots with few cells, by masks ---------------------------------------------------------------------------
#
# A slot has a bit for each cell but the last. Slots whose bits fit a byte are a group: a row is a byte per group, the
# bytes of its bins OR-ed, and sums and counts stay in registers. The last cell is what remains of the node.


@part
def _fits_masks(slots, cell_start):
    most = 0
    for s in range(slots[0], slots[1]):
        most = max(most, cell_start[s + 1] - cell_start[s])
    return most <= FEW_CELLS


@part
def _group_end(s, last, cell_start):
    """The end of the group that begins with slot s."""
    n_bits, end = 0, s
    while end < last and end < s + BITS:
        n_bits += cell_start[end + 1] - cell_start[end] - 1
        if n_bits > BITS:
            break
        end += 1
    return end


@part
def _make_lookup(table, slots, cell_start, lookup):
    """Per group eight tables of bytes: the bit of a bin's cell. Those without a slot are zero."""
    s, group = slots[0], 0
    while s < slots[1]:
        end, bit = _group_end(s, slots[1], cell_start), 0
        for i in range(group, group + (4 if end - s <= 4 else BITS) * N_BINS):
            lookup[i] = 0
        for k in range(end - s):
            own, out = table[(s + k) * N_BINS : (s + k + 1) * N_BINS], lookup[group + k * N_BINS :]
            for cell in range(cell_start[s + k + 1] - cell_start[s + k] - 1):
                _set_bit(own, np.uint8(cell), np.uint8(1 << bit), out)
                bit += 1
        s, group = end, group + BITS * N_BINS


@part
def _set_bit(table, cell, bit, out):
    for value in range(N_BINS):
        out[value] |= bit if table[value] == cell else np.uint8(0)


@part
def _clear_masks(cells, slots):
    for i in range(2 * BITS * (slots[1] - slots[0])):  # at most one group per slot
        cells[i] = 0


@part
def _add_tile_by_masks(bins, at, sums, n, feature, slots, cell_start, lookup, masks, cells):
    s, place, group = slots[0], _U(0), 0
    while s < slots[1]:
        end, own, last = _group_end(s, slots[1], cell_start), group, slots[1] - 1
        for i in range(TILE):
            masks[i] = 0
        while end - s > 4:
            _mark(bins, at, n, _U(feature[s]), lookup[own : own + N_BINS], masks)
            s, own = s + 1, own + N_BINS
        f0, f1 = _U(feature[s]), _U(feature[min(s + 1, last)])
        f2, f3 = _U(feature[min(s + 2, last)]), _U(feature[min(s + 3, last)])  # beyond the group: zero tables
        add_masked(bins, at, n, (f0, f1, f2, f3), lookup[own : own + 4 * N_BINS], masks, sums, cells, place)
        count_masks(masks, cells, place + _U(BITS))
        s, place, group = end, place + _U(2 * BITS), group + BITS * N_BINS


@part
def _mark(bins, at, n, feature, lookup, masks):
    for i in range(_U(n)):
        masks[i] |= lookup[_U(bins[at[i] + feature])]


@part
def _total(packed, begin, end):
    total = 0
    for i in range(begin, end):
        total += packed[i]
    return total


@part
def _write_masks(cells, slots, cell_start, total, n_rows, counts, G, H):
    group, place, group_end = -2 * BITS, 0, slots[0]
    for s in range(slots[0], slots[1]):
        if s == group_end:
            group_end, group = _group_end(s, slots[1], cell_start), group + 2 * BITS
            place = group
        rest, rest_rows = total, n_rows
        for out in range(cell_start[s], cell_start[s + 1] - 1):
            counts[out], rest_rows = cells[place + BITS], rest_rows - cells[place + BITS]
            G[out], H[out], rest = cells[place] >> 32, cells[place] & LOW_HALF, rest - cells[place]
            place += 1
        last = cell_start[s + 1] - 1
        counts[last], G[last], H[last] = rest_rows, rest >> 32, rest & LOW_HALF


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
