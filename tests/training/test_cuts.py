"""Shared cut points: a grid that everybody can compute, and trees that mean the same on values as on counts."""

import numpy as np
import pytest
import xgboost as xgb
from scipy import sparse

from simfl.training.cuts import counted, grid, on_grid
from simfl.training.traversal import walker
from simfl.training.trees import from_booster


def table(seed=0, n=500):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)).astype(np.float32)
    X[:, 1] = np.exp(3 * X[:, 1])
    X[:, 2] = rng.integers(0, 2, n)
    X[rng.random(X.shape) < 0.1] = np.nan
    return X


def points_of(X, n=64):
    return grid(np.nanmean(X, axis=0, dtype=float), np.nanstd(X, axis=0, dtype=float), n)


def test_the_grid_rises_and_is_finest_at_the_mean():
    (points,) = grid(np.array([5.0]), np.array([2.0]), 255)
    assert (np.diff(points) > 0).all()
    gaps = np.diff(points)
    assert np.argmin(gaps) in range(100, 155)
    assert gaps.min() < 0.1 * 2.0
    assert points[0] < 5 - 1e4
    assert points[-1] > 5 + 1e4


def test_what_does_not_vary_has_no_points():
    assert [len(p) for p in grid(np.zeros(3), np.array([np.inf, 0.0, 1.0]), 10)] == [0, 0, 10]


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_tree_on_counts_means_the_same_on_values(kind):
    X = table()
    y = np.nan_to_num(X[:, 0]) * np.nan_to_num(X[:, 2]) + np.isnan(X[:, 1])
    points = points_of(X)
    if kind == "sparse":
        X = sparse.csr_matrix(np.where(np.isnan(X), 0, X))
    counts = counted(X, points)
    booster = xgb.train({"max_depth": 6, "base_score": 0.0, "nthread": 1}, xgb.QuantileDMatrix(counts, y), 1)
    tree = from_booster(booster)
    moved = on_grid(tree, points)
    np.testing.assert_array_equal(walker(X).leaf_numbers(moved), walker(counts).leaf_numbers(tree))
    known = np.concatenate(points).tolist()
    inner = moved.feature >= 0
    assert inner.sum() > 10
    assert all(abs(t) > 1e38 or t in known for t in moved.threshold[inner].tolist())
