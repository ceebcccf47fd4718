"""Whether the machine was quiet during a measurement, and what to do if not."""

from __future__ import annotations

import ctypes
import os
import resource
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from simfl.params import cores

STAT = Path("/proc/stat")  # Linux: processor time of each core
_SET_CHILD_SUBREAPER = 36  # prctl(2)
BUSY = 0.1  # share of the cores that other programs may use


@contextmanager
def watched() -> Iterator[dict[str, Any]]:
    """What the machine did besides the processes that these lines start: `load` before and after, `others` in cores.

    Counted is what has ended within them. A process whose parent ends first counts too, where the system is Linux.
    """
    found: dict[str, Any] = {}
    before, begun, all_then, own_then = os.getloadavg()[0], time.monotonic(), busy_seconds(STAT), _ended()
    with _orphans_adopted():
        yield found
    found["load"] = [before, os.getloadavg()[0]]
    all_now = busy_seconds(STAT)
    if all_now is not None and all_then is not None:
        others = (all_now - all_then) - (_ended() - own_then)
        found["others"] = max(others, 0.0) / (time.monotonic() - begun)


def busy_seconds(stat: Path, of: Collection[int] | None = None) -> float | None:
    """Processor seconds that all programs have used on these cores since the start of the machine.

    None: on those that this process may use; in a container the file tells of more. Where nobody counts: None.
    """
    of = os.sched_getaffinity(0) if of is None and hasattr(os, "sched_getaffinity") else of or ()
    try:
        lines = dict(line.split(" ", 1) for line in stat.read_text().splitlines() if line.startswith("cpu"))
        return sum(_ticks(lines[f"cpu{core}"]) for core in of) / os.sysconf("SC_CLK_TCK") if lines else None
    except (OSError, ValueError, KeyError):
        return None


def _ticks(line: str) -> int:
    user, nice, system, _idle, _wait, *more = map(int, line.split()[:8])
    return user + nice + system + sum(more)


def _ended() -> float:
    """Processor seconds of the processes that this one has started, and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def _orphans_adopted() -> Iterator[None]:
    """Be the parent of all processes whose own parent ends: as FLARE's do, and nobody else would tell their time."""
    known, adopt = _children(), getattr(ctypes.CDLL(None), "prctl", lambda *_: None)
    adopt(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        adopt(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        for child in _children() - known:
            with suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)


def _children() -> set[int]:
    found: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended in between
            found |= {int(number) for number in file.read_text().split()}
    return found


def is_busy(machine: dict[str, Any], n_cores: int | None = None) -> bool:
    """Whether other programs used more of the cores than they may.

    >>> is_busy({"load": [9.0, 9.0], "others": 0.1}, n_cores=2), is_busy({"load": [9.0, 9.0]}, n_cores=2)
    (False, True)
    """
    n_cores = n_cores or cores()
    others = machine.get("others")
    return others > BUSY * n_cores if others is not None else machine["load"][0] > n_cores / 2


def advice_before(load: float, n_cores: int) -> str:
    """What to expect of a run that begins at this load.

    >>> advice_before(0.2, 2)
    'Load 0.2 on 2 cores: quiet.'
    """
    if load <= n_cores / 2:
        return f"Load {load:.1f} on {n_cores} cores: quiet."
    return (
        f"Load {load:.1f} on {n_cores} cores: busy. Seconds will be too long; ratios and processor time suffer less. "
        "Stop what else runs (`top` shows it) and start again. With --no-write docs/results stays as it is."
    )


def advice_after(machine: dict[str, dict[str, Any]]) -> str:
    """Which measurements to repeat.

    >>> advice_after({"search": {"load": [0.1, 1.0], "others": 0.05}})
    'The machine was quiet throughout.'
    """
    busy = [name for name, about in machine.items() if is_busy(about)]
    if not busy:
        return "The machine was quiet throughout."
    return (
        "Other programs used the cores, too, during these. Measure them again when the machine is quiet, before "
        f"their figures are committed: python -m benchmarks.bench --only {' '.join(busy)}"
    )
