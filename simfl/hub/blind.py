"""Blind matching at the hub: similar rows from names that mean nothing to it.

Every party sends its rows in a private order, each hash value under a name that only shows which values are equal. The
hub counts equal names, as a party does with the tables of the shared mode, and finds the same similar rows. A party
learns only which rows of the others resemble its own, under ids that are places in the others' private orders. With
fresh ids it does not learn even that: for every tree the hub draws one similar row per row and puts the builder's
rows into a new order, which the builder can undo with a seed that only it gets.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from simfl import messages as msg
from simfl import wire
from simfl.arrays import Ints, give_back, smallest_type
from simfl.errors import ProtocolError
from simfl.hub.asking import sent_by
from simfl.params import cores
from simfl.preprocessing.similarity import HashIndex
from simfl.privacy.tokens import Names, draw_key, fresh_order, number_names, query_names
from simfl.training.gradients import draw_by_name, most_uses

if TYPE_CHECKING:
    from simfl.hub.matching import Matching

FEW_ROWS = 200_000


class Neighbours(msgspec.Struct, frozen=True, kw_only=True):
    """What the hub keeps for fresh ids: the similar rows of every party, and the names of its rows, by place."""

    similar: dict[str, dict[str, msg.Array]]  # party -> other party -> (rows, k)
    names: dict[str, msg.Array]
    n_rows: dict[str, int]


@dataclass
class Found:
    """The similar rows of one party among those of each other, and how similar they are (as in `Matched`)."""

    party: str
    similar: dict[str, msg.Array]
    equal_hashes: dict[str, float]
    most_uses: int


def find(hidden: dict[str, msg.HiddenRows], matching: Matching, number: int) -> Iterator[Found]:
    """The similar rows, party by party: whoever has its own need not wait. Uses up `hidden`, to save memory."""
    n, search, params = len(hidden), _Search(hidden, matching, number), matching.params
    pool = ThreadPoolExecutor(params.n_jobs if params.n_jobs and params.n_jobs > 0 else cores())
    running: deque[tuple[int, dict[int, Future[Any]]]] = deque()
    try:
        for i in range(n):  # while one party's rows are handed out, the next one's are searched
            running.append((i, {j: pool.submit(search.compare, i, j) for j in range(n) if j != i}))
            if len(running) > 1:
                yield search.collect(*running.popleft())
                search.tidy()
        yield search.collect(*running.popleft())
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
        self._sides: dict[tuple[str, int], Any] = {}
        self.tidy()

    @property
    def is_large(self) -> bool:
        """Whether memory counts more than the time to save it."""
        return sum(map(len, self.names)) > FEW_ROWS

    def tidy(self) -> None:
        """Give back what was freed."""
        if self.is_large:
            give_back()

    def compare(self, i: int, j: int) -> tuple[msg.Array, float, int]:
        """The rows of party j that the rows of party i resemble, how similar they are, and how often one is used."""
        most = self.matching.params.max_candidates
        queries = self._kept("queries", i, lambda: self.index.queries(i, query_names(self.names[i])))
        bound = max(most, self.k) if most else None
        candidates = self._kept("candidates", j, lambda: self.index.candidates(j, self.names[j], bound))
        key, progress = draw_key(self.matching.seed, self.number, i, j), self.matching.progress
        rows, counts = self.index.compare(queries, candidates, self.k, draw_key=key, n_jobs=1, progress=progress)
        n_rows = len(self.names[j])
        packed = wire.pack(rows.astype(smallest_type(n_rows)))
        return packed, float(counts[:, 0].mean()), most_uses(rows, n_rows)

    def _kept(self, side: str, party: int, make: Callable[[], Any]) -> Any:
        """Each side is indexed once; but an index of many candidates takes much memory, and little time to make."""
        if side == "candidates" and self.is_large:
            return make()
        found = self._sides.get((side, party))
        return self._sides.setdefault((side, party), make()) if found is None else found

    def collect(self, i: int, running: Mapping[int, Future[Any]]) -> Found:
        """What was found for party i."""
        found = Found(self.parties[i], {}, {}, 0)
        for j, future in running.items():
            other = self.parties[j]
            found.similar[other], found.equal_hashes[other], uses = future.result()
            found.most_uses = max(found.most_uses, uses)
        self._sides.pop(("queries", i), None)
        return found


def _read(reply: msg.HiddenRows, n_rows: int) -> tuple[Names, tuple[list[Names], Any]]:
    """The names of the rows, and the names of hash values with the number of the one that every row has."""
    dtype = reply.codes.dtype if reply.codes.dtype[0] == "u" else "u4"
    codes = wire.unpack(reply.codes, dtype, (n_rows, len(reply.names)))
    names = [wire.unpack(array, "u8", (None,)) for array in reply.names]
    if (codes >= np.array([len(own) for own in names])).any():
        raise ProtocolError("Hidden rows arrived whose codes go beyond their names.")
    return wire.unpack(reply.ties, "u8", (n_rows,)), (names, codes)


def draw(found: Neighbours, builder: str, seed: int) -> tuple[dict[str, msg.Array], bytes]:
    """For one tree: the builder's row that each row of the others goes to, in a new order, and the seed of that."""
    order_seed = secrets.token_bytes(32)
    n = found.n_rows[builder]
    new_place = np.argsort(fresh_order(order_seed, n)).astype(smallest_type(n))
    drawn = {}
    for party, similar in found.similar.items():
        if builder in similar:
            rows: Ints = wire.unpack(similar[builder], similar[builder].dtype, (found.n_rows[party], None))
            names = wire.unpack(found.names[party], "u8", (found.n_rows[party],))
            drawn[party] = wire.pack(new_place[draw_by_name(rows, names, seed)])
    return drawn, order_seed
