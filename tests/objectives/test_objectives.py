"""Every objective: against finite differences and XGBoost, in every recipe, and what is refused."""

import numpy as np
import pytest
import xgboost as xgb
from hypothesis import given
from hypothesis import strategies as st

import simfl
from simfl.errors import DataError, ParameterError
from simfl.integrations import IN_ONNX, to_onnx
from simfl.model.xgboost_document import start_of, to_document
from simfl.params import SETTINGS, train_params
from simfl.params.private import PRIVATE_OBJECTIVES
from simfl.training.losses import LOSSES, loss_named, loss_of
from tests.objectives.objective_tables import FEW, labels, matrix, parties, rows

EXACT = {  # those whose leaves XGBoost finds from sums, with settings other than the defaults
    "binary:logistic": {"scale_pos_weight": 2.5},
    "multi:softprob": {},
    "reg:squarederror": {},
    "reg:pseudohubererror": {},
    "count:poisson": {"max_delta_step": 0.2},
    "reg:gamma": {},
    "reg:tweedie": {"tweedie_variance_power": 1.2},
}
SMOOTH = ("reg:pseudohubererror", "count:poisson", "reg:gamma", "reg:tweedie")
RECIPES = {"paper": {}, "similar": {"masked": True}, "joint": {"min_group": 5}}


def plain(objective, y, settings):
    """XGBoost's own parameters."""
    more = {"num_class": len(np.unique(y))} if objective.startswith("multi") else {}
    return {"objective": objective, "max_depth": 4, "learning_rate": 0.1, "tree_method": "hist", **more, **settings}


# --- the losses ------------------------------------------------------------------------------------------------------


@given(objective=st.sampled_from(SMOOTH), margin=st.floats(-2, 2), label=st.integers(1, 40), data=st.data())
def test_gradients_are_the_derivatives_of_the_loss(objective, margin, label, data):
    settings = {name: data.draw(st.floats(1.1, 1.9)) for name in SETTINGS.get(objective, {})}
    loss, y = loss_named(objective, settings), np.array([label / 8], np.float32)
    margin, step = float(np.float32(margin)), 2.0**-8

    def at(point):
        return float(loss.row_losses(np.array([[point]]), y)[loss.metrics[0]][0])

    g, h = (float(part[0, 0]) for part in loss.gradients(np.array([[margin]], np.float32), y, None))
    factor = 2.0 if objective == "reg:gamma" else 1.0  # a deviance is twice a likelihood
    assert factor * g == pytest.approx((at(margin + step) - at(margin - step)) / (2 * step), rel=1e-2, abs=1e-2)
    bend = (at(margin + step) - 2 * at(margin) + at(margin - step)) / step**2
    if objective == "count:poisson":  # made larger, so that steps are safer
        bend *= np.exp(settings["max_delta_step"])
    assert factor * h == pytest.approx(bend, rel=1e-2, abs=1e-2)


@pytest.mark.parametrize("objective", EXACT)
def test_metrics_equal_xgboosts(objective):
    X, y = labels(objective)
    loss, weight = loss_named(objective, EXACT[objective]), np.random.default_rng(4).random(len(y)).astype(np.float32)
    data, theirs = matrix(X, y, weight=weight), {}
    params = plain(objective, y, EXACT[objective]) | {"eval_metric": list(loss.metrics)}
    booster = xgb.train(params, data, 3, evals=[(data, "rows")], evals_result=theirs, verbose_eval=False)
    margin = booster.predict(data, output_margin=True).reshape(len(y), -1)
    ours = loss.finish(loss.metric_sums(margin, y.astype(np.float32), weight), float(weight.sum(dtype=np.float64)))
    assert ours == pytest.approx({name: values[-1] for name, values in theirs["rows"].items()}, rel=1e-4)


@pytest.mark.parametrize("objective", LOSSES)
@pytest.mark.parametrize("recipe", ["similar", "joint"])
def test_no_gradient_of_a_training_leaves_the_announced_bounds(objective, recipe):
    X, y = labels(objective)
    params = {"objective": objective, "recipe": recipe, "learning_rate": 0.3}
    params |= EXACT.get(objective, required(objective))
    model = simfl.train(parties(X, y), **{**FEW, **params})
    loss, targets = model.loss, model.targets(y, len(y))
    begin = np.tile(loss.margin(start_of(to_document(model.booster))).astype(np.float32), (len(y), 1))
    most_g, most_h = loss.bounds(begin, targets)
    g, h = loss.gradients(model.margins(X).reshape(len(y), -1), targets, None)
    assert np.abs(g).max() <= most_g
    assert h.max() <= most_h


# --- against XGBoost -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", EXACT)
@pytest.mark.parametrize("given", [False, True], ids=["defaults", "settings"])
def test_one_party_alone_is_xgboost_to_the_last_bit(objective, given):
    X, y = labels(objective)
    settings = EXACT[objective] if given else {}
    ours = simfl.train([simfl.Party("a", X, y)], recipe="paper", objective=objective, **settings, **FEW)
    theirs = xgb.train(plain(objective, y, settings), matrix(X, y), FEW["n_trees"])
    wanted = theirs.predict(xgb.DMatrix(X), output_margin=True)
    if objective.startswith("multi"):  # start values of several classes are rounded elsewhere
        np.testing.assert_allclose(ours.margins(X), wanted, atol=2e-6)
    else:
        assert (ours.margins(X) == wanted).all()


