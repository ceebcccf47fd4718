"""Tables and trees for the tests of this folder."""

import numpy as np
import xgboost as xgb


def table(n, d, seed, missing=0.0):
    rng = np.random.default_rng(seed)
    X = np.round(rng.normal(size=(n, d)), 1).astype(np.float32)  # rounded: many values equal a threshold
    X[rng.random(X.shape) < missing] = np.nan
    return X


def foreign_booster(seed, depth=6, gamma=0.0, missing=0.0, weighted=False):
    X = table(300, 5, seed, missing)
    y = np.nan_to_num(X[:, 0]) * np.nan_to_num(X[:, 1]) + np.nan_to_num(X[:, 2]) ** 2
    params = {"max_depth": depth, "gamma": gamma, "base_score": 0.0, "min_child_weight": 0}
    weight = np.random.default_rng(seed).random(300) if weighted else None
    return xgb.train(params, xgb.QuantileDMatrix(X, y, weight=weight), 1)


def depth(tree):
    """The number of splits on the longest path."""
    level = np.zeros(len(tree.feature), dtype=int)
    for node in np.flatnonzero(tree.left > 0):
        level[tree.left[node] : tree.left[node] + 2] = level[node] + 1
    return level.max()
