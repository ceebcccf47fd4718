import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import simfl
from simfl.data.schema import Schema
from simfl.errors import DataError, ParameterError, SimFLError

FEW = {"n_trees": 4, "random_state": 0, "n_jobs": 1}
BOTH = [simfl.SimFLClassifier, simfl.SimFLRegressor]


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.fixture
def site(labels):
    return np.array(["north", "south", "west"])[np.arange(len(labels)) % 3]


@parametrize_with_checks(
    [simfl.SimFLClassifier(n_trees=8, random_state=0), simfl.SimFLRegressor(n_trees=8, random_state=0)]
)
def test_the_estimators_keep_scikit_learns_rules(estimator, check):
    check(estimator)


@pytest.mark.parametrize("kind", BOTH)
def test_an_unknown_parameter_is_refused_by_the_constructor(kind):
    with pytest.raises(TypeError, match="n_tree"):
        kind(n_tree=3)


@pytest.mark.parametrize("kind", BOTH)
def test_a_clone_has_the_same_parameters(kind):
    estimator = kind(n_trees=7, recipe="paper", n_hashes=3)
    assert clone(estimator).get_params() == estimator.get_params()
    assert estimator.set_params(n_trees=9).n_trees == 9


def test_no_party_labels_mean_one_party(table, labels):
    fitted = simfl.SimFLClassifier(**FEW).fit(table, labels)
    alone = simfl.train([simfl.Party("all", table, labels)], callbacks=[], **FEW)
    np.testing.assert_allclose(fitted.predict_proba(table), alone.predict_proba(table), atol=1e-5)


def test_a_regressor_without_party_labels_is_one_party():
    X, y = load_diabetes(return_X_y=True)
    fitted = simfl.SimFLRegressor(**FEW).fit(X, y)
    alone = simfl.train([simfl.Party("all", X, y)], objective="reg:squarederror", callbacks=[], **FEW)
    np.testing.assert_allclose(fitted.predict(X), alone.predict(X), rtol=1e-4)


def test_party_labels_split_the_rows(table, labels, site):
    fitted = simfl.SimFLClassifier(**FEW).fit(table, labels, parties=site)
    assert [r.builder for r in fitted.model_.history] == ["north", "south", "west", "north"]


@pytest.mark.parametrize("form", [list, np.array, pd.Series])
def test_party_labels_come_in_many_forms(table, labels, site, form):
    assert simfl.SimFLClassifier(**FEW).fit(table, labels, parties=form(site)).model_.n_trees == 4


@pytest.mark.parametrize("wrong", [["a"], [["a", "b"]] * 60])
def test_party_labels_must_be_one_per_row(table, labels, wrong):
    with pytest.raises(ValueError, match=r"inconsistent|one label per row"):
        simfl.SimFLClassifier(**FEW).fit(table, labels, parties=wrong)


def test_missing_party_labels_are_refused(table, labels):
    with pytest.raises(SimFLError, match="parties"):
        simfl.SimFLClassifier(**FEW).fit(table, labels, parties=[np.nan, *["a"] * 59])


def test_text_classes_come_back(table, labels, site):
    y = np.array(["ill", "well"])[labels]
    fitted = simfl.SimFLClassifier(**FEW).fit(table, y, parties=site)
    assert fitted.classes_.tolist() == ["ill", "well"]
    assert fitted.score(table, y) > 0.8


def test_three_classes_are_multiclass():
    X, y = load_iris(return_X_y=True)
    fitted = simfl.SimFLClassifier(**FEW).fit(X, y, parties=np.arange(150) % 2)
    assert fitted.predict_proba(X).shape == (150, 3)
    assert fitted.score(X, y) > 0.9


def test_one_class_is_refused(table):
    with pytest.raises(SimFLError, match="one class"):
        simfl.SimFLClassifier(**FEW).fit(table, np.zeros(60))


def test_missing_values_are_accepted(table, labels, site):
    holes = np.where(table > 1, np.nan, table)
    fitted = simfl.SimFLClassifier(**FEW).fit(holes, labels, parties=site)
    assert np.isfinite(fitted.predict_proba(holes)).all()


@pytest.mark.parametrize("make", [sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array, sparse.coo_array])
def test_sparse_tables_are_accepted(table, labels, site, make):
    thin = make(np.where(table > 0, table, 0))
    fitted = simfl.SimFLClassifier(**FEW).fit(thin, labels, parties=site)
    assert fitted.predict(thin).shape == (60,)


