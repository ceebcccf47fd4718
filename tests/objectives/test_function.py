"""A function as objective: XGBoost's own model with one party, every recipe, one process only."""

import numpy as np
import pytest
import xgboost as xgb

import simfl
from simfl.data.schema import Schema
from simfl.errors import DataError, ParameterError
from simfl.params import train_params
from simfl.training.losses import function, loss_named
from tests.objectives.objective_tables import FEW, labels, matrix, parties

RULE = {"n_trees": 40, "max_depth": 4, "random_state": 0}


def logistic(y_true, y_pred):
    p = 1 / (1 + np.exp(-y_pred))
    return p - y_true, p * (1 - p)


def lopsided(y_true, y_pred, sample_weight=None):
    """Predictions that are too low cost three times as much."""
    error, weight = y_pred - y_true, 1 if sample_weight is None else sample_weight
    factor = np.where(error < 0, 3, 1) * weight
    return factor * error, factor * np.ones_like(error)


def by_xgboost(objective, X, y, weight=None, **more):
    kept = xgb.XGBRegressor(objective=objective, n_estimators=FEW["n_trees"], max_depth=4, learning_rate=0.1, **more)
    return kept.fit(X, y, sample_weight=weight).predict(X, output_margin=True)


@pytest.mark.parametrize(("objective", "table"), [(logistic, "binary:logistic"), (lopsided, "reg:squarederror")])
@pytest.mark.parametrize("more", [{}, {"base_score": 0.25}])
def test_one_party_alone_is_xgboost_to_the_last_bit(objective, table, more):
    X, y = labels(table)
    ours = simfl.train([simfl.Party("a", X, y)], recipe="paper", objective=objective, **FEW, **more)
    assert (ours.margins(X) == by_xgboost(objective, X, y, **more)).all()


def test_it_is_also_what_xgboosts_training_makes_of_it():
    X, y = labels("binary:logistic")
    ours = simfl.train([simfl.Party("a", X, y)], recipe="paper", objective=logistic, **FEW)
    settings = {"max_depth": 4, "learning_rate": 0.1}
    theirs = xgb.train(settings, matrix(X, y), FEW["n_trees"], obj=lambda m, d: logistic(d.get_label(), m))
    assert (ours.margins(X) == theirs.predict(xgb.DMatrix(X), output_margin=True)).all()


def test_a_function_that_takes_weights_gets_them_as_from_xgboost():
    X, y = labels("reg:squarederror")
    weight = np.random.default_rng(5).random(len(y)).astype(np.float32)
    ours = simfl.train([simfl.Party("a", X, y, sample_weight=weight)], recipe="paper", objective=lopsided, **FEW)
    assert (ours.margins(X) == by_xgboost(lopsided, X, y, weight)).all()


def test_for_a_function_that_does_not_weights_multiply():
    X, y = labels("binary:logistic")
    twice = [simfl.Party("a", np.vstack([X, X]), np.r_[y, y])]
    heavy = [simfl.Party("a", X, y, sample_weight=np.full(len(y), 2.0))]
    two = [simfl.train(rows, recipe="paper", objective=logistic, **FEW).margins(X) for rows in (twice, heavy)]
    np.testing.assert_allclose(*two, atol=1e-4)


@pytest.mark.parametrize("recipe", [{"recipe": "paper"}, {"masked": True}, {"recipe": "joint", "min_group": 5}])
def test_every_recipe_learns_and_the_file_predicts_margins(recipe, tmp_path):
    X, y = labels("binary:logistic")
    model = simfl.train(parties(X, y), objective=logistic, **RULE, **recipe)
    word = simfl.train(parties(X, y), objective="binary:logistic", **RULE, **recipe)
    right, right_of_word = (((margin > 0) == y).mean() for margin in (model.predict(X), word.margins(X)))
    assert right > right_of_word - 0.05
    model.save(tmp_path / "m.ubj")
    again = simfl.load(tmp_path / "m.ubj")
    assert (again.predict(X) == model.predict(X)).all()
    assert again.booster.save_config().count("reg:squarederror")
    plain = xgb.Booster(model_file=tmp_path / "m.ubj")
    np.testing.assert_allclose(plain.predict(xgb.DMatrix(X)), model.predict(X), atol=1e-6)


def test_a_function_learns_what_the_word_learns():
    X, y = labels("binary:logistic")
    given = {"recipe": "paper", "base_score": 0.5, **RULE}  # the similar recipe rounds sums of known sizes at random
    word = simfl.train(parties(X, y), objective="binary:logistic", **given)
    own = simfl.train(parties(X, y), objective=logistic, **given | {"base_score": 0.0})
    np.testing.assert_allclose(own.margins(X), word.margins(X), atol=1e-3)


