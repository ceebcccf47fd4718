"""Which splits are asked about: the same at every party, inside the node's box, and spread as the weights say."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simfl.joint.candidates import GROUPS, MOST_DRAWS, NONE, RUNNERS_UP, UNIFORM, Asked, Columns, Nodes, all_cuts, draw
from simfl.joint.constraints import allowed_columns
from simfl.joint.level import MISSING, MOST_CELLS
from tests.joint.machines import joint

NO_RUNNERS = np.full((1, RUNNERS_UP, 2), NONE, np.int32)


def columns_of(n_points=(), n_levels=(), missing=False):
    n = len(n_points) + len(n_levels)
    points = np.array([*n_points, *np.zeros(len(n_levels), int)], np.int32)
    levels = np.array([*np.zeros(len(n_points), int), *n_levels], np.int32)
    return Columns(points, levels, np.full(n, missing))


def roots(columns, n_trees=1, n_cuts=20, allowed=None):
    nodes = Nodes(n_trees, int(columns.first_cut[-1]))
    places = nodes.add(np.arange(n_trees), np.full(n_trees, NONE), np.zeros(n_trees, bool))
    every = np.ones((1, len(columns.n_points)), bool) if allowed is None else allowed
    runners = np.repeat(NO_RUNNERS, n_trees, axis=0)
    return nodes, Asked(places, np.full(n_trees, n_cuts, np.int32), runners, every)


def no_weights(columns):
    d = len(columns.n_points)
    return np.zeros((d + 1, d))


def cuts_of(level, slot):
    """The cuts of a slot of numbers."""
    return np.flatnonzero(np.diff(level.cell_of_bin[slot, :MISSING])).tolist()


def split(nodes, place, column, cut=None, levels_left=None):
    """Split a node by hand; returns its children."""
    nodes.feature[place] = column
    if cut is not None:
        nodes.cut[place] = cut
    if levels_left is not None:
        bits = np.isin(np.arange(256), levels_left)
        nodes.levels_left[place] = np.packbits(bits, bitorder="little")
    return nodes.split(np.array([place]))


def children_asked(children, n_cuts=20, runners=None, n_columns=1):
    inherited = np.repeat(NO_RUNNERS if runners is None else runners, len(children), axis=0)
    allowed = np.ones((1, n_columns), bool)
    return Asked(children, np.full(len(children), n_cuts, np.int32), inherited, allowed)


# --- numbers ---------------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(
    n_points=st.lists(st.integers(0, 254), min_size=1, max_size=6),
    n_cuts=st.integers(1, 60),
    seed=st.integers(0, 2**64 - 1),
    missing=st.booleans(),
)
def test_every_table_is_a_division_of_the_bins(n_points, n_cuts, seed, missing):
    columns = columns_of(n_points, missing=missing)
    nodes, asked = roots(columns, n_trees=3, n_cuts=n_cuts)
    level = draw(asked, nodes, columns, no_weights(columns), seed)
    assert level.n_nodes == 3
    for s in range(len(level.feature)):
        table, n_cells = level.cell_of_bin[s], level.cell_start[s + 1] - level.cell_start[s]
        cuts = cuts_of(level, s)
        assert set(table.tolist()) == set(range(n_cells))
        assert (np.diff(table[:MISSING].astype(int)) >= 0).all()
        assert all(0 <= cut < n_points[level.feature[s]] for cut in cuts)
        assert table[MISSING] == n_cells - 1
        assert n_cells == len(cuts) + 1 + missing
    slots = np.diff(level.slot_start)
    for node in range(3):
        own = level.feature[level.slot_start[node] : level.slot_start[node + 1]]
        assert (np.diff(own) > 0).all()  # each column once, in order
        assert sum(len(cuts_of(level, s)) for s in range(level.slot_start[node], level.slot_start[node + 1])) <= n_cuts
    assert slots.min() >= (max(n_points) > 0)


def test_the_seed_decides():
    columns = columns_of([50] * 4)
    nodes, asked = roots(columns)
    a, b, c = (draw(asked, nodes, columns, no_weights(columns), seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(a.cell_of_bin, b.cell_of_bin)
    assert a.cell_of_bin.shape != c.cell_of_bin.shape or (a.cell_of_bin != c.cell_of_bin).any()


def test_trees_of_a_batch_are_asked_about_different_cuts():
    columns = columns_of([254])
    nodes, asked = roots(columns, n_trees=2, n_cuts=3)
    level = draw(asked, nodes, columns, no_weights(columns), 5)
    assert cuts_of(level, 0) != cuts_of(level, 1)


@pytest.mark.parametrize("missing", [False, True])
def test_no_slot_has_more_cells_than_a_mask_has_bits(missing):
    columns = columns_of([254], missing=missing)
    nodes, asked = roots(columns, n_cuts=1000)
    level = draw(asked, nodes, columns, no_weights(columns), 0)
    assert MOST_DRAWS <= level.n_cells <= MOST_CELLS


@settings(max_examples=50)
@given(cut=st.integers(0, 98), seed=st.integers(0, 2**32))
def test_children_are_asked_inside_their_box(cut, seed):
    columns = columns_of([100])
    nodes, _ = roots(columns)
    left, right = split(nodes, 0, 0, cut)
    level = draw(children_asked(np.array([left, right])), nodes, columns, no_weights(columns), seed)
    for s in range(len(level.feature)):
        node = np.searchsorted(level.slot_start, s, side="right") - 1
        assert all(c < cut if node == 0 else c > cut for c in cuts_of(level, s))


def test_siblings_are_asked_about_the_same_columns_at_other_places():
    """A new cut in both siblings would give the parent's sums away, which nobody has counted there."""
    columns = columns_of([100, 100, 100])
    nodes, _ = roots(columns)
    pair = np.array(split(nodes, 0, 0, 40))
    level = draw(children_asked(pair, n_columns=3), nodes, columns, no_weights(columns), 7)
    first, second = ({int(level.feature[s]): cuts_of(level, s) for s in range(a, b)} for a, b in
                     zip(level.slot_start[:-1], level.slot_start[1:], strict=True))  # fmt: skip
    assert first.keys() == second.keys()
    assert first[1] != second[1]
    assert first[2] != second[2]