def test_feature_names_reach_the_model(table, labels, site):
    frame = pd.DataFrame(table, columns=list("abcde"))
    fitted = simfl.SimFLClassifier(**FEW).fit(frame, labels, parties=site)
    assert fitted.feature_names_in_.tolist() == fitted.model_.feature_names == list("abcde")
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame[list("edcba")])


def test_a_row_of_weight_zero_is_as_good_as_absent(table, labels):
    weight = np.r_[np.ones(40), np.zeros(20)]
    weighted = simfl.SimFLClassifier(**FEW).fit(table, labels, sample_weight=weight)
    fewer = simfl.SimFLClassifier(**FEW).fit(table[:40], labels[:40])
    np.testing.assert_allclose(weighted.predict_proba(table), fewer.predict_proba(table), atol=1e-6)


def test_weights_change_the_model(table, labels, site):
    plain = simfl.SimFLClassifier(**FEW).fit(table, labels, parties=site)
    heavy = simfl.SimFLClassifier(**FEW).fit(table, labels, parties=site, sample_weight=1 + 9 * labels)
    assert heavy.predict_proba(table)[:, 1].mean() > plain.predict_proba(table)[:, 1].mean()


def test_a_wrong_parameter_value_is_told_at_fit(table, labels):
    with pytest.raises(SimFLError, match="n_trees=0"):
        simfl.SimFLClassifier(n_trees=0).fit(table, labels)


@pytest.mark.parametrize("form", [pd.DataFrame, pl.DataFrame, pa.table])
def test_parties_can_name_a_column_which_is_then_no_feature(table, labels, site, form):
    columns = {f"x{i}": table[:, i] for i in range(table.shape[1])}
    whole = form({"site": np.array([f"s{i}" for i in site]), **columns})
    fitted = simfl.SimFLClassifier(**FEW).fit(whole, labels, parties="site")
    assert fitted.feature_names_in_.tolist() == list(columns)
    apart = simfl.SimFLClassifier(**FEW).fit(pd.DataFrame(columns), labels, parties=[f"s{i}" for i in site])
    assert (fitted.predict_proba(whole) == apart.predict_proba(pd.DataFrame(columns))).all()
    assert (fitted.predict_proba(pd.DataFrame(columns)) == fitted.predict_proba(whole)).all()


def test_a_text_that_is_no_column_is_told(table, labels):
    for X in (table, pd.DataFrame(table).rename(columns=str)):
        with pytest.raises(DataError, match=r"parties='site'.*no column of that name.*parties=table\['site'\]"):
            simfl.SimFLClassifier(**FEW).fit(X, labels, parties="site")


@pytest.mark.usefixtures("routing")
def test_parties_go_through_a_pipeline(table, labels, site):
    model = simfl.SimFLClassifier(**FEW).set_fit_request(parties=True)
    fitted = make_pipeline(StandardScaler(), model).fit(table, labels, parties=site)
    assert {r.builder for r in fitted[-1].model_.history} == {"north", "south", "west"}


@pytest.mark.usefixtures("routing")
def test_parties_go_through_a_grid_search(table, labels, site):
    model = simfl.SimFLClassifier(**FEW).set_fit_request(parties=True)
    search = GridSearchCV(model, {"max_depth": np.array([2, 3])}, cv=2).fit(table, labels, parties=site)
    assert search.best_params_["max_depth"] in (2, 3)
    assert {r.builder for r in search.best_estimator_.model_.history} == {"north", "south", "west"}


@pytest.mark.usefixtures("routing")
def test_parties_go_through_cross_validation(table, labels, site):
    model = make_pipeline(StandardScaler(), simfl.SimFLClassifier(**FEW).set_fit_request(parties=True))
    found = cross_validate(model, table, labels, params={"parties": site}, cv=2, return_estimator=True)
    assert np.isfinite(found["test_score"]).all()
    assert {r.builder for r in found["estimator"][0][-1].model_.history} == {"north", "south", "west"}


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_a_frame_with_categories_fits_and_predicts(make):
    rng = np.random.default_rng(0)
    ward, age = rng.choice(list("abc"), 90), rng.normal(size=90)
    y = np.where((ward == "b") ^ (age > 0), "ill", "well")
    X = make({"ward": ward, "age": age})
    model = simfl.SimFLClassifier(n_trees=20, random_state=0).fit(X, y, parties=np.arange(90) % 2)
    assert model.score(X, y) > 0.9
    assert model.feature_names_in_.tolist() == ["ward", "age"]
    assert model.n_features_in_ == 2
    turned = make({"age": age, "ward": ward})
    np.testing.assert_array_equal(model.predict_proba(turned), model.predict_proba(X))


