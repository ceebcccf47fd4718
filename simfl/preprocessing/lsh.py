"""p-stable locality-sensitive hashing: floor((a.v + b) / r), the first step of stage 1.

Rows that lie close together get equal hash values with high probability. The directions `a` come from a p-stable
law (Gaussian for the L2 distance, Cauchy for L1), the offsets `b` are uniform in [0, r).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from simfl.arrays import Doubles, Ints, Table
from simfl.preprocessing.scaling import Scale

ROWS_AT_ONCE = 16_384
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class HashFamily:
    """L hash functions: `directions` (L, d), `offsets` (L,) and the common `bucket_width`."""

    directions: Doubles
    offsets: Doubles
    bucket_width: float

    @classmethod
    def draw(cls, seed: int, n_hashes: int, n_features: int, bucket_width: float, law: str = "gaussian") -> HashFamily:
        """Draw the functions from a seed: every party draws the same ones."""
        rng = np.random.default_rng([seed, 1])
        entries = rng.standard_cauchy if law == "cauchy" else rng.standard_normal
        directions = entries((n_hashes, n_features))
        return cls(directions, rng.uniform(0.0, bucket_width, n_hashes), bucket_width)


def hash_rows(X: Table, family: HashFamily, scale: Scale) -> Ints:
    """The hash values of every row, shape (rows, L). A missing value counts as the mean.

    >>> family = HashFamily(np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([0.0, 1.0]), bucket_width=2.0)
    >>> hash_rows(np.array([[3.0, 0.0], [3.0, 2.0]], dtype=np.float32), family, Scale.none(2))
    array([[1, 2],
           [1, 3]], dtype=int32)
    """
    # Scaling the directions instead of the rows keeps sparse rows sparse: a.(x - m)/s = (a/s).x - (a/s).m
    directions = family.directions / scale.deviation
    shift = family.offsets - directions @ scale.mean
    values = np.empty((X.shape[0], len(directions)), dtype=np.int32)
    for start in range(0, X.shape[0], ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        values[rows] = _floor((_project(X[rows], directions, scale.mean) + shift) / family.bucket_width)
    return values


def _project(X: Table, directions: Doubles, mean: Doubles) -> Doubles:
    # In double precision: a row must fall into the same bucket whatever BLAS does with the order of a sum.
    if sparse.issparse(X):
        rows = X.astype(np.float64)
        gaps = np.isnan(rows.data)
        rows.data[gaps] = mean[rows.indices[gaps]]
        projected: Doubles = rows @ directions.T
        return projected
    dense = np.where(np.isnan(X), mean, X.astype(np.float64))
    return dense @ directions.T


def _floor(values: Doubles) -> Ints:
    # Cauchy directions have heavy tails: the outermost buckets collect what does not fit.
    return np.clip(np.floor(values), _INT32.min, _INT32.max).astype(np.int32)
