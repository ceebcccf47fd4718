"""survival:aft: the logarithm of a time is a number plus noise of a known law, and each time lies between two bounds.

A row has a lower and an upper bound of its time. They are equal where the time is known; the upper one is infinite
where nothing has happened yet (censored on the right), the lower one zero where it happened before somebody looked.
Loss, derivatives and limits are those of Barnwal, Cho and Hocking, "Survival Regression with Accelerated Failure Time
Model in XGBoost" (2022), in XGBoost's arithmetic: double precision, and gradients and hessians cut off at 15.
"""

import math
from collections.abc import Sequence

import numpy as np
from numba import njit

from simfl.arrays import AnyArray, Doubles, Floats
from simfl.training.losses.base import Loss, weighted

CUT = 15.0  # no gradient or hessian of a row is larger
START = 0.5
_LEAST_HESSIAN, _TINY = 1e-16, 1e-12
_LAWS = {"normal": 0, "logistic": 1, "extreme": 2}
NORMAL, LOGISTIC = 0, 1
KNOWN, RIGHT, LEFT, BETWEEN = range(4)  # what is known of a time


class AcceleratedFailureTime(Loss):
    """survival:aft. Labels have two columns: lower and upper bound of the time."""

    labels = "bounds"
    metrics = ("aft-nloglik", "interval-regression-accuracy")
    limits = (CUT, CUT)
    signed = ()

    def __init__(self, aft_loss_distribution: str = "normal", aft_loss_distribution_scale: float = 1.0) -> None:
        self.law, self.scale = _LAWS[aft_loss_distribution], float(np.float32(aft_loss_distribution_scale))

    def label_parts(self, y: AnyArray) -> list[AnyArray]:
        return []  # XGBoost starts at the same value, whatever the times

    def start(self, label_sums: Sequence[float], weight: float) -> Doubles:
        return np.array([START])

    def margin(self, base_score: Doubles) -> Doubles:
        return np.array([math.log(each) for each in base_score.astype(np.float32)])

    def base_score(self, margin: Doubles) -> Doubles:
        return np.exp(margin)

    def wrong_start(self, base_score: float) -> str | None:
        return None if np.float32(base_score) > 0 else "it must be a time above zero"

    def gradients(self, margin: Floats, y: Floats, weight: Floats | None) -> tuple[Floats, Floats]:
        g, h = np.empty_like(margin), np.empty_like(margin)
        _gradients(margin, y, self.law, self.scale, g, h)
        return weighted(g, h, weight)

    def usual_hessian(self, margin: float) -> float:
        return min(1.0 / self.scale**2, CUT)

    def predicted(self, margin: AnyArray) -> AnyArray:
        with np.errstate(over="ignore"):
            return np.exp(margin)

    def row_losses(self, margin: Floats, y: Floats) -> dict[str, Doubles]:
        loss = np.empty(len(y))
        _losses(margin, y, self.law, self.scale, loss)
        time = self.predicted(margin[:, 0].astype(np.float64))
        within = (time >= y[:, 0]) & (time <= y[:, 1])
        return {"aft-nloglik": loss, "interval-regression-accuracy": within.astype(np.float64)}


@njit(nogil=True, cache=True)
def _density(law, z):  # type: ignore[no-untyped-def]
    """The density of the noise, and its first and second derivative."""
    if law == NORMAL:
        p = math.exp(-z * z / 2.0) / math.sqrt(2.0 * math.pi)
        return p, -z * p, (z * z - 1.0) * p
    w = math.exp(z)
    if math.isinf(w):
        return 0.0, 0.0, 0.0
    if law == LOGISTIC:
        p = 0.0 if math.isinf(w * w) else w / ((1 + w) * (1 + w))
        bend = 0.0 if math.isinf(w * w) else p * (w * w - 4 * w + 1) / ((1 + w) * (1 + w))
        return p, p * (1 - w) / (1 + w), bend
    p = w * math.exp(-w)
    return p, (1 - w) * p, 0.0 if math.isinf(w * w) else (w * w - 3 * w + 1) * p


