"""A party that differs in kind: the party as a column, and the shared model continued at home."""

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from sklearn.datasets import load_iris

import simfl
from simfl.data.schema import Schema, xgboost_types
from simfl.errors import DataError
from simfl.model import warm_start
from simfl.model.home import Continuation, Home, at_level, rounds_at
from simfl.training import ubjson
from simfl.training.losses import loss_named
from simfl.training.trees import Tree, all_trees, apart, children

RECIPES = ["similar", "paper", "joint"]
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


@pytest.mark.parametrize("recipe", RECIPES)
def test_trees_split_on_the_party_where_its_rows_differ_in_kind(recipe):
    tables, new = opposites(), opposites(seed=1)
    shared, named = train(tables, recipe=recipe), train(tables, recipe=recipe, party_column=True)
    for name in PARTIES:
        assert right(named.at(name), new, name) > 0.85
    assert right(shared, new, "west") < 0.6


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_model_of_a_party_is_the_booster_on_its_level(recipe):
    tables = opposites(100)
    named = train(tables, recipe=recipe, party_column=True, n_trees=10)
    for name in PARTIES:
        X, _ = tables[name]
        whole = named.predict_proba(X.assign(party=name))
        np.testing.assert_array_equal(named.at(name).predict_proba(X), whole)


def test_a_new_site_gets_the_mean_of_the_scores_at_the_parties(tmp_path):
    tables = opposites(100)
    named = train(tables, party_column=True, n_trees=10)
    X, _ = tables["north"]
    scores = [named.at(name).margins(X) for name in PARTIES]
    new = named.at(None)
    np.testing.assert_allclose(new.margins(X), np.mean(scores, axis=0), atol=1e-5)
    new.save(tmp_path / "new.json")
    opened = xgb.Booster(model_file=tmp_path / "new.json")
    np.testing.assert_array_equal(opened.predict(xgb.DMatrix(X)), new.predict_proba(X)[:, 1])


def test_rows_that_do_not_say_whose_they_are_are_refused_with_the_way_out():
    tables = opposites(60)
    named = train(tables, party_column=True, n_trees=3)
    X, _ = tables["north"]
    for asked in (X, X.assign(party="east"), X.assign(party=None), X.to_numpy()):
        with pytest.raises(DataError, match=r"model\.at\(None\)"):
            named.predict(asked)
    with pytest.raises(DataError, match="'east' had no part in the training"):
        named.at("east")
    with pytest.raises(DataError, match="party_column=True"):
        train(tables, n_trees=3).at("north")


def test_a_column_of_that_name_and_a_sparse_table_are_refused():
    from scipy import sparse

    X, y = opposites(40)["north"]
    with pytest.raises(DataError, match="'party' is there already"):
        train({"a": (X.assign(party=1.0), y), "b": (X.assign(party=1.0), y)}, party_column=True)
    with pytest.raises(DataError, match="sparse table"):
        train({n: (sparse.csr_matrix(X.to_numpy()), y) for n in "ab"}, party_column=True)


def test_whose_a_row_is_makes_no_row_less_similar():
    tables = opposites(80)
    parties = [simfl.Party(name, X, y) for name, (X, y) in tables.items()]
    plain, named = (simfl.prepare(parties, random_state=0, party_column=on) for on in (False, True))
    assert plain.about.n_hashes == named.about.n_hashes == 3
    assert plain.about.equal_hashes == named.about.equal_hashes


def test_a_preparation_with_the_column_is_kept_and_found_again(tmp_path):
    tables = opposites(60)
    parties = [simfl.Party(name, X, y) for name, (X, y) in tables.items()]
    ready = simfl.prepare(parties, random_state=0, party_column=True)
    ready.save(tmp_path / "ready")
    again = simfl.Preparation.load(tmp_path / "ready", parties)
    first, second = (simfl.train(r, n_trees=3, random_state=0, callbacks=[]) for r in (ready, again))
    assert first.booster.get_dump() == second.booster.get_dump()


def test_tables_without_names_and_the_estimator_take_the_column_too():
    tables = opposites(100)
    X = np.concatenate([X.to_numpy() for X, _ in tables.values()])
    y, site = np.concatenate([y for _, y in tables.values()]), np.repeat(PARTIES, 100)
    fitted = simfl.SimFLClassifier(n_trees=40, party_column=True, random_state=0).fit(X, y, parties=site)
    assert (fitted.predict(X, parties=site) == y).mean() > 0.95
    np.testing.assert_array_equal(fitted.predict_proba(X), fitted.model_.at(None).predict_proba(X))
    shuffled = np.random.default_rng(0).permutation(len(y))
    np.testing.assert_array_equal(
        fitted.predict_proba(X[shuffled], parties=site[shuffled]), fitted.predict_proba(X, parties=site)[shuffled]
    )


def test_private_trees_split_on_the_party_too():
    schema = Schema.from_toml({name: {"low": -3, "high": 3} for name in "abcd"})
    parties = [simfl.Party(n, X, y, schema=schema) for n, (X, y) in opposites(400).items()]
    rule = {"recipe": "joint", "epsilon": 20.0, "rows": 1200, "random_state": 0, "callbacks": []}
    named = simfl.train(parties, party_column=True, **rule)
    assert named.guarantee
    assert named.at("west").guarantee


SPLIT_ON_PARTY = Tree(
    feature=np.array([1, 0, -1, -1, -1], dtype=np.int32),
    threshold=np.array([0, 0.5, 0, 0, 0], dtype=np.float32),
    default_left=np.zeros(5, dtype=bool),
    left=children(np.array([1, 0, -1, -1, -1], dtype=np.int32)),
    value=np.array([0, 0, 3, 1, 2], dtype=np.float32),
    level_set=np.array([0, -1, -1, -1, -1], dtype=np.int32),
    goes_right=np.array([[False, False, True]]),
)


def test_a_split_on_the_party_is_taken_away_by_hand():
    first, last = (at_level(SPLIT_ON_PARTY, 1, level) for level in (0, 2))
    assert first.feature.tolist() == [0, -1, -1]
    assert first.value.tolist() == [0, 1, 2]
    assert (last.feature.tolist(), last.value.tolist()) == ([-1], [3])
    mean = rounds_at([[SPLIT_ON_PARTY]], 1, [0, 2])
    assert [tree.value.tolist() for [tree] in mean] == [[0, 0.5, 1], [1.5]]


@pytest.mark.parametrize(("found", "sides"), [([False, True], [0, 1, 0]), ([True, False], [1, 0, 1])])
def test_a_builder_splits_between_itself_and_all_others(found, sides):
    from dataclasses import replace

    grown = replace(SPLIT_ON_PARTY, goes_right=np.array([found]))
    assert apart(grown, 1, level=1, n_levels=3).goes_right.astype(int).tolist() == [sides]


# --- continued at home -----------------------------------------------------------------------------------------------


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
    assert ubjson.arrays(bytes(found.booster.save_raw("ubj")), "split_conditions")
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
