import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simfl.errors import DataError, ParameterError
from simfl.partition import balanced, by_column, unbalanced

few = settings(max_examples=50)


def every_row_once(parts, n_rows):
    return sorted(np.concatenate(list(parts)).tolist()) == list(range(n_rows))


@few
@given(n=st.integers(1, 200), parties=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_a_balanced_split_has_every_row_once_and_equal_sizes(n, parties, seed):
    parties = min(n, parties)
    parts = balanced(n, parties, seed)
    assert every_row_once(parts, n)
    assert len(parts) == parties
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@few
@given(
    zeros=st.integers(40, 120),
    ones=st.integers(40, 120),
    theta=st.floats(0.1, 0.9),
    half=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_an_unbalanced_split_has_every_row_once_and_the_shares_of_theta(zeros, ones, theta, half, seed):
    y = np.array([0] * zeros + [1] * ones)
    parts = unbalanced(y, 2 * half, theta, seed)
    assert every_row_once(parts, len(y))
    first = y[np.concatenate(parts[:half])]
    assert abs((first == 0).sum() - theta * zeros) <= 0.5 + 1e-9
    assert abs((first == 1).sum() - (1 - theta) * ones) <= 0.5 + 1e-9
    for side in (parts[:half], parts[half:]):
        assert max(map(len, side)) - min(map(len, side)) <= 1


@few
@given(st.lists(st.sampled_from(["north", "south", "ost", ""]), min_size=1, max_size=60))
def test_a_split_by_column_has_every_row_once_under_its_own_name(values):
    parts = by_column(values)
    assert every_row_once(parts.values(), len(values))
    assert all(values[row] == name for name, rows in parts.items() for row in rows)


def test_balanced_takes_anything_that_has_a_length():
    assert [p.tolist() for p in balanced(np.zeros((9, 2)), 3)] == [p.tolist() for p in balanced(9, 3)]


def test_the_seed_decides_the_split():
    assert [p.tolist() for p in balanced(50, 2, seed=1)] == [p.tolist() for p in balanced(50, 2, seed=1)]
    assert [p.tolist() for p in balanced(50, 2, seed=1)] != [p.tolist() for p in balanced(50, 2, seed=2)]


def test_theta_of_one_half_is_no_skew():
    y = np.array([0, 1] * 50)
    assert [y[rows].mean() for rows in unbalanced(y, 2, theta=0.5)] == [0.5, 0.5]


def test_unbalanced_takes_text_classes():
    y = np.array(["well", "ill"] * 50)
    assert [(y[rows] == "ill").mean() for rows in unbalanced(y, 2, theta=0.8)] == [0.8, 0.2]


def test_a_column_of_numbers_gives_text_names():
    assert list(by_column([3, 1, 3])) == ["1", "3"]


@pytest.mark.parametrize("parties", [0, -1, 11])
def test_more_parties_than_rows_or_none_are_refused(parties):
    with pytest.raises(ParameterError, match=f"n_parties={parties} is not possible with 10 rows"):
        balanced(10, parties)


@pytest.mark.parametrize("theta", [0, 1, -0.1, 1.5, float("nan")])
def test_theta_must_lie_between_0_and_1(theta):
    with pytest.raises(ParameterError, match="theta="):
        unbalanced([0, 1] * 10, 2, theta)


def test_an_odd_number_of_parties_cannot_be_unbalanced():
    with pytest.raises(ParameterError, match="even number"):
        unbalanced([0, 1] * 10, 3)


@pytest.mark.parametrize("y", [[0] * 10, [0, 1, 2] * 5])
def test_unbalanced_needs_two_classes(y):
    with pytest.raises(DataError, match="two classes"):
        unbalanced(y, 2)


def test_a_split_that_leaves_a_party_empty_is_refused():
    with pytest.raises(ParameterError, match="too few"):
        unbalanced([0] * 10 + [1] * 2, 8, theta=0.95)
