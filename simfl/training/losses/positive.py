"""Numbers above zero, whose logarithm is predicted: count:poisson, reg:gamma and reg:tweedie."""

import math
from collections.abc import Sequence

import numpy as np
from numba import njit
from scipy.special import gammaln

from simfl.arrays import AnyArray, Doubles, Floats
from simfl.errors import DataError
from simfl.training.losses.base import GROWTH, Bounds, Loss, weighted

LARGEST = np.float32(88.0)  # a margin whose exponential still is a float32
_SMALLEST = 1e-16


class LogLink(Loss):
    """What they share: the model predicts the exponential of its margin, and starts at the mean label."""

    signed = (False,)

    def wrong_labels(self, y: AnyArray) -> str | None:
        below = int((y < 0).sum())
        return f"has {below} labels below zero. Drop these rows, or use reg:squarederror" if below else None

    def start(self, label_sums: Sequence[float], weight: float) -> Doubles:
        if not label_sums[0] > 0:
            raise DataError("All labels of all parties are zero. There is nothing to learn.")
        return super().start(label_sums, weight)

    def margin(self, base_score: Doubles) -> Doubles:
        return np.array([math.log(each) for each in base_score.astype(np.float32)])

    def base_score(self, margin: Doubles) -> Doubles:
        return np.exp(margin)

    def wrong_start(self, base_score: float) -> str | None:
        return None if np.float32(base_score) > 0 else "it must be above zero"

    def predicted(self, margin: AnyArray) -> AnyArray:
        with np.errstate(over="ignore"):
            return np.exp(margin)

    def gradients(self, margin: Floats, y: Floats, weight: Floats | None) -> tuple[Floats, Floats]:
        g, h = np.empty_like(margin), np.empty_like(margin)
        self._fill(np.minimum(margin, LARGEST), y, g, h)
        return weighted(g, h, weight)

    def _fill(self, margin: Floats, y: Floats, g: Floats, h: Floats) -> None:
        raise NotImplementedError

    def _largest(self, margin: Floats, y: Floats) -> tuple[float, float]:
        """The largest prediction to expect during a training, and the smallest at its start."""
        start = self.predicted(margin[:, 0].astype(np.float64))
        return GROWTH * max(float(np.max(y, initial=0.0)), float(np.max(start, initial=0.0))), float(
            np.min(start, initial=np.inf)
        )


class Poisson(LogLink):
    """count:poisson. `max_delta_step` makes hessians larger, and so steps safer, as in XGBoost."""

    metrics = ("poisson-nloglik", "rmse")

    def __init__(self, max_delta_step: float = 0.7) -> None:
        self.most_step = np.float32(max_delta_step)

    def _fill(self, margin: Floats, y: Floats, g: Floats, h: Floats) -> None:
        _poisson(margin, y, self.most_step, g, h)

    def bounds(self, margin: Floats, y: Floats) -> Bounds:
        largest, _ = self._largest(margin, y)
        return largest, largest * math.exp(self.most_step)

    def usual_hessian(self, margin: float) -> float:
        return math.exp(margin + self.most_step)

    def row_losses(self, margin: Floats, y: Floats) -> dict[str, Doubles]:
        p = np.maximum(self.predicted(margin[:, 0].astype(np.float64)), _SMALLEST)
        return {"poisson-nloglik": gammaln(y + 1.0) + p - np.log(p) * y, "rmse": (p - y) ** 2}


class Gamma(LogLink):
    """reg:gamma. Labels are above zero."""

    metrics = ("gamma-deviance", "gamma-nloglik")

    def wrong_labels(self, y: AnyArray) -> str | None:
        below = int((y <= 0).sum())
        fact = f"has {below} labels that are not above zero. Drop these rows, or use reg:tweedie, which knows zero"
        return fact if below else None

    def _fill(self, margin: Floats, y: Floats, g: Floats, h: Floats) -> None:
        _gamma(margin, y, g, h)

    def bounds(self, margin: Floats, y: Floats) -> Bounds:
        _, start = self._largest(margin, y)
        largest = GROWTH * max(float(np.max(y, initial=0.0)) / start, 1.0)
        return largest, largest

    def usual_hessian(self, margin: float) -> float:
        return 1.0

    def row_losses(self, margin: Floats, y: Floats) -> dict[str, Doubles]:
        p = self.predicted(margin[:, 0].astype(np.float64))
        near, known = p + 1e-6, y.astype(np.float64) + 1e-6  # as XGBoost keeps them off zero
        deviance = 2 * (np.log(near / known) + known / near - 1)
        likely = np.maximum(p, 1e-6)
        return {"gamma-deviance": deviance, "gamma-nloglik": y / likely + np.log(likely)}


class Tweedie(LogLink):
    """reg:tweedie: many zeros, and sizes above zero; its variance grows with this power of the mean."""

    def __init__(self, tweedie_variance_power: float = 1.5) -> None:
        self.power = np.float32(tweedie_variance_power)
        self.metrics = (f"tweedie-nloglik@{float(tweedie_variance_power):g}",)

    def _fill(self, margin: Floats, y: Floats, g: Floats, h: Floats) -> None:
        _tweedie(margin, y, self.power, g, h)

    def bounds(self, margin: Floats, y: Floats) -> Bounds:
        largest, start = self._largest(margin, y)
        rising, falling = 2.0 - float(self.power), 1.0 - float(self.power)
        most = largest**rising + GROWTH * float(np.max(y, initial=0.0)) * start**falling
        return most, most

    def usual_hessian(self, margin: float) -> float:
        return math.exp((2.0 - float(self.power)) * margin)

    def row_losses(self, margin: Floats, y: Floats) -> dict[str, Doubles]:
        m, power = margin[:, 0].astype(np.float64), float(self.power)
        with np.errstate(over="ignore"):
            loss = np.exp((2 - power) * m) / (2 - power) - y * np.exp((1 - power) * m) / (1 - power)
        return {self.metrics[0]: loss}


@njit(nogil=True, cache=True)
def _poisson(margin, y, most_step, g, h):  # type: ignore[no-untyped-def]
    for i in range(len(y)):
        g[i, 0] = math.exp(margin[i, 0]) - y[i]
        h[i, 0] = math.exp(margin[i, 0] + most_step)


@njit(nogil=True, cache=True, error_model="numpy")
def _gamma(margin, y, g, h):  # type: ignore[no-untyped-def]
    for i in range(len(y)):
        h[i, 0] = y[i] / math.exp(margin[i, 0])
        g[i, 0] = np.float32(1) - h[i, 0]


@njit(nogil=True, cache=True)
def _tweedie(margin, y, power, g, h):  # type: ignore[no-untyped-def]
    falling, rising = np.float32(1) - power, np.float32(2) - power
    for i in range(len(y)):
        a, b = math.exp(falling * margin[i, 0]), math.exp(rising * margin[i, 0])
        g[i, 0] = -y[i] * a + b
        h[i, 0] = -y[i] * falling * a + rising * b
