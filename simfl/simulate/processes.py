"""Spare processes for the splits of a small table: one core does the work of a split, and the others would wait.

The report's page is made there, too. Processes, not threads: on a small table most of the time goes into Python itself.
They import while this process does.
"""

import atexit
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from simfl.errors import SimFLWarning

T = TypeVar("T")


@dataclass(frozen=True)
class Spare:
    """Processes beside this one; none of them is possible, too."""

    n: int = 0
    pool: ProcessPoolExecutor | None = None

    def begin(self, work: Callable[[int], T], n_parts: int) -> dict[int, Future[T]]:
        """Begin the parts 1, 2, ... that are not for this process: of every n + 1 it keeps one, the first."""
        if self.pool is None:
            return {}
        begun = {part: self.pool.submit(work, part) for part in range(n_parts) if part % (self.n + 1)}
        self.pool.submit(_load_page)
        return begun

    def write_page(self, run: Path) -> Path:
        """The report of a run, by a process that has loaded the charts meanwhile."""
        return self.pool.submit(_write_page, run).result() if self.pool else _write_page(run)


def _load_page() -> None:
    """The charts take a while to import: a process whose parts are done has nothing else to do."""
    import simfl.report.page  # noqa: F401


def _write_page(run: Path) -> Path:
    from simfl.report import page

    return page.write(run)


@contextmanager
def spare_processes(n: int) -> Iterator[Spare]:
    """Start n processes, which end with the block. After an error nothing more is begun."""
    if n < 1:
        yield Spare()
        return
    pool = ProcessPoolExecutor(n, get_context("spawn"), initializer=_get_ready)
    for _ in range(n):
        pool.submit(int)  # a process starts when there is work for it
    try:
        yield Spare(n, pool)
    finally:
        pool.shutdown(cancel_futures=True)


def _get_ready() -> None:
    """In a new process: end silently at Ctrl-C, leave warnings to the first split, and import what a split needs."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    warnings.simplefilter("ignore", SimFLWarning)
    import simfl.simulate.experiment  # noqa: F401

    atexit.register(os._exit, 0)  # everything is handed over by then; to take the libraries down takes a second
