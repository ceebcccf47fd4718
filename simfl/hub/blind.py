"""Blind matching at the hub: similar rows from names that mean nothing to it.

Every party sends its rows in a private order, each hash value under a name that only shows which values are equal. The
hub counts equal names, as a party does with the tables of the shared mode, and finds the same similar rows. A party is
told only which rows of the others resemble its own, under ids that are places in the others' private orders. With
fresh ids it is not told even that: for every tree the hub draws one similar row per row and puts the builder's
rows into a new order, which the builder can undo with a seed that only it is given.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from simfl import messages as msg
from simfl import wire
from simfl.arrays import Ints, smallest_type
from simfl.errors import ProtocolError
from simfl.params import PrepareParams, cores
from simfl.preprocessing.similarity import HashIndex, Progress
from simfl.privacy.tokens import Names, asking, draw_key, fresh_order, number_names
from simfl.training.gradients import draw_by_name, most_uses
from simfl.transport.base import Transport

FEW_ROWS = 200_000


class Neighbours(msgspec.Struct, frozen=True, kw_only=True):
    """What the hub keeps for fresh ids: the similar rows of every party, and the names of its rows, by place."""

    similar: dict[str, dict[str, msg.Array]]  # party -> other party -> (rows, k)
    names: dict[str, msg.Array]
    n_rows: dict[str, int]


class Found(NamedTuple):
    """The similar rows of one party among those of each other, and how alike they are (as `Matched` says it)."""

    party: str
    similar: dict[str, msg.Array]
    equal_hashes: dict[str, float]
    most_uses: int


def find(
    hidden: dict[str, msg.HiddenRows],
    n_rows: Mapping[str, int],
    params: PrepareParams,
    seed: int,
    number: int | None,
    progress: Progress | None = None,
) -> Iterator[Found]:
    """The similar rows, party by party: who has its own need not be remembered. Uses up `hidden`, to save memory."""
    parties = list(hidden)
    names, coded = {}, []
    for party in parties:
        reply = hidden.pop(party)
        try:
            names[party] = _names(reply, n_rows[party])
            coded.append(_codes(reply, n_rows[party]))
        except ProtocolError as error:
            raise ProtocolError(f"Party {party!r} sent what cannot be: {error}") from None
    index = HashIndex(number_names(coded))
    del coded, reply
    bound = max(params.max_candidates, params.n_neighbors or 1) if params.max_candidates else None
    # Few rows are made ready once; of many, a side takes much memory and little of the time, so it is made when needed.
    kept = len(parties) if sum(n_rows[party] for party in parties) <= FEW_ROWS else 0

    @lru_cache(maxsize=2)
    def asker(i: int) -> Any:
        return index.queries(i, asking(names[parties[i]]))

    @lru_cache(maxsize=kept)
    def candidates(j: int) -> Any:
        return index.candidates(j, names[parties[j]], bound)

    def search(pair: tuple[int, int]) -> tuple[Any, Any]:
        i, j = pair
        key = draw_key(seed, number, i, j)
        return index.compare(
            asker(i), candidates(j), params.n_neighbors or 1, draw_key=key, n_jobs=1, progress=progress
        )

    def finish(party: str, asked: Mapping[str, Future[tuple[Any, Any]]]) -> Found:
        similar: dict[str, msg.Array] = {}
        equal: dict[str, float] = {}
        uses = 0
        for other, future in asked.items():
            rows, counts = future.result()
            similar[other] = wire.pack(rows.astype(smallest_type(n_rows[other])))
            equal[other] = float(counts[:, 0].mean())
            uses = max(uses, most_uses(rows, n_rows[other]))
        return Found(party, similar, equal, uses)

    pool = ThreadPoolExecutor(params.n_jobs if params.n_jobs and params.n_jobs > 0 else cores())
    asked: deque[tuple[str, dict[str, Future[tuple[Any, Any]]]]] = deque()
    try:
        for i, party in enumerate(parties):  # while one party's rows are handed out, the next one's are sought
            asked.append((party, {o: pool.submit(search, (i, j)) for j, o in enumerate(parties) if j != i}))
            if len(asked) > 1:
                yield finish(*asked.popleft())
        yield finish(*asked.popleft())
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupt waits for the searches under way only


def _names(reply: msg.HiddenRows, n_rows: int) -> Names:
    return wire.unpack(reply.ties, "u8", (n_rows,))


def _codes(reply: msg.HiddenRows, n_rows: int) -> tuple[list[Names], Any]:
    dtype = reply.codes.dtype if reply.codes.dtype[0] == "u" else "u4"
    codes = wire.unpack(reply.codes, dtype, (n_rows, len(reply.names)))
    names = [wire.unpack(array, "u8", (None,)) for array in reply.names]
    sizes = np.array([len(own) for own in names])
    if (codes >= sizes).any():
        raise ProtocolError("Hidden rows arrived whose codes go beyond their names.")
    return names, codes


def hand_out(
    transport: Transport,
    party: str,
    similar: dict[str, msg.Array],
    n_rows: Mapping[str, int],
    parties: list[str],
    number: int | None,
) -> None:
    """Tell a party the rows that its own resemble; with fresh ids none: only that they were found."""
    question = msg.TakeSimilar(
        round=number,
        parties=parties,
        n_rows={other: n for other, n in n_rows.items() if other != party and other in parties},
        similar=similar,
    )
    wire.expect(msg.SimilarTaken, transport.ask(party, question), party)


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
