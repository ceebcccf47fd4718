"""Which columns are worth asking about: what they have gained so far, by the columns above them on the path."""

import numpy as np
from numba import njit

from simfl.arrays import Doubles, Floats
from simfl.training.trees import LEAF, Tree

DECAY = 0.95  # per tree
MOST_PAIRS = 1024  # with more columns only the gain of each column alone is kept


class FeatureWeights:
    """Gains that fade. `matrix[i, j]`: of column j below a split on i; the last row: of j anywhere."""

    def __init__(self, n_features: int) -> None:
        self.matrix: Doubles = np.zeros((n_features + 1 if n_features <= MOST_PAIRS else 1, n_features))

    def add(self, tree: Tree, gain: Floats) -> None:
        """A finished tree joins the model."""
        self.matrix *= DECAY
        _add_gains(tree.feature, tree.left, gain, self.matrix, np.empty(len(tree.feature), np.int32))


@njit(nogil=True, cache=True)
def _add_gains(feature, left, gain, matrix, parent):  # type: ignore[no-untyped-def]
    parent[0], last = -1, len(matrix) - 1
    for node in range(len(feature)):
        j = feature[node]
        if j == LEAF:
            continue
        parent[left[node]] = parent[left[node] + 1] = node
        matrix[last, j] += gain[node]
        if last == 0:
            continue
        length, above = 0, parent[node]
        while above >= 0:
            length, above = length + 1, parent[above]
        above = parent[node]
        while above >= 0:
            matrix[feature[above], j] += np.float64(gain[node]) / length
            above = parent[above]
