"""Attacks on trees grown together: what parties make of the totals of all, their own rows taken off.

Three ears, each of one party or of several that collude:

- `Alone` looks for foreign rows that follow from sums by subtraction: any combination of the sums of one tree, and any
  two boxes of the trees that grow side by side from the same gradients.
- `Evidence` knows a person's features, and weighs each sum that the person would be part of against what its own rows
  let it expect.
- `Equations` knows the features of all foreign rows, and solves for their labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg, sparse
from scipy.sparse import linalg as sparse_linalg

from simfl.arrays import AnyArray, Doubles, Longs
from simfl.audit.listening import People, Told

EXACT = 1e-6  # what is left open of a row whose value follows from the sums
RIDGE = 1e-6  # added to the products of sums: equal sums must not make them singular
PROBES = 6  # random vectors
MOST_PAIRS = 4_000_000  # of boxes of one size with those of the next
SWEEPS = 60  # of the solver


# --- by subtraction --------------------------------------------------------------------------------------------------


@dataclass
class TreeSums:
    """Sums of foreign gradients that one tree has told, and the rows behind each."""

    inside: Any  # sparse, (sums, foreign rows)
    sums: Doubles


def in_the_span(tree: TreeSums) -> tuple[Longs, Doubles]:
    """Foreign rows whose gradient is a combination of the sums of one tree, and what that combination gives.

    Whatever all sums leave open is shown by random vectors that no sum changes with: a row in which all of these are
    zero has nothing left open.
    """
    A, n = tree.inside, tree.inside.shape[1]
    gram = (A @ A.T).toarray()
    gram[np.diag_indices_from(gram)] += RIDGE
    factor = linalg.cho_factor(gram)
    free = np.random.default_rng(0).standard_normal((n, PROBES))
    free -= A.T @ linalg.cho_solve(factor, A @ free)
    found = np.flatnonzero((free**2).mean(axis=1) < EXACT)
    return found, A[:, found].T @ linalg.cho_solve(factor, tree.sums)


def one_apart(boxes: Boxes, marks: AnyArray) -> tuple[Longs, Doubles]:
    """Rows by which two boxes differ, and what the difference of their sums says of the row's gradient.

    `marks`: a random number per row. A box is known by the total of its rows' marks.
    """
    order = np.argsort(marks)
    rows, gradients = [np.zeros(0, np.int64)], [np.zeros(0)]
    start = np.searchsorted(boxes.n, np.arange(int(boxes.n.max(initial=0)) + 2))
    for n in range(1, len(start) - 1):
        smaller = slice(start[n - 1], start[n])
        most = MOST_PAIRS // max(start[n] - start[n - 1], 1)
        larger = slice(start[n], min(start[n + 1], start[n] + most))
        gap = np.subtract.outer(boxes.mark[larger], boxes.mark[smaller]).ravel()
        at = order[np.minimum(np.searchsorted(marks, gap, sorter=order), len(marks) - 1)]
        hit = np.flatnonzero(marks[at] == gap)
        rows.append(at[hit])
        gradients.append(np.subtract.outer(boxes.sum[larger], boxes.sum[smaller]).ravel()[hit])
    return np.concatenate(rows), np.concatenate(gradients)


@dataclass(frozen=True)
class Boxes:
    """Boxes whose sums are known: their rows' marks and number, and the sum of their gradients."""

    mark: AnyArray
    n: Longs
    sum: Doubles

    @classmethod
    def joined(cls, parts: Sequence[Boxes]) -> Boxes:
        """All of them, smallest first, each once: of equal ones the mean of the sums, in which noise partly cancels."""
        marks, sizes, totals = zip(*((part.mark, part.n, part.sum) for part in parts), strict=True)
        mark, first, which = np.unique(np.concatenate(marks), return_index=True, return_inverse=True)
        mean = np.bincount(which, np.concatenate(totals)) / np.bincount(which)
        n = np.concatenate(sizes)[first]
        mean[n == 0] = 0.0
        order = np.argsort(n, kind="stable")
        return cls(mark[order], n[order], mean[order])


