"""With all cuts as candidates and nothing merged or rounded, the trees of all parties are XGBoost's greedy trees.

Two cuts that divide a small node alike, or gain exactly the same, are told apart by chance: the tables here have none.
"""

import numpy as np
import pytest

from simfl.joint.cuts import Cuts
from simfl.joint.growing import Following, Growing, Own
from simfl.joint.grown import BEYOND
from simfl.joint.setting import Setting
from simfl.joint.shared import Shared
from simfl.training.traversal import walker
from tests.joint.machines import (
    EXACT,
    as_bins,
    cut_points,
    divided,
    exact_growing,
    joint,
    labels,
    leaf_of_rows,
    run,
    table,
    xgboost_trees,
)  # fmt: skip

START = {"binary:logistic": [0.4], "reg:squarederror": [0.3], "multi:softprob": [0.1, 0.3, -0.4]}
POINTS = 12


def assert_same_trees(ours, theirs, X, cuts, exact_thresholds=True):
    """Theirs are on bins: a bin below t is a value below the point before."""
    assert len(ours) == len(theirs)
    bins = as_bins(X, cuts)
    for own, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(own.feature, other.feature)
        inner = np.flatnonzero((own.feature >= 0) & (cuts.levels[own.feature] == 0))
        if exact_thresholds:
            wanted = [cuts.points[own.feature[node]][int(np.ceil(other.threshold[node])) - 1] for node in inner]
            np.testing.assert_array_equal(own.threshold[inner], np.array(wanted, np.float32))
        np.testing.assert_array_equal(leaf_of_rows(own, X), leaf_of_rows(other, bins))
        np.testing.assert_allclose(own.value[own.leaves], other.value[other.leaves], rtol=1e-5, atol=1e-6)


def compare(X, y, *, parties=1, weight=None, levels=None, exact_thresholds=True, **given):
    params = joint(**EXACT | {"n_trees": 4, "max_depth": 4, "learning_rate": 0.3} | given)
    cuts, start = cut_points(X, POINTS, levels), START[params.objective]
    theirs = xgboost_trees(cuts, params, X, y, start, weight)
    first = run(exact_growing(cuts, params, divided(X, y, parties, weight), start))
    ours = [tree for trees in first.rounds for tree in trees]
    assert_same_trees(ours, theirs, X, cuts, exact_thresholds)
    return ours


@pytest.mark.parametrize("parties", [1, 4])
@pytest.mark.parametrize("objective", START)
def test_the_trees_are_xgboosts(objective, parties):
    X = table(1500, 5)
    compare(X, labels(X, objective), objective=objective, parties=parties)


@pytest.mark.parametrize("objective", START)
def test_missing_values_go_where_xgboost_sends_them(objective):
    X = table(1500, 5, missing=0.2)
    X[:, 4] = np.nan_to_num(X[:, 4])  # one column has none
    trees = compare(X, labels(X, objective), objective=objective, parties=4, exact_thresholds=False, max_depth=3)
    ways = np.concatenate([tree.default_left[(tree.feature >= 0) & (tree.feature < 4)] for tree in trees])
    assert ways.any()
    assert not ways.all()


def test_known_values_against_the_missing_ones_is_a_cut_too():
    X = table(800, 2)
    X[::3, 0] = np.nan
    y = np.isnan(X[:, 0]).astype(np.float32)
    (tree,) = compare(X, y, parties=2, exact_thresholds=False, n_trees=1, max_depth=1)
    assert tree.threshold[0] == BEYOND


def test_categories_are_divided_as_xgboost_divides_them():
    rng = np.random.default_rng(3)
    X = table(1500, 3)
    X[:, 1] = rng.integers(0, 7, 1500)
    X[rng.random(1500) < 0.1, 1] = np.nan
    y = (labels(X) + np.sin(7 * np.nan_to_num(X[:, 1], nan=9)) + rng.normal(0, 0.3, 1500) > 0.7).astype(np.float32)
    given = {"levels": [0, 7, 0], "parties": 3, "max_depth": 3, "exact_thresholds": False}
    trees = compare(X, y, **given)
    assert any(tree.level_set is not None for tree in trees)


def test_sample_weights_count_as_in_xgboost():
    X = table(1500, 5)
    weight = np.random.default_rng(1).integers(0, 4, 1500).astype(np.float32)
    compare(X, labels(X), weight=weight, parties=4)


@pytest.mark.parametrize(
    "given",
    [
        {"gamma": 3.0},
        {"min_child_weight": 30.0},
        {"reg_lambda": 0.0, "min_child_weight": 0.5},
        {"reg_lambda": 20.0},
        {"reg_alpha": 4.0},
        {"max_delta_step": 0.2},
        {"max_depth": 0, "min_child_weight": 20.0},
        {"monotone_constraints": [1, 0, -1, 1, 0]},
        {"interaction_constraints": [[0, 1], [2, 3]]},
        {"interaction_constraints": [[0, 1, 4], [1, 2], [3]]},
        {"learning_rate": 1.0, "max_depth": 5, "min_child_weight": 3.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("objective", ["binary:logistic", "reg:squarederror"])
def test_parameters_mean_what_they_mean_in_xgboost(given, objective):
    X = table(1500, 5)
    compare(X, labels(X, objective, seed=1), objective=objective, parties=2, **given)


def test_what_is_grown_deeper_keeps_the_best_leaves_of_all():
    X = table(1500, 5)
    y = labels(X)
    cuts, loss = cut_points(X, POINTS), {}
    for extra in (0, 2):
        params = joint(**EXACT | {"n_trees": 1, "max_depth": 3, "extra_depth": extra})
        first = run(exact_growing(cuts, params, divided(X, y, 2), [0.4]))
        assert first.rounds[0][0].n_leaves == 8
        loss[extra] = first.scores[0].train["logloss"]
    assert loss[2] < loss[0]


def test_gamma_prunes_from_below_what_is_grown_deeper():
    """A split that gains little stays where those below it pay for it: XOR."""
    X = np.sign(table(2000, 2)) + 0.1 * table(2000, 2, seed=1)
    X[:, 0] += 0.02 * X[:, 1]
    y = (X[:, 0] * X[:, 1] > 0).astype(np.float32)
    for extra, leaves in ((0, 1), (1, 4)):
        params = joint(**EXACT | {"n_trees": 1, "max_depth": 2, "gamma": 50.0, "extra_depth": extra})
        first = run(exact_growing(cut_points(X, 11), params, divided(X, y, 2), [0.5]))
        assert first.rounds[0][0].n_leaves == leaves


def test_what_one_training_left_in_common_is_not_used_by_another():
    """In one process parties share what follows for all alike. A training that is given up leaves a batch behind."""
    shared, X = Shared(), table(20, 2)
    following = Following(walker(X), np.arange(20) % 2, None, np.zeros((20, 1), np.float32))
    cuts = Cuts((np.array([0.0, 1.0], np.float32),) * 2, np.zeros(2, np.int32), np.zeros(2, bool))

    def begun(**params):
        setting = Setting(joint(n_trees=3, **params), cuts, 1, 20, ("a",), 0.25)
        growing = Growing(setting, Own(X, following, None, bytes(32), 1, shared))
        growing.apply(growing.read(growing.contribution()))
        return growing

    first, second, third = begun(learning_rate=0.1), begun(learning_rate=0.9), begun(learning_rate=0.1)
    assert first._batch is not second._batch
    assert first._batch is third._batch
