"""Noise of which every party adds a share.

A share is the difference of two negative binomial numbers. The others' shares together are a two-sided geometric number
(discrete Laplace): a party can subtract its own, so theirs must do. Shares are looked up in a table (the alias method):
a draw costs two look-ups, whatever the law.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit

from simfl.arrays import AnyArray, Longs
from simfl.joint._part import below, part, row_token

SURE = 40  # noise beyond SURE / epsilon does not occur
_HALF = 2.0**32


class Law(NamedTuple):
    """Numbers from 0 on, with their chances: number i, or `other[i]` where a random word is not below `limit[i]`."""

    limit: AnyArray  # uint64, up to 2**32
    other: AnyArray  # int64


@lru_cache(maxsize=32)
def law(n_parties: int, epsilon: float) -> Law:
    """Of each of the two numbers in a share: negative binomial, with a shape of one over the number of the others."""
    shape, stays = 1.0 / max(n_parties - 1, 1), math.exp(-epsilon)
    k = np.arange(1, math.ceil(SURE / epsilon) + 1)
    chance = np.cumprod(np.concatenate([[1.0], (k - 1 + shape) / k * stays]))
    limit, other = np.zeros(len(chance), np.uint64), np.zeros(len(chance), np.int64)
    _fill(chance / chance.sum() * len(chance), limit, other, np.empty_like(other), np.empty_like(other))
    return Law(limit, other)


def shares(law: Law, key: int, n: int) -> Longs:
    """A party's shares of the noise on n numbers. The same key gives the same ones."""
    out = np.zeros(n, np.uint32)
    add_shares(out, law, key)
    return out.view(np.int32).astype(np.int64)


def add_shares(out: AnyArray, law: Law, key: int) -> None:
    """The same, added to words of 32 bits."""
    _add_shares(out, law, np.uint64(key))


@njit(nogil=True, cache=True)
def _fill(chance, limit, other, small, large):  # type: ignore[no-untyped-def]
    """Chances (one on average): what one number has too much of is laid on another that has too little."""
    n_small, n_large = 0, 0
    for i in range(len(chance)):
        limit[i] = np.uint64(_HALF)
        if chance[i] < 1.0:
            small[n_small], n_small = i, n_small + 1
        else:
            large[n_large], n_large = i, n_large + 1
    while n_small > 0 and n_large > 0:
        n_small -= 1
        low, high = small[n_small], large[n_large - 1]
        limit[low], other[low] = np.uint64(chance[low] * _HALF), high
        chance[high] -= 1.0 - chance[low]
        if chance[high] < 1.0:
            n_large -= 1
            small[n_small], n_small = high, n_small + 1


@part
def share(law, key, number):  # type: ignore[no-untyped-def]
    """The share of one number."""
    limit, other = law
    total = np.int64(0)
    for sign in (1, -1):
        token = row_token(key, 2 * number + (1 if sign > 0 else 0))
        drawn = np.int64(below(token, len(limit)))
        total += sign * (drawn if (token & np.uint64(0xFFFFFFFF)) < limit[drawn] else other[drawn])
    return total


@njit(nogil=True, cache=True)
def _add_shares(out, law, key):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        out[i] += np.uint32(share(law, key, i))
