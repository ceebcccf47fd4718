"""One unknown attribute of a known person, by asking the model: every value is tried, and the label decides.

The attacker knows all other columns and the label. Its own rows say how likely each value is beside the other columns;
the model says how likely the label is with each value. Both together give the guess. A model knows the population,
too, and that is no leak: the same attack on a model that was trained without the person is what counts as guessing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simfl.arrays import Doubles, Longs, Mask
from simfl.audit import attacks
from simfl.audit.attributes import CLOSE, Attribute
from simfl.audit.views import Prior

LogLikelihood = Callable[[Doubles], Doubles]  # of each row's true label, given rows on the attacker's scale


def attributes_by_query(
    ask: LogLikelihood | None, rows: Doubles, attributes: Sequence[Attribute], prior: Prior
) -> Doubles:
    """Per row: the share of attributes that are found, each in turn the unknown one. Without a model: imputation."""
    known = attacks.precision(prior)
    marks = [_one_attribute(ask, rows, attribute, prior, known) for attribute in attributes]
    return np.asarray(np.mean(marks, axis=0), dtype=np.float64)


def _one_attribute(
    ask: LogLikelihood | None, rows: Doubles, attribute: Attribute, prior: Prior, known: Doubles
) -> Mask:
    values, _ = attacks.options_of(attribute, prior)
    belief = attacks.log_odds(rows, attribute.columns, values, known)  # beside the other columns
    if ask is not None:
        tried = np.repeat(rows[:, None], len(values), axis=1)
        tried[:, :, attribute.columns] = values
        belief = belief + ask(tried.reshape(-1, rows.shape[1])).reshape(len(rows), len(values))
    chosen = values[likeliest(belief, values, attribute)]
    return attribute.is_right(chosen, rows[:, attribute.columns])


def likeliest(belief: Doubles, values: Doubles, attribute: Attribute) -> Longs:
    """The likeliest category; of numbers, the one with most probability close by, which is what counts as right."""
    if attribute.categories is not None:
        return np.asarray(belief.argmax(axis=1), dtype=np.int64)
    p = np.exp(belief - belief.max(axis=1, keepdims=True))
    near = np.abs(values - values.T) <= CLOSE
    return np.asarray((p @ near).argmax(axis=1), dtype=np.int64)
