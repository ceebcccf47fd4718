"""A builder's trees without XGBoost: the same splits, from sums of integers."""

import numpy as np
import pytest
import xgboost as xgb
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import simfl
from simfl.errors import ParameterError
from simfl.training import histograms, trees
from simfl.training.histograms import HistogramGrower, histogrammed
from simfl.training.traversal import walker
from tests.wire import model_bits, settled


@pytest.fixture(autouse=True, scope="module")
def for_few_rows_too():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(histograms, "FEWEST_ROWS", 0)
        yield


def table(seed, n=400, d=5, share_missing=0.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    X[:, 0] = np.round(X[:, 0])  # few values
    X[:, 1] = X[:, 1] > 1  # two, one of them rare
    X[rng.random((n, d)) < share_missing] = np.nan
    signal = np.nan_to_num(X[:, 2]) * np.nan_to_num(X[:, 3]) + np.nan_to_num(X[:, 0])
    weight = rng.gamma(1.0, 3.0, n)
    g, h = weight * (0.5 * rng.normal(size=n) - signal), weight * rng.uniform(0.05, 0.25, n)
    return X, g.astype(np.float32), h.astype(np.float32)


def both(X, g, h, bins=16, **params):
    """The tree as XGBoost grows it, and as it is grown here, on the same cut points."""
    wanted = settled(max_bin=bins, **params)
    cut = xgb.QuantileDMatrix(X, max_bin=bins, nthread=1)
    own = histogrammed(X, cut)
    return trees.Grower(cut, wanted, 1).grow(g, h, seed=1), HistogramGrower(own, wanted).grow(g, h, seed=1)


def sides(tree, X):
    """The leaf of every row: two trees with the same ones divide the rows alike."""
    return walker(X, by_level=False).leaf_numbers(tree)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 5), st.sampled_from([4, 16, 60]))
def test_it_finds_the_splits_of_xgboost(seed, depth, bins):
    X, g, h = table(seed)
    theirs, own = both(X, g, h, bins, max_depth=depth)
    assert own.feature.tolist() == theirs.feature.tolist()
    assert own.threshold.tolist() == theirs.threshold.tolist()
    assert own.left.tolist() == theirs.left.tolist()


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from([0.05, 0.4]))
def test_missing_values_go_where_xgboost_sends_them(seed, share):
    X, g, h = table(seed, share_missing=share)
    theirs, own = both(X, g, h, max_depth=3)
    assert own.feature.tolist() == theirs.feature.tolist()
    assert sides(own, X).tolist() == sides(theirs, X).tolist()


@settings(max_examples=15)
@given(st.integers(0, 10_000))
def test_what_a_sparse_table_leaves_out_is_missing(seed):
    X, g, h = table(seed, share_missing=0.7)
    X[X == 0] = 0.5
    rows = sparse.csr_matrix(np.nan_to_num(X))
    theirs, own = both(rows, g, h, max_depth=3)
    assert own.feature.tolist() == theirs.feature.tolist()
    assert sides(own, rows).tolist() == sides(theirs, rows).tolist()


@pytest.mark.parametrize(
    "params",
    [
        {"reg_lambda": 0.0},
        {"reg_lambda": 20.0},
        {"reg_alpha": 3.0},
        {"extra_depth": 0, "min_child_weight": 15.0},
        {"extra_depth": 0, "gamma": 4.0},
        {"extra_depth": 0, "min_child_weight": 0.0},
        {"subsample": 0.5},
    ],
)
def test_every_parameter_means_what_it_means_there(params):
    X, g, h = table(3, share_missing=0.1)
    theirs, own = both(X, g, h, max_depth=4, **params)
    assert own.feature.tolist() == theirs.feature.tolist()
    assert sides(own, X).tolist() == sides(theirs, X).tolist()


def test_the_order_of_the_rows_does_not_matter():
    X, g, h = table(5, share_missing=0.1)
    order = np.random.default_rng(0).permutation(len(g))
    cut = xgb.QuantileDMatrix(X, max_bin=16, nthread=1)  # XGBoost's own cut points may depend on the order
    params = settled(max_depth=6, max_bin=16)
    first, second = (
        HistogramGrower(histogrammed(X[rows], cut), params).grow(g[rows], h[rows], 1) for rows in (slice(None), order)
    )
    assert first.feature.tolist() == second.feature.tolist()
    assert first.threshold.tolist() == second.threshold.tolist()


