"""A party, or a hub, that sends nonsense: refused with a clear error, and the run keeps its state.

One training of each kind is recorded. The hub then gets its replies again, one of them changed; a party gets its
questions again, up to one that is changed.
"""

import contextlib
import tracemalloc
from functools import cache
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import simfl
from simfl import messages as msg
from simfl import wire
from simfl.errors import ProtocolError, SimFLError
from simfl.hub.journal import Grew, Scored, open_journal
from simfl.privacy.keys import Keys
from simfl.privacy.tokens import secret_of
from simfl.transport.local import LocalTransport
from tests.wire import Between, Playback, Recorder, bits, by_party, sessions, train

PARAMS = {"n_trees": 5, "max_depth": 2, "random_state": 1, "rematch": 2}
KINDS = {
    "blind": {},
    "shared": {"matching": "shared"},
    "masked": {"masked": True},
    "resumed": {},
}
replace = msgspec.structs.replace
few_or_slow = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def members():
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=(n, 4)).astype(np.float32) for n in (30, 25, 20)]
    orders = ([0, 1, 2, 3], [1, 0, 2, 3], [0, 1, 2, 3])  # p1 has to settle for the columns of the others
    return [
        simfl.Party(f"p{i}", X[:, order], (X[:, 0] > 0).astype(int), columns=["abcd"[place] for place in order])
        for i, (X, order) in enumerate(zip(tables, orders, strict=True))
    ]


class Run(NamedTuple):
    """A training that was recorded."""

    talk: dict  # per party: questions and replies, in their order
    entries: list  # of its journal
    bits: object


@cache
def played(kind):
    """One training of each kind; the resumed one continues after its second tree."""
    journal, seen = open_journal(), Recorder(sessions(members(), secret=1))
    if kind == "resumed":
        journal = with_entries(played("blind").entries, until=2)
    training = train(seen, journal, **PARAMS | KINDS[kind])
    return Run(by_party(seen.log), journal.entries, bits(training))


def with_entries(entries, until=None):
    """A journal with these entries, all or those before the n-th tree is scored."""
    journal, n_trees = open_journal(), 0
    for entry in entries:
        n_trees += isinstance(entry, Grew)
        if until is not None and n_trees > until:
            break
        journal.append(entry)
    return journal


# --- the hub ---------------------------------------------------------------------------------------------------------


def shorter(array):
    size = int(array.dtype[1])
    return replace(array, shape=(array.shape[0] - 1, *array.shape[1:]), data=array.data[: -size * _width(array)])


def _width(array):
    return int(np.prod(array.shape[1:], dtype=int))


def torn(array):
    return replace(array, data=array.data[:-1])


def spoilt(array, value):
    values = np.frombuffer(array.data, dtype=f"<{array.dtype}").copy()
    values.flat[0] = value
    return replace(array, data=values.tobytes())


def with_tree(reply, **changes):
    return replace(reply, trees=[replace(reply.trees[0], **changes)])


