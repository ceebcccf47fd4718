import numpy as np
import pytest

from simfl.audit.finished import People, counted_members, members_from_answers
from simfl.audit.membership import Shadows, auc, found_share, label_confidence, lira, lira_offline, measured, rmia
from simfl.training.losses import loss_named


@pytest.fixture(scope="module")
def noise():
    """Labels that no column explains: whatever a model knows of them it has learned by heart."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(450, 5)), rng.integers(0, 2, 450).astype(np.float32)


def people(noise, **given):
    return People.of(*noise, objective="binary:logistic", parties=2, seed=0, given={"recipe": "similar"} | given)


def gaussian_shadows(gap, n=400, shadows=64):
    """The known answer: members answer N(gap, 1), strangers N(0, 1), around a level of their own."""
    rng = np.random.default_rng(1)
    level, inside = rng.normal(size=n) * 3, rng.random((shadows, n)) < 0.5
    members = np.arange(n) < n // 2
    confidence = level + gap * inside + rng.normal(size=(shadows, n))
    return Shadows(confidence, inside), level + gap * members + rng.normal(size=n), members


@pytest.mark.parametrize(("gap", "expected"), [(0.0, 0.5), (1.0, 0.760), (3.0, 0.983)])
def test_the_likelihood_ratio_has_the_auc_of_two_normal_laws(gap, expected):
    """AUC of N(gap, 1) against N(0, 1): Phi(gap / sqrt 2)."""
    shadows, confidence, members = gaussian_shadows(gap)
    for attack in (lira, lira_offline):
        scores = attack(shadows, confidence)
        assert auc(scores[members], scores[~members]) == pytest.approx(expected, abs=0.06)


def test_shadows_help_where_people_differ():
    shadows, confidence, members = gaussian_shadows(2.0)
    scores = rmia(shadows, confidence)
    plain = auc(confidence[members], confidence[~members])
    assert plain < 0.72 < 0.8 < auc(scores[members], scores[~members])


def test_an_overfit_model_gives_its_members_away(noise):
    (found,) = members_from_answers(people(noise, n_trees=200, learning_rate=0.3), n_shadows=8)
    assert found.details["auc"] > 0.9
    assert found.success > 0.8
    assert found.details["tpr_low"] > 0.05
    assert "AUC" in found.sentence


def test_a_constant_model_tells_nothing(noise):
    (found,) = members_from_answers(people(noise, n_trees=1, learning_rate=1e-6), n_shadows=4)
    assert found.details["auc"] == pytest.approx(0.5, abs=0.08)
    assert found.excess_interval[0] < 0 < found.excess_interval[1]


def test_answers_that_are_all_the_same_are_guessing():
    shadows = Shadows(np.zeros((4, 100)), np.tile(np.arange(100) % 2 == 0, (4, 1)))
    counted = counted_members(shadows, np.zeros(100), np.arange(100) < 50, seed=0)
    assert counted.details["auc"] == 0.5
    assert counted.details["tpr"] == 0.0
    assert 0.3 < counted.success.mean() < 0.7


def test_intervals_hold_the_figures():
    rng = np.random.default_rng(0)
    found = measured(rng.normal(1, 1, 300), rng.normal(0, 1, 300))
    assert found["auc_low"] < found["auc"] < found["auc_high"]
    assert found["tpr_low"] <= found["tpr"] <= found["tpr_high"]


def test_no_more_strangers_are_accused_than_allowed():
    strangers = np.arange(1000.0)
    assert found_share(np.array([988.5, 990.5, 1500.0, 0.0]), strangers, 0.01) == 0.5


def test_confidence_is_the_log_odds_of_the_label():
    p = np.array([0.7, 0.2, 0.1])
    (three,) = label_confidence(np.log(p)[None], np.array([0]), loss_named("multi:softprob"))
    assert three == pytest.approx(np.log(0.7 / 0.3))
    assert label_confidence(np.array([2.0]), np.array([0]), loss_named("binary:logistic")) == [-2.0]


def test_numbers_are_compared_with_what_is_predicted_and_times_by_their_chance():
    near, far = label_confidence(np.array([1.0, 3.0]), np.array([1.1, 1.0]), loss_named("reg:squarederror"))
    assert near > far
    far, near = label_confidence(np.array([4.0, 1.4]), np.array([4.0, 4.0]), loss_named("count:poisson"))  # exp(1.4)
    assert near > far
    (half,) = label_confidence(np.zeros(1), np.array([[1.0, np.inf]]), loss_named("survival:aft"))
    assert half == pytest.approx(np.log(0.5))
