import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfl.training.gradients import draw_similar, most_uses, sum_onto_similar, sum_per_leaf


@given(st.integers(0, 2**32 - 1), st.integers(1, 50), st.integers(1, 9))
def test_every_gradient_lands_exactly_once(seed, n, k):
    rng = np.random.default_rng(seed)
    similar = rng.integers(0, 7, size=(n, k)).astype(np.int32)
    drawn = draw_similar(similar, seed)
    assert all(drawn[i] in similar[i] for i in range(n))
    g, h = rng.normal(size=(2, n, 2)).astype(np.float32)
    for values, sums in zip((g, h), np.moveaxis(sum_onto_similar(similar, g, h, 7, seed).sums, 2, 0), strict=True):
        for output in range(2):
            expected = np.bincount(drawn, weights=values[:, output], minlength=7)
            assert sums[:, output] == pytest.approx(expected, abs=1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(1, 50))
def test_sums_per_leaf_are_those_of_one_output(seed, n):
    rng = np.random.default_rng(seed)
    leaf = rng.integers(0, 5, n).astype(np.int32)
    g, h = rng.normal(size=(2, n, 3)).astype(np.float32)
    for values, sums in zip((g, h), sum_per_leaf(leaf, g, h, 2, 5), strict=True):
        assert sums == pytest.approx(np.bincount(leaf, weights=values[:, 2], minlength=5), abs=1e-12)


def test_a_new_tree_draws_again_and_the_same_seed_draws_the_same():
    similar = np.tile(np.arange(20, dtype=np.int32), (500, 1))
    assert (draw_similar(similar, 1) == draw_similar(similar, 1)).all()
    assert (draw_similar(similar, 1) != draw_similar(similar, 2)).mean() > 0.8


def test_all_neighbours_are_drawn_equally_often():
    similar = np.tile(np.arange(20, dtype=np.int32), (40_000, 1))
    counts = np.bincount(draw_similar(similar, 0), minlength=20)
    assert np.sum((counts - 2000) ** 2 / 2000) < 50  # chi-square with 19 degrees of freedom: p about 1e-4


@given(st.integers(0, 2**32 - 1))
def test_no_draw_can_use_a_row_more_often_than_announced(seed):
    similar = np.random.default_rng(seed).integers(0, 5, size=(30, 3)).astype(np.int32)
    assert np.bincount(draw_similar(similar, seed)).max() <= most_uses(similar, 5)
