"""The question of one level of a batch of trees: which features of which open nodes are asked about, in which cells."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simfl.arrays import AnyArray, Floats, Ints

N_BINS = 256
MISSING = 255  # the bin of a missing value
MOST_CELLS = 64  # of one slot: a split is a mask of 64 bits


@dataclass(frozen=True, eq=False)
class Level:
    """The open nodes of all trees of a batch, in order of tree and number, and their slots.

    A slot is one feature in one open node. It maps the 256 bins of its feature to cells, numbered from 0.
    """

    tree: Ints  # per open node: its tree in the batch, ascending
    node: Ints  # per open node: its number in its tree
    slot_start: Ints  # per open node: its first slot; one more at the end
    feature: Ints  # per slot
    cell_start: Ints  # per slot: its first cell among all; one more at the end
    cell_of_bin: AnyArray  # uint8: per slot and bin the cell inside the slot

    @cached_property
    def question(self) -> tuple[AnyArray, ...]:
        """As the kernels take it."""
        table = np.ascontiguousarray(self.cell_of_bin, dtype=np.uint8).reshape(-1)
        numbers = (self.tree, self.node, self.slot_start, self.feature, self.cell_start)
        return *(np.ascontiguousarray(a, dtype=np.int32) for a in numbers), table

    @property
    def n_nodes(self) -> int:
        """How many open nodes there are."""
        return len(self.tree)

    @property
    def n_cells(self) -> int:
        """How many cells all slots have."""
        return int(self.cell_start[-1])


class Splits(NamedTuple):
    """What becomes of the open nodes of a level."""

    slot: Ints  # by which slot each is split; -1: it becomes a leaf
    left: AnyArray  # uint64: one bit per cell that goes left
    child: Ints  # the number of its left child in its tree; the right one is the next
    n_numbers: int  # of the tree that has most nodes now


class Followed(NamedTuple):
    """A finished tree as rows follow it, in the numbers of the tree as it was grown. Leaves lead to themselves."""

    step: AnyArray  # uint64 per node: its left child, and in the lower half its feature; the right child is the next
    goes_right: AnyArray  # uint32: one bit per bin, eight words per node
    value: Floats  # of nodes below a leaf, too: that of the leaf
    depth: int


_NONE: Ints = np.zeros(0, np.int32)
_ONE: Ints = np.zeros(1, np.int32)
EMPTY = Level(_NONE, _NONE, _ONE, _NONE, _ONE, np.zeros((0, N_BINS), np.uint8))  # nothing is asked