@pytest.mark.parametrize("kind", [simfl.SimFLClassifier, simfl.SimFLRegressor])
def test_a_fit_can_go_on_from_an_earlier_one(kind):
    X, y = load_breast_cancer(return_X_y=True)
    site = np.arange(len(y)) % 3
    first = kind(n_trees=6, random_state=0, rematch=0).fit(X, y, parties=site)
    second = kind(n_trees=4, random_state=1, rematch=0).fit(X, y, parties=site, init_model=first.model_)
    assert second.model_.n_trees == 10
    assert second.score(X, y) > first.score(X, y)


def test_a_later_fit_keeps_the_earlier_classes():
    X, y = load_iris(return_X_y=True)
    names = np.array(["a", "b", "c"])[y]
    first = simfl.SimFLClassifier(n_trees=6, random_state=0).fit(X, names)
    few = y != 1  # no row of class b
    second = simfl.SimFLClassifier(n_trees=4, random_state=1).fit(X[few], names[few], init_model=first.model_)
    assert second.classes_.tolist() == ["a", "b", "c"]
    assert (second.predict(X) == names).mean() > 0.9
    with pytest.raises(SimFLError, match=r"\['d'\]"):
        first.fit(X, np.where(y == 1, "d", names), init_model=first.model_)
    with pytest.raises(SimFLError, match="not the model_ of a fitted"):
        first.fit(X, names, init_model=simfl.train([simfl.Party("p", X, y)], n_trees=2, objective="multi:softprob"))


@pytest.mark.parametrize("estimator", [simfl.SimFLClassifier, simfl.SimFLRegressor])
def test_epsilon_needs_the_joint_recipe(estimator):
    X, y = load_iris(return_X_y=True)
    with pytest.raises(SimFLError, match=r"epsilon is a parameter of recipe='joint'.*Set recipe='joint'"):
        estimator(epsilon=8.0).fit(X, y)


# --- joint with epsilon: what must be declared ------------------------------------------------------------------------

PRIVATE = {"recipe": "joint", "epsilon": 8.0, "rows": 600, "n_trees": 20, "random_state": 0}


def private_table(n=600):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(50, 10, n), "ward": rng.choice(["a", "b"], n)})
    return frame, np.where((frame.ward == "a") ^ (rng.random(n) < 0.05), "ill", "well")


def test_a_private_fit_takes_declared_columns_and_classes():
    pytest.importorskip("dp_accounting")
    frame, label = private_table()
    schema = Schema.from_toml({"age": {"low": 0, "high": 110}, "ward": ["a", "b", "c"]})
    private = simfl.SimFLClassifier(**PRIVATE, classes=["well", "ill"])
    private.fit(frame, label, parties=np.arange(600) % 2, schema=schema)
    assert private.classes_.tolist() == ["well", "ill"]
    assert private.score(frame, label) > 0.8
    assert "adding or removing any one row" in private.model_.guarantee
    assert private.model_.schema.columns[1].levels == ("a", "b", "c")


def test_a_private_fit_takes_a_plain_table_with_ranges():
    pytest.importorskip("dp_accounting")
    X = np.random.default_rng(0).normal(size=(600, 2))
    schema = Schema.from_toml({"a": {"low": -3, "high": 3}, "b": {"low": -3, "high": 3}})
    private = simfl.SimFLClassifier(**PRIVATE).fit(X, X[:, 0] > 0, schema=schema)
    assert private.predict_proba(X).shape == (600, 2)


@pytest.mark.parametrize(
    ("given", "declared", "said"),
    [
        ({}, None, r"schema=Schema.from_toml\(.*or to fit"),  # levels that were found in the table declare nothing
        ({}, {"age": {"low": 0, "high": 110}, "ward": ["a", "b"]}, r"Declare them all: classes=\[...\]"),
        ({"classes": ["ill", "fair"]}, {"age": {"low": 0, "high": 110}, "ward": ["a", "b"]}, "not among the classes"),
        ({"rows": None, "classes": ["ill", "well"]}, {"age": {"low": 0, "high": 110}, "ward": ["a"]}, "set rows to"),
    ],
)
def test_a_private_fit_says_what_to_declare(given, declared, said):
    pytest.importorskip("dp_accounting")
    frame, label = private_table()
    frame, classes = (frame[["ward"]], {"classes": ["ill", "well"]}) if declared is None else (frame, {})
    with pytest.raises(SimFLError, match=said):
        simfl.SimFLClassifier(**PRIVATE | classes | given).fit(
            frame, label, schema=None if declared is None else Schema.from_toml(declared)
        )


