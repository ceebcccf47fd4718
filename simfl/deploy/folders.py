"""The folder of a run, from which an interrupted training continues."""

import re
import shutil
from pathlib import Path

from simfl.deploy.forget import refuse_forgotten
from simfl.errors import ProtocolError
from simfl.storage import private_folder

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


def open_run_folder(parent: Path, run: str) -> Path:
    """The folder of a run, new or as an earlier job left it. Who owns it calls `remove_partial_files`."""
    if not RUN_NAME.fullmatch(run):
        raise ProtocolError(f"A training cannot be called {run!r}.")
    refuse_forgotten(parent, run)
    folder = parent / "runs" / run
    private_folder(folder)
    return folder


def remove_partial_files(folder: Path) -> None:
    """Remove what a kill left half written. Only unfinished files have a name that begins with a dot."""
    for left in folder.glob(".*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)
