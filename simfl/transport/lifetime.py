"""When a process of FLARE's begins to answer, and when it must end. Loads nothing, for processes that last."""

import os
import threading
import time
from pathlib import Path

PARENT = "SIMFL_PARENT"  # the environment variable with the number of the process that started this one
PROGRESS = "simfl.progress"  # FLARE's application command with which the submitter asks for progress
READY_FILE = "simfl.ready"  # in FLARE's folder of a job: the hub's end answers that command
LEFT_FILE = "simfl.left."  # in the same folder, with the name of a party that has said goodbye to the hub
_WATCH = "simfl-parent"  # the thread that does


def exit_with_parent() -> None:
    """End this process when the one that started it is gone, even if that one is not yet reaped.

    If the parent told its number, one that is gone already is noticed. Called again, it does nothing.
    """
    if any(thread.name == _WATCH for thread in threading.enumerate()):
        return
    parent = int(os.environ.get(PARENT, os.getppid()))
    os.environ[PARENT] = str(os.getpid())  # for the processes that this one starts

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=wait, daemon=True, name=_WATCH).start()


def note_left(job: Path, party: str) -> None:
    """Tell the hub's end of a job that a party has said goodbye."""
    (job / f"{LEFT_FILE}{party}").touch()


def who_left(job: Path) -> set[str]:
    """The parties of a job that have said goodbye. They come back with another job only."""
    return {file.name.removeprefix(LEFT_FILE) for file in job.glob(f"{LEFT_FILE}*")}
