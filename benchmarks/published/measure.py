"""One cell of a published table: one method trained on one study, scored on the publication's test rows.

Settings are never chosen on test rows. "published": those of the publication, for every method. "stopped": the
package's defaults for every method, and validation rows, set aside from the training rows, decide when to stop.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import xgboost
from sklearn.metrics import roc_auc_score

import simfl
from benchmarks import cells
from benchmarks.pages import state
from benchmarks.published import tables
from benchmarks.published.tables import ALL, Study

PAPER, SIMILAR, JOINT, TFL, SOLO, ALL_IN = "paper", "similar", "joint", "TFL", "SOLO", "ALL-IN"
METHODS = (JOINT, SIMILAR, PAPER, TFL, SOLO, ALL_IN)
RECIPES = (JOINT, SIMILAR, PAPER)
STOPPED: dict[str, Any] = {"n_trees": 500, **simfl.baselines.STOPPING}
_UNIFED = {"n_trees": 64, "learning_rate": 0.05, "max_depth": 6, "max_bin": 64}
PUBLISHED: dict[str, dict[str, Any]] = dict.fromkeys(tables.UNIFED, _UNIFED)
METRICS = {"default_credit": "AUC", "breast": "AUC", "student": "MSE", tables.BRCA: "C-index"}  # the others: accuracy
POOLED, MEAN = "pooled", "mean"  # over all test rows; the mean of the centres
RESAMPLES = 200
IID_SEEDS = 2  # at most: tens of thousands of rows, whose test rows tell more than seeds do
QUICK_TREES = 10


def wanted(names: list[str], seeds: int, clients: tuple[int, ...] = (2, 5, 10)) -> list[cells.Cell]:
    """All cells of these tables, the first seed of everything first. ALL-IN does not depend on the clients."""
    found = []
    for how, seed, name in product(("stopped", "published"), range(seeds), names):
        if (how == "published" and name not in PUBLISHED) or (name in tables.IID and seed >= IID_SEEDS):
            continue
        several = clients if name in tables.IID else (0,)
        for n, method in product(several, METHODS):
            n_clients = clients[0] if method == ALL_IN and n else n
            found.append({"data": name, "settings": how, "clients": n_clients, "method": method, "seed": seed})
    unique = {tuple(cell.items()): cell for cell in found}
    learned = {name: tables.study(name, clients[0]).objective for name in names}
    return [cell | {"behaviour": behaviour(cell["method"], learned[cell["data"]])} for cell in unique.values()]


def measured(cell: cells.Cell) -> cells.Result:
    """Train, and score on the test rows: `pooled`, `mean` and every centre, with the deviation of the first two."""
    study = tables.study(cell["data"], cell["clients"], cell["seed"])
    begun = time.process_time()
    trained = models(cell["method"], study.parties(), options(cell, study))
    seconds = time.process_time() - begun
    found = score(trained, study, METRICS.get(cell["data"], "accuracy"))
    trees = float(np.mean([model.n_trees for model in trained.values()]))
    return found | {"trees": trees, "cpu_seconds": round(seconds, 1)} | state()


def options(cell: cells.Cell, study: Study) -> dict[str, Any]:
    """What every method is called with."""
    quick = {"n_trees": QUICK_TREES} if cell.get("quick") else {}
    fixed = {"objective": study.objective, "random_state": cell["seed"], "n_jobs": cells.threads()}
    settings = PUBLISHED[cell["data"]] if cell["settings"] == "published" else STOPPED
    return settings | quick | fixed


def models(method: str, parties: list[simfl.Party], params: dict[str, Any]) -> dict[str, simfl.Model]:
    """What a method makes of these parties: a model for each (SOLO), or one for all."""
    if method == SOLO:
        return simfl.baselines.solo(parties, **params)
    if method == ALL_IN:
        return {ALL: simfl.baselines.all_in(parties, **params)}
    if method == TFL:
        return {ALL: simfl.baselines.tfl(parties, callbacks=[], **params)}
    return {ALL: simfl.train(parties, callbacks=[], recipe=method, **params)}


_LABELS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "binary:logistic": lambda margin: (margin > 0).astype(np.int64),
    "reg:squarederror": lambda margin: margin,
    "survival:aft": lambda margin: simfl.survival_bounds(np.exp(margin), margin < 1),
}


@functools.cache
def behaviour(method: str, objective: str) -> str:
    """A digest of what small trainings of this method give: changed code with the same numbers keeps old results."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 8)).astype(np.float32)
    margin = X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=600)
    X[rng.random(X.shape) < 0.1] = np.nan
    digest = hashlib.sha256(f"xgboost {xgboost.__version__}".encode())
    y = _LABELS[objective](margin)
    for settings in (STOPPED, _UNIFED):
        parties = [simfl.Party(f"party {i}", X[i::3], y[i::3]) for i in range(3)]
        params = settings | {"n_trees": 60, "objective": objective, "random_state": 0, "n_jobs": 1}
        for model in models(method, parties, params).values():
            digest.update(model.margins(X).tobytes())
    return digest.hexdigest()[:8]


