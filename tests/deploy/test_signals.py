"""A hub's or a party's process ends when it is asked to, whenever that comes."""

import signal
import subprocess
import sys
import threading

import pytest

from simfl.deploy import processes

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}
WAITS = "import time; time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); {WAITS}"


class BadMoment:
    """The lock of a process. The first to get it is interrupted, before it can begin to hold it in a `try`."""

    def __init__(self, number):
        self._lock, self._number = threading.Lock(), number

    def acquire(self, blocking=True):
        if blocking and self._lock.locked():
            raise AssertionError("waits for ever")
        got = self._lock.acquire(blocking)
        if got and self._number:
            number, self._number = self._number, None
            signal.raise_signal(number)
        return got

    def release(self):
        self._lock.release()

    __enter__ = acquire

    def __exit__(self, *_):
        self.release()


@pytest.fixture
def running(tmp_path, monkeypatch):
    """Be a party in the foreground whose FLARE is a process that only waits; it is asked to end at a bad moment."""
    started = []

    def run(number):
        def start(kit, environment, log):
            process = subprocess.Popen([sys.executable, "-c", WAITS])
            process._waitpid_lock = BadMoment(number)
            started.append(process)
            return process

        monkeypatch.setattr(processes, "start", start)
        monkeypatch.setattr(processes, "warn_of_expiry", lambda kit, log: None)
        with processes._foreground(tmp_path, "north", "text") as log:
            return processes._run(tmp_path, {}, log)

    yield run
    for process in started:
        assert process.poll() is not None


@pytest.mark.parametrize("number", STATUS)
def test_a_process_that_is_asked_to_end_in_the_midst_of_waiting_ends(running, number, capsys):
    with pytest.raises(SystemExit) as end:
        running(number)
    assert end.value.code == STATUS[number]
    assert "stopped" in capsys.readouterr().out


@pytest.mark.parametrize("number", STATUS)
def test_a_signal_that_is_ignored_stays_so(tmp_path, number):
    """As after `nohup`: whoever closes the terminal does not mean this process."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with processes._foreground(tmp_path, "north", "text"):
            signal.raise_signal(number)
            assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_who_is_asked_twice_ends_once(tmp_path):
    before = [signal.getsignal(number) for number in STATUS]

    def asked_twice():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as end, processes._foreground(tmp_path, "north", "text"):
        asked_twice()
    assert end.value.code == 143
    assert [signal.getsignal(number) for number in STATUS] == before


def test_a_process_whose_end_cannot_be_seen_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(processes, "KILLED", 0.2)
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    with process.stdout:
        process.stdout.readline()
    process._waitpid_lock.acquire()
    processes.stop([process], goodbye=0.1)
    process._waitpid_lock.release()
    assert process.wait() == -signal.SIGKILL
