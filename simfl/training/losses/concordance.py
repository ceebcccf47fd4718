"""How well predicted times are in order: Harrell's concordance, for times between bounds."""

import numpy as np
from numba import njit

from simfl.arrays import AnyArray


def concordance(predicted: AnyArray, bounds: AnyArray, weight: AnyArray | None = None) -> float | None:
    """The share of pairs in the right order, among those whose order is known; equal predictions count half.

    The order of two rows is known where the one's upper bound is below the other's lower bound. A row that was watched
    as long as the other's event took, and without an event, comes after it. None: there is no such pair. A pair counts
    as much as the product of its rows' weights.

    >>> concordance(np.array([1.0, 2.0, 3.0]), np.array([[5.0, 5.0], [7.0, 7.0], [6.0, np.inf]]))
    1.0
    """
    each = np.ones(len(bounds)) if weight is None else np.asarray(weight, np.float64)
    right, pairs = _pairs(np.asarray(predicted, np.float64).ravel(), np.asarray(bounds, np.float64), each)
    return right / pairs if pairs else None


@njit(nogil=True, cache=True)
def _pairs(predicted, bounds, weight):  # type: ignore[no-untyped-def]
    right, pairs = 0.0, 0.0
    for i in range(len(predicted)):
        high = bounds[i, 1]
        if np.isinf(high):
            continue
        for j in range(len(predicted)):
            low = bounds[j, 0]
            if high < low or (high == low and low < bounds[j, 1]):
                both = weight[i] * weight[j]
                pairs += both
                if predicted[i] < predicted[j]:
                    right += both
                elif predicted[i] == predicted[j]:
                    right += 0.5 * both
    return right, pairs
