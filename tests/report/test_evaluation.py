import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, log_loss, mean_squared_error, roc_auc_score

import simfl
from simfl.federation import model_of
from simfl.report import bootstrap, evaluation
from simfl.report.evaluation import HeldOut, intervals
from simfl.transport.local import LocalTransport
from tests.wire import sessions, train


@pytest.fixture(scope="module")
def skewed():
    """Two parties with the same law but other shares of the outcome, as the paper's partition makes them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6000, 4)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] ** 2 + rng.normal(size=6000) > 1).astype(int)
    parts = simfl.partition.unbalanced(y, 2, theta=0.85, seed=0)
    train = [rows[: len(rows) // 4] for rows in parts]
    test = [rows[len(rows) // 4 :] for rows in parts]
    parties = [simfl.Party(n, X[r], y[r]) for n, r in zip("ab", train, strict=True)]
    held_out = HeldOut(
        X[np.concatenate(test)], y[np.concatenate(test)], np.repeat(["a", "b"], [len(rows) for rows in test])
    )
    params = {"n_trees": 30, "random_state": 0, "n_jobs": 1}
    own = {n: (X[r], y[r]) for n, r in zip("ab", train, strict=True)}
    return simfl.train(parties, **params), simfl.baselines.solo(parties, **params), held_out, own


def test_losses_of_rows_average_to_scikit_learns_metrics(skewed):
    model, _, held_out, _ = skewed
    p = model.predict_proba(held_out.X)
    found = evaluation.losses(model, held_out, p[:, 1])
    assert found["logloss"].mean() == pytest.approx(log_loss(held_out.y, p), rel=1e-5)
    assert 1 - found["error"].mean() == pytest.approx(accuracy_score(held_out.y, model.predict(held_out.X)))


def test_a_gain_is_the_difference_of_the_metrics(skewed):
    model, alone, held_out, own = skewed
    for gain in evaluation.gains(alone, model, held_out, own):
        mask = held_out.of(gain.rows)
        shared = model.adjusted(*own[gain.party]) if gain.adjusted else model
        if gain.metric == "logloss":
            before, after = (
                log_loss(held_out.y[mask], m.predict_proba(held_out.X[mask])) for m in (alone[gain.party], shared)
            )
            assert (gain.alone, gain.together) == pytest.approx((before, after), rel=1e-4)
        assert gain.gain == pytest.approx(gain.alone - gain.together)
        assert gain.low <= gain.gain <= gain.high
        assert gain.n_rows == mask.sum()


def test_the_interval_is_that_of_the_textbook():
    """The mean of many independent differences is nearly normal: 1.96 standard errors to either side."""
    rng = np.random.default_rng(1)
    difference = rng.normal(0.3, 1, 4000)
    low, high = intervals(["logloss"], difference[:, None], np.zeros((4000, 1)))
    error = difference.std() / np.sqrt(4000)
    assert low[0] == pytest.approx(difference.mean() - 1.96 * error, abs=0.15 * error)
    assert high[0] == pytest.approx(difference.mean() + 1.96 * error, abs=0.15 * error)


def test_intervals_are_repeatable_and_do_not_depend_on_the_block(monkeypatch):
    alone, together = np.random.default_rng(0).random((2, 50, 3))
    first = intervals(["rmse", "error", "logloss"], alone, together)
    np.testing.assert_array_equal(first, intervals(["rmse", "error", "logloss"], alone, together))
    monkeypatch.setattr(bootstrap, "_CELLS", 5000)
    np.testing.assert_allclose(first, intervals(["rmse", "error", "logloss"], alone, together), rtol=1e-12)


def test_one_interval_serves_audit_and_report():
    """The means of the values themselves, drawn again one resampling after the other."""
    values, rng = np.random.default_rng(3).random(80), np.random.default_rng([0, 27])
    means = [values[rng.integers(0, 80, 80)].mean() for _ in range(bootstrap.RESAMPLINGS)]
    assert bootstrap.interval(values) == pytest.approx(np.quantile(means, [0.025, 0.975]), rel=1e-12)


def test_an_adjusted_model_predicts_the_partys_own_share(skewed):
    model, _, held_out, own = skewed
    for party, (X, y) in own.items():
        fitted = model.adjusted(X, y)
        assert fitted.predict_proba(X)[:, 1].mean() == pytest.approx(y.mean(), abs=0.003)
        mask = held_out.of(party)
        rows, labels = held_out.X[mask], held_out.y[mask]
        assert log_loss(labels, fitted.predict_proba(rows)) < log_loss(labels, model.predict_proba(rows))
        assert roc_auc_score(labels, fitted.margins(rows)) == pytest.approx(
            roc_auc_score(labels, model.margins(rows)), abs=1e-3
        )


def test_adjusting_moves_the_margins_by_a_constant(skewed):
    model, _, held_out, own = skewed
    moved = model.adjusted(*own["a"]).margins(held_out.X) - model.margins(held_out.X)
    assert np.ptp(moved) < 1e-4
    assert abs(moved.mean()) > 0.3


def test_a_regression_is_adjusted_to_the_partys_mean(table):
    y = table[:, 0] * 3
    model = simfl.train([simfl.Party("a", table, y)], objective="reg:squarederror", n_trees=3)
    fitted = model.adjusted(table, y + 10)
    assert (fitted.predict(table) - model.predict(table)).mean() == pytest.approx(
        10 * 60 / 61 + (y - model.predict(table)).mean() * 60 / 61, abs=1e-3
    )


def test_many_classes_are_adjusted_and_an_absent_one_stays_finite(table):
    y = np.arange(60) % 3
    model = simfl.train([simfl.Party("a", table, y)], objective="multi:softprob", n_trees=3)
    few = y != 2
    fitted = model.adjusted(table[few], y[few])
    p = fitted.predict_proba(table[few])
    assert np.isfinite(p).all()
    assert p[:, 2].mean() < 0.1 < model.predict_proba(table[few])[:, 2].mean()


def test_an_adjusted_model_survives_its_file(skewed, tmp_path):
    model, _, held_out, own = skewed
    fitted = model.adjusted(*own["a"])
    fitted.save(tmp_path / "m.ubj")
    np.testing.assert_array_equal(simfl.load(tmp_path / "m.ubj").margins(held_out.X), fitted.margins(held_out.X))


def test_a_curve_ends_where_the_model_is(skewed):
    model, _, held_out, _ = skewed
    staged = evaluation.Staged.of(model, held_out)
    (curve,) = staged.curves("SimFL", None, [None])
    assert curve.trees[0] == 1
    assert curve.trees[-1] == model.n_trees
    assert curve.values[-1] == pytest.approx(log_loss(held_out.y, model.predict_proba(held_out.X)), rel=1e-5)
    (own,) = staged.curves("SimFL", None, ["b"])
    mask = held_out.of("b")
    assert own.values[-1] == pytest.approx(log_loss(held_out.y[mask], model.predict_proba(held_out.X[mask])), rel=1e-5)


def test_the_roc_has_the_area_of_scikit_learn(skewed):
    model, _, held_out, _ = skewed
    (line,) = evaluation.roc({("SimFL", None): model}, held_out)
    area = np.trapezoid(line.y, line.x)
    assert area == pytest.approx(roc_auc_score(held_out.y, model.predict_proba(held_out.X)[:, 1]), abs=2e-3)


def test_an_own_curve_is_that_of_the_adjusted_model(skewed):
    model, _, held_out, own = skewed
    (curve,) = evaluation.Staged.of(model, held_out).own_curve("SimFL", "b", own["b"])
    fitted, mask = model.adjusted(*own["b"]), held_out.of("b")
    p = fitted.predict_proba(held_out.X[mask])
    assert curve.values[-1] == pytest.approx(log_loss(held_out.y[mask], p), rel=1e-5)


def test_the_area_of_several_classes_is_that_of_scikit_learn(table):
    y = np.arange(60) % 3
    model = simfl.train([simfl.Party("a", table, y)], objective="multi:softprob", n_trees=3)
    found = evaluation.scores(model, HeldOut(table, y, np.full(60, "a")))["auc"]
    assert found == pytest.approx(roc_auc_score(y, model.predict_proba(table), multi_class="ovr"), abs=1e-6)


def test_calibration_groups_hold_all_rows(skewed):
    model, _, held_out, _ = skewed
    (line,) = evaluation.calibration({("SimFL", None): model}, held_out)
    assert sum(line.weights) == len(held_out.y)
    assert line.x == sorted(line.x)
    assert np.average(line.y, weights=line.weights) == pytest.approx(held_out.y.mean(), abs=1e-5)


def test_columns_of_a_large_model_are_explained_on_fewer_rows(skewed, monkeypatch):
    model, _, held_out, _ = skewed
    whole = [one.shap for one in evaluation.importance(model, held_out.X)]
    monkeypatch.setattr(evaluation, "SHAP_WORK", 1)
    monkeypatch.setattr(evaluation, "SHAP_ROWS", (50, 2000))
    few = [one.shap for one in evaluation.importance(model, held_out.X)]
    assert few != whole
    assert few == pytest.approx(whole, rel=0.5, abs=0.1)


def test_columns_are_explained_with_the_counts_of_the_rows_at_hand(skewed):
    model, _, held_out, _ = skewed
    X = held_out.X[:500]  # few enough that all are looked at
    at_home = model.with_covers(X)
    parts = at_home.booster.predict(at_home.matrix(X), pred_contribs=True)
    assert parts[0, -1] == pytest.approx(model.margins(X).mean(), abs=1e-4)
    found = {one.feature: one.shap for one in evaluation.importance(model, X)}
    assert [found[f"f{i}"] for i in range(4)] == pytest.approx(np.abs(parts[:, :4]).mean(axis=0).tolist(), rel=1e-5)
    rough = np.abs(model.booster.predict(model.matrix(X), pred_contribs=True)[:, :4]).mean(axis=0)
    assert [found[f"f{i}"] for i in range(4)] != pytest.approx(rough.tolist(), rel=1e-2)


def test_columns_are_explained_by_the_weight_of_the_rows_at_hand(skewed):
    model, _, held_out, _ = skewed
    X, weight = held_out.X[:500], np.where(np.arange(500) % 7 == 0, 20.0, 1.0).astype(np.float32)
    at_home = model.with_covers(X, weight)
    parts = np.abs(at_home.booster.predict(at_home.matrix(X), pred_contribs=True)[:, :4])
    found = {one.feature: one.shap for one in evaluation.importance(model, X, weight)}
    assert [found[f"f{i}"] for i in range(4)] == pytest.approx(np.average(parts, axis=0, weights=weight), rel=1e-4)


def test_importance_finds_the_columns_that_matter(skewed):
    model, _, held_out, _ = skewed
    found = evaluation.importance(model, held_out.X)
    assert {one.feature for one in found[:2]} == {"f0", "f1"}
    by_gain = sorted(found, key=lambda one: -one.gain)
    assert {one.feature for one in by_gain[:2]} == {"f0", "f1"}
    assert sum(one.splits for one in found) == sum(model.booster.get_score(importance_type="weight").values())


def test_the_gain_of_one_party_with_global_leaf_values_is_xgboosts():
    """Two copies of a table: the sums of both are twice those of one, and the tree is the builder's own."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(200, 3)).astype(np.float32), columns=list("abc"))
    y = (X["a"] + X["b"] > 0).astype(int)
    twins = [simfl.Party(name, X, y) for name in ("one", "two")]
    params = {"n_trees": 1, "reg_lambda": 0.0, "max_depth": 2, "random_state": 0, "subsample": 1.0}
    params["max_bin"] = 256  # every value has a bin of its own, so that both have the same cut points
    exact = {"n_neighbors": 1, "n_hashes": 40, "known_features": None}  # every row finds its copy
    model = model_of(train(LocalTransport(sessions(twins, secret=0)), extra_depth=0, **exact, **params))
    single = simfl.baselines.solo(twins[:1], **params)["one"]
    total = single.booster.get_score(importance_type="total_gain")
    assert len(total) > 1
    assert {name: model.gain[name] for name in total} == pytest.approx({n: 2 * v for n, v in total.items()}, rel=1e-3)


