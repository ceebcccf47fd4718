"""What SimFL is measured against: SOLO, ALL-IN and TFL, with the same parameters.

SOLO and ALL-IN are XGBoost's own `xgb.train`, on one party's rows or on all rows pooled. They read the rows of the
parties directly, so they exist in one process only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import xgboost as xgb
from scipy import sparse

from simfl import hub
from simfl import model as models
from simfl.arrays import AnyArray
from simfl.callbacks import Callback, TreeRecord
from simfl.data import class_numbers
from simfl.federation import gather, train
from simfl.model import Model
from simfl.params import prepare_params, split, train_params
from simfl.party import Party
from simfl.training.trees import threads_for, xgboost_params


def tfl(parties: Sequence[Party], *, callbacks: Sequence[Callback] | None = None, **params: Any) -> Model:
    """Tree-based federated learning: parties take turns, each on its own rows only, with its own leaf values."""
    return train(parties, callbacks=callbacks, **{**params, "n_neighbors": 0, "leaf_values": "builder"})


def solo(parties: Sequence[Party], **params: Any) -> dict[str, Model]:
    """Every party alone, on its own rows."""
    classes = check(parties, params)
    return {party.name: xgboost_model([party], classes, params) for party in parties}


def all_in(parties: Sequence[Party], **params: Any) -> Model:
    """All rows pooled, which the parties may not do."""
    return xgboost_model(parties, check(parties, params), params)


def check(parties: Sequence[Party], params: dict[str, Any]) -> list[Any] | None:
    """The classes of all parties (None for regression), after the handshake that a federated training has."""
    first, second = split(params)
    transport = gather(parties, 1)
    hub.describe(transport, prepare_params(**first), seed=0)
    return hub.labels(transport, train_params(**second))[0]


def xgboost_model(parties: Sequence[Party], classes: list[Any] | None, params: dict[str, Any]) -> Model:
    """XGBoost's own model on the rows of these parties together."""
    checked = train_params(**split(params)[1])
    X, y, weight = _pool(parties)
    labels = y.astype(np.float32) if classes is None else class_numbers(y, classes, "The pool")
    threads = threads_for(X, checked.n_jobs or os.cpu_count() or 1)
    rows = xgb.QuantileDMatrix(
        X, labels, weight=weight, max_bin=checked.max_bin, feature_names=parties[0].columns, nthread=threads
    )
    settings = xgboost_params(checked, checked.random_state or 0, threads)
    settings["objective"] = checked.objective
    settings["base_score"] = checked.base_score
    if checked.base_score is None:
        del settings["base_score"]
        if classes is not None and len(np.unique(labels)) < 2:
            settings["base_score"] = 0.5  # one class only: its mean would be an infinite margin
    if checked.objective == "multi:softprob":
        settings["num_class"] = len(classes or [])
    seconds: list[float] = []
    scores: dict[str, dict[str, list[float]]] = {}
    booster = xgb.train(
        settings,
        rows,
        checked.n_trees,
        evals=[(rows, "train")],
        evals_result=scores,
        verbose_eval=False,
        callbacks=[_Clock(seconds)],
    )
    name = parties[0].name if len(parties) == 1 else "all"
    metric, values = next(iter(scores["train"].items()))
    history = [
        TreeRecord(round=i, builder=name, train={metric: value}, validation={}, bytes=0, seconds=s)
        for i, (value, s) in enumerate(zip(values, seconds, strict=True))
    ]
    return models.adopt(booster, classes, history)


class _Clock(xgb.callback.TrainingCallback):
    """Takes the seconds of every round."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = seconds

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        self.begun = time.perf_counter()
        return False

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        self.seconds.append(time.perf_counter() - self.begun)
        return False


def _pool(parties: Sequence[Party]) -> tuple[Any, AnyArray, AnyArray | None]:
    rows = [party.rows for party in parties]
    stack = sparse.vstack if any(sparse.issparse(r.X) for r in rows) else np.concatenate
    X = stack([r.X for r in rows])
    weight = None
    if any(r.weight is not None for r in rows):
        weight = np.concatenate([np.ones(len(r.y), np.float32) if r.weight is None else r.weight for r in rows])
    return X, np.concatenate([r.y for r in rows]), weight
