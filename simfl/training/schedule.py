"""Whose turn it is to build a tree, and how many trees are grown at once."""

from collections.abc import Iterator, Sequence
from itertools import cycle

import numpy as np

MOST_LOCKSTEP = 8  # more trees from the same gradients would not pay


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


def n_rounds(turns: str, n_trees: int, n_parties: int) -> int:
    """How many rounds a training has. Where all parties build at once, a round brings a tree from each.

    >>> n_rounds("round_robin", 10, 3), n_rounds("all", 10, 3)
    (10, 4)
    """
    return -(-n_trees // n_parties) if turns == "all" else n_trees


def shared_step(learning_rate: float, n_builders: int) -> np.float32:
    """The part of its own step that each of several trees takes that were built at once.

    They all point the same way. Together they go as far as n trees would go one after the other.

    >>> float(shared_step(0.1, 1)), round(float(shared_step(0.1, 10)), 2)
    (1.0, 0.65)
    """
    together = 1 - max(1 - learning_rate, 0.0) ** n_builders
    return np.float32(1.0 if n_builders == 1 else together / (learning_rate * n_builders))


def lockstep(learning_rate: float) -> int:
    """How many rounds of trees grown together share their gradients: together they step no further than 0.8.

    >>> [lockstep(rate) for rate in (0.01, 0.1, 0.3, 1.0)]
    [8, 8, 2, 1]
    """
    return max(1, min(MOST_LOCKSTEP, int(0.8 / learning_rate + 1e-9)))


def batch_size(n_before: int, most: int) -> int:
    """How many rounds are in the next batch: at first one, and never more than came before.

    Nothing is known about the columns before the first tree, and its gradients are the furthest from the last ones.
    """
    return min(most, max(n_before, 1))


def batches(most: int) -> Iterator[int]:
    """The sizes of all batches.

    >>> from itertools import islice
    >>> list(islice(batches(8), 6))
    [1, 1, 2, 4, 8, 8]
    """
    n = 0
    while True:
        size = batch_size(n, most)
        n += size
        yield size


TURNS = {"round_robin": round_robin, "proportional": proportional, "all": everybody}
