"""How good a model is on held-out rows: gains with intervals, learning curves, ROC, calibration, importance.

Everything here reads rows, so it runs where the rows are: in a simulation for all parties, else at each party for its
own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xgboost as xgb
from sklearn.metrics import roc_curve

from simfl.arrays import AnyArray, Doubles
from simfl.model import Model
from simfl.report.record import Curve, Gain, Importance, Points

RESAMPLINGS = 1000
SMALLEST = 1e-15  # the probability of a class that a model thinks impossible
SHAP_ROWS = 2000
CURVE_POINTS = 30
ROC_POINTS = 200
CALIBRATION_BINS = 10
_CELLS = 4_000_000  # of one block of resamplings


@dataclass(frozen=True)
class HeldOut:
    """Rows that no model was trained on, their labels, and the party that each belongs to."""

    X: Any
    y: AnyArray
    owner: AnyArray
    _places: dict[Any, AnyArray] = field(default_factory=dict)

    def of(self, party: str | None) -> AnyArray:
        """Which rows are this party's (None: all)."""
        return np.ones(len(self.y), dtype=bool) if party is None else self.owner == party

    def part(self, parties: Sequence[str | None]) -> HeldOut:
        """The rows of these parties alone."""
        rows = np.flatnonzero(np.isin(self.owner, [p for p in parties if p is not None]))
        if isinstance(self.X, xgb.DMatrix):
            X = self.X.slice(rows)
        else:
            X = self.X.iloc[rows] if hasattr(self.X, "iloc") else self.X[rows]
        return HeldOut(X, self.y[rows], self.owner[rows])

    def places(self, model: Model) -> AnyArray:
        """The place of every label among the model's classes; -1 for one that no party has."""
        classes = () if model.classes is None else tuple(model.classes.tolist())
        if classes not in self._places:
            places = {label: place for place, label in enumerate(classes)}
            self._places[classes] = np.array([places.get(label, -1) for label in self.y.tolist()])
        return self._places[classes]


# --- losses of single rows -------------------------------------------------------------------------------------------


def losses(model: Model, prediction: AnyArray, held_out: HeldOut) -> dict[str, Doubles]:
    """Per row: log loss and error of a classifier, or the squared error of a regressor."""
    if model.classes is None:
        return {"rmse": (prediction.astype(np.float64) - held_out.y.astype(np.float64)) ** 2}
    p, number = _two_columns(prediction), held_out.places(model)
    given = np.where(number >= 0, p[np.arange(len(number)), number], SMALLEST)
    return {
        "logloss": -np.log(np.clip(given, SMALLEST, 1.0)),
        "error": (p.argmax(axis=1) != number).astype(np.float64),
    }


def _two_columns(prediction: AnyArray) -> Doubles:
    p = prediction.astype(np.float64)
    return np.column_stack([1 - p, p]) if p.ndim == 1 else p


def finish(metric: str, mean: Any) -> Any:
    """The metric from the mean loss of rows."""
    return np.sqrt(mean) if metric == "rmse" else mean


def main_metric(model: Model) -> str:
    """The metric that the headline speaks of."""
    return "rmse" if model.classes is None else "logloss"


# --- gains -----------------------------------------------------------------------------------------------------------


def gains(
    alone: Mapping[str, Model],
    together: Model,
    held_out: HeldOut,
    own_rows: Mapping[str, tuple[Any, AnyArray]],
    seed: int = 0,
) -> list[Gain]:
    """What every party gains over being alone: on everybody's held-out rows, and on its own.

    On its own rows the shared model is taken as it is, and adjusted to the rows that the party has trained on.
    """
    ours = losses(together, _predict(together, held_out.X), held_out)
    theirs = {party: losses(model, _predict(model, held_out.X), held_out) for party, model in alone.items()}
    pairs = [(party, metric, theirs[party][metric], ours[metric]) for party in theirs for metric in ours]
    found = _gains(pairs, None, held_out, seed)
    for party in theirs:
        mine = [pair for pair in pairs if pair[0] == party]
        found += _gains(mine, party, held_out, seed)
        fitted = together.adjusted(*own_rows[party])
        better = losses(fitted, _predict(fitted, held_out.X), held_out)
        found += _gains([(p, m, before, better[m]) for p, m, before, _ in mine], party, held_out, seed, adjusted=True)
    return found


def _gains(
    pairs: list[tuple[str, str, Doubles, Doubles]],
    rows: str | None,
    held_out: HeldOut,
    seed: int,
    *,
    adjusted: bool = False,
) -> list[Gain]:
    mask = held_out.of(rows)
    if not mask.any():
        return []
    before = np.column_stack([alone[mask] for _, _, alone, _ in pairs])
    after = np.column_stack([together[mask] for _, _, _, together in pairs])
    metrics = [metric for _, metric, _, _ in pairs]
    low, high = intervals(metrics, before, after, seed)
    return [
        Gain(
            party=party,
            rows=rows,
            adjusted=adjusted,
            metric=metric,
            alone=(a := float(finish(metric, before[:, i].mean()))),
            together=(b := float(finish(metric, after[:, i].mean()))),
            gain=a - b,
            low=float(low[i]),
            high=float(high[i]),
            n_rows=len(before),
        )
        for i, (party, metric, _, _) in enumerate(pairs)
    ]


