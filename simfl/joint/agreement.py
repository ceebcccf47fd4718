"""Stage 1 of the joint recipe: the parties agree on where the columns' cut points may lie.

They count their rows in the cells of a grid that fits any column, three times, each time in finer cells where the rows
are. What a party sends of its counts is up to its own rule. Everybody reads the totals. Columns whose cut points the
study declares (`declared.py`) are left out; without any other column only the number of rows is added up.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from simfl.arrays import AnyArray, Longs, Table
from simfl.errors import ProtocolError
from simfl.joint.cuts import Cuts, Grid, cell_counts, choose, grid, refined, row_tokens
from simfl.joint.decisions import numbers
from simfl.joint.parts import Parts, shaped
from simfl.outbox.rule import Rule

COUNTED = 3  # times: in the grid, and twice in finer ones
MOST_ROWS = 2**40  # of all parties
BETWEEN_CUTS = 10  # rows of all parties, at least


@dataclass(frozen=True, eq=False)
class Agreed:
    """What stage 1 leaves behind, the same at every party."""

    grid: Grid
    counts: Longs  # rows of all parties per cell, with noise
    n_rows: int  # of all parties

    def cuts(self, max_bin: int) -> Cuts:
        """The cut points of a training."""
        return choose(self.grid, self.counts, max_bin, BETWEEN_CUTS)


class Agreement:
    """One party's part in stage 1."""

    def __init__(self, X: Table, n_levels: AnyArray, parties: tuple[str, ...], rule: Rule) -> None:
        self.X, self.rule = X, rule
        self.agreed: Agreed | None = None
        self._grid = grid(n_levels)
        self._tokens = row_tokens(X, rule.key("rows"))
        self._n_counted = 0
        self._digest = hashlib.blake2b(repr(parties).encode(), digest_size=16)

    @property
    def finished(self) -> bool:
        """Whether the finest grid is counted."""
        return self.agreed is not None

    @property
    def step(self) -> str:
        """Name of the current step, for logs."""
        return f"rows per cell of the grid, {self._n_counted + 1} of {COUNTED}"

    def contribution(self) -> Parts:
        """What this party adds: its number of rows, and those per cell."""
        counts, sums = cell_counts(self.X, self._grid, self._tokens)
        n_rows = self.X.shape[0] if self.X.shape[0] >= self.rule.least else 0
        return [np.array([n_rows], np.uint64), self.rule.counts(counts, sums, self._grid.start).astype(np.uint32)]

    def read(self, total: Parts) -> bytes:
        """A total as bytes, if it has the form of what was added."""
        n_rows, counts = shaped(total, [(np.uint64, 1), (np.uint32, int(self._grid.start[-1]))])
        return n_rows.astype("<u8").tobytes() + counts.astype("<u4").tobytes()

    def apply(self, decision: bytes) -> None:
        """Go on to the next step."""
        self._digest.update(hashlib.blake2b(decision, digest_size=16).digest())
        n_rows = int(numbers(decision[:8], np.uint64, 1)[0])
        counts = numbers(decision[8:], np.uint32, int(self._grid.start[-1])).astype(np.int64)
        own = self.X.shape[0] if self.X.shape[0] >= self.rule.least else 0
        if not own <= n_rows <= MOST_ROWS:
            raise ProtocolError("The number of rows of all parties is not possible.")
        self._n_counted += 1
        if self._n_counted == COUNTED or not len(self._grid.points):
            self.agreed = Agreed(self._grid, counts, n_rows)
        else:
            self._grid = refined(self._grid, counts)

    def digest(self) -> bytes:
        """Of everything that was applied so far."""
        return self._digest.digest()
