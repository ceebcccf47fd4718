"""The verdict, by hand-made gains."""

import math

import msgspec
import pytest

from simfl.report.record import Gain
from simfl.report.verdict import verdict


def gain(party, own, *, as_it_is=None, on_all=(0.1, 0.05, 0.15)):
    """A party's gains: (gain, low, high) on its own rows adjusted, as the model is, and on all rows."""
    shared = {"party": party, "metric": "logloss", "alone": 0.5, "together": 0.4, "n_rows": 50}
    named = [dict(zip(("gain", "low", "high"), v, strict=True)) for v in (on_all, as_it_is or own, own)]
    return [
        Gain(rows=None, **shared, **named[0]),
        Gain(rows=party, **shared, **named[1]),
        Gain(rows=party, adjusted=True, **shared, **named[2]),
    ]


SURE, UNCLEAR, LOST = (0.1, 0.02, 0.2), (0.03, -0.05, 0.1), (-0.1, -0.2, -0.02)


def said(*gains):
    return verdict([one for party in gains for one in party], "logloss")


def test_own_rows_come_first_and_all_rows_last():
    sentences = said(gain("a", SURE), gain("b", SURE), gain("c", UNCLEAR), gain("d", LOST))
    assert sentences[0] == (
        "Worth it for 2 of 4 parties (a and b): on their own held-out rows the log loss falls by 20 %; not worth it "
        "for d (-0.100): alone it predicts better; for c (+0.030) the held-out rows are too few to tell."
    )
    assert sentences[-1].startswith("On held-out rows of all parties the shared model is better than every party's own")


def test_large_numbers_have_the_decimals_of_the_table():
    large = Gain(
        party="a",
        rows="a",
        adjusted=True,
        metric="rmse",
        alone=69.58,
        together=64.43,
        gain=5.1548,
        low=-3.9,
        high=14.5,
        n_rows=9,
    )
    as_it_is = msgspec.structs.replace(large, adjusted=False)
    assert "a (+5.15)" in verdict([as_it_is, large], "rmse")[0]


def of_losses(alone, together, **interval):
    shared = {"party": "a", "rows": "a", "metric": "rmse", "n_rows": 9, "gain": alone - together}
    adjusted = Gain(alone=alone, together=together, adjusted=True, **shared, **interval)
    return verdict([msgspec.structs.replace(adjusted, adjusted=False), adjusted], "rmse")[0]


def test_a_sure_loss_is_never_shown_as_zero():
    assert "not worth it for a (-0.25)" in of_losses(1234.5, 1234.75, low=-0.4, high=-0.1).lower()
    assert "a (+0)" in of_losses(1234.5, 1234.5, low=-0.4, high=0.1)


def test_an_infinite_loss_has_a_verdict():
    assert "a (+inf)" in of_losses(math.inf, 0.5, low=-1.0, high=math.inf)
    assert "a (-inf)" in of_losses(0.5, math.inf, low=-math.inf, high=-1.0)
    assert "falls by 100 %" in of_losses(math.inf, 0.5, low=1.0, high=math.inf)


def test_a_gain_whose_interval_holds_zero_does_not_count():
    assert said(gain("a", UNCLEAR), gain("b", LOST))[0].startswith("Worth it for 0 of 2 parties; not worth it for b")
    assert said(gain("a", UNCLEAR), gain("b", UNCLEAR))[0] == (
        "Too close to tell whether it is worth it: the held-out rows of a (+0.030) and b (+0.030) are too few."
    )


@pytest.mark.parametrize(
    ("own", "as_it_is", "advice"),
    [
        (SURE, LOST, "a: adjust the shared model before use (model.adjusted)"),
        (LOST, SURE, "a: use the shared model as it is"),
        (LOST, LOST, "a: stay out"),
    ],
)
def test_a_party_that_loses_is_told_what_to_do(own, as_it_is, advice):
    assert any(sentence.startswith(advice) for sentence in said(gain("a", own, as_it_is=as_it_is), gain("b", SURE)))


def test_a_party_that_gains_needs_no_advice():
    assert len(said(gain("a", SURE), gain("b", SURE))) == 2


def test_one_party_is_spoken_of_by_name():
    assert verdict(gain("north", SURE)[1:], "logloss") == [
        "Worth it (north): on its own held-out rows the log loss falls by 20 %."
    ]
    assert verdict(gain("north", LOST)[1:], "logloss")[0].startswith("Not worth it for north (-0.100)")


def test_many_parties_are_not_all_named():
    (first, *_) = said(*(gain(f"p{number}", SURE) for number in range(20)))
    assert "p5 and 14 others" in first


def test_without_gains_there_is_no_verdict():
    assert verdict([], None) == []


def continued(party, values):
    """The same party with the model continued at home."""
    shared = {"party": party, "metric": "logloss", "alone": 0.5, "together": 0.4, "n_rows": 50}
    return [Gain(rows=party, continued=True, **shared, **dict(zip(("gain", "low", "high"), values, strict=True)))]


def test_a_party_that_gains_only_with_a_continued_model_is_told_to_continue_it():
    sentences = said(gain("a", SURE), continued("a", SURE), gain("b", LOST), continued("b", SURE))
    wanted = "b: continue the shared model at home (model.continued); on own held-out rows the gain is then sure"
    assert f"{wanted}: b (+0.100)." in sentences
    assert not any("stay out" in sentence for sentence in sentences)


def test_a_party_that_loses_either_way_stays_out():
    sentences = said(gain("a", SURE), continued("a", SURE), gain("b", LOST), continued("b", LOST))
    assert "b: stay out, or keep using your own model." in sentences
