"""A party, or a hub, that sends nonsense: refused with a clear error, and the run keeps its state."""

import contextlib
import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import simfl
from simfl import hub, wire
from simfl import messages as msg
from simfl.errors import ProtocolError, SimFLError
from simfl.hub.journal import Journal
from simfl.params import prepare_params, split, train_params
from simfl.privacy.tokens import secret_of
from simfl.transport.local import LocalTransport

PARAMS = {"n_trees": 5, "max_depth": 2, "random_state": 1, "rematch": 2}
replace = msgspec.structs.replace


def members():
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=(n, 4)).astype(np.float32) for n in (30, 25, 20)]
    found = [simfl.Party(f"p{i}", X, (X[:, 0] > 0).astype(int)) for i, X in enumerate(tables)]
    for party in found:
        party.secret = secret_of(1)
    return found


class Rogue(LocalTransport):
    """The replies of p1 are changed on their way, from the n-th of a kind on."""

    def __init__(self, kind=None, change=None, at=0, on_bytes=None):
        super().__init__([party.fresh() for party in members()], 1)
        self.kind, self.change, self.left, self.on_bytes = kind, change, at, on_bytes

    def _carry(self, party, *rest):
        reply = super()._carry(party, *rest)
        if party != "p1":
            return reply
        if self.on_bytes:
            return wire.decode(self.on_bytes(wire.encode(reply)))
        if isinstance(reply, self.kind):
            self.left -= 1
            if self.left < 0:
                return wire.decode(wire.encode(self.change(reply)))
        return reply


