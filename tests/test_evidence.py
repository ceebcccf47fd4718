"""Which protections were on is told by the messages."""

from collections import Counter

import numpy as np
import pytest

import simfl
from simfl.privacy.observed import protections


def evidence(**params):
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=(n, 6)).astype(np.float32) for n in (80, 60, 40)]
    parties = [simfl.Party(f"p{i}", X, (X[:, 0] > 0).astype(int)) for i, X in enumerate(tables)]
    first, second = simfl.params.split(params)
    ready = simfl.prepare(parties, random_state=0, **first)
    simfl.train(ready, callbacks=[], n_trees=6, max_depth=3, rematch=3, random_state=0, **second)
    return ready.transport.traffic


def on(**params):
    return {p.name for p in protections(evidence(**params).evidence()) if p.on}


ALWAYS = {"No statistics of tree nodes", "Fewer hash values than columns (L < d)"}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {"Blind matching"}),
        ({"masked": True}, {"Blind matching", "Masked sums"}),
        ({"ids": "fresh"}, {"Blind matching", "Fresh ids"}),
        ({"matching": "shared"}, set()),
        ({"min_group": 5}, {"Blind matching", "Small groups"}),
        ({"cuts": "shared"}, {"Blind matching", "Shared cut points"}),
        ({"epsilon": 10.0}, {"Blind matching", "Noise (differential privacy)"}),
        ({"n_neighbors": 0}, {"Blind matching"}),  # nothing is matched
    ],
)
def test_what_was_on_is_seen_in_the_messages(params, expected):
    assert on(**params) - ALWAYS == expected
    assert on(**params) >= ALWAYS


def test_more_hashes_than_columns_are_seen():
    rule = "Fewer hash values than columns (L < d)"
    assert rule not in on(n_hashes=9, allow_unsafe_hashes=True)
    shown = {"hashes 5": 3, "columns 6": 3}
    assert rule in {p.name for p in protections(shown) if p.on}
    assert rule not in {p.name for p in protections(shown, guarded=4) if p.on}  # two of the columns are known


def test_one_plain_sum_is_enough_to_say_that_masks_were_off():
    mixed = Counter({"masked sums": 99, "plain sums": 1})
    (masks,) = (p for p in protections(mixed) if p.name == "Masked sums")
    assert not masks.on
    assert "1 of 100" in masks.meaning


def test_a_copy_of_the_traffic_shows_the_same():
    traffic = evidence()
    assert traffic.copy().evidence() == traffic.evidence()
