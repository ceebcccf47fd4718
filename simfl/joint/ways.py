"""Where the bins of every node go that is split in a level."""

from __future__ import annotations

import numpy as np
from numba import njit

from simfl.arrays import AnyArray, Ints
from simfl.joint.candidates import NONE, Nodes
from simfl.joint.level import MISSING, N_BINS, Level


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
