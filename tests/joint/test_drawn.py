"""Trees that are drawn, not grown: what the first look at the columns has, and what every drawn tree keeps to."""

import numpy as np
import pytest

from simfl.joint.drawn import Columns, draw, draw_alone
from simfl.training.traversal import leaf_numbers

POINTS = np.arange(15, dtype=np.float32)


def columns_of(n_levels):
    """A column of numbers, and one with so many levels."""
    return Columns([POINTS, np.empty(0, np.float32)], np.array([0, n_levels], np.int32))


def leaves_of(tree, j, values):
    X = np.zeros((len(values), 2), np.float32)
    X[:, j] = values
    return leaf_numbers(tree, X)


def test_the_first_look_at_numbers_has_four_cells_of_as_many_cut_points():
    leaves = leaves_of(draw_alone(columns_of(3), 0, "seed"), 0, np.arange(-0.5, 15))
    assert sorted(np.bincount(leaves).tolist()) == [4, 4, 4, 4]


@pytest.mark.parametrize(("n_levels", "n_leaves"), [(1, 1), (2, 2), (12, 12), (32, 32), (100, 32)])
def test_the_first_look_at_a_category_has_a_cell_for_every_level(n_levels, n_leaves):
    tree = draw_alone(columns_of(n_levels), 1, "seed")
    leaves = leaves_of(tree, 1, np.arange(n_levels))
    assert tree.n_leaves == len({*leaves.tolist()}) == n_leaves


def test_every_split_of_a_drawn_tree_divides_its_box():
    """Rows of all cells and levels reach every leaf: none is drawn for nothing."""
    columns = columns_of(5)
    X = np.array([(cut - 0.5, level) for cut in range(16) for level in range(5)], np.float32)
    for seed in range(20):
        tree = draw(columns, 4, seed)
        assert len({*leaf_numbers(tree, X).tolist()}) == tree.n_leaves
