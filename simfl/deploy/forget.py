"""`simfl forget`: remove what a run left at a party, at the hub or at the submitter, and write that down.

The record is the file `forgotten` beside `runs/`: private, only ever appended to, and every line has the digest of the
line before. It names the files with their digests, before the first of them is removed; a second line follows when all
are gone. A forgotten run is not taken part in again, so that a resume does not bring the model back.

A ledger is never removed: what a table has spent stays spent. Nor are logs of the whole process, copies that people
have made, and backups: `traces.py` says what is where. Files are unlinked; the disk is not overwritten.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from simfl.deploy.orders import ORDER_FILE
from simfl.deploy.party_file import read_party_file
from simfl.deploy.study import digest_of
from simfl.errors import FileError, PrivacyError
from simfl.storage import append_private, in_use, locked, require_private_file

RECORD = "forgotten"
_LEDGER = b"simfl ledger"


@dataclass(frozen=True)
class Home:
    """Where runs are kept: the folder with `runs/`, and the kit with FLARE's copies of the jobs."""

    who: str
    root: Path
    kit: Path | None

    @classmethod
    def at(cls, where: Path) -> Home:
        """Of a party file, of a hub's kit, or of the folder in which trainings were started."""
        file = where if where.is_file() else where / "party.toml"
        if file.is_file():
            own = read_party_file(file)
            return cls(own.name, file.resolve().parent, Path(own.kit) if own.kit else None)
        if not where.is_dir():
            raise FileError(f"There is no {where}. Name a party.toml, a hub's kit, or the folder of a study.")
        if (where / "startup" / "fed_server.json").exists():
            return cls("hub", where.resolve(), where.resolve())
        return cls("submitter", where.resolve(), None)

    @property
    def runs(self) -> dict[str, list[Path]]:
        """Every run that left something here, with its folders."""
        found: dict[str, list[Path]] = {}
        for folder in _folders(self.root / "runs"):
            found.setdefault(_name_in(folder / ORDER_FILE, "run") or folder.name, []).append(folder)
        for folder in _folders(self.root):  # `simfl train --out`
            if name := _name_in(folder / ORDER_FILE, "run"):
                found.setdefault(name, []).append(folder)
        for job, meta in self._jobs():
            if name := _name_in(meta, "name"):
                found.setdefault(name, []).append(job)
        return found

    def _jobs(self) -> Iterator[tuple[Path, Path]]:
        """FLARE's folders of jobs, each with the file that says which run it was."""
        if self.kit is not None:
            yield from ((job, job / "meta.json") for job in _folders(self.kit))
            yield from ((job, job / "meta") for job in _folders(self.kit / "store" / "jobs"))


