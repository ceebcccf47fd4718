"""Ids in as few bits as they need: nothing is lost, and the same ids are drawn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simfl.arrays import lasting
from simfl.preprocessing.ids import Ids
from simfl.training.gradients import draw_similar, sum_onto_similar


def some_ids(n, k, n_rows, seed=0):
    ids = np.random.default_rng(seed).integers(n_rows, size=(n, k), dtype=np.int32)
    ids.flat[-1] = n_rows - 1
    return ids


@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 2**31 - 1), st.integers(0, 2**63))
@settings(max_examples=60, deadline=None)
def test_ids_come_back_and_draws_are_those_of_plain_ids(n, k, n_rows, seed):
    ids = some_ids(n, k, n_rows)
    packed = Ids.pack(ids, n_rows)
    np.testing.assert_array_equal(packed.unpacked(), ids)
    np.testing.assert_array_equal(packed.drawn(seed), draw_similar(ids, seed))


@pytest.mark.parametrize(
    ("n_rows", "n_bytes"),
    [(1, 16_000), (65_536, 16_000), (65_537, 17_000), (100_000, 17_000), (131_073, 18_000), (1_000_000, 20_000)],
)
def test_an_id_takes_as_many_bits_as_it_needs_but_at_least_two_bytes(n_rows, n_bytes):
    packed = Ids.pack(some_ids(1600, 5, n_rows), n_rows)
    assert packed.low.nbytes + packed.high.nbytes == n_bytes


@pytest.mark.parametrize("n_rows", [50, 70_000])
def test_gradients_go_to_the_same_rows_as_with_plain_ids(n_rows):
    ids, g = some_ids(3000, 5, n_rows), np.random.default_rng(1).normal(size=(3000, 2)).astype(np.float32)
    plain = sum_onto_similar(ids, g, g, n_rows, seed=9)
    packed = sum_onto_similar(Ids.pack(ids, n_rows).to_draw_from(9), g, g, n_rows, seed=9)
    for one, other in zip(plain, packed, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("n", [0, 10, 200_000])
def test_a_lasting_copy_is_a_copy(n):
    values = np.arange(2 * n, dtype=np.uint16).reshape(n, 2)
    kept = lasting(values)
    np.testing.assert_array_equal(kept, values)
    values[:] = 7
    assert kept.flags.writeable
    assert not np.shares_memory(kept, values)
    assert n == 0 or kept[0, 1] == 1


def test_no_rows_have_no_ids():
    assert Ids.pack(np.empty((0, 5), dtype=np.int32), 100_000).unpacked().shape == (0, 5)
