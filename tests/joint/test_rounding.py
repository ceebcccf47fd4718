"""The rows that a tree takes, and their gradients as whole numbers."""

import numpy as np
import pytest

from simfl.joint.rounding import ALL, take_rows


def taken(g, h, share=ALL, keys=(1, 2), units=(0.25, 0.5), output=0):
    rows, packed = np.empty(len(g), np.int32), np.empty(len(g), np.int64)
    n = take_rows(g, h, output, np.array(units), np.array(keys, np.uint64), share, rows, packed)
    return rows[:n], packed[:n] >> 32, packed[:n] & 0xFFFFFFFF


def test_whole_multiples_of_the_unit_are_not_rounded():
    g, h = np.array([[0.5], [-0.25], [0.0]], np.float32), np.array([[1.0], [0.0], [3.5]], np.float32)
    rows, G, H = taken(g, h)
    assert (rows.tolist(), G.tolist(), H.tolist()) == ([0, 1, 2], [2, -1, 0], [2, 0, 7])


def test_other_numbers_are_rounded_up_or_down_and_right_on_average():
    g, h = np.full((20_000, 1), -0.3, np.float32), np.full((20_000, 1), 0.1, np.float32)
    _, G, H = taken(g, h)
    assert set(G.tolist()) == {-2, -1}
    assert set(H.tolist()) == {0, 1}
    assert G.mean() == pytest.approx(-1.2, abs=0.02)
    assert H.mean() == pytest.approx(0.2, abs=0.02)


def test_about_the_share_is_taken_in_order_and_each_row_as_if_all_were():
    rng = np.random.default_rng(0)
    g, h = (rng.random((20_000, 2)).astype(np.float32) for _ in range(2))
    every, some = taken(g, h, output=1), taken(g, h, share=ALL // 4, output=1)
    assert (every[0] == np.arange(20_000)).all()
    assert len(some[0]) == pytest.approx(5_000, abs=250)
    assert (np.diff(some[0]) > 0).all()
    for own, whole in zip(some[1:], every[1:], strict=True):
        np.testing.assert_array_equal(own, whole[some[0]])


def test_another_key_draws_other_rows_and_leaves_the_rounding_alone():
    rng = np.random.default_rng(0)
    g, h = (rng.random((1_000, 1)).astype(np.float32) for _ in range(2))
    first, second = taken(g, h, ALL // 2, keys=(1, 2)), taken(g, h, ALL // 2, keys=(1, 3))
    assert len(np.intersect1d(first[0], second[0])) < 350  # 250 of them by chance
    both = np.isin(first[0], second[0]), np.isin(second[0], first[0])
    np.testing.assert_array_equal(first[1][both[0]], second[1][both[1]])
