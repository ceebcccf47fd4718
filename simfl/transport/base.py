"""A transport carries messages from the hub to parties, and their replies back. It has one method: `ask_all`.

`local.py` carries them within this process, `flare.py` between machines. Both count the bytes that were really sent.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from copy import copy, deepcopy
from typing import NamedTuple, Protocol

from simfl.messages import Addend, Finished, Reply, Request
from simfl.wire import encode


class Hop(NamedTuple):
    """One question and its answer: when it was asked (by the clock of `time.perf_counter`) and how long it took."""

    party: str
    kind: str
    begun: float
    seconds: float


class Traffic:
    """Bytes per party and kind of message, as they were sent."""

    def __init__(self) -> None:
        self.received: dict[str, Counter[str]] = defaultdict(Counter)  # what reached a party
        self.sent: dict[str, Counter[str]] = defaultdict(Counter)  # what left a party
        self.shown: dict[str, Counter[str]] = defaultdict(
            Counter
        )  # per party: what it says it did, of all its trainings
        self.total = 0  # all bytes, both ways
        self.hops: list[Hop] = []

    def count(self, party: str, request: Request, n_in: int, reply: Reply, n_out: int, begun: float) -> None:
        """Count one question and its answer, which has just arrived."""
        self.received[party][type(request).__name__] += n_in
        self.sent[party][type(reply).__name__] += n_out
        if isinstance(reply, Finished) or (isinstance(reply, Addend) and reply.finished):
            self.shown[party] = Counter(reply.shown)
        self.total += n_in + n_out
        self.hops.append(Hop(party, type(request).__name__, begun, time.perf_counter() - begun))

    def since(self, earlier: Traffic | None) -> dict[str, dict[str, dict[str, int]]]:
        """Bytes per party, way and kind of message, minus what an earlier copy had counted."""
        before = earlier or Traffic()
        return {
            party: {"received": dict(n - before.received[party]), "sent": dict(self.sent[party] - before.sent[party])}
            for party, n in self.received.items()
        }

    def observed(self) -> Counter[str]:
        """What all parties say they did to what they sent, once they have finished: see `privacy/observed.py`."""
        return sum(self.shown.values(), Counter())

    def copy(self) -> Traffic:
        """A copy that stays as it is."""
        other = copy(self)
        other.received, other.sent, other.shown = deepcopy((self.received, self.sent, self.shown))
        other.hops = self.hops.copy()
        return other


class Transport(Protocol):
    """What the hub needs: the names of the parties that take part, the traffic so far, and a way to ask."""

    parties: list[str]
    traffic: Traffic
    deployed: bool  # whether the parties are on other machines: their sums are then masked unless parameters say no

    def ask_all(self, messages: Mapping[str, Request]) -> dict[str, Reply]:
        """Ask several parties at once and wait for all replies. Raises `PartyLost` where one does not answer."""

    def returned(self) -> list[str]:
        """Parties that were lost, and removed from `parties`, and answer again."""


def encode_common(messages: Mapping[str, Request]) -> bytes | None:
    """The bytes of a message that goes to every party: it is encoded once. None where each party gets its own."""
    first = next(iter(messages.values()), None)
    return encode(first) if first and all(message is first for message in messages.values()) else None
