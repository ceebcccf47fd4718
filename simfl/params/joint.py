"""The recipe in which all parties grow every tree together, from sums over all rows."""

from __future__ import annotations

from typing import Final

from simfl.params.tree import Positive, TreeParams

MOST_CUTS: Final = 254  # of one column: a bin must fit one byte, beside missing values
HALVED_FROM: Final = 200_000  # rows of all parties: from here on half of them do for a tree, in two thirds of the time


class JointParams(TreeParams, frozen=True, kw_only=True, tag="joint"):
    """Trees of all parties at once: no search for similar rows, and no single builder."""

    min_group: Positive = 5
