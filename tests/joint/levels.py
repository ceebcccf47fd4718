"""Levels for tests: drawn at random, and what NumPy says about them."""

import numpy as np

from simfl.joint.level import MISSING, Followed, Level, Splits
from simfl.joint.rows import ONE_ROW, SparseRows


def level_of(nodes, slots):
    """`nodes`: (tree, node) pairs; `slots`: per node a list of (feature, cell of each bin)."""
    flat = [slot for own in slots for slot in own]
    tables = np.array([table for _, table in flat], dtype=np.uint8).reshape(-1, 256)
    starts = [np.cumsum([0, *map(len, slots)]), np.cumsum([0, *(int(t.max()) + 1 for t in tables)])]
    tree, node = np.array(nodes, dtype=np.int32).reshape(-1, 2).T
    feature = np.array([f for f, _ in flat], dtype=np.int32)
    return Level(tree.copy(), node.copy(), starts[0].astype(np.int32), feature, starts[1].astype(np.int32), tables)


def splits_of(level, slot, left, n_nodes):
    """Children get the next free numbers of their tree, in order of node. `n_nodes`: per tree, grows."""
    child = np.full(level.n_nodes, -1, dtype=np.int32)
    for k in np.flatnonzero(np.asarray(slot) >= 0):
        child[k], n_nodes[level.tree[k]] = n_nodes[level.tree[k]], n_nodes[level.tree[k]] + 2
    return Splits(np.array(slot, np.int32), np.array(left, np.uint64), child, max(n_nodes))


def random_level(nodes, n_columns, most_cells, rng):
    """Up to as many slots per node as there are columns, with maps of bins to cells that have no order."""
    slots = []
    for _ in nodes:
        features = rng.permutation(n_columns)[: rng.integers(0, n_columns + 1)]
        slots.append([(f, _random_table(rng.integers(1, most_cells + 1), rng)) for f in features])
    return level_of(nodes, slots)


def _random_table(n_cells, rng):
    table = rng.integers(0, n_cells, 256)
    table[rng.integers(256)] = n_cells - 1  # the last cell exists
    return table


def begin(placement, packed, taken=None):
    """All rows to the roots, given what each tree takes of which rows."""

    def take(t, rows, out):
        own = np.arange(packed.shape[1]) if taken is None else np.flatnonzero(taken[t])
        rows[: len(own)], out[: len(own)] = own, packed[t][own]
        return len(own)

    return placement.begin(take)


def followed(splits, values):
    """A tree as rows follow it. `splits`: by number of node its feature, whether each bin goes left, its left child."""
    step, goes_right = np.arange(len(values)).astype(np.uint64) << np.uint64(32), np.zeros((len(values), 256), bool)
    for node, (feature, goes_left, child) in splits.items():
        step[node], goes_right[node] = child << 32 | int(feature), ~np.asarray(goes_left, bool)
    words = np.packbits(goes_right, axis=1, bitorder="little").view("<u4").astype(np.uint32)
    return Followed(step, words.ravel(), np.asarray(values, np.float32), len(splits))


def as_sparse(bins):
    """The same rows, with MISSING left out."""
    n, d = bins.shape
    rows = [np.flatnonzero(bins[:, j] != MISSING) for j in range(d)]
    values = np.concatenate([bins[own, j] for j, own in enumerate(rows)])
    start = np.cumsum([0, *map(len, rows)])
    return SparseRows(start, np.concatenate(rows).astype(np.int32), values.astype(np.uint8), n)


def as_dense(rows):
    """The bins of rows in any form, rows by columns."""
    if not isinstance(rows, SparseRows):
        return rows.bins
    out = np.full((rows.n_rows, len(rows.start) - 1), MISSING, dtype=np.uint8)
    out[rows.row, np.repeat(np.arange(out.shape[1]), np.diff(rows.start))] = rows.bin
    return out


class Reference:
    """What `Placement` does, row by row and slot by slot."""

    def __init__(self, bins, g, h, taken, counts_as=None):
        self.bins, self.g, self.h, self.taken = bins, g, h, taken
        self.node = np.zeros(g.shape, dtype=int)
        self.n_nodes = [1] * len(g)
        self.splits = [{} for _ in g]
        self.counts_as = np.full(len(bins), ONE_ROW) if counts_as is None else counts_as

    def followed(self, tree, values):
        return followed(self.splits[tree], values)

    def _cells(self, level, slot):
        return level.cell_of_bin[slot][self.bins[:, level.feature[slot]]].astype(int)

    def _here(self, level, k):
        t = level.tree[k]
        return (self.node[t] == level.node[k]) & self.taken[t]

    def sums(self, level):
        out = np.zeros((3, level.n_cells), dtype=np.int64)
        for k in range(level.n_nodes):
            here, t = self._here(level, k), level.tree[k]
            for s in range(level.slot_start[k], level.slot_start[k + 1]):
                cells = level.cell_start[s] + self._cells(level, s)[here]
                for total, values in zip(out, (self.counts_as, self.g[t], self.h[t]), strict=True):
                    np.add.at(total, cells, values[here])
        return out[0] // ONE_ROW, out[1], out[2]

    def split(self, level, slot, left):
        before = self.node.copy()
        for k in range(level.n_nodes):
            if slot[k] < 0:
                continue
            t = level.tree[k]
            goes_left = (int(left[k]) >> self._cells(level, slot[k]).astype(object)) & 1
            here = before[t] == level.node[k]
            self.node[t][here] = self.n_nodes[t] + 1 - goes_left[here].astype(int)
            every = (int(left[k]) >> level.cell_of_bin[slot[k]].astype(object)) & 1
            self.splits[t][int(level.node[k])] = level.feature[slot[k]], every, self.n_nodes[t]
            self.n_nodes[t] += 2
