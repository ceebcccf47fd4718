"""Intervals by resampling (bootstrap): how much a mean depends on which rows it was counted on."""

import numpy as np

from simfl.arrays import AnyArray, Doubles

RESAMPLINGS = 1000
_CELLS = 4_000_000  # of one block of resamplings


def interval(values: Doubles) -> tuple[float, float]:
    """The middle 95 % of the means of resampled values.

    >>> interval(np.array([0.25] * 50))
    (0.25, 0.25)
    """
    (low,), (high,) = middle(resampled_means(values[:, None], np.random.default_rng([0, 27])))
    return float(low), float(high)


def middle(samples: Doubles) -> tuple[Doubles, Doubles]:
    """The two ends of the middle 95 % of every column."""
    low, high = np.percentile(samples, (2.5, 97.5), axis=0)
    return low, high


def resampled_means(values: Doubles, rng: np.random.Generator, weight: AnyArray | None = None) -> Doubles:
    """The means of all columns, once for each resampling: n rows drawn from the n rows, with replacement."""
    n = len(values)
    means = np.empty((RESAMPLINGS, values.shape[1]))
    each = None if weight is None else weight.astype(np.float64)[:, None]
    for begin in range(0, RESAMPLINGS, block := max(1, _CELLS // n)):
        size = min(block, RESAMPLINGS - begin)
        drawn = rng.integers(0, n, (size, n)) + np.arange(size)[:, None] * n
        times = np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n)
        means[begin : begin + size] = times @ values / n if each is None else times @ (each * values) / (times @ each)
    return means
