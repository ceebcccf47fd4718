"""Whose turn it is to build a tree, and how many trees are grown at once."""

from collections.abc import Iterator, Sequence

MOST_LOCKSTEP = 8  # more trees from the same gradients would not pay


def builder_of(turn: int, parties: Sequence[str]) -> str:
    """Each party in turn, as in the authors' program.

    >>> [builder_of(turn, ["a", "b", "c"]) for turn in range(5)]
    ['a', 'b', 'c', 'a', 'b']
    """
    return parties[turn % len(parties)]


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
