import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from simfl.simulate.holding_out import hold_out


@given(st.lists(st.integers(4, 40), min_size=1, max_size=5), st.integers(0, 2**32 - 1), st.booleans())
def test_the_rows_held_out_are_those_of_scikit_learn(counts, seed, stratify):
    rows = np.arange(sum(counts))
    classes = np.random.default_rng(seed).permutation(np.repeat(list("abcde")[: len(counts)], counts))
    expected = train_test_split(rows, test_size=0.25, random_state=seed, stratify=classes if stratify else None)
    found = hold_out(len(rows), 0.25, seed, classes if stratify else None)
    for own, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(own, np.sort(theirs))
