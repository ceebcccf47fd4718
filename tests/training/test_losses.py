import numpy as np
import pytest
import xgboost as xgb

from simfl.training.losses import loss_named, shortened

RNG = np.random.default_rng(0)
CASES = {
    "binary:logistic": (RNG.normal(size=(50, 1)) * 4, RNG.integers(0, 2, 50)),
    "multi:softprob": (RNG.normal(size=(50, 4)) * 3, RNG.integers(0, 4, 50)),
    "reg:squarederror": (RNG.normal(size=(50, 1)), RNG.normal(size=50)),
}


def loss_of(objective, margin, y):
    if objective == "binary:logistic":
        return np.log1p(np.exp(-margin[:, 0] * (2 * y - 1))).sum()
    if objective == "multi:softprob":
        return (np.log(np.exp(margin).sum(axis=1)) - margin[np.arange(len(y)), y]).sum()
    return 0.5 * ((margin[:, 0] - y) ** 2).sum()


@pytest.mark.parametrize("objective", CASES)
def test_gradients_are_the_derivatives_of_the_loss(objective):
    margin, y = CASES[objective]
    g, h = loss_named(objective).gradients(margin.astype(np.float32), y.astype(np.float32), None)
    step = 1e-4
    for row, output in [(0, 0), (7, margin.shape[1] - 1), (33, 0)]:
        up, down = margin.copy(), margin.copy()
        up[row, output] += step
        down[row, output] -= step
        slope = (loss_of(objective, up, y) - loss_of(objective, down, y)) / (2 * step)
        bend = (loss_of(objective, up, y) - 2 * loss_of(objective, margin, y) + loss_of(objective, down, y)) / step**2
        assert g[row, output] == pytest.approx(slope, abs=1e-4)
        factor = 2 if objective == "multi:softprob" else 1  # XGBoost doubles the softmax hessian
        assert h[row, output] == pytest.approx(factor * bend, abs=1e-2)


@pytest.mark.parametrize("objective", CASES)
def test_metrics_equal_xgboosts(objective):
    margin, y = CASES[objective]
    weight = RNG.random(len(y)).astype(np.float32)
    loss = loss_named(objective)
    sums = loss.metric_sums(margin.astype(np.float32), y.astype(np.float32), weight)
    ours = loss.finish(sums, float(weight.sum(dtype=np.float64)))
    data = xgb.DMatrix(np.zeros((len(y), 1)), y, weight=weight, base_margin=margin)
    params = {"objective": objective, "eval_metric": list(ours), "base_score": 0.5}
    booster = xgb.train(params | ({"num_class": 4} if objective.startswith("multi") else {}), data, 0)
    theirs = dict(part.split(":") for part in booster.eval(data).split("\t")[1:])
    assert {f"eval-{name}": value for name, value in ours.items()} == pytest.approx(
        {name: float(value) for name, value in theirs.items()}, rel=1e-4
    )


@pytest.mark.parametrize("objective", CASES)
def test_no_gradient_leaves_its_bounds(objective):
    margin, y = CASES[objective]
    loss = loss_named(objective)
    start = np.zeros_like(margin, dtype=np.float32)
    most_g, most_h = loss.bounds(start, y.astype(np.float32))
    g, h = loss.gradients(margin.astype(np.float32), y.astype(np.float32), None)
    assert np.abs(g).max() <= most_g
    assert h.max() <= most_h


@pytest.mark.parametrize("objective", CASES)
def test_a_weight_of_three_counts_exactly_as_three_rows(objective):
    margin, y = (a.astype(np.float32) for a in CASES[objective])
    one = loss_named(objective).gradients(margin, y, np.ones(len(y), np.float32))
    three = loss_named(objective).gradients(margin, y, np.full(len(y), 3, np.float32))
    for single, triple in zip(one, three, strict=True):
        assert (single.astype(float) * 3 == triple.astype(float)).all()


def test_shortening_keeps_twenty_digits():
    values = RNG.normal(size=1000).astype(np.float32)
    assert np.abs(shortened(values) / values - 1).max() <= 2.0**-20


def test_extreme_margins_stay_finite():
    margin = np.array([[1e4], [-1e4]], dtype=np.float32)
    y = np.array([0, 1], dtype=np.float32)
    g, h = loss_named("binary:logistic").gradients(margin, y, None)
    assert g[:, 0].tolist() == [1, -1]
    assert (h > 0).all()
    assert np.isfinite(list(loss_named("binary:logistic").metric_sums(margin, y, None).values())).all()
    g, h = loss_named("multi:softprob").gradients(np.array([[1e4, 0, -1e4]], np.float32), np.zeros(1, np.float32), None)
    assert np.isfinite(g).all()
    assert (h > 0).all()
