"""What an attacker guesses, attribute by attribute, and how right a guess is.

An attribute is a number (one column) or a category (several yes/no columns). All values are on the attacker's scale: 0
is the mean of its rows, 1 their deviation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simfl.arrays import AnyArray, Doubles, Longs, Mask
from simfl.audit.views import Prior

CLOSE = 0.5  # a number counts as found within half a deviation


@dataclass(frozen=True)
class Attribute:
    """A number (one column), or a category (yes/no columns of which a row has at most one)."""

    columns: Longs
    categories: Doubles | None  # those that the attacker knows of; None: a number
    unit: Doubles  # the deviations of the columns

    def chosen(self, estimate: Doubles) -> Longs:
        """The category that an estimate of the columns is nearest to."""
        if self.categories is None:
            raise ValueError("A number has no categories to choose from.")
        gaps = [(((estimate - category) * self.unit) ** 2).sum(axis=1) for category in self.categories]
        return np.asarray(np.argmin(gaps, axis=0), dtype=np.int64)

    def is_right(self, estimate: Doubles, truth: Doubles) -> Mask:
        """Per row: whether its category is found, or its number to within half a deviation."""
        if self.categories is None:
            return np.asarray(np.abs(estimate - truth)[:, 0] <= CLOSE)
        return np.asarray((np.abs(self.categories[self.chosen(estimate)] - truth) < 1e-6).all(axis=1))


def attributes_of(prior: Prior, groups: Sequence[Longs]) -> list[Attribute]:
    """The attributes that vary, from groups of columns (see `one_hot_groups`)."""
    found = []
    for group in groups:
        columns = group[prior.varies[group]]
        if len(columns) == 0:
            continue
        categories = np.unique(prior.rows[:, columns].round(9), axis=0)
        is_number = len(columns) == 1 and len(categories) > 2
        found.append(Attribute(columns, None if is_number else categories, prior.deviation[columns]))
    return found


def share_right(estimate: Doubles, truth: Doubles, attributes: Sequence[Attribute]) -> Doubles:
    """Per row: the share of attributes that an estimate gets right."""
    marks = [a.is_right(estimate[:, a.columns], truth[:, a.columns]) for a in attributes]
    return np.asarray(np.mean(marks, axis=0), dtype=np.float64)


def decide_categories(estimate: Doubles, attributes: Sequence[Attribute]) -> Doubles:
    """The estimate with every category decided."""
    rows = estimate.copy()
    for a in attributes:
        if a.categories is not None:
            rows[:, a.columns] = a.categories[a.chosen(estimate[:, a.columns])]
    return rows


def explained(estimate: Doubles, truth: Doubles, columns: AnyArray) -> float:
    """R2 over all values: 0 is guessing the mean, 1 is the truth."""
    error = ((estimate - truth) ** 2)[:, columns].sum()
    total = (truth**2)[:, columns].sum()
    return float(1 - error / total) if total > 0 else 0.0


def one_hot_groups(X: Doubles) -> list[Longs]:
    """The columns that belong to one attribute: neighbouring yes/no columns of which a row has at most one.

    >>> [g.tolist() for g in one_hot_groups(np.array([[1.0, 0, 5, 1, 0], [0, 1, 7, 1, 0], [0, 1, 7, 0, 1]]))]
    [[0, 1], [2], [3, 4]]
    """
    groups: list[list[int]] = []
    taken = np.zeros(len(X), dtype=bool)
    open_group = False
    for column in range(X.shape[1]):
        yes_no = bool(np.isin(X[:, column], (0.0, 1.0)).all())
        ones = X[:, column] == 1.0
        if yes_no and open_group and not (taken & ones).any():
            groups[-1].append(column)
            taken |= ones
        else:
            groups.append([column])
            taken, open_group = ones, yes_no
    return [np.array(group) for group in groups]
