import inspect

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import simfl
from simfl.errors import SimFLError
from simfl.params import defaults

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
def test_the_signature_shows_the_parameters_and_their_defaults(kind):
    shown = {name: p.default for name, p in inspect.signature(kind).parameters.items()}
    assert shown == {name: value for name, value in defaults().items() if name != "objective"}


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
