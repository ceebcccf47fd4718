"""Small groups go together with their nearest others."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simfl.training.groups import join_small_groups


def joined(similar, drawn, min_group, n_rows=None, order=None):
    similar, drawn = np.array(similar, dtype=np.int32), np.array(drawn, dtype=np.int32)
    order = np.arange(len(drawn), dtype=np.int32) if order is None else np.array(order, dtype=np.int32)
    found = join_small_groups(similar, drawn, order, n_rows or int(similar.max()) + 1, min_group)
    return None if found is None else found.tolist()


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
    sizes = np.bincount(found, minlength=n_rows)
    assert sizes.sum() == n
    assert len(sizes) == n_rows
    assert sizes[sizes > 0].min() >= min_group