@settings(max_examples=30)
@given(
    st.integers(0, 10_000), st.integers(1, 8), st.sampled_from([0.0, 0.3]), st.booleans(), st.sampled_from([0.0, 9.0])
)
def test_parts_grown_side_by_side_are_the_same_tree(seed, depth, share_missing, is_sparse, gamma):
    X, g, h = table(seed, share_missing=share_missing)
    rows = sparse.csr_matrix(np.nan_to_num(X)) if is_sparse else X
    wanted = settled(max_bin=16, max_depth=depth, extra_depth=0, gamma=gamma)
    own = histogrammed(rows, xgb.QuantileDMatrix(rows, max_bin=16, nthread=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(histograms, "MANY_ENTRIES", 0)
        grower = HistogramGrower(own, wanted)
    alone = grower.grow(g, h, seed=1)
    grower.threads = 3
    for _ in range(2):  # in the same room again
        together = grower.grow(g, h, seed=1)
        for name in ("feature", "threshold", "default_left", "left"):
            np.testing.assert_array_equal(getattr(together, name), getattr(alone, name))
    assert bool(grower._pools) == (depth > histograms.TOP)


def test_rows_without_gradients_have_no_part():
    X, g, h = table(6)
    g[200:], h[200:] = 0, 0
    cut = xgb.QuantileDMatrix(X, max_bin=16, nthread=1)
    params = settled(max_depth=4, max_bin=16)
    whole = HistogramGrower(histogrammed(X, cut), params).grow(g, h, 0)
    half = HistogramGrower(histogrammed(X[:200], cut), params).grow(g[:200], h[:200], 0)
    assert whole.threshold.tolist() == half.threshold.tolist()


def test_columns_that_do_not_vary_or_are_all_missing_are_not_split():
    X, g, h = table(7)
    X[:, 2], X[:, 3] = 1.0, np.nan
    _, own = both(X, g, h, max_depth=3)
    assert not {2, 3} & set(own.feature.tolist())


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_handful_of_rows(n):
    X, g, h = table(8, n=n)
    theirs, own = both(X, g, h, max_depth=3, reg_lambda=0.0)
    assert sides(own, X).tolist() == sides(theirs, X).tolist()


def test_gradients_of_zero_give_a_single_leaf():
    X, g, _ = table(9)
    _, own = both(X, 0 * g, 0 * g, max_depth=3)
    assert own.feature.tolist() == [trees.LEAF]


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_gradients_that_are_not_finite_are_refused(value):
    X, g, h = table(9)
    g[7] = value
    own = histogrammed(X, xgb.QuantileDMatrix(X, max_bin=16))
    with pytest.raises(ParameterError, match="diverges"):
        HistogramGrower(own, settled(max_depth=3)).grow(g, h, 0)


def test_thresholds_are_finite_whatever_the_values():
    X, g, h = table(9)
    X[:, 4] = np.where(g > 0, np.nan, 3e38)  # XGBoost's last cut point is twice that
    own = histogrammed(X, xgb.QuantileDMatrix(X, max_bin=16))
    tree = HistogramGrower(own, settled(max_depth=1, extra_depth=0)).grow(g, h, 0)
    assert tree.feature[0] == 4
    assert np.isfinite(tree.threshold).all()


def test_large_gradients_do_not_hide_the_best_split():
    X, g, h = table(9)
    g = np.where(X[:, 2] > 0.3, 1e20, -1e20).astype(np.float32)
    own = histogrammed(X, xgb.QuantileDMatrix(X, max_bin=64))
    tree = HistogramGrower(own, settled(max_depth=1, extra_depth=0)).grow(g, np.ones_like(h), 0)
    assert tree.feature[0] == 2


def test_too_many_bins_are_left_to_xgboost(monkeypatch):
    monkeypatch.setattr(histograms, "MOST_BINS", 20)
    X, _, _ = table(10)
    assert histogrammed(X, xgb.QuantileDMatrix(X, max_bin=16)) is None
    parties = [simfl.Party("a", X[:200], X[:200, 2] > 0), simfl.Party("b", X[200:], X[200:, 2] > 0)]
    assert len(simfl.train(parties, n_trees=2, n_hashes=3, random_state=0).history) == 2


def test_few_rows_are_left_to_xgboost(monkeypatch):
    monkeypatch.setattr(histograms, "FEWEST_ROWS", 401)
    X, _, _ = table(10)
    assert histogrammed(X, xgb.QuantileDMatrix(X, max_bin=16)) is None


@pytest.mark.parametrize("objective", ["binary:logistic", "multi:softprob", "reg:squarederror"])
def test_a_training_has_the_same_bits_on_any_number_of_threads_and_under_masks(objective):
    X, g, _ = table(11, n=600, share_missing=0.05)
    y = g if objective == "reg:squarederror" else np.digitize(g, [0] if objective == "binary:logistic" else [-1, 1])
    parties = [simfl.Party(name, X[i::3], y[i::3]) for i, name in enumerate("abc")]
    more = {"objective": objective, "n_trees": 6, "max_depth": 4, "n_hashes": 3, "rematch": 2, "random_state": 0}
    models = [simfl.train(parties, **more, **each) for each in ({"n_jobs": 1}, {"n_jobs": 4}, {"masked": True})]
    first, *others = [model_bits(model) for model in models]
    assert all(model == first for model in others)


@pytest.mark.parametrize(
    "params",
    [
        {"recipe": "paper"},
        {"colsample_bytree": 0.5},
        {"monotone_constraints": (1, 0)},
        {"interaction_constraints": ((0, 1),)},
        {"max_delta_step": 1.0},
        {"max_depth": 0},
        {"max_depth": 100},
    ],
)
def test_what_it_does_not_know_is_left_to_xgboost(params):
    assert histograms.fits(settled(max_depth=3))
    assert not histograms.fits(settled(**{"max_depth": 3} | params))
