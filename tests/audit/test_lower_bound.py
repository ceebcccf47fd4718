import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import load_breast_cancer

from simfl.audit.audit import audit
from simfl.audit.finished import People, views_of
from simfl.audit.lower_bound import Canaries, audit_epsilon, epsilon_lower_bound, epsilon_of_guesses, p_value
from simfl.errors import ParameterError
from simfl.party import sealing


def answers(epsilon, seed, n=1000):
    """Randomised response: each coin is told truly with probability e^eps / (1 + e^eps). Its epsilon is known."""
    rng = np.random.default_rng(seed)
    members = rng.random(n) < 0.5
    told = np.where(rng.random(n) < 1 / (1 + np.exp(-epsilon)), members, ~members)
    return told + 1e-6 * rng.random(n), members


def test_without_delta_the_p_value_is_a_binomial_tail():
    assert p_value(50, 40, 30, 0.7, 0.0) == pytest.approx(stats.binom.sf(29, 40, 1 / (1 + np.exp(-0.7))))
    assert p_value(50, 40, 30, 0.7, 1e-3) > p_value(50, 40, 30, 0.7, 0.0)


def test_all_of_ten_coins_show_the_epsilon_of_a_closed_form():
    """q^10 = .05 at q = .05^(1/10), and q = e^eps / (1 + e^eps)."""
    q = 0.05 ** (1 / 10)
    assert epsilon_of_guesses(10, 10, 10, 0.0, 0.05) == pytest.approx(np.log(q / (1 - q)))
    assert epsilon_of_guesses(10, 10, 5, 0.0, 0.05) == 0.0


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_the_bound_lies_below_the_epsilon_of_a_known_mechanism_and_near_it(epsilon):
    bounds = np.array([epsilon_lower_bound(*answers(epsilon, seed), delta=0.0).epsilon for seed in range(30)])
    assert (bounds > epsilon).sum() <= 5  # of 30; one or two are expected
    assert np.median(bounds) > 0.6 * epsilon


def test_guessing_shows_nothing():
    rng = np.random.default_rng(0)
    bounds = [epsilon_lower_bound(rng.random(500), rng.random(500) < 0.5, delta=1e-5).epsilon for _ in range(20)]
    assert np.median(bounds) == 0.0


def test_a_broken_mechanism_is_caught():
    """It promises epsilon 1, and forgets the noise."""
    _, members = answers(1.0, seed=0)
    assert epsilon_lower_bound(members.astype(float), members, delta=1e-5).epsilon > 4


def test_a_histogram_keeps_its_promise_with_noise_and_breaks_it_without():
    """Each canary has a cell of its own; Laplace noise of 1/epsilon on its count."""
    rng = np.random.default_rng(3)
    members = rng.random(1000) < 0.5
    noisy = members + rng.laplace(scale=1.0, size=1000)
    assert 0.3 < epsilon_lower_bound(noisy, members, delta=0.0).epsilon <= 1.0
    assert epsilon_lower_bound(members + 0.0, members, delta=0.0).epsilon > 4


def test_scores_and_coins_belong_together():
    with pytest.raises(ParameterError, match="3 scores and 2 coins"):
        epsilon_lower_bound(np.zeros(3), np.array([True, False]), delta=0.0)


def test_a_training_without_noise_is_caught_and_canaries_are_corners():
    X, y = load_breast_cancer(return_X_y=True)
    X = X[:, :12]
    canaries = Canaries.draw(X, 100, seed=0)
    assert np.isin(canaries.X, [X.min(0), X.max(0)]).all()
    assert 30 < canaries.members.sum() < 70
    bound = audit_epsilon(X, y, canaries=200, recipe="similar", n_trees=60, learning_rate=0.3)
    assert bound.epsilon > 0.5
    assert bound.canaries == 200


def test_an_audit_sees_where_a_private_training_has_forgotten_its_noise(monkeypatch):
    pytest.importorskip("dp_accounting")
    X, y = load_breast_cancer(return_X_y=True)
    study = {"recipe": "joint", "epsilon": 2.0, "rows": 569, "n_trees": 60, "parties": 2, "advise": False}
    found = audit(X[:, :8], y, **study)
    assert "noisy sums of gradients per leaf" in found.sees["other party"]
    (noisy,) = found.findings
    assert noisy.details["epsilon at least"] < 2.0
    monkeypatch.setattr(sealing.discrete, "draw", lambda key, n: np.zeros(n, np.int64))
    (exact,) = audit(X[:, :8], y, **study).findings
    assert exact.excess_interval[0] > 0.05
    assert exact.details["epsilon at least"] > 0.3


def test_the_model_of_a_private_training_is_attacked_without_sums_and_as_it_was_made():
    pytest.importorskip("dp_accounting")
    X, y = load_breast_cancer(return_X_y=True)
    given = {"recipe": "joint", "epsilon": 2.0, "rows": 300, "n_trees": 20, "masked": True}
    people = People.of(X[:300, :4], y[:300].astype(float), "binary:logistic", 2, 0, given)
    batches, rate, reg_lambda = people.steps
    assert (next(iter(batches)), rate) == (10, pytest.approx(0.1))
    assert reg_lambda > 3  # far from the default: the rule's
    assert [seen.sums_every for seen in views_of(people)] == [0, 0]
    assert people.model.epsilon == 2.0
