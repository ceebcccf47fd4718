"""How good a model is on held-out rows: scores, gains with intervals, learning curves, ROC, calibration, importance.

Everything here reads rows, so it runs where the rows are: in a simulation for all parties, otherwise at each party for
its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xgboost as xgb
from sklearn.metrics import roc_auc_score, roc_curve

from simfl.arrays import AnyArray, Doubles, Floats
from simfl.model import Model
from simfl.params import cores
from simfl.report.bootstrap import middle, resampled_means
from simfl.report.record import Curve, Gain, Importance, Points, Score
from simfl.training.losses.concordance import concordance
from simfl.training.trees import CELLS_PER_THREAD

OwnRows = Mapping[str, tuple[Any, ...]]  # by party: what it trains on, with labels and, where it has them, weights
Models = Mapping[tuple[str, str | None], Model]  # by method, and party (None: all share the model)
Losses = dict[str, Doubles]  # by metric: one number per held-out row
SMALLEST = 1e-15  # the probability of a class that a model thinks impossible
SHAP_ROWS = (200, 2000)  # that columns are explained on: at least, and at most
SHAP_WORK = 100_000  # rows times trees: a second of one core
CURVE_POINTS = 30
ROC_POINTS = 200
CALIBRATION_BINS = 10


@dataclass(frozen=True)
class HeldOut:
    """Rows that no model was trained on, their labels, and the party that each belongs to.

    A row counts by its weight, where rows have one; all weights are above zero.
    """

    X: Any
    y: AnyArray
    owner: AnyArray
    weight: Floats | None = None
    _places: dict[Any, AnyArray] = field(default_factory=dict)

    def of(self, party: str | None) -> AnyArray:
        """Which rows are this party's (None: all)."""
        return np.ones(len(self.y), dtype=bool) if party is None else self.owner == party

    def part(self, parties: Sequence[str | None]) -> HeldOut:
        """The rows of these parties alone."""
        rows = np.flatnonzero(np.isin(self.owner, [p for p in parties if p is not None]))
        is_matrix = isinstance(self.X, xgb.DMatrix)
        X = self.X.slice(rows) if is_matrix else getattr(self.X, "iloc", self.X)[rows]
        return HeldOut(X, self.y[rows], self.owner[rows], self.weighed(rows))

    def read_by(self, model: Model) -> HeldOut:
        """The same rows as XGBoost's matrix, read once for all models of the same columns."""
        return HeldOut(model.matrix(self.X), self.y, self.owner, self.weight)

    def weighed(self, rows: AnyArray) -> Floats | None:
        """The weights of some rows."""
        return None if self.weight is None else self.weight[rows]

    def mean(self, values: Doubles, rows: AnyArray) -> float:
        """The mean of some rows' values."""
        chosen = values[rows]
        return float(chosen.mean() if self.weight is None else np.average(chosen, weights=self.weight[rows]))

    def places(self, model: Model) -> AnyArray:
        """The place of every label among the model's classes; -1 for one that no party has."""
        classes = () if model.classes is None else tuple(model.classes.tolist())
        if classes not in self._places:
            places = {label: place for place, label in enumerate(classes)}
            self._places[classes] = np.array([places.get(label, -1) for label in self.y.tolist()])
        return self._places[classes]


def losses(model: Model, held_out: HeldOut, prediction: AnyArray | None = None) -> Losses:
    """Per row: log loss and error of a classifier, or the main metric of others, whose prediction here is a margin."""
    if prediction is None:
        prediction = _predict(model, held_out.X)
    if model.classes is None:
        y, metric = model.targets(held_out.y, len(held_out.y)), main_metric(model)
        return {metric: model.loss.row_losses(prediction.reshape(-1, 1), y)[metric]}
    p, place = _two_columns(prediction), held_out.places(model)
    given = np.where(place >= 0, p[np.arange(len(place)), place], SMALLEST)  # a class that no party has is missed
    return {"logloss": -np.log(np.clip(given, SMALLEST, 1.0)), "error": (p.argmax(axis=1) != place).astype(np.float64)}


