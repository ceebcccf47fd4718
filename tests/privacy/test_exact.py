import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simfl.privacy.exact import (
    LEAF_BITS,
    ROW_BITS,
    SHORT_BITS,
    fold,
    from_ints,
    from_three_bytes,
    resolution,
    to_leaf_ints,
    to_row_ints,
    to_three_bytes,
)

numbers = st.floats(-1e6, 1e6, allow_nan=False)


@given(
    st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=8), st.sampled_from((SHORT_BITS, ROW_BITS))
)
def test_the_sum_of_all_parties_never_wraps_around(parties, bits):
    exponent = resolution([max(abs(v) for v in own) for own in parties], bits)
    ints = [to_row_ints(np.array(own), exponent, bits, len(parties)).astype(np.int64) for own in parties]
    total = sum(ints)
    assert np.abs(total).max() < 2**bits
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
    for bits in (SHORT_BITS, ROW_BITS):
        exponent = resolution([1.0], bits)
        cut = from_ints(to_row_ints(np.array([1e9, -1e9]), exponent, bits), exponent)
        assert cut.tolist() == [2 - 2.0**exponent, -2 + 2.0**exponent]


@given(st.lists(st.integers(-(2**23), 2**23 - 1)), st.integers(-(2**31), 2**31 - 1))
def test_three_bytes_hold_a_number_modulo_their_range(values, mask):
    plain = np.array(values, dtype=np.int32)
    assert from_three_bytes(to_three_bytes(plain)).tolist() == values
    hidden = from_three_bytes(to_three_bytes(plain + np.int32(mask)))
    assert fold(hidden - np.int32(mask), bits=23).tolist() == values


def test_leaf_sums_keep_eighteen_digits():
    exponent = resolution([1000.0], LEAF_BITS)
    value = np.array([123.456789012345678])
    assert from_ints(to_leaf_ints(value, exponent), exponent) == value
