import os
import signal
import subprocess
import sys

import psutil

from tests.deploy.waiting import LONG, within

# Begins to watch only after its parent is gone, as a process does that loads for seconds.
LATE = """
import time
from simfl.transport.lifetime import exit_with_parent
time.sleep(1)
exit_with_parent()
time.sleep(600)
"""
PARENT = f"""
import subprocess, sys
from simfl.transport.lifetime import exit_with_parent
exit_with_parent()
print(subprocess.Popen([sys.executable, "-c", {LATE!r}], stdout=subprocess.DEVNULL).pid, flush=True)
"""


def test_a_process_whose_parent_died_before_it_looked_ends():
    started = subprocess.run([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, check=True, timeout=LONG)
    late = int(started.stdout)
    try:
        assert within(LONG, lambda: _has_ended(late)), "it is still there"
    finally:
        if psutil.pid_exists(late):
            os.kill(late, signal.SIGKILL)


def _has_ended(process):
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
