import itertools
import json
import math
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from scipy import sparse
from sklearn.datasets import load_diabetes, load_iris

import simfl
from simfl.errors import DataError, FileError
from simfl.model import warm_start
from simfl.model.model import About, build
from simfl.model.xgboost_document import (
    set_start,
    start_of,
    to_booster,
    to_config,
    to_document,
    with_covers,
    with_start,
)
from simfl.training.trees import LEAF, Tree


def parties(X, y, n=2, **more):
    rows = simfl.partition.balanced(len(y), n)
    take = X.iloc if isinstance(X, pd.DataFrame) else X
    return [simfl.Party(f"p{i}", take[r], y[r], **more) for i, r in enumerate(rows)]


def train(X, y, objective="binary:logistic", **more):
    return simfl.train(parties(X, y, **more), objective=objective, n_trees=4, random_state=0, callbacks=[])


@pytest.fixture(scope="module")
def frame(table):
    return pd.DataFrame(table, columns=["age", "height", "weight", "pulse", "sugar"])


@pytest.fixture(scope="module")
def named(frame, labels):
    return train(frame, labels)


@pytest.fixture(scope="module")
def models(table, labels, frame):
    iris = load_iris(return_X_y=True)
    sugar = load_diabetes(return_X_y=True)
    thin = sparse.csr_matrix(np.where(table > 0.3, table, 0))
    holes = np.where(table > 1, np.nan, table)
    return {
        "binary": (train(table, labels), table),
        "multiclass": (train(*iris, "multi:softprob"), iris[0]),
        "regression": (train(*sugar, "reg:squarederror"), sugar[0]),
        "sparse": (train(thin, labels), thin),
        "missing": (train(holes, labels), holes),
        "named": (train(frame, labels), frame),
    }


KINDS = ["binary", "multiclass", "regression", "sparse", "missing", "named"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", ["ubj", "json"])
def test_a_saved_model_opens_in_plain_xgboost(tmp_path, models, kind, ending):
    model, X = models[kind]
    model.save(tmp_path / f"m.{ending}")
    plain = xgb.Booster(model_file=tmp_path / f"m.{ending}")
    found = plain.predict(xgb.DMatrix(X))
    expected = model.predict(X) if kind == "regression" else model.predict_proba(X)
    np.testing.assert_array_equal(found, expected if found.ndim == 2 or kind == "regression" else expected[:, 1])


@pytest.mark.parametrize("kind", KINDS)
def test_load_brings_everything_back(tmp_path, models, kind):
    model, X = models[kind]
    model.save(tmp_path / "m.ubj")
    again = simfl.load(tmp_path / "m.ubj")
    np.testing.assert_array_equal(again.margins(X), model.margins(X))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.history == model.history
    assert again.traffic == model.traffic
    assert again.feature_names == model.feature_names
    assert (again.n_trees, again.n_bytes) == (model.n_trees, model.n_bytes)


@pytest.mark.parametrize("classes", [["ill", "well"], [False, True], [-1, 1], [7, 2**40]])
def test_the_classes_come_back(tmp_path, table, labels, classes):
    y = np.array(classes)[labels]
    model = train(table, y)
    model.save(tmp_path / "m.ubj")
    again = simfl.load(tmp_path / "m.ubj")
    assert again.classes.tolist() == classes
    assert set(again.predict(table)) <= set(y)
    assert (again.predict(table) == y).mean() > 0.8


def test_a_model_can_be_pickled(named, frame):
    again = pickle.loads(pickle.dumps(named))  # noqa: S301
    np.testing.assert_array_equal(again.margins(frame), named.margins(frame))


def test_the_history_has_one_record_per_round(named):
    assert [r.round for r in named.history] == [0, 1, 2, 3]
    assert [r.builder for r in named.history] == ["p0", "p1", "p0", "p1"]
    assert all(r.bytes > 0 and r.seconds > 0 and r.train for r in named.history)


def test_the_traffic_names_every_party_both_ways(named):
    assert set(named.traffic) == {"p0", "p1"}
    assert all(set(ways) == {"sent", "received"} for ways in named.traffic.values())
    assert named.n_bytes == sum(sum(w.values()) for ways in named.traffic.values() for w in ways.values())


def test_a_multiclass_round_has_one_tree_per_class(models):
    model, _ = models["multiclass"]
    assert model.n_trees == 4
    assert len(model.booster.get_dump()) == 12


def test_a_wrong_ending_is_refused_and_nothing_is_written(tmp_path, named):
    with pytest.raises(FileError, match=r"\.ubj or \.json"):
        named.save(tmp_path / "model.txt")
    assert list(tmp_path.iterdir()) == []


def test_a_save_into_a_missing_folder_leaves_nothing(tmp_path, named):
    with pytest.raises(FileError, match="cannot be written"):
        named.save(tmp_path / "nowhere" / "m.ubj")
    assert list(tmp_path.iterdir()) == []


def test_a_save_onto_a_folder_leaves_nothing(tmp_path, named):
    (tmp_path / "m.ubj").mkdir()
    with pytest.raises(FileError, match="cannot be written"):
        named.save(tmp_path / "m.ubj")
    assert [p.name for p in tmp_path.iterdir()] == ["m.ubj"]


def test_a_failed_save_keeps_the_old_file(tmp_path, named, monkeypatch):
    (tmp_path / "m.ubj").write_bytes(b"old")

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(FileError, match="No space left"):
        named.save(tmp_path / "m.ubj")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("m.ubj", b"old")]


