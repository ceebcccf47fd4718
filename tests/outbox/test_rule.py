"""The rule at the one exit: no number stands for fewer than k own rows, no row is nearly all of one, all have noise."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfl.outbox import rule as outbox
from simfl.outbox.rule import DOMINANCE, NOWHERE, Cells, Rule, Scale

K = 5
ROW = st.tuples(st.integers(0, 9), st.integers(-40, 40))  # the cell of a row, and its gradient
NODES = st.lists(st.lists(ROW, max_size=60), min_size=1, max_size=4)  # slots


def level_of(n_slots, n_cells=10):
    """One node that is asked about several columns."""
    return SimpleNamespace(
        feature=np.arange(n_slots, dtype=np.int32),
        cell_start=np.arange(n_slots + 1, dtype=np.int32) * n_cells,
        slot_start=np.array([0, n_slots], np.int32),
        tree=np.zeros(1, np.int32),
        n_cells=n_slots * n_cells,
    )


def cells_of(slots, n_cells=10):
    found = np.zeros((5, len(slots) * n_cells), np.int64)
    for s, rows in enumerate(slots):
        for cell, g in rows:
            found[:, s * n_cells + cell] += [1, g, abs(g) + 1, abs(g), g * g]
    return Cells(*found)


def joined(slots, ordered=True, missing=True, least=K):
    level, cells = level_of(len(slots)), cells_of(slots)
    flags = np.full(len(slots), ordered), np.full(len(slots), missing)
    return level, cells, Rule(least, b"s").join(level, cells, *flags)


def totals_of(cells, where, s, n_cells=10):
    """Rows, sum of |g| and of g^2 of each cell of a slot, as they are joined."""
    out = np.zeros((3, n_cells))
    for c in range(n_cells):
        to = where[s * n_cells + c]
        if to != NOWHERE:
            out[:, to] += [part[s * n_cells + c] for part in (cells.rows, cells.sizes, cells.squares)]
    return out


@given(NODES, st.booleans(), st.booleans())
def test_every_cell_has_no_rows_or_enough_and_none_is_dominated(slots, ordered, missing):
    _, cells, where = joined(slots, ordered, missing)
    for s in range(len(slots)):
        rows, sizes, squares = totals_of(cells, where, s)
        assert ((rows == 0) | (rows >= K)).all()
        assert ((rows == 0) | (sizes**2 >= DOMINANCE * squares)).all()


@given(NODES)
def test_so_has_every_side_of_every_split(slots):
    _, cells, where = joined(slots)
    for s in range(len(slots)):
        rows, sizes, squares = totals_of(cells, where, s)
        for cut in range(1, 10):
            for side in (np.s_[:cut], np.s_[cut:]):
                n = rows[side].sum()
                assert n == 0 or (n >= K and sizes[side].sum() ** 2 >= DOMINANCE * squares[side].sum())


@given(NODES, st.booleans())
def test_no_row_is_lost_unless_all_are_too_few(slots, ordered):
    _, cells, where = joined(slots, ordered)
    for s, own in enumerate(slots):
        rows, sizes, squares = totals_of(cells, where, s)
        all_rows = np.array([len(own), sum(abs(g) for _, g in own), sum(g * g for _, g in own)])
        enough = all_rows[0] >= K and all_rows[1] ** 2 >= DOMINANCE * all_rows[2]
        assert rows.sum() == (all_rows[0] if enough else 0)


def test_neighbours_are_joined_and_rows_go_to_the_cell_that_has_most():
    _, _, where = joined([[(0, 1)] * 2 + [(1, 1)] * 9 + [(4, 1)] * 7 + [(5, 1)] * 3])
    assert where[:6].tolist() == [1, 1, 1, 1, 4, 4]


def test_enough_rows_stay_where_they_are():
    _, _, where = joined([[(c, 1) for c in range(10) for _ in range(K)]])
    assert where.tolist() == list(range(10))


def test_few_missing_values_are_joined_with_the_largest_cell():
    _, _, where = joined([[(3, 1)] * 8 + [(6, 1)] * 20 + [(9, 1)] * 2])
    assert where[9] == 6


def test_levels_of_a_category_are_joined_with_those_of_about_the_same_value():
    rows = [(0, 30)] * 9 + [(1, -30)] * 9 + [(2, 29)] * 2 + [(3, -29)] * 2
    _, _, where = joined([rows], ordered=False, missing=False)
    assert (where[2], where[3]) == (0, 1)


def test_a_row_that_has_nearly_all_of_a_sum_is_joined_however_many_rows_there_are():
    rows = [(0, 40)] + [(0, 0)] * 500 + [(5, 40)] * 30
    _, _, where = joined([rows])
    assert where[0] == where[5]


def test_where_one_row_has_all_the_gradient_nothing_is_sent():
    level, cells, where = joined([[(0, 40)] + [(c % 10, 0) for c in range(500)]])  # as where all others are saturated
    assert (where == NOWHERE).all()
    G, H = outbox.sums(cells, where, level, np.ones(1, bool), scale())
    assert not G.any()
    assert not H.any()


def scale(key=7, noise=8.0):
    one = np.ones(1)
    return Scale(np.array([key], np.uint64), noise * one, 0 * one, one, noise * one)


def sent(slots, *, key=7, noise=8.0):
    level, cells, where = joined(slots)
    return outbox.sums(cells, where, level, np.ones(len(slots), bool), scale(key, noise))


@given(NODES)
def test_sums_go_up_to_each_cut(slots):
    level, cells, where = joined(slots)
    off = Scale(np.zeros(1, np.uint64), *np.zeros((2, 1)), np.ones(1), np.zeros(1))
    G, _ = outbox.sums(cells, where, level, np.ones(len(slots), bool), off)
    for s in range(len(slots)):
        moved = np.zeros(10)
        for c in range(10):
            if where[s * 10 + c] != NOWHERE:
                moved[where[s * 10 + c]] += cells.G[s * 10 + c]
        assert G[s * 9 : s * 9 + 9].view(np.int32).tolist() == np.cumsum(moved)[:9].tolist()


def test_the_same_rows_have_the_same_noise_in_another_column():
    rows = [(2, g) for g in range(-9, 12)]
    G, H = sent([rows, [(6, g) for _, g in rows]])
    assert G[2] == G[9 + 6]
    assert H[2] == H[9 + 6]


def test_one_row_more_is_hidden_by_other_noise():
    rng = np.random.default_rng(0)
    rows = [(2, int(g)) for g in rng.integers(-20, 20, 50)]
    gaps = []
    for key in range(400):
        before, after = (int(sent([own], key=key)[0].view(np.int32)[2]) for own in (rows, [*rows, (2, 16)]))
        gaps.append(after - before - 16)
    assert np.std(gaps) == pytest.approx(8 * 2**0.5, rel=0.2)
    assert abs(np.mean(gaps)) < 2


def test_where_a_party_has_no_rows_it_adds_exactly_nothing():
    G, H = sent([[(5, 3)] * 9])
    assert not G[:5].any()
    assert not H[:5].any()


@given(st.lists(st.integers(0, 9), max_size=80))
def test_counts_are_of_none_or_of_enough_rows(rows):
    cells = np.bincount(np.array(rows, np.int64), minlength=10)
    tokens = np.arange(10, dtype=np.uint64) * cells.astype(np.uint64)
    out = Rule(K, b"s").counts(cells, tokens, np.array([0, 10]))
    assert (out >= 0).all()
    if len(rows) < K:
        assert not out.any()
    assert (out > 0).sum() <= len(rows) // K


def test_counts_of_the_same_rows_are_the_same_and_nearly_right():
    cells = np.array([0, 40, 2, 0, 70, 1])
    tokens = np.array([0, 11, 12, 0, 13, 14], np.uint64)
    one, other = (Rule(K, b"s").counts(cells, tokens, np.array([0, 6])) for _ in range(2))
    assert one.tolist() == other.tolist()
    assert abs(one - [0, 42, 0, 0, 71, 0]).max() < 10


def test_sums_over_all_rows_keep_their_share_of_noise():
    rule = Rule(K, b"secret")
    first, then = (rule.of_all(np.array([value]), 100, "metric") for value in (8.0, 4.0))
    assert first / then == pytest.approx(2.0)
    assert first != 8.0
    assert not rule.of_all(np.array([8.0]), 4, "metric").any()


def test_classes_of_too_few_rows_are_counted_with_the_largest():
    out = Rule(K, b"s").of_classes(np.array([50.0, 3.0, 20.0]), np.array([50, 3, 20]), "labels")
    assert out[1] == 0
    assert out.sum() == pytest.approx(73, abs=12)


def test_with_one_party_alone_everything_is_exact():
    rule = Rule(0, b"s")
    assert rule.of_all(np.array([2.5]), 1, "x").tolist() == [2.5]
    assert rule.counts(np.array([1, 2]), np.zeros(2, np.uint64), np.array([0, 2])).tolist() == [1, 2]
    _, _, where = joined([[(3, 9)]], least=0)
    assert where.tolist() == list(range(10))
