"""Masks cancel in the sum over all parties, and look random everywhere else."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simfl.errors import PrivacyError
from simfl.messages import Masking
from simfl.privacy.exact import from_wide, to_wide, wide_from_bytes, wide_to_bytes, wide_total
from simfl.privacy.keys import Keys
from simfl.privacy.masks import Masks, told

NAMES = ["a", "b", "c", "d"]


def mask(step, parties=NAMES):
    return Masking(step=step, parties=parties)


def exchanged(names=NAMES):
    keys = {name: Keys(name) for name in names}
    for own in keys.values():
        own.exchange({name: k.public for name, k in keys.items()})
    return {name: Masks(own) for name, own in keys.items()}


def test_masks_add_up_to_nothing():
    masks = exchanged()
    assert (sum(m.draw(mask(0), "rows", b"", 1000) for m in masks.values()) == 0).all()
    assert (sum(m.draw(mask(0), "leaves", b"", 500, np.uint64) for m in masks.values()) == 0).all()
    wide = [m.draw_wide(mask(0), "moments", b"", 7) for m in masks.values()]
    assert [sum(column) for column in zip(*wide, strict=True)] == [0] * 7


def test_masks_of_parties_that_were_told_different_things_do_not_cancel():
    masks = exchanged()
    said = {"a": told([0, 1]), "b": told([1, 0]), "c": told([0, 1]), "d": told([0, 1])}
    assert (sum(m.draw(mask(0), "rows", said[name], 1000) for name, m in masks.items()) == 0).mean() < 0.1


def test_masks_of_some_of_the_parties_do_not_cancel():
    masks = exchanged()
    some = [masks[name].draw(mask(0), "rows", b"", 100) for name in "abc"]
    assert (sum(some) == 0).mean() < 0.1


def test_a_masked_vector_is_uniform_whatever_it_hides():
    masks = exchanged()
    hidden = np.zeros(50_000, dtype=np.uint32) + masks["a"].draw(mask(0), "rows", b"", 50_000)
    assert stats.kstest(hidden / 2.0**32, "uniform").pvalue > 1e-4
    assert stats.chisquare(np.bincount(hidden & np.uint32(255), minlength=256)).pvalue > 1e-4
    again = exchanged()["a"].draw(mask(0), "rows", b"", 50_000)
    assert (hidden == again).mean() < 0.001


def test_every_step_and_purpose_has_masks_of_its_own():
    masks = exchanged()["a"]
    drawn = [
        masks.draw(mask(0), "rows", b"", 100),
        masks.draw(mask(1), "rows", b"", 100),
        masks.draw(mask(1), "leaves", b"", 100),
        masks.draw(mask(2), "rows", b"", 100),
        masks.draw(mask(3), "rows", b"told", 100),
    ]
    assert all((one != other).mean() > 0.9 for one, other in pairwise(drawn))


def test_masks_are_not_used_twice():
    masks = exchanged()["a"]
    masks.draw(mask(4), "rows", b"", 8)
    for step in (4, 3):
        with pytest.raises(PrivacyError, match="same masks twice"):
            masks.draw(mask(step), "rows", b"", 8)


@pytest.mark.parametrize("parties", [["a"], ["a", "a"], ["b", "c"], ["a", "stranger"], NAMES[:3], [*NAMES, "e"]])
def test_a_sum_that_would_hide_nothing_is_refused(parties):
    with pytest.raises(PrivacyError, match="sends nothing"):
        exchanged()["a"].draw(mask(0, parties), "rows", b"", 8)


@given(st.lists(st.floats(-1e76, 1e76).filter(lambda v: v == 0 or abs(v) > 1e-45), min_size=1, max_size=20))
def test_wide_sums_are_the_correctly_rounded_ones(values):
    assert wide_total([[n] for n in to_wide(values)]) == [math.fsum(values)]
    assert from_wide(wide_from_bytes(wide_to_bytes(to_wide(values)))) == values
