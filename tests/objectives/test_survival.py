"""survival:aft: by hand, against finite differences and XGBoost, in every recipe, and at every door."""

import math

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from hypothesis import given
from hypothesis import strategies as st

import simfl
from simfl.data.schema import Schema
from simfl.deploy.study import parse_study
from simfl.errors import DataError, ParameterError, SimFLError, StudyError
from simfl.integrations import to_onnx
from simfl.params import train_params
from simfl.training.losses import loss_named
from simfl.training.losses.concordance import concordance
from tests.objectives.objective_tables import FEW, as_frame, matrix, parties, times

AFT = "survival:aft"
LAWS = ("normal", "logistic", "extreme")
RECIPES = {"paper": {}, "similar": {"masked": True}, "joint": {"min_group": 5}}


def aft(law="normal", scale=1.0):
    return loss_named(AFT, {"aft_loss_distribution": law, "aft_loss_distribution_scale": scale})


def one(law, scale, margin, low, high):
    row, y = np.array([[margin]], np.float32), np.array([[low, high]], np.float32)
    g, h = aft(law, scale).gradients(row, y, None)
    return float(g[0, 0]), float(h[0, 0]), float(aft(law, scale).row_losses(row, y)["aft-nloglik"][0])


# --- the loss --------------------------------------------------------------------------------------------------------


def test_by_hand_a_known_time_under_the_normal_law():
    # z = (log 1 - 0.5) / 1: density exp(-0.125) / sqrt(2 pi); gradient -z; hessian 1.
    g, h, loss = one("normal", 1.0, 0.5, 1.0, 1.0)
    assert g == pytest.approx(0.5)
    assert h == pytest.approx(1.0)
    assert loss == pytest.approx(0.125 + math.log(math.sqrt(2 * math.pi)))


def test_by_hand_a_time_that_is_not_over_under_the_logistic_law():
    # z = (log 1 - 0) / 1 = 0: half of all such times are over, so the loss is log 2; gradient -density / chance.
    g, h, loss = one("logistic", 1.0, 0.0, 1.0, np.inf)
    assert g == pytest.approx(-0.25 / 0.5)
    assert h == pytest.approx(0.25)
    assert loss == pytest.approx(math.log(2))


def test_rows_that_nothing_is_known_of_pull_nowhere():
    g, h, loss = one("normal", 1.0, 3.0, 0.0, np.inf)
    assert (g, loss) == (0.0, 0.0)
    assert h == pytest.approx(1e-16)


@given(
    law=st.sampled_from(LAWS),
    scale=st.floats(0.6, 2.0),
    margin=st.floats(-0.5, 0.5),
    low=st.floats(0.5, 2.0),
    kind=st.sampled_from(("known", "right", "left", "between")),
)
def test_gradients_are_the_derivatives_of_the_loss(law, scale, margin, low, kind):
    bounds = {"known": (low, low), "right": (low, np.inf), "left": (0.0, low), "between": (low, 2 * low)}[kind]
    margin, step = float(np.float32(margin)), 2.0**-8
    g, h, middle = one(law, scale, margin, *bounds)
    up, down = (one(law, scale, margin + move, *bounds)[2] for move in (step, -step))
    assert g == pytest.approx(np.clip((up - down) / (2 * step), -15, 15), abs=5e-3 * (1 + abs(g)))
    assert h == pytest.approx(np.clip((up - 2 * middle + down) / step**2, 0, 15), abs=2e-2 * (1 + h))


@given(
    law=st.sampled_from(LAWS),
    scale=st.floats(0.05, 5.0),
    margin=st.floats(-100, 100, width=32),
    low=st.floats(0, 1e6, width=32),
    width=st.one_of(st.just(0.0), st.just(np.inf), st.floats(0, 1e6, width=32)),
)
def test_no_gradient_leaves_its_bounds(law, scale, margin, low, width):
    high = np.float32(low) + np.float32(width)
    if high == 0:
        return
    g, h, loss = one(law, scale, margin, low, high)
    most_g, most_h = aft(law, scale).limits
    assert abs(g) <= most_g
    assert 0 < h <= most_h
    assert math.isfinite(loss)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [0.5, 1.0, 1.7])
def test_metrics_equal_xgboosts(law, scale):
    X, y = times()
    loss, weight = aft(law, scale), np.random.default_rng(4).random(len(y)).astype(np.float32)
    data, theirs = matrix(X, y, weight=weight), {}
    params = {"objective": AFT, "eval_metric": list(loss.metrics), "aft_loss_distribution": law}
    # Booster.eval would forget the scale: XGBoost reads it during a training only.
    params["aft_loss_distribution_scale"] = scale
    booster = xgb.train(params, data, 3, evals=[(data, "rows")], evals_result=theirs, verbose_eval=False)
    margin = booster.predict(data, output_margin=True)[:, None]
    ours = loss.finish(loss.metric_sums(margin, y.astype(np.float32), weight), float(weight.sum(dtype=np.float64)))
    assert ours == pytest.approx({name: values[-1] for name, values in theirs["rows"].items()}, rel=1e-6)


