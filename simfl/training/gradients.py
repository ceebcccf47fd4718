"""Gradients of one party's rows, summed onto the rows of another party that they resemble: the core of stage 2."""

import numpy as np

from simfl.arrays import AnyArray, Doubles, Ints


def sum_onto(similar: AnyArray, values: AnyArray, n_rows: int) -> Doubles:
    """Add each value onto the row it resembles (or the leaf it falls into).

    >>> sum_onto(np.array([2, 0, 2]), np.array([.1, .2, .3]), n_rows=4)
    array([0.2, 0. , 0.4, 0. ])
    """
    return np.bincount(similar, weights=values, minlength=n_rows).astype(np.float64, copy=False)


def draw_similar(similar_rows: Ints, seed: list[int]) -> Ints:
    """For every row one of its similar rows, drawn anew from the seed.

    The paper has one similar row. We keep several and draw one for each tree, so that over many trees a gradient
    reaches the whole neighbourhood; sharing it out over the neighbours within one tree is measurably worse.
    """
    n_rows, k = similar_rows.shape
    if k == 1:
        return similar_rows[:, 0]
    pick = np.random.default_rng(seed).integers(0, k, n_rows)
    drawn: Ints = similar_rows[np.arange(n_rows), pick]
    return drawn


def most_uses(similar_rows: Ints, n_rows: int) -> int:
    """How many rows at most can be drawn onto one row: bounds the sums that can arise."""
    return int(np.bincount(similar_rows.ravel(), minlength=n_rows).max())
