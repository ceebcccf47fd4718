import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simfl.training.gradients import draw_similar, most_uses, sum_onto


@given(st.integers(0, 2**32 - 1), st.integers(1, 50), st.integers(1, 9))
def test_every_gradient_lands_exactly_once(seed, n, k):
    rng = np.random.default_rng(seed)
    similar = rng.integers(0, 7, size=(n, k)).astype(np.int32)
    drawn = draw_similar(similar, [seed])
    landed = sum_onto(drawn, np.ones(n), 7)
    assert landed.sum() == n
    assert all(drawn[i] in similar[i] for i in range(n))


def test_a_new_tree_draws_anew_and_the_same_seed_the_same():
    similar = np.tile(np.arange(20, dtype=np.int32), (500, 1))
    assert (draw_similar(similar, [1]) == draw_similar(similar, [1])).all()
    assert (draw_similar(similar, [1]) != draw_similar(similar, [2])).mean() > 0.8


def test_all_neighbours_are_drawn_equally_often():
    similar = np.tile(np.arange(20, dtype=np.int32), (40_000, 1))
    counts = np.bincount(draw_similar(similar, [0]), minlength=20)
    assert np.sum((counts - 2000) ** 2 / 2000) < 50  # chi-square with 19 degrees of freedom: p about 1e-4


@given(st.integers(0, 2**32 - 1))
def test_no_draw_can_use_a_row_more_often_than_announced(seed):
    similar = np.random.default_rng(seed).integers(0, 5, size=(30, 3)).astype(np.int32)
    assert np.bincount(draw_similar(similar, [seed])).max() <= most_uses(similar, 5)
