"""A party's own journal: what left it, answer by answer."""

from pathlib import Path

import msgspec

from simfl.storage import Journal


class Answered(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The party answered a message: kinds and sizes."""

    time: float
    question: str
    answer: str
    bytes_in: int
    bytes_out: int
    shows: list[str] = []  # about protections: see `privacy/observed.py`


def open_journal(path: Path) -> Journal[Answered]:
    """The journal of a party in one run."""
    return Journal(Answered, path)
