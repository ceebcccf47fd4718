"""Keys that a party keeps in its folder of a run, for its owner alone: a resumed training has the same noise."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from simfl.errors import FileError
from simfl.privacy.tokens import SECRET_BYTES
from simfl.storage import require_private_file, write_atomically

_TOGETHER: Final = "together.key"  # the parties' secret, to read what was kept, if they have one; and the party's own
_NOISE: Final = "noise.key"  # behind the noise of a run with epsilon


def write_keys(folder: Path, secret: bytes | None, private: bytes) -> None:
    """Keep the parties' secret, if they have one, and the party's own."""
    write_atomically(folder / _TOGETHER, (secret or b"") + private, private=True)


def read_keys(folder: Path) -> tuple[bytes | None, bytes] | None:
    """The parties' secret, if there was one, and the party's own, if they were kept."""
    kept = _read(folder / _TOGETHER, SECRET_BYTES, 2 * SECRET_BYTES)
    return None if kept is None else (kept[:-SECRET_BYTES] or None, kept[-SECRET_BYTES:])


def keep_noise_key(folder: Path, drawn: bytes) -> bytes:
    """The key of a run's noise: the one that is kept there, else this one, which is kept from now on."""
    kept = _read(folder / _NOISE, SECRET_BYTES)
    if kept is None:
        write_atomically(folder / _NOISE, drawn, private=True)
    return kept or drawn


def _read(path: Path, *sizes: int) -> bytes | None:
    """What is kept, if it has one of these sizes; None: nothing is."""
    if not path.exists():
        return None
    require_private_file(path)
    kept = path.read_bytes()
    if len(kept) not in sizes:
        raise FileError(f"{path} is damaged: without the keys of this run it cannot be resumed. Start a new training.")
    return kept