def run(transport, journal=None, **params):
    first, second = split(PARAMS | params)
    prepared = hub.prepare(transport, prepare_params(**first))
    return hub.train(transport, prepared, train_params(**second), [], journal)


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
NONSENSE = {
    "moments torn": (msg.FeatureMoments, lambda r: replace(r, sums=torn(r.sums))),
    "moments NaN": (msg.FeatureMoments, lambda r: replace(r, sums=spoilt(r.sums, np.nan))),
    "moments infinite": (msg.FeatureMoments, lambda r: replace(r, squares=spoilt(r.squares, np.inf))),
    "hashes too few": (msg.Hashes, lambda r: replace(r, values=shorter(r.values))),
    "hashes of a hostile size": (msg.Hashes, lambda r: replace(r, values=replace(r.values, shape=(HUGE, HUGE)))),
    "hashes that are no codes": (msg.Hashes, lambda r: replace(r, values=replace(r.values, dtype="f4"))),
    "no rows": (msg.Description, lambda r: replace(r, n_rows=0)),
    "far too many columns": (msg.Description, lambda r: replace(r, n_features=2**40)),
    "labels of another kind": (msg.LabelSummary, lambda r: replace(r, classes=None)),
    "labels without sums": (msg.LabelSummary, lambda r: replace(r, sums=[])),
    "label sums NaN": (msg.LabelSummary, lambda r: replace(r, sums=[float("nan")] * 2)),
    "label weight below zero": (msg.LabelSummary, lambda r: replace(r, weight=-1.0)),
    "bounds NaN": (msg.Started, lambda r: replace(r, gradient=float("nan"))),
    "bounds below zero": (msg.Started, lambda r: replace(r, total_hessian=-1.0)),
    "uses below zero": (msg.Matched, lambda r: replace(r, most_uses=-5)),
    "sums too short": (msg.RowSums, lambda r: replace(r, gradients={b: shorter(a) for b, a in r.gradients.items()})),
    "sums torn": (msg.RowSums, lambda r: replace(r, hessians={b: torn(a) for b, a in r.hessians.items()})),
    "sums of another tree": (msg.RowSums, lambda r: replace(r, round=r.round + 1)),
    "scores NaN": (msg.RowSums, lambda r: replace(r, scores=replace(r.scores, train_weight=float("nan")))),
    "a tree of another round": (msg.Grown, lambda r: replace(r, round=77)),
    "no tree": (msg.Grown, lambda r: replace(r, trees=[])),
    "two trees": (msg.Grown, lambda r: replace(r, trees=r.trees * 2)),
    "a tree with a hostile size": (msg.Grown, lambda r: with_tree(r, n_nodes=2**27 + 1)),
    "a tree with far too many nodes": (msg.Grown, lambda r: with_tree(r, n_nodes=HUGE)),
    "a tree over other columns": (msg.Grown, lambda r: with_tree(r, feature=spoilt(r.trees[0].feature, 99))),
    "a tree with a threshold that is none": (
        msg.Grown,
        lambda r: with_tree(r, threshold=spoilt(r.trees[0].threshold, np.nan)),
    ),
    "values that nobody asked for": (msg.Grown, lambda r: replace(r, values=[r.trees[0].threshold])),
    "leaf sums of another tree": (msg.LeafSums, lambda r: replace(r, round=r.round - 1)),
    "leaf sums for no tree": (msg.LeafSums, lambda r: replace(r, gradients=[])),
    "leaf sums too short": (msg.LeafSums, lambda r: replace(r, hessians=[shorter(a) for a in r.hessians])),
    "leaves of too few rows": (msg.LeavesOfRows, lambda r: replace(r, leaves=shorter(r.leaves))),
    "leaves of another round": (msg.LeavesOfRows, lambda r: replace(r, round=r.round + 1)),
    "hidden rows too few": (msg.HiddenRows, lambda r: replace(r, codes=shorter(r.codes))),
    "hidden rows beyond their names": (msg.HiddenRows, lambda r: replace(r, codes=spoilt(r.codes, 250))),
    "hidden rows that are no codes": (msg.HiddenRows, lambda r: replace(r, codes=replace(r.codes, dtype="f8"))),
    "hidden rows without names": (msg.HiddenRows, lambda r: replace(r, names=[])),
    "hidden rows of another round": (msg.HiddenRows, lambda r: replace(r, round=3)),
    "ties torn": (msg.HiddenRows, lambda r: replace(r, ties=torn(r.ties))),
    "another message": (msg.LeafSums, lambda r: msg.Replayed()),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_is_refused_and_the_training_can_be_taken_up_again(what, tmp_path):
    kind, change = NONSENSE[what]
    at = 1 if kind in (msg.RowSums, msg.LeafSums) else 0
    more = {"matching": "shared"} if kind in (msg.Hashes, msg.Matched, msg.LeavesOfRows) else {}
    with pytest.raises(ProtocolError) as refused:
        run(Rogue(kind, change, at), Journal(tmp_path / "journal"), **more)
    assert "p1" in str(refused.value) or "not a SimFL message" in str(refused.value)  # a transport names the sender
    taken_up = run(Rogue(msg.Message, lambda r: r), Journal(tmp_path / "journal"), **more)
    whole = run(Rogue(msg.Message, lambda r: r), **more)
    for one, other in zip(taken_up.rounds, whole.rounds, strict=True):
        assert all((a.value == b.value).all() for a, b in zip(one, other, strict=True))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_bytes_changed_on_the_way_are_refused_or_harmless(data):
    left = data.draw(st.integers(0, 25))

    def damage(raw):
        nonlocal left
        left -= 1
        if left != 0:
            return raw
        changed = bytearray(raw)
        for _ in range(data.draw(st.integers(1, 3))):
            changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
        return bytes(changed[: data.draw(st.integers(len(changed) // 2, len(changed)))])

    more = data.draw(st.sampled_from([{}, {"matching": "shared"}, {"masked": True}, {"ids": "fresh"}]))
    training = None
    with contextlib.suppress(SimFLError):  # any other error is a hole
        training = run(Rogue(on_bytes=damage), **more)
    assert training is None or len(training.rounds) == PARAMS["n_trees"]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_party_refuses_changed_questions_or_answers_them(data):
    asked = []

    class Log(LocalTransport):
        def _carry(self, party, message, *rest):
            asked.append(wire.encode(message))
            return super()._carry(party, message, *rest)

    party = members()[0]
    log = Log([p.fresh() for p in members()], 1)
    run(log, n_trees=3, **data.draw(st.sampled_from([{}, {"matching": "shared"}, {"masked": True}, {"ids": "fresh"}])))
    questions = asked[:: len(log.parties)]
    at = data.draw(st.integers(0, len(questions) - 1))
    changed = bytearray(questions[at])
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    for raw in (*questions[:at], bytes(changed)):
        reply = None
        with contextlib.suppress(SimFLError):
            reply = party.handle(wire.decode(raw))
        assert reply is None or type(reply) in msg.Reply.__args__


@pytest.mark.parametrize("kind", [*msg.Request.__args__, *msg.Reply.__args__], ids=lambda kind: kind.__name__)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_no_message_makes_its_receiver_allocate_more_than_sixty_times_its_size(kind, data):
    values = st.one_of(
        st.integers(-(2**63), 2**64 - 1), st.floats(), st.binary(max_size=40), st.text(max_size=10), st.none()
    )
    nested = st.recursive(
        values, lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=5), inner)
    )
    content = {field.name: data.draw(nested) for field in msgspec.structs.fields(kind)}
    raw = msgspec.msgpack.encode({"type": kind.__name__} | content)
    tracemalloc.start()
    with contextlib.suppress(ProtocolError):
        wire.decode(raw)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60 * len(raw) + 20_000


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
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        wire.decode(raw)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000
