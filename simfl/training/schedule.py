"""Whose turn it is to build a tree."""

from collections.abc import Iterator, Sequence
from itertools import cycle

import numpy as np


def round_robin(n_rows: Sequence[int]) -> Iterator[list[int]]:
    """Each party in turn, as in the authors' program."""
    for builder in cycle(range(len(n_rows))):
        yield [builder]


def everybody(n_rows: Sequence[int]) -> Iterator[list[int]]:
    """All parties at once, from the same gradients. Not in the paper: fewer messages in sequence per tree."""
    while True:
        yield list(range(len(n_rows)))


def proportional(n_rows: Sequence[int]) -> Iterator[list[int]]:
    """Turns in proportion to the rows: always the party that is furthest behind its share.

    >>> from itertools import islice
    >>> [builder for (builder,) in islice(proportional([30, 10]), 8)]
    [0, 0, 1, 0, 0, 0, 1, 0]
    """
    share = np.array(n_rows) / sum(n_rows)
    built = np.zeros(len(share))
    while True:
        builder = int(np.argmax(share * (built.sum() + 1) - built))
        built[builder] += 1
        yield [builder]


TURNS = {"round_robin": round_robin, "proportional": proportional, "all": everybody}
