"""Columns whose cut points the study declares, so that nobody has to ask where their values lie.

Where a column was not asked about, nobody knows whether it has missing values: it is treated as if it had.
"""

from __future__ import annotations

import numpy as np

from simfl.arrays import AnyArray, Floats, Longs
from simfl.joint.cuts import Cuts

Declared = tuple[Floats | None, ...]  # per column its cut points; None: they must be agreed on


def asked_columns(declared: Declared | None) -> Longs | None:
    """The numbers of the columns that are asked about; None: all."""
    if declared is None or all(points is None for points in declared):
        return None
    return np.flatnonzero([points is None for points in declared])


def completed(found: Cuts, n_levels: AnyArray, declared: Declared | None) -> Cuts:
    """The cuts of all columns: those that were agreed on and those that are declared."""
    asked = asked_columns(declared)
    if declared is None or asked is None:
        return found
    has_missing = np.ones(len(declared), dtype=bool)
    has_missing[asked] = found.has_missing
    agreed = iter(found.points)
    points = tuple(next(agreed) if own is None else own for own in declared)
    return Cuts(points, np.asarray(n_levels, np.int32), has_missing)