def test_rmse_gains_are_differences_of_roots(table):
    y = table[:, 0] * 2
    model = simfl.train([simfl.Party("a", table, y)], objective="reg:squarederror", n_trees=5)
    weak = simfl.train([simfl.Party("a", table, y)], objective="reg:squarederror", n_trees=1)
    held_out = HeldOut(table, y, np.array(["a"] * 60))
    gain = evaluation.gains({"a": weak}, model, held_out, {"a": (table, y)})[0]
    assert gain.together == pytest.approx(np.sqrt(mean_squared_error(y, model.predict(table))), rel=1e-5)


# --- rows with weights: a row of weight three is three rows -----------------------------------------------------------


@pytest.fixture(scope="module")
def weighted(skewed):
    """Held-out rows with whole numbers as weights, and the same as so many rows; the rows trained on alike."""
    _, _, held_out, own = skewed
    rng = np.random.default_rng(8)
    times = rng.integers(1, 5, len(held_out.y))
    rows = np.repeat(np.arange(len(held_out.y)), times)
    one = HeldOut(held_out.X, held_out.y, held_out.owner, times.astype(np.float32))
    many = HeldOut(held_out.X[rows], held_out.y[rows], held_out.owner[rows])
    mine, alike = {}, {}
    for name, (X, y) in own.items():
        n = rng.integers(0, 4, len(y))
        mine[name], alike[name] = (X, y, n), (np.repeat(X, n, axis=0), np.repeat(y, n))
    return one, many, mine, alike


