"""Numbers of any size: reg:squarederror and reg:pseudohubererror."""

from collections.abc import Sequence

import numpy as np

from simfl.arrays import AnyArray, Doubles, Floats
from simfl.training.losses.base import GROWTH, UNBOUNDED, Bounds, Loss, weighted


class SquaredError(Loss):
    """reg:squarederror."""

    metrics = ("rmse", "mae")
    limits = (UNBOUNDED, 1.0)

    def gradients(self, margin: Floats, y: Floats, weight: Floats | None) -> tuple[Floats, Floats]:
        return weighted(margin - y[:, None], np.ones_like(margin), weight)

    def bounds(self, margin: Floats, y: Floats) -> Bounds:
        return GROWTH * float(np.max(np.abs(margin[:, 0] - y), initial=0.0)), 1.0

    def row_losses(self, margin: Floats, y: Floats) -> dict[str, Doubles]:
        error = (margin[:, 0] - y).astype(np.float64)
        return {"rmse": error * error, "mae": np.abs(error)}


class PseudoHuber(Loss):
    """reg:pseudohubererror: about squares near zero, and beyond 1 about absolute values."""

    metrics = ("mphe", "mae")
    signed = (True, False)
    limits = (1.0, 1.0)

    def label_parts(self, y: AnyArray) -> list[AnyArray]:
        """Gradients and hessians at zero: XGBoost starts one Newton step from there."""
        g, h = self.gradients(np.zeros((len(y), 1), np.float32), y.astype(np.float32), None)
        return [g[:, 0], h[:, 0]]

    def start(self, label_sums: Sequence[float], weight: float) -> Doubles:
        g, h = label_sums
        return np.array([-g / max(h, 1e-6)])

    def gradients(self, margin: Floats, y: Floats, weight: Floats | None) -> tuple[Floats, Floats]:
        z = margin - y[:, None]
        square: Floats = np.float32(1) + z * z
        root: Floats = np.sqrt(square)
        return weighted(z / root, np.float32(1) / (square * root), weight)

    def row_losses(self, margin: Floats, y: Floats) -> dict[str, Doubles]:
        error = (margin[:, 0] - y).astype(np.float64)
        return {"mphe": np.sqrt(1 + error * error) - 1, "mae": np.abs(error)}