class Alone:
    """Looks for rows that totals single out."""

    def __init__(self, parties: Sequence[int], people: People, seed: int = 0) -> None:
        self.parties, self.foreign = parties, people.foreign_to(parties)
        self.own = np.flatnonzero(np.isin(people.party, parties))
        rng = np.random.default_rng([seed, 29])
        self.marks = rng.integers(0, 2**64, len(self.foreign), np.uint64, endpoint=False)
        self.number = np.full(len(people.y), -1)
        self.number[self.foreign] = np.arange(len(self.foreign))
        self.found: list[Found] = []
        self._trees: dict[int, list[tuple[Any, Doubles]]] = {}
        self._boxes: list[Boxes] = []
        self._last: Told | None = None

    def hear(self, told: Told) -> None:
        """One step. A batch is looked at when the next one begins."""
        if self._last is not None and told.number != self._last.number:
            self.look()
        self._last = told
        self._note(told)

    def _note(self, told: Told) -> None:
        batch, n_cells, n = told.batch, told.batch.level.n_cells, len(self.foreign)
        rows, cell = told.pairs_of(self.number)
        G, _ = told.sums(self.parties)
        sent, n_sent = told.sent, int(told.sent.sum())
        value = np.zeros(n_cells)
        value[sent] = G[:n_sent]
        value = told.between_cuts(value)
        inside = sparse.csr_matrix((np.ones(len(rows)), (cell, rows)), shape=(n_cells, n))
        for tree in range(batch.n_trees):
            of = np.flatnonzero((told.tree == tree) & sent)
            self._trees.setdefault(tree, []).append((inside[of], value[of]))
            if batch.depth == 0:
                self._trees[tree].append((sparse.csr_matrix(np.ones((1, n))), G[n_sent + tree :][:1]))
        mark = np.zeros(n_cells, np.uint64)
        np.add.at(mark, cell, self.marks[rows])
        self._boxes.append(boxes_of(told, mark, np.bincount(cell, minlength=n_cells), value))

    def look(self) -> None:
        """Search what was heard of the last batch."""
        told, self._last = self._last, None
        if told is None:
            return
        for tree, parts in self._trees.items():
            inside, sums = sparse.vstack([part for part, _ in parts]).tocsr(), np.concatenate([v for _, v in parts])
            self._keep(told, tree, *in_the_span(TreeSums(inside, sums)))
        self._keep(told, 0, *one_apart(Boxes.joined(self._boxes), self.marks))
        self._trees, self._boxes = {}, []

    def _keep(self, told: Told, tree: int, rows: Longs, gradient: Doubles) -> None:
        """Rows that were found, with own rows in the same node."""
        place = told.place[tree]
        like = [self.own[place[self.own] == place[person]] for person in self.foreign[rows]]
        self.found.append(Found(rows, gradient, like))


@dataclass(frozen=True)
class Found:
    """Foreign rows that totals single out, what these say of their gradients, and own rows in the same node."""

    rows: Longs
    gradient: Doubles
    like: list[Longs]


def boxes_of(told: Told, mark: AnyArray, n: Longs, value: Doubles) -> Boxes:
    """All boxes between two cuts of a column of a node: sums of cells that lie side by side, but for the last one."""
    level = told.batch.level
    size = np.diff(level.cell_start) - 1
    found = [Boxes(np.zeros(1, np.uint64), np.zeros(1, np.int64), np.zeros(1))]
    sums = [np.concatenate([np.zeros(1, v.dtype), np.cumsum(v, dtype=v.dtype)]) for v in (mark, n, value)]
    for width in range(1, int(size.max(initial=0)) + 1):
        n_here = np.maximum(size - width + 1, 0)
        first = np.repeat(level.cell_start[:-1], n_here)
        first = first + np.arange(len(first)) - np.repeat(np.cumsum(n_here) - n_here, n_here)
        end = first + width
        found.append(Boxes(*(s[end] - s[first] for s in sums)))
    return Boxes.joined(found)


# --- a known person --------------------------------------------------------------------------------------------------


class Evidence:
    """Weighs, person by person, whether sums look as if it took part, and with which label.

    All people who are asked about are weighed alike. A row of the attacker is weighed as if it were foreign, so that
    it can rehearse on rows of which it knows the answer.
    """

    def __init__(self, parties: Sequence[int], people: People, asked: Longs, two_classes: bool = True) -> None:
        self.parties, self.people, self.asked, self.two_classes = parties, people, asked, two_classes
        self.own = np.isin(people.party, parties)
        foreign = people.foreign_to(parties)
        self.ratio = len(foreign) / int(self.own.sum())
        self.n_foreign = len(np.unique(people.party[foreign]))
        self.number = np.full(len(people.y), -1)
        self.number[asked] = np.arange(len(asked))
        self.scores = np.zeros((len(asked), 3))  # from gradients, from hessians; that of a label 1

    def hear(self, told: Told) -> None:
        """One step."""
        sums, sent = told.sums(self.parties), told.sent
        for number, each in enumerate(told.gradients):
            value = np.zeros(len(sent))
            value[sent] = sums[number][: int(sent.sum())]
            x = told.of_pairs(each)
            gaps = self._gaps(told, told.between_cuts(value), x, told.noise(number, self.n_foreign))
            weight = sent[gaps.cell] / gaps.variance
            self._add(number, gaps, weight * (gaps.gap * gaps.x - gaps.x**2 / 2))
            if number == 0 and self.two_classes:  # a label of 1 in place of 0 makes the gradient smaller by 1
                person = self.asked[gaps.person]
                times = self.people.times[person]  # as often as the row counts
                p = gaps.x + times * self.people.y[person]
                self._add(2, gaps, -weight * times * (gaps.gap - p + 0.5 * times))

    def _gaps(self, told: Told, value: Doubles, x: Doubles, noise: Doubles | float) -> Gaps:
        """How much more there is than own rows let expect."""
        r, n = self.ratio, len(value)
        mine = np.flatnonzero(self.own[told.person])
        own, squares = (np.bincount(told.cell[mine], v[mine], n) for v in (x, x**2))
        variance = noise + r * (1 + r) * squares + float((x**2).mean() if len(x) else 1.0) * (1 + r) / 2
        chosen = np.flatnonzero(self.number[told.person] >= 0)
        cell, x, is_own = told.cell[chosen], x[chosen], self.own[told.person[chosen]]
        return Gaps(
            person=self.number[told.person[chosen]],
            cell=cell,
            x=x,
            gap=(value - r * own)[cell] + np.where(is_own, (1 + r) * x, 0.0),
            variance=np.asarray(variance[cell] - np.where(is_own, r * (1 + r) * x**2, 0.0), dtype=np.float64),
        )

    def _add(self, column: int, gaps: Gaps, each: Doubles) -> None:
        self.scores[:, column] += np.bincount(gaps.person, each, len(self.asked))


