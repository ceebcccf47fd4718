"""The objectives: gradients, hessians, start values and metrics, in XGBoost's words and arithmetic.

Gradients are in float32, in the order of XGBoost's own formulas and with the same exponential function (the C
library's, by way of Numba), so that one party alone gets XGBoost's own model to the last bit. Which parameters an
objective reads is in `params.SETTINGS`.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from simfl.arrays import Floats
from simfl.errors import ParameterError
from simfl.params import SETTINGS, Params
from simfl.training.losses.base import AUC, GROWTH, Labels, Loss, finished, shortened
from simfl.training.losses.classes import Logistic, Softprob
from simfl.training.losses.numbers import PseudoHuber, SquaredError
from simfl.training.losses.positive import Gamma, Poisson, Tweedie
from simfl.training.losses.quantiles import AbsoluteError, Quantile
from simfl.training.losses.survival import AcceleratedFailureTime

__all__ = [
    "GROWTH",
    "LOSSES",
    "Labels",
    "Loss",
    "at_home",
    "check_start",
    "finished",
    "in_matrix",
    "in_xgboost",
    "is_multi",
    "labels_of",
    "loss_named",
]
__all__ += ["loss_of", "settings_of", "shortened", "with_spread"]

LOSSES: dict[str, type[Loss]] = {
    "binary:logistic": Logistic,
    "multi:softprob": Softprob,
    "reg:squarederror": SquaredError,
    "reg:absoluteerror": AbsoluteError,
    "reg:quantileerror": Quantile,
    "reg:pseudohubererror": PseudoHuber,
    "count:poisson": Poisson,
    "reg:gamma": Gamma,
    "reg:tweedie": Tweedie,
    "survival:aft": AcceleratedFailureTime,
}


def loss_of(params: Params) -> Loss:
    """The objective of a training. Where the spread of the labels is not known yet, it is one."""
    more: dict[str, Any] = {} if params.label_spread is None else {"label_spread": params.label_spread}
    if params.eval_metric is not None:
        more["eval_metric"] = (params.eval_metric,) if isinstance(params.eval_metric, str) else (*params.eval_metric,)
    return loss_named(params.objective, {**settings_of(params), **more})


def only_finds_splits(params: Params) -> bool:
    """Whether sums onto rows may be rounded at random: leaf values come from other sums, and sizes are known."""
    return loss_of(params).ordinary is not None and params.leaf_values != "builder"


def with_spread(params: Params, label_sums: Sequence[float], weight: float) -> Params:
    """The parameters with the spread of the labels, where the objective needs it and it is not given.

    It is a power of two, so that gradients in this unit are exact.
    """
    if not loss_of(params).needs_spread or params.label_spread is not None:
        return params
    return msgspec.structs.replace(params, label_spread=_power_below(label_sums[1] / weight))


def _power_below(deviation: float) -> float:
    return math.ldexp(1.0, math.frexp(deviation)[1] - 1) if deviation > 0 else 1.0


def at_home(loss: Loss, y: Floats) -> Loss:
    """A model's objective for rows of one party: where it needs the spread of the labels, that of these."""
    if not isinstance(loss, Quantile) or not len(y):
        return loss
    own = {} if isinstance(loss, AbsoluteError) else {"quantile_alpha": loss.alpha}
    return type(loss)(**own, label_spread=_power_below(float(np.mean(loss.label_parts(y)[1]))))


def loss_named(objective: str, settings: Mapping[str, Any] | None = None) -> Loss:
    """An objective by its name, with settings of its own where it has some."""
    return _made(objective, tuple(sorted((settings or {}).items())))


@lru_cache(maxsize=64)
def _made(objective: str, settings: tuple[tuple[str, Any], ...]) -> Loss:
    given = dict(settings)
    asked = given.pop("eval_metric", ())
    loss = LOSSES[objective](**given)
    two = loss.classifies and not loss.is_multi
    known = (*loss.metrics, AUC) if two else loss.metrics
    for name in asked:
        if name not in known:
            raise ParameterError(f"eval_metric={name!r} is not possible with {objective}: it knows {', '.join(known)}.")
    loss.asked = asked
    return loss


def check_start(params: Params) -> None:
    """Refuse a start value that the objective cannot begin with."""
    given = params.base_score
    wrong = None if given is None else loss_of(params).wrong_start(given)
    if given is not None and not np.isfinite(np.float32(given)):
        wrong = "it does not fit float32"
    if wrong:
        raise ParameterError(f"base_score={given} is not possible: {wrong}.")


def settings_of(params: Params) -> dict[str, Any]:
    """What an objective reads beside its name, in XGBoost's words."""
    return {name: getattr(params, name) for name in SETTINGS.get(params.objective, {})}


def in_xgboost(params: Params) -> dict[str, Any]:
    """The objective with its settings, in XGBoost's words."""
    return {"objective": params.objective, **settings_of(params)}


def in_matrix(y: Floats) -> dict[str, Floats]:
    """Labels as numbers, as XGBoost's matrices take them."""
    return {"label": y} if y.ndim == 1 else {"label_lower_bound": y[:, 0], "label_upper_bound": y[:, 1]}


def is_multi(objective: str) -> bool:
    """Whether an objective has an output for every class."""
    return LOSSES[objective].is_multi


def labels_of(objective: str) -> Labels:
    """What labels an objective has."""
    return LOSSES[objective].labels
