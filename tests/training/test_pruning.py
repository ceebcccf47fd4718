import numpy as np
import pytest
import xgboost as xgb
from hypothesis import given, settings
from hypothesis import strategies as st

from simfl.training.pruning import _remove_weakest, keep_all, most_leaves, node_sums, prune, score
from simfl.training.traversal import leaf_numbers
from simfl.training.trees import Grower, Tree, children
from tests.training.boosters import depth
from tests.wire import settled


def stump_over_stump():
    """Root splits; its left child splits again: leaves 2 (right), 3 and 4."""
    feature = np.array([0, 1, -1, -1, -1], np.int32)
    return Tree(feature, np.zeros(5, np.float32), np.zeros(5, bool), children(feature), np.zeros(5, np.float32))


def test_node_sums_add_up_from_the_leaves():
    assert node_sums(stump_over_stump(), np.array([1.0, 2.0, 4.0])).tolist() == [7, 6, 1, 2, 4]


def test_a_split_that_does_not_pay_is_taken_back():
    params = settled(reg_lambda=0.0, min_child_weight=0.0, learning_rate=1.0, max_depth=2, extra_depth=1)
    # leaves in order: right (G 8), then the two below left, which agree (G -2 each): their split gains nothing
    tree, values = prune(stump_over_stump(), np.array([8.0, -2.0, -2.0]), np.ones(3), params)
    assert tree.feature.tolist() == [0, -1, -1]
    assert tree.value.tolist() == [0, 2, -8]
    assert values.tolist() == [-8, 2, 2]


def test_a_weak_split_above_a_strong_one_stays():
    params = settled(reg_lambda=0.0, min_child_weight=0.0, learning_rate=1.0, max_depth=2, extra_depth=1)
    tree, _ = prune(stump_over_stump(), np.array([0.0, 3.0, -3.0]), np.ones(3), params)
    assert tree.n_leaves == 3


def test_gamma_and_min_child_weight_are_judged_by_the_global_sums():
    G, H = np.array([8.0, 3.0, -3.0]), np.array([5.0, 5.0, 0.5])
    for more in ({"min_child_weight": 1.0}, {"gamma": 1000.0}):
        tree, _ = prune(stump_over_stump(), G, H, settled(max_depth=2, extra_depth=1, **more))
        assert tree.n_leaves < 3


def test_at_most_as_many_leaves_as_a_tree_of_max_depth():
    params = settled(reg_lambda=0.0, min_child_weight=0.0, max_depth=1, extra_depth=1)
    tree, values = prune(stump_over_stump(), np.array([8.0, 3.0, -3.0]), np.ones(3), params)
    assert tree.n_leaves == most_leaves(params) == 2
    assert values[1] == values[2]


@settings(max_examples=30)
def one_after_the_other(left, kept, own, most):
    """The rule, written again: the lowest split that gains least goes, until there are few enough leaves."""
    while kept.sum() + 1 > most:
        lowest = [n for n in np.flatnonzero(kept) if not kept[left[n]] and not kept[left[n] + 1]]
        kept[min(lowest, key=lambda n: (own[left[n]] + own[left[n] + 1] - own[n], n))] = False
    return kept


@given(st.integers(0, 10_000), st.integers(1, 31), st.booleans())
def test_the_lowest_split_that_gains_least_goes_first(seed, most, ties):
    rng = np.random.default_rng(seed)
    left = np.r_[2 * np.arange(15) + 1, np.full(16, -1)].astype(np.int32)
    kept = np.r_[True, np.ones(14, bool), np.zeros(16, bool)]
    for node in range(1, 15):
        kept[node] = kept[(node - 1) // 2] and rng.random() < 0.8
    own = rng.integers(0, 3, 31).astype(float) if ties else rng.normal(size=31)
    expected = one_after_the_other(left, kept.copy(), own, most)
    _remove_weakest(left, kept, own, most)
    assert kept.tolist() == expected.tolist()


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 3.0]), st.sampled_from([0.0, 1.0, 20.0]))
def test_old_leaves_and_pruned_tree_give_the_same_values(seed, gamma, mcw):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(300, 4)).astype(np.float32)
    g, h = rng.normal(size=300).astype(np.float32), rng.random(300).astype(np.float32)
    params = settled(max_depth=3, extra_depth=2, gamma=gamma, min_child_weight=mcw)
    tree = Grower(xgb.QuantileDMatrix(X[:100]), params, threads=1).grow(g[:100], h[:100], seed=0)
    leaf = leaf_numbers(tree, X)
    G, H = (np.bincount(leaf, weights=v, minlength=tree.n_leaves) for v in (g, h))
    small, values = prune(tree, G, H, params)
    now = leaf_numbers(small, X)
    assert (small.value[small.leaves][now] == values[leaf]).all()
    assert small.n_leaves <= 8
    assert depth(small) <= 5
    new_G, new_H = (np.bincount(now, weights=v, minlength=small.n_leaves) for v in (g, h))
    assert keep_all(small, new_G, new_H, params)[0].value == pytest.approx(small.value, abs=1e-6)
    if small.n_leaves > 1:
        assert new_H.min() >= mcw


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 3.0]))
def test_what_is_kept_gains_gamma_for_every_split(seed, gamma):
    """As long as the tree is not too large: what is removed then is not weighed against gamma again."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(300, 4)).astype(np.float32)
    g, h = rng.normal(size=300).astype(np.float32), rng.random(300).astype(np.float32)
    params = settled(max_depth=5, extra_depth=0, gamma=gamma, min_child_weight=0.0)
    grown = settled(max_depth=5, extra_depth=0, gamma=0.0, min_child_weight=0.0)
    tree = Grower(xgb.QuantileDMatrix(X[:100]), grown, threads=1).grow(g[:100], h[:100], seed=0)
    leaf = leaf_numbers(tree, X)
    G, H = (np.bincount(leaf, weights=v, minlength=tree.n_leaves) for v in (g, h))
    small, _ = prune(tree, G, H, params)
    now = leaf_numbers(small, X)
    new_G, new_H = (np.bincount(now, weights=v, minlength=small.n_leaves) for v in (g, h))
    gain = score(new_G, new_H, params).sum() - score(G.sum(), H.sum(), params)
    assert gain >= gamma * (small.n_leaves - 1) - 1e-6
