"""Cut points from summed counts: hand-worked ones, hard columns, and the same bits however the rows are shared out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from simfl.joint.cuts import FEW_MISSING, FINE, REACH, Grid, binned, cell_counts, choose, divided, grid, parts
from simfl.joint.level import MISSING
from simfl.joint.rows import BinnedRows, SparseRows
from tests.joint.levels import as_dense


def grid_of(X, levels=None):
    with np.errstate(all="ignore"):
        known = ~np.isnan(X)
        n = np.maximum(known.sum(axis=0), 1)
        mean = np.where(known, X, 0).sum(axis=0, dtype=float) / n
        deviation = np.sqrt((np.where(known, X - mean, 0) ** 2).sum(axis=0, dtype=float) / n)
    return grid(mean, deviation, levels or [0] * X.shape[1])


def cuts_of(X, max_bin=255, least=1, levels=None, n_refined=1):
    own = grid_of(X, levels)
    for _ in range(n_refined):
        own = divided(own, parts(own, cell_counts(X, own)))
    return choose(own, cell_counts(X, own), max_bin, least)


def column(values):
    return np.asarray(values, dtype=np.float32)[:, None]


def chosen(counts, max_bin, least):
    """The points chosen in a grid with points 0, 1, 2, ... from the counts of the cells between them."""
    own = Grid((np.arange(len(counts) - 1, dtype=np.float32),), np.zeros(1, dtype=np.int32))
    return choose(own, np.array([*counts, 0]), max_bin, least).points[0].tolist()


def test_cell_counts_by_hand():
    own = Grid((np.array([1, 2], dtype=np.float32), np.empty(0, np.float32)), np.array([0, 3], dtype=np.int32))
    X = np.array([[0.5, 0], [1.0, 2], [1.5, np.nan], [np.nan, 2]], dtype=np.float32)
    assert cell_counts(X, own).tolist() == [1, 2, 0, 1, 1, 0, 2, 1]
    assert own.start.tolist() == [0, 4, 8]


def test_points_at_the_quantiles():
    assert chosen([5, 5, 5, 5], max_bin=2, least=1) == [1]
    assert chosen([5, 5, 5, 5], max_bin=4, least=1) == [0, 1, 2]
    assert chosen([5, 5, 5, 5], max_bin=4, least=6) == [1]


def test_a_point_is_in_the_middle_of_the_empty_cells():
    assert chosen([9, 0, 0, 0, 9], max_bin=255, least=1) == [1]


def test_no_point_separates_fewer_than_least_rows():
    assert chosen([3, 9, 9, 3], max_bin=255, least=5) == [1]
    assert chosen([3, 100, 3], max_bin=255, least=5) == []


def test_a_frequent_value_keeps_its_neighbours_apart():
    assert chosen([20, 1000, 20], max_bin=255, least=10) == [0, 1]


def test_frequent_values_leave_the_points_to_the_others():
    values = np.concatenate([np.zeros(90_000), np.random.default_rng(0).uniform(1, 2, 10_000)])
    points = cuts_of(column(values)).points[0]
    assert len(points) > 230
    assert (points[1:] > 1).all()


def test_negative_noisy_counts_are_no_rows():
    assert chosen([5, -3, 5, -1], max_bin=255, least=2) == [0]


@pytest.mark.parametrize("values", [[0, 1], range(13), [-1, 0, 7, 1000], [0.001, 0.002, 5]])
def test_all_frequent_values_are_told_apart(values):
    X = column(np.repeat(list(values), 5000))
    bins = binned(X, cuts_of(X, least=20)).bins[:, 0]
    np.testing.assert_array_equal(bins, np.repeat(np.arange(len(values)), 5000))


@pytest.mark.parametrize("values", [[3, 3, 3], [np.nan] * 3, [1e30, 1e30], [0.0, np.nan]])
def test_a_column_that_does_not_vary_has_no_points(values):
    assert len(cuts_of(column(values)).points[0]) == 0


def test_values_near_the_end_of_float32():
    X = column([-3e38, 0, 3e38] * 9)
    cuts = cuts_of(X)
    assert np.isfinite(cuts.points[0]).all()
    assert binned(X, cuts).bins[:3, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("draw", ["normal", "lognormal", "standard_cauchy", "exponential"])
def test_heavy_tails_get_even_bins(draw):
    rng = np.random.default_rng(1)
    values = np.exp(3 * rng.normal(size=50_000)) if draw == "lognormal" else getattr(rng, draw)(size=50_000)
    X = column(values)
    rows_per_bin = np.bincount(binned(X, cuts_of(X, n_refined=3 if draw == "lognormal" else 1)).bins[:, 0])
    assert len(rows_per_bin) > 150
    assert rows_per_bin.max() < 4 * 50_000 / 255


def test_missing_values_are_a_bin_of_their_own():
    X = np.array([[1, np.nan], [2, np.nan], [np.nan, 5]] * FEW_MISSING, dtype=np.float32)
    cuts = cuts_of(X)
    assert cuts.has_missing.tolist() == [True, True]
    assert binned(X, cuts).bins[:3].tolist() == [[0, MISSING], [1, MISSING], [MISSING, 0]]
    assert cuts_of(X[:-3]).has_missing.tolist() == [False, True]  # counts have noise: a few may be none


def test_levels_are_bins_and_the_last_ones_share_one():
    X = column([0, 7, 253, 254, 255, 299, np.nan])
    cuts = cuts_of(X, levels=[300])
    assert len(cuts.points[0]) == 0
    assert binned(X, cuts).bins[:, 0].tolist() == [0, 7, 253, 254, 254, 254, MISSING]


def test_a_bin_up_to_j_is_a_value_below_point_j():
    X = column(np.random.default_rng(0).normal(size=3000))
    cuts = cuts_of(X)
    bins = binned(X, cuts).bins[:, 0]
    for j, point in enumerate(cuts.points[0]):
        np.testing.assert_array_equal(bins <= j, X[:, 0] < point)


@pytest.mark.parametrize(("share", "kind"), [(0.03, SparseRows), (0.3, BinnedRows)])
def test_sparse_tables_have_the_bins_of_dense_ones(share, kind):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 6)).astype(np.float32)
    X[rng.random(X.shape) > share] = np.nan
    known = ~np.isnan(X)
    S = sparse.csr_matrix((X[known], np.nonzero(known)), shape=X.shape)
    public = grid_of(X)
    np.testing.assert_array_equal(cell_counts(S, public), cell_counts(X, public))
    rows = binned(S, cuts_of(X))
    assert type(rows) is kind
    np.testing.assert_array_equal(as_dense(rows), binned(X, cuts_of(X)).bins)


@given(st.integers(0, 2**32 - 1), st.integers(1, 400), st.sampled_from([2, 16, 255]), st.integers(1, 40))
def test_points_rise_and_keep_their_promises(seed, n_cells, max_bin, least):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, rng.choice([2, 30, 3000]), n_cells) * (rng.random(n_cells) < rng.choice([0.05, 0.5, 1.0]))
    points = np.array(chosen(counts, max_bin, least), dtype=int)
    assert len(points) <= min(max_bin - 1, 254)
    assert (np.diff(points) > 0).all()
    if len(points):
        parts = np.add.reduceat(counts, [0, *(points + 1)])
        assert parts.sum() == counts.sum()
        assert (parts >= least).all()


def test_the_parties_do_not_matter_only_the_total():
    X = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    public = grid_of(X)
    total = sum(cell_counts(part, public) for part in np.array_split(X, 7))
    np.testing.assert_array_equal(total, cell_counts(X, public))


def test_the_grid_is_finest_at_the_mean():
    points = grid(np.array([5.0]), np.array([2.0]), [0]).points[0]
    steps = FINE * np.sinh(np.linspace(-1.0, 1.0, 255) * np.arcsinh(REACH / FINE))
    np.testing.assert_allclose(points, 5 + 2 * steps, rtol=1e-6, atol=1e-5)
