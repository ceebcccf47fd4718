"""Several splits of the same parties into training and held-out rows: means over them, and intervals.

The splits share rows, so that their spread alone would promise too much. Nadeau and Bengio ("Inference for the
Generalization Error", 2003) widen the variance of the mean by the ratio of held-out to training rows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from scipy.special import stdtrit

from simfl.report.record import Gain, Score
from simfl.simulate.comparison import Result


def mean_results(splits: Sequence[Sequence[Result]]) -> list[Result]:
    """The means over the splits; bytes are rounded."""
    numbers = ("error", "logloss", "auc", "rmse", "seconds", "rounds")
    return [
        replace(
            same[0],
            bytes=round(_mean(same, "bytes")),
            other={name: _mean_of([one.other[name] for one in same]) for name in same[0].other},
            **{name: _mean(same, name) for name in numbers},
        )
        for same in zip(*splits, strict=True)
    ]


def mean_scores(splits: Sequence[Sequence[Score]]) -> list[Score]:
    """The means over the splits."""
    return [replace(same[0], value=_mean(same, "value")) for same in zip(*splits, strict=True)]


def mean_gains(splits: Sequence[Sequence[Gain]], test_share: float) -> list[Gain]:
    """The means over the splits, with intervals over splits; one split keeps its own, over rows."""
    if len(splits) == 1:
        return list(splits[0])
    found = []
    for same in zip(*splits, strict=True):
        low, high = interval([one.gain for one in same], test_share)
        means = {name: _mean(same, name) for name in ("alone", "together", "gain")}
        found.append(replace(same[0], low=low, high=high, **means))
    return found


def interval(values: Sequence[float], test_share: float) -> tuple[float, float]:
    """Where the mean lies with 95 % confidence, for values of splits that hold out this share of the rows.

    >>> [round(end, 3) for end in interval([0.0, 1.0, 2.0], test_share=0.25)]
    [-2.513, 4.513]
    """
    n = len(values)
    error = np.std(values, ddof=1) * np.sqrt(1 / n + test_share / (1 - test_share))
    half = float(stdtrit(n - 1, 0.975) * error)  # Student's t
    middle = float(np.mean(values))
    return middle - half, middle + half


def _mean(same: Sequence[Any], name: str) -> Any:
    return _mean_of([getattr(one, name) for one in same])


def _mean_of(values: Sequence[float | None]) -> Any:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None
