"""Stage 1 of the joint recipe: the parties agree on where the columns' cut points may lie. Three steps, as in growing.

First they add up the moments of their columns, from which a public grid follows; then they count the rows in each cell
of the grid, with noise, so that no count is exact; then those in the parts of the cells that have many. Everybody reads
all totals; while a party of the study is absent, moments are coarse (`coarse.py`). Columns whose cut points the study
declares (`declared.py`) are left out; without any other column only the number of rows is added up.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from scipy import sparse

from simfl.arrays import AnyArray, Longs, Table
from simfl.errors import ProtocolError
from simfl.joint import coarse, noise
from simfl.joint.cuts import Cuts, Grid, cell_counts, choose, consistent, divided, grid, parts
from simfl.joint.decisions import numbers
from simfl.joint.parts import Parts, shaped
from simfl.preprocessing.scaling import Moments, common_scale

COUNTED = 2  # times: in the grid, and in the finer one
MOST_ROWS = 2**40  # of all parties
GRID_EPSILON = 0.25  # of the noise on each of its two counts
LEAST_BETWEEN_CUTS = 3  # rows between two cut points, as a share of min_group: cells are merged later anyway
FEW_KNOWN = 16  # a column with fewer values at all parties together gets no grid


@dataclass(frozen=True, eq=False)
class Agreed:
    """What stage 1 leaves behind, the same at every party."""

    grid: Grid
    counts: Longs  # rows of all parties per cell, with noise
    n_rows: int  # of all parties

    def cuts(self, max_bin: int, min_group: int) -> Cuts:
        """The cut points of a training. No side of a split can have fewer rows than `min_group`."""
        missing = self.counts[self.grid.start[1:] - 1]
        rare = (self.grid.levels == 0) & (self.n_rows - missing < min_group) & (min_group > 1)  # counts have noise
        return choose(self.grid, self.counts, max_bin, max(min_group // LEAST_BETWEEN_CUTS, 1), rare)


class Agreement:
    """One party's part in stage 1. `secret` is behind its noise; `whole`: all parties of the study are present."""

    def __init__(
        self, X: Table, n_levels: AnyArray, parties: tuple[str, ...], secret: bytes, *, whole: bool = True
    ) -> None:
        self.X, self.n_levels, self.parties, self.secret = X, np.asarray(n_levels, np.int32), parties, secret
        self.whole = whole
        self.reader: None = None  # everybody reads
        self.agreed: Agreed | None = None
        self._grid: Grid | None = None
        self._group: Longs = np.zeros(0, np.int64)  # the first of the cells whose total is known, and that total
        self._total: Longs = np.zeros(0, np.int64)
        self._n_rows, self._n_counted = 0, 0
        self._digest = hashlib.blake2b(repr(parties).encode(), digest_size=16)

    @property
    def finished(self) -> bool:
        """Whether the finer grid is counted."""
        return self.agreed is not None

    @property
    def step(self) -> str:
        """In words."""
        if self._grid is None:
            return "moments of the columns"
        return "rows per cell of the finer grid" if self._n_counted else "rows per cell of the grid"

    def contribution(self) -> Parts:
        """What this party adds."""
        if self._grid is None:
            own = _moments(self.X) if self.whole else coarse.moments(_moments(self.X))
            several = own.counts > 1  # the sum of one value would be that value: the others' scale will do
            return [np.concatenate([[self.X.shape[0]], *(part * several for part in vars(own).values())])]
        # Noise of its own for other parties or another grid: the same would show the difference of the counts.
        key = hashlib.blake2b(b"cells" + self.digest(), key=self.secret[:64], digest_size=8).digest()
        law, counts = noise.law(len(self.parties), GRID_EPSILON), cell_counts(self.X, self._grid)
        return [(counts + noise.shares(law, int.from_bytes(key, "little"), len(counts))).astype(np.uint32)]

    def read(self, total: Parts) -> bytes:
        """What follows from a total: itself."""
        if self._grid is None:
            (sums,) = shaped(total, [(np.float64, 1 + 3 * len(self.n_levels))])
            return sums.astype("<f8").tobytes()
        (counts,) = shaped(total, [(np.uint32, int(self._grid.start[-1]))])
        return counts.astype("<u4").tobytes()

    def apply(self, decision: bytes) -> None:
        """Go on to the next step."""
        self._digest.update(hashlib.blake2b(decision, digest_size=16).digest())
        if self._grid is None:
            sums = numbers(decision, np.float64, 1 + 3 * len(self.n_levels))
            if not np.isfinite(sums).all() or not self.X.shape[0] <= sums[0] <= MOST_ROWS:
                raise ProtocolError("The moments of the columns over all parties are not possible.")
            self._n_rows = int(sums[0])
            if not len(self.n_levels):  # nothing to ask: all cut points are declared
                self.agreed = Agreed(Grid((), self.n_levels), np.zeros(0, np.int64), self._n_rows)
                return
            self._grid = _grid(Moments(*sums[1:].reshape(3, -1)), self._n_rows, self.n_levels)
            self._group, self._total = self._grid.start, np.full(len(self.n_levels), self._n_rows)
            return
        words = numbers(decision, np.uint32, int(self._grid.start[-1]))
        self._take_counts(self._grid, consistent(words.view(np.int32).astype(np.int64), self._group, self._total))

    def _take_counts(self, counted: Grid, counts: Longs) -> None:
        self._n_counted += 1
        if self._n_counted == COUNTED:
            self.agreed = Agreed(counted, counts, self._n_rows)
            return
        n_parts = parts(counted, counts)
        self._grid, self._total = divided(counted, n_parts), counts
        self._group = np.concatenate([[0], np.cumsum(n_parts)])

    def digest(self) -> bytes:
        """Of everything that was applied so far."""
        return self._digest.digest()


def _grid(total: Moments, n_rows: int, n_levels: AnyArray) -> Grid:
    scale = common_scale(total, max(n_rows, 1))
    return grid(scale.mean, np.where(total.counts < FEW_KNOWN, 0.0, scale.deviation), n_levels)


def _moments(X: Table) -> Moments:
    """Of the values that are there: an absent entry of a sparse table is missing, as everywhere in training."""
    out = np.zeros((3, X.shape[1]))
    if sparse.issparse(X):
        columns: Any = X.tocsc()
        for j in range(X.shape[1]):
            _add_moments(columns.data[columns.indptr[j] : columns.indptr[j + 1], None], out[:, j : j + 1])
    else:
        _add_moments(X, out)
    counts, sums, squares = out
    return Moments(counts, sums, squares)


@njit(nogil=True, cache=True)
def _add_moments(X, out):  # type: ignore[no-untyped-def]
    for i in range(X.shape[0]):
        for j in range(X.shape[1]):
            value = np.float64(X[i, j])
            if not np.isnan(value):
                out[0, j] += 1.0
                out[1, j] += value
                out[2, j] += value * value
