"""Small groups go together with their nearest others."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simfl.training.groups import join_small_groups

sizes = st.sampled_from([0.0, 0.3, 1.0, 10.0])


def joined(similar, drawn, min_group, n_rows=None, order=None, weight=None):
    """Where each row goes; -1: nowhere."""
    similar, drawn = np.array(similar, dtype=np.int32), np.array(drawn, dtype=np.int32)
    order = np.arange(len(drawn), dtype=np.int32) if order is None else np.array(order, dtype=np.int32)
    weight = None if weight is None else np.array(weight, dtype=np.float32)
    found = join_small_groups(similar, drawn, order, n_rows or int(similar.max()) + 1, min_group, weight)
    if found is None:
        return None
    out = np.full(len(drawn), -1)
    out[slice(None) if found.rows is None else found.rows] = found.goes_to
    return out.tolist()


def test_groups_that_are_large_enough_stay_as_they_are():
    assert joined([[0], [0], [1], [1]], [0, 0, 1, 1], min_group=2) == [0, 0, 1, 1]


def test_a_lone_row_goes_to_the_fullest_of_its_other_similar_rows():
    similar = [[0, 3], [0, 3], [0, 3], [1, 3], [1, 3], [2, 1]]
    assert joined(similar, [0, 0, 0, 1, 1, 2], min_group=2, n_rows=4) == [0, 0, 0, 1, 1, 1]


def test_a_lone_row_without_a_choice_joins_the_row_beside_it():
    similar = [[0], [5], [0], [7], [7]]
    assert joined(similar, [0, 5, 0, 7, 7], min_group=2, order=[0, 2, 3, 1, 4]) == [0, 7, 0, 7, 7]


def test_fewer_rows_than_a_group_needs_send_nothing():
    assert joined([[0], [1]], [0, 1], min_group=3) is None
    assert joined([[0], [1], [2]], [0, 1, 2], min_group=3, n_rows=3) in ([0] * 3, [1] * 3, [2] * 3)


def test_a_group_with_one_heavy_row_is_as_small_as_that_row():
    groups = [0, 0, 0, 1, 1, 1]
    similar = [[group] for group in groups]
    assert joined(similar, groups, 3, weight=[1, 1, 1, 1, 1, 1]) == groups
    assert joined(similar, groups, 3, weight=[1e-6, 1, 1e-6, 1, 1, 1]) == [1, 1, 1, 1, 1, 1]
    assert joined(similar, groups, 3, weight=[1, 1, 1, 1, 2, 1]) == [1, 1, 1, 1, 1, 1]


def test_light_rows_leave_a_heavy_one_that_they_do_not_hide():
    similar = [[0, 1], [0, 1], [0, 0], [1, 1], [1, 1], [1, 1], [2, 2], [2, 2]]
    weight = [1, 1, 40, 1, 1, 1, 40, 40]
    found = joined(similar, [0, 0, 0, 1, 1, 1, 2, 2], 3, order=[2, 6, 7, 0, 1, 3, 4, 5], weight=weight)
    assert found == [1, 1, 2, 1, 1, 1, 2, 2]


def test_a_row_that_all_others_cannot_hide_is_in_no_group():
    similar = [[0], [0], [0], [1], [1], [1]]
    assert joined(similar, [0, 0, 0, 1, 1, 1], 3, weight=[1, 1, 1, 1, 1e12, 1]) == [0, 0, 0, 0, -1, 0]
    assert joined(similar, [0, 0, 0, 1, 1, 1], 3, weight=[1, 0, 0, 1, 1e12, 0]) is None
    assert joined(similar, [0, 0, 0, 1, 1, 1], 3, weight=[0] * 6) is None


@given(st.data())
def test_no_row_has_more_than_its_part_of_the_weight_of_a_group(data):
    n, k, n_rows = (data.draw(st.integers(1, m)) for m in (60, 4, 30))
    seed, min_group, spread = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.integers(2, 12)), data.draw(sizes)
    rng = np.random.default_rng(seed)
    similar, order = rng.integers(0, n_rows, (n, k)).astype(np.int32), rng.permutation(n).astype(np.int32)
    weight = np.exp(spread * rng.normal(size=n)).astype(np.float32) * (rng.random(n) > 0.1)
    found = join_small_groups(similar, similar[:, 0].copy(), order, n_rows, min_group, weight)
    if found is None:
        return
    own = weight.astype(float)[slice(None) if found.rows is None else found.rows]
    total = np.bincount(found.goes_to, weights=own, minlength=n_rows)
    assert (own > 0).all()
    assert (own * min_group <= total[found.goes_to] * (1 + 1e-9)).all()
    if spread == 0 and (weight > 0).all():
        equal = join_small_groups(similar, similar[:, 0].copy(), order, n_rows, min_group)
        assert (found.goes_to == equal.goes_to).all()


@given(st.data())
def test_no_group_is_ever_too_small_and_no_row_is_lost(data):
    n, k, n_rows = (data.draw(st.integers(1, m)) for m in (60, 4, 30))
    seed, min_group = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.integers(1, 12))
    rng = np.random.default_rng(seed)
    similar = rng.integers(0, n_rows, (n, k)).astype(np.int32)
    drawn = similar[np.arange(n), rng.integers(0, k, n)]
    before = drawn.copy()
    found = join_small_groups(similar, drawn, rng.permutation(n).astype(np.int32), n_rows, min_group)
    assert (drawn == before).all()
    if n < min_group:
        assert found is None
        return
    assert found.rows is None
    sizes = np.bincount(found.goes_to, minlength=n_rows)
    assert sizes.sum() == n
    assert len(sizes) == n_rows
    assert sizes[sizes > 0].min() >= min_group
