"""Differential privacy of a whole training: how much noise it takes, and the promise in words.

With the joint recipe and `epsilon`, all that leaves a party because of its rows are sums per leaf, over trees that no
data decided about. A row is in one leaf of every tree. Its gradient and hessian there, in fixed point, form a vector
that is no longer than a bound (`joint/private.py`), and every party adds discrete Gaussian noise (`discrete.py`) of one
deviation. So a tree is a Gaussian mechanism, and all trees together are one, whatever each of them was made of: the
squares of the bounds add up. What it is worth in epsilon and delta is computed by dp-accounting.

The sum that somebody sees holds the noise of all parties that do not collude with whoever sees it, at least m - c of
them. So each party's noise needs only one part in m - c of the variance. Adding or removing one row is the unit; with
`max_rows_per_person` it is all rows of a person, whose vectors may all point the same way.
"""

from __future__ import annotations

import math
from typing import Any

from simfl.errors import ParameterError
from simfl.params import Params, PrivateParams, is_private
from simfl.privacy.discrete import INEXACT, VARIANCE

SLACK = 1e-9  # of the noise: more than the discrete law and the arithmetic of this page can lack
MOST_VALUES = 2**28  # that a party sends in a training
MOST_INEXACT = 1e-6  # of delta: what the sampler may lack. The ledger adds runs up without it


def not_colluding(params: PrivateParams, n_parties: int) -> int:
    """How many parties' noise is in whatever somebody sees: m - c."""
    c = n_parties - 1 if params.colluding is None else params.colluding
    if c > n_parties - 1:
        raise ParameterError(
            f"colluding={c} is not possible: with {n_parties} parties at most {n_parties - 1} collude."
        )
    return n_parties - c


def longest(params: PrivateParams, n_parties: int) -> float:
    """How long a row's vectors of all trees together may be, in units of which the noise of a party has 2**20."""
    inexact = MOST_VALUES * n_parties * INEXACT * (1.0 + math.exp(min(params.epsilon, 700.0)))
    if inexact > MOST_INEXACT * params.delta:
        raise ParameterError(f"epsilon={params.epsilon:g} promises nothing with delta={params.delta:g}. Lower it.")
    z = multiplier(params.epsilon, params.delta - inexact) * (1.0 + SLACK)
    each = params.max_rows_per_person or 1
    return math.sqrt(VARIANCE * not_colluding(params, n_parties)) / (z * each)


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


def guarantee(params: Params, n_parties: int) -> str | None:
    """The promise, in words that can be quoted; None without epsilon."""
    if not is_private(params):
        return None
    numbers = f"epsilon = {params.epsilon:g} and delta = {params.delta:g}"
    return (
        f"Everything that a party sent because of its rows, and so the model, is differentially private with {numbers} "
        f"for adding or removing {_unit(params)}, against {_against(params, n_parties)}; this does not cover what the "
        "study declares (columns, ranges, classes, number of rows), that a party takes part and that its table fits "
        f"the study, {'rows' if params.max_rows_per_person is None else 'a person with rows'} at several parties, how "
        "long answers take, earlier and later trainings on the same rows (the party's ledger counts them), and what "
        "can be learned about somebody who is not in any table."
    )


def _unit(params: PrivateParams) -> str:
    k = params.max_rows_per_person
    return "any one row" if k is None else f"all rows of any one person (at most {k} at the party)"


def _against(params: PrivateParams, n_parties: int) -> str:
    c = n_parties - not_colluding(params, n_parties)
    if c == n_parties - 1:
        return "everybody, even if the hub and all other parties collude"
    if c == 0:
        return "the hub and everybody who takes no part (the other parties are trusted, also to add their noise)"
    return (
        f"everybody, as long as no more than {c} of the {n_parties} parties collude with the hub or each other, or "
        "leave out their noise"
    )
