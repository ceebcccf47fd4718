"""Stage 1 at a party: hash the rows, find the rows of others that they resemble (or take them from the hub), keep them.

In blind matching the rows go out in a private order under names, and the ids that come back are places in the private
orders of the others: `places` leads from these places to rows.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from simfl import messages as msg
from simfl import wire
from simfl.arrays import AnyArray, Ints
from simfl.errors import FileError, ProtocolError
from simfl.party.party import Split
from simfl.preprocessing.ids import Ids
from simfl.preprocessing.lsh import HashFamily, hash_rows
from simfl.preprocessing.scaling import Scale
from simfl.preprocessing.similarity import HashIndex, order_by_likeness
from simfl.preprocessing.tables import HashValues, bucket_numbers
from simfl.privacy.tokens import direction_seed, draw_key, hide_values, private_order, query_names, row_names, secret_of
from simfl.storage import write_atomically
from simfl.training.gradients import most_uses


@dataclass(frozen=True)
class SimilarRows:
    """What a search left at a party."""

    parties: list[str] = field(default_factory=list)  # all of them, in the common order
    n_rows: dict[str, int] = field(default_factory=dict)
    rows: dict[str, Ids] = field(default_factory=dict)  # per other party: (own rows, k)
    near: Ints | None = None  # this party's rows in an order in which similar rows are adjacent
    places: Ints | None = None  # blind matching: the row at each place of the order that the others know


@dataclass(frozen=True)
class Hashing:
    """What is needed of hash values that were sent, until their similar rows are known."""

    round: int
    near: Ints  # the rows in an order in which similar rows are adjacent
    values: HashValues | None = None  # shared matching: the hash values
    order: Ints | None = None  # blind matching: the private order in which they were sent


def hash_values(split: Split, question: msg.Hash, secret: bytes | None) -> HashValues:
    """The hash values of the rows. Blind matching draws the hash functions from the secret."""
    expansion = split.expansion
    d = expansion.width
    seed = question.seed if question.seed is not None else direction_seed(_needed(secret, split.who))
    mean, deviation = (wire.unpack(array, "f8", (d,)) for array in (question.mean, question.deviation))
    family = HashFamily.draw(seed, question.n_hashes, d, question.bucket_width, question.law)
    return HashValues.of(hash_rows(expansion.expand(split.training.X), family, Scale(mean, deviation, np.nan)))


def show(values: HashValues, number: int) -> tuple[Hashing, msg.Hashes]:
    """Shared matching: the hash values go out as they are."""
    reply = msg.Hashes(round=number, lowest=wire.pack(values.lowest), values=wire.pack(values.above))
    return Hashing(number, order_by_likeness(values.above), values), reply


def hide(values: HashValues, number: int, name: str, secret: bytes | None) -> tuple[Hashing, msg.HiddenRows]:
    """Blind matching: the hash values go out under names, the rows in an order that only this party knows."""
    secret = _needed(secret, f"Party {name!r}")
    names, codes = hide_values(secret, values, number)
    order = private_order(len(codes))
    reply = msg.HiddenRows(
        round=number,
        names=[wire.pack(n) for n in names],
        codes=wire.pack(codes[order]),
        ties=wire.pack(row_names(secret, name, number, len(codes))[order]),
    )
    return Hashing(number, order_by_likeness(values.above), order=order), reply


def _needed(secret: bytes | None, who: str) -> bytes:
    if secret is None:
        raise ProtocolError(f"{who} was asked to hide its rows before it shared a secret with the others.")
    return secret


@dataclass(frozen=True)
class Searcher:
    """How much a party may work for a search, and whom it tells."""

    n_jobs: int
    progress: Callable[[int, int], None] | None = None


def search(hashing: Hashing, question: msg.Match, name: str, searcher: Searcher) -> tuple[SimilarRows, msg.Matched]:
    """Shared matching: find the similar rows in the global tables."""
    known, values = [wire.unpack(v, "i4", (None,)) for v in question.bucket_values], hashing.values
    took_part = values is not None and hashing.round == question.round and len(known) == len(values.lowest)
    if values is None or not took_part or not all(map(_ascends, known)):
        raise ProtocolError(f"Party {name!r} was given tables of a search that it did not take part in.")
    own = bucket_numbers(values, known)
    tables = {o: wire.unpack(array, array.dtype, (None, own.shape[1])) for o, array in question.tables.items()}
    sizes = [len(values) for values in known]
    if not all(len(t) and t.dtype.kind == "u" and (t.max(axis=0) < sizes).all() for t in (own, *tables.values())):
        raise ProtocolError(f"Party {name!r} was given tables with buckets that do not exist.")
    index = HashIndex([own, *tables.values()])
    secret, number = secret_of(question.seed), question.round
    queries = index.queries(0, query_names(row_names(secret, name, number, len(own))))
    bound = question.max_candidates and max(question.max_candidates, question.n_neighbors)
    rows: dict[str, Ids] = {}
    equal: dict[str, float] = {}
    uses = 0
    for place, (other, codes) in enumerate(tables.items(), 1):
        found, counts = index.compare(
            queries,
            index.candidates(place, row_names(secret, other, number, len(codes)), bound),
            question.n_neighbors,
            draw_key=draw_key(question.seed, number, *map(question.parties.index, (name, other))),
            n_jobs=searcher.n_jobs,
            progress=searcher.progress,
        )
        rows[other], equal[other] = Ids.pack(found, len(codes)), float(counts[:, 0].mean())
        uses = max(uses, most_uses(found, len(codes)))
    n_rows = {other: len(codes) for other, codes in tables.items()}
    similar = SimilarRows(question.parties, n_rows, rows, hashing.near)
    return similar, msg.Matched(equal_hashes=equal, most_uses=uses)


def _ascends(values: AnyArray) -> bool:
    return len(values) > 0 and bool((values[1:] > values[:-1]).all())


def take(hashing: Hashing, question: msg.TakeSimilar, name: str) -> SimilarRows:
    """Blind matching: the similar rows that the hub found, from places back to rows."""
    if hashing.order is None or hashing.round != question.round:
        raise ProtocolError(f"Party {name!r} was given similar rows of a search that it did not take part in.")
    order = hashing.order
    rows = {}
    for other, array in question.similar.items():
        ids = as_ids(array, len(order), question.n_rows[other], name)
        placed = np.empty_like(ids)
        placed[order] = ids
        rows[other] = Ids.pack(placed, question.n_rows[other])
    n_rows = question.n_rows | {name: len(order)}
    return SimilarRows(question.parties, n_rows, rows, hashing.near, order)


def as_ids(array: msg.Array, n: int, n_rows: int, name: str) -> Ints:
    """Ids of another party's rows, checked: sums are going to be written to these places."""
    ids = wire.unpack(array, array.dtype, (n, None))
    if ids.dtype.kind != "u" or ids.shape[1] < 1 or (ids.size and ids.max() >= n_rows):
        raise ProtocolError(f"Party {name!r} was given similar rows that are none of another party's {n_rows} rows.")
    return ids.astype(np.int32)