def intervals(metrics: Sequence[str], alone: Doubles, together: Doubles, seed: int = 0) -> tuple[Doubles, Doubles]:
    """The middle 95 % of the gains when the same rows are drawn anew, with replacement, for both models.

    Columns are losses of rows, one column per gain.

    >>> low, high = intervals(["error"], np.ones((100, 1)), np.zeros((100, 1)))
    >>> low.round(6), high.round(6)
    (array([1.]), array([1.]))
    """
    rng, n = np.random.default_rng(seed), len(alone)
    both = np.hstack([alone, together])
    means = np.empty((RESAMPLINGS, both.shape[1]))
    for begin in range(0, RESAMPLINGS, block := max(1, _CELLS // n)):
        size = min(block, RESAMPLINGS - begin)
        drawn = rng.integers(0, n, (size, n)) + np.arange(size)[:, None] * n
        times = np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n)
        means[begin : begin + size] = times @ both / n
    rooted = np.where(np.array([*metrics, *metrics]) == "rmse", np.sqrt(means), means)
    low, high = np.percentile(rooted[:, : len(metrics)] - rooted[:, len(metrics) :], (2.5, 97.5), axis=0)
    return low, high


# --- curves ----------------------------------------------------------------------------------------------------------


def curves(method: str, party: str | None, model: Model, held_out: HeldOut, rows: list[str | None]) -> list[Curve]:
    """The main metric after so many trees, on the held-out rows of each of these parties (None: all)."""
    metric = main_metric(model)
    if None not in rows:
        held_out = held_out.part(rows)
    matrix = model.matrix(held_out.X)
    steps = np.unique(np.linspace(1, model.n_trees, min(CURVE_POINTS, model.n_trees)).round().astype(int)).tolist()
    values: dict[str | None, list[float]] = {whose: [] for whose in rows}
    for step in steps:
        prediction = model.booster.predict(matrix, iteration_range=(0, step))
        each = losses(model, prediction, held_out)[metric]
        for whose in rows:
            values[whose].append(float(finish(metric, each[held_out.of(whose)].mean())))
    return [
        Curve(method=method, party=party, rows=whose, metric=metric, trees=steps, values=values[whose])
        for whose in rows
    ]


def roc(method: str, party: str | None, model: Model, held_out: HeldOut) -> list[Points]:
    """False against true positives of a two-class model, thinned out to what a picture can show."""
    if model.classes is None or len(model.classes) != 2:
        return []
    number = held_out.places(model)
    if set(number.tolist()) != {0, 1}:
        return []
    false, true, _ = roc_curve(number, _predict(model, held_out.X))
    at = np.unique(np.linspace(0, len(false) - 1, min(ROC_POINTS, len(false))).round().astype(int))
    return [Points(method=method, party=party, x=_short(false[at]), y=_short(true[at]))]


def calibration(method: str, party: str | None, model: Model, held_out: HeldOut) -> list[Points]:
    """Predicted against observed, in groups of as many rows each.

    Two classes: the probability of the second; more: that of the likeliest; regression: the number itself.
    """
    prediction = _predict(model, held_out.X).astype(np.float64)
    if model.classes is None:
        predicted, observed = prediction, held_out.y.astype(np.float64)
    else:
        p, number = _two_columns(prediction), held_out.places(model)
        if len(model.classes) == 2:
            predicted, observed = p[:, 1], (number == 1).astype(np.float64)
        else:
            predicted, observed = p.max(axis=1), (p.argmax(axis=1) == number).astype(np.float64)
    groups = [rows for rows in np.array_split(np.argsort(predicted, kind="stable"), CALIBRATION_BINS) if len(rows)]
    return [
        Points(
            method=method,
            party=party,
            x=_short(np.array([predicted[rows].mean() for rows in groups])),
            y=_short(np.array([observed[rows].mean() for rows in groups])),
            weights=[len(rows) for rows in groups],
        )
    ]


def importance(model: Model, X: Any) -> list[Importance]:
    """Every feature's gain, mean absolute SHAP value (from XGBoost's own contributions) and number of splits.

    Without rows (None) there are no SHAP values.
    """
    names = model.feature_names or [f"f{i}" for i in range(model.booster.num_features())]
    splits: dict[str, Any] = model.booster.get_score(importance_type="weight")
    gain = model.gain or {}
    shap = [None] * len(names) if X is None else _shap(model, X)
    found = [
        Importance(feature=name, gain=gain.get(name), shap=value, splits=int(splits.get(name, 0)))
        for name, value in zip(names, shap, strict=True)
    ]
    return sorted(found, key=lambda one: -((one.gain or 0.0) if one.shap is None else one.shap))


def _shap(model: Model, X: Any) -> list[float]:
    matrix = model.matrix(X)
    if matrix.num_row() > SHAP_ROWS:
        matrix = matrix.slice(np.random.default_rng(0).permutation(matrix.num_row())[:SHAP_ROWS])
    parts = np.abs(model.booster.predict(matrix, pred_contribs=True))
    shap = parts.reshape(matrix.num_row(), -1, parts.shape[-1]).mean(axis=0).sum(axis=0)[:-1]  # the last is the start
    return [float(value) for value in shap]


def _predict(model: Model, X: Any) -> AnyArray:
    prediction: AnyArray = model.booster.predict(model.matrix(X))
    return prediction


def _short(values: AnyArray) -> list[float]:
    return [round(float(value), 6) for value in values]
