"""Constraints on columns hold for the finished model, whose leaf values come from the sums of all parties."""

import itertools

import numpy as np
import pandas as pd
import pytest

import simfl
from simfl.errors import ParameterError
from simfl.training.trees import all_trees


@pytest.fixture(scope="module")
def parties():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(600, 3)), columns=["dose", "age", "weight"])
    y = (np.sin(2 * X["dose"]) + X["age"] * X["weight"] + rng.normal(0, 0.5, 600) > 0).astype(int)
    return [simfl.Party(name, X[i::3], y[i::3]) for i, name in enumerate("abc")]


def ways(model):
    """The columns on every way from the root to a leaf, per tree."""
    for tree in all_trees(model.booster):
        above = {0: frozenset()}
        for node in range(len(tree.feature)):
            if tree.feature[node] >= 0:
                for child in (tree.left[node], tree.left[node] + 1):
                    above[child] = above[node] | {int(tree.feature[node])}
            else:
                yield above[node]


@pytest.mark.parametrize("more", [{}, {"recipe": "paper"}])
@pytest.mark.parametrize("sign", [1, -1])
def test_predictions_rise_or_fall_with_the_column(parties, sign, more):
    model = simfl.train(parties, n_trees=20, random_state=0, monotone_constraints={"dose": sign}, **more)
    rng = np.random.default_rng(1)
    for _ in range(40):
        age, weight = rng.normal(size=2)
        grid = pd.DataFrame({"dose": np.linspace(-3, 3, 60), "age": age, "weight": weight})
        assert (sign * np.diff(model.margins(grid)) >= -1e-5).all()


def test_without_the_constraint_the_same_data_do_not_rise(parties):
    model = simfl.train(parties, n_trees=20, random_state=0)
    grid = pd.DataFrame({"dose": np.linspace(-3, 3, 60), "age": 0.0, "weight": 0.0})
    assert (np.diff(model.margins(grid)) < -0.05).any()


def test_one_party_is_xgboost_with_constraints(parties):
    params = {"n_trees": 10, "monotone_constraints": [1, 0, -1], "interaction_constraints": [["age", "weight"]]}
    alone = simfl.train(parties[:1], **params)
    np.testing.assert_array_equal(
        alone.margins(parties[0].rows.X), simfl.baselines.solo(parties[:1], **params)["a"].margins(parties[0].rows.X)
    )


def test_columns_of_different_groups_never_stand_on_one_way(parties):
    groups = [["dose"], ["age", "weight"]]
    model = simfl.train(parties, n_trees=10, random_state=0, interaction_constraints=groups)
    found = set(ways(model))
    assert all(way <= {0} or way <= {1, 2} for way in found)
    free = simfl.train(parties, n_trees=10, random_state=0)
    assert any(0 in way and len(way) > 1 for way in ways(free))


@pytest.mark.parametrize(
    ("params", "fact"),
    [
        ({"monotone_constraints": {"dosis": 1}}, r"'dosis'.*\['dose', 'age', 'weight'\]"),
        ({"monotone_constraints": [1, 0]}, "2 entries for 3 columns"),
        ({"monotone_constraints": {"dose": 2}}, "monotone_constraints"),
        ({"interaction_constraints": [["dose", "x"]]}, "'x'"),
        ({"interaction_constraints": [[0, 7]]}, "7"),
    ],
)
def test_constraints_on_what_is_not_there_are_refused(parties, params, fact):
    with pytest.raises(ParameterError, match=fact):
        simfl.train(parties, n_trees=1, **params)


def test_categories_have_no_order(parties):
    frame = pd.DataFrame({"ward": ["a", "b"] * 10, "n": range(20)})
    party = simfl.Party("a", frame, [0, 1, 1, 0] * 5)
    with pytest.raises(ParameterError, match=r"\['ward'\] have no order"):
        simfl.train([party], monotone_constraints={"ward": 1})


# --- a warm start ---


def test_a_training_goes_on_where_another_ended(parties):
    params = {"n_trees": 6, "random_state": 0, "rematch": 0}
    first = simfl.train(parties, **params)
    both = simfl.train(parties, init_model=first, **params)
    assert both.n_trees == 2 * first.n_trees
    X = parties[0].rows.X
    kept = both.booster.predict(both.matrix(X), iteration_range=(0, first.n_trees), output_margin=True)
    np.testing.assert_array_equal(kept, first.margins(X))
    assert both.history[-1].train["logloss"] < first.history[-1].train["logloss"]
    assert [r.round for r in both.history] == list(range(both.n_trees))


def test_going_on_is_the_same_as_never_having_stopped(table, labels):
    party = simfl.Party("a", table, labels)
    whole = simfl.train([party], n_trees=8)
    parts = simfl.train([party], n_trees=5, init_model=simfl.train([party], n_trees=3))
    np.testing.assert_allclose(parts.margins(table), whole.margins(table), atol=1e-6)


def test_many_classes_go_on_too(table, tmp_path):
    y = np.arange(60) % 3
    halves = [simfl.Party("a", table[:30], y[:30]), simfl.Party("b", table[30:], y[30:])]
    params = {"objective": "multi:softprob", "n_trees": 3, "random_state": 0}
    first = simfl.train(halves, **params)
    first.save(tmp_path / "m.ubj")
    both = simfl.train(halves, init_model=simfl.load(tmp_path / "m.ubj"), **params)
    losses = [record.train["mlogloss"] for record in both.history]
    assert all(b < a for a, b in itertools.pairwise(losses))


def test_an_earlier_model_that_does_not_fit_is_refused(parties, table, labels):
    first = simfl.train(parties, n_trees=2)
    with pytest.raises(ParameterError, match="trained with 'binary:logistic'"):
        simfl.train(parties, init_model=first, objective="reg:squarederror")
    with pytest.raises(simfl.SimFLError, match=r"schema=model\.schema"):
        simfl.train([simfl.Party("a", table, labels)], init_model=first)
