"""Numbers that can be added up without rounding: everything that parties sum travels as integers.

Integer sums do not depend on the order of the parties, and histograms of such numbers are exact in double precision.
So the same seed gives the same model, whatever the threads or the order of replies.

Long vectors (gradients onto similar rows, gradients per leaf) are in fixed point with a public exponent: the resolution
is 2 ** exponent. A party first says how large its sums can become, to a power of two (`power_above`); the hub gives out
the exponent (`resolution`) under which the total over all parties cannot overflow. That must hold for sure, because
masked sums are taken modulo a power of two. Sums onto rows are in `words.py`.

The few sums whose size nobody knows beforehand (moments of features, sums of labels, metrics) are doubles, added up
exactly and rounded once. Masked, they are wide: integers of 512 bits, which hold any sum of float32 values and their
squares without agreeing on a scale first. Both give the same total.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from simfl.arrays import Doubles, Longs

LEAF_BITS = 62  # sums per leaf: int64
FINEST = -1000  # no finer grid: its inverse must still be a number
WIDE_BYTES = 64
_WIDE_RANGE = 1 << 8 * WIDE_BYTES
WIDE_UNIT = -224  # the exponent of wide numbers: squares of float32 and their sums fit
WIDEST = 2.0 ** (8 * WIDE_BYTES - 1 + WIDE_UNIT)  # wide numbers are smaller than this


def resolution(bounds: Iterable[float], bits: int) -> int:
    """The smallest exponent under which the total of one number per party, all within the bounds, fits into `bits`.

    >>> resolution([3.0, 4.0], bits=31)
    -27
    """
    each = list(bounds)
    total = max(each, default=0.0) * len(each)
    return max((math.frexp(total)[1] if total > 0 else 0) - bits, FINEST)


def power_above(bound: float) -> float:
    """The smallest power of two that is not below a bound: all that others have to know of it.

    >>> power_above(5.0), power_above(1.0), power_above(0.0)
    (8.0, 1.0, 0.0)
    """
    fraction, exponent = math.frexp(bound)
    return math.ldexp(1.0, exponent - (fraction == 0.5)) if bound > 0 else 0.0


def to_leaf_ints(values: Doubles, exponent: int, n_parties: int = 1) -> Longs:
    """Round to the grid, as int64: the numbers of `n_parties` can be added up."""
    # A value beyond its announced bound is cut off: a wrong digit is better than a sum that wraps around.
    largest = math.floor((2**LEAF_BITS - 2 ** (LEAF_BITS - 52)) / n_parties)
    steps = np.rint(values * math.ldexp(1.0, -max(exponent, FINEST)))
    return np.clip(steps, -float(largest), float(largest)).astype(np.int64)


def from_ints(values: npt.NDArray[Any], exponent: int) -> Doubles:
    """Back to real numbers.

    >>> from_ints(to_leaf_ints(np.array([0.25, -1.5]), -20), -20)
    array([ 0.25, -1.5 ])
    """
    return np.ldexp(values.astype(np.float64), exponent)


# --- wide numbers ----------------------------------------------------------------------------------------------------


def to_wide(values: Iterable[float]) -> list[int]:
    """Real numbers as integers of 512 bits, exact over the whole range of what is summed here.

    >>> from_wide(to_wide([0.1, -2.5e40]))
    [0.1, -2.5e+40]
    """
    return [_scaled(value) for value in values]


def _scaled(value: float) -> int:
    fraction, exponent = math.frexp(value)
    whole, shift = int(fraction * 2.0**53), exponent - 53 - WIDE_UNIT
    return whole << shift if shift >= 0 else whole >> -shift


def from_wide(numbers: Iterable[int]) -> list[float]:
    """Back to real numbers, correctly rounded."""
    half = _WIDE_RANGE >> 1
    return [((n + half) % _WIDE_RANGE - half) / (1 << -WIDE_UNIT) for n in numbers]


def wide_to_bytes(numbers: Iterable[int]) -> bytes:
    """Wide numbers modulo 2 ** 512, for a message."""
    return b"".join([(n % _WIDE_RANGE).to_bytes(WIDE_BYTES, "little") for n in numbers])


def wide_from_bytes(data: bytes) -> list[int]:
    """The wide numbers behind the bytes."""
    return [int.from_bytes(data[i : i + WIDE_BYTES], "little") for i in range(0, len(data), WIDE_BYTES)]


def wide_total(vectors: Iterable[Sequence[int]]) -> list[float]:
    """The sum of vectors of wide numbers, as real numbers."""
    return from_wide([sum(column) for column in zip(*vectors, strict=True)])
