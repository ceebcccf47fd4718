# mypy: allow-untyped-defs, allow-untyped-calls
"""Kernels for few dense rows: the same as in `_dense`, in plain loops. They are compiled in a fifth of the time."""

import numpy as np
from numba import njit

from simfl.joint._dense import LOW_HALF
from simfl.joint.level import N_BINS

_U = np.uint64


@njit(nogil=True, cache=True)
def sum_cells(bins, stride, order, packed, bounds, nodes, question, counts, G, H):
    """Per cell of the open nodes first to last: rows, and sums of g and h. G holds packed sums until the end."""
    (tree, node, slot_start, feature, cell_start, table), (first, last) = question, nodes
    for k in range(first, last):
        t, begin, end = tree[k], bounds[tree[k], node[k], 0], bounds[tree[k], node[k], 1]
        for s in range(slot_start[k], slot_start[k + 1]):
            for i in range(begin, end):
                cell = cell_start[s] + table[s * N_BINS + bins[order[t, i] * stride + feature[s]]]
                counts[cell] += 1
                G[cell] += packed[t, i]
        for cell in range(cell_start[slot_start[k]], cell_start[slot_start[k + 1]]):
            G[cell], H[cell] = G[cell] >> 32, G[cell] & LOW_HALF


def split_nodes(bins, stride, order, packed, bounds, nodes, question, slot, left, child):
    """The rows of the open nodes first to last go to the children, in their order."""
    spare = np.empty(2 * order.shape[1], dtype=np.int64)  # rows, then their gradients
    _split_nodes(bins, stride, order, packed, bounds, nodes, question, slot, left, child, spare)


@njit(nogil=True, cache=True)
def _split_nodes(bins, stride, order, packed, bounds, nodes, question, slot, left, child, spare):
    (tree, node, _, feature, _, table), (first, last) = question, nodes
    n_rows = order.shape[1]
    for k in range(first, last):
        if slot[k] < 0:
            continue
        t, begin, end = tree[k], bounds[tree[k], node[k], 0], bounds[tree[k], node[k], 1]
        middle, n_right = begin, 0
        for i in range(begin, end):
            row, value = order[t, i], packed[t, i]
            cell = table[slot[k] * N_BINS + bins[row * stride + feature[slot[k]]]]
            if (left[k] >> _U(cell)) & _U(1):
                order[t, middle], packed[t, middle], middle = row, value, middle + 1
            else:
                spare[n_right], spare[n_rows + n_right], n_right = row, value, n_right + 1
        for i in range(n_right):
            order[t, middle + i], packed[t, middle + i] = spare[i], spare[n_rows + i]
        bounds[t, child[k], 0], bounds[t, child[k], 1] = begin, middle
        bounds[t, child[k] + 1, 0], bounds[t, child[k] + 1, 1] = middle, end


@njit(nogil=True, cache=True)
def add_leaf_values(bins, stride, tree, margins, output):
    """Every row goes down a finished tree, and gets the value of its leaf. Leaves lead to themselves."""
    steps, goes_right, values, depth = tree
    for row in range(margins.shape[0]):
        node = _U(0)
        for _ in range(depth):
            step = steps[node]
            value = _U(bins[_U(row * stride) + (step & _U(LOW_HALF))])
            word = goes_right[node * _U(N_BINS // 32) + (value >> _U(5))]
            node = (step >> _U(32)) + (_U(word) >> (value & _U(31)) & _U(1))
        margins[row, output] += values[node]