@pytest.mark.parametrize("objective", LOSSES)
def test_pooled_rows_are_trained_and_stopped_by_xgboost(objective):
    X, y = labels(objective)
    rule = {"validation_fraction": 0.3, "early_stopping_rounds": 3, "n_trees": 200, "learning_rate": 0.5}
    model = simfl.baselines.all_in(parties(X, y), objective=objective, random_state=0, **rule, **required(objective))
    assert model.n_trees < 200
    assert list(model.history[0].validation) == [model.loss.metric]
    assert all(r.validation[model.loss.metric] < 10 for r in model.history[-3:])


def required(objective):
    return {"quantile_alpha": 0.5} if objective == "reg:quantileerror" else {}


# --- recipes and files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", [name for name in LOSSES if name != "survival:aft"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_learns_and_the_file_predicts_the_same(objective, recipe, tmp_path):
    X, y = labels(objective)
    rule = {"validation_fraction": 0.25, "early_stopping_rounds": 30, "n_trees": 60, "max_depth": 4, "random_state": 0}
    own = required(objective) | RECIPES[recipe]
    model = simfl.train(parties(X, y), recipe=recipe, objective=objective, **rule, **own)
    watched = [record.validation[model.loss.metric] for record in model.history]
    assert min(watched) < watched[0]
    model.save(tmp_path / "m.json")
    booster = xgb.Booster()
    booster.load_model(tmp_path / "m.json")
    again = simfl.load(tmp_path / "m.json")
    assert (again.predict(X) == model.predict(X)).all()
    ours = model.predict(X) if model.classes is None else model.predict_proba(X)
    theirs = booster.predict(xgb.DMatrix(X))
    np.testing.assert_allclose(ours[:, 1] if objective == "binary:logistic" else ours, theirs, rtol=1e-6)
    adjusted = model.adjusted(X, y)
    if model.classes is not None:
        np.testing.assert_allclose(adjusted.predict_proba(X).mean(axis=0), np.bincount(y) / len(y), atol=0.02)


def test_masks_change_no_bit():
    X, y = labels("count:poisson")
    one, other = (
        simfl.train(parties(X, y), objective="count:poisson", masked=masked, **FEW).margins(X)
        for masked in (False, True)
    )
    assert (one == other).all()


def test_a_heavier_second_class_is_found_more_often():
    X, y = labels("binary:logistic")
    light, heavy = (
        simfl.train(parties(X, y), scale_pos_weight=factor, **FEW).predict_proba(X)[:, 1].mean() for factor in (0.2, 5)
    )
    assert light < y.mean() - 0.1 < y.mean() + 0.1 < heavy


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_model_is_not_continued_with_another_objective():
    X, y = labels("reg:gamma")
    first = simfl.train(parties(X, y), objective="reg:squarederror", **FEW)
    with pytest.raises(ParameterError, match="init_model was trained with 'reg:squarederror', not 'reg:gamma'"):
        simfl.train(parties(X, y), objective="reg:gamma", init_model=first, **FEW)


@pytest.mark.parametrize(
    ("objective", "label", "fact"),
    [
        ("count:poisson", -1.0, "labels below zero"),
        ("reg:tweedie", -1.0, "labels below zero"),
        ("reg:gamma", 0.0, "not above zero. Drop these rows, or use reg:tweedie"),
    ],
)
def test_labels_out_of_range_are_refused_and_the_party_is_named(objective, label, fact):
    X, y = labels(objective)
    y[5] = label
    with pytest.raises(DataError, match=rf"Party 'p2' has 1 labels .*{fact.split('labels ')[-1]}|Party 'p2'.*{fact}"):
        simfl.train(parties(X, y), objective=objective, **FEW)


@pytest.mark.parametrize("recipe", ["similar", "joint"])
def test_labels_that_are_all_zero_teach_nothing(recipe):
    with pytest.raises(DataError, match="All labels of all parties are zero"):
        simfl.train(parties(rows(), np.zeros(300)), objective="count:poisson", recipe=recipe, **FEW)


@pytest.mark.parametrize("objective", LOSSES)
def test_epsilon_needs_classes(objective):
    given = {"objective": objective, "epsilon": 1.0, "recipe": "joint", **required(objective)}
    given |= {"rows": 300, "classes": [0, 1]}
    if objective in PRIVATE_OBJECTIVES:
        assert train_params(**given).epsilon == 1.0
    else:
        with pytest.raises(ParameterError, match=f"epsilon is not available with {objective}"):
            train_params(**given)


def test_epsilon_counts_a_row_once():
    with pytest.raises(ParameterError, match="with epsilon every row counts as one"):
        train_params(scale_pos_weight=3.0, epsilon=1.0, recipe="joint")


@pytest.mark.parametrize(("objective", "settings"), [(o, s) for o, s in SETTINGS.items() if o != "count:poisson"])
def test_settings_belong_to_their_objective(objective, settings):
    filled = loss_of(train_params(objective=objective, **required(objective)))
    assert isinstance(filled, LOSSES[objective])
    for name in settings:
        with pytest.raises(ParameterError, match=f"{name} applies only to objective="):
            train_params(objective="multi:softprob", **{name: settings[name] or 0.5})


def test_steps_of_counts_are_limited_as_in_xgboost():
    assert train_params(objective="count:poisson").max_delta_step == 0.7
    assert train_params(objective="reg:gamma").max_delta_step == 0.0
    assert train_params(objective="count:poisson", max_delta_step=0.0).max_delta_step == 0.0


@pytest.mark.parametrize("objective", [name for name in LOSSES if name not in IN_ONNX])
def test_onnx_refuses_what_its_converter_would_bend(objective, tmp_path):
    X, y = labels(objective)
    model = simfl.train(parties(X, y), objective=objective, **FEW, **required(objective))
    with pytest.raises(DataError, match=f"the model was trained with {objective}"):
        to_onnx(model, tmp_path / "m.onnx")
