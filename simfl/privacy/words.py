"""Gradients and hessians summed onto rows, as words: a gradient in the upper bits of each, a hessian in the lower.

One addition adds both, modulo 2 ** (8 * bytes), in which masks cancel. Every party cuts its sums off at its part of the
range, so that the total of all parties fits.

Words have 8 bytes, or 7 where three are fine enough for hessians: numbers are rounded to the nearest. Where leaf values
come from exact sums of all parties, sums onto rows only have to find splits. Then 4 or 3 bytes do, if a number is
rounded at random, up or down, so that it is right on average (quantised training, arXiv 2207.09682). What decides
follows from the seed of the training and from the rows that were added, and not from the order in which a builder's
rows stand, which blind matching shuffles: the same training gives the same bits everywhere. Not in the paper.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from simfl.arrays import Doubles, Longs
from simfl.preprocessing.splitmix import RowTokens, row_token
from simfl.privacy.exact import FINEST

Words = npt.NDArray[np.uint64]
Pair = tuple[int, int]  # of gradients and of hessians


class Form(NamedTuple):
    """What the bits of a word mean."""

    n_bytes: int
    gradient_bits: int  # beside the sign
    hessian_bits: int  # above them the gradient begins
    spare: int  # how many more bits the builder's own numbers have

    @property
    def at_random(self) -> bool:
        """Whether numbers are rounded at random."""
        return self.spare > 0


FORMS: Final = {
    form.n_bytes: form
    for form in (
        Form(3, 12, 11, spare=16),
        Form(4, 15, 16, spare=16),
        Form(7, 31, 23, spare=0),
        Form(8, 31, 31, spare=0),
    )
}


class Extremes(NamedTuple):
    """The smallest and the largest of some sums of gradients, and the largest of those of hessians."""

    low: int
    high: int
    hessian: int


def most_steps(form: Form, n_parties: int) -> Pair:
    """How many steps of the grid one party's sums can have, so that those of all fit.

    >>> most_steps(FORMS[4], 10)
    (3276, 6553)
    """
    return (2**form.gradient_bits - 1) // n_parties, (2**form.hessian_bits - 1) // n_parties


def to_words(sums: Doubles, tokens: RowTokens, exponents: Pair, form: Form, n_parties: int = 1) -> Words:
    """Round the sums (rows, outputs, 2) to the grid: the words of `n_parties` can be added up.

    `tokens`: a random number per row, which decides where rounding is at random. A sum beyond its bounds is cut off: a
    wrong digit is better than a sum that wraps around.

    >>> words = to_words(np.array([[[-1.5, 0.25]]]), np.zeros(1, dtype=np.uint64), (-2, -4), FORMS[8])
    >>> split(words, FORMS[8])
    (array([-6]), array([4]))
    """
    words = np.empty(sums.shape[:2], dtype=np.uint64)
    _to_words(sums, tokens, *_grid(exponents, form, n_parties), form.hessian_bits, form.at_random, words)
    return words.ravel()


@lru_cache(maxsize=8)  # asked for with every party's sums of every tree
def _grid(exponents: Pair, form: Form, n_parties: int) -> tuple[Doubles, Doubles]:
    """Of gradients and hessians: how many steps of the grid one is, and how many one party's sums can have."""
    scales: Doubles = np.ldexp(1.0, -np.maximum(exponents, FINEST))
    return scales, np.array(most_steps(form, n_parties), dtype=np.float64)


def to_bytes(words: Words, n_bytes: int) -> bytes:
    r"""The low bytes of each word, the lowest first.

    >>> to_bytes(np.array([1, 2**64 - 1], dtype=np.uint64), 3)
    b'\x01\x00\x00\xff\xff\xff'
    """
    return words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :n_bytes].tobytes()


def add_bytes(total: Words, data: bytes, form: Form, sign: int = 1) -> Extremes:
    """Add (or subtract) the words behind these bytes; returns the extremes of the sums in them."""
    found = np.zeros(3, dtype=np.int64)
    _add(total, np.frombuffer(data, dtype=np.uint8), form.n_bytes, form.hessian_bits, sign, found)
    return Extremes(*found.tolist())


def from_bytes(data: bytes, n_bytes: int) -> Words:
    """The words behind these bytes."""
    words = np.zeros(len(data) // n_bytes, dtype=np.uint64)
    add_bytes(words, data, Form(n_bytes, 0, 8, spare=0))
    return words


def split(words: Words, form: Form) -> tuple[Longs, Longs]:
    """The gradients and hessians in words, whatever is in the bytes above."""
    above = 64 - 8 * form.n_bytes
    whole = words.view(np.int64) << above >> above
    return whole >> form.hessian_bits, whole & (2**form.hessian_bits - 1)


def can_be(found: Extremes, most: Sequence[int]) -> bool:
    """Whether these sums are within the bounds of one party, or of several."""
    return -most[0] <= found.low and found.high <= most[0] and found.hessian <= most[1]


@njit(nogil=True, cache=True)
def _to_words(sums, tokens, scales, most, hessian_bits, at_random, words):  # type: ignore[no-untyped-def]
    for row in range(words.shape[0]):
        for output in range(words.shape[1]):
            g, h = sums[row, output, 0] * scales[0], sums[row, output, 1] * scales[1]
            if at_random:
                token = row_token(tokens[row], output)  # one half of it for each
                g = np.floor(g + (token >> np.uint64(32)) * 2.0**-32)
                h = np.floor(h + (token & np.uint64(0xFFFFFFFF)) * 2.0**-32)
            else:
                g, h = np.rint(g), np.rint(h)
            g = most[0] if g > most[0] else -most[0] if g < -most[0] else g
            h = most[1] if h > most[1] else h
            words[row, output] = (np.uint64(np.int64(g)) << np.uint64(hessian_bits)) + np.uint64(np.int64(h))


@njit(nogil=True, cache=True)
def _add(total, data, n_bytes, hessian_bits, sign, found):  # type: ignore[no-untyped-def]
    low, high, most = np.int64(0), np.int64(0), np.int64(0)
    above, below = np.uint64(64 - 8 * n_bytes), (np.int64(1) << np.int64(hessian_bits)) - np.int64(1)
    for i in range(len(total)):
        word, at = np.uint64(0), n_bytes * i
        for byte in range(n_bytes):
            word |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
        whole = np.int64(word << above) >> np.int64(above)
        g, h = whole >> np.int64(hessian_bits), whole & below
        low, high, most = g if g < low else low, g if g > high else high, h if h > most else most
        total[i] += np.uint64(sign) * word
    found[0], found[1], found[2] = low, high, most
