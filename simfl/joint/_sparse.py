# mypy: allow-untyped-defs, allow-untyped-calls
"""Kernels for sparse rows: work by the entries of the columns that are asked about, not by rows times columns.

What is absent is missing: its sum is that of the node minus that of the entries. Slots are visited column by column
(`visits`), so that the entries of a column are read once for all nodes of a tree that ask about it.
"""

import numpy as np
from numba import njit

from simfl.joint._dense import LOW_HALF
from simfl.joint._part import part
from simfl.joint.level import MISSING, N_BINS

_U = np.uint64


@njit(nogil=True, cache=True)
def open_nodes(number, tree, node, t, n_numbers):
    """Per row its open node in the level, or -1."""
    of_number = np.full(n_numbers, -1, dtype=np.int32)
    for k in range(tree.size):
        if tree[k] == t:
            of_number[node[k]] = k
    out = np.empty(number.size, dtype=np.int32)
    for i in range(number.size):
        out[i] = of_number[number[i]]
    return out


@njit(nogil=True, cache=True)
def sum_cells(entries, place, taken, packed, visits, question, counts, G, H):
    """Per cell of one tree: rows, and sums of g and h. `place` has the open node of each row."""
    (start, row, bins), (tree, _, slot_start, feature, cell_start, table) = entries, question
    node_count, node_sum = _node_totals(place, taken, packed, tree.size)
    slot_of_node = np.full(tree.size, -1, dtype=np.int64)
    node_of_slot = _node_of_slot(slot_start, visits)
    first = 0
    while first < visits.size:
        last = _one_column(visits, feature, node_of_slot, first)
        for v in range(first, last):
            s, node = visits[v], node_of_slot[v]
            slot_of_node[node] = s
            absent = cell_start[s] + table[s * N_BINS + MISSING]
            counts[absent], G[absent] = node_count[node], node_sum[node]  # G holds packed sums until the end
        column = feature[visits[first]]
        for e in range(start[column], start[column + 1]):
            node = place[row[e]]
            if node < 0 or slot_of_node[node] < 0 or not taken[row[e]]:
                continue
            s = slot_of_node[node]
            absent, cell = cell_start[s] + table[s * N_BINS + MISSING], cell_start[s] + table[s * N_BINS + bins[e]]
            counts[absent], G[absent] = counts[absent] - 1, G[absent] - packed[row[e]]
            counts[cell], G[cell] = counts[cell] + 1, G[cell] + packed[row[e]]
        for v in range(first, last):
            slot_of_node[node_of_slot[v]] = -1
        first = last
    _unpack(visits, cell_start, G, H)


@part
def _node_totals(place, taken, packed, n_nodes):
    counts, sums = np.zeros(n_nodes, dtype=np.int64), np.zeros(n_nodes, dtype=np.int64)
    for i in range(place.size):
        if place[i] >= 0 and taken[i]:
            counts[place[i]] += 1
            sums[place[i]] += packed[i]
    return counts, sums


@part
def _node_of_slot(slot_start, visits):
    return np.searchsorted(slot_start, visits, side="right") - 1


@part
def _one_column(visits, feature, node_of_slot, first):
    """The end of the slots that one reading of a column can serve: of one column, at most one per node."""
    last = first + 1
    while (
        last < visits.size
        and feature[visits[last]] == feature[visits[first]]
        and node_of_slot[last] != node_of_slot[last - 1]
    ):
        last += 1
    return last


@part
def _unpack(visits, cell_start, G, H):
    for s in visits:
        for cell in range(cell_start[s], cell_start[s + 1]):
            G[cell], H[cell] = G[cell] >> 32, G[cell] & LOW_HALF


@njit(nogil=True, cache=True)
def split_rows(entries, place, visits, question, slot, left, child, number):
    """Rows to the children: first all as if missing, then those that have an entry. `visits` are nodes, by column."""
    (start, row, bins), (tree, _, _, feature, _, table) = entries, question
    for i in range(place.size):
        k = place[i]
        if k >= 0 and slot[k] >= 0:
            number[i] = _child(table, slot[k], MISSING, left[k], child[k])
    wanted = np.zeros(tree.size, dtype=np.bool_)
    first = 0
    while first < visits.size:
        last, column = first, feature[slot[visits[first]]]
        while last < visits.size and feature[slot[visits[last]]] == column:
            wanted[visits[last]] = True
            last += 1
        for e in range(start[column], start[column + 1]):
            k = place[row[e]]
            if k >= 0 and wanted[k]:
                number[row[e]] = _child(table, slot[k], bins[e], left[k], child[k])
        for v in range(first, last):
            wanted[visits[v]] = False
        first = last


@part
def _child(table, slot, value, left, child):
    goes_left = (left >> _U(table[slot * N_BINS + value])) & _U(1)
    return child + np.int32(_U(1) - goes_left)
