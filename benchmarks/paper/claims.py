"""Verdicts: does a claim of the paper hold in our runs?

Two methods are compared run by run, on the same split. A difference counts if it is larger than twice its standard
error over the runs; with one run there is no such measure, and the verdict says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NEAR = 0.02  # two points: the widest distance to ALL-IN in the paper's own tables is 1.9
WAY = 0.005  # half a point


@dataclass(frozen=True)
class Verdict:
    """A word, and the numbers behind it: a mean difference (negative is better) and its standard error."""

    word: str
    difference: float
    error: float

    def __str__(self) -> str:
        doubt = "" if np.isnan(self.error) else f" ± {100 * self.error:.1f}"
        return f"{self.word} ({100 * self.difference:+.1f}{doubt})"


def lower(ours: Sequence[float], theirs: Sequence[float]) -> Verdict:
    """Is our error below theirs?

    >>> print(lower([0.10, 0.11, 0.10], [0.15, 0.16, 0.14]))
    holds (-4.7 ± 0.3)
    >>> print(lower([0.10, 0.20], [0.15, 0.14]))
    open (+0.5 ± 5.5)
    >>> print(lower([0.16], [0.15]))
    fails (+1.0)
    """
    return _judge(np.asarray(ours) - np.asarray(theirs), 0.0)


def near(ours: Sequence[float], best: Sequence[float], margin: float = NEAR) -> Verdict:
    """Is our error at most two points above theirs?

    >>> print(near([0.16, 0.17], [0.15, 0.16]))
    holds (+1.0 ± 0.0)
    """
    return _judge(np.asarray(ours) - np.asarray(best), margin)


def _judge(differences: np.ndarray, limit: float) -> Verdict:
    mean = float(differences.mean())
    if len(differences) < 2:
        return Verdict("holds" if mean < limit else "fails", mean, float("nan"))
    doubt = float(differences.std(ddof=1) / np.sqrt(len(differences)))
    if abs(mean - limit) <= 2 * doubt:
        return Verdict("open", mean, doubt)
    return Verdict("holds" if mean < limit else "fails", mean, doubt)


def summary(verdicts: Sequence[Verdict]) -> str:
    """The verdict over all data sets.

    >>> summary([Verdict("holds", -1, 0), Verdict("open", 0, 0)])
    'holds on 1 of 2, open on 1'
    """
    held, still_open = (sum(v.word == word for v in verdicts) for word in ("holds", "open"))
    if held == len(verdicts):
        return f"**holds** on all {held}"
    return f"holds on {held} of {len(verdicts)}" + (f", open on {still_open}" if still_open else "")


def share_closed(ours: float, alone: float, pooled: float) -> float:
    """How much of the way from the better party alone to pooling was gone; not told where there is hardly any way.

    >>> share_closed(0.17, 0.19, 0.15), share_closed(0.15, 0.153, 0.151)
    (0.5, nan)
    """
    return round((alone - ours) / (alone - pooled), 10) if alone - pooled >= WAY else float("nan")
