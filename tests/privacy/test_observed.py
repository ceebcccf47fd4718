"""Which protections were on is what the parties noted of their own deeds."""

from collections import Counter
from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace

import simfl
from simfl import messages as msg
from simfl import wire
from simfl.data.schema import Schema
from simfl.errors import ProtocolError
from simfl.privacy.observed import protections
from simfl.transport.local import LocalTransport
from tests.wire import Between, grow_together, sessions, train

FEW_HASHES = "Fewer hash values than columns (L < d)"
SETTINGS = {
    "as it comes": {},
    "masked": {"masked": True},
    "shared": {"matching": "shared"},
    "groups": {"min_group": 5},
    "nothing shared": {"n_neighbors": 0},
    "many hashes": {"n_hashes": 9, "known_features": None},
}


@cache
def traffic(setting):
    transport = LocalTransport(sessions(members(), secret=0), 1)
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
        ("shared", {FEW_HASHES}),
        ("groups", {FEW_HASHES, "Blind matching", "Small groups"}),
        ("nothing shared", {FEW_HASHES, "Blind matching", "No ids of similar rows"}),  # nothing is matched
        ("many hashes", {"Blind matching"}),
    ],
)
def test_what_was_on_is_noted_by_the_parties(setting, expected):
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


# --- a hub whose questions claim protections -------------------------------------------------------------------------


def members(schema=None):
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=(n, 6)).astype(np.float32) for n in (40, 30, 20)]
    return [simfl.Party(f"p{i}", X, (X[:, 0] > 0).astype(int), schema=schema) for i, X in enumerate(tables)]


def noted_together(**given):
    """What p0 noted of trees that were grown together."""
    schema = Schema.from_toml({f"x{j}": {"low": -3, "high": 3} for j in range(6)})
    transport = LocalTransport(sessions(members(schema), secret=0), 1)
    grow_together(transport, n_trees=4, learning_rate=0.4, max_depth=3, random_state=0, **given)
    return transport.handlers["p0"].shown


def noted(change=lambda question: question, **given):
    """What p0 noted in a training whose questions to it were changed on their way."""
    first, *others = sessions(members(), secret=0)
    transport = LocalTransport([Between(first, question=change), *others], 1)
    train(transport, n_trees=4, max_depth=3, rematch=0, random_state=0, **given)
    return first.shown


def claims_groups(question):
    """Groups of five, of which none are summed where nothing is shared."""
    if isinstance(question, msg.Start):
        return replace(question, params=replace(question.params, min_group=5))
    return question


@pytest.mark.parametrize(
    ("claim", "given", "name"),
    [
        (claims_groups, {"n_neighbors": 0}, "Small groups"),
    ],
)
def test_a_question_that_claims_a_protection_changes_nothing(claim, given, name):
    honest, claimed = noted(**given), noted(claim, **given)
    assert name not in on(claimed)
    assert protections(claimed) == protections(honest)


def test_noise_and_masks_are_noted_where_they_are_added():
    plain, masked, noisy = noted(), noted(masked=True), noted_together(epsilon=7.0, rows=90)
    assert plain["exact sums"] > 0 == plain["masked sums"]
    assert noisy["epsilon 7"] == 2 + 1  # two looks at the columns, and one batch of trees
    assert "exact sums" not in noisy
    assert "Noise (differential privacy)" in on(noisy)
    assert "Noise (differential privacy)" not in on(noisy | {"exact sums": 1})
    assert masked["masked sums"] == plain["plain sums"] > 0 == masked["plain sums"]


def test_the_hub_takes_a_partys_word_only_in_words_that_it_knows():
    scores = wire.pack(np.zeros(4))
    for fact in ("epsilon 1.5", "hashes 20", "epsilon 1e-05", "masked sums"):
        assert wire.decode(wire.encode(msg.Finished(scores=scores, shown={fact: 1}))).shown == {fact: 1}
    for fact in ("epsilon", "epsilon x", "epsilon 1.1.1", "hashes -1", "masked sums\n", "anything"):
        with pytest.raises(ProtocolError):
            wire.decode(wire.encode(msg.Finished(scores=scores, shown={fact: 1})))