def test_a_saved_model_can_be_read_like_any_other_file(tmp_path, named):
    named.save(tmp_path / "m.ubj")
    (tmp_path / "other").write_bytes(b"")
    assert (tmp_path / "m.ubj").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("content", [b"rubbish", b"{}", b'{"learner": 3}', bytes(range(256))])
def test_rubbish_is_not_a_model(tmp_path, content):
    (tmp_path / "m.ubj").write_bytes(content)
    with pytest.raises(FileError, match="is not an XGBoost model"):
        simfl.load(tmp_path / "m.ubj")


def test_half_a_file_is_not_a_model(tmp_path, named):
    named.save(tmp_path / "m.ubj")
    whole = (tmp_path / "m.ubj").read_bytes()
    (tmp_path / "m.ubj").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileError, match="is not an XGBoost model"):
        simfl.load(tmp_path / "m.ubj")


def test_an_empty_file_is_not_a_model(tmp_path):
    (tmp_path / "m.ubj").write_bytes(b"")
    code = "import sys, simfl\ntry: simfl.load(sys.argv[1])\nexcept simfl.SimFLError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "m.ubj"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "is not an XGBoost model" in done.stdout


def test_a_folder_is_not_a_model(tmp_path):
    with pytest.raises(FileError, match=r"is a folder.*Preparation\.load"):
        simfl.load(tmp_path)


def test_a_missing_model_is_named(tmp_path):
    with pytest.raises(FileError, match=r"nothing\.ubj cannot be read"):
        simfl.load(tmp_path / "nothing.ubj")


def test_a_foreign_xgboost_model_is_sent_to_xgboost(tmp_path, table, labels):
    xgb.train({}, xgb.DMatrix(table, labels), 1).save_model(tmp_path / "m.ubj")
    with pytest.raises(FileError, match=r"not written by SimFL.*Booster\(\)\.load_model"):
        simfl.load(tmp_path / "m.ubj")


def test_a_foreign_attribute_of_our_name_is_no_crash(tmp_path, table, labels):
    booster = xgb.train({}, xgb.DMatrix(table, labels), 1)
    booster.set_attr(simfl="something else")
    booster.save_model(tmp_path / "m.ubj")
    with pytest.raises(FileError, match="SimFL"):
        simfl.load(tmp_path / "m.ubj")


def test_columns_in_another_order_are_put_in_order(named, frame):
    np.testing.assert_array_equal(named.margins(frame[frame.columns[::-1]]), named.margins(frame))


def test_columns_beyond_the_models_are_left_out(named, frame):
    np.testing.assert_array_equal(named.margins(frame.assign(name="someone")), named.margins(frame))


def test_a_missing_column_is_named(named, frame):
    with pytest.raises(DataError, match=r"missing: \['pulse'\]"):
        named.predict(frame.drop(columns="pulse"))