# --- against XGBoost -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [0.6, 1.0])
def test_one_party_alone_is_xgboost_to_the_last_bit(law, scale):
    X, y = times()
    settings = {"aft_loss_distribution": law, "aft_loss_distribution_scale": scale}
    ours = simfl.train([simfl.Party("a", X, y)], recipe="paper", objective=AFT, **settings, **FEW)
    plain = {"objective": AFT, "max_depth": 4, "learning_rate": 0.1, "seed": 0, "tree_method": "hist", **settings}
    theirs = xgb.train(plain, matrix(X, y), FEW["n_trees"])
    assert (ours.predict(X) == theirs.predict(xgb.DMatrix(X))).all()


def test_intervals_and_times_censored_on_the_left_are_xgboosts_too():
    X, y = times()
    y[::3] = np.column_stack([np.zeros(100), y[::3, 0]])
    y[1::3, 1] = y[1::3, 0] * 1.5
    ours = simfl.train([simfl.Party("a", X, y)], recipe="paper", objective=AFT, **FEW)
    plain = {"objective": AFT, "max_depth": 4, "learning_rate": 0.1, "seed": 0, "tree_method": "hist"}
    assert (ours.predict(X) == xgb.train(plain, matrix(X, y), FEW["n_trees"]).predict(xgb.DMatrix(X))).all()


def test_pooled_and_alone_are_xgboost_and_stop_by_its_metric():
    X, y = times()
    rule = {"validation_fraction": 0.3, "early_stopping_rounds": 5, "aft_loss_distribution_scale": 0.5}
    pooled = simfl.baselines.all_in(parties(X, y), objective=AFT, **{**FEW, "n_trees": 400}, **rule)
    assert pooled.n_trees < 400
    assert list(pooled.history[0].validation) == ["aft-nloglik"]
    alone = simfl.baselines.solo(parties(X, y), objective=AFT, **FEW)
    assert concordance(alone["p0"].predict(X), y) > 0.7


# --- recipes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_learns_times(recipe, tmp_path):
    X, y = times()
    rule = {"validation_fraction": 0.25, "early_stopping_rounds": 20, "n_trees": 150, "max_depth": 4}
    model = simfl.train(parties(X, y), recipe=recipe, objective=AFT, random_state=0, **rule, **RECIPES[recipe])
    assert concordance(model.predict(X), y) > 0.8
    assert model.classes is None
    model.save(tmp_path / "m.ubj")
    booster = xgb.Booster()
    booster.load_model(tmp_path / "m.ubj")
    for same in (simfl.load(tmp_path / "m.ubj").predict(X), booster.predict(xgb.DMatrix(X))):
        assert (same == model.predict(X)).all()
    doubled = model.adjusted(X, 2 * y).predict(X)
    assert np.median(doubled / model.predict(X)) == pytest.approx(2, rel=0.2)


def test_a_training_continues_with_the_same_law_only():
    X, y = times()
    first = simfl.train(parties(X, y), objective=AFT, aft_loss_distribution_scale=0.5, **FEW)
    more = simfl.train(parties(X, y), objective=AFT, aft_loss_distribution_scale=0.5, init_model=first, **FEW)
    assert more.n_trees == 2 * FEW["n_trees"]
    with pytest.raises(ParameterError, match=r"init_model was trained with aft_loss_distribution_scale=0.5, not 1.0"):
        simfl.train(parties(X, y), objective=AFT, init_model=first, **FEW)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "fact"),
    [
        ([[2.0, 1.0]], "2 rows whose upper bound of the time is below the lower one"),
        ([[-1.0, 1.0]], "2 rows whose lower bound of the time is below zero"),
        ([[0.0, 0.0]], "2 rows that have happened at time zero"),
        ([[np.nan, 1.0]], "missing labels"),
        ([["a", "b"]], "Give numbers"),
        ([1.0], "one label per row, and survival:aft needs two"),
    ],
)
def test_labels_that_are_no_bounds_are_refused(y, fact):
    with pytest.raises(DataError, match=fact):
        simfl.train([simfl.Party("a", [[1.0], [2.0]], np.array(y * 2, dtype=object))], objective=AFT)


def test_two_columns_are_refused_by_other_objectives():
    X, y = times()
    for objective in ("binary:logistic", "reg:squarederror"):
        with pytest.raises(DataError, match="has two label columns"):
            simfl.train(parties(X, y), objective=objective)


def test_epsilon_is_refused():
    with pytest.raises(ParameterError, match="epsilon is not available with survival:aft"):
        train_params(recipe="joint", objective=AFT, epsilon=1.0)


def test_settings_of_another_objective_are_refused():
    X, y = times()
    with pytest.raises(ParameterError, match="aft_loss_distribution applies only to objective='survival:aft'"):
        simfl.train(parties(X, y[:, 0] > 1), aft_loss_distribution="normal")


def test_a_start_value_is_a_time():
    X, y = times()
    with pytest.raises(ParameterError, match=r"base_score=-1.0 is not possible: it must be a time above zero"):
        simfl.train(parties(X, y), objective=AFT, base_score=-1.0)


