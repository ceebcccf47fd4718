"""What is changed of FLARE for the sake of speed: the same result, with less work."""

import threading
import time

import pytest

pytest.importorskip("nvflare")

from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.private.fed.utils.identity_utils import TokenVerifier

from simfl.deploy.program import remember_verified
from simfl.transport.sweeping import sweep_with_one_thread
from tests.deploy.waiting import LONG, within


class Task:
    """A finished message of FLARE's."""

    def __init__(self, ttl):
        self.stop_lock, self.cleanup_timer, self.completed_task_ttl = threading.RLock(), None, ttl
        self.removed = []

    def _remove_task(self):
        self.removed.append(time.monotonic())


@pytest.fixture
def schedule(monkeypatch):
    monkeypatch.setattr(RxTask, "_schedule_remove_task", RxTask._schedule_remove_task)  # put back at the end
    sweep_with_one_thread(RxTask)
    return RxTask._schedule_remove_task


def test_a_thousand_messages_are_forgotten_in_time_by_one_thread(schedule):
    begun, before = time.monotonic(), threading.active_count()
    tasks = [Task(0.5) for _ in range(1000)]
    for task in tasks:
        schedule(task)
        schedule(task)  # once is enough
    assert threading.active_count() <= before + 1
    assert within(LONG, lambda: all(task.removed for task in tasks))
    assert all(len(task.removed) == 1 and task.removed[0] >= begun + 0.5 for task in tasks)


def test_what_flare_has_removed_by_itself_is_not_missed(schedule):
    first, second = Task(60.0), Task(60.0)
    schedule(first, 0.1)
    first.cleanup_timer.cancel()
    schedule(second, 0.2)
    assert within(LONG, lambda: first.removed and second.removed)


def test_a_signature_is_checked_until_it_is_found_valid_and_then_no_more(monkeypatch):
    checked = []

    def verify(self, name, token, signature):
        checked.append(name)
        return signature == "good"

    monkeypatch.setattr(TokenVerifier, "verify", verify)
    remember_verified()

    def valid(*what, cert="hub"):
        verifier = TokenVerifier.__new__(TokenVerifier)
        verifier.cert = cert
        return verifier.verify(*what)

    assert [valid("north", "t", "bad"), valid("north", "t", "bad")] == [False, False]
    assert [valid("north", "t", "good"), valid("north", "t", "good")] == [True, True]
    assert len(checked) == 3
    assert not valid("south", "t", "bad")
    assert valid("south", "t", "good")
    assert valid("north", "t", "good", cert="another")
    assert len(checked) == 6