def test_an_array_is_taken_in_the_order_of_training(named, frame, table):
    np.testing.assert_array_equal(named.margins(table), named.margins(frame))


def test_a_wrong_number_of_columns_is_refused(named, table):
    with pytest.raises(DataError, match="4 columns, the schema 5"):
        named.predict(table[:, :4])


def test_a_regression_has_no_probabilities(models):
    model, X = models["regression"]
    with pytest.raises(DataError, match="Use predict"):
        model.predict_proba(X)


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_sum_to_one(models, kind):
    model, X = models[kind]
    if model.classes is not None:
        np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_shap_contributions_are_finite_and_sum_to_the_margin(models, kind):
    model, X = models[kind]
    shap = model.booster.predict(xgb.DMatrix(X), pred_contribs=True)
    assert np.isfinite(shap).all()
    np.testing.assert_allclose(shap.sum(axis=-1), model.margins(X), rtol=1e-4, atol=1e-4)


def leaf_counts(tree):
    left, right = tree["left_children"], tree["right_children"]

    def count(node):
        return 1 if left[node] < 0 else count(left[node]) + count(right[node])

    return [count(node) for node in range(len(left))]


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_tells_no_statistics_of_the_rows(tmp_path, models, kind):
    models[kind][0].save(tmp_path / "m.json")
    saved = json.loads((tmp_path / "m.json").read_text())
    for tree in saved["learner"]["gradient_booster"]["model"]["trees"]:
        assert tree["sum_hessian"] == leaf_counts(tree)
        assert not any(tree["base_weights"])
        assert not any(tree["loss_changes"])


@pytest.mark.parametrize("name", ["a[1]", "a<b"])
def test_a_column_name_that_xgboost_refuses_is_refused_before_training(table, labels, name):
    with pytest.raises(DataError, match=r"p0|name"):
        train(table, labels, columns=[name, "b", "c", "d", "e"]).predict(table)


def test_repeated_names_given_beside_the_table_are_refused(table, labels):
    with pytest.raises(DataError, match=r"Party 'a' has several columns named \['x'\]"):
        simfl.Party("a", table, labels, columns=["x", "x", "c", "d", "e"])


@pytest.mark.parametrize("options", [{"n_neighbors": 0}, {"n_neighbors": 3}])
def test_a_preparation_comes_back_and_trains_the_same_model(tmp_path, halves, options):
    ready = simfl.prepare(halves, random_state=0, **options)
    ready.save(tmp_path / "ready")
    again = simfl.Preparation.load(tmp_path / "ready", halves)
    dumps = [simfl.train(r, n_trees=3, callbacks=[]).booster.get_dump() for r in (ready, again)]
    assert dumps[0] == dumps[1]


def test_a_preparation_of_one_party_comes_back(tmp_path, halves):
    simfl.prepare(halves[:1], random_state=0).save(tmp_path / "ready")
    assert simfl.Preparation.load(tmp_path / "ready", halves[:1]).about.parties == ["a"]


@pytest.mark.parametrize("content", [None, b"rubbish", b""])
def test_a_damaged_preparation_is_refused(tmp_path, halves, content):
    simfl.prepare(halves, random_state=0).save(tmp_path / "ready")
    kept = tmp_path / "ready" / "party-1.npz"
    kept.unlink() if content is None else kept.write_bytes(content)
    with pytest.raises(FileError, match=r"party-1\.npz|'b'"):
        simfl.Preparation.load(tmp_path / "ready", halves)


def test_a_model_for_others_can_be_saved_without_its_history(tmp_path):
    rng = np.random.default_rng(0)
    parties = [simfl.Party(n, rng.normal(size=(30, 3)), rng.integers(0, 2, 30)) for n in ("north", "south")]
    model = simfl.train(parties, n_trees=3, random_state=0)
    model.save(tmp_path / "m.json", history=False)
    assert b"north" not in (tmp_path / "m.json").read_bytes()
    again = simfl.load(tmp_path / "m.json")
    assert again.history == []
    assert again.classes.tolist() == [0, 1]
    assert model.history


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression", "missing"])
def test_other_start_values_are_all_that_changes(models, kind):
    model, _ = models[kind]
    document = to_document(model.booster)
    new = [0.25 + 0.125 * place for place in range(len(start_of(document)))]
    set_start(document, new)
    changed = with_start(model.booster, new)
    assert changed.save_raw("ubj") == to_booster(document).save_raw("ubj")
    np.testing.assert_array_equal(start_of(to_config(changed)), new)


