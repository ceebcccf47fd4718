"""How files are written: all of it or nothing, and on the disk when the call returns.

A journal is a file that only grows. Every entry carries its length and a checksum, so that after a kill or a power cut
the file is read up to its last whole entry. What follows is cut off, and a copy of the file is kept.

Keys, secrets, row ids and journals are private: only the user who wrote them can read them (0600, folders 0700).
"""

import logging
import os
import secrets
import shlex
import stat
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import msgspec

from simfl.errors import FileError

logger = logging.getLogger("simfl")
PID = "pid"  # in a folder that one process uses alone


def write_atomically(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write into a file beside the target, then rename: a reader sees the old content or the new, never a part.

    A private file can be read by its owner alone, from its first byte on.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        try:
            with open(unfinished, "xb", opener=_open_private if private else None) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
            sync_folder(path.parent)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror}.") from None


def append_private(path: Path, data: bytes) -> None:
    """Add to the end of a private file. It is on the disk when this returns."""
    try:
        with open(path, "ab", opener=_open_private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror}.") from None


def sync_folder(folder: Path) -> None:
    """A new file's name is on the disk only when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- private files ---------------------------------------------------------------------------------------------------

_OTHERS = stat.S_IRWXG | stat.S_IRWXO  # all rights of the group and of everybody else


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def private_folder(folder: Path) -> Path:
    """Make this folder, if it is not there, and close it to everybody but its owner."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise FileError(f"The folder {folder} cannot be made private: {error.strerror}.") from None
    return folder


def require_private(folder: Path, within: Path) -> None:
    """Refuse a folder inside `within` if it, or anything in it, is open to others."""
    loose = [path for path in (folder, *folder.rglob("*")) if path.lstat().st_mode & _OTHERS and not path.is_symlink()]
    if loose and os.name == "posix":
        raise FileError(
            f"Other users of this machine can read {min(loose)}. Run: chmod -R go-rwx {shlex.quote(str(within))}"
        )


def require_private_file(path: Path) -> None:
    """Refuse a file that is open to others."""
    if path.stat().st_mode & _OTHERS and os.name == "posix":
        raise FileError(f"Other users of this machine can read {path}. Run: chmod 600 {shlex.quote(str(path))}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes away from this file until the end. The lock is a file beside it, which stays."""
    try:
        lock = open(path.with_name(f"{path.name}.lock"), "ab", opener=_open_private)  # noqa: SIM115 - closed below
    except OSError as error:
        raise FileError(f"{path} cannot be locked: {error.strerror}.") from None
    with lock:
        if os.name == "posix":
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class InUseError(FileError):
    """Another process uses the folder."""


@contextmanager
def in_use(folder: Path, *, alone: bool = False) -> Iterator[None]:
    """Mark a folder as in use until the end, or until this process dies. `alone`: refuse one that somebody uses."""
    handle = os.open(folder, os.O_RDONLY) if os.name == "posix" else None
    try:
        if handle is not None:
            _mark(handle, folder, alone)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _mark(handle: int, folder: Path, alone: bool) -> None:
    import fcntl

    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InUseError(f"{folder} is in use by another process.") from None
    except OSError as error:  # a file system without locks must not stop a training
        if alone:
            raise FileError(f"Nobody can tell whether {folder} is in use: {error.strerror}.") from None


@contextmanager
def owned(folder: Path, patience: float = 1.0) -> Iterator[None]:
    """Use a folder alone until the end, or until this process dies; its file `pid` says who does.

    `patience`: seconds to wait for one that is about to end, or that only looks whether the folder is used.
    """
    until, note = time.monotonic() + patience, folder / PID
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(in_use(folder, alone=True))
                break
            except InUseError:
                if time.monotonic() >= until:
                    raise InUseError(_owner(folder)) from None
                time.sleep(0.1)
            except FileError:  # a file system without locks must not stop a training
                break
        note.write_text(f"{os.getpid()}\n")
        try:
            yield
        finally:
            note.unlink(missing_ok=True)


def _owner(folder: Path) -> str:
    try:
        pid = (folder / PID).read_text().strip()
    except OSError:
        return f"{folder} is in use by another process."
    return f"{folder} is in use already, by the process {pid}. Stop that one first: kill {pid}"


def is_used(folder: Path) -> bool:
    """Whether a process uses this folder alone now."""
    try:
        with in_use(folder):
            return False
    except InUseError:
        return True


# --- journals --------------------------------------------------------------------------------------------------------

_FIRST = b"simfl journal 3\n"
_HEAD = struct.Struct("<II")  # length and checksum of the entry that follows

E = TypeVar("E")
K = TypeVar("K")


class Journal(Generic[E]):
    """Entries of a type, in a file that only grows; without a file, in memory alone."""

    def __init__(self, kind: Any, path: Path | None = None) -> None:
        self.path = path
        self.entries: list[E] = []
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[E] = msgspec.msgpack.Decoder(kind)
        self._file: IO[bytes] | None = None
        if path is not None:
            self.entries, end = self._read(path)
            self._file = self._open(path, end)

    def append(self, entry: E, *, sync: bool = True) -> None:
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
        """No more entries follow."""
        self._to_disk()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _to_disk(self) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())

    def _open(self, path: Path, end: int) -> IO[bytes]:
        """The file, ready to be written from `end` on."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open(path, "r+b" if path.exists() else "w+b", opener=_open_private)  # noqa: SIM115 - stays open
            file.truncate(end)
            file.seek(end)
            if not end:
                file.write(_FIRST)
            file.flush()
            os.fsync(file.fileno())
            sync_folder(path.parent)
        except OSError as error:
            raise FileError(f"The journal {path} cannot be written: {error.strerror}.") from None
        return file

    def _read(self, path: Path) -> tuple[list[E], int]:
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
        while (body := _body(data, at)) is not None:
            try:
                entries.append(self._decoder.decode(body))
            except msgspec.MsgspecError as error:
                raise FileError(
                    f"{path} has an entry of another version of SimFL: {error}. Start a new training."
                ) from None
            at += _HEAD.size + len(body)
        if at < len(data):
            _keep_damaged(path, data, at, len(entries))
        return entries, at


def _body(data: bytes, at: int) -> bytes | None:
    """The entry at this place; None if there is no whole and undamaged one."""
    if at + _HEAD.size > len(data):
        return None
    length, checksum = _HEAD.unpack_from(data, at)
    body = data[at + _HEAD.size : at + _HEAD.size + length]
    return body if length and len(body) == length and zlib.crc32(body) == checksum else None


def _keep_damaged(path: Path, data: bytes, end: int, n_entries: int) -> None:
    """Say what is about to be cut off, and keep a copy of the whole file."""
    number = 1
    while (copy := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    write_atomically(copy, data, private=True)
    logger.warning(
        "The journal %s is whole up to entry %d; the last %d bytes are torn or damaged and are cut off. A copy is %s.",
        path,
        n_entries,
        len(data) - end,
        copy,
    )
