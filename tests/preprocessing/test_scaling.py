import numpy as np
import pytest
from scipy import sparse

from simfl.preprocessing.scaling import WITHOUT_WEIGHT, Moments, common_scale, moments


def rows(n, seed, missing=0.0):
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(n, 4)) * [1, 10, 0.01, 1] + [0, 1000, 0, 5]).astype(np.float32)
    X[rng.random(X.shape) < missing] = np.nan
    return X


def test_the_common_scale_is_that_of_the_pooled_rows():
    parts = [rows(30, 0, missing=0.1), rows(50, 1, missing=0.2), rows(7, 2)]
    found = [moments(p) for p in parts]
    total = Moments(*(np.sum([getattr(m, name) for m in found], axis=0) for name in ("counts", "sums", "squares")))
    scale = common_scale(total, n_rows=87)
    pooled = np.concatenate(parts).astype(float)
    assert scale.mean == pytest.approx(np.nanmean(pooled, axis=0))
    assert scale.deviation == pytest.approx(np.nanstd(pooled, axis=0))


def test_the_norm_is_the_root_mean_square_length_of_a_scaled_row():
    X = rows(200, 3, missing=0.3)
    scale = common_scale(moments(X), n_rows=200)
    scaled = np.nan_to_num((X.astype(float) - scale.mean) / scale.deviation)
    assert scale.norm == pytest.approx(np.sqrt((scaled**2).sum(axis=1).mean()))


def test_a_constant_column_does_not_count():
    X = np.full((5, 1), 1e6, dtype=np.float32)
    scale = common_scale(moments(X), n_rows=5)
    assert scale.deviation.tolist() == [WITHOUT_WEIGHT]
    assert scale.norm == 0


def test_a_column_that_hardly_varies_about_a_large_number_does_not_drown_the_others():
    rng = np.random.default_rng(0)
    X = np.column_stack([1e9 + rng.integers(-500, 500, 200), rng.normal(size=200)]).astype(np.float32)
    scale = common_scale(moments(X), n_rows=200)
    assert scale.norm == pytest.approx(1, abs=0.5)


def test_a_column_that_is_missing_everywhere_is_harmless():
    scale = common_scale(moments(np.full((5, 1), np.nan, dtype=np.float32)), n_rows=5)
    assert (scale.mean.tolist(), scale.deviation.tolist()) == ([0.0], [WITHOUT_WEIGHT])


def test_sparse_and_dense_rows_have_the_same_moments():
    X = np.where(np.random.default_rng(0).random((40, 6)) < 0.3, rows(40, 1)[:, [0, 1, 2, 3, 0, 1]], 0)
    dense, thin = moments(X), moments(sparse.csr_matrix(X))
    assert dense.counts == pytest.approx(thin.counts)
    assert dense.sums == pytest.approx(thin.sums)
    assert dense.squares == pytest.approx(thin.squares)
