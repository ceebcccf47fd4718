import os
import signal
import subprocess
import sys
import time

import psutil

# Begins to watch only after its parent is gone, as a process does that loads for seconds.
LATE = """
import time
from simfl.transport.lifetime import exit_with_parent
time.sleep(1)
exit_with_parent()
time.sleep(60)
"""
PARENT = f"""
import subprocess, sys
from simfl.transport.lifetime import exit_with_parent
exit_with_parent()
print(subprocess.Popen([sys.executable, "-c", {LATE!r}], stdout=subprocess.DEVNULL).pid, flush=True)
"""


def test_a_process_whose_parent_died_before_it_looked_ends():
    started = subprocess.run([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, check=True, timeout=60)
    late = int(started.stdout)
    try:
        end = time.monotonic() + 30
        while psutil.pid_exists(late) and psutil.Process(late).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < end, "it is still there"
            time.sleep(0.1)
    except psutil.NoSuchProcess:
        pass
    finally:
        if psutil.pid_exists(late):
            os.kill(late, signal.SIGKILL)
