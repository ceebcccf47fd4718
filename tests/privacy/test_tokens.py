"""What the hub gets instead of hash values: names that say which are equal, and nothing else."""

import numpy as np
import pytest
from scipy import stats

from simfl.preprocessing.tables import HashValues
from simfl.privacy import tokens

SECRET = bytes(range(32))


def hashes(seed=0, n=400, n_hashes=5, n_values=9):
    return np.random.default_rng(seed).integers(-4, -4 + n_values, (n, n_hashes)).astype(np.int32)


def named(values, secret=SECRET, match=None):
    names, codes = tokens.hide_values(secret, HashValues.of(values), match)
    return np.stack([n[c] for n, c in zip(names, codes.T, strict=True)], axis=1)


def test_equal_values_and_only_these_have_equal_names():
    values = hashes()
    found = named(values)
    for h in range(values.shape[1]):
        np.testing.assert_array_equal(
            np.equal.outer(values[:, h], values[:, h]), np.equal.outer(found[:, h], found[:, h])
        )


def test_names_differ_between_functions_rounds_and_secrets():
    values = np.full((1, 2), 3, dtype=np.int32)
    variants = [named(values), named(values, match=4), named(values, secret=bytes(32))]
    assert len({int(x) for v in variants for x in v.ravel()}) == 6


def test_a_value_has_one_name_whatever_else_occurs():
    values = np.array([-(2**31), -9, -1, 0, 7, 8, 64, 2**31 - 1], dtype=np.int32)
    together = tokens.value_names(SECRET, values)
    assert len(set(together.tolist())) == len(values)
    for value, name in zip(values, together, strict=True):
        assert tokens.value_names(SECRET, np.array([value])).tolist() == [name]


def test_names_are_evenly_spread():
    assert stats.kstest(tokens.value_names(SECRET, np.arange(-5000, 5000)) / 2.0**64, "uniform").pvalue > 1e-4


def test_two_parties_with_the_secret_agree_on_names():
    one, other = hashes(0), hashes(1)
    merged = tokens.number_names([tokens.hide_values(SECRET, HashValues.of(h), None) for h in (one, other)])
    assert merged[0].dtype == np.uint8
    for h in range(one.shape[1]):
        expected = np.equal.outer(one[:, h], other[:, h])
        np.testing.assert_array_equal(np.equal.outer(merged[0][:, h], merged[1][:, h]), expected)


def test_the_order_of_the_names_says_nothing_of_the_values():
    values = np.arange(3000, dtype=np.int32)[:, None]
    _, codes = tokens.hide_values(SECRET, HashValues.of(values), None)
    assert abs(stats.spearmanr(values[:, 0], codes[:, 0]).statistic) < 0.08


def test_rows_have_names_of_their_own():
    names = tokens.row_names(SECRET, "a", None, 10_000)
    assert len(set(names.tolist())) == 10_000
    assert not set(names.tolist()) & set(tokens.row_names(SECRET, "b", None, 10_000).tolist())
    assert not set(names.tolist()) & set(tokens.query_names(names).tolist())
    assert stats.kstest(names / 2.0**64, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("seed", [0, 5, 2**63 - 1])
def test_a_seed_can_stand_in_for_a_secret(seed):
    assert len(tokens.secret_of(seed)) == tokens.SECRET_BYTES
    assert tokens.direction_seed(tokens.secret_of(seed)) == seed


def test_keys_of_different_purposes_have_nothing_in_common():
    keys = {tokens.derive(SECRET, "rows", "a"), tokens.derive(SECRET, "rows", "b"), tokens.derive(SECRET, "values")}
    assert len(keys | {SECRET}) == 4
