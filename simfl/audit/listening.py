"""What parties hear while trees are grown together, step by step, as plain data for the attacks (`totals.py`).

The machines of all parties really run. A step is heard as the totals of all parties, and with it which people are
behind each total, with the cells that each party has joined: an attacker would have to guess that of foreign rows, so
an attack can only do better than in life.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from simfl.arrays import AnyArray, Doubles, Floats, Longs, Mask, Table
from simfl.errors import DataError
from simfl.joint.batch import Batch
from simfl.joint.candidates import NONE
from simfl.joint.cuts import binned
from simfl.joint.machine import Labelled, Machine
from simfl.joint.parts import Parts
from simfl.joint.rows import BinnedRows
from simfl.outbox.rule import NOISE, NOWHERE

STRANGER = -1  # the party of a person who takes no part


@dataclass(frozen=True)
class People:
    """The rows of all parties, one party after the other, and of strangers who take no part."""

    X: Table
    y: Floats
    party: AnyArray
    weight: Floats | None = None

    @classmethod
    def of(cls, machines: Sequence[Machine], strangers: Labelled) -> People:
        """Everybody: those who take part, then the strangers."""
        rows = [machine.mine.rows for machine in machines if machine.mine]
        party = np.repeat([*range(len(rows)), STRANGER], [*(len(own.y) for own in rows), len(strangers.y)])
        rows.append(strangers)
        weights = [own.weight for own in rows if own.weight is not None]
        weight = np.concatenate(weights) if weights else None
        return cls(np.vstack([own.X for own in rows]), np.concatenate([own.y for own in rows]), party, weight)

    @cached_property
    def times(self) -> Doubles:
        """How much each counts in sums."""
        return np.ones(len(self.y)) if self.weight is None else self.weight.astype(np.float64)

    def foreign_to(self, parties: Sequence[int]) -> Longs:
        """Those of all other parties."""
        return np.flatnonzero(~np.isin(self.party, [*parties, STRANGER]))


@dataclass(frozen=True)
class Told:
    """One step: the totals of all cells of a level, and the people in each. All trees of the batch at once."""

    number: int  # of the batch
    batch: Batch
    total: Parts
    parts: list[Parts]  # of each party
    person: Longs  # pairs of a person
    cell: Longs  # and a cell that it is in
    gradients: tuple[Floats, Floats]  # of all people: (people, outputs)
    place: AnyArray  # (trees, people): the node that each is in

    @cached_property
    def tree(self) -> AnyArray:
        """Of every cell."""
        level = self.batch.level
        of_slot = np.repeat(level.tree, np.diff(level.slot_start))
        return np.repeat(of_slot, np.diff(level.cell_start))

    def of_pairs(self, values: Floats) -> Doubles:
        """A value per person and output, for every pair."""
        output = self.tree[self.cell] % values.shape[1]
        chosen: Doubles = values[self.person, output].astype(np.float64)
        return chosen

    def pairs_of(self, number: AnyArray) -> tuple[Longs, Longs]:
        """The pairs of those people who have a number: this, and the cell."""
        kept = np.flatnonzero(number[self.person] >= 0)
        return number[self.person[kept]], self.cell[kept]

    @cached_property
    def inner(self) -> Mask:
        """Of every cell whether it lies between two cuts, so that its sum is a difference."""
        inner = self.is_ordered.copy()
        inner[self.batch.level.cell_start[:-1]] = False
        return inner

    @cached_property
    def is_ordered(self) -> Mask:
        """Of every cell whether its column is one of numbers, whose sums are sent up to each cut."""
        level = self.batch.level
        return np.repeat(self.batch.columns.n_levels[level.feature] < 2, np.diff(level.cell_start))

    def between_cuts(self, value: Doubles) -> Doubles:
        """The sum of each cell, from those up to the cuts."""
        before = np.concatenate([[0.0], value])[:-1]
        return value - np.where(self.inner, before, 0.0)

    def noise(self, number: int, n_foreign: int) -> Doubles:
        """Of every cell's sum of gradients (0) or hessians (1): the variance of what parties have added at random."""
        batch, mean = self.batch, np.abs(self.gradients[number]).mean(axis=0)
        rounded = np.asarray(np.ldexp(1.0, 2 * batch.exponents[number])[self.tree])
        if batch.params.min_group < 2:
            return rounded
        own = NOISE * mean[self.tree % len(mean)]
        return np.asarray(rounded + n_foreign * own**2 * (1 + self.inner))

    @cached_property
    def sent(self) -> Mask:
        """All cells but the last of each slot, which follows from the node's total."""
        sent = np.ones(self.batch.level.n_cells, bool)
        sent[self.batch.level.cell_start[1:] - 1] = False
        return sent

    def others(self, parties: Sequence[int]) -> Parts:
        """The total without what some parties have sent: they know that."""
        own = [np.sum([self.parts[p][i] for p in parties], axis=0, dtype=t.dtype) for i, t in enumerate(self.total)]
        return [t - o for t, o in zip(self.total, own, strict=True)]

    def sums(self, parties: Sequence[int]) -> tuple[Doubles, Doubles]:
        """Sums of foreign gradients and hessians as they were sent: up to each cut; the roots' totals at the end."""
        batch = self.batch
        tree = np.concatenate([self.tree[self.sent], np.arange(batch.n_sent - int(self.sent.sum()))])
        G, H = (part.view(np.int32).astype(np.float64) for part in self.others(parties))
        return np.ldexp(G, batch.exponents[0][tree]), np.ldexp(H, batch.exponents[1][tree])