def adjusted_losses(model: Model, held_out: HeldOut, own_X: Any, *own: Any) -> Losses:
    """The losses of the model as a party would use it: adjusted to the rows that it has trained on."""
    shift = model.shift(_margins(model, own_X), *own)
    return losses(model, held_out, _prediction(model, _margins(model, held_out.X), shift))


def _two_columns(prediction: AnyArray) -> Doubles:
    p = prediction.astype(np.float64)
    return np.column_stack([1 - p, p]) if p.ndim == 1 else p


def finish(metric: str, mean: Any) -> Any:
    """The metric from the mean loss of rows."""
    return np.sqrt(mean) if metric == "rmse" else mean


def main_metric(model: Model) -> str:
    """The metric that the headline speaks of."""
    return model.loss.metrics[0] if model.classes is None else "logloss"


def scores(model: Model, held_out: HeldOut) -> dict[str, float | None]:
    """Error, log loss and AUC of a classifier; else the main metric, and of times the concordance, too."""
    found: dict[str, float | None] = {}
    prediction = _predict(model, held_out.X)
    for metric, each in losses(model, held_out, prediction).items():
        found[metric] = float(finish(metric, held_out.mean(each, held_out.of(None))))
    if model.classes is not None:
        p = np.clip(_two_columns(prediction), SMALLEST, 1.0)
        found["auc"] = _auc(held_out.places(model), p, held_out.weight)
    elif model.loss.labels == "bounds":
        found["c-index"] = concordance(prediction, held_out.y, held_out.weight)
    return found


def _auc(place: AnyArray, p: Doubles, weight: Floats | None) -> float | None:
    if place.min() < 0 or len(np.unique(place)) != p.shape[1]:
        return None  # not defined where the held-out rows lack a class
    if p.shape[1] == 2:
        return float(roc_auc_score(place, p[:, 1], sample_weight=weight))
    shares = p / p.sum(axis=1, keepdims=True)
    return float(roc_auc_score(place, shares, multi_class="ovr", sample_weight=weight))


def own_scores(models: Models, held_out: HeldOut, own_rows: OwnRows) -> list[Score]:
    """The main metric of all methods on each party's own held-out rows: its own model, and the shared ones adjusted."""
    found = []
    for (method, party), model in models.items():
        metric, margins = main_metric(model), _margins(model, held_out.X)
        for whose in own_rows if party is None else [party]:
            X, *own = own_rows[whose]
            shift = model.shift(_margins(model, X), *own) if party is None else 0.0
            each = losses(model, held_out, _prediction(model, margins, shift))[metric]
            value = float(finish(metric, held_out.mean(each, held_out.of(whose))))
            found.append(Score(method=method, party=party, rows=whose, metric=metric, value=value))
    return found


def gains(alone: Mapping[str, Model], together: Model, held_out: HeldOut, own_rows: OwnRows) -> list[Gain]:
    """What every party gains over being alone: on everybody's held-out rows, and on its own.

    On its own rows the shared model is taken as it is, and adjusted to the rows that the party has trained on.
    """
    shared = losses(together, held_out)
    theirs = {party: losses(model, held_out) for party, model in alone.items()}
    found = _gains(theirs, shared, held_out, None)
    for party in theirs:
        own, adjusted = {party: theirs[party]}, adjusted_losses(together, held_out, *own_rows[party])
        found += _gains(own, shared, held_out, party)
        found += _gains(own, adjusted, held_out, party, adjusted=True)
    return found


def continued_gains(alone: Mapping[str, Model], at_home: Mapping[str, Model], held_out: HeldOut) -> list[Gain]:
    """What every party gains over being alone with the shared model continued on its own rows."""
    found = []
    for party, model in at_home.items():
        own = held_out.part([party])
        theirs, mine = (losses(m, own) for m in (alone[party], model))
        found += _gains({party: theirs}, mine, own, party, continued=True)
    return found


