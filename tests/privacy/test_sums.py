import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simfl.privacy.sums import LEAF_BITS, ROW_BITS, from_ints, resolution, to_leaf_ints, to_row_ints

numbers = st.floats(-1e6, 1e6, allow_nan=False)


@given(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=8))
def test_the_sum_of_all_parties_never_wraps_around(parties):
    exponent = resolution([max(abs(v) for v in own) for own in parties], ROW_BITS)
    ints = [to_row_ints(np.array(own), exponent).astype(np.int64) for own in parties]
    total = sum(ints)
    assert np.abs(total).max() <= 2**31 + len(parties)
    grid = 2.0**exponent
    exact = np.array(parties).sum(axis=0)
    assert np.allclose(from_ints(total, exponent), exact, atol=grid * len(parties), rtol=1e-12)


@given(st.permutations(range(6)), st.integers(0, 2**32 - 1))
def test_the_order_of_the_parties_does_not_matter(order, seed):
    values = np.random.default_rng(seed).normal(size=(6, 4))
    exponent = resolution([4.0] * 6, LEAF_BITS)
    ints = [to_leaf_ints(v, exponent) for v in values]
    assert sum(ints).tolist() == sum(ints[i] for i in order).tolist()


def test_a_value_beyond_its_bound_is_cut_off_not_wrapped():
    exponent = resolution([1.0], ROW_BITS)
    assert from_ints(to_row_ints(np.array([1e9, -1e9]), exponent), exponent).tolist() == [
        2 - 2.0**exponent,
        -2 + 2.0**exponent,
    ]


def test_leaf_sums_keep_eighteen_digits():
    exponent = resolution([1000.0], LEAF_BITS)
    value = np.array([123.456789012345678])
    assert from_ints(to_leaf_ints(value, exponent), exponent) == value
