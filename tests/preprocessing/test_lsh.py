import math

import numpy as np
import pytest
from scipy import sparse

from simfl.preprocessing.lsh import HashFamily, hash_rows
from simfl.preprocessing.scaling import Scale, common_scale, moments


def test_the_same_seed_draws_the_same_functions():
    one, other = (HashFamily.draw(7, 5, 9, 2.0) for _ in range(2))
    assert one.directions.tobytes() == other.directions.tobytes()
    assert (HashFamily.draw(8, 5, 9, 2.0).directions != one.directions).all()


def test_offsets_lie_in_one_bucket():
    offsets = HashFamily.draw(0, 10_000, 1, 3.0).offsets
    assert offsets.min() >= 0
    assert offsets.max() < 3
    assert offsets.mean() == pytest.approx(1.5, abs=0.05)


def collision_rate(law, distance, width, n=40_000):
    family = HashFamily.draw(1, n, 3, width, law)
    X = np.zeros((2, 3), dtype=np.float32)
    X[1] = np.array(distance)
    hashes = hash_rows(X, family, Scale.none(3))
    return (hashes[0] == hashes[1]).mean()


@pytest.mark.parametrize("c", [0.5, 1.0, 3.0])
def test_gaussian_hashes_collide_as_the_l2_distance_says(c):
    # Datar et al. 2004: 1 - 2 Phi(-r/c) - 2 / (sqrt(2 pi) r/c) (1 - exp(-r^2 / (2 c^2)))
    t = 2.0 / c
    phi = 0.5 * math.erfc(t / math.sqrt(2))
    expected = 1 - 2 * phi - 2 / (math.sqrt(2 * math.pi) * t) * (1 - math.exp(-t * t / 2))
    assert collision_rate("gaussian", [c * 0.6, c * 0.8, 0], 2.0) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("c", [0.5, 1.0, 3.0])
def test_cauchy_hashes_collide_as_the_l1_distance_says(c):
    # Datar et al. 2004: 2 arctan(r/c) / pi - ln(1 + (r/c)^2) / (pi r/c)
    t = 2.0 / c
    expected = 2 * math.atan(t) / math.pi - math.log(1 + t * t) / (math.pi * t)
    assert collision_rate("cauchy", [c * 0.25, -c * 0.5, c * 0.25], 2.0) == pytest.approx(expected, abs=0.01)


def test_sparse_and_dense_rows_hash_alike():
    rng = np.random.default_rng(0)
    X = np.where(rng.random((200, 12)) < 0.3, rng.normal(size=(200, 12)), 0).astype(np.float32)
    scale = common_scale(moments(X), n_rows=200)
    family = HashFamily.draw(0, 8, 12, 1.5)
    assert (hash_rows(X, family, scale) == hash_rows(sparse.csr_matrix(X), family, scale)).all()


def test_a_missing_value_counts_as_the_mean():
    X = np.array([[1.0, 2.0], [3.0, np.nan], [5.0, 8.0]], dtype=np.float32)
    scale = common_scale(moments(X), n_rows=3)
    family = HashFamily.draw(0, 16, 2, 0.5)
    filled = X.copy()
    filled[1, 1] = 5.0
    assert (hash_rows(X, family, scale) == hash_rows(filled, family, scale)).all()
    thin = sparse.csr_matrix(X)
    assert (hash_rows(thin, family, scale) == hash_rows(filled, family, scale)).all()


def test_scaled_directions_equal_scaled_rows():
    X = (np.random.default_rng(0).normal(size=(100, 3)) * [1, 50, 0.1] + [0, 9, 3]).astype(np.float32)
    scale = common_scale(moments(X), n_rows=100)
    family = HashFamily.draw(0, 2, 3, 1.0)
    scaled = ((X.astype(float) - scale.mean) / scale.deviation) @ family.directions.T
    assert (hash_rows(X, family, scale) == np.floor(scaled + family.offsets)).all()


def test_chunks_leave_no_seam(monkeypatch):
    X = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    family = HashFamily.draw(0, 2, 3, 1.0)
    whole = hash_rows(X, family, Scale.none(3))
    monkeypatch.setattr("simfl.preprocessing.lsh.ROWS_AT_ONCE", 7)
    assert (hash_rows(X, family, Scale.none(3)) == whole).all()


def test_heavy_tails_stay_in_the_outermost_bucket():
    family = HashFamily(np.array([[1e30]]), np.array([0.0]), 1.0)
    assert hash_rows(np.array([[1.0], [-1.0]], np.float32), family, Scale.none(1)).tolist() == [[2**31 - 1], [-(2**31)]]
