"""The rows of a tree and their gradients as small integers: rounded at random, so that their sums are right on average
and no row's is exact.
"""

import numpy as np
from numba import njit

from simfl.joint._part import row_token

ALL = 1 << 32  # of 2 ** 32: every row is taken


@njit(nogil=True, cache=True)
def take_rows(g, h, output, units, keys, share, rows, packed):  # type: ignore[no-untyped-def]
    """The rows that take part, and (g << 32) + h of each, in units that are powers of two; returns how many.

    The first key is that of the rounding, the second that of the draw: a row is taken with a chance of share / ALL.
    """
    per_g, per_h, n = 1.0 / units[0], 1.0 / units[1], 0
    for i in range(len(g)):
        rows[n] = i
        n += np.int64(row_token(keys[1], i) >> np.uint64(32)) < share
    for k in range(n):
        i = rows[k]
        token = row_token(keys[0], np.int64(i))
        a = np.float64(token >> np.uint64(32)) * 2.0**-32
        b = np.float64(token & np.uint64(0xFFFFFFFF)) * 2.0**-32
        value = np.int64(np.floor(g[i, output] * per_g + a)) << 32
        packed[k] = value + np.int64(np.floor(h[i, output] * per_h + b))
    return n