class Ear(Protocol):
    """Somebody who listens."""

    def hear(self, told: Told) -> None:
        """One step."""


def listen(machines: Sequence[Machine], people: People, ears: Sequence[Ear]) -> None:
    """Run the machines to the end. The ears hear every step in which gradients are summed up."""
    crowd: _Crowd | None = None
    while not machines[0].finished:
        growing = machines[0].growing
        parts = [machine.contribution() for machine in machines]
        total = [np.sum(part, axis=0, dtype=part[0].dtype) for part in zip(*parts, strict=True)]
        if growing and growing._batch:
            crowd = crowd or _Crowd(machines, people)
            told = crowd.told(growing._batch, total, parts)
            for ear in ears:
                ear.hear(told)
        for machine in machines:
            machine.apply(machine.read(total))


class _Crowd:
    """Where all people are while the trees grow."""

    def __init__(self, machines: Sequence[Machine], people: People) -> None:
        machine = machines[0]
        growing, base_score = machine.growing, machine.base_score
        if growing is None or base_score is None:
            raise ValueError("There are no trees yet.")
        rows = binned(people.X, growing.setting.cuts)
        if not isinstance(rows, BinnedRows):
            raise DataError("Trees grown together are audited on dense tables only.")
        self.machines, self.growing, self.people, self.bins = machines, growing, people, rows.bins
        self.first = np.searchsorted(people.party[people.party >= 0], range(len(machines)))
        margin = np.array(machine.loss.margin(base_score), dtype=np.float32)
        self.following = machine._following(Labelled(people.X, people.y), margin)
        self.n_rounds = 0

    def told(self, batch: Batch, total: Parts, parts: list[Parts]) -> Told:
        """What a step of a batch tells."""
        growing = self.growing
        for trees in growing.rounds[self.n_rounds :]:
            self.following.add(trees)
        self.n_rounds = len(growing.rounds)
        place = np.stack([self._places(batch, tree) for tree in range(batch.n_trees)])
        pairs = [_pairs(batch, self.bins, place[tree], tree) for tree in range(batch.n_trees)]
        person, cell = self._joined(batch, *(np.concatenate([pair[i] for pair in pairs]) for i in (0, 1)))
        gradients = growing.loss.gradients(self.following.margin, self.people.y, self.people.weight)
        return Told(len(growing.batches), batch, total, parts, person, cell, gradients, place)

    def _places(self, batch: Batch, tree: int) -> AnyArray:
        """The node that each row is in: where its party has put it, of strangers where its values lead."""
        place, of_tree = _places(batch, self.bins, tree), batch.nodes.of_tree(tree)
        for k in np.flatnonzero(batch.level.tree == tree):
            node = int(batch.level.node[k])
            place[(place == of_tree[node]) & (self.people.party >= 0)] = NONE
            for machine, first in zip(self.machines, self.first, strict=True):
                if machine.growing:
                    place[first + machine.growing._placement.rows_in(tree, node)] = of_tree[node]
        return place

    def _joined(self, batch: Batch, person: Longs, cell: Longs) -> tuple[Longs, Longs]:
        """The pairs as the parties count them."""
        level = batch.level
        slot = np.repeat(np.arange(len(level.feature)), np.diff(level.cell_start))[cell]
        out, kept = cell.copy(), np.ones(len(cell), bool)
        for p, machine in enumerate(self.machines):
            own = np.flatnonzero(self.people.party[person] == p)
            mine = machine.growing._mine if machine.growing else None
            if mine is not None:
                joined = mine.joined[cell[own]]
                out[own], kept[own] = level.cell_start[slot[own]] + joined, joined != NOWHERE
        return person[kept], out[kept]


def _places(batch: Batch, bins: AnyArray, tree: int) -> AnyArray:
    """The node that each row is in."""
    nodes = batch.nodes
    place = np.full(len(bins), nodes.of_tree(tree)[0])
    while (inner := np.flatnonzero(nodes.left_child[place] >= 0)).size:
        at = place[inner]
        b = bins[inner, nodes.feature[at]].astype(np.int64)
        left = (nodes.levels_left[at, b >> 3] >> (b & 7)) & 1
        place[inner] = nodes.left_child[at] + 1 - left
    return place


def _pairs(batch: Batch, bins: AnyArray, place: AnyArray, tree: int) -> tuple[Longs, Longs]:
    """Every row of an open node with every cell that it is in: one per column that is asked about."""
    level = batch.level
    number = np.full(batch.nodes.n, -1)
    mine = np.flatnonzero(level.tree == tree)
    number[batch.open.place[mine]] = mine
    node = number[place]
    inside = np.flatnonzero((node >= 0) & (place >= 0))
    n_slots = np.diff(level.slot_start)[node[inside]]
    person = np.repeat(inside, n_slots)
    first = np.repeat(level.slot_start[node[inside]] - np.cumsum(n_slots) + n_slots, n_slots)
    slot = np.arange(len(person)) + first
    b = bins[person, level.feature[slot]]
    return person, level.cell_start[slot] + level.cell_of_bin[slot, b].astype(np.int64)