def test_scores_by_weight_are_those_of_repeated_rows(skewed, weighted):
    model, (one, many, *_) = skewed[0], weighted
    found, expected = evaluation.scores(model, one), evaluation.scores(model, many)
    assert found == pytest.approx(expected, rel=1e-9)
    assert found["auc"] == pytest.approx(
        roc_auc_score(one.y, model.predict_proba(one.X)[:, 1], sample_weight=one.weight), rel=1e-6
    )
    assert found != pytest.approx(evaluation.scores(model, skewed[2]), rel=1e-4)


def test_gains_and_curves_by_weight_are_those_of_repeated_rows(skewed, weighted):
    model, alone, _, _ = skewed
    one, many, mine, alike = weighted
    for a, b in zip(*(evaluation.gains(alone, model, *x) for x in ((one, mine), (many, alike))), strict=True):
        assert (a.party, a.rows, a.metric, a.adjusted) == (b.party, b.rows, b.metric, b.adjusted)
        assert (a.alone, a.together) == pytest.approx((b.alone, b.together), rel=1e-4)
        assert a.low <= a.gain <= a.high
        assert a.high - a.low > b.high - b.low  # the same rows, however much they weigh, say less than as many others
    models = {("SimFL", None): model, **{("SOLO", name): own for name, own in alone.items()}}
    for a, b in zip(*(evaluation.own_scores(models, *x) for x in ((one, mine), (many, alike))), strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-4)
    (a,), (b,) = (
        evaluation.Staged.of(model, rows).own_curve("SimFL", "b", own["b"])
        for rows, own in ((one, mine), (many, alike))
    )
    assert a.values == pytest.approx(b.values, rel=1e-4)


