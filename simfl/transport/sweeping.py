"""One thread that forgets FLARE's finished messages, where FLARE 2.9 would start a thread for each.

FLARE remembers every message that it has received for 65 seconds, in case that it comes again, and starts a
`threading.Timer` for each of them. Plain messages (`plain.py`) are not among them, all calls are. A hub that called its
parties 60 times a second had 3,900 threads, each with its memory; services and containers may not have as many.
"""

import threading
import time
from collections import deque
from typing import Any


class Sweeper:
    """Calls back later, in the order of the calls: what comes first is due first, or little later."""

    def __init__(self) -> None:
        self._due: deque[tuple[float, Any]] = deque()
        self._more = threading.Condition()
        self._thread: threading.Thread | None = None

    def schedule(self, task: Any, seconds: float) -> None:
        """Remove this task of FLARE's after these seconds."""
        with self._more:
            self._due.append((time.monotonic() + seconds, task))
            if self._thread is None:
                self._thread = threading.Thread(target=self._sweep, daemon=True, name="simfl-sweep")
                self._thread.start()
            if len(self._due) == 1:
                self._more.notify()

    def _sweep(self) -> None:
        while True:
            with self._more:
                while not self._due:
                    self._more.wait()
                due, task = self._due.popleft()
            time.sleep(max(due - time.monotonic(), 0.0))
            task._remove_task()


class _Scheduled:
    """What FLARE keeps in the place of its timer."""

    def cancel(self) -> None:
        """The task is gone already. It is removed again, which does no harm."""


def sweep_with_one_thread(tasks: Any) -> None:
    """Have this process forget finished messages, which are of FLARE's class `tasks`, with one thread."""
    sweeper = Sweeper()

    def schedule(task: Any, ttl: float | None = None) -> None:
        with task.stop_lock:
            if not task.cleanup_timer:
                task.cleanup_timer = _Scheduled()
                sweeper.schedule(task, task.completed_task_ttl if ttl is None else ttl)

    tasks._schedule_remove_task = schedule
