"""Quantiles of numbers, the median among them: reg:quantileerror and reg:absoluteerror.

XGBoost grows a tree from the signs of the errors, and then puts a quantile of the errors into each leaf. A quantile
over several parties does not follow from sums. So here leaf values are gradients over hessians, as everywhere, with
hessians from the field's standard bound: an absolute value lies below a parabola that touches it (Hunter and
Lange, "Quantile regression via an MM algorithm", 2000). A row far from its prediction has a small hessian, and its leaf
makes a long step. The values at which nothing moves any more are the same: those that have the right share of all
parties' rows below them.

Errors are measured in units of how far all parties' labels lie from their mean: then penalties, and sums in fixed
point, do not depend on the unit of the labels.
"""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from simfl.arrays import AnyArray, Doubles, Floats
from simfl.training.losses.base import Loss, weighted

NEAR = 0.5  # errors below this part of the spread count as if they were this large: the parabola stays flat there
_DEVIATION = 1.2533  # of a normal law with a mean absolute deviation of one


class Quantile(Loss):
    """reg:quantileerror."""

    metrics = ("quantile", "mae")
    signed = (True, False)
    needs_spread = True

    def __init__(self, quantile_alpha: float = 0.5, label_spread: float = 1.0) -> None:
        self.alpha, self.spread = float(np.float32(quantile_alpha)), np.float32(label_spread)
        self.above, self.below = np.float32(1) - np.float32(self.alpha), np.float32(-self.alpha)
        self.limits = (float(self.spread) * max(self.alpha, 1 - self.alpha), 1 / NEAR)

    def label_parts(self, y: AnyArray) -> list[AnyArray]:
        """The labels, and how far they are from their mean at this party."""
        return [y, np.abs(y - np.mean(y, dtype=np.float64))]

    def start(self, label_sums: Sequence[float], weight: float) -> Doubles:
        """The quantile of a normal law with this mean and deviation."""
        mean, deviation = (each / weight for each in label_sums)
        return np.array([mean + NormalDist().inv_cdf(self.alpha) * _DEVIATION * deviation])

    def gradients(self, margin: Floats, y: Floats, weight: Floats | None) -> tuple[Floats, Floats]:
        error = (margin - y[:, None]) / self.spread
        g: Floats = self.spread * self._slopes(error)
        h: Floats = np.float32(1) / np.maximum(np.abs(error), np.float32(NEAR))
        return weighted(g, h, weight)

    def _slopes(self, error: Floats) -> Floats:
        return np.where(error >= 0, self.above, self.below)

    def usual_hessian(self, margin: float) -> float:
        return 1.0

    def best_shift(self, margin: Floats, y: Floats, weight: Floats | None = None) -> Doubles:
        error = y - margin[:, 0]
        if weight is None:
            return np.array([np.quantile(error, self.alpha)])
        order = np.argsort(error, kind="stable")
        below = np.cumsum(weight[order], dtype=np.float64)
        return error[order][[np.searchsorted(below, self.alpha * below[-1])]].astype(np.float64)

    def row_losses(self, margin: Floats, y: Floats) -> dict[str, Doubles]:
        error = y - margin[:, 0].astype(np.float64)
        return {"quantile": np.maximum(self.alpha * error, (self.alpha - 1) * error), "mae": np.abs(error)}


class AbsoluteError(Quantile):
    """reg:absoluteerror: the median, with slopes of one."""

    metrics = ("mae", "rmse")

    def __init__(self, label_spread: float = 1.0) -> None:
        super().__init__(0.5, label_spread)
        self.limits = (float(self.spread), 1 / NEAR)

    def _slopes(self, error: Floats) -> Floats:
        return np.sign(error)

    def row_losses(self, margin: Floats, y: Floats) -> dict[str, Doubles]:
        error = margin[:, 0].astype(np.float64) - y
        return {"mae": np.abs(error), "rmse": error * error}
