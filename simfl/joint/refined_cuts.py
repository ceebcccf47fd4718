"""Which of a column's declared cut points a private training uses: those that divide the rows evenly.

A range says where values may lie, not where they are: evenly spaced points leave most rows of many a column in a few
cells. So before the first tree every party counts its rows per cell of every column, once, with noise. What is chosen
from the noisy totals costs no more privacy than the counts.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate

from simfl.arrays import Doubles

CERTAIN = 2.0  # deviations that a cell's count must reach: others are taken as empty, or noise would fill the tails


def refined_cuts(counts: Doubles, deviation: float, most: int) -> list[int]:
    """Numbers of the cut points to keep, at most `most`: cell k lies left of point k.

    `deviation`: of the noise in a count.

    >>> import numpy as np
    >>> refined_cuts(np.array([0.0, 3.0, 400.0, 400.0, 400.0, 400.0, -2.0, 1.0]), deviation=4.0, most=3)
    [2, 3, 4]
    >>> refined_cuts(np.zeros(8), deviation=4.0, most=3)
    [1, 3, 5]
    """
    n_points = len(counts) - 1
    if n_points <= most:
        return list(range(n_points))
    certain = [count if count >= CERTAIN * deviation else 0.0 for count in counts.tolist()]
    if math.fsum(certain) <= 0.0:
        certain = [1.0] * len(certain)
    upto = list(accumulate(certain))
    wanted = (upto[-1] * k / (most + 1) for k in range(1, most + 1))
    return sorted({min(bisect_left(upto, mass), n_points - 1) for mass in wanted})
