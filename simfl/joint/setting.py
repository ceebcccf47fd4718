"""What all parties know before the first tree, and the rule that follows from it: how much is asked in a level.

Nobody has to tune it. More rows in a node allow more cuts, more columns need more of them, and more rows in all allow
more nodes per level. The constants were chosen on validation rows and generated data (docs/recipes.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simfl.arrays import Doubles, Ints
from simfl.joint import candidates
from simfl.joint.candidates import Asked, Columns, Nodes
from simfl.joint.cuts import Cuts
from simfl.joint.level import MISSING, Level
from simfl.params import HALVED_FROM, Params
from simfl.training.schedule import lockstep

DEEPEST = 24  # levels of a tree whose depth has no limit
FEW_CUTS, MANY_CUTS = 8, 24  # that a node is asked about
CUTS = 0.8  # times the root of the rows of a node
NARROW, WIDEST = 256, 8  # columns; of more of them as many times more cuts, up to this
FEW_NODES, MANY_NODES = 32, 512  # of a tree that are split in one level
MEAN_BITS = 4  # of the mean gradient of a row, rounded at random: fewer hide more, and sums of many rows lose nothing
LEAST_ROWS = 30.0  # of a child, by the mean hessian
WORD_BITS = 30  # no total is larger, but for the rounding of each row
Draw = Callable[[Asked, Nodes, Columns, Doubles, int], Level]


@dataclass(frozen=True)
class Setting:
    """What all parties know before the first tree."""

    params: Params
    cuts: Cuts
    n_outputs: int
    n_rows: int  # of all parties, to train on
    parties: tuple[str, ...]  # those that are present, in the common order
    most_hessian: float  # of one row
    draw: Draw = candidates.draw  # which cuts are asked about; `candidates.all_cuts` for exact growing

    @cached_property
    def columns(self) -> Columns:
        """What the draws depend on. One more cut behind the last: all known values against the missing ones."""
        levels = np.minimum(self.cuts.levels, MISSING).astype(np.int32)
        missing = np.asarray(self.cuts.has_missing)
        n_cuts = np.array([len(points) for points in self.cuts.points]) + missing
        return Columns(np.where(levels > 0, 0, n_cuts).astype(np.int32), levels, missing)

    def n_cuts(self, H: Doubles) -> Ints:
        """How many cuts nodes with these sums of hessians are asked about: more in a node of more rows."""
        rule = np.rint(CUTS * np.sqrt(np.maximum(H / self.most_hessian, 0.0)))
        n_cuts: Ints = np.minimum(np.maximum(rule, FEW_CUTS) * self.width, self.most_cuts).astype(np.int32)
        return n_cuts

    @property
    def most_cuts(self) -> int:
        """How many cuts a node is asked about at most."""
        return MANY_CUTS * self.width

    @cached_property
    def width(self) -> int:
        """How many times the columns of a narrow table: a few draws would not find those that matter among many."""
        columns = self.columns
        return min(max(int(np.sum((columns.n_points > 0) | (columns.n_levels > 1))) // NARROW, 1), WIDEST)

    @property
    def most_nodes(self) -> int:
        """How many nodes of a tree are split in one level."""
        return min(max(int(math.sqrt(self.n_rows) / 8), FEW_NODES), MANY_NODES)

    @property
    def lockstep(self) -> int:
        """How many rounds share their gradients, when enough are grown."""
        return lockstep(self.params.learning_rate)

    @property
    def share(self) -> float:
        """Of its rows that a party uses for a tree."""
        return self.params.subsample or (1.0 if self.n_rows < HALVED_FROM else 0.5)

    @property
    def deepest(self) -> int:
        """How many levels a tree has before it is pruned."""
        return self.params.max_depth + self.params.extra_depth if self.params.max_depth else DEEPEST

    @property
    def least_rows(self) -> float:
        """About how many rows of all parties a child has, at least: what is smaller is mostly noise."""
        return LEAST_ROWS if self.params.min_group > 1 and len(self.parties) > 1 else 0.0

    @property
    def bits(self) -> int:
        """Of the mean gradient of a row: no more than a total has room for."""
        return min(MEAN_BITS, WORD_BITS - self.n_rows.bit_length())
