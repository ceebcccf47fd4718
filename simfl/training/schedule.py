"""Whose turn it is to build a tree, and how many trees are grown at once."""

from collections.abc import Iterator, Sequence


def builder_of(turn: int, parties: Sequence[str]) -> str:
    """Each party in turn, as in the authors' program.

    >>> [builder_of(turn, ["a", "b", "c"]) for turn in range(5)]
    ['a', 'b', 'c', 'a', 'b']
    """
    return parties[turn % len(parties)]


def batch_size(n_before: int, most: int) -> int:
    """How many rounds of trees grown together share their gradients: at first one, and never more than came before.

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
