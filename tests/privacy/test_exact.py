import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simfl.privacy.exact import LEAF_BITS, from_ints, power_above, resolution, to_leaf_ints


@given(st.permutations(range(6)), st.integers(0, 2**32 - 1))
def test_the_order_of_the_parties_does_not_matter(order, seed):
    values = np.random.default_rng(seed).normal(size=(6, 4))
    exponent = resolution([4.0] * 6, LEAF_BITS)
    ints = [to_leaf_ints(v, exponent) for v in values]
    assert sum(ints).tolist() == sum(ints[i] for i in order).tolist()


def test_a_value_beyond_its_bound_is_cut_off_not_wrapped():
    exponent = resolution([1.0], LEAF_BITS)
    cut = from_ints(to_leaf_ints(np.array([1e9, -1e9]), exponent), exponent)
    assert cut.tolist() == [2 - 2.0**-51, -2 + 2.0**-51]


@given(st.floats(0, 1e30))
def test_the_power_above_a_bound_is_the_smallest(bound):
    above = power_above(bound)
    assert bound <= above
    assert above / 2 < bound or above == bound == 0


def test_leaf_sums_keep_eighteen_digits():
    exponent = resolution([1000.0], LEAF_BITS)
    value = np.array([123.456789012345678])
    assert from_ints(to_leaf_ints(value, exponent), exponent) == value
