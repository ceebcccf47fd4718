"""One cell of an accuracy table: one method, trained on one split of one data set and scored on its held-out rows."""

from __future__ import annotations

import functools
import hashlib
import time
from typing import Any

import numpy as np
import xgboost
from scipy.sparse import csr_matrix
from sklearn.metrics import log_loss, roc_auc_score

import simfl
from benchmarks import cells
from benchmarks.data import load, split

DEFAULT, PAPER, TFL, SOLO, ALL_IN = "SimFL, similar recipe", "SimFL, paper's recipe", "TFL", "SOLO", "ALL-IN"

# "paper": what its experiments used, as far as the text and a reproduction of its baselines tell.
# "today": what a user would run. XGBoost's defaults otherwise.
SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {
        "objective": "reg:squarederror",
        "learning_rate": 1.0,
        "gamma": 1.0,
        "reg_lambda": 1.0,
        "min_child_weight": 1.0,
        "max_depth": 8,
        "base_score": 0.5,
    },
    "today": {"objective": "binary:logistic", "learning_rate": 0.1, "max_depth": 8},
}
METHODS = {"paper": (PAPER, TFL, SOLO, ALL_IN), "today": (DEFAULT, PAPER, TFL, SOLO, ALL_IN)}
TREES = {"paper": 500, "today": 200}
WIDE_TREES = 100  # with thousands of columns a tree under today's settings takes seconds


def n_trees(settings: str, data: str, *, quick: bool = False) -> int:
    """How many trees a table has."""
    if quick:
        return {"paper": 60, "today": 30}[settings]
    return WIDE_TREES if settings == "today" and data == "real-sim" else TREES[settings]


def cell(data: str, settings: str, method: str, partition: str, parties: int, run: int, trees: int) -> cells.Cell:
    """The settings of one training. `partition` is "balanced" or "theta 0.8"."""
    if method == ALL_IN:  # the same whatever the parties
        partition, parties = "pooled", 1
    return {
        "data": data,
        "settings": settings,
        "method": method,
        "partition": partition,
        "parties": parties,
        "run": run,
        "trees": trees,
        "behaviour": behaviour(method),
    }


@functools.cache
def behaviour(method: str) -> str:
    """A digest of what small trainings of this method give: faster code with the same numbers keeps old results.

    Skewed parties with missing values, dense and sparse, under both settings, and trees enough to match rows again.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 12)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=900) > 0).astype(np.int64)
    X[rng.random(X.shape) < 0.1] = np.nan
    sparse = csr_matrix(np.where(np.abs(X) > 1, X, 0))
    digest = hashlib.sha256(f"xgboost {xgboost.__version__}".encode())
    for settings, rows, n_parties in (("paper", X, 2), ("today", X, 4), ("today", sparse, 2)):
        asked = {"settings": settings, "method": method, "trees": 60, "run": 0}
        parts = simfl.partition.unbalanced(y, n_parties, theta=0.8)
        parties = [simfl.Party(f"party {i}", rows[p], y[p]) for i, p in enumerate(parts)]
        for model in models(asked, parties):
            digest.update(model.margins(rows).tobytes())
    return digest.hexdigest()[:8]


@functools.lru_cache(1)
def _data(name: str) -> tuple[Any, np.ndarray]:
    return load(name)


def members(cell: cells.Cell, X: Any, y: np.ndarray) -> list[simfl.Party]:
    """The parties of a cell. Every run has its own split, partition and hashes."""
    rows, _ = split(y, cell["run"])
    if cell["partition"] in ("balanced", "pooled"):
        parts = simfl.partition.balanced(len(rows), cell["parties"], seed=cell["run"])
    else:
        theta = float(cell["partition"].split()[1])
        parts = simfl.partition.unbalanced(y[rows], cell["parties"], theta=theta, seed=cell["run"])
    return [simfl.Party(f"party {i}", X[rows[p]], y[rows[p]]) for i, p in enumerate(parts)]


def options(cell: cells.Cell) -> dict[str, Any]:
    """What the method is called with."""
    recipe = {"recipe": "paper"} if cell["method"] == PAPER or cell["settings"] == "paper" else {}
    fixed = {"n_trees": cell["trees"], "random_state": cell["run"], "n_jobs": cells.threads()}
    return SETTINGS[cell["settings"]] | recipe | fixed


def train(cell: cells.Cell) -> cells.Result:
    """Train and score: one entry per model, so several for SOLO."""
    X, y = _data(cell["data"])
    parties = members(cell, X, y)
    begun = time.process_time()
    trained = models(cell, parties)
    seconds = time.process_time() - begun
    _, held_out = split(y, cell["run"])
    scored = [scores(y[held_out], probability(model, X[held_out])) for model in trained]
    return {name: [s[name] for s in scored] for name in scored[0]} | {"cpu_seconds": seconds}


def models(cell: cells.Cell, parties: list[simfl.Party]) -> list[simfl.Model]:
    """What the method of a cell makes of these parties: several models for SOLO."""
    params = options(cell)
    if cell["method"] == SOLO:
        return list(simfl.baselines.solo(parties, **params).values())
    if cell["method"] == ALL_IN:
        return [simfl.baselines.all_in(parties, **params)]
    if cell["method"] == TFL:
        return [simfl.baselines.tfl(parties, callbacks=[], **params)]
    return [simfl.train(parties, callbacks=[], **params)]


def probability(model: simfl.Model, X: Any) -> np.ndarray:
    """The probability of the second class; of squared loss, its prediction."""
    return model.predict(X) if model.classes is None else model.predict_proba(X)[:, 1]


def scores(y: np.ndarray, p: np.ndarray) -> dict[str, float]:
    """Error, log loss and AUC.

    >>> scores(np.array([0, 1, 1, 0]), np.array([0.1, 0.9, 0.4, 0.2]))["error"]
    0.25
    """
    inside = np.clip(p.astype(np.float64), 1e-7, 1 - 1e-7)
    return {
        "error": float(np.mean((p > 0.5) != y)),
        "logloss": float(log_loss(y, inside)),
        "auc": float(roc_auc_score(y, p)),
    }