def test_onnx_says_what_it_knows(tmp_path):
    X, y = times()
    with pytest.raises(DataError, match=r"the model was trained with survival:aft"):
        to_onnx(simfl.train(parties(X, y), objective=AFT, **FEW), tmp_path / "m.onnx")


# --- doors -----------------------------------------------------------------------------------------------------------


def test_events_become_bounds_in_three_ways():
    time, event = [2.0, 3.0], [True, False]
    wanted = [[2.0, 2.0], [3.0, np.inf]]
    surv = np.array(list(zip(event, time, strict=True)), dtype=[("event", bool), ("time", float)])
    for y in (simfl.survival_bounds(time, event), surv, pd.DataFrame(wanted)):
        assert simfl.Party("a", [[1.0], [2.0]], y).rows.y.tolist() == wanted


def test_the_estimator_takes_what_scikit_survival_takes():
    X, y = times()
    surv = np.array(list(zip(np.isfinite(y[:, 1]), y[:, 0], strict=True)), dtype=[("status", bool), ("time", float)])
    one, other = (simfl.SimFLSurvival(**FEW).fit(X, labels, parties=np.arange(300) % 3) for labels in (y, surv))
    assert (one.predict(X) == other.predict(X)).all()
    assert one.score(X, y) == other.score(X, surv) > 0.8


def test_the_estimator_watches_rows_and_takes_declared_columns():
    X, y = times()
    frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])])
    schema = Schema.from_toml({name: {"low": -5, "high": 5} for name in frame.columns})
    rows = np.arange(len(y)) % 4 > 0
    words = {"parties": np.arange(300)[rows] % 3, "eval_set": [(frame[~rows], y[~rows])], "schema": schema}
    fitted = simfl.SimFLSurvival(recipe="joint", min_group=1, n_trees=80, early_stopping_rounds=5, learning_rate=0.3)
    fitted.fit(frame[rows], y[rows], **words)
    curve = next(iter(fitted.evals_result_["validation_0"].values()))
    assert fitted.best_iteration == fitted.model_.n_trees - 1 < len(curve) - 1 < 79
    assert fitted.score(frame[~rows], y[~rows]) > 0.8
    assert fitted.model_.schema == schema


def test_concordance_by_hand():
    bounds = np.array([[1.0, 1.0], [2.0, np.inf], [2.0, 2.0], [3.0, 3.0]])
    # Known: 0 before all others; 2 before 1 (watched as long, without an event) and before 3.
    assert concordance(np.array([1.0, 2.0, 3.0, 4.0]), bounds) == pytest.approx(4 / 5)
    assert concordance(np.array([1.0, 1.0, 1.0, 1.0]), bounds) == 0.5
    assert concordance(np.array([1.0]), bounds[:1]) is None


def test_a_pair_counts_by_the_weights_of_its_rows():
    rng = np.random.default_rng(2)
    (_, bounds), n = times(80), rng.integers(0, 4, 80)
    predicted = rng.normal(size=80).round(1)
    repeated = concordance(np.repeat(predicted, n), np.repeat(bounds, n, axis=0))
    assert concordance(predicted, bounds, n) == pytest.approx(repeated, rel=1e-12)
    assert concordance(predicted, bounds) != pytest.approx(repeated, rel=1e-3)


@pytest.mark.parametrize("how", ["event", "bounds"])
def test_simulate_reads_both_kinds_of_columns_and_writes_a_report(how, simfl_command, tmp_path, capsys):
    X, y = times(400)
    if how == "event":
        frame = as_frame(X, np.column_stack([y[:, 0], np.isfinite(y[:, 1])]), ["days", "died"])
        words = ["--label", "days", "--event", "died"]
    else:
        frame = as_frame(X, y, ["low", "high"]).replace(np.inf, np.nan)
        words = ["--label", "low", "--label", "high"]
    frame.to_csv("patients.csv", index=False)
    assert simfl_command("simulate", "patients.csv", *words, "--parties", 2, "--trees", 15, "--splits", 2) == 0
    said = capsys.readouterr().out
    assert "survival:aft" in said
    assert "C-index" in said
    page = (tmp_path / "runs/patients/report.html").read_text()
    assert "C-index" in page
    assert "negative log likelihood" in page


STUDY = 'name = "s"\nlabel = {}\n{}[parameters]\nobjective = "{}"\n[[party]]\nname = "a"\n[[party]]\nname = "b"\n'


def test_a_study_names_both_columns():
    assert parse_study(STUDY.format('"days"', 'event = "died"\n', AFT)).target.columns == ("days", "died")
    assert parse_study(STUDY.format('["low", "high"]', "", AFT)).target.labels == ("low", "high")
    for label, event, objective in (('"days"', "", AFT), ('"days"', 'event = "died"\n', "binary:logistic")):
        with pytest.raises(StudyError, match="survival:aft, and only that, learns two columns"):
            parse_study(STUDY.format(label, event, objective))
    with pytest.raises(SimFLError, match="Name one label"):
        parse_study(STUDY.format('["a", "b", "c"]', "", AFT))
