"""SplitMix64: random numbers that are a function of a key and a row number alone.

Every party that knows the key draws the same numbers, in any order and on any number of threads. The functions
take single numbers inside kernels and whole arrays outside. Numba keeps compiled kernels by the file they are in:
after a change here, delete the `__pycache__` folders of `preprocessing`, `training` and `joint`.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

RowTokens = NDArray[np.uint64]  # one random number per row

STEP = np.uint64(0x9E3779B97F4A7C15)


@njit(nogil=True, cache=True, inline="always")
def mix(word):  # type: ignore[no-untyped-def]
    """64 bits, shuffled so that neighbouring words become unrelated ones."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@njit(nogil=True, cache=True, inline="always")
def row_token(key, row):  # type: ignore[no-untyped-def]
    """The random number of one row under a key."""
    return mix(np.uint64(row + 1) * STEP + key)


@njit(nogil=True, cache=True, inline="always")
def below(token, n):  # type: ignore[no-untyped-def]
    """A whole number below n, from the upper half of a random one."""
    return (token >> np.uint64(32)) * np.uint64(n) >> np.uint64(32)


def row_tokens(key: int, n_rows: int) -> RowTokens:
    """One random number per row; different keys give unrelated ones.

    >>> bool(row_tokens(7, 3)[2] == row_token(np.uint64(7), 2))
    True
    """
    tokens: RowTokens = mix.py_func(np.arange(1, n_rows + 1, dtype=np.uint64) * STEP + np.uint64(key))  # type: ignore[no-untyped-call]
    return tokens
