"""All parties in this process.

Messages are encoded and decoded as on a network: what is not in a message cannot pass, and every byte is counted. The
parties share the threads: a party that is asked alone gets all of them, parties that are asked at once a part each.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Generic, Protocol, TypeVar

from simfl.messages import Reply, Request
from simfl.params import cores
from simfl.transport.base import Traffic, encode_common
from simfl.wire import decode, encode


class Handler(Protocol):
    """A party, as far as a transport knows it."""

    name: str
    n_jobs: int

    def handle(self, message: Request) -> Reply:
        """Answer a message."""


H = TypeVar("H", bound=Handler)
Observer = Callable[[str, Request, Reply], None]

QUICK = 1e-3  # parties that answer in fewer seconds are asked one by one: threads would only wait for each other
GRACE = 4  # how many times as long the first of them may take: it may do what is left for the others, too


class LocalTransport(Generic[H]):
    """Carries messages to parties in the same process. `observe` is called with party, question and reply."""

    deployed = False

    def __init__(self, parties: Sequence[H], n_jobs: int | None = None, observe: Observer | None = None) -> None:
        self.parties = [party.name for party in parties]
        self.handlers = {party.name: party for party in parties}
        self.traffic = Traffic()
        self.observe = observe
        self._lock = threading.Lock()
        self._seconds: dict[type, deque[float]] = {}  # per kind of message: how long a party took the last two times
        self.n_jobs = 0
        self.share(n_jobs)

    def share(self, n_jobs: int | None) -> None:
        """Give the parties n_jobs threads together (None: all cores)."""
        n_jobs = n_jobs if n_jobs and n_jobs > 0 else cores()
        if n_jobs != self.n_jobs:
            self.n_jobs = n_jobs
            self._pool = ThreadPoolExecutor(n_jobs, thread_name_prefix="simfl-party")

    def ask_all(self, messages: Mapping[str, Request]) -> dict[str, Reply]:
        """Ask several parties at once; they share the threads."""
        if not messages:
            return {}
        # A message for one party only is encoded when its turn comes, so that not all are in memory at the same time.
        data = encode_common(messages)
        common = (decode(data), len(data)) if data else None
        kind = type(next(iter(messages.values())))
        begun = time.perf_counter()
        lately = self._seconds.setdefault(kind, deque([1.0], maxlen=2))  # steps may take turns: a short, a long one
        alone = len(messages) == 1 or self.n_jobs == 1
        replies: dict[str, Reply] = {}
        for party, message in messages.items():
            slow = max(lately) >= QUICK or time.perf_counter() - begun > QUICK * (len(replies) + GRACE)
            if slow and not alone:
                break
            replies[party] = self._carry(party, message, common, self.n_jobs if len(messages) == 1 else 1)
        replies |= self._ask_at_once({p: m for p, m in messages.items() if p not in replies}, common)
        lately.append((time.perf_counter() - begun) / len(messages))
        return replies

    def _ask_at_once(self, messages: Mapping[str, Request], common: tuple[Any, int] | None) -> dict[str, Reply]:
        threads = self._shares(len(messages))
        asked = {
            party: self._pool.submit(self._carry, party, message, common, own)
            for (party, message), own in zip(messages.items(), threads, strict=True)
        }
        try:
            return {party: future.result() for party, future in asked.items()}
        finally:
            wait(asked.values())  # after an error or an interrupt, too: no party works on unseen

    def _shares(self, n: int) -> list[int]:
        """The threads of n parties that are asked at once. Those that are left over for the last turn get all of them.

        >>> LocalTransport([], n_jobs=4)._shares(6)
        [1, 1, 1, 1, 2, 2]
        """
        last = n % self.n_jobs
        return [1] * (n - last) + [self.n_jobs // max(last, 1)] * last

    def returned(self) -> list[str]:
        """No party gets lost in one process."""
        return []

    def _carry(self, party: str, message: Request, common: tuple[Any, int] | None, threads: int) -> Reply:
        request, size = common or _received(message)
        handler = self.handlers[party]
        handler.n_jobs = threads
        begun = time.perf_counter()
        answer = encode(handler.handle(request))
        reply: Reply = decode(answer)  # type: ignore[assignment]
        with self._lock:
            self.traffic.count(party, message, size, reply, len(answer), begun)
            if self.observe:
                self.observe(party, message, reply)
        return reply


def _received(message: Request) -> tuple[Any, int]:
    """The message as it arrives, and its size. Its bytes are gone by then: they may be many."""
    data = encode(message)
    return decode(data), len(data)
