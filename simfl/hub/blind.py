"""Blind matching at the hub: similar rows from names that mean nothing to it.

Every party sends its rows in a private order, each hash value under a name that only shows which values are equal. The
hub counts equal names, as a party does with the tables of the shared mode, and finds the same similar rows. A party
learns only which rows of the others resemble its own, under ids that are places in the others' private orders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simfl import messages as msg
from simfl import wire
from simfl.arrays import AnyArray, Ints, give_back, smallest_type
from simfl.errors import ProtocolError
from simfl.hub.asking import sent_by
from simfl.params import cores
from simfl.preprocessing.similarity import Candidates, HashIndex, Queries
from simfl.privacy.tokens import Names, draw_key, number_names, query_names
from simfl.training.gradients import most_uses

if TYPE_CHECKING:
    from simfl.hub.matching import Matching

FEW_ROWS = 200_000


@dataclass
class Found:
    """The similar rows of one party among those of each other, and how similar they are (as in `Matched`)."""

    party: str
    similar: dict[str, msg.Array]
    equal_hashes: dict[str, float]
    most_uses: int


class Pair(NamedTuple):
    """The rows of one party that those of another resemble, how similar they are, and how often one is used at most."""

    similar: msg.Array
    equal_hashes: float
    most_uses: int


def find(hidden: dict[str, msg.HiddenRows], matching: Matching, number: int) -> Iterator[Found]:
    """The similar rows, party by party. Uses up `hidden`, to save memory."""
    search, n_jobs = _Search(hidden, matching, number), matching.params.n_jobs
    pool = ThreadPoolExecutor(n_jobs if n_jobs and n_jobs > 0 else cores())
    try:
        yield from search.by_turns(pool) if search.is_large else search.together(pool)
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupt waits for the searches under way only


class _Search:
    """One search among all parties. Takes the replies out of `hidden`, one by one."""

    def __init__(self, hidden: dict[str, msg.HiddenRows], matching: Matching, number: int) -> None:
        self.parties, self.matching, self.number = list(hidden), matching, number
        self.names: list[Names] = []
        coded = []
        for party in self.parties:
            with sent_by(party):
                names, codes = _read(hidden.pop(party), matching.n_rows[party])
            self.names.append(names)
            coded.append(codes)
        self.index = HashIndex(number_names(coded))
        self.k = matching.params.n_neighbors or 1
        self._queries: dict[int, Queries] = {}
        self.tidy()

    @property
    def is_large(self) -> bool:
        """Whether memory counts more than the time to save it."""
        return sum(map(len, self.names)) > FEW_ROWS

    def tidy(self) -> None:
        """Give back what was freed."""
        if self.is_large:
            give_back()

    def by_turns(self, pool: ThreadPoolExecutor) -> Iterator[Found]:
        """Party by party: whoever has its own similar rows need not wait, and few are in memory at a time."""
        n = len(self.parties)
        running: deque[tuple[int, dict[int, Future[Pair]]]] = deque()
        for i in range(n):  # while one party's rows are handed out, the next one's are searched
            running.append((i, {j: pool.submit(self.compare, i, j) for j in range(n) if j != i}))
            if len(running) > 1:
                yield self._turn(*running.popleft())
                self.tidy()
        yield self._turn(*running.popleft())

    def _turn(self, i: int, running: Mapping[int, Future[Pair]]) -> Found:
        found = self._collect(i, {j: future.result() for j, future in running.items()})
        self._queries.pop(i, None)
        return found

    def together(self, pool: ThreadPoolExecutor) -> Iterator[Found]:
        """All at once: where a party's rows are all compared, then with those of all others in one go."""
        n = len(self.parties)
        candidates = list(pool.map(self._candidates, range(n)))
        everybody = self._all_queries() if any(own.in_tiles for own in candidates) else None
        found = list(pool.map(partial(self._compare_with, everybody), range(n), candidates))
        return (self._collect(i, {j: found[j][i] for j in range(n) if j != i}) for i in range(n))

    def _all_queries(self) -> Queries:
        queries = self.index.all_queries([query_names(names) for names in self.names])
        _ = queries.by_likeness  # sorted once, not by every thread
        return queries

    def _compare_with(self, everybody: Queries | None, j: int, candidates: Candidates) -> dict[int, Pair]:
        """Per other party, the rows of party j that its rows resemble."""
        sizes, progress = [len(names) for names in self.names], self.matching.progress
        others = [i for i in range(len(sizes)) if i != j]
        if everybody is None or not candidates.in_tiles:
            return {i: self.compare(i, j, candidates) for i in others}
        asking = np.repeat(np.arange(len(sizes)) != j, sizes)
        rows, counts = self.index.compare(everybody, candidates, self.k, asking=asking, n_jobs=1, progress=progress)
        ends = np.cumsum(sizes)
        parts = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        return {i: self._packed(rows[parts[i]], counts[parts[i]], j) for i in others}

    def compare(self, i: int, j: int, candidates: Candidates | None = None) -> Pair:
        """The rows of party j that the rows of party i resemble."""
        key, progress = draw_key(self.matching.seed, self.number, i, j), self.matching.progress
        queries = self._queries.get(i) or self._queries.setdefault(i, self.index.queries(i, query_names(self.names[i])))
        candidates = candidates or self._candidates(j)  # not kept: it takes much memory, and little time to make
        found = self.index.compare(queries, candidates, self.k, draw_key=key, n_jobs=1, progress=progress)
        return self._packed(*found, j)

    def _candidates(self, j: int) -> Candidates:
        most = self.matching.params.max_candidates
        return self.index.candidates(j, self.names[j], max(most, self.k) if most else None)

    def _packed(self, rows: Ints, counts: AnyArray, j: int) -> Pair:
        n_rows = len(self.names[j])
        packed = wire.pack(rows.astype(smallest_type(n_rows)))
        return Pair(packed, float(counts[:, 0].mean()), most_uses(rows, n_rows))

    def _collect(self, i: int, pairs: Mapping[int, Pair]) -> Found:
        """What was found for party i."""
        named = {self.parties[j]: pair for j, pair in pairs.items()}
        return Found(
            self.parties[i],
            {other: pair.similar for other, pair in named.items()},
            {other: pair.equal_hashes for other, pair in named.items()},
            max((pair.most_uses for pair in named.values()), default=0),
        )


def _read(reply: msg.HiddenRows, n_rows: int) -> tuple[Names, tuple[list[Names], Any]]:
    """The names of the rows, and the names of hash values with the number of the one that every row has."""
    dtype = reply.codes.dtype if reply.codes.dtype[0] == "u" else "u4"
    codes = wire.unpack(reply.codes, dtype, (n_rows, len(reply.names)))
    names = [wire.unpack(array, "u8", (None,)) for array in reply.names]
    if (codes >= np.array([len(own) for own in names])).any():
        raise ProtocolError("Hidden rows arrived whose codes go beyond their names.")
    return wire.unpack(reply.ties, "u8", (n_rows,)), (names, codes)
