"""Whether the machine was quiet during a measurement, and what to do if not."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simfl.params import cores

STAT = Path("/proc/stat")  # Linux: processor time of the whole machine
BUSY = 0.1  # share of the cores that other programs may use


@contextmanager
def watched() -> Iterator[dict[str, Any]]:
    """What the machine did besides the child processes of these lines: `load` before and after, `others` in cores."""
    found: dict[str, Any] = {}
    before, begun, all_then, own_then = os.getloadavg()[0], time.monotonic(), busy_seconds(STAT), _children()
    yield found
    found["load"] = [before, os.getloadavg()[0]]
    all_now = busy_seconds(STAT)
    if all_now is not None and all_then is not None:
        others = (all_now - all_then) - (_children() - own_then)
        found["others"] = max(others, 0.0) / (time.monotonic() - begun)


def busy_seconds(stat: Path) -> float | None:
    """Processor seconds that all programs have used since the start of the machine; None where nobody counts them."""
    try:
        words = stat.read_text().split("\n", 1)[0].split()
        user, nice, system, _idle, _wait, *more = map(int, words[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + sum(more)) / os.sysconf("SC_CLK_TCK")


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
