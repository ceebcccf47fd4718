"""Sums onto rows as words: what is rounded, what is added, and that a total is never another one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfl.preprocessing.splitmix import row_tokens
from simfl.privacy.exact import resolution
from simfl.privacy.words import FORMS, Extremes, add_bytes, can_be, from_bytes, most_steps, split, to_bytes, to_words

numbers = st.floats(-1e6, 1e6, allow_nan=False)
vectors = st.lists(
    st.lists(st.tuples(numbers, st.floats(0, 1e6)), min_size=3, max_size=3), min_size=1, max_size=8
)  # per party three rows: a gradient and a hessian each
forms = st.sampled_from(list(FORMS.values()))
EXACT = FORMS[8]


def fitting(parties, form):
    """The exponents under which the totals of these sums fit."""
    largest = np.abs(parties).max(axis=1)  # per party and part
    return resolution(largest[:, 0], form.gradient_bits), resolution(largest[:, 1], form.hessian_bits)


def words_of(parties, exponents, form, seed=0):
    tokens = row_tokens(seed, parties.shape[1])
    return [to_words(own[:, None, :], tokens, exponents, form, len(parties)) for own in parties]


def total_of(words, form):
    total = np.zeros(len(words[0]), dtype=np.uint64)
    for own in words:
        add_bytes(total, to_bytes(own, form.n_bytes), form)
    return split(from_bytes(to_bytes(total, form.n_bytes), form.n_bytes), form)


@given(vectors, forms, st.integers(0, 2**32))
def test_the_total_of_all_parties_is_the_sum_of_their_numbers(parties, form, seed):
    parties = np.array(parties)
    exponents = fitting(parties, form)
    words = words_of(parties, exponents, form, seed)
    each = [split(own, form) for own in words]
    for part, found in enumerate(total_of(words, form)):
        assert found.tolist() == sum(own[part] for own in each).tolist()  # nothing wraps around, or spills over
        grid = 2.0 ** exponents[part]
        exact = parties[..., part].sum(axis=0)
        assert np.allclose(found * grid, exact, atol=grid * len(parties), rtol=1e-9)


@given(vectors, forms, st.integers(0, 2**32), st.binary(min_size=24, max_size=24))
def test_masks_that_cancel_change_no_total(parties, form, seed, stream):
    parties = np.array(parties)
    words = words_of(parties, fitting(parties, form), form, seed)
    mask = np.zeros(3, dtype=np.uint64)
    add_bytes(mask, stream[: 3 * form.n_bytes], form)
    opposite = np.zeros(3, dtype=np.uint64)
    add_bytes(opposite, stream[: 3 * form.n_bytes], form, sign=-1)
    hidden = [words[0] + mask, *words[1:], opposite]
    for found, true in zip(total_of(hidden, form), total_of(words, form), strict=True):
        assert found.tolist() == true.tolist()


@pytest.mark.parametrize("n_bytes", [3, 4])
def test_numbers_rounded_at_random_are_right_on_average(n_bytes):
    n, grid = 40_000, 2.0**-4
    for g, h in ((0.3, 0.01), (-0.99, 0.24), (-0.01, 0.2), (2.5, 1.0)):
        sums = np.broadcast_to([g, h], (n, 1, 2))
        words = to_words(np.ascontiguousarray(sums), row_tokens(7, n), (-4, -4), FORMS[n_bytes])
        for found, value in zip(split(words, FORMS[n_bytes]), (g, h), strict=True):
            assert set(np.unique(found)) <= {np.floor(value / grid), np.ceil(value / grid)}
            assert found.mean() * grid == pytest.approx(value, abs=5 * grid / 2 / np.sqrt(n))


def test_what_is_on_the_grid_and_what_is_nothing_is_not_rounded():
    values = np.array([0.0, 0.25, -3.5, 100.0])
    sums = np.stack([values, np.abs(values)], axis=1)[:, None]
    for seed in range(50):
        for n_bytes in (3, 4):
            G, H = split(to_words(sums, row_tokens(seed, 4), (-2, -2), FORMS[n_bytes]), FORMS[n_bytes])
            assert (G * 0.25).tolist() == values.tolist()
            assert (H * 0.25).tolist() == np.abs(values).tolist()


def test_gradients_and_hessians_are_rounded_apart():
    n = 20_000
    words = to_words(np.full((n, 2, 2), 0.5), row_tokens(1, n), (0, 0), FORMS[3])
    g, h = (part.reshape(n, 2) for part in split(words, FORMS[3]))
    ups = np.stack([g[:, 0], g[:, 1], h[:, 0], h[:, 1]])
    assert np.abs(np.corrcoef(ups) - np.eye(4)).max() < 0.04


@given(forms, st.integers(1, 40))
def test_a_value_beyond_its_bound_is_cut_off_not_wrapped(form, n_parties):
    sums = np.array([[[1e9, 1e9]], [[-1e9, 1e9]]])
    G, H = split(to_words(sums, row_tokens(0, 2), (-30, -30), form, n_parties), form)
    most = most_steps(form, n_parties)
    assert (G.tolist(), H.tolist()) == ([most[0], -most[0]], [most[1], most[1]])
    assert n_parties * most[0] < 2**form.gradient_bits
    assert n_parties * most[1] < 2**form.hessian_bits


@given(st.lists(st.tuples(st.integers(-(2**31) + 1, 2**31 - 1), st.integers(0, 2**31 - 1)), min_size=1))
def test_the_extremes_of_what_is_added(pairs):
    sums = np.array(pairs, dtype=np.float64)[:, None]
    words = to_words(sums, row_tokens(0, len(pairs)), (0, 0), EXACT)
    found = add_bytes(np.zeros(len(pairs), dtype=np.uint64), to_bytes(words, 8), EXACT)
    low, high = np.minimum(sums.min(axis=(0, 1)), 0), np.maximum(sums.max(axis=(0, 1)), 0)
    assert found == Extremes(low[0], high[0], high[1])
    assert can_be(found, (2**31, 2**31))
    for most in ((max(high[0], -low[0]) - 1, 2**31), (2**31, high[1] - 1)):
        assert not can_be(found, most)


@given(st.lists(st.integers(0, 2**24 - 1)))
def test_three_bytes_hold_a_word(values):
    words = np.array(values, dtype=np.uint64)
    assert from_bytes(to_bytes(words + np.uint64(2**24), 3), 3).tolist() == values
