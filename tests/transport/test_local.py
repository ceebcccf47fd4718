import threading
import time

import numpy as np
import pytest

import simfl
from simfl import messages as msg
from simfl import wire
from simfl.errors import ProtocolError
from simfl.transport import base, local
from simfl.transport.local import LocalTransport
from tests.wire import sessions

DESCRIBE = msg.Describe(version=msg.VERSION, validation_fraction=0.0, seed=0)


def parties(n):
    return sessions([simfl.Party(f"p{i}", np.ones((i + 1, 2)), np.zeros(i + 1)) for i in range(n)])


def test_replies_belong_to_the_parties_that_were_asked():
    replies = LocalTransport(parties(5), n_jobs=3).ask_all(dict.fromkeys(["p3", "p0", "p4"], DESCRIBE))
    assert {name: reply.n_rows for name, reply in replies.items()} == {"p3": 4, "p0": 1, "p4": 5}


def test_bytes_are_counted_both_ways():
    transport = LocalTransport(parties(2))
    reply = transport.ask_all({"p0": DESCRIBE})["p0"]
    assert transport.traffic.received["p0"] == {"Describe": len(wire.encode(DESCRIBE))}
    assert transport.traffic.sent["p0"] == {"Description": len(wire.encode(reply))}
    before = transport.traffic.copy()
    transport.ask_all({"p1": DESCRIBE})
    assert transport.traffic.since(before)["p0"] == {"received": {}, "sent": {}}
    assert transport.traffic.total == before.total * 2


class Echo:
    name, n_jobs = "echo", 1

    def handle(self, message):
        self.got = message
        return msg.Matched(equal_hashes={}, most_uses=0)


def test_an_observer_sees_what_the_hub_sees():
    seen, echo = [], Echo()
    transport = LocalTransport([echo, *parties(1)], observe=lambda *hop: seen.append(hop))
    questions = {"echo": DESCRIBE, "p0": DESCRIBE}
    replies = transport.ask_all(questions)
    assert {party: reply for party, _, reply in seen} == replies
    assert all(question is DESCRIBE for _, question, _ in seen)


def test_a_message_for_all_is_encoded_once_and_others_each(monkeypatch):
    encoded = []
    monkeypatch.setattr(base, "encode", lambda message: encoded.append(message) or wire.encode(message))
    assert base.encode_common(dict.fromkeys("abc", DESCRIBE)) == wire.encode(DESCRIBE)
    assert len(encoded) == 1
    assert base.encode_common({"a": DESCRIBE, "b": msg.DrawKey()}) is None
    assert base.encode_common({}) is None


def test_nothing_is_shared_by_reference():
    echo = Echo()
    sent = msg.SumPerLeaf(round=0, trees=[], exponents=(0, 0))
    LocalTransport([echo]).ask_all({"echo": sent})
    assert echo.got == sent
    assert echo.got is not sent


def test_threads_are_shared_between_those_asked_at_once():
    members = parties(4)
    transport = LocalTransport(members, n_jobs=8)
    transport.ask_all(dict.fromkeys(["p0", "p1", "p2", "p3"], DESCRIBE))
    assert [m.n_jobs for m in members] == [2, 2, 2, 2]
    transport.ask_all({"p2": DESCRIBE})
    assert members[2].n_jobs == 8


def test_threads_that_are_left_over_go_to_those_asked_last():
    members = parties(5)
    LocalTransport(members, n_jobs=2).ask_all(dict.fromkeys(["p0", "p1", "p2", "p3", "p4"], DESCRIBE))
    assert [m.n_jobs for m in members] == [1, 1, 1, 1, 2]


class Moody(Echo):
    """Takes as long as it is told, and notes in which thread."""

    def __init__(self, name):
        self.name, self.seconds = name, 0.0

    def handle(self, message):
        time.sleep(self.seconds)
        self.thread = threading.current_thread()
        return super().handle(message)


def test_parties_that_were_quick_and_no_longer_are_get_threads_after_the_first(monkeypatch):
    monkeypatch.setattr(local, "QUICK", 0.05)  # so that a busy machine does not disturb
    members = [Moody(name) for name in "abcd"]
    transport = LocalTransport(members, n_jobs=2)
    for seconds in (0.0, 0.0, 0.0, 0.4):
        for member in members:
            member.seconds = seconds
        transport.ask_all(dict.fromkeys("abcd", DESCRIBE))
    main = threading.current_thread()
    assert [m.thread is main for m in members] == [True, False, False, False]


def test_an_error_at_a_party_reaches_the_caller():
    finish = msg.Finish(previous=[])
    with pytest.raises(ProtocolError, match="Party 'p1'"):
        LocalTransport(parties(3), n_jobs=2).ask_all({"p0": DESCRIBE, "p1": finish})


def test_after_an_error_no_party_is_still_at_work():
    import threading

    finished = threading.Event()

    class Slow:
        name, n_jobs = "slow", 1

        def handle(self, message):
            time.sleep(0.2)
            finished.set()
            return msg.Done()

    class Broken:
        name, n_jobs = "broken", 1

        def handle(self, message):
            raise ProtocolError("no")

    with pytest.raises(ProtocolError):
        LocalTransport([Broken(), Slow()], n_jobs=2).ask_all(dict.fromkeys(["broken", "slow"], DESCRIBE))
    assert finished.is_set()
