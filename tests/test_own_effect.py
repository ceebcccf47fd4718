"""A party that differs in kind: the shared model continued at home."""

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from sklearn.datasets import load_iris

import simfl
from simfl.data.schema import Schema, xgboost_types
from simfl.model import warm_start
from simfl.model.home import Continuation, Home
from simfl.training.losses import loss_named
from simfl.training.trees import all_trees, split_conditions

PARTIES = ("north", "south", "west")


def opposites(n=300, seed=0):
    """In the west the outcome follows from the first column the other way round than elsewhere."""
    rng = np.random.default_rng(seed)
    found = {}
    for name in PARTIES:
        X = pd.DataFrame(rng.normal(size=(n, 4)), columns=list("abcd"))
        found[name] = X, ((X["a"] + 0.3 * X["b"] > 0) ^ (name == "west")).astype(int).to_numpy()
    return found


def train(tables, **params):
    parties = [simfl.Party(name, X, y) for name, (X, y) in tables.items()]
    return simfl.train(parties, **({"n_trees": 60, "random_state": 0, "callbacks": []} | params))


def right(model, tables, name):
    X, y = tables[name]
    return (model.predict(X) == y).mean()


@pytest.mark.parametrize("how", ["auto", "trees", "leaves"])
def test_a_party_of_another_kind_learns_the_rest_at_home(how):
    tables, new = opposites(), opposites(seed=1)
    shared = train(tables)
    at_home = shared.continued(*tables["west"], how=how)
    assert right(at_home, new, "west") > right(shared, new, "west") + 0.2
    more = at_home.n_trees - shared.n_trees
    assert more == 0 if how == "leaves" else more >= 0


def test_a_party_like_the_others_is_left_nearly_alone():
    tables = opposites()
    tables["west"] = tables["west"][0], 1 - tables["west"][1]  # now like the others
    new = opposites(seed=1)
    shared = train(tables)
    at_home = shared.continued(*tables["north"])
    assert right(at_home, new, "north") > right(shared, new, "north") - 0.03


@pytest.mark.parametrize("how", ["trees", "leaves"])
def test_a_continued_model_is_plain_xgboost_and_the_same_again(tmp_path, how):
    X, y = load_iris(return_X_y=True)
    parties = [simfl.Party(str(i), X[i::2], y[i::2]) for i in range(2)]
    shared = simfl.train(parties, objective="multi:softprob", n_trees=5, random_state=0, callbacks=[])
    at_home, again = (shared.continued(X[:90], y[:90], how=how) for _ in range(2))
    assert at_home.booster.save_raw("json") == again.booster.save_raw("json")
    at_home.save(tmp_path / "m.ubj")
    opened = xgb.Booster(model_file=tmp_path / "m.ubj")
    np.testing.assert_array_equal(opened.predict(xgb.DMatrix(X)), simfl.load(tmp_path / "m.ubj").predict_proba(X))


def test_a_regression_is_continued():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3)).astype(np.float32)
    y = X[:, 0] + np.where(np.arange(400) < 200, 2, -2) * X[:, 1]
    parties = [simfl.Party("a", X[:200], y[:200]), simfl.Party("b", X[200:], y[200:])]
    rule = {"objective": "reg:squarederror", "n_trees": 20, "random_state": 0, "callbacks": []}
    shared = simfl.train(parties, **rule)
    at_home = shared.continued(X[:200], y[:200], how="trees")
    assert {len(trees) for trees in warm_start(at_home).rounds} == {1}
    before, after = (
        np.square(m.predict(X[:200]) - y[:200]).mean() for m in (shared.adjusted(X[:200], y[:200]), at_home)
    )
    assert after < 0.8 * before


def continuation(loss, learned, schema=None, n_trees=12):
    return Continuation(learned, loss, schema, n_trees, 0.3, 3, 1.0, 0)


