"""What passes between hub and parties, hop by hop: messages in sequence, bytes, and the time of the slowest party.

A hop is a question to one or more parties at once and their replies: two messages in sequence, whatever the number of
parties.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from simfl.transport.local import LocalTransport


@dataclass
class Wire:
    """Sums over the hops so far."""

    hops: int = 0
    party_seconds: float = 0.0  # all work of all parties, in CPU time
    critical_seconds: float = 0.0  # per hop, the slowest party: what it takes if each has a core of its own
    bytes: int = 0

    @property
    def messages(self) -> int:
        """Messages that wait for one another."""
        return 2 * self.hops


@contextmanager
def watched() -> Iterator[Wire]:
    """Count what local transports carry. Parties are asked one after the other, so that each is timed alone."""
    wire = Wire()
    ask_all = LocalTransport.ask_all

    def ask_several(self: LocalTransport[Any], messages: Mapping[str, Any]) -> dict[str, Any]:
        replies, slowest, before = {}, 0.0, self.traffic.total
        for party, message in messages.items():
            begun = time.process_time()  # not the wall's: other programs must not count
            replies |= ask_all(self, {party: message})
            seconds = time.process_time() - begun
            wire.party_seconds += seconds
            slowest = max(slowest, seconds)
        wire.hops += 1
        wire.critical_seconds += slowest
        wire.bytes += self.traffic.total - before
        return replies

    LocalTransport.ask_all = ask_several  # type: ignore[method-assign]
    try:
        yield wire
    finally:
        LocalTransport.ask_all = ask_all  # type: ignore[method-assign]