def test_the_parents_runners_up_are_asked_again():
    columns = columns_of([100, 100, 100])
    nodes, _ = roots(columns)
    pair = np.array(split(nodes, 0, 0, 40))
    runners = np.array([[[1, 33], [0, 60]]], np.int32)
    for seed in range(10):
        asked = children_asked(pair, n_cuts=3, runners=runners, n_columns=3)
        level = draw(asked, nodes, columns, no_weights(columns), seed)
        own = [{int(level.feature[s]): cuts_of(level, s) for s in range(a, b)} for a, b in
               zip(level.slot_start[:-1], level.slot_start[1:], strict=True)]  # fmt: skip
        assert all(33 in cuts[1] for cuts in own)
        assert 60 in own[1][0]
        assert 60 not in own[0].get(0, [])  # on the left of 40 there is no such cut


def test_columns_that_gained_are_asked_about_more_often():
    columns = columns_of([200] * 10)
    weights = no_weights(columns)
    weights[-1, 3] = 1.0
    nodes, asked = roots(columns, n_trees=200, n_cuts=20)
    level = draw(asked, nodes, columns, weights, 0)
    n_cuts = np.bincount(level.feature, np.diff(level.cell_start) - 1, minlength=10)
    share = n_cuts[3] / n_cuts.sum()
    assert share == pytest.approx(1 - UNIFORM, abs=0.05)
    assert (n_cuts > 0).all()  # nothing is forgotten
    others = np.delete(n_cuts, 3) / n_cuts.sum()
    np.testing.assert_allclose(others, UNIFORM / 10, atol=0.01)


def test_columns_that_gained_below_the_path_count_there():
    columns = columns_of([200] * 4)
    weights = no_weights(columns)
    weights[-1, 0], weights[1, 2] = 1.0, 1.0
    nodes, _ = roots(columns)
    pair = np.array(split(nodes, 0, 1, 40))
    level = draw(children_asked(pair, n_cuts=30, n_columns=4), nodes, columns, weights, 0)
    n_cuts = np.bincount(level.feature, np.diff(level.cell_start) - 1, minlength=4)
    assert n_cuts.argmax() == 2


def test_all_cuts_are_all_cuts():
    columns = columns_of([5, 0, 3], n_levels=[1, 4])
    nodes, asked = roots(columns)
    level = all_cuts(asked, nodes, columns, no_weights(columns), 0)
    assert level.feature.tolist() == [0, 2, 4]
    assert np.diff(level.cell_start).tolist() == [6, 4, 4]


# --- categories ------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(n_levels=st.integers(2, 255), seed=st.integers(0, 2**32), missing=st.booleans())
def test_levels_are_in_groups_of_about_the_same_size(n_levels, seed, missing):
    columns = columns_of(n_levels=[n_levels], missing=missing)
    nodes, asked = roots(columns)
    level = draw(asked, nodes, columns, no_weights(columns), seed)
    sizes = np.bincount(level.cell_of_bin[0, :n_levels])
    assert len(sizes) == min(n_levels, GROUPS)
    assert sizes.max() - sizes.min() <= 1
    assert level.n_cells == len(sizes) + missing
    assert level.cell_of_bin[0, MISSING] == level.n_cells - 1