class Traces(msgspec.Struct, frozen=True, kw_only=True):
    """What a run left at one place."""

    run: str
    folders: list[Path]
    files: list[Path]  # to be removed
    kept: list[Path]  # of a ledger
    finished: bool  # whether its model is there


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of the record."""

    state: Literal["removing", "removed"]
    run: str
    date: str = ""
    who: str
    study: str | None  # the digest of its study, where a copy was kept
    files: dict[str, str]  # with their digests
    kept: list[str]
    before: str = ""  # the digest of the line before


def find(home: Home, run: str) -> Traces:
    """What the run left here. It can be named by its folder, too."""
    runs = home.runs
    names = [name for name, folders in runs.items() if run == name or run in {folder.name for folder in folders}]
    if len(names) != 1:
        raise FileError(_unknown(home, run, names))
    folders = runs[names[0]]
    files = [path for folder in folders for path in _files(folder)]
    kept = [path for path in files if _of_ledger(path)]
    finished = any(path.name in ("model.ubj", "model.sealed") for path in files)
    return Traces(
        run=names[0], folders=folders, files=[path for path in files if path not in kept], kept=kept, finished=finished
    )


def _unknown(home: Home, run: str, names: list[str]) -> str:
    if names:
        return f"{run!r} names several runs: {', '.join(sorted(names))}. Give the whole name of one."
    dates = [entry.date for entry in read_record(home.root) if entry.run == run]
    before = f" It was forgotten here at {dates[-1]}." if dates else ""
    others = ", ".join(sorted(home.runs)) or "none"
    return f"There is no run {run!r} at {home.root}.{before} Runs that are there: {others}."


def forget(home: Home, run: str) -> Traces:
    """Write down what is about to be removed, remove it, and write down that it is gone."""
    found = find(home, run)
    with ExitStack() as stack:
        for folder in found.folders:
            _keep_out(stack, folder, found.run)
        entry = _entry(home, found)
        _append(home.root, entry)
        for path in found.files:
            path.unlink(missing_ok=True)
        for folder in found.folders:
            _remove_empty(folder)
        _append(home.root, msgspec.structs.replace(entry, state="removed"))
    return found


def _keep_out(stack: ExitStack, folder: Path, run: str) -> None:
    """Keep trainings out of a folder, or say that one is in it."""
    try:
        stack.enter_context(in_use(folder, alone=True))
    except FileError as error:
        raise FileError(f"The run {run!r} is in progress here: nothing was removed. {error}") from None


def refuse_forgotten(root: Path, run: str) -> None:
    """Refuse to take part again in a run that was forgotten here."""
    if any(entry.run == run for entry in read_record(root)):
        raise PrivacyError(f"the run {run!r} was forgotten here. Start a new training, without --resume")


# --- the record ------------------------------------------------------------------------------------------------------


def read_record(root: Path) -> list[Entry]:
    """All lines of the record; refused where a line is not the one that was written."""
    path = root / RECORD
    if not path.exists():
        return []
    require_private_file(path)
    lines = path.read_bytes().splitlines()
    try:
        entries = [msgspec.json.decode(line, type=Entry) for line in lines]
    except msgspec.MsgspecError:
        raise FileError(f"{path} is damaged. Put it back from a backup.") from None
    if [entry.before for entry in entries] != [_chain(line) for line in [b"", *lines[:-1]]]:
        raise FileError(f"{path} was changed after it was written. Put it back from a backup.")
    return entries


def _append(root: Path, entry: Entry) -> None:
    path = root / RECORD
    with locked(path):
        read_record(root)  # refuses a damaged one
        last = path.read_bytes().splitlines()[-1:] if path.exists() else []
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = msgspec.json.encode(msgspec.structs.replace(entry, date=now, before=_chain(*last or [b""])))
        append_private(path, line + b"\n")


def _entry(home: Home, found: Traces) -> Entry:
    studies = [digest_of(path.read_bytes()) for path in found.files if path.name == "study.toml"]
    return Entry(
        state="removing",
        run=found.run,
        who=home.who,
        study=studies[0] if studies else None,
        files={_shown(path, home): _digest(path) for path in found.files},
        kept=[_shown(path, home) for path in found.kept],
    )


def _chain(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()[:32]


# --- files -----------------------------------------------------------------------------------------------------------


def _folders(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())


def _files(folder: Path) -> list[Path]:
    """All files in a folder and below. A link is a file: what it leads to stays."""
    return sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())


def _name_in(path: Path, key: str) -> str | None:
    """The name of the run, from a file that a submitter or FLARE wrote."""
    try:
        content = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    name = content.get(key) if isinstance(content, dict) else None
    return name if isinstance(name, str) else None


def _of_ledger(path: Path) -> bool:
    """Whether a file is a ledger, its copy or its lock."""
    path = path.with_name(path.name.removesuffix(".lock"))
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_LEDGER)) == _LEDGER


def _shown(path: Path, home: Home) -> str:
    return os.path.relpath(path, home.root)


def _digest(path: Path) -> str:
    if not path.is_file():
        return "no file"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove_empty(folder: Path) -> None:
    """Remove a folder and those in it, as far as nothing was kept there."""
    for inner in (*sorted(folder.rglob("*"), reverse=True), folder):
        if inner.is_dir() and not any(inner.iterdir()):
            inner.rmdir()