# --- kept on disk ----------------------------------------------------------------------------------------------------


def keep(path: Path, similar: SimilarRows, split: Split, secret: bytes | None) -> None:
    """Write what a search found, for later trainings. Holds row ids and the secret, no rows: private."""
    arrays: dict[str, AnyArray] = {
        f"similar_{i}": similar.rows[o].unpacked() for i, o in enumerate(similar.parties) if o in similar.rows
    }
    arrays["order"] = np.array(similar.parties)
    arrays["n_rows"] = np.array([similar.n_rows.get(o, 0) for o in similar.parties])
    arrays["fingerprint"] = np.array(split.fingerprint())
    if similar.near is not None:
        arrays["near"] = similar.near
    if similar.places is not None:
        arrays["places"] = similar.places
    if secret is not None:
        arrays["secret"] = np.frombuffer(secret, dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_atomically(path, buffer.getvalue(), private=True)


def read_kept(path: Path, split: Split) -> tuple[SimilarRows, bytes | None]:
    """Read back what `keep` wrote, and the secret; refuse it if the table has changed since."""
    try:
        with np.load(path, allow_pickle=False) as file:
            kept = dict(file)
        known, parties, sizes = str(kept["fingerprint"]), kept["order"].tolist(), kept["n_rows"].tolist()
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        raise FileError(f"{path} cannot be read. Prepare again: simfl.prepare, or a new training.") from None
    if known != split.fingerprint():
        raise FileError(
            f"The table of {split.who[0].lower()}{split.who[1:]} is not the one that {path} was prepared from. "
            "Prepare again: simfl.prepare, or a new training."
        )
    n_rows = dict(zip(parties, sizes, strict=True))
    rows = {o: Ids.pack(kept.pop(f"similar_{i}"), n_rows[o]) for i, o in enumerate(parties) if f"similar_{i}" in kept}
    secret = kept["secret"].tobytes() if "secret" in kept else None
    return SimilarRows(parties, n_rows, rows, kept.get("near"), kept.get("places")), secret


def sizes_in(question: msg.Match | msg.TakeSimilar) -> dict[str, int]:
    """How many rows each other party has, as the hub says."""
    if isinstance(question, msg.TakeSimilar):
        return question.n_rows
    return {other: table.shape[0] if table.shape else 0 for other, table in question.tables.items()}
