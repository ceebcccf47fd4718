"""Columns laid out for hashing, the step before scaling: categories become 0/1 columns. Not in the paper."""

import numpy as np

from simfl.arrays import Ints, Table


class Expansion:
    """How columns are laid out: a number stays one column, a category gets one per level.

    `groups` says which columns belong together. On a common scale each group varies as much as one number does, so a
    category of ten levels does not outweigh ten numbers.
    """

    def __init__(self, n_levels: Ints) -> None:
        self.n_levels = n_levels
        self.groups = np.repeat(np.arange(len(n_levels)), np.maximum(n_levels, 1))

    @property
    def width(self) -> int:
        """The number of columns that are hashed."""
        return len(self.groups)

    def expand(self, X: Table) -> Table:
        """The rows with a 0/1 column for every level of a category; a missing category is missing in all of them.

        >>> Expansion(np.array([0, 2])).expand(np.array([[7, 1], [8, np.nan]], dtype=np.float32))
        array([[ 7.,  0.,  1.],
               [ 8., nan, nan]], dtype=float32)
        """
        if not self.n_levels.any():
            return X
        wide = np.empty((X.shape[0], self.width), dtype=np.float32)
        starts = np.concatenate([[0], np.cumsum(np.maximum(self.n_levels, 1))])
        for column, n in enumerate(self.n_levels):
            values = X[:, column]
            if n == 0:
                wide[:, starts[column]] = values
            else:
                hot = (values[:, None] == np.arange(n)).astype(np.float32)
                hot[np.isnan(values)] = np.nan
                wide[:, starts[column] : starts[column + 1]] = hot
        return wide
