"""The three objectives: gradients, hessians, start values and metrics, in XGBoost's words and arithmetic.

Margins have the shape (rows, outputs): one output per class for multi:softprob, one otherwise. Gradients are in
float32, in the order of XGBoost's own formulas and with the same exponential function (the C library's, by way of
Numba), so that one party alone gets XGBoost's own model to the last bit.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numba import njit

from simfl.arrays import AnyArray, Doubles, Floats

EPS = np.float32(1e-16)  # XGBoost's floor of a hessian
GROWTH = 16.0  # a squared-error gradient can grow by this factor beyond its start before its sums are cut off

MetricSums = dict[str, float]  # metric -> weighted sum over the rows


class Loss(Protocol):
    """An objective."""

    metric: str  # the one that early stopping watches
    metrics: tuple[str, ...]  # all of them
    classifies: bool

    def start(self, label_sums: Sequence[float], weight: float) -> Doubles:
        """The start value of every output, as XGBoost stores it (base_score), from the sums over all parties."""

    def margin(self, base_score: Doubles) -> Doubles:
        """The start value of every output on the margin scale."""

    def gradients(self, margin: Floats, y: Floats, weight: Floats | None) -> tuple[Floats, Floats]:
        """First and second derivatives, shape (rows, outputs)."""

    def bounds(self, margin: Floats, y: Floats) -> tuple[float, float]:
        """How large a row's gradient and hessian can become during the training, for weight one."""

    def metric_sums(self, margin: Floats, y: Floats, weight: Floats | None) -> MetricSums:
        """Sums over the rows, so that the hub can form the metric of all parties."""

    def finish(self, sums: MetricSums, weight: float) -> dict[str, float]:
        """The metrics from their sums."""


class _Averaged:
    """Metrics that are weighted means."""

    def finish(self, sums: MetricSums, weight: float) -> dict[str, float]:
        return {name: value / weight for name, value in sums.items()}


class Logistic(_Averaged):
    """binary:logistic."""

    metric = "logloss"
    metrics: tuple[str, ...] = ("logloss", "error")
    classifies = True

    def start(self, label_sums: Sequence[float], weight: float) -> Doubles:
        # Rows of weight zero can leave one class only: its probability must stay short of certainty.
        return np.array([min(max(label_sums[1] / weight, 1e-6), 1 - 1e-6)])

    def margin(self, base_score: Doubles) -> Doubles:
        one = np.float32(1)
        return np.array([-math.log(one / p - one) for p in base_score.astype(np.float32)])

    def gradients(self, margin: Floats, y: Floats, weight: Floats | None) -> tuple[Floats, Floats]:
        g, h = np.empty_like(margin), np.empty_like(margin)
        _logistic_gradients(margin, y, g, h)
        return _weighted(g, h, weight)

    def bounds(self, margin: Floats, y: Floats) -> tuple[float, float]:
        return 1.0, 0.25

    def metric_sums(self, margin: Floats, y: Floats, weight: Floats | None) -> MetricSums:
        loss, wrong = _logistic_metrics(margin, y, weight)
        return {"logloss": loss, "error": wrong}


class Softprob(_Averaged):
    """multi:softprob. Labels are class numbers."""

    metric = "mlogloss"
    metrics: tuple[str, ...] = ("mlogloss", "merror")
    classifies = True

    def start(self, label_sums: Sequence[float], weight: float) -> Doubles:
        logs = np.log(np.maximum(np.array(label_sums), EPS) / weight)
        return np.asarray(logs - logs.mean(), dtype=np.float64)  # centred, as XGBoost does

    def margin(self, base_score: Doubles) -> Doubles:
        return base_score

    def gradients(self, margin: Floats, y: Floats, weight: Floats | None) -> tuple[Floats, Floats]:
        g, h = np.empty_like(margin), np.empty_like(margin)
        _softprob_gradients(margin, y, g, h)
        return _weighted(g, h, weight)

    def bounds(self, margin: Floats, y: Floats) -> tuple[float, float]:
        return 1.0, 0.5

    def metric_sums(self, margin: Floats, y: Floats, weight: Floats | None) -> MetricSums:
        p, label = softmax(margin), y.astype(np.intp)
        loss = -np.log(np.maximum(p[np.arange(len(y)), label], EPS))
        return {"mlogloss": _total(loss, weight), "merror": _total(p.argmax(axis=1) != label, weight)}


