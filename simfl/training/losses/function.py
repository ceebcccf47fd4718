"""A function as objective, in one process only: messages carry a name for it, and no code ever travels.

The function is called as XGBoost's estimators call theirs: `(y_true, y_pred) -> gradient, hessian`, or with
`sample_weight` where it has that parameter and rows have weights. `y_pred` are margins.
"""

import inspect
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from simfl.arrays import AnyArray, Doubles, Floats
from simfl.errors import ParameterError
from simfl.params import FUNCTION
from simfl.training.losses.base import GROWTH, UNBOUNDED, Bounds, weighted
from simfl.training.losses.numbers import SquaredError

Objective = Callable[..., tuple[Any, Any]]

START: Final = 0.5  # XGBoost's, where it does not know the objective
_KNOWN: dict[str, Objective] = {}  # the functions of the trainings under way, by their names


@contextmanager
def with_name(params: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The parameters with a name in place of a function, which is known while this lasts."""
    objective = params.get("objective")
    if not callable(objective):
        yield dict(params)
        return
    name = FUNCTION + secrets.token_hex(8)
    _KNOWN[name] = objective
    try:
        yield {**params, "objective": name}
    finally:
        del _KNOWN[name]


class ByFunction(SquaredError):  # noqa: N818 - no exception
    """An objective that is known by its gradients alone. Its model is written as reg:squarederror, as XGBoost does."""

    limits = (UNBOUNDED, float(np.finfo(np.float32).max))
    signed = ()  # it starts at the same value, whatever the labels

    def __init__(self, function: Objective) -> None:
        self.function = function
        self.takes_weight = "sample_weight" in inspect.signature(function).parameters

    @classmethod
    def named(cls, name: str) -> "ByFunction":
        """The function that this process knows by this name."""
        if name not in _KNOWN:
            raise ParameterError(
                "The objective is a function that is not known here: only simfl.train and SimFLRegressor take one, in "
                "one process. Between machines give one of XGBoost's words."
            )
        return cls(_KNOWN[name])

    def label_parts(self, y: AnyArray) -> list[AnyArray]:
        return []

    def start(self, label_sums: Sequence[float], weight: float) -> Doubles:
        return np.array([START])

    def gradients(self, margin: Floats, y: Floats, weight: Floats | None) -> tuple[Floats, Floats]:
        own = weight is not None and self.takes_weight
        # Copies: a function that changes what it is given must not change the rows.
        more = {"sample_weight": np.array(weight)} if own else {}
        found = self.function(y.copy(), margin[:, 0].copy(), **more)
        g, h = (_column(part, what, len(y)) for part, what in zip(found, ("gradients", "hessians"), strict=True))
        if (h < 0).any():
            raise _refused(f"{int((h < 0).sum())} hessians below zero. Give at least zero")
        return (g, h) if own else weighted(g, h, weight)

    def bounds(self, margin: Floats, y: Floats) -> Bounds:
        g, h = self.gradients(margin, y, None)
        return GROWTH * float(np.abs(g).max(initial=0.0)), GROWTH * float(h.max(initial=0.0))

    def usual_hessian(self, margin: float) -> float:
        """That of a row whose label is predicted: the labels of parties are not known."""
        one = np.array([[margin]], dtype=np.float32)
        return float(self.gradients(one, one[:, 0], None)[1][0, 0]) or 1.0


def _column(values: Any, what: str, n_rows: int) -> Floats:
    column: Floats = np.asarray(values, dtype=np.float32).reshape(-1, 1)
    if len(column) != n_rows:
        raise _refused(f"{len(column)} {what} for {n_rows} rows. Give one for each row")
    if not np.isfinite(column).all():
        raise _refused(f"{what} that are not finite. Bound y_pred before you take its exponential")
    return column


def _refused(fact: str) -> ParameterError:
    return ParameterError(f"The function that was given as objective returned {fact}.")