@dataclass(frozen=True)
class Gaps:
    """Pairs of a person asked about and a cell: what the person would add, how much more is there, how sure that is."""

    person: Longs
    cell: Longs
    x: Doubles
    gap: Doubles
    variance: Doubles


# --- everybody's features known --------------------------------------------------------------------------------------


class Equations:
    """Every sum is an equation in the labels of the foreign rows behind it: p - y summed up, with noise."""

    def __init__(self, parties: Sequence[int], people: People) -> None:
        self.parties, self.people, self.foreign = parties, people, people.foreign_to(parties)
        self.number = np.full(len(people.y), -1)
        self.number[self.foreign] = np.arange(len(self.foreign))
        self.n_foreign = len(np.unique(people.party[self.foreign]))
        self._known: list[tuple[Any, Any, Doubles]] = []

    def hear(self, told: Told) -> None:
        """One step: each sum divided by the size of its noise."""
        sent, (rows, cell) = told.sent, told.pairs_of(self.number)
        shape = len(sent), len(self.foreign)
        times = self.people.times[self.foreign]
        cells = sparse.csr_matrix((times[rows].astype(np.float32), (cell, rows)), shape=shape)
        scale = 1 / np.sqrt(told.noise(0, self.n_foreign)[sent] / (1 + told.inner[sent]))
        up_to = sparse.diags(scale) @ up_to_cuts(told)[np.flatnonzero(sent)]
        p = told.gradients[0][self.foreign, 0].astype(np.float64) / times + self.people.y[self.foreign]
        G, _ = told.sums(self.parties)
        self._known.append((up_to, cells, up_to @ (cells @ p) - scale * G[: len(scale)]))

    def labels(self, belief: Doubles) -> Doubles:
        """The chance of a 1 that fits best, near what was believed of it."""
        known = self._known
        if not known:
            return belief
        spread = np.sqrt(np.clip(belief * (1 - belief), 0.01, None))
        ends = np.cumsum([len(value) for _, _, value in known])

        def forth(x: Doubles) -> Doubles:
            return np.concatenate([up_to @ (cells @ (spread * x)) for up_to, cells, _ in known])

        def back(v: Doubles) -> Doubles:
            parts = zip(known, np.split(v, ends[:-1]), strict=True)
            found = [cells.T @ (up_to.T @ part) for (up_to, cells, _), part in parts]
            return np.asarray(spread * np.sum(found, axis=0))

        gap = np.concatenate([value - up_to @ (cells @ belief) for up_to, cells, value in known])
        shape = int(ends[-1]), len(belief)
        operator = sparse_linalg.LinearOperator(shape, matvec=forth, rmatvec=back, dtype=np.float64)
        change = sparse_linalg.lsqr(operator, gap, damp=1.0, iter_lim=SWEEPS)[0]
        return np.asarray(belief + spread * change)


def up_to_cuts(told: Told) -> Any:
    """Sparse: the sum up to each cut from those of the cells (of a category: the cell itself)."""
    level = told.batch.level
    size = np.diff(level.cell_start)
    place = np.arange(level.n_cells) - np.repeat(level.cell_start[:-1], size)
    n_before = np.where(told.is_ordered, place, 0) + 1
    row = np.repeat(np.arange(level.n_cells), n_before)
    back = np.arange(len(row)) - np.repeat(np.cumsum(n_before) - n_before, n_before)
    return sparse.csr_matrix((np.ones(len(row)), (row, row - back)), shape=(level.n_cells, level.n_cells))
