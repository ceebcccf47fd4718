"""Which columns a private training draws more often: from noisy sums, nothing else.

Before the first tree of the model every column has a tree of its own: its cells are the levels of a category, or hold a
quarter of the cut points each. A column whose cells differ by more than noise can explain is drawn more often from then
on. What is computed from noisy totals costs no privacy. Half of all draws stay uniform: a column may matter only
together with another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from simfl.arrays import Doubles

LEARNED = 0.5  # of the draws follow what the first step says; .8 loses where columns matter together
WHOLE = 1 << 20  # weights are whole numbers that add up to about this: the same on every machine


def column_weights(sums: Sequence[tuple[Doubles, Doubles]], deviation: float) -> list[int]:
    """How often each column is to be drawn, in proportion. `sums`: per column G and H of its cells, with noise.

    `deviation`: of the noise in G. All weights are at least one.

    >>> import numpy as np
    >>> flat, steep = np.array([1.0, 0.0, 2.0, 0.0]), np.array([-90.0, -30.0, 30.0, 90.0])
    >>> column_weights([(flat, np.full(4, 100.0)), (steep, np.full(4, 100.0))], deviation=5.0)
    [262144, 786432]
    """
    roots = [math.sqrt(max(_evidence(G.tolist(), H.tolist(), deviation), 0.0)) for G, H in sums]
    total, n = math.fsum(roots), len(roots)
    if not total:
        return [WHOLE // n] * n
    return [max(round(WHOLE * ((1.0 - LEARNED) / n + LEARNED * root / total)), 1) for root in roots]


def _evidence(G: list[float], H: list[float], deviation: float) -> float:
    """What the cells differ by, less what noise and chance would make of equal cells, less one deviation of that."""
    H = [max(h, 0.0) for h in H]
    whole = math.fsum(H)
    if whole <= 0.0 or len(H) < 2:
        return 0.0
    mean = math.fsum(G) / whole
    free = len(H) - 1
    found = math.fsum((g - mean * h) ** 2 for g, h in zip(G, H, strict=True))
    expected = free * (deviation**2 + whole / len(H))
    spread = math.sqrt(2.0 * free) * (deviation**2 + whole / len(H))
    return (found - expected - spread) / whole
