"""Masked sums: every vector that a party sends looks random, and only the sum over all parties means something.

Each pair of parties has a common key (`keys.py`). From it both draw the same random numbers; one adds them, the other
subtracts them, modulo a power of two, so that they cancel in the sum over all. The hub, which adds up, sees random
numbers. Where a builder is the receiver it takes part with a vector of zeros that is never sent: the hub's sum is then
random, too, until the builder adds its own masks.

Masks are never used twice: every use has a step number that grows, and who takes part is mixed in as well.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from simfl.arrays import AnyArray
from simfl.errors import PrivacyError
from simfl.messages import Masking
from simfl.privacy.exact import WIDE_BYTES, wide_from_bytes
from simfl.privacy.keys import Keys
from simfl.privacy.tokens import derive, keystream


class Masks:
    """The masks of one party, for one set of keys."""

    def __init__(self, keys: Keys) -> None:
        self.own = keys.own
        self.keys = {other: derive(pair, "mask") for other, pair in keys.pairs.items()}
        self.last: dict[str, int] = {}

    def draw(self, mask: Masking, purpose: str, n: int, dtype: Any = np.uint32) -> AnyArray:
        """The mask of this party, n words; over all parties they add up to zero."""
        self._check(mask, purpose)
        total = np.zeros(n, dtype=dtype)
        for sign, stream in self._streams(mask, purpose, total.nbytes):
            (np.add if sign > 0 else np.subtract)(total, np.frombuffer(stream, dtype=dtype), out=total)
        return total

    def draw_wide(self, mask: Masking, purpose: str, n: int) -> list[int]:
        """The same for n wide numbers."""
        self._check(mask, purpose)
        total = [0] * n
        for sign, stream in self._streams(mask, purpose, n * WIDE_BYTES):
            total = [t + sign * v for t, v in zip(total, wide_from_bytes(stream), strict=True)]
        return total

    def _streams(self, mask: Masking, purpose: str, n_bytes: int) -> Iterable[tuple[int, bytes]]:
        nonce = hashlib.blake2b(repr((mask.step, purpose, mask.parties)).encode(), digest_size=12).digest()
        for other in mask.parties:
            if other != self.own:
                yield (1 if self.own < other else -1), keystream(self.keys[other], n_bytes, nonce)

    def _check(self, mask: Masking, purpose: str) -> None:
        if sorted(mask.parties) != sorted([self.own, *self.keys]) or not self.keys:
            raise PrivacyError(
                f"Party {self.own!r} was asked for a sum over {mask.parties}: sums are over exactly those who "
                f"exchanged keys, {sorted([self.own, *self.keys])}, and at least two. It sends nothing."
            )
        if mask.step <= self.last.get(purpose, -1):
            raise PrivacyError(
                f"Party {self.own!r} was asked for the same masks twice (step {mask.step}). It sends nothing."
            )
        self.last[purpose] = mask.step