def test_a_column_may_be_called_as_the_start_value():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 3)), columns=["base_score", "S", "base_score2"])
    y = (frame["S"] > 0).astype(int)
    model = simfl.train([simfl.Party("a", frame, y)], n_trees=3, callbacks=[])
    adjusted = model.adjusted(frame[y == 0], y[y == 0])
    assert adjusted.feature_names == list(frame.columns)
    assert adjusted.margins(frame).mean() < model.margins(frame).mean() - 1


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression", "missing"])
def test_with_covers_of_rows_the_base_value_of_shap_is_their_mean_score(models, kind):
    model, X = models[kind]
    at_home = model.with_covers(X)
    parts = at_home.booster.predict(at_home.matrix(X), pred_contribs=True).astype(np.float64)
    parts = parts.reshape(len(X), -1, parts.shape[-1])
    margins = model.margins(X).astype(np.float64).reshape(len(X), -1)
    np.testing.assert_allclose(
        parts[..., -1], np.broadcast_to(margins.mean(axis=0), margins.shape), atol=1e-4, rtol=1e-4
    )
    np.testing.assert_allclose(parts.sum(axis=-1), margins, atol=1e-4, rtol=1e-4)


def test_with_covers_a_node_has_the_rows_that_reach_it_and_predictions_stay(tmp_path, models):
    model, X = models["binary"]
    at_home = model.with_covers(X)
    roots = [
        tree["sum_hessian"][0]
        for tree in json.loads(at_home.booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]
    ]
    np.testing.assert_allclose(roots, len(X), atol=1e-3)
    np.testing.assert_array_equal(at_home.predict_proba(X), model.predict_proba(X))
    at_home.save(tmp_path / "m.ubj")
    np.testing.assert_array_equal(simfl.load(tmp_path / "m.ubj").predict_proba(X), model.predict_proba(X))


def test_covers_of_rows_that_count_by_their_weight_are_xgboosts_own(models):
    """Of squared errors every hessian is one: XGBoost's covers are then the weights of the rows that reach a node."""
    _, X = models["regression"]
    rng = np.random.default_rng(0)
    y, weight = rng.normal(size=len(X)) + X[:, 0], rng.integers(1, 9, len(X)).astype(np.float32)
    booster = xgb.train({"max_depth": 4}, xgb.DMatrix(X, y, weight=weight), 5)
    leaves = booster.predict(xgb.DMatrix(X), pred_leaf=True).astype(np.int64)
    for found in (
        covers_of(with_covers(booster, leaves, weight)),
        covers_of(with_covers(booster, leaves, 9 * weight), 9),
    ):
        for own, theirs in zip(found, covers_of(booster), strict=True):
            np.testing.assert_allclose(own, theirs, rtol=1e-4)


def covers_of(booster, unit=1):
    trees = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]
    return [np.array(tree["sum_hessian"]) / unit for tree in trees]


def test_with_the_weights_of_rows_the_base_value_of_shap_is_their_weighted_mean(models):
    model, X = models["binary"]
    weight = np.where(model.margins(X) > 0, 5.0, 1.0)
    at_home = model.with_covers(X, weight)
    base = at_home.booster.predict(at_home.matrix(X), pred_contribs=True)[:, -1]
    np.testing.assert_allclose(base, np.average(model.margins(X), weights=weight), atol=1e-4)
    with pytest.raises(DataError, match="sample weights"):
        model.with_covers(X, weight[1:])


