"""Sums as they leave a party while another one of the study is absent: coarse, never exact.

Totals that everybody reads are exact over all parties of the study. If those over fewer were exact, too, the difference
would be exactly what the absent party has: for every reader, and a hub can leave parties out as it likes. What is sent
instead follows from the party's own rows alone: other choices of parties do not show more of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from simfl.arrays import AnyArray, Doubles
from simfl.joint.guard import SUM_NOISE
from simfl.preprocessing.scaling import WITHOUT_WEIGHT, Moments, common_scale

STEPS = 16  # of a sum, at most
PARTS = 8  # of a deviation, at most, that a mean is rounded to
FEW_ROWS = 4  # no step is smaller than what this many mean rows add
_LEAST = 1e-300


def rounded_up(sums: AnyArray, row: AnyArray | float) -> Doubles:
    """Sums of numbers from zero on, of which a mean row adds `row`. Nothing looks like a few rows, too.

    >>> rounded_up(np.array([1000.0, 5.0, 0.0]), 1.0)
    array([1024.,    8.,    4.])
    """
    step = _step(np.maximum(sums / STEPS, FEW_ROWS * row))
    up: Doubles = np.where(sums + row > 0, step * np.maximum(np.ceil(sums / step), 1.0), 0.0)
    return up


def rounded_mean(mean: AnyArray, deviation: AnyArray, n_rows: AnyArray | int) -> Doubles:
    """The mean of n rows.

    >>> rounded_mean(np.array([2011.3]), np.array([10.0]), 1000)
    array([2012.])
    """
    step = _step(deviation * np.maximum(1 / PARTS, FEW_ROWS / np.maximum(n_rows, 1)))
    rounded: Doubles = step * np.rint(mean / step)
    return rounded


def moments(own: Moments) -> Moments:
    """Of columns: their number, mean and deviation are rounded. A column that does not vary here has no part."""
    scale = common_scale(own, 1)
    varies = (scale.deviation < WITHOUT_WEIGHT) & (own.counts > 1)
    deviation = np.where(varies, scale.deviation, 1.0)
    counts = np.where(varies, rounded_up(own.counts, 1.0), 0.0)
    mean = rounded_mean(scale.mean, deviation, own.counts)
    spread = rounded_up(deviation, deviation / np.maximum(own.counts, 1.0))
    return Moments(counts, counts * mean, counts * (mean * mean + spread * spread))


def label_sums(parts: Sequence[AnyArray], weight: Doubles, signed: Sequence[bool]) -> Doubles:
    """Sums of what labels are made of, and the weight of all rows. `signed`: numbers that can be below zero."""
    total = float(weight.sum())
    coarse = rounded_up(np.array(total), total / max(len(weight), 1))
    means = [_mean(part.astype(np.float64), weight, either) for part, either in zip(parts, signed, strict=True)]
    return np.array([*(coarse * mean for mean in means), coarse])


def _mean(values: Doubles, weight: Doubles, signed: bool) -> float:
    """The mean of n rows, rounded to a part of their deviation; of what is never below zero, to one of itself."""
    total, n = max(float(weight.sum()), _LEAST), max(len(values), 1)
    mean = float(values @ weight) / total
    if not signed:
        return float(rounded_up(np.array(mean), mean / n))
    deviation = float(np.sqrt((values - mean) ** 2 @ weight / total)) or abs(mean)
    return float(rounded_mean(np.array(mean), np.array(deviation), n))


def class_sums(sums: Doubles, row: float) -> Doubles:
    """The weight of each class, and of all rows."""
    each = rounded_up(sums, row)
    return np.append(each, each.sum())


def metric(sums: Doubles, n_rows: int, secret: bytes) -> Doubles:
    """A metric after each round, with noise as large as two mean rows: the same sum always has the same."""
    keys = [hashlib.blake2b(own.tobytes(), key=secret[:64], digest_size=8).digest() for own in sums]
    drawn = [np.random.default_rng(int.from_bytes(key, "little")).standard_normal() for key in keys]
    return sums * np.exp(SUM_NOISE / max(n_rows, 1) * np.array(drawn))


def _step(least: AnyArray) -> Doubles:
    """The power of two that is not below."""
    step: Doubles = np.exp2(np.ceil(np.log2(np.maximum(least, _LEAST))))
    return step