def _gains(
    alone: Mapping[str, Losses], together: Losses, held_out: HeldOut, rows: str | None, **use: bool
) -> list[Gain]:
    """`use`: what the party does with the model before it uses it, as `Gain` says it."""
    mask = held_out.of(rows)
    if not mask.any():
        return []
    pairs = [(party, metric) for party in alone for metric in together]
    before = np.column_stack([alone[party][metric] for party, metric in pairs])
    after = np.column_stack([together[metric] for _, metric in pairs])
    low, high = intervals([metric for _, metric in pairs], before[mask], after[mask], held_out.weighed(mask))
    return [
        Gain(
            party=party,
            rows=rows,
            **use,
            metric=metric,
            alone=(a := float(finish(metric, held_out.mean(before[:, i], mask)))),
            together=(b := float(finish(metric, held_out.mean(after[:, i], mask)))),
            gain=a - b,
            low=float(low[i]),
            high=float(high[i]),
            n_rows=int(mask.sum()),
        )
        for i, (party, metric) in enumerate(pairs)
    ]


def intervals(
    metrics: Sequence[str], alone: Doubles, together: Doubles, weight: Floats | None = None
) -> tuple[Doubles, Doubles]:
    """The middle 95 % of the gains when the same rows are drawn again, with replacement, for both models.

    Columns are losses of rows, one column per gain.

    >>> low, high = intervals(["error"], np.ones((100, 1)), np.zeros((100, 1)))
    >>> low.round(6), high.round(6)
    (array([1.]), array([1.]))
    """
    means = resampled_means(np.hstack([alone, together]), np.random.default_rng(0), weight)
    values = np.where(np.array([*metrics, *metrics]) == "rmse", np.sqrt(means), means)
    return middle(values[:, : len(metrics)] - values[:, len(metrics) :])


@dataclass(frozen=True)
class Staged:
    """The margins of held-out rows after some numbers of trees."""

    model: Model
    held_out: HeldOut
    trees: list[int]
    margins: list[AnyArray]

    @classmethod
    def of(cls, model: Model, held_out: HeldOut) -> Staged:
        """At as many points as a picture can show."""
        matrix = model.matrix(held_out.X)
        steps = np.unique(np.linspace(1, model.n_trees, min(CURVE_POINTS, model.n_trees)).round().astype(int)).tolist()
        return cls(model, held_out, steps, [_margins(model, matrix, step) for step in steps])

    def curves(
        self, method: str, party: str | None, rows: Sequence[str | None], *, shift: Doubles | float = 0.0
    ) -> list[Curve]:
        """The main metric against the number of trees, on the held-out rows of each of these parties (None: all).

        `shift` is added to the margins: what the model is adjusted by.
        """
        metric, masks = main_metric(self.model), {whose: self.held_out.of(whose) for whose in rows}
        values: dict[str | None, list[float]] = {whose: [] for whose in rows}
        for margins in self.margins:
            each = losses(self.model, self.held_out, _prediction(self.model, margins, shift))[metric]
            for whose in rows:
                values[whose].append(float(finish(metric, self.held_out.mean(each, masks[whose]))))
        return [
            Curve(method=method, party=party, rows=whose, metric=metric, trees=self.trees, values=values[whose])
            for whose in rows
        ]

    def own_curve(self, method: str, party: str, own: tuple[Any, ...]) -> list[Curve]:
        """The curve of a shared model on one party's held-out rows, adjusted to the rows that it has trained on."""
        mine = self.held_out.of(party)
        there = Staged(self.model, self.held_out.part([party]), self.trees, [margins[mine] for margins in self.margins])
        return there.curves(method, None, [party], shift=self.model.shift(_margins(self.model, own[0]), *own[1:]))


def roc(models: Models, held_out: HeldOut) -> list[Points]:
    """False against true positives of every two-class model, with as many points as a picture can show."""
    found = []
    for (method, party), model in models.items():
        if model.classes is None or len(model.classes) != 2:
            continue
        place = held_out.places(model)
        if set(place.tolist()) != {0, 1}:
            continue
        false, true, _ = roc_curve(place, _predict(model, held_out.X), sample_weight=held_out.weight)
        at = np.unique(np.linspace(0, len(false) - 1, min(ROC_POINTS, len(false))).round().astype(int))
        found.append(Points(method=method, party=party, x=_short(false[at]), y=_short(true[at])))
    return found


