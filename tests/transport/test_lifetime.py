import os
import signal
import subprocess
import sys

import psutil
import pytest

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


# A job that never gets as far as to watch by itself: it loads for ten minutes.
LOADING = """
import time
time.sleep(600)
"""
STARTS_A_JOB = """
import os, subprocess, sys
from simfl.transport.lifetime import exit_with_parent
exit_with_parent()
from simfl.deploy.program import start_jobs_here
from nvflare.app_common.job_launcher import process_launcher
start_jobs_here()
started = process_launcher.spawn_process([sys.executable, "-m", "loading", "-m", "kit"], dict(os.environ))
print(started.pid if hasattr(started, "pid") else started.process.pid, flush=True)
os._exit(9)
"""


def test_a_job_that_still_loads_ends_with_the_process_that_started_it(tmp_path):
    pytest.importorskip("nvflare")
    (tmp_path / "loading.py").write_text(LOADING)
    paths = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])}
    with (tmp_path / "pid").open("wb") as out:  # not a pipe: the job would keep it open
        subprocess.run([sys.executable, "-c", STARTS_A_JOB], stdout=out, env=os.environ | paths, timeout=LONG)
    job = int((tmp_path / "pid").read_text())
    try:
        assert within(LONG, lambda: _has_ended(job)), "it is still there"
    finally:
        if psutil.pid_exists(job):
            os.kill(job, signal.SIGKILL)


def test_watching_twice_is_watching_once():
    twice = (
        "from simfl.transport.lifetime import exit_with_parent as watch; watch(); watch(); import time; time.sleep(2)"
    )
    assert subprocess.run([sys.executable, "-c", twice], timeout=LONG).returncode == 0


def _has_ended(process):
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
