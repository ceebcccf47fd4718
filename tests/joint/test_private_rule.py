"""The rule of a private training, and what it makes of noisy counts and sums."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from simfl.joint.column_weights import WHOLE, column_weights
from simfl.joint.private_rule import MARGIN_NOISE, MOST_DEPTH, PrivateSettings, private_rule
from simfl.joint.refined_cuts import refined_cuts
from simfl.privacy.guarantee import multiplier

EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)


def rule(epsilon: float = 1.0, **changes: object) -> PrivateSettings:
    given = {"shared": 2.0, "n_rows": 30_000, "n_columns": 20, "shares": (0.5, 0.5), **changes}
    return private_rule(multiplier(epsilon, 1e-5), **given)  # type: ignore[arg-type]


def test_more_epsilon_or_rows_never_make_trees_shallower() -> None:
    by_epsilon = [rule(epsilon).depth for epsilon in EPSILONS]
    by_rows = [rule(n_rows=n).depth for n in (1_000, 10_000, 100_000, 300_000, 10**9)]
    assert by_epsilon == sorted(by_epsilon)
    assert by_rows == sorted(by_rows)
    assert by_rows[-1] == MOST_DEPTH
    assert rule(0.1, n_rows=10).depth == 2


def test_a_step_is_never_longer_than_newtons() -> None:
    found = rule()
    assert found.learning_rate * found.lockstep == pytest.approx(1.0)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_noise_of_all_trees_in_a_margin_is_what_the_rule_aims_at(epsilon: float) -> None:
    """Where leaves hold no hessian, a margin adds n_trees noises of a leaf, each divided by reg_lambda."""
    found = rule(epsilon)
    noise = math.sqrt(found.row_budget * found.n_trees) * multiplier(epsilon, 1e-5) * 2.0
    in_a_margin = math.sqrt(found.n_trees) * found.learning_rate * noise / found.reg_lambda
    assert in_a_margin == pytest.approx(MARGIN_NOISE)


def test_rare_classes_take_longer_steps() -> None:
    assert rule(shares=(0.9, 0.1)).reg_lambda < rule(shares=(0.5, 0.5)).reg_lambda


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.9, 0.1), (0.2, 0.3, 0.5)])
@pytest.mark.parametrize("n_columns", [1, 5, 100])
def test_both_looks_at_the_columns_leave_most_of_the_budget(shares: tuple[float, ...], n_columns: int) -> None:
    found = rule(shares=shares, n_columns=n_columns)
    whole = found.row_budget * found.n_trees
    counted = n_columns * found.count_scale**2
    longest = (1 - min(shares)) ** 2
    if len(shares) > 2:
        longest += sum(p * p for p in shares) - min(shares) ** 2
    first = n_columns * found.first_scale**2 * longest
    assert counted == pytest.approx(0.05 * whole)
    assert first <= 0.1 * whole


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.9, 0.1), (0.2, 0.3, 0.5)])
def test_no_row_of_weight_one_is_ever_left_out(shares: tuple[float, ...]) -> None:
    """Both looks, and the longest vector in every tree, fit into a row's budget."""
    found = rule(shares=shares)
    whole = found.row_budget * found.n_trees
    assert 0.15 * whole + found.n_trees * found.longest**2 == pytest.approx(whole)


def test_trust_in_others_is_only_worth_less_noise() -> None:
    """Shared noise of half the deviation is as good as a multiplier of half."""
    together = private_rule(2.0, 1.0, 10_000, 5, (0.5, 0.5))
    alone = private_rule(1.0, 2.0, 10_000, 5, (0.5, 0.5))
    assert dataclasses.asdict(together) == dataclasses.asdict(alone)


def test_cuts_follow_the_rows_and_not_the_range() -> None:
    rng = np.random.default_rng(0)
    counts = np.bincount((rng.exponential(3.0, 20_000)).astype(int).clip(0, 63), minlength=64)
    kept = refined_cuts(counts + rng.normal(0.0, 20.0, 64), deviation=20.0, most=31)
    assert max(kept) < 24
    assert kept == sorted(set(kept))


def test_counts_that_drown_in_noise_leave_evenly_spaced_cuts() -> None:
    noise = np.random.default_rng(1).normal(0.0, 1.0, 64).clip(-1.9, 1.9)
    assert refined_cuts(noise, deviation=1.0, most=7) == refined_cuts(np.zeros(64), deviation=1.0, most=7)


def test_few_declared_points_are_all_kept() -> None:
    assert refined_cuts(np.array([5.0, 0.0]), deviation=1.0, most=31) == [0]


def test_columns_without_evidence_are_drawn_alike() -> None:
    rng = np.random.default_rng(2)
    found = column_weights([(rng.normal(0.0, 1.0, 4).clip(-1, 1), np.full(4, 50.0)) for _ in range(8)], 1.0)
    assert set(found) == {WHOLE // 8}


def test_a_column_with_two_cells_or_without_rows_is_no_trouble() -> None:
    two, none = (np.array([-40.0, 40.0]), np.array([80.0, 80.0])), (np.zeros(4), np.array([-3.0, -1.0, 0.0, -2.0]))
    found = column_weights([two, none], deviation=1.0)
    assert found == [3 * WHOLE // 4, WHOLE // 4]


def test_a_steep_column_is_found_under_noise() -> None:
    """Averaged over draws of the noise, the informative column is drawn most often; every column stays possible."""
    rng = np.random.default_rng(3)
    slopes = [0.0] * 9 + [60.0]
    times = []
    for _ in range(50):
        sums = [
            (slope * np.array([-1.5, -0.5, 0.5, 1.5]) + rng.normal(0.0, 20.0, 4), np.full(4, 200.0)) for slope in slopes
        ]
        found = column_weights(sums, 20.0)
        assert min(found) >= WHOLE // 20
        times.append(int(np.argmax(found)) == 9)
    assert np.mean(times) > 0.9