# --- habits of scikit-learn and XGBoost ------------------------------------------------------------------------------


def watched(**params):
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    site = np.arange(len(y)) % 2
    rows, aside = np.arange(len(y)) % 4 > 0, np.arange(len(y)) % 4 == 0
    fitted = simfl.SimFLClassifier(n_trees=60, learning_rate=0.3, random_state=0, **params)
    return fitted.fit(X[rows], y[rows], parties=site[rows], eval_set=[(X[aside], y[aside])]), X[aside], y[aside]


def test_eval_set_is_watched_and_stops_the_training():
    fitted, X, y = watched(early_stopping_rounds=5)
    curve = fitted.evals_result_["validation_0"]["logloss"]
    assert fitted.best_iteration == int(np.argmin(curve)) == fitted.model_.n_trees - 1
    assert fitted.best_score == min(curve)
    assert abs(log_loss(y, fitted.predict_proba(X)) - fitted.best_score) < 1e-5
    assert len(fitted.evals_result_["train"]["logloss"]) == len(curve) < 60


def test_a_regressor_takes_declared_columns():
    X = pd.DataFrame({"age": np.arange(200.0) % 100, "dose": np.arange(200.0) % 7})
    schema = Schema.from_toml({"age": {"cuts": [20, 50, 80]}, "dose": {"low": 0, "high": 7}})
    fitted = simfl.SimFLRegressor(recipe="joint", min_group=1, n_trees=3, random_state=0)
    fitted.fit(X, X["age"] > 50, parties=np.arange(200) % 2, schema=schema)
    trees = fitted.model_.booster.trees_to_dataframe()
    asked = {*trees[trees.Feature == "age"].Split}
    assert 50 in asked <= {20, 50, 80}


def test_without_early_stopping_there_is_no_best_iteration():
    X, y = load_breast_cancer(return_X_y=True)
    fitted = simfl.SimFLClassifier(n_trees=2, random_state=0).fit(X, y)
    assert not hasattr(fitted, "best_iteration")
    assert "validation_0" not in fitted.evals_result_


@pytest.mark.parametrize("wrong", [[], [1], "X"])
def test_other_eval_sets_are_refused(wrong):
    X, y = load_breast_cancer(return_X_y=True)
    with pytest.raises(DataError, match="one pair"):
        simfl.SimFLClassifier(n_trees=2).fit(X, y, eval_set=wrong)
    with pytest.raises(DataError, match="validation_fraction"):
        simfl.SimFLClassifier(n_trees=2, validation_fraction=0.2).fit(X, y, eval_set=[(X, y)])


@pytest.mark.parametrize("recipe", ["similar", "paper", "joint"])
def test_importances_are_shares_and_find_the_column_that_decides(recipe):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    fitted = simfl.SimFLClassifier(n_trees=10, recipe=recipe, random_state=0)
    shares = fitted.fit(X, X[:, 2] > 0, parties=np.arange(300) % 3).feature_importances_
    assert recipe == "paper" or shares.argmax() == 2  # of the paper's trees only the number of splits is known
    assert shares.sum() == pytest.approx(1)
    assert shares.shape == (4,)


def test_a_fitted_estimator_can_be_looked_at_without_rows_to_watch():
    X, y = load_iris(return_X_y=True)
    fitted = simfl.SimFLClassifier(n_trees=1, n_hashes=1, random_state=0).fit(X, y, parties=np.arange(len(y)) % 2)
    assert "best_score" in dir(type(fitted))
    assert not hasattr(fitted, "best_score")
    assert "SimFLClassifier" in fitted._repr_html_()


@pytest.mark.parametrize("classes", [2, "01"])
def test_declared_classes_are_a_list(classes):
    X, y = load_iris(return_X_y=True)
    with pytest.raises(ParameterError, match="give a list"):
        simfl.SimFLClassifier(recipe="joint", epsilon=5.0, rows=100, classes=classes).fit(X[:100], y[:100])
