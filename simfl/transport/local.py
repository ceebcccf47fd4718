"""All parties in this process.

Messages are encoded and decoded as on a wire: what is not in a message cannot pass, and the bytes are counted as they
are. The parties share the threads: those asked at once get a part each, one that is asked alone gets all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from simfl.messages import Reply, Request
from simfl.params import cores
from simfl.transport.base import Hop, Traffic
from simfl.wire import decode, encode


class Handler(Protocol):
    """A party, as far as a transport knows it."""

    name: str
    n_jobs: int

    def handle(self, message: Request) -> Reply:
        """Answer a message."""


H = TypeVar("H", bound=Handler)

QUICK = 1e-3  # answers that take fewer seconds are asked for one by one: threads would only wait for each other


class LocalTransport(Generic[H]):
    """Carries messages to parties in the same process."""

    deployed = False

    def __init__(self, parties: Sequence[H], n_jobs: int | None = None) -> None:
        self.parties = [party.name for party in parties]
        self.handlers = {party.name: party for party in parties}
        self.traffic = Traffic()
        self._lock = threading.Lock()
        self._is_quick: dict[type | None, bool] = {}  # per kind of message: was it answered quickly the last time?
        self.n_jobs = 0
        self.share(n_jobs)

    def share(self, n_jobs: int | None) -> None:
        """Let the parties have so many threads together (None: all cores)."""
        n_jobs = n_jobs if n_jobs and n_jobs > 0 else cores()
        if n_jobs != self.n_jobs:
            self.n_jobs = n_jobs
            self._pool = ThreadPoolExecutor(n_jobs, thread_name_prefix="simfl-party")

    def ask(self, party: str, message: Request) -> Reply:
        """Ask one party; it has all threads."""
        return self._carry(party, message, None, self.n_jobs)

    def ask_all(self, messages: Mapping[str, Request]) -> dict[str, Reply]:
        """Ask several parties at once; the threads are shared between them."""
        first = next(iter(messages.values()), None)
        # A message that goes to everybody is encoded once; one of many is encoded when its turn comes, so that not
        # all of them are in memory at the same time.
        common = _Wire(first) if first and all(message is first for message in messages.values()) else None
        begun = time.perf_counter()
        if len(messages) <= 1 or self.n_jobs == 1:
            replies = {party: self._carry(party, m, common, self.n_jobs) for party, m in messages.items()}
        elif self._is_quick.get(type(first)):
            replies = {party: self._carry(party, m, common, 1) for party, m in messages.items()}
        else:
            threads = max(self.n_jobs // len(messages), 1)
            asked = {p: self._pool.submit(self._carry, p, m, common, threads) for p, m in messages.items()}
            replies = {party: future.result() for party, future in asked.items()}
        if messages:
            self._is_quick[type(first)] = time.perf_counter() - begun < QUICK * len(messages)
        return replies

    def returned(self) -> list[str]:
        """Nobody gets lost in one process."""
        return []

    def _carry(self, party: str, message: Request, wire: _Wire | None, threads: int) -> Reply:
        wire = wire or _Wire(message)
        handler = self.handlers[party]
        handler.n_jobs = threads
        begun = time.perf_counter()
        answer = encode(handler.handle(wire.request))
        reply: Reply = decode(answer)  # type: ignore[assignment]
        with self._lock:
            self.traffic.count(party, message, wire.size, reply, len(answer))
            self.traffic.hops.append(Hop(party, type(message).__name__, begun, time.perf_counter() - begun))
        return reply


class _Wire:
    """A message as it arrives: encoded and decoded again."""

    def __init__(self, message: Request) -> None:
        data = encode(message)
        self.size = len(data)
        self.request: Request = decode(data)  # type: ignore[assignment]