# --- scores ----------------------------------------------------------------------------------------------------------

Metric = Callable[[np.ndarray, np.ndarray], float]


def concordance(times: np.ndarray, predicted: np.ndarray) -> float:
    """Harrell's C: of the pairs whose order is known, how many are predicted in that order. Ties count half.

    `times` has two columns, lower and upper bound; the upper one is infinite where the event has not happened. A pair's
    order is known if the earlier time is an event.

    >>> times = np.array([[1.0, 1.0], [2.0, np.inf], [3.0, 3.0]])
    >>> concordance(times, np.array([5.0, 9.0, 4.0]))  # 1 before 2 is right, 1 before 3 is wrong, 2 and 3: unknown
    0.5
    """
    at, event = times[:, 0], np.isfinite(times[:, 1])
    later = (at[None, :] > at[:, None]) | ((at[None, :] == at[:, None]) & ~event[None, :])
    known = event[:, None] & later
    order = np.sign(predicted[None, :] - predicted[:, None])
    n_known = int(known.sum())
    return float((order[known] + 1).sum() / 2 / n_known) if n_known else float("nan")


SCORES: dict[str, Metric] = {
    "AUC": lambda y, p: float(roc_auc_score(y, p)) if len(np.unique(y)) > 1 else float("nan"),
    "MSE": lambda y, p: float(np.mean((y - p) ** 2)),
    "accuracy": lambda y, p: float(np.mean((p > 0.5) == y)),
    "C-index": concordance,
}


def predictions(model: simfl.Model, X: Any) -> np.ndarray:
    """The probability of the second class, or the number that is predicted."""
    return model.predict(X) if model.classes is None else model.predict_proba(X)[:, 1]


def score(trained: dict[str, simfl.Model], study: Study, metric: str) -> dict[str, float]:
    """Scores of the models, and the deviation of `pooled` and `mean` over resampled test rows.

    Where each party has its own model, a centre is scored with its own, and `pooled` is the mean over the models.
    """
    told = {model: {c: predictions(m, X) for c, (X, _) in study.test.items()} for model, m in trained.items()}
    labels = {centre: y for centre, (_, y) in study.test.items()}
    rng = np.random.default_rng(0)
    drawn = [{c: rng.integers(len(y), size=len(y)) for c, y in labels.items()} for _ in range(RESAMPLES)]
    again = [_scores(told, labels, SCORES[metric], rows) for rows in drawn]
    found = _scores(told, labels, SCORES[metric], {c: np.arange(len(y)) for c, y in labels.items()})
    main = [name for name in (POOLED, MEAN) if name in found]
    return found | {f"{name}_sd": float(np.nanstd([one[name] for one in again])) for name in main}


def _scores(
    told: dict[str, dict[str, np.ndarray]], labels: dict[str, np.ndarray], metric: Metric, rows: dict[str, np.ndarray]
) -> dict[str, float]:
    """`pooled`, and where there are several centres each of them and their mean."""
    y = np.concatenate([labels[c][rows[c]] for c in labels])
    pooled = [metric(y, np.concatenate([p[c][rows[c]] for c in labels])) for p in told.values()]
    found = {POOLED: float(np.mean(pooled))}
    if len(labels) > 1:
        own = {c: metric(labels[c][rows[c]], told.get(c, told.get(ALL, {}))[c][rows[c]]) for c in labels}
        found |= own | {MEAN: float(np.nanmean(list(own.values())))}
    return found
