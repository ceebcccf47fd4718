import json

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris

from simfl.audit.attributes import attributes_of, one_hot_groups
from simfl.audit.audit import audit
from simfl.audit.findings import TITLES
from simfl.audit.finished import (
    TRIALS,
    People,
    attribute_from_answers,
    members_from_answers,
    reconstruct,
    rows_from_all_trees,
    views_of,
)
from simfl.audit.query import attributes_by_query
from simfl.audit.views import Prior
from simfl.training.trees import all_trees


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return X[:300, :8], y[:300].astype(np.float32)


def people(cancer, recipe, **given):
    settings = {"recipe": recipe, "n_trees": 16} | given
    return People.of(*cancer, objective="binary:logistic", parties=3, seed=0, given=settings)


def test_a_model_that_knows_the_answer_gives_the_attribute_away():
    """An oracle that likes the true value of each row best, against one that says nothing."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=400), rng.normal(size=400), rng.integers(0, 2, 400)])
    prior = Prior.of(X[:200])
    rows = prior.standard(X[200:])
    attributes = attributes_of(prior, one_hot_groups(X[:200]))

    def oracle(tried):
        return -20 * np.abs(tried - np.repeat(rows, len(tried) // len(rows), axis=0)).sum(axis=1)

    guess = attributes_by_query(None, rows, attributes, prior).mean()
    assert attributes_by_query(lambda tried: np.zeros(len(tried)), rows, attributes, prior).mean() == guess
    assert attributes_by_query(oracle, rows, attributes, prior).mean() > 0.95 > 0.7 > guess


@pytest.mark.parametrize("recipe", ["paper", "similar", "joint"])
def test_every_recipe_is_attacked_by_every_role(cancer, recipe):
    asked = people(cancer, recipe)
    found = [*attribute_from_answers(asked), *rows_from_all_trees(asked, effort=20)]
    assert len(found) == 1 + len(views_of(asked)) == {"paper": 3, "similar": 4, "joint": 5}[recipe]
    for f in found:
        assert f.title == TITLES[f.attack]
        assert f.excess_interval[0] <= f.excess <= f.excess_interval[1]
        assert f"{f.success:.1%}" in f.sentence
        assert f"{f.guess:.1%}" in f.sentence


def test_exact_leaf_values_fit_the_rows_behind_them_and_noisy_ones_do_not(cancer):
    similar, joint = (rows_from_all_trees(people(cancer, recipe), effort=1)[1] for recipe in ("similar", "joint"))
    assert similar.details["misfit_of_truth"] < 0.01
    assert joint.details["misfit_of_truth"] > 0.5


def test_an_attack_with_fewer_trees_has_fewer_equations(cancer):
    asked = people(cancer, "similar")
    outsider = views_of(asked)[0]
    whole, one = (reconstruct(asked, outsider, 1, n_trees).details["leaves"] for n_trees in (None, 1))
    trees = all_trees(asked.model.booster)
    assert whole == sum(len(tree.leaves) for tree in trees)
    assert one in {len(tree.leaves) for tree in trees}


@pytest.mark.parametrize(("load", "objective"), [(load_iris, "multi:softprob"), (load_diabetes, "reg:squarederror")])
def test_classes_and_numbers_are_attacked_too(load, objective):
    X, y = load(return_X_y=True)
    asked = People.of(X, y.astype(np.float32), objective, 2, 0, {"n_trees": 30, "learning_rate": 0.3})
    (found,) = members_from_answers(asked, n_shadows=4)
    assert found.details["auc"] > 0.5
    assert len(attribute_from_answers(asked)) == 1
    assert rows_from_all_trees(asked) == []  # TimberStrike's equations are those of two classes


def test_the_public_door_runs_them_when_asked_and_says_what_it_left_out(cancer):
    without = audit(*cancer, attacks=["values_from_trees"], advise=False)
    assert without.not_run == [TITLES[name] for name in TRIALS]
    assert "Not run" in without.html()
    one = audit(*cancer, attacks=["attribute_from_answers"], advise=False, n_trees=16)
    assert [f.attack for f in one.findings] == ["attribute_from_answers"]
    assert TITLES["attribute_from_answers"] not in one.not_run
    assert json.loads(one.to_json())["not_run"] == one.not_run


def test_too_few_people_are_refused():
    with pytest.raises(Exception, match="60 at least"):
        _ = People.of(np.zeros((30, 2)), np.zeros(30, np.float32), "binary:logistic", 2, 0, {}).thirds
