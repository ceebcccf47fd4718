"""Masked sums: every vector that a party sends looks random, and only the sum over all parties means something.

Each pair of parties has a common key (`keys.py`). From it both draw the same random numbers; one adds them, the other
subtracts them, modulo a power of two, so that they cancel in the sum over all. The hub, which adds up, sees random
numbers. Where a builder is the receiver it takes part with a vector of zeros that is never sent: the hub's sum is then
random, too, until the builder adds its own masks.

Masks are never used twice: every use has a step number that grows, and who takes part is mixed in as well. So is a
digest of what the hub has told a party (`told`): where it has told two of them different things, their masks do not
cancel. Else it could have one party's sums vanish in coarse digits, and read those of another in the total.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from simfl.arrays import AnyArray
from simfl.errors import PrivacyError
from simfl.messages import Masking
from simfl.privacy.additive import Parts, add, n_bytes, of_stream, subtract
from simfl.privacy.exact import WIDE_BYTES, wide_from_bytes
from simfl.privacy.keys import Keys
from simfl.privacy.tokens import KeyStream, derive
from simfl.privacy.words import Form, Words, add_bytes

_encoder = msgspec.msgpack.Encoder()


def told(*parts: Any) -> bytes:
    """A digest of what the hub has told a party: the same at two parties if it has told them the same.

    >>> told("round", 1) == told("round", 1), told("round", 1) == told("round", 2)
    (True, False)
    """
    return hashlib.blake2b(_encoder.encode(parts), digest_size=16).digest()


class Masks:
    """The masks of one party, for one set of keys."""

    def __init__(self, keys: Keys) -> None:
        self.own = keys.own
        self.streams = {other: KeyStream(derive(pair, "mask")) for other, pair in keys.pairs.items()}
        self.last: dict[str, int] = {}

    def draw(self, mask: Masking, purpose: str, said: bytes, n: int, dtype: Any = np.uint32) -> AnyArray:
        """The mask of this party, n words; over all parties that were told the same they add up to zero."""
        return self.draw_parts(mask, purpose, said, [np.empty(n, dtype)])[0]

    def draw_words(self, mask: Masking, purpose: str, said: bytes, n: int, form: Form) -> Words:
        """The same for n words of this form: what they have above their bytes means nothing."""
        total = np.zeros(n, dtype=np.uint64)
        for sign, stream in self._streams(mask, purpose, said, n * form.n_bytes):
            add_bytes(total, stream, form, sign)
        return total

    def draw_wide(self, mask: Masking, purpose: str, said: bytes, n: int) -> list[int]:
        """The same for n wide numbers."""
        total = [0] * n
        for sign, stream in self._streams(mask, purpose, said, n * WIDE_BYTES):
            total = [t + sign * v for t, v in zip(total, wide_from_bytes(stream), strict=True)]
        return total

    def draw_parts(self, mask: Masking, purpose: str, said: bytes, like: Sequence[AnyArray]) -> Parts:
        """The same for a vector of this form."""
        total = [np.zeros_like(part) for part in like]
        for sign, stream in self._streams(mask, purpose, said, n_bytes(like)):
            drawn = of_stream(stream, like)
            total = add([total, drawn]) if sign > 0 else subtract(total, drawn)
        return total

    def _streams(self, mask: Masking, purpose: str, said: bytes, n_bytes: int) -> Iterable[tuple[int, bytes]]:
        self.check_parties(mask)
        if mask.step <= self.last.get(purpose, -1):
            raise PrivacyError(
                f"Party {self.own!r} was asked for the same masks twice (step {mask.step}). It sends nothing."
            )
        self.last[purpose] = mask.step
        nonce = hashlib.blake2b(repr((mask.step, purpose, mask.parties, said)).encode(), digest_size=12).digest()
        for other in mask.parties:
            if other != self.own:
                yield (1 if self.own < other else -1), self.streams[other].read(n_bytes, nonce)

    def check_parties(self, mask: Masking) -> None:
        """Refuse a sum over others than those who exchanged keys."""
        known = sorted([self.own, *self.streams])
        if sorted(mask.parties) != known or not self.streams:
            raise PrivacyError(
                f"Party {self.own!r} was asked for a sum over {mask.parties}: sums are over exactly those who "
                f"exchanged keys, {known}, and at least two. It sends nothing."
            )