@njit(nogil=True, cache=True)
def _below(law, z):  # type: ignore[no-untyped-def]
    """The probability that the noise is below z."""
    if law == NORMAL:
        return 0.5 * (1 + math.erf(z / math.sqrt(2.0)))
    w = math.exp(z)
    if law == LOGISTIC:
        return 1.0 if math.isinf(w) else w / (1 + w)
    return 1 - math.exp(-w)


@njit(nogil=True, cache=True)
def _z(time, prediction, scale):  # type: ignore[no-untyped-def]
    return (math.log(time) - prediction) / scale


@njit(nogil=True, cache=True)
def _losses(margin, y, law, scale, loss):  # type: ignore[no-untyped-def]
    for i in range(len(y)):
        low, high, m = np.float64(y[i, 0]), np.float64(y[i, 1]), np.float64(margin[i, 0])
        if low == high:
            chance = _density(law, _z(low, m, scale))[0] / (scale * low)
        else:
            above = 1.0 if math.isinf(high) else _below(law, _z(high, m, scale))
            chance = above - (0.0 if low <= 0 else _below(law, _z(low, m, scale)))
        loss[i] = -math.log(max(chance, _TINY))


@njit(nogil=True, cache=True)
def _limit_gradient(law, known, positive, scale):  # type: ignore[no-untyped-def]
    """Where the prediction is so far off that chances are zero: what the gradient tends to."""
    if (known == RIGHT and not positive) or (known == LEFT and positive):
        return 0.0
    if positive:
        return -1.0 / scale if law == LOGISTIC else -CUT
    return CUT if law == NORMAL else 1.0 / scale


@njit(nogil=True, cache=True)
def _limit_hessian(law, known, positive, scale):  # type: ignore[no-untyped-def]
    if law == NORMAL:
        flat = (known == RIGHT and not positive) or (known == LEFT and positive)
        return _LEAST_HESSIAN if flat else 1.0 / (scale * scale)
    return _LEAST_HESSIAN if law == LOGISTIC or known == LEFT or not positive else CUT


@njit(nogil=True, cache=True)
def _gradients(margin, y, law, scale, g, h):  # type: ignore[no-untyped-def]
    for i in range(len(y)):
        low, high, m = np.float64(y[i, 0]), np.float64(y[i, 1]), np.float64(margin[i, 0])
        if low == high:
            known = KNOWN
            z = _z(low, m, scale)
            p, slope, bend = _density(law, z)
            positive = z > 0
            over, under = slope, scale * p
            over_h, under_h = -(p * bend - slope * slope), scale * scale * p * p
        else:
            known, z_high, p_high, above, slope_high = RIGHT, 0.0, 0.0, 1.0, 0.0
            if not math.isinf(high):
                known, z_high = BETWEEN, _z(high, m, scale)
                p_high, slope_high, _ = _density(law, z_high)
                above = _below(law, z_high)
            z_low, p_low, below, slope_low = 0.0, 0.0, 0.0, 0.0
            if low <= 0:
                known = LEFT
            else:
                z_low = _z(low, m, scale)
                p_low, slope_low, _ = _density(law, z_low)
                below = _below(law, z_low)
            positive = z_high > 0 or z_low > 0
            chance, p = above - below, p_high - p_low
            over, under = p, scale * chance
            over_h, under_h = -(chance * (slope_high - slope_low) - p * p), under * under
        g[i, 0] = _cut(over, under, _limit_gradient(law, known, positive, scale), -CUT)
        h[i, 0] = _cut(over_h, under_h, _limit_hessian(law, known, positive, scale), _LEAST_HESSIAN)


@njit(nogil=True, cache=True, error_model="numpy")
def _cut(over, under, limit, least):  # type: ignore[no-untyped-def]
    ratio = over / under
    if under < _TINY and not math.isfinite(ratio):
        ratio = limit
    return min(max(ratio, least), CUT)
