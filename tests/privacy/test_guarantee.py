"""How much noise epsilon takes, against closed forms, and the promise in words."""

import math

import pytest
from scipy import optimize, stats

pytest.importorskip("dp_accounting")

from simfl.errors import ParameterError
from simfl.params import train_params
from simfl.privacy.discrete import VARIANCE
from simfl.privacy.guarantee import guarantee, longest, not_colluding
from simfl.privacy.ledger import event_of


def private(**given):
    return train_params(**{"recipe": "joint", "epsilon": 1.0, "rows": 1000, **given})


def delta_of(epsilon, z):
    """The analytic Gaussian mechanism (Balle and Wang 2018), for noise of z sensitivities."""
    a, b = 1 / (2 * z), epsilon * z
    return stats.norm.cdf(a - b) - math.exp(epsilon) * stats.norm.cdf(-a - b)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_the_noise_is_that_of_the_analytic_gaussian_mechanism(epsilon, delta):
    wanted = optimize.brentq(lambda z: delta_of(epsilon, z) - delta, 1e-2, 1e3, xtol=1e-12)
    z = math.sqrt(VARIANCE) / longest(private(epsilon=epsilon, delta=delta), 4)
    assert wanted <= z * (1 + 1e-10)  # never less
    assert z == pytest.approx(wanted, rel=1e-6)


def test_fewer_colluding_parties_need_less_noise_each():
    alone = longest(private(), 4)
    for colluding, honest in ((3, 1), (1, 3), (0, 4)):
        params = private(colluding=colluding)
        assert not_colluding(params, 4) == honest
        assert longest(params, 4) == pytest.approx(alone * math.sqrt(honest))
    with pytest.raises(ParameterError, match="colluding=4 is not possible: with 4 parties at most 3"):
        not_colluding(private(colluding=4), 4)


def test_a_person_with_k_rows_needs_k_times_the_noise():
    assert longest(private(max_rows_per_person=3), 2) == pytest.approx(longest(private(), 2) / 3)


def test_a_delta_that_would_let_a_row_be_published_is_refused():
    """(0, 1 / n) is what publishing one row of n, drawn at random, has."""
    with pytest.raises(ParameterError, match=r"delta=1e-05 is too large for rows=100000: .*Set delta = 1e-06"):
        private(rows=100_000)
    assert private(rows=100_000, delta=1e-6).delta == 1e-6
    assert private(rows=99_999).delta == 1e-5


def test_what_the_sampler_lacks_is_nothing_beside_delta():
    """The ledger adds runs up without it."""
    assert longest(private(epsilon=25.0), 10) > 0
    with pytest.raises(ParameterError, match=r"epsilon=40 promises nothing with delta=1e-05\. Lower it"):
        longest(private(epsilon=40.0), 4)


def test_an_epsilon_that_promises_nothing_is_refused():
    with pytest.raises(ParameterError, match="epsilon=200 promises nothing"):
        longest(private(epsilon=200.0), 2)


def test_the_ledger_knows_what_was_promised_and_to_whom():
    event = event_of(private(max_rows_per_person=2))
    assert (event.epsilon, event.delta, event.rows) == (1.0, 1e-5, 2)


def test_the_sentence_names_unit_numbers_collusion_and_what_is_not_covered():
    said = guarantee(private(), 4)
    for words in (
        "epsilon = 1 and delta = 1e-05",
        "adding or removing any one row",
        "even if the hub and all other parties collude",
        "this does not cover what the study declares",
    ):
        assert words in said
    assert "all rows of any one person (at most 3 at the party)" in guarantee(private(max_rows_per_person=3), 4)
    assert "no more than 2 of the 4 parties collude" in guarantee(private(colluding=2), 4)
    assert "or leave out their noise" in guarantee(private(colluding=2), 4)
    assert "the other parties are trusted, also to add their noise" in guarantee(private(colluding=0), 4)
    assert guarantee(train_params(), 4) is None
