"""The record of a training between machines: what the hub keeps, what a party gets to see, and what it adds."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

import simfl
from simfl import baselines
from simfl.federation import train_and_keep
from simfl.messages import Greeting
from simfl.params import train_params
from simfl.party import Session
from simfl.party.journal import Answered
from simfl.report import assemble

PARAMS = {"n_trees": 4, "random_state": 0, "n_jobs": 1, "n_hashes": 2, "validation_fraction": 0.3}


@pytest.fixture(scope="module")
def finished(table, labels):
    parties = [simfl.Party("north", table[:30], labels[:30]), simfl.Party("south", table[30:], labels[30:])]
    model, ready = train_and_keep(parties, [], PARAMS)
    params = train_params(**PARAMS)
    return assemble.FinishedTraining("A study", ready.about, params, model, ready.transport.traffic), ready.sessions


@pytest.fixture(scope="module")
def known(finished):
    greetings = {name: Greeting(problems=[], versions={"simfl": "1"}) for name in ("north", "south")}
    return assemble.at_hub(finished[0], {"south": [1, 3]}, greetings, restarted=True)


def test_the_hub_knows_sizes_and_traffic_but_no_gain(known, finished):
    assert [(p.name, p.n_rows + p.n_held_out) for p in known.parties] == [("north", 30), ("south", 30)]
    assert known.traffic == finished[0].model.traffic
    assert known.gains == []
    assert known.notes == [assemble.NO_GAINS, assemble.RESTARTED]
    assert min(exchange.begin for exchange in known.timeline) == 0


@pytest.mark.parametrize("n_told", [0, 2, 4, 6])
def test_a_hub_that_tells_of_fewer_trees_shortens_no_history(known, finished, n_told):
    """What the model's owners know of a tree stays; of what the hub leaves out, a sentence says so."""
    model = finished[0].model
    facts = [msgspec.structs.replace(record, train={}, validation={}, bytes=7) for record in 2 * model.history]
    told = msgspec.structs.replace(known, history=facts[:n_told])
    found = assemble.completed(told, model)
    assert [record.train for record in found.history] == [record.train for record in model.history]
    assert [record.bytes for record in found.history[:n_told]] == [7] * min(n_told, 4)
    said = [note for note in found.notes if note not in known.notes]
    ends = [f"The hub's record ends after {n_told} of 4 rounds."] if n_told < 4 else []
    assert [note.split(".")[0] + "." for note in said] == ends
    data = msgspec.json.encode({"trees": told.history})
    kept = msgspec.json.decode(assemble.completed_history(data, model))["trees"]
    assert [record["train"] for record in kept] == [record.train for record in model.history]


def test_a_party_that_was_away_is_listed_with_the_trees_it_missed(known):
    assert [p.dropped for p in known.parties] == [None, "had no part in 2 trees, from number 2 to 4"]


def test_a_party_sees_nothing_of_the_others_that_it_does_not_know(known):
    seen = assemble.for_party(known, "north")
    assert set(seen.traffic) == set(seen.similarity.equal_hashes) == set(seen.similarity.most_uses) == {"north"}
    assert {exchange.party for exchange in seen.timeline} == {"north"}
    assert "at north" in seen.versions
    assert "at south" not in seen.versions


def at_party(known, session, model, answered):
    """As a party completes the hub's record."""
    sent = assemble.as_sent(known, session, PARAMS, answered)
    return assemble.with_own_gain(sent, session, model, PARAMS)


def test_a_party_adds_its_own_gain_and_what_its_journal_says_it_sent(known, finished):
    training, sessions = finished
    answered = [
        Answered(time=0.0, question="Hash", answer="Hashes", bytes_in=3, bytes_out=5, shows=["hash values"])
    ] * 2
    record = at_party(known, sessions[0], training.model, answered)
    assert {(g.party, g.rows) for g in record.gains} == {("north", "north")}
    assert {c.rows for c in record.curves} == {"north"}
    assert record.traffic == {"north": {"received": {"Hash": 6}, "sent": {"Hashes": 10}}}
    assert not next(p for p in record.protections if p.name == "Blind matching").on
    assert record.notes == [assemble.ALONE, assemble.RESTARTED]


def test_a_party_is_told_when_the_shared_model_stopped_by_the_rows_that_measure(known, finished):
    training, sessions = finished
    early = msgspec.structs.replace(known, settings=known.settings | {"early_stopping_rounds": 3})
    record = at_party(early, sessions[0], training.model, [])
    assert assemble.STOPPED_HERE in record.notes


def test_the_model_alone_stops_at_home_and_then_trains_on_all_rows(finished):
    """The rows that measure have no part in the number of rounds, and none of the training rows is lost."""
    own = finished[1][0].split
    params = PARAMS | {"n_trees": 60, "learning_rate": 0.5}
    alone = baselines.solo_stopped(own, "north", [0, 1], params)
    assert alone.n_trees < 60
    assert alone.history[0].train != {}
    fixed = baselines.xgboost_model({"north": own}, [0, 1], params | {"n_trees": alone.n_trees})
    np.testing.assert_array_equal(alone.margins(own.training.X), fixed.margins(own.training.X))
    other = replace(own, validation=replace(own.validation, y=1 - own.validation.y))
    assert baselines.solo_stopped(other, "north", [0, 1], params).n_trees == alone.n_trees


def test_a_party_without_held_out_rows_says_why_it_has_no_gain(known, finished, table, labels):
    whole = Session(simfl.Party("north", table[:30], labels[:30]))
    record = at_party(known, whole, finished[0].model, [])
    assert record.gains == []
    assert record.notes == [assemble.NOTHING_ASIDE, assemble.RESTARTED]
    assert record.traffic == known.traffic