def shapley(tree, X, row, counts):
    """Every column's share of a row's score by one tree: all subsets of known columns, unknown splits by row counts."""

    def score(known, node):
        f = tree.feature[node]
        if f == LEAF:
            return float(tree.value[node])
        left, right = int(tree.left[node]), int(tree.left[node]) + 1
        if f in known:
            x = X[row, f]
            return score(
                known, left if (tree.default_left[node] if np.isnan(x) else x < tree.threshold[node]) else right
            )
        return (score(known, left) * counts[left] + score(known, right) * counts[right]) / (
            counts[left] + counts[right]
        )

    columns = range(X.shape[1])
    found = np.zeros(len(columns) + 1)
    found[-1] = score((), 0)
    for f in columns:
        others = [c for c in columns if c != f]
        for size in range(len(others) + 1):
            weight = 1 / (len(columns) * math.comb(len(others), size))
            for known in itertools.combinations(others, size):
                found[f] += weight * (score((*known, f), 0) - score(known, 0))
    return found


def counted(tree, X):
    """How many rows reach every node, row by row."""
    counts = np.zeros(len(tree.feature))
    for x in X:
        node = 0
        while True:
            counts[node] += 1
            if tree.feature[node] == LEAF:
                break
            value = x[tree.feature[node]]
            goes_left = tree.default_left[node] if np.isnan(value) else value < tree.threshold[node]
            node = int(tree.left[node]) + (not goes_left)
    return counts


@pytest.mark.parametrize("kind", ["binary", "missing"])
def test_with_covers_shap_values_are_shapleys_own(models, kind):
    model, X = models[kind]
    X = X.astype(np.float32)
    at_home, start = model.with_covers(X), model.loss.margin(start_of(to_config(model.booster)))[0]
    trees = [tree for trees in warm_start(model).rounds for tree in trees]
    counts = [counted(tree, X) for tree in trees]
    parts = at_home.booster.predict(at_home.matrix(X), pred_contribs=True)
    assert max(len(tree.feature) for tree in trees) >= 7
    for row in (0, 7, 23):
        expected = sum(shapley(tree, X, row, of_tree) for tree, of_tree in zip(trees, counts, strict=True))
        expected[-1] += start
        np.testing.assert_allclose(parts[row], expected, atol=2e-5)


def test_shap_values_of_a_tree_worked_by_hand():
    """Four rows. a < 0: -1 (one row). Else b < 0: 1 (one row), or 3 (two rows)."""
    X = np.array([[-1, 1], [1, -1], [1, 1], [1, 2]], dtype=np.float32)
    tree = Tree(
        feature=np.array([0, LEAF, 1, LEAF, LEAF], dtype=np.int32),
        threshold=np.zeros(5, dtype=np.float32),
        default_left=np.zeros(5, dtype=bool),
        left=np.array([1, -1, 3, -1, -1], dtype=np.int32),
        value=np.array([0, -1, 0, 1, 3], dtype=np.float32),
    )
    about = About(classes=None, history=[], traffic={})
    model = build([[tree]], np.zeros(1), {"objective": "reg:squarederror"}, 2, about)
    at_home = model.with_covers(X)
    saved = json.loads(at_home.booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"][0]
    np.testing.assert_allclose(saved["sum_hessian"], [4, 1, 3, 1, 2], atol=1e-4)
    # Known: nothing: 6/4. a of the last row: (1 + 3 + 3)/3. b of it: (-1 + 3 * 3)/4. Both: 3.
    a = ((7 / 3 - 3 / 2) + (3 - 2)) / 2
    b = ((2 - 3 / 2) + (3 - 7 / 3)) / 2
    np.testing.assert_allclose(at_home.booster.predict(xgb.DMatrix(X), pred_contribs=True)[3], [a, b, 3 / 2], atol=1e-5)


def test_objects_say_what_they_are(models, frame, labels):
    model, _ = models["binary"]
    assert repr(model).startswith("Model(binary:logistic, 4 rounds, 5 features, 2 classes, 2 parties, ")
    assert "<th>rounds</th><td>4</td>" in model._repr_html_()
    party = simfl.Party("<north>", frame, labels)
    assert "Party &lt;north&gt;" in party._repr_html_()
    assert "<th>number columns</th><td>5</td>" in party._repr_html_()
    ready = simfl.prepare(parties(frame, labels), random_state=0)
    assert "<th>p0</th><td>30 rows</td>" in ready._repr_html_()
