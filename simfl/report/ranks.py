"""What the order of predictions says of two classes: the ROC curve, and the area under it.

As scikit-learn has them, which takes a second to import and is not needed for anything else in a report.
"""

from __future__ import annotations

import numpy as np

from simfl.arrays import AnyArray, Doubles


def area(is_one: AnyArray, score: AnyArray) -> float:
    """The share of pairs of a one and a zero that the scores put in the right order; ties count by half.

    >>> area(np.array([0, 1, 0, 1]), np.array([0.1, 0.4, 0.4, 0.8]))
    0.875
    """
    n_ones = int(is_one.sum())
    above = _ranks(score)[is_one == 1].sum() - n_ones * (n_ones + 1) / 2
    return float(above / (n_ones * (len(is_one) - n_ones)))


def roc_curve(is_one: AnyArray, score: AnyArray) -> tuple[Doubles, Doubles]:
    """False against true positives, from none to all, without points on a straight line between others.

    >>> false, true = roc_curve(np.array([0, 1, 0, 1]), np.array([0.1, 0.4, 0.4, 0.8]))
    >>> false.tolist(), true.tolist()
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    order = np.argsort(score, kind="stable")[::-1]
    ends = np.append(np.flatnonzero(np.diff(score[order])), len(order) - 1)  # the last of every tie
    ones = np.cumsum(is_one[order], dtype=np.float64)[ends]
    zeros = 1 + ends - ones
    bends = np.diff(zeros, 2).astype(bool) | np.diff(ones, 2).astype(bool)
    kept = np.concatenate([[True], bends, [True]])[: len(ends)]
    zeros, ones = (np.append(0.0, counts[kept]) for counts in (zeros, ones))
    return zeros / zeros[-1], ones / ones[-1]


def _ranks(values: AnyArray) -> Doubles:
    """The place of every value in their order, from 1 on; equal ones share the mean of their places."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean: Doubles = counts.cumsum() - (counts - 1) / 2
    return mean[place]
