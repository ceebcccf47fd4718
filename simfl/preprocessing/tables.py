"""The global hash tables: which rows of all parties share a hash value, for every hash function.

The paper all-reduces the tables among the parties; our hub merges and broadcasts them, because a star needs no links
between parties. A table is kept as bucket numbers: rows are in one bucket where their numbers are equal. There are
few buckets per table, so one byte per row and table is enough (the paper counts eight).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from simfl.arrays import AnyArray, Codes, Ints, Longs, Mask, read_only, smallest_type

FEW_CODES = 50_000  # of one party: NumPy does, and nothing is compiled for them


@dataclass(frozen=True)
class HashValues:
    """The hash values of one party's rows as they travel: per hash the lowest, and how far each row's lies above."""

    lowest: Ints
    above: Codes  # (rows, L), in the smallest type

    @classmethod
    def of(cls, hashes: AnyArray) -> HashValues:
        """From plain hash values."""
        lowest = hashes.min(axis=0)
        span = int((hashes.max(axis=0).astype(np.int64) - lowest).max())
        above = np.empty(hashes.shape, dtype=smallest_type(span + 1))
        np.subtract(hashes, lowest, out=above, casting="unsafe")
        return cls(lowest.astype(np.int32), above)

    def distinct(self) -> list[Ints]:
        """The values that occur, per hash, in ascending order."""
        if self.above.dtype == np.uint32:
            found = [np.unique(column) for column in self.above.T]
        else:
            occurs = np.zeros((len(self.lowest), np.iinfo(self.above.dtype).max + 1), dtype=np.bool_)
            _mark(self.above, occurs)
            found = [np.flatnonzero(row) for row in occurs]
        return [(v + np.int64(low)).astype(np.int32) for v, low in zip(found, self.lowest, strict=True)]


@dataclass(frozen=True)
class GlobalTables:
    """Every party's rows as bucket numbers, shape (rows, L), and the hash values that the numbers stand for."""

    codes: Mapping[str, Codes]
    values: Sequence[Ints]


def merge_tables(hashes: Mapping[str, HashValues]) -> GlobalTables:
    """Put equal hash values of all parties under one bucket number.

    >>> tables = merge_tables({"a": HashValues.of(np.array([[7], [-2]])), "b": HashValues.of(np.array([[7]]))})
    >>> {party: codes.ravel().tolist() for party, codes in tables.codes.items()}, tables.values[0].tolist()
    ({'a': [1, 0], 'b': [1]}, [-2, 7])
    """
    distinct = [own.distinct() for own in hashes.values()]
    values = [np.unique(np.concatenate(per_party)) for per_party in zip(*distinct, strict=True)]
    return GlobalTables({name: bucket_numbers(own, values) for name, own in hashes.items()}, values)


def bucket_numbers(hashes: HashValues, values: Sequence[Ints]) -> Codes:
    """The bucket number of every hash value, in the smallest type that holds them all."""
    codes = np.empty(hashes.above.shape, dtype=smallest_type(max(len(v) for v in values)))
    if hashes.above.dtype == np.uint32:
        for table, (known, low) in enumerate(zip(values, hashes.lowest, strict=True)):
            codes[:, table] = np.searchsorted(known, hashes.above[:, table] + np.int64(low))
        return codes
    span = np.arange(int(hashes.above.max()) + 1, dtype=np.int64)
    number_of = [np.searchsorted(known, span + low) for known, low in zip(values, hashes.lowest, strict=True)]
    _translate(hashes.above, np.stack(number_of).astype(np.int64), codes)
    return codes


def translate(codes: Codes, numbers: Sequence[AnyArray]) -> Codes:
    """Every code c of column h, replaced by `numbers[h][c]`, in the smallest type.

    >>> translate(np.array([[0, 1], [1, 0]], dtype=np.uint8), [np.array([5, 6]), np.array([7, 8])])
    array([[5, 8],
           [6, 7]], dtype=uint8)
    """
    table = np.zeros((len(numbers), max(len(n) for n in numbers)), dtype=np.int64)
    for row, own in zip(table, numbers, strict=True):
        row[: len(own)] = own
    out = np.empty(codes.shape, dtype=smallest_type(int(table.max()) + 1))
    _translate(codes, table, out)
    return out


def _mark(above: Codes, occurs: Mask) -> None:
    if above.size <= FEW_CODES:
        occurs[np.arange(len(occurs)), above] = True
    else:
        _mark_many(above, occurs)


def _translate(above: Codes, number_of: Longs, codes: Codes) -> None:
    if above.size <= FEW_CODES:
        codes[:] = number_of[np.arange(len(number_of)), above]
    else:
        _translate_many(read_only(above), number_of, codes)


@njit(nogil=True, cache=True)
def _mark_many(above, occurs):  # type: ignore[no-untyped-def]
    for i in range(above.shape[0]):
        for h in range(above.shape[1]):
            occurs[h, above[i, h]] = True


@njit(nogil=True, cache=True)
def _translate_many(above, number_of, codes):  # type: ignore[no-untyped-def]
    for i in range(above.shape[0]):
        for h in range(above.shape[1]):
            codes[i, h] = number_of[h, above[i, h]]
