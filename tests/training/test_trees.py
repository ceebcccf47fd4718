import json

import numpy as np
import pytest
import xgboost as xgb

from simfl.params import train_params
from simfl.training import trees
from simfl.training.pruning import keep_all, weight
from simfl.training.traversal import leaf_numbers
from simfl.training.trees import Grower, children, from_booster
from tests.training.boosters import foreign_booster, table


@pytest.mark.parametrize("sampling", [{}, {"subsample": 0.5}, {"colsample_bytree": 0.5}])
def test_a_tree_depends_on_its_gradients_and_seed_alone_not_on_the_trees_before(sampling, monkeypatch):
    monkeypatch.setattr(trees, "TREES_PER_BOOSTER", 3)
    rows, rng = xgb.QuantileDMatrix(table(400, 5, 0)), np.random.default_rng(0)
    params = train_params(max_depth=4, **sampling)
    kept = Grower(rows, params, threads=1)
    for seed in range(5):
        g, h = rng.normal(size=400).astype(np.float32), rng.random(400).astype(np.float32)
        one, other = kept.grow(g, h, seed), Grower(rows, params, threads=1).grow(g, h, seed)
        assert one.n_leaves > 4
        assert all(np.array_equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True))


def test_a_tree_carries_none_of_xgboosts_statistics():
    booster = foreign_booster(0, weighted=True)  # the sums of the hessians are then no whole numbers
    saved = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"][0]
    kept = np.concatenate([np.ravel(v).astype(float) for v in vars(from_booster(booster)).values()])
    for name in ("sum_hessian", "base_weights", "loss_changes"):
        values = [v for v in saved[name] if v != round(v)]
        assert values
        assert not set(values) & set(kept.tolist())


def test_a_tree_of_one_leaf():
    booster = foreign_booster(0, gamma=1e9)
    tree = from_booster(booster)
    assert (tree.n_leaves, tree.feature.tolist(), tree.left.tolist()) == (1, [-1], [-1])


def test_children_follow_from_which_nodes_are_leaves():
    assert children(np.array([0, -1, 4, -1, -1], np.int32)).tolist() == [1, -1, 3, -1, -1]


def test_grown_leaf_values_are_the_weights_of_the_sums():
    X = table(500, 3, 1)
    rng = np.random.default_rng(0)
    g, h = rng.normal(size=500).astype(np.float32), rng.random(500).astype(np.float32) + 0.1
    params = train_params(learning_rate=0.3, reg_lambda=2.0, reg_alpha=0.5, max_delta_step=0.7, max_depth=4)
    tree = Grower(xgb.QuantileDMatrix(X), params, threads=1).grow(g, h, seed=0)
    leaf = leaf_numbers(tree, X)
    G, H = (np.bincount(leaf, weights=v, minlength=tree.n_leaves) for v in (g, h))
    assert keep_all(tree, G, H, params)[0].value == pytest.approx(tree.value, abs=1e-6)


def test_a_leaf_without_weight_gets_no_value():
    params = train_params(reg_lambda=0.0)
    assert weight(np.array([0.0]), np.array([0.0]), params).tolist() == [0.0]
