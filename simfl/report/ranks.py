"""What the order of predictions says of two classes: the ROC curve, and the area under it.

As scikit-learn has them, which takes a second to import and is not needed for anything else in a report.
"""

from __future__ import annotations

import numpy as np

from simfl.arrays import AnyArray, Doubles


def area(is_one: AnyArray, score: AnyArray, weight: AnyArray | None = None) -> float:
    """The share of pairs of a one and a zero that the scores put in the right order; ties count by half.

    >>> area(np.array([0, 1, 0, 1]), np.array([0.1, 0.4, 0.4, 0.8]))
    0.875
    """
    _, place = np.unique(score, return_inverse=True)
    zeros, ones = (np.bincount(place, weights=own) for own in _of_each_class(is_one, weight))
    above = ones @ (zeros.cumsum() - zeros / 2)
    return float(above / (ones.sum() * zeros.sum()))


def roc_curve(is_one: AnyArray, score: AnyArray, weight: AnyArray | None = None) -> tuple[Doubles, Doubles]:
    """False against true positives, from none to all, without points on a straight line between others.

    >>> false, true = roc_curve(np.array([0, 1, 0, 1]), np.array([0.1, 0.4, 0.4, 0.8]))
    >>> false.tolist(), true.tolist()
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    order = np.argsort(score, kind="stable")[::-1]
    ends = np.append(np.flatnonzero(np.diff(score[order])), len(order) - 1)  # the last of every tie
    zeros, ones = (np.cumsum(own[order])[ends] for own in _of_each_class(is_one, weight))
    bends = np.diff(zeros, 2).astype(bool) | np.diff(ones, 2).astype(bool)
    kept = np.concatenate([[True], bends, [True]])[: len(ends)]
    zeros, ones = (np.append(0.0, counts[kept]) for counts in (zeros, ones))
    return zeros / zeros[-1], ones / ones[-1]


def _of_each_class(is_one: AnyArray, weight: AnyArray | None) -> tuple[Doubles, Doubles]:
    """How much each row counts as a zero, and as a one."""
    each = np.ones(len(is_one)) if weight is None else weight.astype(np.float64)
    return each * (is_one == 0), each * (is_one == 1)
