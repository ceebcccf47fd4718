"""The noise of differential privacy: how much, and on what."""

import math

import dp_accounting
import numpy as np
import pytest

from simfl.errors import ParameterError
from simfl.params import train_params
from simfl.privacy.noise import BOUNDS, add_noise, multiplier, plan_noise
from simfl.training.losses import loss_named


@pytest.mark.parametrize("turns", ["round_robin", "all"])
@pytest.mark.parametrize("leaf_values", ["global", "builder"])
def test_an_accountant_that_counts_every_release_comes_to_the_same_epsilon(turns, leaf_values):
    params = train_params(epsilon=2.0, delta=1e-6, turns=turns, leaf_values=leaf_values)
    noise = plan_noise(params, 40, 3, shares_rows=True)
    rows, leaves = (40 * 2, 40 * 3) if turns == "all" else (40, 40)
    events = []
    for deviations, n in ((noise.row, rows), (noise.leaf, leaves)):
        for deviation, bound in zip(deviations, BOUNDS["binary:logistic"], strict=True):
            if deviation:
                gaussian = dp_accounting.GaussianDpEvent(deviation / bound)
                events.append(dp_accounting.SelfComposedDpEvent(gaussian, n))
    accountant = dp_accounting.rdp.RdpAccountant()
    accountant.compose(dp_accounting.ComposedDpEvent(events))
    assert 2.0 <= accountant.get_epsilon(1e-6) < 2.25  # Renyi's bound is a little above the exact figure
    total = sum(e.count / e.event.noise_multiplier**2 for e in events)
    assert dp_accounting.get_epsilon_gaussian(1 / math.sqrt(total), 1e-6) == pytest.approx(2.0, rel=1e-3)


def test_gradients_never_leave_their_bounds():
    rng = np.random.default_rng(0)
    for objective, k in (("binary:logistic", 1), ("multi:softprob", 3), ("multi:softprob", 7)):
        margin = (rng.normal(size=(20_000, k)) * rng.choice([0.01, 1, 10], (20_000, 1))).astype(np.float32)
        y = rng.integers(0, max(k, 2), 20_000).astype(np.float32)
        g, h = loss_named(objective).gradients(margin, y, None)
        assert np.linalg.norm(g, axis=1).max() <= BOUNDS[objective][0] * (1 + 1e-6)
        assert np.linalg.norm(h, axis=1).max() <= BOUNDS[objective][1] * (1 + 1e-6)


def test_less_epsilon_and_more_trees_ask_for_more_noise():
    def leaf(epsilon, trees):
        return plan_noise(train_params(epsilon=epsilon), trees, 2, shares_rows=True).leaf[0]

    assert leaf(1.0, 100) > leaf(2.0, 100)
    assert leaf(1.0, 400) == pytest.approx(2 * leaf(1.0, 100))
    assert plan_noise(train_params(), 100, 2, shares_rows=True) is None
    assert plan_noise(train_params(epsilon=1.0), 100, 2, shares_rows=False).row == (0.0, 0.0)


def test_noise_has_the_deviation_that_was_asked_for_and_is_new_each_time():
    zero = np.zeros(40_000)
    one, other = add_noise(zero, 3.0), add_noise(zero, 3.0)
    assert one.std() == pytest.approx(3.0, rel=0.02)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.03
    assert add_noise(zero, 0.0) is zero


def test_what_has_no_bound_is_refused():
    with pytest.raises(ParameterError, match="bound"):
        plan_noise(train_params(epsilon=1.0, objective="reg:squarederror"), 10, 2, shares_rows=True)
    with pytest.raises(ParameterError, match="early_stopping"):
        plan_noise(train_params(epsilon=1.0, early_stopping_rounds=3), 10, 2, shares_rows=True)
    assert multiplier(0.5, 1e-5) > multiplier(5.0, 1e-5)
