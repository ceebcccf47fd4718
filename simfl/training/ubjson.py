"""UBJSON, the part of it that XGBoost writes: objects, lists, texts, integers, and arrays of one type as raw bytes.

No announced size is believed: it is compared with the bytes that are left before anything is allocated. Whatever
XGBoost does not write is refused.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np

DEEPEST = 16  # objects and lists in each other; a model has seven
_NUMBERS = {b"i": ">b", b"U": ">B", b"I": ">h", b"l": ">i", b"L": ">q", b"d": ">f", b"D": ">d"}
_DTYPES = {b"i": "i1", b"U": "u1", b"l": "i4", b"L": "i8", b"d": "f4"}
_MARKS = {np.dtype(dtype): mark for mark, dtype in _DTYPES.items()}


def decode(data: bytes) -> Any:
    """The value behind the bytes. Raises ValueError with what is wrong."""
    reader = _Reader(data)
    value = reader.value(reader.take(1))
    if reader.at != len(data):
        raise ValueError(f"{len(data) - reader.at} bytes follow its end")
    return value


def last_object(data: bytes, first_key: str) -> dict[str, Any]:
    """The last of all objects whose first key is this one; what comes before it is not read."""
    reader = _Reader(data)
    reader.at = data.rfind(_sized(first_key.encode()))
    if reader.at < 0:
        raise ValueError(f"it has no object that begins with {first_key!r}")
    return reader.object()


class _Reader:
    """Reads one value after the other, never beyond the end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.depth = data, 0, 0

    def take(self, n: int) -> bytes:
        """The next n bytes."""
        if not 0 <= n <= len(self.data) - self.at:
            raise ValueError(f"{n} bytes are announced at byte {self.at}, and {len(self.data) - self.at} are left")
        self.at += n
        return self.data[self.at - n : self.at]

    def value(self, mark: bytes) -> Any:
        """The value that this mark announces."""
        if mark == b"S":
            return self.text()
        if mark in _NUMBERS:
            form = _NUMBERS[mark]
            return struct.unpack(form, self.take(struct.calcsize(form)))[0]
        if mark not in (b"{", b"["):
            raise ValueError(f"the mark {mark!r} at byte {self.at - 1} is not one that XGBoost writes")
        self.depth += 1
        if self.depth > DEEPEST:
            raise ValueError(f"it is nested deeper than {DEEPEST} levels")
        found = self.object() if mark == b"{" else self._list()
        self.depth -= 1
        return found

    def _size(self) -> int:
        size = self.take(9)
        if size[:1] != b"L":
            raise ValueError(f"a size without its type at byte {self.at - 9}")
        return int.from_bytes(size[1:], "big", signed=True)

    def text(self) -> str:
        """A text, after the mark that announces it."""
        return self.take(self._size()).decode()

    def object(self) -> dict[str, Any]:
        """The keys and values up to the end of an object."""
        found: dict[str, Any] = {}
        while self.data[self.at : self.at + 1] != b"}":
            key = self.text()
            if key in found:
                raise ValueError(f"{key[:40]!r} occurs twice")
            found[key] = self.value(self.take(1))
        self.at += 1
        return found

    def _list(self) -> Any:
        mark = self.take(1)
        if mark == b"$":
            return self.array()
        if mark != b"#":
            raise ValueError(f"a list without its size at byte {self.at - 1}")
        n = self._size()
        if not 0 <= n <= len(self.data) - self.at:  # every value has at least one byte
            raise ValueError(f"a list of {n} values is announced, and {len(self.data) - self.at} bytes are left")
        return [self.value(self.take(1)) for _ in range(n)]

    def array(self) -> Any:
        """An array of one type, after the mark that announces it."""
        dtype = _DTYPES.get(self.take(1))
        if dtype is None or self.take(1) != b"#":
            raise ValueError(f"an array of an unknown type at byte {self.at - 1}")
        return np.frombuffer(self.take(self._size() * int(dtype[1])), dtype=f">{dtype}").astype(dtype)


def encode(value: Any) -> bytes:
    """The bytes of a value, structs as objects.

    >>> decode(encode({"a": [1, "b"], "c": np.array([2, 3], dtype=np.int32)}))
    {'a': [1, 'b'], 'c': array([2, 3], dtype=int32)}
    """
    if isinstance(value, str):
        return b"S" + _sized(value.encode())
    if isinstance(value, int):
        return b"L" + struct.pack(">q", value)
    if isinstance(value, np.ndarray):
        return b"[$" + _MARKS[value.dtype] + b"#" + _size_of(value) + value.astype(value.dtype.newbyteorder()).tobytes()
    if isinstance(value, list):
        return b"[#" + _size_of(value) + b"".join(map(encode, value))
    fields = msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value
    # What is None was not in the file.
    items = [_sized(key.encode()) + encode(own) for key, own in fields.items() if own is not None]
    return b"{" + b"".join(items) + b"}"


def _size_of(value: Any) -> bytes:
    return b"L" + struct.pack(">q", len(value))


def _sized(text: bytes) -> bytes:
    return _size_of(text) + text
