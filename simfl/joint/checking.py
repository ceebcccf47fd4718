"""What a reader announces for a level, looked at bin by bin: whether it keeps the rules, and where the bins go."""

from __future__ import annotations

import numpy as np
from numba import njit

from simfl.arrays import AnyArray, Ints
from simfl.errors import ProtocolError
from simfl.joint._part import part
from simfl.joint.candidates import NONE, RUNNERS_UP, Nodes
from simfl.joint.level import MISSING, N_BINS, Level

NOT_ASKED, ONE_SIDE, NO_CUT, NO_LEVEL, NO_RUNNER = 1, 2, 3, 4, 5
FAULTS = {
    NOT_ASKED: "a split of a column that was not asked about in its node",
    ONE_SIDE: "a split that sends all rows to one side",
    NO_CUT: "a split of numbers that is not a cut",
    NO_LEVEL: "a split of a category in which no level goes right",
    NO_RUNNER: "a runner-up that was not asked about in its node",
}


def check(level: Level, n_levels: Ints, slot: Ints, left: AnyArray, runners: Ints) -> None:
    """Refuse what was not asked about, and splits that are none. `runners`: of those nodes that are split."""
    fault = _find_fault(
        level.slot_start, level.feature, level.cell_start, level.cell_of_bin, n_levels, slot, left, runners
    )
    if fault:
        raise ProtocolError(f"The reader announced {FAULTS[int(fault)]}.")


def note(nodes: Nodes, level: Level, places: AnyArray, slot: Ints, left: AnyArray) -> None:
    """Write down how the open nodes are split."""
    n, split = len(slot), np.flatnonzero(slot >= 0)
    cut, missing_left = np.empty(n, np.int32), np.empty(n, np.bool_)
    bins_left = np.empty((n, N_BINS // 8), np.uint8)
    _find_ways(level.cell_of_bin, slot, left, cut, missing_left, bins_left)
    of = places[split]
    nodes.feature[of] = level.feature[slot[split]]
    nodes.missing_left[of], nodes.cut[of], nodes.levels_left[of] = missing_left[split], cut[split], bins_left[split]


@njit(nogil=True, cache=True)
def _find_ways(table, slot, left, cut, missing_left, bins_left):  # type: ignore[no-untyped-def]
    """Per split: the last bin that goes left, or NONE; whether missing values do; one bit per bin."""
    for k in range(len(slot)):
        if slot[k] < 0:
            continue
        cut[k] = NONE
        for b in range(0, N_BINS, 8):
            byte = 0
            for bit in range(8):
                if _goes_left(table, slot[k], left[k], b + bit):
                    byte |= 1 << bit
                    cut[k] = b + bit if b + bit < MISSING else cut[k]
            bins_left[k, b >> 3] = byte
        missing_left[k] = bins_left[k, MISSING >> 3] >> (MISSING & 7)


@part
def _goes_left(table, s, left, b):  # type: ignore[no-untyped-def]
    return (left >> np.uint64(table[s, b])) & np.uint64(1) != 0


@njit(nogil=True, cache=True)
def _find_fault(slot_start, feature, cell_start, table, n_levels, slot, left, runners):  # type: ignore[no-untyped-def]
    """The worst of all nodes, 0 for none."""
    worst, n = 0, 0
    for k in range(len(slot)):
        fault = 0
        if slot[k] < NONE or (slot[k] >= 0 and not slot_start[k] <= slot[k] < slot_start[k + 1]):
            fault = NOT_ASKED
        elif slot[k] < 0:
            fault = ONE_SIDE if left[k] else 0
        else:
            s = slot[k]
            n_cells = cell_start[s + 1] - cell_start[s]
            fault = _fault_of_split(table, s, n_cells, np.int64(n_levels[feature[s]]), left[k])
        if slot[k] >= 0:
            for r in range(RUNNERS_UP):
                if not fault and not _is_runner(
                    slot_start[k], slot_start[k + 1], feature, table, runners[n, r, 0], runners[n, r, 1]
                ):
                    fault = NO_RUNNER
            n += 1
        if fault and (worst == 0 or fault < worst):
            worst = fault
    return worst


@part
def _fault_of_split(table, s, n_cells, n_levels, left):  # type: ignore[no-untyped-def]
    full = ~np.uint64(0) >> np.uint64(64 - n_cells)
    if left == 0 or left & ~full != 0 or left == full:
        return ONE_SIDE
    if n_levels == 0:
        for b in range(1, MISSING):
            if _goes_left(table, s, left, b) and not _goes_left(table, s, left, b - 1):
                return NO_CUT
        return 0
    for b in range(n_levels):
        if not _goes_left(table, s, left, b):
            return 0
    return NO_LEVEL


@part
def _is_runner(first, last, feature, table, column, cut):  # type: ignore[no-untyped-def]
    """Whether a cut is between two cells of its node, or none was given."""
    if column == NONE and cut == NONE:
        return True
    for s in range(first, last):
        if feature[s] == column:
            return 0 <= cut < MISSING and table[s, cut] != table[s, cut + 1]
    return False
