"""Classes: binary:logistic and multi:softprob."""

import math
from collections.abc import Sequence

import numpy as np
from numba import njit

from simfl.arrays import AnyArray, Doubles, Floats
from simfl.training.losses.base import EPS, Loss, total, weighted


class Logistic(Loss):
    """binary:logistic."""

    labels = "classes"
    metrics = ("logloss", "error")
    ordinary = (1.0, 0.25)

    def __init__(self, scale_pos_weight: float = 1.0) -> None:
        self.factor = np.float32(scale_pos_weight)  # a row of the second class counts this many times
        most = max(float(self.factor), 1.0)
        self.limits = (most, 0.25 * most)

    def start(self, label_sums: Sequence[float], weight: float) -> Doubles:
        if abs(float(self.factor) - 1.0) > 1e-6:  # XGBoost starts one Newton step from a margin of zero
            zeros, ones = label_sums[0], float(self.factor) * label_sums[1]
            margin = (0.5 * ones - 0.5 * zeros) / max(0.25 * (zeros + ones), 1e-6)
            return np.array([_sigmoid(np.float32(margin))], dtype=np.float64)
        # Rows of weight zero can leave one class only: its probability must stay short of certainty.
        return np.array([min(max(label_sums[1] / weight, 1e-6), 1 - 1e-6)])

    def margin(self, base_score: Doubles) -> Doubles:
        one = np.float32(1)
        return np.array([-math.log(one / p - one) for p in base_score.astype(np.float32)])

    def base_score(self, margin: Doubles) -> Doubles:
        return np.asarray(1 / (1 + np.exp(-margin)))

    def wrong_start(self, base_score: float) -> str | None:
        return None if 0 < np.float32(base_score) < 1 else "it must be a probability"

    def gradients(self, margin: Floats, y: Floats, weight: Floats | None) -> tuple[Floats, Floats]:
        g, h = np.empty_like(margin), np.empty_like(margin)
        _logistic_gradients(margin, y, g, h)
        if self.factor == 1:
            return weighted(g, h, weight)
        each = np.where(y == 1, self.factor, np.float32(1))
        return (g * each[:, None], h * each[:, None]) if weight is None else weighted(g, h, weight * each)

    def predicted(self, margin: AnyArray) -> AnyArray:
        with np.errstate(over="ignore"):
            return np.asarray(1 / (1 + np.exp(-margin)))

    def metric_sums(self, margin: Floats, y: Floats, weight: Floats | None) -> dict[str, float]:
        loss, wrong = _logistic_metrics(margin, y, weight)
        return {"logloss": loss, "error": wrong}


class Softprob(Loss):
    """multi:softprob. Labels are class numbers."""

    labels, is_multi = "classes", True
    metrics = ("mlogloss", "merror")
    limits = (1.0, 0.5)
    ordinary = limits

    def start(self, label_sums: Sequence[float], weight: float) -> Doubles:
        logs = np.log(np.maximum(np.array(label_sums), EPS) / weight)
        return np.asarray(logs - logs.mean(), dtype=np.float64)  # centred, as XGBoost does

    def gradients(self, margin: Floats, y: Floats, weight: Floats | None) -> tuple[Floats, Floats]:
        g, h = np.empty_like(margin), np.empty_like(margin)
        _softprob_gradients(margin, y, g, h)
        return weighted(g, h, weight)

    def predicted(self, margin: AnyArray) -> AnyArray:
        return softmax(margin)

    def metric_sums(self, margin: Floats, y: Floats, weight: Floats | None) -> dict[str, float]:
        p, label = softmax(margin), y.astype(np.intp)
        loss = -np.log(np.maximum(p[np.arange(len(y)), label], EPS))
        return {"mlogloss": total(loss, weight), "merror": total(p.argmax(axis=1) != label, weight)}


@njit(nogil=True, cache=True, inline="always")
def _sigmoid(margin):  # type: ignore[no-untyped-def]
    one, most = np.float32(1), np.float32(88.7)
    return one / (math.exp(-margin if -margin < most else most) + one + EPS)


@njit(nogil=True, cache=True)
def _logistic_gradients(margin, y, g, h):  # type: ignore[no-untyped-def]
    one = np.float32(1)
    for i in range(len(y)):
        p = _sigmoid(margin[i, 0])
        g[i, 0] = p - y[i]
        hessian = p * (one - p)
        h[i, 0] = hessian if hessian > EPS else EPS


@njit(nogil=True, cache=True)
def _logistic_metrics(margin, y, weight):  # type: ignore[no-untyped-def]
    loss, wrong, product = 0.0, 0.0, 1.0
    for i in range(len(y)):
        m = margin[i, 0]
        w = 1.0 if weight is None else np.float64(weight[i])
        loss += w * ((m if m > 0 else np.float32(0)) - m * y[i])
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
