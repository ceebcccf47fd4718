import numpy as np
import pytest
import xgboost as xgb

from simfl.audit.timberstrike import Equations, Forest, matched_share, rows_behind, uniform_rows
from simfl.training.trees import Tree, all_trees


def toy_tree():
    """x0 < 5 -> leaf; else x1 < 2 -> two leaves."""
    return Tree(
        feature=np.array([0, -1, 1, -1, -1], dtype=np.int32),
        threshold=np.array([5, 0, 2, 0, 0], dtype=np.float32),
        default_left=np.zeros(5, bool),
        left=np.array([1, -1, 3, -1, -1], dtype=np.int32),
        value=np.array([0, 0.5, 0, -0.25, 1.0], dtype=np.float32),
    )


ROWS = np.array([[1.0, 0.0], [2.0, 3.0], [7.0, 1.0], [8.0, 9.0]])
LABELS = np.array([1, 0, 0, 1])


def test_the_sums_of_a_toy_tree_by_hand():
    """All rows start at p = 1/2: g is 1/2 or -1/2, h is 1/4. Leaf 1 has two rows of different labels."""
    G, H = Forest.of([toy_tree()], base=0.0).sums(ROWS, LABELS)
    assert G.tolist() == [0, 0, 0, 0.5, -0.5]
    assert H.tolist() == [0, 0.5, 0, 0.25, 0.25]


def test_trees_in_lockstep_share_their_gradients():
    two = [toy_tree(), toy_tree()]
    together, _ = Forest.of(two, base=0.0, batches=[2]).sums(ROWS, LABELS)
    assert together[:5].tolist() == together[5:].tolist()
    after_another, _ = Forest.of(two, base=0.0).sums(ROWS, LABELS)
    assert after_another[5 + 4] == pytest.approx(1 / (1 + np.exp(-1.0)) - 1)


def test_the_rows_of_a_toy_tree_are_found_leaf_by_leaf():
    forest = Forest.of([toy_tree()], base=0.0)
    sums = forest.sums(ROWS, LABELS)
    equations = Equations.of_values(forest, 1.0, 1.0).with_sums(*sums, np.ones(5, bool))
    pool = uniform_rows(np.zeros(2), np.full(2, 10.0), [None, None], 100, seed=0)
    X, y = rows_behind(forest, equations, (pool[:4], np.zeros(4)), pool, seed=0, effort=500)
    assert equations.misfit(*forest.sums(X, y)) == pytest.approx(0, abs=1e-9)
    boxes = sorted(
        (bool(a < 5), bool(b < 2) if a >= 5 else None, int(label)) for (a, b), label in zip(X, y, strict=True)
    )
    assert boxes == [(False, False, 1), (False, True, 0), (True, None, 0), (True, None, 1)]


def test_rows_that_the_attacker_knows_are_taken_off():
    forest = Forest.of([toy_tree()], base=0.0)
    everybody = Equations.of_values(forest, 1.0, 1.0).with_sums(*forest.sums(ROWS, LABELS), np.ones(5, bool))
    left = everybody.without(*forest.sums(ROWS[:1], LABELS[:1]))
    assert left.misfit(*forest.sums(ROWS[1:], LABELS[1:])) == pytest.approx(0)
    assert left.misfit(*forest.sums(ROWS, LABELS)) > 0.1


@pytest.fixture(scope="module")
def boosted():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 4)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] ** 2 + 0.3 * rng.normal(size=120) > 0.7).astype(np.float32)
    settings = {"objective": "binary:logistic", "eta": 0.3, "max_depth": 4, "base_score": 0.5, "nthread": 1}
    return X, y, Forest.of(all_trees(xgb.train(settings, xgb.DMatrix(X, y), 30)), base=0.0)


def test_xgboosts_values_are_equations_that_its_own_rows_fulfil(boosted):
    X, y, forest = boosted
    assert Equations.of_values(forest, 0.3, 1.0).misfit(*forest.sums(X, y)) < 1e-4


def test_statistics_of_leaves_give_rows_away_and_values_alone_fewer(boosted):
    X, y, forest = boosted
    values = Equations.of_values(forest, 0.3, 1.0)
    statistics = values.with_sums(*forest.sums(X, y), np.ones(len(forest.feature), bool))
    pool = uniform_rows(X.min(0), X.max(0), [None] * 4, 1000, seed=0)
    start, truth, kinds = (pool[:120], np.zeros(120)), np.column_stack([X, y]), np.array([False] * 4 + [True])
    shares = {}
    for name, equations in (("values", values), ("statistics", statistics)):
        found = rows_behind(forest, equations, start, pool, seed=0, effort=1000)
        shares[name] = matched_share(np.column_stack(found), truth, kinds).mean()
    guess = matched_share(np.column_stack(start), truth, kinds).mean()
    assert shares["statistics"] > guess + 0.1
    assert guess < shares["values"] < shares["statistics"] + 0.02


def test_the_measure_pairs_rows_and_counts_values():
    truth = np.array([[0.0, 1.0, 1.0], [10.0, 2.0, 0.0]])
    kinds = np.array([False, True, True])
    assert matched_share(truth[::-1], truth, kinds).tolist() == [1, 1]
    off = np.array([[1.5, 1.0, 1.0], [10.0, 3.0, 0.0]])  # a deviation is 5: 1.5 is within .319 of it
    assert matched_share(off, truth, kinds).tolist() == pytest.approx([1, 2 / 3])
    assert len(matched_share(off[:1], truth, kinds)) == 1
