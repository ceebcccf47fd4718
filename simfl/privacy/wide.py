"""Wide numbers: real numbers as integers of 512 bits, which can be added up exactly without agreeing on a scale first.

For the few sums whose size nobody knows beforehand: moments of features, sums of labels, metrics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from simfl.arrays import AnyArray

WIDE_WORDS = 8  # of 64 bits
WIDE_BITS = 64 * WIDE_WORDS
FINEST = -224  # the resolution: squares of float32 and their sums fit, from the smallest to the largest


def to_wide(values: Iterable[float]) -> list[int]:
    """Real numbers as integers of 512 bits, exact over the whole range of what is summed here.

    >>> from_wide(to_wide([0.1, -2.5e40]))
    [0.1, -2.5e+40]
    """
    return [_scaled(value) for value in values]


def _scaled(value: float) -> int:
    fraction, exponent = math.frexp(value)
    whole, shift = int(fraction * 2.0**53), exponent - 53 - FINEST
    return whole << shift if shift >= 0 else whole >> -shift


def from_wide(numbers: Iterable[int]) -> list[float]:
    """Back to real numbers, correctly rounded."""
    half, whole = 1 << (WIDE_BITS - 1), 1 << WIDE_BITS
    return [((n + half) % whole - half) / (1 << -FINEST) for n in numbers]


def to_words(numbers: Sequence[int]) -> AnyArray:
    """Wide numbers as words of 64 bits, for a message."""
    data = b"".join((n % (1 << WIDE_BITS)).to_bytes(WIDE_BITS // 8, "little") for n in numbers)
    return np.frombuffer(data, dtype="<u8").reshape(len(numbers), WIDE_WORDS)


def from_words(words: AnyArray) -> list[int]:
    """The wide numbers behind the words."""
    data, size = np.ascontiguousarray(words, dtype="<u8").tobytes(), WIDE_BITS // 8
    return [int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size)]


def wide_total(vectors: Iterable[Sequence[int]]) -> list[float]:
    """The sum of vectors of wide numbers, as real numbers."""
    return from_wide([sum(column) for column in zip(*vectors, strict=True)])
