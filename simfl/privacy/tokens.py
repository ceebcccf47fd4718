"""Blind matching: hash values and rows under names that mean nothing without the parties' secret.

All parties know one secret of 32 bytes, the hub does not. From it come the directions of the hash functions, the names
of hash values (a keyed pseudo-random function: equal values get equal names, and that is all one can see) and the names
of rows that decide among equally similar ones. The paper has no such thing: its parties broadcast the hash values.
"""

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from simfl.arrays import Codes, Ints
from simfl.preprocessing.tables import HashValues, bucket_numbers, translate

SECRET_BYTES = 32
NEAR = 1024  # blocks of a key stream: up to so many are read at once for the words of a few
Names = np.ndarray[Any, np.dtype[np.uint64]]


def secret_of(seed: int) -> bytes:
    """A seed in the place of a secret: for one process, where the same seed is to give the same model.

    >>> direction_seed(secret_of(7))
    7
    """
    return seed.to_bytes(SECRET_BYTES, "little")


def private_of(seed: int, party: str) -> bytes:
    """A seed in the place of what a party draws for itself, in the same way."""
    return derive(secret_of(seed), "private", party)


def direction_seed(secret: bytes) -> int:
    """The seed of the hash functions: all 256 bits of the secret."""
    return int.from_bytes(secret, "little")


def derive(secret: bytes, purpose: str, *parts: Any) -> bytes:
    """A key of 32 bytes for one purpose. Who has it learns neither the secret nor another key."""
    return hashlib.blake2b(repr((purpose, *parts)).encode(), key=secret, digest_size=32).digest()


def keystream(key: bytes, n_bytes: int, nonce: bytes = bytes(12)) -> bytes:
    """`n_bytes` of ChaCha20's key stream."""
    return KeyStream(key).read(n_bytes, nonce)


class KeyStream:
    """ChaCha20's key stream of one key, under many nonces: to set it up takes longer than to read a little of it."""

    def __init__(self, key: bytes) -> None:
        self._cipher: Any = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()

    def read(self, n_bytes: int, nonce: bytes = bytes(12), block: int = 0) -> bytes:
        """Bytes under a nonce: the first ones, or those from a block of 64 on."""
        self._cipher.reset_nonce(block.to_bytes(4, "little") + nonce)
        read: bytes = self._cipher.update(bytes(n_bytes))
        return read


def row_names(secret: bytes, party: str, search: int, n_rows: int) -> Names:
    """One name of 64 bits per row. `search`: the round of the search, 0 in stage 1; each has new names."""
    key = derive(secret, "rows", party, _search(search))
    return np.frombuffer(keystream(key, 8 * n_rows), dtype="<u8").astype(np.uint64)


def _search(number: int) -> int | None:
    """A search's part of a key. Stage 1 is written None: a seed must keep giving the model that it always gave."""
    return number or None


def query_names(names: Names) -> Names:
    """The names of rows as queries: other ones than those that they have as candidates.

    Otherwise two rows would prefer each other among equals.
    """
    mixed = (names ^ (names >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(32))


def hide_values(secret: bytes, hashes: HashValues, search: int) -> tuple[list[Names], Codes]:
    """Per hash function the names of the values that occur, and which of them every row has.

    The names are in rising order, which is random. With 64 bits two values of a function get the same name with a
    probability below 1e-9, even if there are ten thousand of them.
    """
    names, places = [], []
    distinct = hashes.distinct()
    for number, values in enumerate(distinct):
        hidden = value_names(derive(secret, "values", _search(search), number), values)
        order = np.argsort(hidden)
        names.append(hidden[order])
        places.append(np.argsort(order))
    return names, translate(bucket_numbers(hashes, distinct), places)


def value_names(key: bytes, values: Ints) -> Names:
    """The names of hash values: of the key's stream, the word at the value's place. Values lie close together.

    >>> bool(value_names(bytes(32), np.array([-5, 900]))[1] == value_names(bytes(32), np.array([900]))[0])
    True
    """
    places, stream = values.astype(np.int64) + 2**31, KeyStream(key)
    first, last = int(places.min()) >> 3, int(places.max()) >> 3  # blocks of eight words
    if last - first < NEAR:
        words, own = stream.read(64 * (last - first + 1), block=first), places - 8 * first
    else:
        blocks, place = np.unique(places >> 3, return_inverse=True)
        words, own = b"".join(stream.read(64, block=int(block)) for block in blocks), 8 * place + (places & 7)
    names: Names = np.frombuffer(words, dtype="<u8")[own].astype(np.uint64)
    return names


def number_names(parties: Sequence[tuple[Sequence[Names], Codes]]) -> list[Codes]:
    """The codes of all parties, with one number per name of a hash function."""
    n_hashes = parties[0][1].shape[1]
    known = [np.unique(np.concatenate([names[h] for names, _ in parties])) for h in range(n_hashes)]
    return [
        translate(codes, [np.searchsorted(k, own) for k, own in zip(known, names, strict=True)])
        for names, codes in parties
    ]


def draw_key(seed: int, search: int, asks: int, found: int) -> int:
    """The seed of a bounded search between two parties; known to all."""
    parts = derive(secret_of(seed), "bounded", _search(search), asks, found)
    return int.from_bytes(parts[:8], "little")


def private_order(n_rows: int) -> Ints:
    """A random order that nobody else can know: the row at each place."""
    return np.random.default_rng(secrets.randbits(256)).permutation(n_rows).astype(np.int32)
