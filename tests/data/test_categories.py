"""Categories from the table to the model: XGBoost's own splits, across parties that have seen different levels."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xgboost as xgb
from sklearn.metrics import log_loss

import simfl
from simfl import messages as msg
from simfl import wire
from simfl.data.schema import Schema
from simfl.errors import DataError, UnseenLevelWarning
from simfl.training.pruning import prune
from simfl.training.traversal import leaf_numbers
from simfl.training.trees import from_booster
from tests.wire import sessions

WARDS = list("abcdefgh")


def patients(n=400, seed=0, wards=WARDS):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "ward": rng.choice(wards, n),
            "age": rng.normal(60, 10, n),
            "smoker": rng.random(n) < 0.3,
            "blood": rng.choice(["A", "B", "0"], n),
        }
    )
    frame.loc[rng.random(n) < 0.1, ["ward", "age"]] = np.nan
    risk = frame["ward"].isin(["a", "c", "f"]) * 1.5 + (frame["age"] > 62) + 0.8 * frame["smoker"]
    return frame, (risk + rng.normal(0, 0.5, n) > 1.2).astype(int).to_numpy()


@pytest.fixture(scope="module")
def parties():
    """Three parties, the last of which has wards of its own."""
    tables = [patients(seed=0, wards=WARDS[:5]), patients(seed=1, wards=WARDS[2:6]), patients(seed=2, wards=WARDS[3:])]
    return [simfl.Party(name, *table) for name, table in zip(("north", "south", "west"), tables, strict=True)]


@pytest.fixture(scope="module")
def model(parties):
    return simfl.train(parties, n_trees=30, random_state=0)


def as_categories(frame):
    return frame.astype({"ward": "category", "blood": "category"})


def test_one_party_is_xgboost_with_categories():
    X, y = patients()
    ours = simfl.train([simfl.Party("north", X, y)], n_trees=20, max_depth=4, learning_rate=0.3)
    theirs = xgb.train(
        {"objective": "binary:logistic", "max_depth": 4, "learning_rate": 0.3, "tree_method": "hist"},
        xgb.QuantileDMatrix(as_categories(X), y, enable_categorical=True),
        20,
    )
    matrix = xgb.DMatrix(as_categories(X), enable_categorical=True)
    np.testing.assert_array_equal(ours.margins(X), theirs.predict(matrix, output_margin=True))


def test_categories_are_split_by_their_levels(model):
    trees = [from_booster(model.booster[i : i + 1]) for i in range(30)]
    assert sum(tree.goes_right is not None for tree in trees) > 15


def test_the_levels_of_all_parties_are_known(model):
    assert model.schema.columns[0].levels == tuple(WARDS)
    assert model.schema.columns[3].levels == ("0", "A", "B")


def test_a_tree_of_levels_is_walked_as_xgboost_walks_it():
    X, y = patients(2000)
    schema = Schema.propose(X)
    rows = schema.encode(X)
    types = {"feature_types": schema.feature_types, "enable_categorical": True}
    booster = xgb.train({"max_depth": 6, "max_cat_to_onehot": 1}, xgb.DMatrix(rows[::2], y[::2], **types), 1)
    tree = from_booster(booster)
    rows[::7, 0] = 40  # a level beyond all that the builder has seen
    values = tree.value[tree.leaves][leaf_numbers(tree, rows)]
    theirs = booster.predict(xgb.DMatrix(rows, **types), output_margin=True)
    base = booster.predict(xgb.DMatrix(rows, **types), output_margin=True, iteration_range=(0, 1)) - values
    np.testing.assert_allclose(theirs - values, base[0], atol=1e-6)


def test_a_tree_of_levels_survives_the_journey_and_the_pruning(model):
    tree = next(t for t in (from_booster(model.booster[i : i + 1]) for i in range(30)) if t.goes_right is not None)
    rows = model.schema.encode(patients(300, seed=9)[0])
    back = wire.tree_from_message(wire.tree_to_message(tree), 4).with_leaf_values(tree.value[tree.leaves])
    np.testing.assert_array_equal(leaf_numbers(back, rows), leaf_numbers(tree, rows))
    rng = np.random.default_rng(0)
    G, H = rng.normal(size=tree.n_leaves), rng.random(tree.n_leaves) + 1
    params = simfl.params.train_params(max_depth=2, gamma=0.1)
    pruned, new_values = prune(tree, G, H, params)
    assert pruned.n_leaves < tree.n_leaves
    np.testing.assert_array_equal(
        pruned.value[pruned.leaves][leaf_numbers(pruned, rows)], new_values[leaf_numbers(tree, rows)]
    )


def test_together_is_better_than_alone_for_every_party(parties, model):
    X, y = patients(3000, seed=7)
    alone = simfl.baselines.solo(parties, n_trees=30, random_state=0)
    together = log_loss(y, model.predict_proba(X))
    assert all(together < log_loss(y, m.predict_proba(X)) for m in alone.values())


@pytest.mark.parametrize("make", [pl.from_pandas, pa.Table.from_pandas, as_categories])
def test_every_make_of_frame_trains_and_predicts_the_same(make, parties, model):
    tables = [patients(seed=0, wards=WARDS[:5]), patients(seed=1, wards=WARDS[2:6]), patients(seed=2, wards=WARDS[3:])]
    same = [simfl.Party(p.name, make(X), y) for p, (X, y) in zip(parties, tables, strict=True)]
    other = simfl.train(same, n_trees=30, random_state=0)
    X = patients(50, seed=5)[0]
    np.testing.assert_array_equal(other.margins(X), model.margins(X))
    np.testing.assert_array_equal(other.margins(make(X)), model.margins(X))


def test_columns_in_another_order_and_integers_for_floats_change_nothing(parties, model):
    X, y = patients(seed=1, wards=WARDS[2:6])
    X["smoker"] = X["smoker"].astype(int)
    turned = simfl.Party("south", X[X.columns[::-1]], y)
    other = simfl.train([parties[0], turned, parties[2]], n_trees=30, random_state=0)
    X = patients(50, seed=5)[0]
    np.testing.assert_array_equal(other.margins(X), model.margins(X))


def test_plain_xgboost_reads_the_same_frames(model, tmp_path):
    model.save(tmp_path / "m.ubj")
    X = patients(200, seed=3)[0]
    frame = X.astype({"ward": pd.CategoricalDtype(WARDS[::-1]), "blood": "category"})  # other numbers, the same levels
    plain = xgb.Booster(model_file=tmp_path / "m.ubj").predict(xgb.DMatrix(frame, enable_categorical=True))
    np.testing.assert_array_equal(plain, model.predict_proba(X)[:, 1])
    np.testing.assert_array_equal(simfl.load(tmp_path / "m.ubj").predict_proba(X)[:, 1], plain)


def test_an_unseen_level_is_a_missing_one(model):
    X = patients(20, seed=3)[0]
    with pytest.warns(UnseenLevelWarning, match="'ward' of the table to predict"):
        unseen = model.margins(X.assign(ward="zz"))
    np.testing.assert_array_equal(unseen, model.margins(X.assign(ward=None)))


def test_a_table_without_names_is_refused_where_there_are_categories(model):
    with pytest.raises(DataError, match="Give a data frame"):
        model.predict(np.zeros((2, 4)))


def test_text_is_refused_by_a_model_of_numbers(halves):
    model = simfl.train(halves, n_trees=2)
    with pytest.raises(DataError, match="trained on numbers only"):
        model.predict(pd.DataFrame({name: ["x"] for name in "abcde"}))


def test_a_preparation_keeps_the_agreed_levels(parties, tmp_path):
    ready = simfl.prepare(parties, random_state=0)
    ready.save(tmp_path / "ready")
    again = simfl.Preparation.load(tmp_path / "ready", parties)
    X = patients(50, seed=5)[0]
    margins = [simfl.train(p, n_trees=5).margins(X) for p in (ready, again)]
    np.testing.assert_array_equal(*margins)


def test_validation_rows_are_read_through_the_agreed_schema(parties):
    X, y = patients(seed=4, wards=WARDS[:5])
    watched = simfl.Party("north", X[:300], y[:300], validation=(X[300:][X.columns[::-1]], y[300:]))
    fit = simfl.train([watched, *parties[1:]], n_trees=5, random_state=0)
    p = fit.predict_proba(X[300:])
    assert fit.history[-1].validation["logloss"] == pytest.approx(log_loss(y[300:], p), abs=1e-5)


def test_a_declared_schema_is_all_that_leaves(parties):
    """Levels beyond the declared ones stay at home: they count as missing."""
    X, y = patients(seed=0)
    schema = Schema.propose(X[["ward", "age"]])
    declared = Schema.from_toml({"ward": ["a", "b"], "age": "number"})
    with pytest.warns(UnseenLevelWarning):
        party = simfl.Party("north", X, y, schema=declared)
    described = sessions([party])[0].handle(msg.Describe(version=msg.VERSION, validation_fraction=0, seed=0))
    assert described.columns == list(declared.columns)
    assert schema != declared


def test_hash_values_of_categories_bring_equal_rows_together():
    X, y = patients(300)
    twins = [simfl.Party("a", X, y), simfl.Party("b", X[X.columns[::-1]], y)]
    ready = simfl.prepare(twins, n_neighbors=1, random_state=0)
    assert ready.about.equal_hashes["a"]["b"] == ready.about.n_hashes


def test_the_bank_data_in_four_parties(shared_data):
    frame = pd.read_csv(shared_data("bank-full.csv"), sep=";").drop(columns="duration")
    y = (frame.pop("y") == "yes").to_numpy()
    rows, held_out = np.arange(0, 12000), np.arange(12000, len(y), 4)
    order = np.random.default_rng(0).permutation(len(y))
    rows, held_out = order[rows], order[held_out]
    parts = simfl.partition.unbalanced(y[rows], 4, theta=0.8, seed=0)
    banks = [simfl.Party(f"bank {i}", frame.iloc[rows[r]], y[rows[r]]) for i, r in enumerate(parts)]
    params = {"n_trees": 60, "random_state": 0}

    def loss(model):
        return log_loss(y[held_out], model.predict_proba(frame.iloc[held_out]))

    together = loss(simfl.train(banks, **params))
    assert together < loss(simfl.baselines.tfl(banks, **params))
    assert all(together < loss(model) for model in simfl.baselines.solo(banks, **params).values())


def test_splits_of_categories_are_explained_and_adjusted_too(model):
    X, y = patients(seed=3)
    at_home = model.with_covers(X)
    parts = at_home.booster.predict(at_home.matrix(X), pred_contribs=True)
    np.testing.assert_allclose(parts[:, -1], model.margins(X).mean(), atol=1e-4)
    np.testing.assert_allclose(parts.sum(axis=1), model.margins(X), atol=1e-4)
    shift = model.shift(model.margins(X), y)
    np.testing.assert_allclose(model.adjusted(X, y).margins(X), model.margins(X) + shift, atol=1e-5)
