"""The area under the ROC curve from sums: how many rows of each class have a margin in each of many bins.

Counts can be added over parties, under masks too, and the area follows from the totals. Rows in one bin count as equal:
a bin is a sixteenth of a log odds wide, so that hardly any order is lost.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from simfl.arrays import Floats

BINS: Final = 256
WIDTH: Final = 1 / 16  # of a bin; those at both ends are open
NAMES: Final = tuple(f"auc {kind} {place}" for kind in ("zeros", "ones") for place in range(BINS))


def counts(margin: Floats, y: Floats, weight: Floats | None) -> dict[str, float]:
    """The weight of the rows of both classes in every bin."""
    place = np.clip(np.floor(margin[:, 0] / WIDTH) + BINS // 2, 0, BINS - 1).astype(np.int64)
    found = np.bincount(place + BINS * (y > 0), weights=weight, minlength=2 * BINS)
    return dict(zip(NAMES, found.astype(np.float64).tolist(), strict=True))


def area(sums: Sequence[float]) -> float:
    """The area from the counts of all rows; one half where a class is missing.

    >>> area([0.0] * 10 + [2.0] + [0.0] * 245 + [0.0] * 10 + [1.0, 1.0] + [0.0] * 244)
    0.75
    """
    zeros, ones = np.array(sums).reshape(2, BINS)
    pairs = float(zeros.sum() * ones.sum())
    above = float(ones @ (np.cumsum(zeros) - zeros / 2))  # zeros below a one, and half of those beside it
    return above / pairs if pairs > 0 else 0.5
