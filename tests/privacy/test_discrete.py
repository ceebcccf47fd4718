"""Noise of whole numbers follows its exact law, from random bits alone."""

import math
import os
from decimal import Context, Decimal

import numpy as np
import pytest
from scipy import stats

from simfl.privacy import discrete
from simfl.privacy.discrete import BASE, BITS, REACH, STRETCH, VARIANCE, draw, look_up, table, weights

KEY = bytes(range(32))


def exact_law():
    """The probabilities of the table's values, computed in another way: term by term in decimals."""
    exact = Context(prec=60)
    ks = range(0, REACH + 1, 500)
    return {k: exact.exp(exact.divide(Decimal(-k * k), Decimal(2 * BASE**2))) for k in ks}


def test_weights_are_exact_beyond_128_bits():
    found, fine = weights(), Decimal(2**256)
    for k, wanted in exact_law().items():
        assert abs(Context(prec=60).divide(Decimal(found[k]), fine) - wanted) < Decimal(2) ** -200
    assert found[REACH] < 2 ** (256 - 129)  # what the table leaves out


def test_the_table_is_the_law_to_the_last_bit():
    each = weights()
    total = each[0] + 2 * sum(each[1:])
    thresholds = [(int(a) << 64) + int(b) for a, b in zip(*table(), strict=True)]
    assert len(thresholds) == 2 * REACH
    assert thresholds == sorted(thresholds)
    for place in (0, 1, REACH - 1, REACH, REACH + 1, 2 * REACH - 1):
        below = thresholds[place - 1] if place else 0
        share = (each[abs(place - REACH)] << BITS) // total
        assert abs(thresholds[place] - below - share) <= 1


def test_random_words_at_a_threshold_go_to_the_next_value():
    above, below = table()
    for place in (REACH - 5, REACH, REACH + 7):
        high, low = above[place : place + 1], below[place : place + 1]
        assert look_up(high, low)[0] == place + 1 - REACH
        assert look_up(high, low - np.uint64(1))[0] == place - REACH
    ends = np.array([0, 2**64 - 1], np.uint64)
    least, most = look_up(ends, ends)
    assert -REACH <= least < -13 * BASE  # what is rarer than 2**-128 does not occur
    assert most == REACH


def test_values_of_the_table_fit_the_exact_law():
    n = 200_000
    words = np.frombuffer(os.urandom(16 * n), "<u8").reshape(2, n)
    found = look_up(words[0], words[1])
    each = np.array([float(w / 2**256) for w in weights()])
    law = np.concatenate([each[:0:-1], each])
    law /= law.sum()
    edges = np.array([-REACH, *range(-3 * BASE, 3 * BASE + 1, BASE // 8), REACH + 1])
    counts, _ = np.histogram(found, edges)
    expected = n * np.add.reduceat(law, edges[:-1] + REACH)
    assert stats.chisquare(counts, expected * n / expected.sum()).pvalue > 1e-6
    near = np.abs(found) <= 20  # value by value, where many are
    expected = law[REACH - 20 : REACH + 21]
    counts = np.bincount(found[near] + 20, minlength=41)
    assert stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > 1e-6


def test_a_stretched_value_has_the_law_of_one_discrete_gaussian():
    """Exactly, at every value that is tried: the sum over all ways to get it against the wanted weight."""
    exact = Context(prec=60)

    def weight(k, variance):
        return exact.exp(exact.divide(Decimal(-k * k), Decimal(2 * variance)))

    ratios = []
    for value in (0, 1, 255, 256, 511, 12_345, 1_048_577, 3_000_001):
        near = round(value * STRETCH / (STRETCH**2 + 1))
        ways = (weight(value - STRETCH * y, BASE**2) * weight(y, BASE**2) for y in range(near - 90, near + 91))
        ratios.append(sum(ways, Decimal(0)) / weight(value, VARIANCE))
    assert max(ratios) / min(ratios) - 1 < Decimal("1e-26")  # decimals here have 28 digits
    assert VARIANCE == BASE**2 * (1 + STRETCH**2)


def test_drawn_values_fit_a_gaussian_of_the_stated_variance():
    n = 200_000
    found = draw(os.urandom(32), n)
    deviation = math.sqrt(VARIANCE)
    assert stats.kstest(found / deviation, "norm").pvalue > 1e-6  # 10**6 values per deviation: no step is seen
    assert abs(found.astype(float).var() / VARIANCE - 1) < 6 * math.sqrt(2 / n)
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 6 / math.sqrt(n)
    assert stats.chisquare(np.bincount(found % 16, minlength=16)).pvalue > 1e-6  # the last digits are uniform


def test_the_same_key_gives_the_same_noise_and_another_key_another():
    assert (draw(KEY, 50) == draw(KEY, 50)).all()
    assert (draw(KEY, 50) != draw(bytes(32), 50)).mean() > 0.9
    assert (draw(KEY, 80)[:50] == draw(KEY, 50)).all()


def test_no_floating_point_number_is_between_random_bits_and_noise(monkeypatch):
    assert draw(KEY, 3).dtype == np.int64
    assert {part.dtype for part in table()} == {np.dtype(np.uint64)}
    monkeypatch.setattr(discrete, "keystream", lambda key, n: b"\xff" * n)
    assert draw(KEY, 2).tolist() == [REACH * (1 + STRETCH)] * 2


@pytest.mark.parametrize("n_parties", [2, 5])
def test_the_sum_of_several_parties_noise_has_the_sum_of_the_variances(n_parties):
    n = 100_000
    total = sum(draw(os.urandom(32), n) for _ in range(n_parties))
    assert stats.kstest(total / math.sqrt(VARIANCE * n_parties), "norm").pvalue > 1e-6
