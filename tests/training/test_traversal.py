import numpy as np
import xgboost as xgb
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from simfl.training.traversal import _Dense, _Sparse, leaf_numbers, walker
from simfl.training.trees import Tree, children, from_booster
from tests.training.boosters import depth, foreign_booster, table


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.3]), st.sampled_from([0.0, 2.0]))
def test_a_foreign_tree_sends_every_row_to_the_leaf_that_its_raw_values_say(seed, missing, gamma):
    booster = foreign_booster(seed, gamma=gamma, missing=missing)
    tree = from_booster(booster)
    X = table(400, 5, seed + 1, missing)
    theirs = booster.predict(xgb.DMatrix(X), pred_leaf=True).astype(int).reshape(-1)
    margins = booster.predict(xgb.DMatrix(X), output_margin=True)
    ours = leaf_numbers(tree, X)
    pairs = set(zip(ours.tolist(), theirs.tolist(), strict=True))
    assert len(pairs) == len(set(ours.tolist())) == len(set(theirs.tolist()))
    assert (tree.value[tree.leaves][ours] == margins).all()


@settings(max_examples=15)
@given(st.integers(0, 10_000))
def test_what_a_sparse_row_does_not_store_is_missing(seed):
    rng = np.random.default_rng(seed)
    thin = sparse.random(300, 8, density=0.3, format="csr", dtype=np.float32, random_state=seed)
    booster = xgb.train({"max_depth": 5, "base_score": 0.0}, xgb.DMatrix(thin, rng.normal(size=300)), 1)
    tree = from_booster(booster)
    other = sparse.random(200, 8, density=0.3, format="csr", dtype=np.float32, random_state=seed + 1)
    other.data[::7] = np.nan
    margins = booster.predict(xgb.DMatrix(other), output_margin=True)
    assert isinstance(walker(other), _Sparse)
    assert (tree.value[tree.leaves][leaf_numbers(tree, other)] == margins).all()


def test_a_threshold_between_below_and_above_all_values_of_a_party():
    X = np.array([[1.0], [2.0], [3.0], [np.nan]], np.float32)
    feature = np.array([0, -1, -1], np.int32)
    for threshold, expected in ((0.5, [1, 1, 1, 0]), (2.0, [0, 1, 1, 0]), (2.5, [0, 0, 1, 0]), (9.0, [0, 0, 0, 0])):
        cut = np.array([threshold, 0, 0], np.float32)
        tree = Tree(feature, cut, np.array([True, False, False]), children(feature), np.zeros(3, np.float32))
        for rows in (_Dense(X), _Sparse(sparse.csr_matrix(X))):
            assert rows.leaf_numbers(tree).tolist() == expected


def test_a_tree_of_one_leaf_and_an_uneven_tree():
    single = from_booster(foreign_booster(0, gamma=1e9))
    assert (leaf_numbers(single, table(10, 5, 0)) == 0).all()
    y = 2.0 ** np.arange(40)  # every split cuts off one row
    chain = xgb.train({"max_depth": 0, "min_child_weight": 0, "base_score": 0.0}, xgb.DMatrix(y[:, None], y), 1)
    tree, X = from_booster(chain), y[:, None].astype(np.float32)
    assert depth(tree) > 8
    assert (tree.value[tree.leaves][leaf_numbers(tree, X)] == chain.predict(xgb.DMatrix(X))).all()


def test_binned_rows_would_take_wrong_turns():
    # Why raw values decide: over another matrix's quantile bins, rows take other turns.
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(2, 4000, 4)).astype(np.float32)
    booster = xgb.train({"max_depth": 8}, xgb.QuantileDMatrix(A, (A**2).sum(axis=1)), 1)
    binned = booster.predict(xgb.QuantileDMatrix(B), pred_leaf=True)
    assert (binned != booster.predict(xgb.DMatrix(B), pred_leaf=True)).mean() > 0.005
