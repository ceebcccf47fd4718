"""Quantiles and medians: what XGBoost finds by sorting, from sums over all parties."""

import numpy as np
import pytest
import xgboost as xgb
from hypothesis import given
from hypothesis import strategies as st

import simfl
from simfl.errors import ParameterError
from simfl.params import train_params
from simfl.training.losses import loss_named
from tests.objectives.objective_tables import labels, parties

RECIPES = {"paper": {}, "similar": {"masked": True}, "joint": {"min_group": 5}}
QUANTILE, ABSOLUTE = "reg:quantileerror", "reg:absoluteerror"
RULE = {"n_trees": 150, "max_depth": 3, "random_state": 0}


def pinball(y, predicted, alpha):
    error = y - predicted
    return float(np.maximum(alpha * error, (alpha - 1) * error).mean())


def test_by_hand_slopes_and_steps_in_units_of_the_spread():
    # Spread 4: errors of 8 and -1 are 2 and -0.25 spreads. A row near its prediction counts as half a spread away.
    loss = loss_named(QUANTILE, {"quantile_alpha": 0.75, "label_spread": 4.0})
    g, h = loss.gradients(np.array([[10.0], [1.0]], np.float32), np.array([2.0, 2.0], np.float32), None)
    assert g[:, 0].tolist() == [4 * 0.25, -4 * 0.75]
    near = loss.limits[1]
    assert h[:, 0].tolist() == [0.5, near]
    absolute = loss_named(ABSOLUTE, {"label_spread": 4.0})
    g, _ = absolute.gradients(np.array([[10.0], [2.0], [1.0]], np.float32), np.full(3, 2.0, np.float32), None)
    assert g[:, 0].tolist() == [4, 0, -4]


@given(
    alpha=st.floats(0.05, 0.95),
    errors=st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=30),
    start=st.floats(-50, 50, width=32),
)
def test_a_step_never_makes_the_loss_of_a_leaf_larger(alpha, errors, start):
    # The parabola lies above the loss where errors are not small, so its lowest point is no worse.
    loss, y = loss_named(QUANTILE, {"quantile_alpha": alpha, "label_spread": 1.0}), np.array(errors, np.float32)
    margin = np.full((len(y), 1), start, np.float32)
    if np.abs(margin[:, 0] - y).min() < 1 / loss.limits[1]:
        return
    g, h = (part.sum(dtype=np.float64) for part in loss.gradients(margin, y, None))
    moved = margin + np.float32(-0.5 * g / h)
    before, after = (loss.row_losses(m, y)["quantile"].sum() for m in (margin, moved))
    assert after <= before + 1e-4 * (1 + before)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_the_right_share_of_all_labels_lies_below(recipe, alpha):
    """Also where parties differ: the mean of their own quantiles would be far off."""
    X, y = labels(QUANTILE, 900)
    party = np.arange(900) % 3
    y = y + 20.0 * (party == 2)  # one party's labels are elsewhere
    model = simfl.train(
        parties(X, y), objective=QUANTILE, quantile_alpha=alpha, recipe=recipe, **RULE, **RECIPES[recipe]
    )
    assert np.mean(y <= model.predict(X)) == pytest.approx(alpha, abs=0.08)


@pytest.mark.parametrize("objective", [QUANTILE, ABSOLUTE])
def test_one_party_is_about_as_good_as_xgboost(objective):
    X, y = labels(objective, 1500)
    alpha = {"quantile_alpha": 0.8} if objective == QUANTILE else {}
    model = simfl.train([simfl.Party("a", X[::2], y[::2])], objective=objective, recipe="paper", **RULE, **alpha)
    settings = {"objective": objective, "max_depth": 3, "learning_rate": 0.1, **alpha}
    theirs = xgb.train(settings, xgb.DMatrix(X[::2], y[::2]), RULE["n_trees"])
    level = alpha.get("quantile_alpha", 0.5)
    ours = pinball(y[1::2], model.predict(X[1::2]), level)
    assert ours <= 1.1 * pinball(y[1::2], theirs.predict(xgb.DMatrix(X[1::2])), level)


@pytest.mark.parametrize("recipe", ["similar", "joint"])
def test_the_unit_of_the_labels_does_not_matter(recipe):
    X, y = labels(ABSOLUTE)
    y = np.round(y * 64) / 64
    one, other = (
        simfl.train(parties(X, y * unit), objective=ABSOLUTE, recipe=recipe, n_trees=20, random_state=0, gamma=0.0)
        for unit in (1.0, 1024.0)
    )
    if recipe == "similar":
        np.testing.assert_allclose(other.predict(X), 1024 * one.predict(X), rtol=1e-5)
    else:  # the parties' own noise differs
        assert np.corrcoef(one.predict(X), other.predict(X))[0, 1] > 0.99


def test_a_training_continues_from_a_model():
    X, y = labels(ABSOLUTE)
    for recipe in ("similar", "joint"):
        first = simfl.train(parties(X, y), objective=ABSOLUTE, recipe=recipe, n_trees=5, random_state=0)
        more = simfl.train(
            parties(X, y), objective=ABSOLUTE, recipe=recipe, n_trees=5, random_state=0, init_model=first
        )
        assert more.n_trees == 10


def test_a_start_value_can_be_given():
    X, y = labels(ABSOLUTE)
    for recipe in ("similar", "joint"):
        given = {"base_score": 0.25, "n_trees": 3, "random_state": 0}
        model = simfl.train(parties(X, y), objective=ABSOLUTE, recipe=recipe, **given)
        assert '"base_score":"[2.5E-1]"' in model.booster.save_raw("json").decode()


def test_adjusting_moves_to_the_quantile_of_the_errors():
    X, y = labels(QUANTILE)
    model = simfl.train(parties(X, y), objective=QUANTILE, quantile_alpha=0.7, n_trees=10, random_state=0)
    assert np.mean(y + 5 <= model.adjusted(X, y + 5).predict(X)) == pytest.approx(0.7, abs=0.01)


def test_one_quantile_must_be_named():
    with pytest.raises(ParameterError, match="reg:quantileerror needs quantile_alpha"):
        train_params(objective=QUANTILE)
    with pytest.raises(ParameterError, match=r"quantile_alpha=\[0.1, 0.9\] is not possible"):
        train_params(objective=QUANTILE, quantile_alpha=[0.1, 0.9])
