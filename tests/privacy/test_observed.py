"""Which protections were on is inferred from the messages."""

from collections import Counter
from functools import cache

import numpy as np
import pytest

import simfl
from simfl.privacy.observed import protections
from simfl.transport.local import LocalTransport
from tests.wire import sessions, train

FEW_HASHES = "Fewer hash values than columns (L < d)"
SETTINGS = {
    "as it comes": {},
    "masked": {"masked": True},
    "fresh ids": {"ids": "fresh"},
    "shared": {"matching": "shared"},
    "groups": {"min_group": 5},
    "cuts": {"cuts": "shared"},
    "noise": {"epsilon": 10.0},
    "nothing shared": {"n_neighbors": 0},
    "many hashes": {"n_hashes": 9, "allow_unsafe_hashes": True},
}


@cache
def traffic(setting):
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=(n, 6)).astype(np.float32) for n in (40, 30, 20)]
    parties = [simfl.Party(f"p{i}", X, (X[:, 0] > 0).astype(int)) for i, X in enumerate(tables)]
    transport = LocalTransport(sessions(parties, secret=0), 1)
    train(transport, n_trees=4, max_depth=3, rematch=3, random_state=0, **SETTINGS[setting])
    return transport.traffic


def on(shown, guarded=None):
    # No message has a field for statistics of nodes: test_party looks for them in the bytes.
    return {p.name for p in protections(shown, guarded) if p.on} - {"No statistics of tree nodes"}


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("as it comes", {FEW_HASHES, "Blind matching"}),
        ("masked", {FEW_HASHES, "Blind matching", "Masked sums"}),
        ("fresh ids", {FEW_HASHES, "Blind matching", "Fresh ids"}),
        ("shared", {FEW_HASHES}),
        ("groups", {FEW_HASHES, "Blind matching", "Small groups"}),
        ("cuts", {FEW_HASHES, "Blind matching", "Shared cut points"}),
        ("noise", {FEW_HASHES, "Blind matching", "Noise (differential privacy)"}),
        ("nothing shared", {FEW_HASHES, "Blind matching"}),  # nothing is matched
        ("many hashes", {"Blind matching"}),
    ],
)
def test_what_was_on_is_seen_in_the_messages(setting, expected):
    assert on(traffic(setting).observed()) == expected


def test_known_columns_count_against_the_hashes():
    shown = traffic("as it comes").observed()  # five hashes of six columns
    assert FEW_HASHES in on(shown, guarded=6)
    assert FEW_HASHES not in on(shown, guarded=4)  # two of the columns are known


def test_one_plain_sum_is_enough_to_say_that_masks_were_off():
    mixed = Counter({"masked sums": 99, "plain sums": 1})
    (masks,) = (p for p in protections(mixed) if p.name == "Masked sums")
    assert not masks.on
    assert "1 of 100" in masks.meaning


def test_a_copy_of_the_traffic_shows_the_same():
    shown = traffic("as it comes").observed()
    assert shown
    assert traffic("as it comes").copy().observed() == shown
