"""Tables for every kind of label, XGBoost's own training on them, and its gradients."""

import numpy as np
import pandas as pd
import xgboost as xgb

import simfl

FEW = {"n_trees": 20, "max_depth": 4, "random_state": 0}


def rows(n=300, seed=0):
    X = np.random.default_rng(seed).normal(size=(n, 5)).round(3).astype(np.float32)
    X[::17, 1] = np.nan
    return X


def signal(X):
    return X[:, 0] - 0.5 * np.nan_to_num(X[:, 1]) * X[:, 2]


def times(n=300, seed=0):
    """Times that depend on the columns, half of them only known to be longer than somebody watched."""
    X, rng = rows(n, seed), np.random.default_rng(seed + 1)
    time, watched = np.exp(1 + signal(X) + 0.3 * rng.normal(size=n)), rng.exponential(4, n)
    return X, simfl.survival_bounds(np.minimum(time, watched), time <= watched)


def parties(X, y, n=3):
    return [simfl.Party(f"p{i}", X[i::n], y[i::n]) for i in range(n)]


def matrix(X, y, **more):
    labels = {"label": y} if y.ndim == 1 else {"label_lower_bound": y[:, 0], "label_upper_bound": y[:, 1]}
    return xgb.DMatrix(X, **labels, **more)


def as_frame(X, y, labels):
    return pd.DataFrame(
        {f"x{i}": X[:, i] for i in range(X.shape[1])} | dict(zip(labels, np.atleast_2d(y.T), strict=True))
    )


def labels(objective, n=300, seed=0):
    """A table and labels that depend on its columns, for any objective."""
    X, rng = rows(n, seed), np.random.default_rng(seed + 2)
    mean = np.exp(0.5 + signal(X))
    if objective == "survival:aft":
        return times(n, seed)
    if objective.startswith("binary"):
        return X, (signal(X) + rng.logistic(size=n) > 0).astype(int)
    if objective.startswith("multi"):
        return X, np.digitize(signal(X) + rng.normal(size=n), [-0.5, 0.5])
    drawn = {
        "count:poisson": lambda: rng.poisson(mean).astype(float),
        "reg:gamma": lambda: rng.gamma(2, mean / 2) + 0.01,
        "reg:tweedie": lambda: np.where(rng.random(n) < 0.4, 0, rng.gamma(2, mean)),
    }
    return X, drawn.get(objective, lambda: signal(X) + 0.3 * rng.standard_t(3, n))()
