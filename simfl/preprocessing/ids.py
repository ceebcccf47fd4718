"""Ids of similar rows, in as many bits as they need.

They are most of what stage 1 leaves behind: five ids for every row and every other party. Two bytes hold each where the
other party has at most 65,536 rows; what goes beyond that is kept as bitmaps, one per bit: 17 bits for 100,000 rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simfl.arrays import AnyArray, Codes, Ints, lasting
from simfl.preprocessing.splitmix import below, row_token

_LOW = 16  # bits


@dataclass(frozen=True)
class Ids:
    """The ids (rows, k) of another party's rows."""

    low: NDArray[np.uint16]  # (rows, k)
    high: NDArray[np.uint8]  # (further bits, bytes): one bit per id, the first in the lowest

    @classmethod
    def pack(cls, ids: AnyArray, n_rows: int) -> Ids:
        """From plain ids below `n_rows`.

        >>> Ids.pack(np.array([[7, 65536], [70000, 1]]), n_rows=70001)
        Ids(low=array([[   7,    0],
               [4464,    1]], dtype=uint16), high=array([[6]], dtype=uint8))
        """
        ids = ids.astype(np.int32, copy=False)
        bits = range(_LOW, max((n_rows - 1).bit_length(), _LOW))
        high = [np.packbits((ids & ids.dtype.type(1 << bit)) != 0, bitorder="little") for bit in bits]
        planes = np.array(high, dtype=np.uint8).reshape(len(bits), -(-ids.size // 8))
        return cls(lasting(ids.astype(np.uint16)), lasting(planes))

    def unpacked(self) -> Ints:
        """The plain ids."""
        ids = self.low.astype(np.int32)
        for bit, plane in enumerate(self.high, _LOW):
            ids |= np.unpackbits(plane, count=ids.size, bitorder="little").reshape(ids.shape).astype(np.int32) << bit
        return ids

    def to_draw_from(self, seed: int) -> Codes:
        """Ids of which each row draws one under this seed: all of them, or, to unpack no others, the one it draws."""
        return self.drawn(seed)[:, None] if len(self.high) else self.low

    def drawn(self, seed: int) -> Ints:
        """The id that each row draws under this seed."""
        drawn = np.empty(len(self.low), dtype=np.int32)
        _draw(self.low, self.high, np.uint64(seed), drawn)
        return drawn


@njit(nogil=True, cache=True)
def _draw(low, high, seed, drawn):  # type: ignore[no-untyped-def]
    k = low.shape[1]
    for i in range(low.shape[0]):
        pick = np.int64(below(row_token(seed, i), k))
        place = i * k + pick
        found = np.int64(low[i, pick])
        for bit in range(high.shape[0]):
            found |= np.int64((high[bit, place >> 3] >> (place & 7)) & 1) << (bit + 16)
        drawn[i] = found