class SquaredError:
    """reg:squarederror."""

    metric = "rmse"
    metrics: tuple[str, ...] = ("rmse", "mae")
    classifies = False

    def start(self, label_sums: Sequence[float], weight: float) -> Doubles:
        return np.array([label_sums[0] / weight])

    def margin(self, base_score: Doubles) -> Doubles:
        return base_score

    def gradients(self, margin: Floats, y: Floats, weight: Floats | None) -> tuple[Floats, Floats]:
        return _weighted(margin - y[:, None], np.ones_like(margin), weight)

    def bounds(self, margin: Floats, y: Floats) -> tuple[float, float]:
        return GROWTH * float(np.max(np.abs(margin[:, 0] - y), initial=0.0)), 1.0

    def metric_sums(self, margin: Floats, y: Floats, weight: Floats | None) -> MetricSums:
        error = (margin[:, 0] - y).astype(np.float64)
        return {"rmse": _total(error * error, weight), "mae": _total(np.abs(error), weight)}

    def finish(self, sums: MetricSums, weight: float) -> dict[str, float]:
        return {"rmse": math.sqrt(sums["rmse"] / weight), "mae": sums["mae"] / weight}


LOSSES: dict[str, Loss] = {
    "binary:logistic": Logistic(),
    "multi:softprob": Softprob(),
    "reg:squarederror": SquaredError(),
}


@njit(nogil=True, cache=True)
def _logistic_gradients(margin, y, g, h):  # type: ignore[no-untyped-def]
    one = np.float32(1)
    for i in range(len(y)):
        p = one / (math.exp(min(-margin[i, 0], np.float32(88.7))) + one + EPS)
        g[i, 0] = p - y[i]
        h[i, 0] = max(p * (one - p), EPS)


@njit(nogil=True, cache=True)
def _logistic_metrics(margin, y, weight):  # type: ignore[no-untyped-def]
    loss, wrong, product = 0.0, 0.0, 1.0
    for i in range(len(y)):
        m = margin[i, 0]
        w = 1.0 if weight is None else np.float64(weight[i])
        loss += w * (max(m, np.float32(0)) - m * y[i])
        wrong += w * ((m > 0) != (y[i] > 0))
        factor = 1.0 + np.float64(math.exp(-abs(m)))
        if weight is None:  # one logarithm for many rows: no factor is above 2
            product *= factor
            if i % 512 == 511:
                loss, product = loss + math.log(product), 1.0
        else:
            loss += w * math.log(factor)
    return loss + math.log(product), wrong


@njit(nogil=True, cache=True)
def _softprob_gradients(margin, y, g, h):  # type: ignore[no-untyped-def]
    one, two = np.float32(1), np.float32(2)
    for i in range(len(y)):
        largest = margin[i].max()
        total = 0.0
        for c in range(margin.shape[1]):
            g[i, c] = math.exp(margin[i, c] - largest)
            total += g[i, c]
        for c in range(margin.shape[1]):
            p = g[i, c] / np.float32(total)
            h[i, c] = max(two * p * (one - p), EPS)
            g[i, c] = p - one if c == y[i] else p


def softmax(margin: Floats) -> Floats:
    """The probability of every class."""
    e = np.exp(margin - margin.max(axis=1, keepdims=True))
    p: Floats = e / e.sum(axis=1, keepdims=True)
    return p


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


def _weighted(g: Floats, h: Floats, weight: Floats | None) -> tuple[Floats, Floats]:
    if weight is None:
        return g, h
    return shortened(g) * weight[:, None], shortened(h) * weight[:, None]


def _total(values: AnyArray, weight: Floats | None) -> float:
    if weight is None:
        return float(values.sum(dtype=np.float64))
    return float(values.astype(np.float64) @ weight.astype(np.float64))
