"""Noise of whole numbers: the discrete Gaussian, drawn without a floating-point number.

Floating-point noise gives itself away by its last digits. Here every value is an integer, found by looking up random
bits of the operating system (stretched by ChaCha20) in a table of exact cumulative weights. The weights are those of
Canonne, Kamath and Steinke (2020): an integer k has exp(-k**2 / (2 s**2)).

One table serves all: a value is x + STRETCH * y, with x and y from the table. Such a sum is again a discrete Gaussian,
of the variance `VARIANCE`, up to a factor of 1 +- exp(-300), because the integers y that lead to the same value have a
spread of four (Micciancio and Walter 2017). Whoever wants other noise chooses the unit of what it is added to.

What the accountant may assume (`privacy/guarantee.py` does):

- *As good as a continuous Gaussian.* The discrete Gaussian of variance v is, up to such a factor, what one gets by
  adding continuous Gaussian noise of variance v - 16 and then rounding at random to integers. Rounding afterwards
  costs nothing, and 16 of `VARIANCE` is less than one part in 10**10. The same holds for the sum of several parties'
  noise.
- *The table's digits.* Weights are cut off after 128 bits and beyond 13.4 deviations: with a probability of at most
  `INEXACT` a value is another one than the exact law would give. That is added to delta.
"""

from __future__ import annotations

from decimal import Context, Decimal
from functools import lru_cache
from typing import Final

import numpy as np

from simfl.arrays import AnyArray, Longs
from simfl.privacy.tokens import keystream

BASE: Final = 2**11  # the deviation of the table
STRETCH: Final = 2**9
VARIANCE: Final = BASE**2 * (STRETCH**2 + 1)  # of a value
REACH: Final = 27_500  # of the table: beyond it is less than 2**-129
BITS: Final = 128
INEXACT: Final = 2.0**-110  # per value: two lookups of 55,001 weights, each cut off by less than 2**-128
_FINE: Final = 256  # bits while weights are computed
_WORDS: Final = 4  # of 64 bits per value: two for each lookup


def draw(key: bytes, n: int) -> Longs:
    """`n` values. The same key gives the same: a party draws a new one for everything that it sends."""
    words = np.frombuffer(keystream(key, 8 * _WORDS * n), dtype="<u8").reshape(n, _WORDS)
    return look_up(words[:, 0], words[:, 1]) + STRETCH * look_up(words[:, 2], words[:, 3])


def look_up(high: AnyArray, low: AnyArray) -> Longs:
    """Values of the table, from 128 random bits each."""
    above, below = table()
    place = np.searchsorted(above, high, side="left")  # the thresholds that are smaller already by their upper half
    for tied in np.flatnonzero(above[np.minimum(place, len(above) - 1)] == high):
        while place[tied] < len(above) and above[place[tied]] == high[tied] and below[place[tied]] <= low[tied]:
            place[tied] += 1
    values: Longs = place.astype(np.int64) - REACH
    return values


@lru_cache(maxsize=1)
def table() -> tuple[AnyArray, AnyArray]:
    """For every value but the last the share of random words below it and at it, in 2**128: upper and lower halves."""
    each = weights()
    total, running, thresholds = each[0] + 2 * sum(each[1:]), 0, []
    for k in range(-REACH, REACH):
        running += each[abs(k)]
        thresholds.append((running << BITS) // total)
    low = (1 << 64) - 1
    return (
        np.array([t >> 64 for t in thresholds], dtype=np.uint64),
        np.array([t & low for t in thresholds], dtype=np.uint64),
    )


def weights() -> list[int]:
    """exp(-k**2 / (2 BASE**2)) for k from 0 to REACH, in units of 2**-256.

    From one to the next it is multiplied by q**(2k + 1): whole numbers only, the same on every machine.
    """
    exact = Context(prec=90)
    q = int(exact.multiply(exact.exp(exact.divide(Decimal(-1), Decimal(2 * BASE**2))), Decimal(2**_FINE)))
    step, factor, found = q, q * q >> _FINE, [1 << _FINE]
    for _ in range(REACH):
        found.append(found[-1] * step >> _FINE)
        step = step * factor >> _FINE
    return found
