"""Shared cut points: thresholds from a public grid, so that no threshold is one party's exact value.

A tree's thresholds are single values of the builder's rows. With `cuts="shared"` the builder grows its trees on a table
in which every value is replaced by the number of grid points that do not exceed it. The grid is a function of the
common mean and deviation of each feature alone: fine near the mean, ever coarser away from it, wide enough for heavy
tails. Categories have levels that all parties know; they need no grid.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy import sparse

from simfl.arrays import Doubles, Floats, Table
from simfl.training.trees import LEAF, Tree

REACH = 1e4  # the outermost points, in deviations
FINE = 0.5  # deviations from the mean within which the points are evenly spaced
BEYOND = np.float32(3e38)  # a threshold that all values are below


def grid(mean: Doubles, deviation: Doubles, n_points: int) -> list[Floats]:
    """Per feature the cut points, in ascending order. A feature that does not vary has none.

    >>> grid(np.array([10.0]), np.array([2.0]), 3)[0].tolist()
    [-19990.0, 10.0, 20010.0]
    """
    steps = FINE * np.sinh(np.linspace(-1.0, 1.0, n_points) * np.arcsinh(REACH / FINE))
    varies = np.isfinite(deviation) & (deviation > 0)
    return [
        np.unique((m + s * steps).astype(np.float32)) if v else np.empty(0, np.float32)
        for m, s, v in zip(mean, deviation, varies, strict=True)
    ]


def counted(X: Table, points: Sequence[Floats | None]) -> Table:
    """Every value as one plus the number of points that do not exceed it; missing values and categories stay."""
    if sparse.issparse(X):
        columns = sparse.csc_matrix(X)
        for j, own in enumerate(points):
            part = slice(columns.indptr[j], columns.indptr[j + 1])
            columns.data[part] = _count(columns.data[part], own)
        return columns.tocsr()
    out = np.empty(X.shape, dtype=np.float32)
    for j, own in enumerate(points):
        out[:, j] = _count(X[:, j], own)
    return out


def _count(values: Floats, points: Floats | None) -> Floats:
    if points is None:
        return values
    numbers = 1 + np.searchsorted(points, values, side="right").astype(np.float32)
    numbers[np.isnan(values)] = np.nan
    return numbers


def on_grid(tree: Tree, points: Sequence[Floats | None]) -> Tree:
    """A tree that was grown on counts, turned into one on values: a count below j is a value below the point before."""
    threshold = tree.threshold.copy()
    for node in np.flatnonzero(tree.feature != LEAF):
        own = points[tree.feature[node]]
        if own is None:
            continue
        number = int(np.ceil(float(threshold[node]))) - 2  # a count starts from one
        threshold[node] = own[number] if 0 <= number < len(own) else BEYOND if number >= len(own) else -BEYOND
    return replace(tree, threshold=threshold)
