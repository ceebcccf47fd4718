"""Which rows of a party are held out: a random share of them, of each class the same.

As scikit-learn's `train_test_split` does it, to the row, without its second of imports.
"""

from __future__ import annotations

import math

import numpy as np

from simfl.arrays import AnyArray, Longs


def hold_out(n: int, share: float, seed: int, classes: AnyArray | None = None) -> tuple[Longs, Longs]:
    """The places of the rows to train on, and of those held out, both in ascending order.

    >>> train, test = hold_out(8, 0.25, seed=0, classes=np.array(list("aaaabbbb")))
    >>> train.tolist(), test.tolist()
    ([1, 2, 3, 4, 5, 6], [0, 7])
    """
    n_test = math.ceil(share * n)
    random = np.random.RandomState(seed)
    if classes is None:
        order = random.permutation(n)
        return np.sort(order[n_test:]), np.sort(order[:n_test])
    _, place, counts = np.unique(classes, return_inverse=True, return_counts=True)
    rows = np.split(np.argsort(place, kind="stable"), np.cumsum(counts)[:-1])
    n_train_of = _shared_out(n - n_test, counts, random)
    n_test_of = _shared_out(n_test, counts - n_train_of, random)
    train, test = [], []
    for own, first, second in zip(rows, n_train_of, n_test_of, strict=True):
        shuffled = own[random.permutation(len(own))]
        train.append(shuffled[:first])
        test.append(shuffled[first : first + second])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


def _shared_out(n: int, counts: AnyArray, random: np.random.RandomState) -> Longs:
    """So many draws in proportion to these counts; what is left over goes to the largest remainders, ties at random."""
    exact = counts / counts.sum() * n
    found: Longs = np.floor(exact).astype(np.int64)
    left, remainder = int(n - found.sum()), exact - found
    for value in np.unique(remainder)[::-1]:
        if left == 0:
            break
        ties = np.flatnonzero(remainder == value)
        chosen = random.choice(ties, size=min(len(ties), left), replace=False)
        found[chosen] += 1
        left -= len(chosen)
    return found
