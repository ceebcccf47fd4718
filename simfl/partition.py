"""Ways to split one table into parties, as in the paper's experiments. Each returns the row numbers of every party.

parts = simfl.partition.unbalanced(y, 4, theta=0.8, seed=0)
parties = [simfl.Party(f"party {i}", X[rows], y[rows]) for i, rows in enumerate(parts)]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simfl.arrays import AnyArray
from simfl.errors import DataError, ParameterError


def balanced(n_rows: int | Any, n_parties: int, seed: int = 0) -> list[AnyArray]:
    """Shuffle and split equally. Takes the number of rows, or anything that has as many.

    >>> [len(rows) for rows in balanced(10, 3)]
    [4, 3, 3]
    """
    n = int(n_rows) if isinstance(n_rows, int | np.integer) else len(n_rows)
    _check_parties(n_parties, n)
    return [np.sort(part) for part in np.array_split(np.random.default_rng(seed).permutation(n), n_parties)]


def unbalanced(y: Any, n_parties: int, theta: float = 0.8, seed: int = 0) -> list[AnyArray]:
    """The paper's skewed split of two classes.

    `theta` of the first class with `1 - theta` of the second form one half, the rest the other; each half is then
    split equally at random, into half of the parties each.

    >>> y = np.array([0] * 100 + [1] * 100)
    >>> [float(y[rows].mean()) for rows in unbalanced(y, 2, theta=0.8)]
    [0.2, 0.8]
    """
    labels = np.asarray(y)
    classes, numbers = np.unique(labels, return_inverse=True)
    if len(classes) != 2:
        fact = f"The unbalanced partition is made for two classes; here are {len(classes)}"
        raise DataError(f"{fact}. Split balanced or by a column.")
    if not 0 < theta < 1:
        raise ParameterError(f"theta={theta} is not possible: it must lie between 0 and 1.")
    if n_parties % 2:
        raise ParameterError(f"n_parties={n_parties} is not possible: the unbalanced partition needs an even number.")
    _check_parties(n_parties, len(labels))
    rng = np.random.default_rng(seed)
    shuffled = [rng.permutation(np.flatnonzero(numbers == number)) for number in (0, 1)]
    cut = [np.split(rows, [round(s * len(rows))]) for rows, s in zip(shuffled, (theta, 1 - theta), strict=True)]
    halves = [rng.permutation(np.concatenate(half)) for half in zip(*cut, strict=True)]
    parts = [np.sort(part) for half in halves for part in np.array_split(half, n_parties // 2)]
    if not all(len(part) for part in parts):
        raise ParameterError(f"{len(labels)} rows are too few for {n_parties} parties at theta={theta}.")
    return parts


def by_column(values: Any) -> dict[str, AnyArray]:
    """One party for every distinct value of a column, under that value as its name.

    >>> by_column(["north", "south", "north"])
    {'north': array([0, 2]), 'south': array([1])}
    """
    names = np.asarray(values).astype(str)
    return {str(name): np.flatnonzero(names == name) for name in np.unique(names)}


def _check_parties(n_parties: int, n_rows: int) -> None:
    if not 1 <= n_parties <= n_rows:
        raise ParameterError(f"n_parties={n_parties} is not possible with {n_rows} rows.")
