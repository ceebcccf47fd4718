"""What happened in a training, written down as it happens: nothing that a journal holds is lost.

A journal is a file that only grows. Every entry carries its length and a checksum and is on the disk before the next
tree begins. After a kill or a power cut the file ends with whole entries and perhaps a torn one, which is cut off when
the journal is opened again. The hub takes up a training from its journal where it stopped, and the model comes out the
same, bit for bit.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from simfl.callbacks import TreeRecord
from simfl.errors import FileError
from simfl.messages import AdoptedTree, Array, ClassLabel, TreeStructure
from simfl.params import TrainParams
from simfl.storage import sync_folder

_FIRST = b"simfl journal 2\n"
_HEAD = struct.Struct("<II")  # length and checksum of the entry that follows


class Began(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A training began."""

    params: TrainParams
    seed: int
    classes: list[ClassLabel] | None
    base_score: list[float]


class FinishedTree(msgspec.Struct, frozen=True, kw_only=True):
    """A tree of the model: pruned, with its values."""

    structure: TreeStructure
    values: Array


class Grew(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A round's trees are finished."""

    round: int
    turn: int  # how many turns were taken or passed over before
    builders: list[str]
    absent: list[str]  # parties that had no part in it
    gains: list[float] | None = None  # per feature: what its splits gained for all parties
    adopted: list[AdoptedTree]  # as the parties know the trees: unpruned, with structure and values
    trees: list[FinishedTree]


class Scored(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The metrics after a round came in."""

    record: TreeRecord


class Rematched(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The similar rows were found anew, by these parties."""

    round: int
    parties: list[str]
    most_uses: dict[str, int]


class Answered(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A party answered a message: what left it, by kind and size. In a party's own journal."""

    time: float
    question: str
    answer: str
    bytes_in: int
    bytes_out: int
    shows: list[str] = []  # about protections: see `evidence.py`


Entry = Began | Grew | Scored | Rematched | Answered


K = TypeVar("K")


class Journal:
    """Entries in a file that only grows; without a file, in memory alone."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)
        self.entries: list[Entry] = []
        self._file: IO[bytes] | None = None
        if path is not None:
            self.entries, end = self._read(path)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("r+b" if path.exists() else "w+b")
                self._file.truncate(end)
                self._file.seek(end)
                if not end:
                    self._file.write(_FIRST)
                self._to_disk()
                sync_folder(path.parent)
            except OSError as error:
                raise FileError(f"The journal {path} cannot be written: {error.strerror}.") from None

    def append(self, entry: Entry, *, sync: bool = True) -> None:
        """Add an entry; with `sync` it is on the disk when this returns."""
        self.entries.append(entry)
        if self._file is not None:
            data = self._encoder.encode(entry)
            self._file.write(_HEAD.pack(len(data), zlib.crc32(data)) + data)
            if sync:
                self._to_disk()

    def of(self, kind: type[K]) -> Iterator[K]:
        """The entries of this kind."""
        return (entry for entry in self.entries if isinstance(entry, kind))

    def close(self) -> None:
        """Nothing more is to come."""
        self._to_disk()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _to_disk(self) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())

    def _read(self, path: Path) -> tuple[list[Entry], int]:
        """The whole entries of a file, and where they end."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return [], 0
        except OSError as error:
            raise FileError(f"The journal {path} cannot be read: {error.strerror}.") from None
        if not data.startswith(_FIRST):
            if _FIRST.startswith(data):  # torn in its very first line
                return [], 0
            raise FileError(f"{path} is not a journal of this version of SimFL. It is left as it is.")
        entries, at = [], len(_FIRST)
        while at + _HEAD.size <= len(data):
            length, checksum = _HEAD.unpack_from(data, at)
            body = data[at + _HEAD.size : at + _HEAD.size + length]
            if len(body) < length or zlib.crc32(body) != checksum:
                break
            try:
                entries.append(self._decoder.decode(body))
            except msgspec.MsgspecError as error:
                raise FileError(f"{path} has an entry of another version of SimFL: {error}.") from None
            at += _HEAD.size + length
        return entries, at


def missed_trees(entries: Sequence[object]) -> dict[str, list[int]]:
    """Per party the numbers of the trees that it had no part in."""
    missed: dict[str, list[int]] = {}
    for entry in entries:
        if isinstance(entry, Grew):
            for party in entry.absent:
                missed.setdefault(party, []).append(entry.round)
    return missed
