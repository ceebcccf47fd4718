"""Gradients as small integers: rounded at random, so that their sums are right on average and no row's is exact."""

import numpy as np
from numba import njit

from simfl.preprocessing.splitmix import row_token


@njit(nogil=True, cache=True)
def rounded(g, h, unit_g, unit_h, key, packed):  # type: ignore[no-untyped-def]
    """(g << 32) + h per row, each in its unit. The same key gives the same numbers."""
    for i in range(len(g)):
        token = row_token(key, i)
        a = np.float64(token >> np.uint64(32)) * 2.0**-32
        b = np.float64(token & np.uint64(0xFFFFFFFF)) * 2.0**-32
        packed[i] = (np.int64(np.floor(g[i] / unit_g + a)) << 32) + np.int64(np.floor(h[i] / unit_h + b))