def calibration(models: Models, held_out: HeldOut) -> list[Points]:
    """Predicted against observed for every model, in groups of equal size by prediction."""
    found = []
    for (method, party), model in models.items():
        if model.loss.labels == "bounds":  # how long it takes is not known of every row
            continue
        predicted, observed = _predicted_and_observed(model, held_out)
        order = np.argsort(predicted, kind="stable")
        groups = [rows for rows in np.array_split(order, CALIBRATION_BINS) if len(rows)]
        x, y = (_short([held_out.mean(values, rows) for rows in groups]) for values in (predicted, observed))
        found.append(Points(method=method, party=party, x=x, y=y, weights=[len(rows) for rows in groups]))
    return found


def _predicted_and_observed(model: Model, held_out: HeldOut) -> tuple[Doubles, Doubles]:
    """Two classes: the probability of the second; more: that of the likeliest; regression: the number itself."""
    prediction = _predict(model, held_out.X).astype(np.float64)
    if model.classes is None:
        return model.loss.predicted(prediction), held_out.y.astype(np.float64)
    p, place = _two_columns(prediction), held_out.places(model)
    if len(model.classes) == 2:
        return p[:, 1], (place == 1).astype(np.float64)
    return p.max(axis=1), (p.argmax(axis=1) == place).astype(np.float64)


def importance(model: Model, X: Any, weight: Floats | None = None) -> list[Importance]:
    """Every feature's gain, mean absolute SHAP value (XGBoost's own; None without rows) and number of splits."""
    names = model.feature_names or [f"f{i}" for i in range(model.booster.num_features())]
    splits: dict[str, Any] = model.booster.get_score(importance_type="weight")
    gain = model.gain or {}
    shap = [None] * len(names) if X is None else _shap(model, X, weight)
    found = [
        Importance(feature=name, gain=gain.get(name), shap=value, splits=int(splits.get(name, 0)))
        for name, value in zip(names, shap, strict=True)
    ]
    return sorted(found, key=lambda one: -((one.gain or 0.0) if one.shap is None else one.shap))


def _shap(model: Model, X: Any, weight: Floats | None) -> list[float]:
    """With the counts (or weights) of these rows at every node: a shared model itself has made-up ones."""
    matrix = model.matrix(X)
    rows = np.random.default_rng(0).permutation(matrix.num_row())
    n_trees = model.booster.predict(matrix.slice(rows[:1]), pred_leaf=True).size
    least, most = SHAP_ROWS
    wanted = min(max(SHAP_WORK // max(n_trees, 1), least), most)
    if len(rows) > wanted:
        matrix, weight = matrix.slice(rows[:wanted]), None if weight is None else weight[rows[:wanted]]
    explained = model.with_covers(matrix, weight).booster
    explained.set_param({"nthread": cores()})
    parts = np.abs(explained.predict(matrix, pred_contribs=True))
    each = parts.reshape(matrix.num_row(), -1, parts.shape[-1])
    mean = each.mean(axis=0) if weight is None else np.average(each, axis=0, weights=weight)
    shap = mean.sum(axis=0)[:-1]  # the last is the start
    return [float(value) for value in shap]


def _predict(model: Model, X: Any) -> AnyArray:
    return _prediction(model, _margins(model, X), 0.0)


def _margins(model: Model, X: Any, rounds: int = 0) -> AnyArray:
    """The margins after this many rounds (0: all). More threads than pay off would only wait for each other."""
    matrix = model.matrix(X)
    cells = matrix.num_row() * matrix.num_col()
    booster = model.booster
    booster.set_param({"nthread": max(1, min(cells // CELLS_PER_THREAD, cores()))})
    try:
        return np.asarray(booster.predict(matrix, iteration_range=(0, rounds), output_margin=True))
    finally:
        booster.set_param({"nthread": 0})  # as many as there are: the model is its owner's


def _prediction(model: Model, margins: AnyArray, shift: Doubles | float) -> AnyArray:
    """A probability (two classes), one for each class, or a margin: of margins that a party may have shifted."""
    moved = margins + np.float32(shift)
    return moved if model.classes is None else model.loss.predicted(moved)


def _short(values: Sequence[float] | AnyArray) -> list[float]:
    return [round(float(value), 6) for value in values]
