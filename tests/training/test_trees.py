import json

import numpy as np
import pytest
import xgboost as xgb
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from simfl.params import train_params
from simfl.training.trees import children, from_booster, grow, leaf_numbers, valued, weight


def table(n, d, seed, missing=0.0):
    rng = np.random.default_rng(seed)
    X = np.round(rng.normal(size=(n, d)), 1).astype(np.float32)  # rounded: many values equal a threshold
    X[rng.random(X.shape) < missing] = np.nan
    return X


def foreign_booster(seed, depth=6, gamma=0.0, missing=0.0):
    X = table(300, 5, seed, missing)
    y = np.nan_to_num(X[:, 0]) * np.nan_to_num(X[:, 1]) + np.nan_to_num(X[:, 2]) ** 2
    params = {"max_depth": depth, "gamma": gamma, "base_score": 0.0, "min_child_weight": 0}
    return xgb.train(params, xgb.QuantileDMatrix(X, y), 1)


def xgboosts_leaves(booster, X):
    return booster.predict(xgb.DMatrix(X), pred_leaf=True).astype(int).reshape(-1)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.3]), st.sampled_from([0.0, 2.0]))
def test_a_foreign_tree_sends_every_row_to_the_leaf_that_its_raw_values_say(seed, missing, gamma):
    booster = foreign_booster(seed, gamma=gamma, missing=missing)
    tree = from_booster(booster)
    X = table(400, 5, seed + 1, missing)
    ours, theirs = leaf_numbers(tree, X), xgboosts_leaves(booster, X)
    pairs = set(zip(ours.tolist(), theirs.tolist(), strict=True))
    assert len(pairs) == len(set(ours.tolist())) == len(set(theirs.tolist()))
    margins = booster.predict(xgb.DMatrix(X), output_margin=True)
    assert (tree.value[tree.leaves][ours] == margins).all()


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_what_a_sparse_row_does_not_store_is_missing(seed):
    rng = np.random.default_rng(seed)
    thin = sparse.random(300, 8, density=0.3, format="csr", dtype=np.float32, random_state=seed)
    booster = xgb.train({"max_depth": 5, "base_score": 0.0}, xgb.DMatrix(thin, rng.normal(size=300)), 1)
    tree = from_booster(booster)
    other = sparse.random(300, 8, density=0.3, format="csr", dtype=np.float32, random_state=seed + 1)
    margins = booster.predict(xgb.DMatrix(other), output_margin=True)
    assert (tree.value[tree.leaves][leaf_numbers(tree, other)] == margins).all()


def test_binned_rows_would_take_wrong_turns():
    # Why rows are walked by their raw values: the walk over another matrix's quantile bins is not the same.
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(2, 4000, 4)).astype(np.float32)
    booster = xgb.train({"max_depth": 8}, xgb.QuantileDMatrix(A, (A**2).sum(axis=1)), 1)
    binned = booster.predict(xgb.QuantileDMatrix(B), pred_leaf=True)
    assert (binned != booster.predict(xgb.DMatrix(B), pred_leaf=True)).mean() > 0.005


def test_a_tree_carries_none_of_xgboosts_statistics():
    booster = foreign_booster(0)
    saved = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"][0]
    kept = np.concatenate([np.ravel(v).astype(float) for v in vars(from_booster(booster)).values()])
    for name in ("sum_hessian", "base_weights", "loss_changes"):
        values = [v for v in saved[name] if v != round(v)]
        assert values or name == "sum_hessian"
        assert not set(values) & set(kept.tolist())


def test_a_tree_of_one_leaf():
    booster = foreign_booster(0, gamma=1e9)
    tree = from_booster(booster)
    assert (tree.n_leaves, tree.depth) == (1, 0)
    assert (leaf_numbers(tree, table(10, 5, 0)) == 0).all()


def test_depth_counts_the_splits_on_the_longest_way():
    assert from_booster(foreign_booster(0, depth=4)).depth == 4


def test_children_follow_from_which_nodes_are_leaves():
    assert children(np.array([0, -1, 4, -1, -1], np.int32)).tolist() == [1, -1, 3, -1, -1]


def test_grown_leaf_values_are_the_weights_of_the_sums():
    X = table(500, 3, 1)
    rng = np.random.default_rng(0)
    g, h = rng.normal(size=500).astype(np.float32), rng.random(500).astype(np.float32) + 0.1
    params = train_params(learning_rate=0.3, reg_lambda=2.0, reg_alpha=0.5, max_delta_step=0.7, max_depth=4)
    tree = grow(xgb.QuantileDMatrix(X), g, h, params, seed=0, threads=1)
    leaf = leaf_numbers(tree, X)
    G, H = (np.bincount(leaf, weights=v, minlength=tree.n_leaves) for v in (g, h))
    assert valued(tree, G, H, params)[0].value == pytest.approx(tree.value, abs=1e-6)


def test_a_leaf_without_weight_gets_no_value():
    params = train_params(reg_lambda=0.0)
    assert weight(np.array([0.0]), np.array([0.0]), params).tolist() == [0.0]
