"""A common scale for the features, from sums that every party can give without showing a row.

Hashing measures distance, so a column in grams must not outweigh one in kilograms. Not in the paper, which hashes
the features as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from simfl.arrays import AnyArray, Doubles, Table

WITHOUT_WEIGHT = 1e300  # the deviation of a column that does not vary: finite, so that it can travel


@dataclass(frozen=True)
class Moments:
    """Per feature: how many values there are, their sum and the sum of their squares. Missing values do not count."""

    counts: Doubles
    sums: Doubles
    squares: Doubles


@dataclass(frozen=True)
class Scale:
    """Subtract `mean`, divide by `deviation`; `norm` is the root mean square length of a row after that."""

    mean: Doubles
    deviation: Doubles
    norm: float

    @classmethod
    def none(cls, n_features: int) -> Scale:
        """Features as they are."""
        return cls(np.zeros(n_features), np.ones(n_features), math.nan)


def moments(X: Table) -> Moments:
    """The moments of one party's rows. An absent entry of a sparse table counts as zero here."""
    if sparse.issparse(X):
        return _sparse_moments(X)
    counts = np.empty(X.shape[1])
    sums, squares = np.empty(X.shape[1]), np.empty(X.shape[1])
    for j in range(X.shape[1]):  # column by column: no copy of the table in double precision
        column = X[:, j].astype(np.float64)
        column = column[~np.isnan(column)]
        counts[j], sums[j], squares[j] = len(column), column.sum(), column @ column
    return Moments(counts, sums, squares)


def _sparse_moments(X: Any) -> Moments:
    values = X.data.astype(np.float64)
    known = ~np.isnan(values)
    columns, values, d = X.indices[known], values[known], X.shape[1]
    missing = np.bincount(X.indices[~known], minlength=d)
    return Moments(
        (X.shape[0] - missing).astype(np.float64),
        np.bincount(columns, weights=values, minlength=d).astype(np.float64),
        np.bincount(columns, weights=values * values, minlength=d).astype(np.float64),
    )


def common_scale(total: Moments, n_rows: int, groups: AnyArray | None = None) -> Scale:
    """Mean and deviation from the moments of all rows; a constant column gets no weight.

    Columns of one group (the levels of a category) share a deviation, so that together they vary as one number does:
    two rows drawn at random differ by as much in a category of ten levels as in one number.

    >>> common_scale(Moments(np.array([2.0]), np.array([2.0]), np.array([4.0])), n_rows=2)  # the values 0 and 2
    Scale(mean=array([1.]), deviation=array([1.]), norm=1.0)
    """
    counts = np.maximum(total.counts, 1.0)
    mean, second = total.sums / counts, total.squares / counts
    variance = second - mean * mean
    varies = variance > 1e-12 * np.maximum(second, 1e-300)
    variance = np.where(varies, variance, 0.0)
    groups = np.arange(len(mean)) if groups is None else groups
    together = np.bincount(groups, weights=variance)[groups]
    # What does not vary (or less than float64 resolves) says nothing about likeness: it does not count at all.
    deviation = np.where(varies, np.sqrt(np.where(varies, together, 1.0)), WITHOUT_WEIGHT)
    squares = np.where(varies, counts * (variance / np.where(varies, together, 1.0)), 0.0)
    return Scale(mean, deviation, math.sqrt(float(squares.sum()) / n_rows))
