"""Numbers that can be added up without rounding: everything that parties sum travels as integers.

Integer sums do not depend on the order of the parties, and histograms of such numbers are exact in double precision.
So the same seed gives the same model, whatever the threads or the order of replies.

Long vectors (gradients onto similar rows, gradients per leaf) are in fixed point with a public exponent: the resolution
is 2 ** exponent. A party first says how large its sums can become, to a power of two (`power_above`); the hub gives out
the exponent (`resolution`) under which the total over all parties cannot overflow. That must hold for sure, because
masked sums are taken modulo 2 ** 24, 2 ** 32 or 2 ** 64.

The few sums whose size nobody knows beforehand (moments of features, sums of labels, metrics) are doubles, added up
exactly and rounded once. Masked, they are wide: integers of 512 bits, which hold any sum of float32 values and their
squares without agreeing on a scale first. Both give the same total.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from simfl.arrays import Doubles, Ints, Longs, read_only

ROW_BITS = 31  # sums onto rows: as wide as the paper's float
SHORT_BITS = 23  # three bytes: for hessians, as long as that is fine enough
FINE_ENOUGH = 2.0**-10  # of the largest hessian of a row
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
    """The power of two above a bound: all that others have to know of it.

    >>> power_above(5.0), power_above(0.0)
    (8.0, 0.0)
    """
    return math.ldexp(1.0, math.frexp(bound)[1]) if bound > 0 else 0.0


def int_type(bits: int) -> Any:
    """The type in which numbers of this many bits and a sign travel.

    >>> int_type(31), int_type(23)
    ('i4', 'i3')
    """
    return "i3" if bits == SHORT_BITS else "i4"


def to_row_ints(values: Doubles, exponent: int, bits: int, n_parties: int = 1) -> Ints:
    """Round to the grid, as int32: the numbers of `n_parties` can be added up within `bits`."""
    ints: Ints = _encode(values, exponent, bits, np.int32, n_parties)
    return ints


def to_leaf_ints(values: Doubles, exponent: int, n_parties: int = 1) -> Longs:
    """Round to the grid, as int64: the numbers of `n_parties` can be added up."""
    ints: Longs = _encode(values, exponent, LEAF_BITS, np.int64, n_parties)
    return ints


def from_ints(values: npt.NDArray[Any], exponent: int) -> Doubles:
    """Back to real numbers.

    >>> from_ints(to_row_ints(np.array([0.25, -1.5]), -20, bits=31), -20)
    array([ 0.25, -1.5 ])
    """
    return np.ldexp(values.astype(np.float64), exponent)


def to_three_bytes(values: Ints) -> npt.NDArray[np.uint8]:
    """The low three bytes of each number, the lowest first: the number modulo 2 ** 24.

    >>> to_three_bytes(np.array([1, -1], dtype=np.int32))
    array([  1,   0,   0, 255, 255, 255], dtype=uint8)
    """
    data = np.empty(3 * len(values), dtype=np.uint8)
    _cut(read_only(values), data)
    return data


def from_three_bytes(data: npt.NDArray[np.uint8]) -> Ints:
    """Back to numbers from -2 ** 23 to 2 ** 23 - 1.

    >>> from_three_bytes(np.array([1, 0, 0, 255, 255, 255], dtype=np.uint8))
    array([ 1, -1], dtype=int32)
    """
    values = np.empty(len(data) // 3, dtype=np.int32)
    _extend(read_only(data), values)
    return values


def fold(values: Ints, bits: int) -> Ints:
    """Sums that were taken modulo a power of two, as the signed numbers of `bits` that they stand for.

    >>> fold(np.array([2**24 - 1, 5], dtype=np.int32), bits=23)
    array([-1,  5], dtype=int32)
    """
    spare = 31 - bits
    return values if spare == 0 else values << spare >> spare


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


def add_up(total: npt.NDArray[np.uint32], values: Ints) -> int:
    """Add integers to a total, modulo 2 ** 32. Returns the largest of them, whatever its sign.

    >>> total = np.zeros(2, dtype=np.uint32)
    >>> add_up(total, np.array([5, -7], dtype=np.int32)), total.view(np.int32)
    (7, array([ 5, -7], dtype=int32))
    """
    return int(_add_up(total.ravel(), read_only(values.ravel())))


def _encode(values: Doubles, exponent: int, bits: int, dtype: Any, n_parties: int) -> Any:
    # A value beyond its announced bound is cut off: a wrong digit is better than a sum that wraps around.
    largest = math.floor((2**bits - 2 ** max(bits - 52, 0)) / n_parties)
    encoded = np.empty(values.shape, dtype=np.int64)
    _round(values.ravel(), math.ldexp(1.0, -max(exponent, FINEST)), float(largest), encoded.ravel())
    return encoded.astype(dtype, copy=False)


# --- the kernels, each for one kind of array -------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _round(values, scale, largest, out):  # type: ignore[no-untyped-def]
    for i in range(len(values)):
        steps = np.rint(values[i] * scale)
        out[i] = largest if steps > largest else -largest if steps < -largest else steps


@njit(nogil=True, cache=True)
def _add_up(total, values):  # type: ignore[no-untyped-def]
    least, most = np.int64(0), np.int64(0)
    for i in range(len(values)):
        value = np.int64(values[i])
        least, most = value if value < least else least, value if value > most else most
        total[i] += np.uint32(values[i])
    return most if most > -least else -least


@njit(nogil=True, cache=True)
def _cut(values, data):  # type: ignore[no-untyped-def]
    for i in range(len(values)):
        data[3 * i] = values[i] & 255
        data[3 * i + 1] = (values[i] >> 8) & 255
        data[3 * i + 2] = (values[i] >> 16) & 255


@njit(nogil=True, cache=True)
def _extend(data, values):  # type: ignore[no-untyped-def]
    for i in range(len(values)):
        low = np.int32(data[3 * i]) | (np.int32(data[3 * i + 1]) << 8)
        values[i] = low | (np.int32(np.int8(data[3 * i + 2])) << 16)
