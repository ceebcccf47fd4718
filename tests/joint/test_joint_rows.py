"""Sums per cell, splits and leaf values: the same numbers as row by row, in every form of the rows, on any threads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfl.joint import rows as rows_module
from simfl.joint.level import MISSING
from simfl.joint.rows import LIGHT, ONE_ROW, BinnedRows, Placement, SparseRows, counted_as
from tests.joint.levels import Reference, as_sparse, begin, followed, level_of, random_level, splits_of


def below(point):
    """Two cells: bins below the point, and the others."""
    return (np.arange(256) >= point).astype(np.uint8)


def packed_of(g, h):
    return (g.astype(np.int64) << 32) + h


def test_two_cells_of_four_rows():
    bins = np.array([[0], [3], [5], [MISSING]], dtype=np.uint8)
    placement = Placement(BinnedRows(bins), 1, 1)
    begin(placement, packed_of(np.array([[-7, 2, 3, 40]]), np.array([[1, 2, 3, 4]])))
    level = level_of([(0, 0)], [[(0, below(4))]])
    counts, G, H = placement.sums(level)
    assert (counts.tolist(), G.tolist(), H.tolist()) == ([2, 2], [-5, 43], [3, 7])


def test_rows_go_to_the_children_that_were_given_numbers():
    bins = np.arange(8, dtype=np.uint8)[:, None]
    placement = Placement(BinnedRows(bins), 1, 1)
    begin(placement, np.zeros((1, 8), dtype=np.int64))
    root = level_of([(0, 0)], [[(0, below(4))]])
    placement.split(root, splits_of(root, [0], [0b01], n_nodes := [1]))
    nodes = level_of([(0, 1), (0, 2)], [[(0, below(2))], [(0, below(6))]])
    placement.split(nodes, splits_of(nodes, [0, 1], [0b01, 0b10], n_nodes))  # the second sends its upper cell left
    margins = np.zeros((8, 1), dtype=np.float32)
    ways = {0: (0, below(4) < 1, 1), 1: (0, below(2) < 1, 3), 2: (0, below(6) == 1, 5)}
    placement.add_values(0, followed(ways, np.arange(7)), margins, 0)
    assert margins[:, 0].tolist() == [3, 3, 4, 4, 6, 6, 5, 5]


def test_a_node_without_a_slot_stays_a_leaf_and_takes_no_number():
    bins = np.arange(4, dtype=np.uint8)[:, None]
    placement = Placement(BinnedRows(bins), 1, 1)
    begin(placement, np.zeros((1, 4), dtype=np.int64))
    root = level_of([(0, 0)], [[(0, below(2))]])
    placement.split(root, splits_of(root, [0], [1], n_nodes := [1]))
    nodes = level_of([(0, 1), (0, 2)], [[(0, below(1))], [(0, below(3))]])
    placement.split(nodes, splits_of(nodes, [-1, 1], [0, 1], n_nodes))
    margins = np.zeros((4, 1), dtype=np.float32)
    ways = {0: (0, below(2) < 1, 1), 2: (0, below(3) < 1, 3)}
    placement.add_values(0, followed(ways, np.arange(5)), margins, 0)
    assert margins[:, 0].tolist() == [1, 1, 3, 4]


def test_rows_that_are_not_taken_count_nowhere_but_get_their_leaf_value():
    bins = np.array([[0], [9], [0], [9]], dtype=np.uint8)
    placement = Placement(BinnedRows(bins), 1, 1)
    totals = begin(placement, packed_of(np.full((1, 4), 5), np.full((1, 4), 1)), np.array([[True, True, False, False]]))
    assert [total.tolist() for total in totals] == [[10], [2]]
    level = level_of([(0, 0)], [[(0, below(4))]])
    assert placement.sums(level)[0].tolist() == [1, 1]
    placement.split(level, splits_of(level, [0], [1], [1]))
    margins = np.zeros((4, 1), dtype=np.float32)
    placement.add_values(0, followed({0: (0, below(4) < 1, 1)}, np.arange(3)), margins, 0)
    assert margins[:, 0].tolist() == [1, 2, 1, 2]


def test_rows_that_are_far_lighter_than_the_heaviest_count_less():
    assert counted_as(None) is None
    assert counted_as(np.full(9, 0.3, np.float32)) is None
    weight = np.array([8, 8 * LIGHT, 1, 1e-9], dtype=np.float32)
    assert (counted_as(weight) / ONE_ROW).tolist() == [1, 1, 1 / (8 * LIGHT), 0]
    assert counted_as(np.zeros(3, np.float32)).tolist() == [0, 0, 0]


@given(st.lists(st.floats(2.0**-20, 2.0**20, width=32), min_size=1, max_size=50))
def test_what_rows_count_as_is_bounded_by_their_weight(weights):
    weight = np.array(weights, dtype=np.float32)
    counts_as = counted_as(weight)
    n = len(weight) if counts_as is None else counts_as.sum() / ONE_ROW
    assert LIGHT * n <= weight.sum(dtype=float) / weight.max() * (1 + 1e-9)


def test_sums_use_all_32_bits():
    bins = np.zeros((4, 1), dtype=np.uint8)
    placement = Placement(BinnedRows(bins), 1, 1)
    g, h = np.full((1, 4), -(2**29)), np.full((1, 4), 2**30 - 1)
    begin(placement, packed_of(g, h))
    _, G, H = placement.sums(level_of([(0, 0)], [[(0, np.zeros(256))]]))
    assert (G.tolist(), H.tolist()) == ([-(2**31)], [2**32 - 4])


def test_a_second_batch_starts_again_at_the_roots():
    bins = np.arange(4, dtype=np.uint8)[:, None]
    level = level_of([(0, 0)], [[(0, below(2))]])
    for rows in (BinnedRows(bins), as_sparse(bins)):
        placement = Placement(rows, 1, 1)
        for g in (1, 2):
            begin(placement, packed_of(np.full((1, 4), g), np.ones((1, 4), dtype=int)))
            assert placement.sums(level)[1].tolist() == [2 * g, 2 * g]
            placement.split(level, splits_of(level, [0], [1], [1]))


def placements(bins, n_trees, counts_as=None):
    forms = [BinnedRows(bins), as_sparse(bins)]
    return [Placement(rows, n_trees, threads, counts_as) for rows in forms for threads in (1, 2)]


def grow(kept, reference, most_cells, rng):
    """Four levels of random questions and splits; every answer must be the reference's."""
    nodes = [(t, 0) for t in range(len(reference.g))]
    for _ in range(4):
        level = random_level(nodes, reference.bins.shape[1], most_cells, rng)
        for placement in kept:
            for own, expected in zip(placement.sums(level), reference.sums(level), strict=True):
                np.testing.assert_array_equal(own, expected)
        n_slots = np.diff(level.slot_start)
        slot = level.slot_start[:-1] + rng.integers(0, np.maximum(n_slots, 1))
        slot[(n_slots == 0) | (rng.random(len(nodes)) < 0.2)] = -1
        left = rng.integers(0, 2**64, len(nodes), dtype=np.uint64)
        before = list(reference.n_nodes)
        splits = splits_of(level, slot, left, list(before))
        reference.split(level, slot, left)
        for placement in kept:
            placement.split(level, splits)
        born = [(t, node) for t, n in enumerate(reference.n_nodes) for node in range(before[t], n)]
        nodes = [node for node in born if rng.random() < 0.9]  # some become leaves


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 40, 700]), st.integers(1, 19), st.sampled_from([2, 5, 9, 64]))
def test_all_forms_of_the_rows_give_the_same_numbers(seed, n_rows, n_columns, most_cells):
    rng = np.random.default_rng(seed)
    n_trees, share_missing = int(rng.integers(1, 4)), rng.choice([0.0, 0.2, 0.9])
    bins = rng.integers(0, 255, (n_rows, n_columns), dtype=np.uint8)
    bins[rng.random(bins.shape) < share_missing] = MISSING
    g, h = rng.integers(-(2**20), 2**20, (n_trees, n_rows)), rng.integers(0, 2**20, (n_trees, n_rows))
    taken = rng.random(g.shape) < rng.choice([0.5, 1.1])
    counts_as = rng.integers(0, ONE_ROW + 1, n_rows) if rng.random() < 0.5 else None
    kept, reference = placements(bins, n_trees, counts_as), Reference(bins, g, h, taken, counts_as)
    for placement in kept:
        G, H = begin(placement, packed_of(g, h), None if taken.all() else taken)
        np.testing.assert_array_equal([G, H], [(g * taken).sum(axis=1), (h * taken).sum(axis=1)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "SMALL", 0)  # threads share out even the smallest level
        grow(kept, reference, most_cells, rng)
    values = [rng.normal(size=n).astype(np.float32) for n in reference.n_nodes]
    outputs = rng.integers(0, 2, n_trees)
    expected = np.zeros((n_rows, 2), dtype=np.float32)
    for t, own in enumerate(values):
        expected[:, outputs[t]] += own[reference.node[t]]
    for placement in kept:
        margins = np.zeros((n_rows, 2), dtype=np.float32)
        for t, own in enumerate(values):
            placement.add_values(t, reference.followed(t, own), margins, int(outputs[t]))
        np.testing.assert_array_equal(margins, expected)


def test_a_feature_that_is_asked_twice_in_a_node():
    rng = np.random.default_rng(0)
    bins = rng.integers(0, 256, (50, 2), dtype=np.uint8)
    g, h = rng.integers(-9, 9, (1, 50)), rng.integers(0, 9, (1, 50))
    level = level_of([(0, 0)], [[(1, below(100)), (0, below(50)), (1, below(200))]])
    reference = Reference(bins, g, h, np.ones((1, 50), dtype=bool)).sums(level)
    for placement in placements(bins, 1):
        begin(placement, packed_of(g, h))
        for own, expected in zip(placement.sums(level), reference, strict=True):
            np.testing.assert_array_equal(own, expected)


def test_twenty_thousand_columns_with_few_entries_each():
    n_rows, n_columns = 2_000, 20_000
    start = np.arange(n_columns + 1, dtype=np.int64) * 5
    rng = np.random.default_rng(0)
    row = np.concatenate([np.sort(rng.choice(n_rows, 5, replace=False)) for _ in range(n_columns)]).astype(np.int32)
    rows = SparseRows(start, row, rng.integers(0, 255, len(row), dtype=np.uint8), n_rows)
    placement = Placement(rows, 1, 1)
    begin(placement, packed_of(np.ones((1, n_rows), dtype=int), np.ones((1, n_rows), dtype=int)))
    counts, G, _ = placement.sums(level_of([(0, 0)], [[(f, below(255)) for f in range(n_columns)]]))
    assert counts.reshape(-1, 2).tolist() == [[5, n_rows - 5]] * n_columns
    np.testing.assert_array_equal(G, counts)


@pytest.mark.parametrize("n_columns", [70, 300])
def test_rows_longer_than_a_cache_line(n_columns):
    rng = np.random.default_rng(0)
    bins = rng.integers(0, 256, (300, n_columns), dtype=np.uint8)
    g, h = rng.integers(-9, 9, (1, 300)), rng.integers(0, 9, (1, 300))
    level = level_of([(0, 0)], [[(f, below(f % 250 + 1)) for f in range(0, n_columns, 7)]])
    reference = Reference(bins, g, h, np.ones((1, 300), dtype=bool)).sums(level)
    for placement in placements(bins, 1):
        begin(placement, packed_of(g, h))
        for own, expected in zip(placement.sums(level), reference, strict=True):
            np.testing.assert_array_equal(own, expected)
