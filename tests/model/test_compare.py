"""A party compares the model that it is given with the trees that it adopted."""

import msgspec
import numpy as np
import pandas as pd
import pytest

import simfl
from simfl import model as models
from simfl.errors import ProtocolError
from simfl.federation import model_of
from simfl.model import with_account
from simfl.model.compare import check_same, is_pruned
from simfl.model.xgboost_document import to_booster, to_document
from simfl.training.trees import LEAF, Tree, children
from tests.wire import recorded, rows, train

CATEGORIES = "with categories"
RECIPES = {
    "default": {},
    "paper": {"recipe": "paper"},
    "several classes": {"objective": "multi:softprob"},
    "numbers": {"objective": "reg:squarederror"},
    "rematch": {"rematch": 2},
    "constraints": {"monotone_constraints": [1, 0, 0, 0, -1, 0]},
    "early stopping": {"early_stopping_rounds": 3, "validation_fraction": 0.4, "n_trees": 60, "learning_rate": 1.0},
    CATEGORIES: {},
}


def members(recipe):
    found = []
    for number, n in enumerate((90, 80, 70)):
        X, y = rows(n, number)
        if RECIPES[recipe].get("objective") == "multi:softprob":
            y = np.array(["low", "mid", "high"])[y + (X[:, 3] > 0.5)]
        if recipe == CATEGORIES:
            X = pd.DataFrame(X, columns=list("abcdef"))
            X["a"] = np.where(X["a"] > 0.3, "north", np.where(X["b"] > 0, "west", "east"))
        found.append(simfl.Party(f"p{number}", X, y))
    return found


def trained(recipe):
    """The parties after a training, its booster and its trees."""
    seen = recorded(members(recipe), secret=0)
    given = {"n_trees": 8, "max_depth": 3, "random_state": 0} | RECIPES[recipe]
    training = train(seen, **given)
    return list(seen.handlers.values()), with_account(model_of(training), [], {}).booster, training


def opened(booster):
    return models.from_bytes(bytes(booster.save_raw("ubj")), "a test")


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_party_recognises_the_model_of_every_recipe(recipe):
    parties, booster, training = trained(recipe)
    for party in parties:
        check_same(opened(booster), party.adopted, party.name)
    if recipe == "early stopping":
        assert len(training.rounds) < len(parties[0].adopted.rounds) < 60
    if recipe == CATEGORIES:
        assert any(tree.level_set is not None for trees in training.rounds for tree in trees)


def trees_of(document):
    return document["learner"]["gradient_booster"]["model"]


def leaf(document):
    tree = trees_of(document)["trees"][4]
    tree["split_conditions"][tree["left_children"].index(-1)] += 1e-6


def threshold(document):
    trees_of(document)["trees"][2]["split_conditions"][0] += 1e-3


def side_of_the_missing(document):
    tree = trees_of(document)["trees"][1]
    tree["default_left"][0] = 1 - tree["default_left"][0]


def one_more(document):
    model = trees_of(document)
    model["trees"].append(model["trees"][-1] | {"id": len(model["trees"])})
    model["tree_info"].append(0)
    model["iteration_indptr"].append(len(model["trees"]))
    model["gbtree_model_param"]["num_trees"] = str(len(model["trees"]))


def one_less(document):
    model = trees_of(document)
    for part in ("trees", "tree_info", "iteration_indptr"):
        model[part].pop()
    model["gbtree_model_param"]["num_trees"] = str(len(model["trees"]))


def base_score(document):
    document["learner"]["learner_model_param"]["base_score"] = "[5E-1]"


def statistics(document):
    trees_of(document)["trees"][3]["sum_hessian"][0] += 1


def order(document):
    trees = trees_of(document)["trees"]
    trees[5], trees[6] = trees[6] | {"id": 5}, trees[5] | {"id": 6}


LIES = {
    leaf: "tree 5 differs",
    threshold: "tree 3 differs",
    side_of_the_missing: "tree 2 differs",
    one_more: "the trees of 9 rounds, and 8 were adopted",
    one_less: "the trees of 7 rounds, and 8 were adopted",
    base_score: "its base score differs",
    statistics: "not how they are put together",
    order: "tree 6 differs",
}


@pytest.mark.parametrize(("lie", "said"), LIES.items(), ids=[lie.__name__ for lie in LIES])
def test_a_changed_model_is_refused_with_the_first_difference(lie, said):
    parties, booster, _ = trained("default")
    document = to_document(booster)
    lie(document)
    with pytest.raises(ProtocolError, match=f"'p0' was given a model that is not the one it trained: .*{said}"):
        check_same(opened(to_booster(document)), parties[0].adopted, "Party 'p0'")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"classes": [1, 0]}, "list of classes"),
        ({"epsilon": 3.0}, "put together"),
        ({"traffic": {"p0": {}}}, "put together"),
    ],
)
def test_what_stands_beside_the_trees_is_compared_too(change, said):
    parties, booster, _ = trained("default")
    about = msgspec.structs.replace(opened(booster)._about, **change)
    with pytest.raises(ProtocolError, match=said):
        check_same(opened(models.Model(booster, about).booster), parties[0].adopted, "Party 'p0'")


def test_outputs_of_several_classes_cannot_be_swapped():
    parties, booster, _ = trained("several classes")
    document = to_document(booster)
    info = trees_of(document)["tree_info"]
    info[0], info[1] = info[1], info[0]
    try:
        received = opened(to_booster(document))
    except simfl.SimFLError:
        return  # not even a sound file
    with pytest.raises(ProtocolError, match="put together"):
        check_same(received, parties[0].adopted, "Party 'p0'")


def tree(feature, threshold, value):
    feature = np.array(feature, dtype=np.int32)
    n = len(feature)
    return Tree(
        feature,
        np.array(threshold, dtype=np.float32),
        np.zeros(n, dtype=bool),
        children(feature),
        np.array(value, dtype=np.float32),
    )


def test_a_pruned_tree_is_the_grown_one_without_splits_that_make_no_difference():
    grown = tree([0, 1, LEAF, LEAF, LEAF], [0.5, 2.0, 0, 0, 0], np.zeros(5))
    values = np.array([3.0, 1.0, 1.0], dtype=np.float32)  # of the leaves in their order: right, then the two below left
    pruned = tree([0, LEAF, LEAF], [0.5, 0, 0], [0, 1.0, 3.0])
    assert is_pruned(pruned, grown, values)
    assert is_pruned(grown.with_leaf_values(values), grown, values)
    assert not is_pruned(tree([LEAF], [0], [1.0]), grown, values)
    assert not is_pruned(pruned, grown, np.array([3.0, 1.0, 2.0], dtype=np.float32))
    assert not is_pruned(tree([1, LEAF, LEAF], [0.5, 0, 0], [0, 1.0, 3.0]), grown, values)
    more = tree([0, LEAF, 1, LEAF, LEAF], [0.5, 0, 7.0, 0, 0], [0, 1.0, 0, 3.0, 3.0])
    assert not is_pruned(more, grown, values)  # a split that nobody grew, even if it makes no difference
