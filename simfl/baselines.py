"""What SimFL is measured against: SOLO, ALL-IN and TFL, with the same parameters.

SOLO and ALL-IN are XGBoost's own `xgb.train`, on one party's rows or on all rows pooled. They read the rows of the
parties directly, so they exist in one process only.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import xgboost as xgb
from scipy import sparse

from simfl import hub
from simfl import model as models
from simfl.arrays import Floats
from simfl.callbacks import Callback, TreeRecord
from simfl.data.schema import xgboost_types
from simfl.data.table import as_targets
from simfl.errors import ParameterError
from simfl.federation import gather, train
from simfl.model import Model
from simfl.params import (
    BINS,
    Params,
    SimilarParams,
    builder_bins,
    cores,
    of_recipe,
    train_params,
    with_numbers,
)
from simfl.party import Party, Rows, Split
from simfl.training.losses import Loss, in_matrix, is_multi, loss_of, settings_of
from simfl.training.losses.base import RISING
from simfl.training.trees import threads_for, xgboost_params

# How every method of a comparison stops: a fifth of each party's training rows decides (SOLO: of its own), and the best
# round is kept once 20 more have brought nothing. The rows that measure a gain have no part in it.
STOPPING: Final = {"validation_fraction": 0.2, "early_stopping_rounds": 20}


def tfl(parties: Sequence[Party], *, callbacks: Sequence[Callback] | None = None, **params: Any) -> Model:
    """Tree-based federated learning: parties take turns, each on its own rows only, with its own leaf values."""
    train_params(**params)  # refuses what does not exist, or what its recipe does not read
    if params.get("epsilon") is not None:
        raise ParameterError("tfl has no epsilon: its trees come from exact rows. Leave epsilon out.")
    own = of_recipe("paper", params)
    if params.get("recipe") != "paper" and own.get("max_bin") is None:  # bins as coarse as those it is compared with
        n_rows = sum(len(party.rows.y) for party in parties) * (1 - own.get("validation_fraction", 0.0))
        own["max_bin"] = builder_bins(SimilarParams(), len(parties), round(n_rows))
    return train(parties, callbacks=callbacks, **own | {"n_neighbors": 0})


def solo(parties: Sequence[Party], **params: Any) -> dict[str, Model]:
    """Every party alone, on its own rows."""
    splits, classes = check(parties, params)
    return {name: xgboost_model({name: split}, classes, params) for name, split in splits.items()}


def solo_stopped(own: Split, name: str, classes: list[Any] | None, params: dict[str, Any]) -> Model:
    """One party alone as it would do at home: `STOPPING` finds the number of rounds, then it trains on all its rows."""
    training = Party.of_rows(name, own.training, own.schema)
    tried = Split.of(training, STOPPING["validation_fraction"], params.get("random_state") or 0)
    rule = {"early_stopping_rounds": STOPPING["early_stopping_rounds"] if tried.validation else None}
    n_trees = xgboost_model({name: tried}, classes, params | rule).n_trees
    return xgboost_model({name: own}, classes, params | {"n_trees": n_trees, "early_stopping_rounds": None})


def all_in(parties: Sequence[Party], **params: Any) -> Model:
    """All rows pooled, which the parties may not do."""
    return xgboost_model(*check(parties, params), params)


def check(parties: Sequence[Party], params: dict[str, Any]) -> tuple[dict[str, Split], list[Any] | None]:
    """Each party's rows after the handshake of a federated training, and all classes (None for regression).

    The handshake sets the same validation rows aside, and brings the columns into the same order.
    """
    checked = train_params(**params)
    transport = gather(parties, 1)
    described = hub.describe(transport, checked, hub.fresh_seed(checked.random_state))
    n_rows = {party: d.n_rows for party, d in described.items()}
    labels = hub.agree_on_labels(transport, checked, hub.MaskSteps(), n_rows)
    return {name: session.split for name, session in transport.handlers.items()}, labels.classes


def xgboost_model(splits: Mapping[str, Split], classes: list[Any] | None, params: dict[str, Any]) -> Model:
    """XGBoost's own model on the rows of these parties together."""
    checked = train_params(**params)
    first = next(iter(splits.values()))
    schema, columns = first.schema, first.schema.names if first.schema else None
    checked = with_numbers(checked, columns, first.n_features)
    pooled = pool([split.training for split in splits.values()])
    threads = threads_for(pooled.X, checked.n_jobs or cores())
    binned = {"max_bin": checked.max_bin or BINS, "feature_names": columns, "nthread": threads}
    binned |= xgboost_types(schema)
    loss = loss_of(checked)
    train_rows = xgb.QuantileDMatrix(pooled.X, weight=pooled.weight, **_labels(pooled, loss, classes), **binned)
    watched = [(train_rows, "train")]
    held_out = [split.validation for split in splits.values() if split.validation]
    if held_out:
        aside = pool(held_out)
        found = _labels(aside, loss, classes)
        watched.append((xgb.QuantileDMatrix(aside.X, weight=aside.weight, ref=train_rows, **found, **binned), "valid"))
    recorder = _Recorder(next(iter(splits)) if len(splits) == 1 else "all")
    booster = xgb.train(
        _settings(checked, classes, train_rows, threads),
        train_rows,
        checked.n_trees,
        evals=watched,
        early_stopping_rounds=checked.early_stopping_rounds,
        verbose_eval=False,
        callbacks=[recorder],
        maximize=loss.metric in RISING,
    )
    if checked.early_stopping_rounds:
        booster = booster[: booster.best_iteration + 1]
    return models.from_booster(booster, classes, recorder.history, schema)


def _labels(rows: Rows, loss: Loss, classes: list[Any] | None) -> dict[str, Floats]:
    """The labels as XGBoost takes them."""
    return in_matrix(as_targets(rows.y, loss, classes, "The pool"))


def _settings(params: Params, classes: list[Any] | None, rows: Any, threads: int) -> dict[str, Any]:
    settings = xgboost_params(params, params.random_state or 0, threads) | {"objective": params.objective}
    settings |= settings_of(params) | {"eval_metric": loss_of(params).metric}  # only then XGBoost reads its settings
    del settings["base_score"]
    if params.base_score is not None:
        settings["base_score"] = params.base_score
    elif classes is not None and len(np.unique(rows.get_label())) < 2:
        settings["base_score"] = 0.5  # one class only: its mean would be an infinite margin
    if is_multi(params.objective):
        settings["num_class"] = len(classes or [])
    return settings


class _Recorder(xgb.callback.TrainingCallback):
    """Keeps a record of every round."""

    def __init__(self, name: str) -> None:
        self.name, self.history = name, list[TreeRecord]()

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        self.begun = time.perf_counter()
        return False

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        train, valid = ({m: v[-1] for m, v in evals_log.get(which, {}).items()} for which in ("train", "valid"))
        took = time.perf_counter() - self.begun
        record = TreeRecord(round=epoch, builder=self.name, train=train, validation=valid, bytes=0, seconds=took)
        self.history.append(record)
        return False


def pool(parts: Sequence[Rows]) -> Rows:
    """The rows of several parties as one table."""
    stack = sparse.vstack if any(sparse.issparse(part.X) for part in parts) else np.concatenate
    weight = None
    if any(part.weight is not None for part in parts):
        weight = np.concatenate([np.ones(len(p.y), np.float32) if p.weight is None else p.weight for p in parts])
    return Rows(stack([part.X for part in parts]), np.concatenate([part.y for part in parts]), weight)
