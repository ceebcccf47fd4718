"""Vectors that somebody adds up without being able to read them, or to change them unseen.

A vector has parts: words of 8, 16, 32 or 64 bits, added modulo 2 to that power, or wide numbers of 512 bits (a row of
eight words each). Three things are added to what a party contributes:

- *check words*: per part the sum of its numbers, each times a secret factor that only the parties know. Who changes a
  total would have to guess how its check words change with it: factors and check words have 64 bits, more than the
  numbers, so that even the highest bit of a number leaves 33 bits to guess. The factors are new in every step;
- *pairwise masks* (`masks.py`), which cancel in the total: nobody can read what one party contributed;
- a *cover*, which stays on a total that all parties read: whoever adds sees random numbers. It comes from the parties'
  secret; the first of them adds it. A total that one party reads needs none: the reader's own vector is never sent, so
  that the masks do not cancel before it adds them.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from simfl.arrays import AnyArray
from simfl.errors import PrivacyError, ProtocolError
from simfl.privacy.exact import WIDE_BYTES, from_wide, to_wide, wide_from_bytes, wide_to_bytes
from simfl.privacy.tokens import derive, keystream

Parts = list[AnyArray]
TYPES: Final = tuple(np.dtype(kind) for kind in ("u1", "<u2", "<u4", "<u8"))
WORDS: Final = WIDE_BYTES // 8  # of a wide number
SIGNED: Final = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}  # by the bytes of a word
_FACTOR_BYTES: Final = 8


def to_words(parts: Sequence[AnyArray]) -> Parts:
    """Real numbers become wide ones; words stay as they are."""
    return [_from_wide(to_wide(part.tolist())) if part.dtype == np.float64 else part for part in parts]


def from_words(parts: Parts) -> Parts:
    """Back to real numbers.

    >>> from_words(add([to_words([np.array([0.1])]), to_words([np.array([-2.5])])]))
    [array([-2.4])]
    """
    return [np.array(from_wide(wide_from_bytes(p.tobytes()))) if p.ndim == 2 else p for p in parts]


def check_form(parts: Sequence[AnyArray]) -> None:
    """Refuse what cannot be added."""
    for part in parts:
        wide = part.ndim == 2 and part.shape[1] == WORDS and part.dtype == np.uint64
        if part.dtype not in TYPES or not (part.ndim == 1 or wide):
            raise ProtocolError(f"Numbers of type {part.dtype} and shape {part.shape} arrived: they cannot be added.")


def same_form(one: Sequence[AnyArray], other: Sequence[AnyArray]) -> bool:
    """Whether two vectors can be added."""
    return [(p.dtype, p.shape) for p in one] == [(p.dtype, p.shape) for p in other]


def add(vectors: Sequence[Parts]) -> Parts:
    """The total, part by part.

    >>> add([[np.array([65535, 1], dtype=np.uint16)], [np.array([2, 2], dtype=np.uint16)]])
    [array([1, 3], dtype=uint16)]
    """
    total, *others = vectors
    for other in others:
        total = _each(np.add, lambda a, b: a + b, total, other)
    return total


def subtract(parts: Parts, other: Parts) -> Parts:
    """The difference, part by part."""
    return _each(np.subtract, lambda a, b: a - b, parts, other)


def _each(words: Any, wide: Callable[[int, int], int], a: Parts, b: Parts) -> Parts:
    return [words(x, y) if x.ndim == 1 else _wide(wide, x, y) for x, y in zip(a, b, strict=True)]


def _wide(operation: Callable[[int, int], int], a: AnyArray, b: AnyArray) -> AnyArray:
    both = zip(wide_from_bytes(a.tobytes()), wide_from_bytes(b.tobytes()), strict=True)
    return _from_wide([operation(x, y) for x, y in both])


def _from_wide(numbers: Sequence[int]) -> AnyArray:
    return np.frombuffer(wide_to_bytes(numbers), dtype="<u8").reshape(-1, WORDS)


def n_bytes(parts: Sequence[AnyArray]) -> int:
    """The size of a vector."""
    return sum(part.nbytes for part in parts)


def of_stream(stream: bytes, like: Sequence[AnyArray]) -> Parts:
    """Random bytes as a vector of this form."""
    found, at = [], 0
    for part in like:
        found.append(np.frombuffer(stream, part.dtype, part.size, at).reshape(part.shape))
        at += part.nbytes
    return found


@dataclass
class Covers:
    """The checks and covers of one party, for one exchange of keys. `exchange` stands for the keys: all know it.

    `state` stands for all that the party has applied so far: a total over parties in different states fits no checks.
    """

    secret: bytes = field(repr=False)
    exchange: bytes
    state: bytes = b""
    last: int = -1  # the last step in which they were used

    def use(self, step: int) -> None:
        """Refuse a step that is over: the same cover on two vectors would show their difference."""
        if step <= self.last:
            raise PrivacyError(
                f"A sum was asked for under a cover that was used before (step {step}). It sends nothing."
            )
        self.last = step

    def cover(self, step: int, like: Sequence[AnyArray]) -> Parts:
        """What hides a total that all parties read."""
        return of_stream(keystream(self.key("cover", step), n_bytes(like)), like)

    def key(self, purpose: str, step: int) -> bytes:
        """A key of all parties for one step."""
        return derive(self.secret, f"together: {purpose}", self.exchange, step, self.state)

    def with_checks(self, parts: Parts, step: int, *, first: bool) -> Parts:
        """The vector and its check words. The first party adds a secret start, so that no multiple fits either."""
        checks = self._checks(parts, step)
        if first:
            checks = add([checks, self._start(checks, step)])
        return [*parts, *checks]

    def without_checks(self, total: Parts, step: int) -> Parts:
        """The total, if its check words fit."""
        parts, checks = total[: len(total) // 2], total[len(total) // 2 :]
        wanted = self._checks(parts, step)
        wanted = add([wanted, self._start(wanted, step)])
        if not same_form(wanted, checks) or any((w != c).any() for w, c in zip(wanted, checks, strict=True)):
            raise PrivacyError(
                f"The total of step {step} does not fit its check words: it was changed on the way, or a party added "
                "something else. Start again; if it stays so, do not trust the hub."
            )
        return parts

    def _checks(self, parts: Parts, step: int) -> Parts:
        return [_weighted(part, derive(self.key("checks", step), "part", n)) for n, part in enumerate(parts)]

    def _start(self, like: Parts, step: int) -> Parts:
        return of_stream(keystream(self.key("start", step), n_bytes(like)), like)


def _weighted(part: AnyArray, key: bytes) -> AnyArray:
    """The check word of one part. Words up to 32 bits are signed numbers, whose total must fit such a word, too."""
    factors = np.frombuffer(keystream(key, len(part) * _FACTOR_BYTES), dtype="<u8")
    if part.ndim == 2:
        numbers = wide_from_bytes(part.tobytes())
        return _from_wide([sum(f * n for f, n in zip(factors.tolist(), numbers, strict=True))])
    check: AnyArray = (factors * part.view(SIGNED[part.itemsize]).astype(np.uint64)).sum(keepdims=True, dtype=np.uint64)
    return check


def digest_of_keys(keys: Mapping[str, bytes]) -> bytes:
    """What stands for the public keys of an exchange: new in each, because every party draws a new key."""
    return hashlib.blake2b(repr(sorted(keys.items())).encode(), digest_size=16).digest()


def keyed_digest(key: bytes, content: bytes) -> bytes:
    """Eight bytes that differ where contents differ, and tell nothing without the key."""
    return hashlib.blake2b(content, key=key, digest_size=8).digest()