HUGE = 10**12
LEAVES = "leaves"  # hashes of a rematch: the second that a party sends
NONSENSE = {
    "feature sums torn": (msg.FeatureSums, lambda r: replace(r, sums=torn(r.sums))),
    "feature sums too few": (msg.FeatureSums, lambda r: replace(r, sums=shorter(r.sums))),
    "feature sums of another type": (msg.FeatureSums, lambda r: replace(r, sums=replace(r.sums, dtype="u8"))),
    "feature sums beyond all bounds": (
        msg.FeatureSums,
        lambda r: replace(r, sums=wire.pack(np.full(r.sums.shape, 1e300))),
    ),
    "hashes too few": (msg.Hashes, lambda r: replace(r, values=shorter(r.values))),
    "hashes of a hostile size": (msg.Hashes, lambda r: replace(r, values=replace(r.values, shape=(HUGE, HUGE)))),
    "hashes that are no codes": (msg.Hashes, lambda r: replace(r, values=replace(r.values, dtype="f4"))),
    "no rows": (msg.Description, lambda r: replace(r, n_rows=0)),
    "far too many columns": (msg.Description, lambda r: replace(r, n_features=2**40)),
    "labels of another kind": (msg.Classes, lambda r: replace(r, classes=None)),
    "label sums torn": (msg.LabelSums, lambda r: replace(r, sums=torn(r.sums))),
    "label sums of other classes": (msg.LabelSums, lambda r: replace(r, sums=shorter(r.sums))),
    "bounds NaN": (msg.Started, lambda r: replace(r, gradient=float("nan"))),
    "bounds below zero": (msg.Started, lambda r: replace(r, total_hessian=-1.0)),
    "uses below zero": (msg.Matched, lambda r: replace(r, most_uses=-5)),
    "sums too short": (msg.RowSums, lambda r: replace(r, sums=shorter(r.sums))),
    "sums torn": (msg.RowSums, lambda r: replace(r, sums=torn(r.sums))),
    "sums of another tree": (msg.RowSums, lambda r: replace(r, round=r.round + 1)),
    "scores too few": (msg.RowSums, lambda r: replace(r, scores=shorter(r.scores))),
    "a tree of another round": (msg.Grown, lambda r: replace(r, round=77)),
    "no tree": (msg.Grown, lambda r: replace(r, trees=[])),
    "two trees": (msg.Grown, lambda r: replace(r, trees=r.trees * 2)),
    "a tree with a hostile size": (msg.Grown, lambda r: with_tree(r, n_nodes=2**27 + 1)),
    "a tree with far too many nodes": (msg.Grown, lambda r: with_tree(r, n_nodes=HUGE)),
    "a tree over other columns": (msg.Grown, lambda r: with_tree(r, feature=spoilt(r.trees[0].feature, 99))),
    "a tree with a threshold of NaN": (
        msg.Grown,
        lambda r: with_tree(r, threshold=spoilt(r.trees[0].threshold, np.nan)),
    ),
    "values that nobody asked for": (msg.Grown, lambda r: replace(r, values=[r.trees[0].threshold])),
    "leaf sums of another tree": (msg.LeafSums, lambda r: replace(r, round=r.round - 1)),
    "leaf sums for no tree": (msg.LeafSums, lambda r: replace(r, gradients=[])),
    "leaf sums too short": (msg.LeafSums, lambda r: replace(r, hessians=[shorter(a) for a in r.hessians])),
    "leaves of too few rows": (LEAVES, lambda r: replace(r, values=shorter(r.values))),
    "leaves of another round": (LEAVES, lambda r: replace(r, round=r.round + 1)),
    "hidden rows too few": (msg.HiddenRows, lambda r: replace(r, codes=shorter(r.codes))),
    "hidden rows beyond their names": (msg.HiddenRows, lambda r: replace(r, codes=spoilt(r.codes, 250))),
    "hidden rows that are no codes": (msg.HiddenRows, lambda r: replace(r, codes=replace(r.codes, dtype="f8"))),
    "hidden rows without names": (msg.HiddenRows, lambda r: replace(r, names=[])),
    "hidden rows of another round": (msg.HiddenRows, lambda r: replace(r, round=3)),
    "ties torn": (msg.HiddenRows, lambda r: replace(r, ties=torn(r.ties))),
    "another message": (msg.LeafSums, lambda r: msg.Matched(equal_hashes={}, most_uses=0)),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_is_refused_and_the_training_can_be_resumed(what):
    kind, change = NONSENSE[what]
    at = 1 if kind in (msg.RowSums, msg.LeafSums, LEAVES) else 0
    kind = msg.Hashes if kind == LEAVES else kind
    run = "shared" if kind in (msg.Hashes, msg.Matched) else "blind"
    replies = {party: [reply for _, reply in talk] for party, talk in played(run).talk.items()}
    changed = [number for number, reply in enumerate(replies["p1"]) if isinstance(reply, kind)][at]
    replies["p1"][changed] = change(replies["p1"][changed])
    journal = open_journal()
    with pytest.raises(ProtocolError) as refused:
        train(LocalTransport([Playback(*own) for own in replies.items()], 1), journal, **PARAMS | KINDS[run])
    assert "p1" in str(refused.value) or "not a SimFL message" in str(refused.value)  # a transport names the sender
    kept = played(run).entries[: len(journal.entries)]
    assert [without_clock(entry) for entry in journal.entries] == [without_clock(entry) for entry in kept]
    assert resumed(run, len(kept)) == played(run).bits


@pytest.mark.parametrize("kind", ["blind", "shared", "masked"])
def test_the_same_replies_give_the_hub_the_same_model(kind):
    handlers = [Playback(party, [reply for _, reply in talk]) for party, talk in played(kind).talk.items()]
    training = train(LocalTransport(handlers, 1), open_journal(), **PARAMS | KINDS[kind])
    assert bits(training) == played(kind).bits
    assert not any(list(handler.left) for handler in handlers)  # all of them were asked for


def without_clock(entry):
    return replace(entry.record, bytes=0, seconds=0.0) if isinstance(entry, Scored) else entry


@cache
def resumed(kind, n_entries):
    """The model of a training whose journal has these entries."""
    journal = with_entries(played(kind).entries[:n_entries])
    return bits(train(LocalTransport(sessions(members(), secret=1), 1), journal, **PARAMS | KINDS[kind]))


def damaged(data, raw):
    """Some bytes changed, and perhaps the end cut off."""
    changed = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    return bytes(changed[: data.draw(st.integers(len(changed) // 2, len(changed)))])


@settings(few_or_slow, max_examples=60)
@given(st.data())
def test_bytes_changed_on_the_way_are_refused_or_harmless(data):
    kind = data.draw(st.sampled_from(["blind", "shared", "masked"]))
    left = data.draw(st.integers(1, len(played(kind).talk["p1"])))

    def damage(reply):
        nonlocal left
        left -= 1
        return reply if left else wire.decode(damaged(data, wire.encode(reply)))

    first, second, third = sessions(members(), secret=1)
    transport = LocalTransport([first, Between(second, reply=damage), third], 1)
    training = None
    with contextlib.suppress(SimFLError):  # any other error is a hole
        training = train(transport, open_journal(), **PARAMS | KINDS[kind])
    assert left <= 0
    assert training is None or len(training.rounds) == PARAMS["n_trees"]


# --- a party ---------------------------------------------------------------------------------------------------------


def test_every_question_of_a_training_is_recorded():
    asked = {type(question) for kind in KINDS for talk in played(kind).talk.values() for question, _ in talk}
    together = {msg.StartTogether, msg.Add, msg.Read, msg.SendModel}  # see adversary/test_lying_joint.py
    job = {msg.Greet, msg.TakeModel}  # these are for the party's end of a job
    assert asked == {*msg.Request.__args__} - together - job


@settings(few_or_slow, max_examples=150)
@given(st.data())
def test_a_party_refuses_changed_questions_or_answers_them(data):
    kind = data.draw(st.sampled_from(list(KINDS)))
    session = data.draw(st.sampled_from(sessions(members(), secret=1)))
    questions = [question for question, _ in played(kind).talk[session.name]]
    wanted = data.draw(st.sampled_from(sorted({type(q).__name__ for q in questions})))  # each kind as often
    at = data.draw(st.sampled_from([n for n, q in enumerate(questions) if type(q).__name__ == wanted]))
    key = None
    for question in questions[:at]:
        reply = session.handle(without_masked_sums(with_keys(question, session.name, key)))
        key = reply.public if isinstance(reply, msg.PublicKey) else key
    reply = None
    with contextlib.suppress(SimFLError):  # any other error is a hole
        reply = session.handle(wire.decode(damaged(data, wire.encode(with_keys(questions[at], session.name, key)))))
    assert reply is None or type(reply) in msg.Reply.__args__


def without_masked_sums(question):
    """Recorded sums are under the masks of other keys: to this session they are not possible."""
    masked = isinstance(question, msg.Grow) and question.mask is not None
    return replace(question, sums=None) if masked else question


def with_keys(question, party, key):
    """Every session draws a new key: what the first party sealed has to be sealed for this one."""
    if not isinstance(question, msg.TakeKeys):
        return question
    keys = question.keys | {party: key}
    if question.sealed is None:
        return replace(question, keys=keys)
    first = Keys(question.first)
    first.exchange({party: key.key})
    keys[question.first] = msg.SignedKey(key=first.public)
    return replace(question, keys=keys, sealed=first.seal(party, secret_of(1)))


# --- what a message can cost -----------------------------------------------------------------------------------------


def peak(raw):
    """The most memory that reading a message takes."""
    tracemalloc.start()
    with contextlib.suppress(ProtocolError):
        wire.decode(raw)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


@cache
def examples():
    """A message of every kind that occurs in a training."""
    talk = [both for kind in KINDS for own in played(kind).talk.values() for both in own]
    return {type(message): message for both in talk for message in both}


MANY = 20_000
HOSTILE = {
    "a large number": 2**64 - 1,
    "a negative number": -(2**63),
    "zeros": [0] * MANY,
    "floats": [0.5] * MANY,
    "texts": ["a"] * MANY,
    "empty lists": [[]] * MANY,
    "lists of empty lists": [[[]]] * MANY,
    "empty dictionaries": [{}] * MANY,
    "numbers by name": {f"{i:x}": 0 for i in range(MANY)},
    "lists by name": {f"{i:x}": [] for i in range(MANY)},
    "an array of a hostile shape": {"dtype": "u1", "shape": [2**40, 2**40], "data": b""},
    "an array of many dimensions": {"dtype": "u1", "shape": [1] * MANY, "data": b""},
    "arrays": [{"dtype": "u1", "shape": [0], "data": b""}] * 1000,
    "bytes": bytes(MANY),
    "a long text": "a" * MANY,
    "nothing": None,
}


@pytest.mark.parametrize("kind", [*msg.Request.__args__, *msg.Reply.__args__], ids=lambda kind: kind.__name__)
def test_no_field_makes_its_receiver_allocate_more_than_a_hundred_times_its_size(kind):
    names = [field.name for field in msgspec.structs.fields(kind)]
    example = examples().get(kind)
    whole = msgspec.to_builtins(example, builtin_types=(bytes,)) if example else {"type": kind.__name__}
    for value in HOSTILE.values():
        for content in ({name: value} for name in names) if example else [dict.fromkeys(names, value)]:
            raw = msgspec.msgpack.encode(whole | content)
            assert peak(raw) < 100 * len(raw) + 20_000


@settings(few_or_slow, max_examples=200)
@given(st.data())
def test_no_damaged_message_makes_its_receiver_allocate_more_than_a_hundred_times_its_size(data):
    message = data.draw(st.sampled_from(list(examples().values())))
    raw = damaged(data, wire.encode(message))
    assert peak(raw) < 100 * len(raw) + 20_000


@pytest.mark.parametrize(
    "raw",
    [
        b"\xdd\xff\xff\xff\xff",  # a list of four thousand million parts, none of which follows
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x81\xa4type\xa6Replay\xa6rounds\xdd\x7f\xff\xff\xff",
    ],
)
def test_a_message_that_announces_more_than_it_has_is_refused_at_once(raw):
    with pytest.raises(ProtocolError):
        wire.decode(raw)
    assert peak(raw) < 5_000_000
