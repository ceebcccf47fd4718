"""Differential privacy for the sums of gradients that a party sends during a training.

Every party adds Gaussian noise to its own sums, enough that all of them together reveal little about any one of its
rows, whatever the hub and the other parties do. Epsilon and delta hold for changing one row's label, or leaving its
gradients out of all sums; which rows resemble which is taken as given.

They cover the sums onto rows of builders and the sums per leaf. Metrics and label sums are not sent at all then. They
do not cover stage 1 (names of hash values, moments), nor the trees that a party builds itself, which use its own
gradients as they are. A turn in which a party or the hub was lost is not repeated: its share is spent.

A row has one gradient and one hessian in each release. They are bounded, so that noise of z times the bound makes a
release a Gaussian mechanism; n of them with multipliers z_i are one with 1 / z**2 = sum of 1 / z_i**2. What that is
worth in epsilon and delta is computed by Google's dp-accounting.
"""

import math
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np

from simfl.arrays import Doubles
from simfl.errors import ParameterError
from simfl.params import TrainParams

# How long a row's gradients and hessians over all outputs can be: |p - y|, p (1 - p); and for several classes
# |p - y| <= sqrt(2), 2 |p (1 - p)| <= 2 sqrt(4 / 27), because p (1 - p)**2 <= 4 / 27 and the p add up to one.
BOUNDS = {"binary:logistic": (1.0, 0.25), "multi:softprob": (math.sqrt(2.0), 2.0 * math.sqrt(4.0 / 27.0))}
ROW_SHARE = 0.2  # of the budget, for the sums onto rows: leaf sums hold more rows each and bear more noise
REACH = 8.0  # noise beyond this many deviations is cut off with the digits


@dataclass(frozen=True)
class Noise:
    """The deviations of the noise on gradients and hessians, of sums onto rows and of sums per leaf."""

    row: tuple[float, float]
    leaf: tuple[float, float]
    most_rows: int  # releases that the noise was made for: a party makes no more
    most_leaves: int
    epsilon: float  # what all of them together are worth


def plan_noise(params: TrainParams, n_rounds: int, n_parties: int, *, shares_rows: bool) -> Noise | None:
    """How much noise the parameters ask for; None if they ask for none."""
    if params.epsilon is None:
        return None
    if params.early_stopping_rounds:
        raise ParameterError("epsilon and early_stopping_rounds do not go together: no metrics are sent.")
    at_once = n_parties if params.turns == "all" else 1
    leaf_sums = params.leaf_values == "global"
    row_share = 0.0 if not shares_rows else ROW_SHARE if leaf_sums else 1.0
    each = multiplier(params.epsilon, params.delta)
    most_rows, most_leaves = n_rounds * max(at_once - 1, 1), n_rounds * at_once
    row = _deviations(each, most_rows, row_share, params.objective)
    leaf = _deviations(each, most_leaves, (1.0 - row_share) * leaf_sums, params.objective)
    return Noise(row, leaf, most_rows, most_leaves, params.epsilon)


def _deviations(each: float, n_releases: int, share: float, objective: str) -> tuple[float, float]:
    """The deviations under which n releases use up this share of the budget; a release has two parts."""
    z = each * math.sqrt(2.0 * n_releases / share) if share else 0.0
    gradient, hessian = BOUNDS[objective]
    return z * gradient, z * hessian


def multiplier(epsilon: float, delta: float) -> float:
    """The noise, in units of its sensitivity, that makes one release (epsilon, delta)-private.

    >>> round(multiplier(1.0, 1e-5), 2)
    3.73
    """
    return float(_accountant().get_sigma_gaussian(epsilon, delta))


def epsilon_of(noise_multiplier: float, delta: float) -> float:
    """What one release with this noise is worth.

    >>> round(epsilon_of(3.73, 1e-5), 2)
    1.0
    """
    return float(_accountant().get_epsilon_gaussian(noise_multiplier, delta))


def _accountant() -> Any:
    try:
        import dp_accounting  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        raise ParameterError('epsilon needs an accountant. Install it: pip install "simfl[dp]".') from None
    return dp_accounting


def add_noise(values: Doubles, deviation: float) -> Doubles:
    """The values with noise that nobody can reproduce."""
    if not deviation:
        return values
    rng = np.random.Generator(np.random.PCG64DXSM(secrets.randbits(256)))
    noisy: Doubles = values + deviation * np.clip(rng.standard_normal(values.shape), -REACH, REACH)
    return noisy
