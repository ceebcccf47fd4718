"""The one way to write a file: all of it or nothing, and on the disk when the call returns."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from simfl.errors import FileError


def write_atomically(path: Path, data: bytes) -> None:
    """Write into a file beside the target, then rename: a reader sees the old content or the new, never a part."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        try:
            with unfinished.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror}.") from None


def sync_folder(folder: Path) -> None:
    """A new file's name is on the disk only when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
