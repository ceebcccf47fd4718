"""The events of a training, as its journal keeps them.

Every tree is on the disk before the next one begins, its metrics with the next entry. The hub resumes a training from
its journal where it stopped, and the model comes out the same, bit for bit. In one process the journal is in memory.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from simfl.callbacks import TreeRecord
from simfl.errors import FileError
from simfl.messages import VERSION, AdoptedTree, ClassLabel
from simfl.params import Params
from simfl.storage import Journal

E = TypeVar("E")


class Began(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A training began."""

    params: Params
    seed: int
    classes: list[ClassLabel] | None
    base_score: list[float]
    protocol: int  # whose trees they are


class Grew(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A round's trees are finished."""

    round: int
    turn: int  # the turn that was taken; turns of absent parties are passed over
    builder: str
    absent: list[str]  # parties that had no part in it
    gains: list[float] | None = None  # per feature: what its splits gained for all parties
    adopted: list[AdoptedTree]  # as the parties know the trees: unpruned, with structure and values
    trees: list[AdoptedTree]  # as they stand in the model: pruned


class Scored(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The metrics after a round came in."""

    record: TreeRecord


class Stopped(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A callback asked to stop here."""


class Passed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A party was lost in this turn. It is not repeated with fewer parties: the next one takes its turn."""

    turn: int


class Rematched(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The similar rows were found again, by these parties."""

    round: int
    parties: list[str]
    most_uses: dict[str, int]


Entry = Began | Grew | Scored | Stopped | Passed | Rematched


def open_journal(path: Path | None = None) -> Journal[Entry]:
    """The journal of a training: a file, or in memory."""
    journal: Journal[Entry] = Journal(Entry, path)
    return of_this_protocol(journal, [began.protocol for began in journal.of(Began)])


def of_this_protocol(journal: Journal[E], begun_with: Iterable[int]) -> Journal[E]:
    """The journal, unless another version of the protocol began the training: no tree would fit the next one."""
    for version in begun_with:
        if version != VERSION:
            journal.close()
            raise FileError(
                f"This training was begun with version {version} of the protocol, and this is version {VERSION}: it "
                "cannot be resumed. Start a new training, without --resume."
            )
    return journal
