"""A hub's or a party's process ends when it is asked to, whenever that comes."""

import signal
import subprocess
import sys
import threading

import pytest

from simfl.deploy import processes

# What is ignored stays ignored: where these tests themselves run after `nohup`, too.
pytestmark = pytest.mark.usefixtures("heard")

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}
WAITS = "import time; time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); {WAITS}"


@pytest.fixture
def heard():
    """All of these signals are handled, whoever started the tests."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in STATUS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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

    def run(number, before=lambda: None):
        def start(kit, environment, log):
            process = subprocess.Popen([sys.executable, "-c", WAITS])
            process._waitpid_lock = BadMoment(number)
            started.append(process)
            return process

        monkeypatch.setattr(processes, "start", start)
        monkeypatch.setattr(processes, "warn_of_expiry", lambda kit, log: None)
        with processes._foreground(tmp_path, "north", "text") as log:
            before()
            return processes._run(tmp_path, {}, log)

    yield run
    for process in started:
        left = process.poll() is None
        process.kill()
        assert not left


@pytest.mark.parametrize("number", STATUS)
def test_a_process_that_is_asked_to_end_in_the_midst_of_waiting_ends(running, number, capsys):
    with pytest.raises(SystemExit) as end:
        running(number)
    assert end.value.code == STATUS[number]
    assert "stopped" in capsys.readouterr().out


@pytest.mark.parametrize("number", STATUS)
def test_a_signal_that_is_ignored_stays_so(tmp_path, number):
    """As after `nohup`: whoever closes the terminal does not mean this process."""
    signal.signal(number, signal.SIG_IGN)
    with processes._foreground(tmp_path, "north", "text"):
        signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_IGN


@pytest.mark.parametrize("second", STATUS)
def test_who_is_asked_again_while_it_says_that_it_ends_ends_once(tmp_path, second, monkeypatch, capsys):
    tell = processes.Log.tell

    def told(log, event, text, level="info"):
        if event == "ended":
            signal.raise_signal(second)
        tell(log, event, text, level)

    monkeypatch.setattr(processes.Log, "tell", told)
    with pytest.raises(SystemExit) as end, processes._foreground(tmp_path, "north", "text"):
        signal.raise_signal(signal.SIGTERM)
    assert end.value.code == 143
    assert capsys.readouterr().out.endswith("north  stopped\n")
    assert {signal.getsignal(number) for number in STATUS} == {signal.default_int_handler}


@pytest.mark.parametrize("number", STATUS)
def test_who_is_asked_before_anything_has_begun_ends_with_a_word(tmp_path, number, monkeypatch, capsys):
    monkeypatch.setattr(processes, "version", lambda name: signal.raise_signal(number))
    with pytest.raises(SystemExit) as end, processes._foreground(tmp_path, "north", "text"):
        pytest.fail("it was asked before")
    assert end.value.code == STATUS[number]
    assert "stopped" in capsys.readouterr().out


class Finalizer:
    """Python swallows what is raised while an object goes."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_that_python_swallows_does_not_make_a_process_deaf(running, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", lambda what: None)
    with pytest.raises(SystemExit) as end:
        running(signal.SIGTERM, before=Finalizer)  # nobody keeps it
    assert end.value.code == 143


def test_a_process_whose_end_cannot_be_seen_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(processes, "KILLED", 0.2)
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    with process.stdout:
        process.stdout.readline()
    process._waitpid_lock.acquire()
    processes.stop([process], goodbye=0.1)
    process._waitpid_lock.release()
    assert process.wait() == -signal.SIGKILL
