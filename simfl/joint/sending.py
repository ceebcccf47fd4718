"""A party's counts and sums of a level as they leave: clipped or up to each cut, with its share of the noise."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from simfl.arrays import AnyArray, Longs, Mask
from simfl.joint._part import row_token
from simfl.joint.level import Level
from simfl.joint.noise import Law, add_shares, share


class Sent(NamedTuple):
    """Which sums of a level are sent, the same at every party.

    Of a column of numbers: the sum up to each cut, so that noise on it counts only once in a split. A category has no
    cuts: its groups are put in order later. The last cell of each slot follows from the node's total.
    """

    now: AnyArray  # int64: for every cell as it was drawn the one that it is in now, or -1
    cell_start: AnyArray
    is_number: Mask  # per slot

    @property
    def n(self) -> int:
        """How many sums."""
        return int(self.cell_start[-1]) - len(self.is_number)


def sent_of(level: Level, now: AnyArray, n_levels: AnyArray) -> Sent:
    """All cells but the last of each slot."""
    return Sent(now, level.cell_start, n_levels[level.feature] < 2)


def counts(counted: Longs, most: int, scale: float, law: Law, key: int) -> Longs:
    """Counts up to `most`, with shares of noise, times `scale`, rounded at random."""
    out: Longs = np.empty(len(counted), np.int64)
    _counts(counted, most, scale, law, np.uint64(key), out)
    return out


def sums(cells: Longs, totals: Longs, sent: Sent, law: Law | None, key: int) -> AnyArray:
    """Sums of the cells as they were drawn, as they are sent; then `totals`, where they are sent, too."""
    out = np.empty(sent.n + len(totals), np.uint32)
    merged = np.zeros(int(sent.cell_start[-1]), np.int64)
    _sums(cells, sent.now, sent.cell_start, sent.is_number, merged, totals, out)
    if law is not None:
        add_shares(out, law, key)
    return out


@njit(nogil=True, cache=True)
def _counts(counts, most, scale, law, key, out):  # type: ignore[no-untyped-def]
    n = len(counts)
    for i in range(n):
        rows = (counts[i] if counts[i] < most else most) + share(law, key, i)
        dice = np.float64(row_token(key, 2 * n + i) >> np.uint64(11)) * 2.0**-53
        out[i] = np.int64(np.floor(rows * scale + dice))


@njit(nogil=True, cache=True)
def _sums(cells, now, cell_start, is_number, merged, totals, out):  # type: ignore[no-untyped-def]
    for cell in range(len(cells)):
        if now[cell] >= 0:
            merged[now[cell]] += cells[cell]
    n = 0
    for slot in range(len(is_number)):
        running = 0
        for cell in range(cell_start[slot], cell_start[slot + 1] - 1):
            running = merged[cell] + (running if is_number[slot] else 0)
            out[n], n = running, n + 1
    for i in range(len(totals)):
        out[n + i] = totals[i]
