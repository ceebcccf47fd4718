"""What a reader announces for a level: whether it keeps the rules, and where the bins of every node go."""

from __future__ import annotations

import numpy as np
from numba import njit

from simfl.arrays import AnyArray, Ints, Mask
from simfl.errors import ProtocolError
from simfl.joint.candidates import NONE, RUNNERS_UP, Nodes
from simfl.joint.level import MISSING, MOST_CELLS, N_BINS, Level

# As bits, eight to a byte: all bins before the first, before the second ..., before the one behind the last.
_BEFORE = np.packbits(np.arange(N_BINS) < np.arange(N_BINS + 1)[:, None], axis=1, bitorder="little")


class Ways:
    """Where the bins of the open nodes go that are split."""

    def __init__(self, level: Level, slot: Ints, left: AnyArray) -> None:
        self.level, self.node = level, np.flatnonzero(slot >= 0)
        self.slot, self.left = slot[self.node], left[self.node]
        self.feature, n = level.feature[self.slot], len(self.node)
        self.cut = np.empty(n, np.int32)  # the last bin that goes left, NONE if none does
        self.bins_left = np.empty((n, N_BINS // 8), np.uint8)  # one bit per bin
        _find_ways(level.cell_of_bin, self.slot, self.left, self.cut, self.bins_left)

    def note(self, nodes: Nodes, places: AnyArray) -> None:
        """Write down how the open nodes are split."""
        of = places[self.node]
        nodes.feature[of], nodes.cut[of], nodes.levels_left[of] = self.feature, self.cut, self.bins_left
        nodes.missing_left[of] = self.bins_left[:, -1] >> 7

    def check(self, n_levels: Ints, runners: Ints) -> None:
        """Rows go both ways, at a cut or by levels; and the runners-up were asked about."""
        n_cells = np.diff(self.level.cell_start)[self.slot].astype(np.uint64)
        full = ~np.uint64(0) >> (np.uint64(MOST_CELLS) - n_cells)
        if ((self.left == 0) | (self.left & ~full != 0) | (self.left == full)).any():
            raise ProtocolError("The reader announced a split that sends all rows to one side.")
        known, levels = self.bins_left & _BEFORE[MISSING], n_levels[self.feature]
        if (known != _BEFORE[self.cut + 1])[levels == 0].any():
            raise ProtocolError("The reader announced a split of numbers that is not a cut.")
        if (known & _BEFORE[levels] == _BEFORE[levels]).all(axis=1)[levels > 0].any():
            raise ProtocolError("The reader announced a split of a category in which no level goes right.")
        column, cut = runners.reshape(-1, 2).T
        given = (column != NONE) | (cut != NONE)
        if not _were_asked(self.level, np.repeat(self.node, RUNNERS_UP)[given], column[given], cut[given]).all():
            raise ProtocolError("The reader announced a runner-up that was not asked about in its node.")


def checked(level: Level, n_levels: Ints, slot: Ints, left: AnyArray, runners: Ints) -> Ways:
    """Splits that keep the rules: they were asked about, and so on. `runners`: of those nodes that are split."""
    split = slot >= 0
    if ((slot < NONE) | (split & ((slot < level.slot_start[:-1]) | (slot >= level.slot_start[1:])))).any():
        raise ProtocolError("The reader announced a split of a column that was not asked about in its node.")
    if left[~split].any():
        raise ProtocolError("The reader announced a split that sends all rows to one side.")
    ways = Ways(level, slot, left)
    ways.check(n_levels, runners)
    return ways


def _were_asked(level: Level, node: AnyArray, column: Ints, cut: Ints) -> Mask:
    """Whether these cuts are between two cells of their node."""
    slot_node = np.repeat(np.arange(level.n_nodes), np.diff(level.slot_start))
    width = int(max(level.feature.max(initial=0), column.max(initial=0))) + 1
    known, wanted = slot_node * width + level.feature, node * width + column
    slot = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))  # slots are in order of node and column
    possible = (column >= 0) & (cut >= 0) & (cut < MISSING)
    possible[possible] = known[slot[possible]] == wanted[possible]
    at = cut[possible]
    possible[possible] = level.cell_of_bin[slot[possible], at] != level.cell_of_bin[slot[possible], at + 1]
    return possible


@njit(nogil=True, cache=True)
def _find_ways(table, slot, left, cut, bins_left):  # type: ignore[no-untyped-def]
    for k in range(len(slot)):
        cut[k] = NONE
        for b in range(0, N_BINS, 8):
            byte = 0
            for bit in range(8):
                if (left[k] >> np.uint64(table[slot[k], b + bit])) & np.uint64(1):
                    byte |= 1 << bit
                    cut[k] = b + bit if b + bit < MISSING else cut[k]
            bins_left[k, b >> 3] = byte
