"""Masked sums: every vector that a party sends looks random, and only the sum over all parties means something.

Each pair of parties has a common key (`keys.py`). From it both draw the same random numbers; one adds them, the other
subtracts them, modulo a power of two, so that they cancel in the sum over all. The hub, which adds up, sees random
numbers. Where a builder is the receiver it takes part with a vector of zeros that is never sent: the hub's sum is then
random, too, until the builder adds its own masks.

Masks are never used twice: every use has a step number that grows, and who takes part is mixed in as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from simfl.arrays import AnyArray
from simfl.errors import PrivacyError
from simfl.privacy.keys import Keys
from simfl.privacy.tokens import derive, keystream
from simfl.privacy.wide import WIDE_BITS, WIDE_WORDS, from_words


class Masks:
    """The masks of one party, for one set of keys."""

    def __init__(self, keys: Keys) -> None:
        self.own = keys.own
        self.keys = {other: derive(pair, "mask") for other, pair in keys.pairs.items()}
        self.last: dict[str, int] = {}

    def draw(self, parties: Sequence[str], step: int, purpose: str, n_bytes: int) -> AnyArray:
        """One's own mask, as so many bytes in words of 32 bits; over all these parties masks add up to nothing."""
        return self._sum(parties, step, purpose, n_bytes, np.uint32)

    def draw_long(self, parties: Sequence[str], step: int, purpose: str, n: int) -> AnyArray:
        """The same for n words of 64 bits."""
        return self._sum(parties, step, purpose, 8 * n, np.uint64)

    def draw_wide(self, parties: Sequence[str], step: int, purpose: str, n: int) -> list[int]:
        """The same for n wide numbers."""
        self._check(parties, step, purpose)
        total = [0] * n
        for sign, stream in self._streams(parties, step, purpose, n * WIDE_BITS // 8):
            numbers = from_words(np.frombuffer(stream, dtype="<u8").reshape(n, WIDE_WORDS))
            total = [t + sign * v for t, v in zip(total, numbers, strict=True)]
        return total

    def _sum(self, parties: Sequence[str], step: int, purpose: str, n_bytes: int, dtype: Any) -> AnyArray:
        self._check(parties, step, purpose)
        total = np.zeros(n_bytes // np.dtype(dtype).itemsize, dtype=dtype)
        for sign, stream in self._streams(parties, step, purpose, n_bytes):
            (np.add if sign > 0 else np.subtract)(total, np.frombuffer(stream, dtype=dtype), out=total)
        return total

    def _streams(self, parties: Sequence[str], step: int, purpose: str, n_bytes: int) -> Iterable[tuple[int, bytes]]:
        nonce = hashlib.blake2b(repr((step, purpose, list(parties))).encode(), digest_size=12).digest()
        for other in parties:
            if other != self.own:
                yield (1 if self.own < other else -1), keystream(self.keys[other], n_bytes, nonce)

    def _check(self, parties: Sequence[str], step: int, purpose: str) -> None:
        unknown = [other for other in parties if other != self.own and other not in self.keys]
        if self.own not in parties or len(set(parties)) < 2 or unknown:
            raise PrivacyError(
                f"Party {self.own!r} was asked for a sum over {list(parties)}: it must be one of them, not alone, and "
                f"have met the others (not met: {unknown}). It sends nothing."
            )
        if step <= self.last.get(purpose, -1):
            raise PrivacyError(
                f"Party {self.own!r} was asked for the same masks twice (step {step}). It sends nothing."
            )
        self.last[purpose] = step
