"""The estimators take the objectives that fit their labels, with their parameters, and refuse the others."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import simfl
from simfl.errors import DataError, ParameterError
from simfl.training.losses import LOSSES, labels_of
from tests.objectives.objective_tables import labels

FEW = {"n_trees": 5, "max_depth": 3, "random_state": 0}
SETTINGS = {
    "binary:logistic": {"scale_pos_weight": 2.0},
    "reg:quantileerror": {"quantile_alpha": 0.8},
    "count:poisson": {"max_delta_step": 0.5},
    "reg:tweedie": {"tweedie_variance_power": 1.3},
}
NUMBERS = [name for name in LOSSES if labels_of(name) == "numbers"]
CLASSES = [name for name in LOSSES if labels_of(name) == "classes"]


def sites(y):
    return np.arange(len(y)) % 2


def trained(X, y, objective):
    parties = [simfl.Party(str(i), X[i::2], y[i::2], sample_weight=np.ones(len(y[i::2]))) for i in range(2)]
    return simfl.train(parties, objective=objective, callbacks=[], **FEW, **SETTINGS.get(objective, {}))


@pytest.mark.parametrize("objective", NUMBERS)
def test_the_regressor_takes_every_objective_of_numbers(objective):
    X, y = labels(objective)
    fitted = clone(simfl.SimFLRegressor(objective=objective, **FEW, **SETTINGS.get(objective, {})))
    predicted = fitted.fit(X, y, parties=sites(y)).predict(X)
    assert (predicted == trained(X, y, objective).predict(X)).all()
    assert fitted.get_params()["objective"] == objective


@pytest.mark.parametrize("objective", CLASSES)
def test_the_classifier_takes_every_objective_of_classes(objective):
    X, y = labels(objective)
    fitted = clone(simfl.SimFLClassifier(objective=objective, **FEW, **SETTINGS.get(objective, {})))
    predicted = fitted.fit(X, y, parties=sites(y)).predict_proba(X)
    assert (predicted == trained(X, y, objective).predict_proba(X)).all()
    np.testing.assert_allclose(predicted.sum(axis=1), 1, atol=1e-6)


def test_two_classes_may_be_trained_as_several():
    X, y = labels("binary:logistic")
    fitted = simfl.SimFLClassifier(objective="multi:softprob", **FEW).fit(X, np.array(["no", "yes"])[y])
    assert fitted.predict_proba(X).shape == (len(y), 2)
    assert set(fitted.predict(X)) <= {"no", "yes"}


def test_a_grid_search_tries_objectives():
    X, y = labels("count:poisson")
    grid = [
        {"objective": ["reg:squarederror", "count:poisson"]},
        {"objective": ["reg:quantileerror"], "quantile_alpha": [0.5]},
    ]
    found = GridSearchCV(simfl.SimFLRegressor(**FEW), grid, cv=2, error_score="raise").fit(X, y)
    assert found.best_params_["objective"] in NUMBERS
    assert len(found.cv_results_["params"]) == 3


@pytest.mark.parametrize(
    ("estimator", "objective", "fact"),
    [
        (simfl.SimFLRegressor, "binary:logistic", "Use SimFLClassifier"),
        (simfl.SimFLRegressor, "survival:aft", "Use SimFLSurvival"),
        (simfl.SimFLClassifier, "reg:gamma", "Use SimFLRegressor"),
        (simfl.SimFLClassifier, "survival:aft", "Use SimFLSurvival"),
        (simfl.SimFLRegressor, "reg:squaredlogerror", "it must be one of"),
        (simfl.SimFLClassifier, "binary:hinge", "it must be one of"),
        (simfl.SimFLClassifier, lambda y, m: (m - y, np.ones_like(m)), "it must be one of"),
    ],
)
def test_an_objective_of_other_labels_is_refused(estimator, objective, fact):
    X, y = labels("binary:logistic")
    with pytest.raises(ParameterError, match=fact):
        estimator(objective=objective, **FEW).fit(X, y)


def test_two_class_objectives_refuse_three():
    X, y = labels("multi:softprob")
    with pytest.raises(ParameterError, match=r"knows two classes, and there are 3\. Use multi:softprob"):
        simfl.SimFLClassifier(objective="binary:logistic", **FEW).fit(X, y)


def test_settings_and_labels_of_another_objective_are_refused():
    X, y = labels("reg:squarederror")
    with pytest.raises(ParameterError, match="quantile_alpha applies only to objective='reg:quantileerror'"):
        simfl.SimFLRegressor(quantile_alpha=0.5, **FEW).fit(X, y)
    with pytest.raises(DataError, match="not above zero"):
        simfl.SimFLRegressor(objective="reg:gamma", **FEW).fit(X, y)
