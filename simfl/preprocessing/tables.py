"""The global hash tables: rows of all parties with an equal hash value stand together, for every hash function.

The paper all-reduces the tables among the parties; our hub merges and broadcasts them, because a star needs no links
between parties. A table is kept as bucket numbers: rows are in one bucket where their numbers are equal. There are
few buckets per table, so one byte per row and table is enough (the paper counts eight).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simfl.arrays import Codes, Ints


@dataclass(frozen=True)
class GlobalTables:
    """Every party's rows as bucket numbers, shape (rows, L), and the hash values that the numbers stand for."""

    codes: Mapping[str, Codes]
    values: Sequence[Ints]

    def bucket(self, table: int, value: int) -> dict[str, list[int]]:
        """The rows of each party with this value of hash function number `table`, as the paper's table lists them."""
        number = int(np.searchsorted(self.values[table], value))
        if number == len(self.values[table]) or self.values[table][number] != value:
            return {name: [] for name in self.codes}
        return {name: np.flatnonzero(codes[:, table] == number).tolist() for name, codes in self.codes.items()}


def merge_tables(hashes: Mapping[str, Ints]) -> GlobalTables:
    """Put equal hash values of all parties under one bucket number.

    >>> tables = merge_tables({"a": np.array([[7], [-2]]), "b": np.array([[7]])})
    >>> tables.bucket(0, 7)
    {'a': [0], 'b': [0]}
    """
    n_hashes = next(iter(hashes.values())).shape[1]
    values = [np.unique(np.concatenate([np.unique(h[:, t]) for h in hashes.values()])) for t in range(n_hashes)]
    return GlobalTables({name: bucket_numbers(h, values) for name, h in hashes.items()}, values)


def bucket_numbers(hashes: Ints, values: Sequence[Ints]) -> Codes:
    """The bucket number of every hash value, in the smallest type that holds them all."""
    codes = np.empty(hashes.shape, dtype=smallest_type(max(len(v) for v in values)))
    for table, known in enumerate(values):
        codes[:, table] = np.searchsorted(known, hashes[:, table])
    return codes


def smallest_type(n_values: int) -> Any:
    """The smallest unsigned type that numbers so many values.

    >>> smallest_type(256), smallest_type(257)
    (<class 'numpy.uint8'>, <class 'numpy.uint16'>)
    """
    return np.uint8 if n_values <= 2**8 else np.uint16 if n_values <= 2**16 else np.uint32
