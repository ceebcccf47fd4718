"""When a process of FLARE's begins to answer, and when it must end. Loads nothing, for processes that last."""

import os
import threading
import time

PARENT = "SIMFL_PARENT"  # the environment variable with the number of the process that started this one
PROGRESS = "simfl.progress"  # FLARE's application command with which the submitter asks for progress
READY_FILE = "simfl.ready"  # in FLARE's folder of a job: the hub's end answers that command


def exit_with_parent() -> None:
    """End this process when the one that started it is gone, even if that one is not yet reaped.

    A process takes seconds until it gets here. If its parent told its number, one that was gone by then is noticed.
    """
    parent = int(os.environ.get(PARENT, os.getppid()))
    os.environ[PARENT] = str(os.getpid())  # for the processes that this one starts

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=wait, daemon=True, name="simfl-parent").start()
