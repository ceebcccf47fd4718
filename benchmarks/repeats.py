"""Ratios on a shared machine: what is compared runs in turn, several times, and every turn gives a ratio.

Shown are the median and the quartiles of these ratios, not the ratio of two medians: in one turn both sides had the
machine as it was then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Turns:
    """Seconds of every piece of work in every turn, by the clock or of the processor."""

    seconds: dict[str, list[float]]

    def median(self, name: str) -> float:
        """The seconds of one piece of work."""
        return float(np.median(self.seconds[name]))

    def medians(self, share: float = 1.0) -> dict[str, float]:
        """All of them, times a share: of one tree, say."""
        return {name: share * self.median(name) for name in self.seconds}

    def over(self, name: str, *others: str) -> list[float]:
        """One piece of work over others together: the median ratio and its quartiles.

        >>> Turns({"ours": [2.0, 6.0, 9.0], "theirs": [1.0, 2.0, 1.0]}).over("ours", "theirs")
        [3.0, 2.5, 6.0]
        """
        together = np.sum([self.seconds[other] for other in others], axis=0)
        return quartiles(np.array(self.seconds[name]) / together)


def in_turn(
    works: Mapping[str, Callable[[], Any]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[Turns, dict[str, Any]]:
    """Do every piece of work once per turn; the seconds, and what each gave in the last turn."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    results: dict[str, Any] = {}
    for _ in range(repeats):
        for name, work in works.items():
            begun = clock()
            results[name] = work()
            seconds[name].append(clock() - begun)
    return Turns(seconds), results


def quartiles(values: Any) -> list[float]:
    """The median, and the quartiles below and above it.

    >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
    [3.0, 2.0, 4.0]
    """
    found: list[float] = np.quantile(values, [0.5, 0.25, 0.75]).tolist()
    return found


def with_quartiles(value: float | list[float], digits: int = 2) -> str:
    """A ratio for a table. One that was measured once has no quartiles.

    >>> with_quartiles([0.5, 0.4, 0.75]), with_quartiles(0.5)
    ('0.50 (0.40 to 0.75)', '0.50')
    """
    if not isinstance(value, list):
        return f"{value:.{digits}f}"
    middle, low, high = (f"{part:.{digits}f}" for part in value)
    return f"{middle} ({low} to {high})"