def test_groups_of_levels_are_those_of_the_tree_in_every_node():
    """Else the groups of a node, subtracted from those of an ancestor, would show a few levels alone."""
    columns = columns_of(n_levels=[12])
    nodes, _ = roots(columns)
    left, right = split(nodes, 0, 0, levels_left=[0, 1, 2, 3, 4])
    level = draw(children_asked(np.array([left, right])), nodes, columns, no_weights(columns), 3)
    own, other = level.cell_of_bin[:, :12]
    root = draw(children_asked(np.array([0])), nodes, columns, no_weights(columns), 3).cell_of_bin[0, :12]
    assert own.tolist() == other.tolist() == root.tolist()
    alone, _ = split(nodes, left, 0, levels_left=[2])
    assert len(draw(children_asked(np.array([alone])), nodes, columns, no_weights(columns), 3).feature) == 0


# --- columns that may be asked about ---------------------------------------------------------------------------------


def grown(n_trees=2, depth=3, n_columns=12):
    """Full trees that split on column 0, then 1, then 2, and the places of the last level."""
    nodes = Nodes(n_trees, 10)
    places = nodes.add(np.arange(n_trees), np.full(n_trees, NONE), np.zeros(n_trees, bool))
    for level in range(depth):
        nodes.feature[places] = level
        places = nodes.split(places)
    return nodes, places


def test_columns_are_sampled_per_tree():
    nodes, places = grown()
    tree = nodes.tree[places]
    for share, n in ((0.5, 6), (0.25, 3), (0.01, 1)):
        allowed = allowed_columns(joint(colsample_bytree=share), nodes, places, 12, seed=3)
        assert (allowed.sum(axis=1) == n).all()
        assert all(len(np.unique(allowed[tree == t], axis=0)) == 1 for t in (0, 1))
        assert len(np.unique(allowed, axis=0)) > 1  # the trees differ


def test_the_columns_of_a_tree_are_the_same_in_all_its_levels():
    params = joint(colsample_bytree=0.5, interaction_constraints=[[0, 1, 2, 3, 4, 5, 6], [7, 8]])
    of_tree = set()
    for depth in range(3):
        nodes, places = grown(n_trees=1, depth=depth)
        for row in allowed_columns(params, nodes, places, 12, seed=3):
            of_tree |= set(np.flatnonzero(row).tolist())
    assert len(of_tree) == 6


def test_only_columns_of_one_group_are_on_a_path():
    nodes, places = grown(n_trees=1, depth=2)  # columns 0 and 1 are on every path
    params = joint(interaction_constraints=[[0, 1, 4], [1, 2, 0], [0, 7]])
    allowed = allowed_columns(params, nodes, places, 12, seed=0)
    assert all(np.flatnonzero(row).tolist() == [0, 1, 2, 4] for row in allowed)
    alone = allowed_columns(joint(interaction_constraints=[[2, 3]]), *grown(n_trees=1, depth=1), 12, seed=0)
    assert all(np.flatnonzero(row).tolist() == [0] for row in alone)  # a column of no group goes with itself
    nodes, places = grown(n_trees=1, depth=0)
    assert allowed_columns(params, nodes, places, 12, seed=0).all()  # a root may be split by any column


def test_columns_that_are_not_allowed_are_not_asked_about():
    columns = columns_of([50] * 6)
    nodes, asked = roots(columns)
    allowed = np.array([[False, True, False, False, True, False]])
    weights = no_weights(columns)
    weights[-1] = [9, 0, 9, 0, 0, 9]
    for seed in range(20):
        level = draw(dataclasses.replace(asked, allowed=allowed), nodes, columns, weights, seed)
        assert set(level.feature.tolist()) <= {1, 4}
    nobody = dataclasses.replace(asked, allowed=np.zeros((1, 6), bool))
    assert draw(nobody, nodes, columns, weights, 0).n_cells == 0


@pytest.mark.parametrize("n_cuts", [0, 7112, 1_600_000])
def test_nodes_find_room_however_many_cuts_there_are(n_cuts):
    nodes = Nodes(2, n_cuts)
    assert nodes.released.nbytes <= 2**24 + 8 * n_cuts  # or eight nodes
    places = nodes.add(np.array([0, 1]), np.full(2, NONE), np.zeros(2, bool))
    for _ in range(5):
        places = nodes.split(places)
    assert nodes.in_tree.tolist() == [63, 63]
    assert nodes.number[nodes.of_tree(1)].tolist() == list(range(63))


def test_no_new_nodes_change_nothing():
    nodes = Nodes(1, 16)
    root = nodes.add(np.array([0]), np.array([NONE]), np.array([False]))
    nodes.split(root)
    nothing = np.zeros(0, np.int64)
    assert not len(nodes.split(nothing))
    assert (nodes.n, nodes.in_tree.tolist(), nodes.number[:3].tolist()) == (3, [3], [0, 1, 2])
