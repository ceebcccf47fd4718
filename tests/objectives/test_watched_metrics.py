"""What is watched: metrics beside the objective's own, and the area under the ROC curve from counts in bins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

import simfl
from simfl.errors import ParameterError
from simfl.params import train_params
from simfl.training.losses import loss_named, loss_of, ranking
from tests.objectives.objective_tables import FEW, labels, parties


def area_of(margin, y, weight=None):
    counts = ranking.counts(margin[:, None].astype(np.float32), y.astype(np.float32), weight)
    return ranking.area([counts[name] for name in ranking.NAMES])


@given(seed=st.integers(0, 1000), n=st.integers(2, 300), scale=st.floats(0.3, 3))
def test_the_area_is_scikit_learns_when_rows_in_one_bin_count_as_equal(seed, n, scale):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    margin = rng.normal(size=n) * scale + y
    y[:2] = [0, 1]
    weight = rng.integers(1, 4, n).astype(np.float32)
    in_bins = np.clip(np.floor(margin.astype(np.float32) * 16), -128, 127)
    assert area_of(margin, y, weight) == pytest.approx(roc_auc_score(y, in_bins, sample_weight=weight), abs=1e-9)
    if n >= 100:  # and hardly any rows do
        assert area_of(margin, y, weight) == pytest.approx(roc_auc_score(y, margin, sample_weight=weight), abs=0.02)


def test_counts_of_parties_add_up_to_those_of_all_rows():
    rng = np.random.default_rng(0)
    margin, y = rng.normal(size=(90, 1)).astype(np.float32), rng.integers(0, 2, 90).astype(np.float32)
    whole = ranking.counts(margin, y, None)
    parts = [ranking.counts(margin[i::3], y[i::3], None) for i in range(3)]
    assert whole == {name: sum(part[name] for part in parts) for name in whole}


@pytest.mark.parametrize("masked", [False, True])
def test_early_stopping_watches_the_area_and_keeps_its_highest(masked):
    X, y = labels("binary:logistic", 600)
    rule = {"validation_fraction": 0.4, "early_stopping_rounds": 10, "n_trees": 200, "random_state": 0}
    model = simfl.train(parties(X, y), eval_metric=["error", "auc"], masked=masked, learning_rate=0.5, **rule)
    found = [record.validation["auc"] for record in model.history]
    assert model.n_trees == 1 + int(np.argmax(found)) < 200
    assert list(model.history[0].train) == ["logloss", "error", "auc"]
    assert model.history[-1].train["auc"] > model.history[0].train["auc"] > 0.5


def test_pooled_rows_stop_by_the_same_metric():
    X, y = labels("binary:logistic", 600)
    rule = {"validation_fraction": 0.4, "early_stopping_rounds": 10, "n_trees": 200, "random_state": 0}
    model = simfl.baselines.all_in(parties(X, y), eval_metric="auc", learning_rate=0.5, **rule)
    found = [record.validation["auc"] for record in model.history]
    assert model.n_trees == 1 + int(np.argmax(found)) < 200


def test_joint_and_similar_watch_the_metric_that_is_named():
    X, y = labels("reg:squarederror", 400)
    for recipe in ("similar", "joint"):
        rule = {"validation_fraction": 0.4, "early_stopping_rounds": 5, "n_trees": 100, "learning_rate": 0.6}
        model = simfl.train(
            parties(X, y), recipe=recipe, objective="reg:squarederror", eval_metric="mae", random_state=0, **rule
        )
        assert model.n_trees == 1 + int(np.argmin([record.validation["mae"] for record in model.history]))


def test_metrics_of_other_objectives_are_refused_with_those_that_are_known():
    with pytest.raises(
        ParameterError, match="eval_metric='auc' is not possible with multi:softprob: it knows mlogloss"
    ):
        loss_of(train_params(objective="multi:softprob", eval_metric="auc"))
    with pytest.raises(ParameterError, match="eval_metric='rmse' is not possible with binary:logistic"):
        simfl.train(parties(*labels("binary:logistic")), eval_metric="rmse", **FEW)
    with pytest.raises(ParameterError, match="it needs counts of few rows"):
        train_params(recipe="joint", eval_metric=["auc"])


def test_more_is_better_for_an_area():
    loss = loss_named("binary:logistic", {"eval_metric": ("auc",)})
    assert loss.cost({"auc": 0.9}) < loss.cost({"auc": 0.8}) < loss.cost({})
