"""What an objective is, and what all of them share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Literal

import numpy as np

from simfl.arrays import AnyArray, Doubles, Floats
from simfl.params import MAX_LABEL
from simfl.training.losses import ranking

EPS = np.float32(1e-16)  # XGBoost's floor of a hessian
GROWTH: Final = 16.0  # a gradient without a bound can grow by this factor beyond its start before its sums are cut off
UNBOUNDED: Final = math.inf

AUC: Final = "auc"
RISING: Final = (AUC, "interval-regression-accuracy")  # more is better

Labels = Literal["classes", "numbers", "bounds"]  # of time, two for each row
Bounds = tuple[float, float]  # of a row's gradient and hessian, for weight one


class Loss:
    """An objective with its settings. Margins have the shape (rows, outputs); a row has one label, or two."""

    labels: ClassVar[Labels] = "numbers"
    is_multi: ClassVar[bool] = False  # one output for every class
    metrics: tuple[str, ...]  # all of them
    asked: tuple[str, ...] = ()  # `eval_metric`
    limits: Bounds = (UNBOUNDED, UNBOUNDED)  # no row's gradient and hessian is larger, for weight one
    ordinary: ClassVar[Bounds | None] = None  # of classes: what most rows' gradients and hessians are to be measured by
    signed: ClassVar[tuple[bool, ...]] = (True,)  # of each of `label_parts`: whether it can be below zero
    needs_spread: ClassVar[bool] = False  # of the labels, from the same sums as the start value

    @property
    def classifies(self) -> bool:
        """Whether labels are classes."""
        return self.labels == "classes"

    @property
    def n_sums(self) -> int:
        """How many sums over the labels the start value follows from. With classes it is one for each."""
        return len(self.signed)

    @property
    def metric(self) -> str:
        """The one that early stopping watches."""
        return self.asked[-1] if self.asked else self.metrics[0]

    @property
    def ranks(self) -> bool:
        """Whether the area under the ROC curve was asked for."""
        return AUC in self.asked

    @property
    def sums(self) -> tuple[str, ...]:
        """The names of all sums that the metrics follow from."""
        return (*self.metrics, *ranking.NAMES) if self.ranks else self.metrics

    def cost(self, metrics: Mapping[str, float]) -> float:
        """The watched metric, as a number that should become small; infinite where it is not known."""
        value = metrics.get(self.metric)
        return math.inf if value is None else -value if self.metric in RISING else value

    # --- labels and the start value ----------------------------------------------------------------------------------

    def wrong_labels(self, y: AnyArray) -> str | None:
        """What is wrong with these labels, in words: "has ..."."""
        return None

    def label_parts(self, y: AnyArray) -> list[AnyArray]:
        """Numbers of every row; the start value follows from their sums."""
        return [y]

    def label_sums(self, y: AnyArray, weight: Floats | None, n_classes: int = 0) -> list[float]:
        """What the start value follows from, as sums over a party's rows: the weight of each class, or the labels."""
        if self.classifies:
            return [float(n) for n in np.bincount(y.astype(np.int64), weights=weight, minlength=n_classes)]
        return [total(part, weight) for part in self.label_parts(y)]

    def possible(self, sums: Sequence[float], weight: float) -> bool:
        """Whether rows of this weight can have such sums."""
        if self.classifies:
            return min(sums) >= 0 and math.isclose(sum(sums), weight, rel_tol=1e-6)
        most = MAX_LABEL * weight
        return all(-most * signed <= each <= most for each, signed in zip(sums, self.signed, strict=True))

    def start(self, label_sums: Sequence[float], weight: float) -> Doubles:
        """The start value of every output, as XGBoost stores it (base_score), from the sums over all parties."""
        return np.array([label_sums[0] / weight])

    def margin(self, base_score: Doubles) -> Doubles:
        """The start value of every output on the margin scale."""
        return base_score

    def base_score(self, margin: Doubles) -> Doubles:
        """The other way round."""
        return margin

    def wrong_start(self, base_score: float) -> str | None:
        """What is wrong with a start value, in words: "it must be ..."."""
        return None

    # --- during a training -------------------------------------------------------------------------------------------

    def gradients(self, margin: Floats, y: Floats, weight: Floats | None) -> tuple[Floats, Floats]:
        """First and second derivatives, shape (rows, outputs)."""
        raise NotImplementedError

    def bounds(self, margin: Floats, y: Floats) -> Bounds:
        """How large a row's gradient and hessian can become during the training, for weight one."""
        return self.limits

    def usual_hessian(self, margin: float) -> float:
        """About how large a row's hessian is at the start value, for weight one: at least as large as later ones."""
        return self.limits[1]

    def best_shift(self, margin: Floats, y: Floats, weight: Floats | None = None) -> Doubles:
        """What to add to the margins of every output so that the gradients of these rows add up to nothing.

        Newton's method; one row's worth of doubt keeps the shift finite where a class does not occur. A row is worth
        its weight, on average, and at most one: weights that add up to one are no reason to doubt all rows.
        """
        shift = np.zeros(margin.shape[1])
        doubt = 1.0 if weight is None else min(1.0, float(weight[weight > 0].mean(dtype=np.float64)))
        for _ in range(50):
            g, h = self.gradients(margin + shift.astype(np.float32), y, weight)
            shift -= (g.sum(axis=0, dtype=np.float64) + doubt * shift) / (h.sum(axis=0, dtype=np.float64) + doubt)
        return shift

    # --- what comes out ----------------------------------------------------------------------------------------------

    def predicted(self, margin: AnyArray) -> AnyArray:
        """What a `Model` predicts, from its margins: probabilities of classes, or numbers."""
        return margin

    def row_losses(self, margin: Floats, y: Floats) -> dict[str, Doubles]:
        """Every metric, row by row: a metric is the mean over the rows (or its root, with a name like rmse)."""
        raise NotImplementedError

    def metric_sums(self, margin: Floats, y: Floats, weight: Floats | None) -> dict[str, float]:
        """Sums over the rows of the objective's own metrics."""
        return {name: total(each, weight) for name, each in self.row_losses(margin, y).items()}

    def all_sums(self, margin: Floats, y: Floats, weight: Floats | None) -> dict[str, float]:
        """Sums over the rows by name, so that the hub can form the metrics of all parties."""
        found = self.metric_sums(margin, y, weight)
        return found | ranking.counts(margin, y, weight) if self.ranks else found

    def finish(self, sums: dict[str, float], weight: float) -> dict[str, float]:
        """The metrics from their sums."""
        found = {name: finished(name, sums[name] / weight) for name in self.metrics}
        if self.ranks:
            found[AUC] = ranking.area([sums[name] for name in ranking.NAMES])
        return found


def finished(metric: str, mean: float) -> float:
    """A metric from the mean over the rows.

    >>> finished("rmse", 4.0), finished("mae", 4.0)
    (2.0, 4.0)
    """
    return math.sqrt(mean) if metric == "rmse" else mean


def shortened(values: Floats) -> Floats:
    """Rounded to 20 of float32's 24 binary digits.

    The digits left free make a product with a small whole number exact: a row of weight three counts exactly as
    three rows. (Veltkamp's splitting.)

    >>> third = shortened(np.array([1 / 3], dtype=np.float32))
    >>> bool(third * np.float32(3) == third.astype(np.float64) * 3)
    True
    """
    scaled = values * np.float32(2**4 + 1)
    return scaled - (scaled - values)


def weighted(g: Floats, h: Floats, weight: Floats | None) -> tuple[Floats, Floats]:
    """Gradients and hessians times the weights of the rows."""
    if weight is None:
        return g, h
    return shortened(g) * weight[:, None], shortened(h) * weight[:, None]


def total(values: AnyArray, weight: Floats | None) -> float:
    """The weighted sum."""
    if weight is None:
        return float(values.sum(dtype=np.float64))
    return float(values.astype(np.float64) @ weight.astype(np.float64))