@pytest.mark.parametrize("kind", ["two classes", "three classes", "numbers", "levels"])
def test_what_new_trees_add_is_what_xgboost_predicts_round_by_round(kind):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 4)).astype(np.float32)
    X[rng.random(X.shape) < 0.2] = np.nan
    y = (np.nan_to_num(X[:, 0]) > 0).astype(np.float32) + (kind == "three classes") * (np.nan_to_num(X[:, 1]) > 0)
    schema, types, n_outputs = None, {}, 3 if kind == "three classes" else 1
    if kind == "levels":
        schema = Schema.propose(pd.DataFrame({"a": ["x", "y", "z"], "b": 0.0, "c": 0.0, "d": 0.0}))
        X[:, 0] = rng.integers(0, 4, 120)  # one more level than the schema has
        types = xgboost_types(schema)
    objective = {"three classes": "multi:softprob", "numbers": "reg:squarederror"}.get(kind, "binary:logistic")
    home = Home(X, y, None, rng.normal(size=(120, n_outputs)).astype(np.float32))
    correction = continuation(loss_named(objective, {}), {"objective": objective}, schema).new_trees(home)
    start = np.zeros((120, n_outputs) if n_outputs > 1 else 120, dtype=np.float32)
    rows = xgb.DMatrix(X, base_margin=start, **types)
    steps = list(correction.steps(home))
    assert len(steps) == 12
    for place, step in enumerate(steps):
        alone = correction.booster.predict(rows, iteration_range=(place, place + 1), output_margin=True)
        np.testing.assert_array_equal(step, alone.reshape(120, n_outputs))


def test_new_trees_are_those_of_xgboosts_own_training_and_none_are_possible():
    rng = np.random.default_rng(0)
    home = Home(rng.normal(size=(80, 3)).astype(np.float32), np.arange(80) % 2, None, np.zeros((80, 1), np.float32))
    learned = {"objective": "binary:logistic"}
    found = continuation(loss_named("binary:logistic", {}), learned).new_trees(home)
    rows = xgb.QuantileDMatrix(home.X, label=home.y, base_margin=home.margin[:, 0])
    trained = xgb.train({**learned, "learning_rate": 0.3, "max_depth": 3, "seed": 0}, rows, 12)
    assert split_conditions(found.booster)
    for ours, theirs in zip(all_trees(found.booster), all_trees(trained), strict=True):
        np.testing.assert_array_equal(ours.value, theirs.value)
        np.testing.assert_array_equal(ours.threshold, theirs.threshold)
    none = continuation(loss_named("binary:logistic", {}), learned, n_trees=0).new_trees(home)
    assert list(none.steps(home)) == []


def test_a_model_is_read_once_for_several_parties_and_stays_as_it_is():
    tables = opposites()
    shared = train(tables, n_trees=10)
    before = shared.booster.save_raw("ubj")
    first = shared.continued(*tables["west"])
    shared.continued(*tables["north"])
    assert shared.continued(*tables["west"]).booster.save_raw("ubj") == first.booster.save_raw("ubj")
    assert shared.booster.save_raw("ubj") == before


def test_a_few_rows_only_adjust_it_and_weights_count():
    tables = opposites()
    shared = train(tables, n_trees=10)
    X, y = tables["west"]
    few = shared.continued(X[:9], y[:9])
    assert few.booster.save_raw("json") == shared.adjusted(X[:9], y[:9]).booster.save_raw("json") or few.n_trees == 10
    heavy = np.where(np.arange(len(y)) < 50, 5.0, 1.0)
    assert shared.continued(X, y, heavy).margins(X).tolist() != shared.continued(X, y).margins(X).tolist()


def test_what_is_learned_at_home_has_no_guarantee():
    schema = Schema.from_toml({name: {"low": -3, "high": 3} for name in "abcd"})
    parties = [simfl.Party(n, X, y, schema=schema) for n, (X, y) in opposites(400).items()]
    rule = {"recipe": "joint", "epsilon": 20.0, "rows": 1200, "random_state": 0, "callbacks": []}
    shared = simfl.train(parties, **rule)
    X, y = opposites(400)["west"]
    assert shared.guarantee
    for own in (shared.adjusted(X, y), shared.continued(X, y)):
        assert (own.epsilon, own.delta, own.guarantee) == (None, None, None)
