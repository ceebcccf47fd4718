"""Numbers that can be added up without rounding: fixed point.

Everything that parties sum (gradients onto similar rows, gradients per leaf) travels as integers. Integer sums do
not depend on the order of the parties, and histograms of such numbers are exact in double precision, so that the
same seed gives the same model, whatever the threads or the order of replies.

Each vector has a public exponent: the resolution is 2 ** exponent. A party first says how large its sums can become
(`bound`); the hub adds these up and gives out the exponent (`resolution`) under which the total cannot overflow.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from simfl.arrays import Doubles, Ints, Longs

ROW_BITS = 31  # sums onto rows: int32, as wide as the paper's float
LEAF_BITS = 62  # sums per leaf: int64
FINEST = -1000  # no finer grid: its inverse is to be a number still


def resolution(bounds: Iterable[float], bits: int) -> int:
    """The smallest exponent under which the sum of numbers within these bounds fits into so many bits.

    >>> resolution([3.0, 4.0], bits=31)
    -28
    """
    total = math.fsum(bounds)
    return max((math.frexp(total)[1] if total > 0 else 0) - bits, FINEST)


def to_row_ints(values: Doubles, exponent: int) -> Ints:
    """Round to the grid, as int32."""
    ints: Ints = _encode(values, exponent, ROW_BITS, np.int32)
    return ints


def to_leaf_ints(values: Doubles, exponent: int) -> Longs:
    """Round to the grid, as int64."""
    ints: Longs = _encode(values, exponent, LEAF_BITS, np.int64)
    return ints


def from_ints(values: npt.NDArray[Any], exponent: int) -> Doubles:
    """Back to real numbers.

    >>> from_ints(to_row_ints(np.array([0.25, -1.5]), -20), -20)
    array([ 0.25, -1.5 ])
    """
    return np.ldexp(values.astype(np.float64), exponent)


def _encode(values: Doubles, exponent: int, bits: int, dtype: Any) -> Any:
    # A value beyond its announced bound is cut off: a wrong digit is better than a sum that wraps around.
    largest = float(2**bits - 2 ** max(bits - 52, 0))
    encoded = np.empty(values.shape, dtype=dtype)
    _round(values.ravel(), math.ldexp(1.0, -max(exponent, FINEST)), largest, encoded.ravel())
    return encoded


@njit(nogil=True, cache=True)
def _round(values, scale, largest, out):  # type: ignore[no-untyped-def]
    for i in range(len(values)):
        out[i] = max(min(np.rint(values[i] * scale), largest), -largest)