def test_a_model_is_continued_with_the_function():
    X, y = labels("reg:squarederror")
    whole, first = (simfl.train(parties(X, y), objective=lopsided, **FEW | {"n_trees": n}) for n in (20, 10))
    more = simfl.train(parties(X, y), objective=lopsided, init_model=first, **FEW | {"n_trees": 10})
    assert more.n_trees == whole.n_trees == 20
    with pytest.raises(ParameterError, match="init_model was trained with 'reg:squarederror', not 'reg:gamma'"):
        simfl.train(parties(X, np.abs(y) + 1), objective="reg:gamma", init_model=first, **FEW)


def test_a_prepared_study_takes_functions_and_words():
    X, y = labels("reg:squarederror")
    ready = simfl.prepare(parties(X, y), random_state=0)
    for objective in (lopsided, "reg:squarederror", lopsided):
        assert simfl.train(ready, objective=objective, n_trees=3).n_trees == 3


def test_the_regressor_takes_a_function():
    X, y = labels("reg:squarederror")
    low = simfl.SimFLRegressor(**RULE).fit(X, y).predict(X)
    high = simfl.SimFLRegressor(objective=lopsided, **RULE).fit(X, y).predict(X)
    assert high.mean() > low.mean()


def test_rows_are_safe_from_a_function_that_changes_what_it_is_given():
    X, y = labels("reg:squarederror")

    def careless(y_true, y_pred):
        y_pred -= y_true
        y_true *= 0
        return y_pred, np.ones_like(y_pred)

    two = [simfl.train(parties(X, y), objective=f, base_score=0.5, **FEW) for f in (careless, "reg:squarederror")]
    np.testing.assert_allclose(two[0].margins(X), two[1].margins(X), atol=1e-4)


# --- what is refused -------------------------------------------------------------------------------------------------


def test_early_stopping_needs_a_metric():
    X, y = labels("reg:squarederror")
    rule = {"objective": lopsided, "early_stopping_rounds": 3, "validation_fraction": 0.2, **RULE}
    with pytest.raises(ParameterError, match="eval_metric='rmse' or 'mae'"):
        simfl.train(parties(X, y), **rule)
    assert "mae" in simfl.train(parties(X, y), eval_metric="mae", **rule).history[0].validation
    with pytest.raises(ParameterError, match="eval_metric='auc' is not possible with a function"):
        simfl.train(parties(X, y), **rule | {"eval_metric": "auc"})


@pytest.mark.parametrize(
    ("returned", "fact"),
    [
        (lambda y, m: (m[:3], m[:3]), "3 gradients for"),
        (lambda y, m: (m * np.nan, m), "gradients that are not finite"),
        (lambda y, m: (m, 0 * m - 1), "hessians below zero"),
    ],
)
def test_wrong_gradients_are_refused(returned, fact):
    X, y = labels("reg:squarederror")
    with pytest.raises(ParameterError, match=fact):
        simfl.train(parties(X, y), objective=returned, **FEW)


def test_epsilon_is_refused():
    X, y = labels("binary:logistic")
    one = simfl.Party("a", X, y, schema=Schema.from_toml({f"x{j}": {"low": -9, "high": 9} for j in range(X.shape[1])}))
    with pytest.raises(ParameterError, match="epsilon is not available with a function as objective"):
        simfl.train([one], objective=logistic, recipe="joint", epsilon=1.0, **FEW)


def test_settings_of_words_are_refused():
    X, y = labels("binary:logistic")
    with pytest.raises(ParameterError, match="scale_pos_weight is a parameter of"):
        simfl.train(parties(X, y), objective=logistic, scale_pos_weight=2.0, **FEW)


def test_only_one_process_knows_it():
    X, y = labels("binary:logistic")
    for refused in (
        lambda: train_params(objective=logistic),
        lambda: simfl.baselines.solo(parties(X, y), objective=logistic),
    ):
        with pytest.raises(ParameterError, match="in one process"):
            refused()
    made_up = "function:" + "0" * 16
    with pytest.raises(ParameterError, match="Between machines give one of XGBoost's words"):
        simfl.train(parties(X, y), objective=made_up, **FEW)
    with pytest.raises(ParameterError, match="not known here"):
        loss_named(made_up)


def test_it_is_forgotten_with_its_training():
    X, y = labels("binary:logistic")
    simfl.train(parties(X, y), objective=logistic, **FEW)
    assert function._KNOWN == {}


def test_text_is_no_label_of_a_function():
    X, y = labels("binary:logistic")
    with pytest.raises(DataError):
        simfl.train(parties(X, np.array(["no", "yes"])[y]), objective=logistic, **FEW)
