"""Means over the seeds, their intervals, and how they stand against a published figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from benchmarks.pages import stamp
from benchmarks.published.figures import PUBLISHED
from benchmarks.published.measure import POOLED

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Estimate:
    """A mean, and half the width of its 95 % interval: over seeds and over test rows together."""

    mean: float
    half: float

    @property
    def low(self) -> float:
        """Where the interval begins."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Where it ends."""
        return self.mean + self.half

    def against(self, published: float, *, lower_is_better: bool = False) -> str:
        """In a word.

        >>> Estimate(0.8, 0.01).against(0.78), Estimate(0.8, 0.03).against(0.78), Estimate(22, 1).against(25)
        ('better', 'level', 'worse')
        >>> Estimate(22, 1).against(25, lower_is_better=True)
        'better'
        """
        if self.low <= published <= self.high:
            return "level"
        return "better" if (self.mean > published) != lower_is_better else "worse"


class Found:
    """Everything that was measured."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = [row for row in rows if "failed" not in row]
        self.failed = [row for row in rows if "failed" in row]

    def of(self, **told: Any) -> list[Row]:
        """The rows with these values."""
        return [row for row in self.rows if all(row.get(name) == value for name, value in told.items())]

    def names(self) -> list[str]:
        """The tables that were measured, in order."""
        return list(dict.fromkeys(row["data"] for row in self.rows))

    def methods(self, **told: Any) -> list[str]:
        """The methods that were measured there, in order."""
        return list(dict.fromkeys(row["method"] for row in self.of(**told)))

    def seeds(self, data: str) -> int:
        """How many."""
        return len({row["seed"] for row in self.of(data=data)})

    def estimate(self, where: str = POOLED, **told: Any) -> Estimate | None:
        """The mean over the seeds; None where nothing was measured."""
        rows = [row for row in self.of(**told) if where in row]
        if not rows:
            return None
        values = np.array([row[where] for row in rows])
        spread = float(values.var(ddof=1)) / len(values) if len(values) > 1 else 0.0
        within = float(np.mean([row.get(f"{where}_sd", 0.0) ** 2 for row in rows]))
        return Estimate(float(values.mean()), half_width(spread, within, len(values)))

    def when(self, *names: str) -> str:
        """Dates and versions of the measurements of these tables; of all, if none is named."""
        return stamp(row for row in self.rows if not names or row["data"] in names)


def half_width(spread: float, within: float, n_seeds: int) -> float:
    """Half of a 95 % interval from two variances of a mean: over seeds, and over test rows.

    A variance of two seeds is hardly known. So this is Student's t, with Welch and Satterthwaite's degrees of freedom:
    1.96 deviations where the test rows decide, and up to 12.7 where two seeds do.

    >>> [round(half_width(spread, 1 - spread, 2), 2) for spread in (0.0, 0.1, 0.5, 1.0)]
    [1.96, 1.98, 2.78, 12.71]
    """
    if not spread:
        return 1.96 * float(np.sqrt(within))
    degrees = (n_seeds - 1) * ((spread + within) / spread) ** 2
    return float(stdtrit(degrees, 0.975) * np.sqrt(spread + within))


def verdict(found: Found, data: str, where: str, method: str, settings: str) -> str:
    """How a method stands against the best published federated figure."""
    publication = PUBLISHED[data]
    got = found.estimate(where, data=data, method=method, settings=settings)
    if got is None:
        return "-"
    best = publication.best(where).scores[where]
    return got.against(best, lower_is_better=publication.lower_is_better)