def test_pictures_by_weight(skewed, weighted):
    models, (one, *_) = {("SimFL", None): skewed[0]}, weighted
    (line,) = evaluation.roc(models, one)
    area = roc_auc_score(one.y, skewed[0].predict_proba(one.X)[:, 1], sample_weight=one.weight)
    assert np.trapezoid(line.y, line.x) == pytest.approx(area, abs=2e-3)
    (line,) = evaluation.calibration(models, one)
    order = np.argsort(skewed[0].predict_proba(one.X)[:, 1], kind="stable")
    first = np.array_split(order, evaluation.CALIBRATION_BINS)[0]
    assert line.y[0] == pytest.approx(np.average(one.y[first], weights=one.weight[first]), abs=1e-6)


@pytest.mark.parametrize("objective", ["reg:squarederror", "reg:absoluteerror", "count:poisson"])
def test_a_model_is_adjusted_by_weight(objective, table):
    y = table[:, 0] ** 2 * 3
    n = np.arange(60) % 3 + 4 * (y > 2)
    model = simfl.train([simfl.Party("a", table, y)], objective=objective, n_trees=3)
    by_weight = model.adjusted(table, y + 4, n).predict(table)
    repeated = model.adjusted(np.repeat(table, n, axis=0), np.repeat(y + 4, n)).predict(table)
    np.testing.assert_allclose(by_weight, repeated, rtol=0.02)  # a quantile lies between two rows
    assert not np.allclose(by_weight, model.adjusted(table, y + 4).predict(table), rtol=1e-3)


def test_weights_that_add_up_to_one_adjust_a_model_as_far_as_weights_around_one(table):
    y = (table[:, 0] > 0).astype(int)
    model, weight = simfl.train([simfl.Party("a", table, y)], n_trees=3), 1 + np.arange(len(y)) % 2
    mean = weight / weight.mean()
    found = [model.adjusted(table, 1 - y, own).margins(table) for own in (mean, mean / len(y))]
    np.testing.assert_allclose(*found, rtol=1e-4)
