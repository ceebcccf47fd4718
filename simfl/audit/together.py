"""The scenario of an audit of trees grown together: all parties' machines really run, and several attackers listen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from scipy import sparse

from simfl import messages as msg
from simfl import params as parameters
from simfl.arrays import Doubles, Floats, Longs
from simfl.audit.findings import Role
from simfl.audit.listening import STRANGER, People, listen
from simfl.audit.scenario import ATTACKER, MOST_ATTACKED, VICTIM, Scenario
from simfl.audit.totals import Alone, Equations, Evidence
from simfl.audit.views import seed_of
from simfl.joint.machine import Labelled, Machine
from simfl.joint.shared import Shared
from simfl.party.joint_rows import machine_of
from simfl.party.party import Rows, Split
from simfl.training.trees import Tree

MOST_ROWS = 12_000  # of the table, those of strangers included
MOST_TREES = 100
EXCHANGED = 0.02  # share of the rows that are not with the party of their column's value
STRANGERS = 0.1  # share of the rows that take no part: attackers must tell members from them


@dataclass(frozen=True)
class Listener:
    """Parties that put together what they know: their rows, their noise, and all totals."""

    role: Role
    parties: tuple[int, ...]


class Ears:
    """The attacks of one set of parties, while they listen. `two_classes`: labels are 0 or 1."""

    def __init__(self, parties: tuple[int, ...], people: People, asked: Longs, seed: int, two_classes: bool) -> None:
        self.alone, self.evidence = Alone(parties, people, seed), Evidence(parties, people, asked, two_classes)
        self.equations = Equations(parties, people) if two_classes and parties == (ATTACKER,) else None


class Together(Scenario):
    """Who has which rows; the last part has no party: strangers."""

    most_rows = MOST_ROWS

    def _divided(self, n_rows: int, parties: int) -> list[Longs]:
        order = self._rng(2).permutation(n_rows)
        if self.weight is not None:  # rows that count nothing have no part in a training of this kind
            order = order[self.weight[order] > 0]
        n_aside = int(min(STRANGERS * n_rows, MOST_ATTACKED))
        self.strangers, rest = np.sort(order[:n_aside]), order[n_aside:]
        if self.by_column is not None:
            rest = self._in_order(rest)
        return [np.sort(part) for part in np.array_split(rest, parties)]

    def _in_order(self, rows: Longs) -> Longs:
        """The rows in the order of a column, but for a few that are exchanged."""
        values = self.dense[rows, self.by_column]
        exchanged = np.flatnonzero(self._rng(5).random(len(rows)) < EXCHANGED)
        values[exchanged] = values[np.roll(exchanged, len(exchanged) // 2)]
        return rows[np.argsort(values, kind="stable")]

    def _prepare(self, given: dict[str, Any]) -> None:
        parameters.prepare_params(**given)
        self.stage_2 = parameters.with_numbers(self.stage_2, None, self.X.shape[1])

    @property
    def n_trees(self) -> int:
        """How many are grown here. With epsilon there are no totals to listen to, and nothing is cut short."""
        private = parameters.is_private(self.stage_2)
        return self.most_trees if private else min(self.most_trees, MOST_TREES)

    @property
    def trees_in_words(self) -> str:
        """How many were grown, of how many."""
        n, most = len(self.rounds), self.most_trees
        return f"{n} trees" if n == most else f"{n} of up to {most} trees"

    @property
    def has_likely_strangers(self) -> bool:
        """Whether strangers are like members. Where parties differ in a column, this alone tells them apart."""
        return self.by_column is None

    @cached_property
    def grown_from(self) -> Floats:
        """The rows as trees see them: what a sparse table does not store is missing."""
        if not sparse.issparse(self.X):
            return np.asarray(self.X)
        stored, rows = self.X.tocoo(), np.full(self.X.shape, np.nan, np.float32)
        rows[stored.row, stored.col] = stored.data
        return rows

    @cached_property
    def machines(self) -> list[Machine]:
        """Of all parties, before the first step: as a training starts them."""
        names, shared = [f"party {i}" for i in range(len(self.members))], Shared()
        params = msgspec.structs.replace(self.stage_2, n_trees=self.n_trees)
        start = msg.StartTogether(params=params, classes=self.classes, parties=names, masked=False)
        found = []
        for i, own in enumerate(self.members):
            rows = Rows(self.grown_from[own], self.y[own], self.weight_of(own))
            split = Split(names[i], rows, None, self.schema)
            secret = seed_of(self.seed, 6, i).to_bytes(8)
            found.append(machine_of(start, split, secret, 1, shared))
        return found

    @cached_property
    def people(self) -> People:
        """All rows, party by party."""
        out = self.strangers
        aside = Labelled(self.grown_from[out], self.y[out], self.weight_of(out))
        return People.of(self.machines, aside)

    @property
    def row(self) -> Longs:
        """The place in the table of each of the people."""
        return np.concatenate([*self.members, self.strangers])

    @cached_property
    def listeners(self) -> list[Listener]:
        """Who listens."""
        n = len(self.members)
        every = tuple(range(n))
        chosen: dict[Role, tuple[int, ...]] = {"other party": (ATTACKER,)}
        if n > 2:
            chosen["two parties that collude"] = every[1:3]
        if n > 4:
            chosen["all parties but two"] = every[ATTACKER : n - 1]
        return [Listener(role, parties) for role, parties in chosen.items()]

    @cached_property
    def ears(self) -> dict[tuple[int, ...], Ears]:
        """By the parties that listen: what their attacks have found when all trees are grown."""
        people, found = self.people, {}
        for parties in dict.fromkeys(listener.parties for listener in self.listeners):
            asked = np.concatenate([self._some(people, party) for party in ([VICTIM], parties, [STRANGER])])
            found[parties] = Ears(parties, people, asked, self.seed, self.two_classes)
        attacks = [a for ears in found.values() for a in (ears.alone, ears.evidence, ears.equations) if a is not None]
        listen(self.machines, people, attacks)
        for ears in found.values():
            ears.alone.look()
        return found

    def _some(self, people: People, parties: Any) -> Longs:
        """People of these parties that are asked about."""
        return self._rng(4).permutation(np.flatnonzero(np.isin(people.party, parties)))[:MOST_ATTACKED]

    @cached_property
    def margin(self) -> Floats:
        """What the finished model says of all people: (people, outputs)."""
        machine, people, rounds = self.machines[0], self.people, self.rounds
        start = np.array(machine.loss.margin(machine.base_score), dtype=np.float32)  # type: ignore[arg-type]
        following = machine._following(Labelled(people.X, people.y), start)
        for trees in rounds:
            following.add(trees)
        return following.margin

    @cached_property
    def fit(self) -> Doubles:
        """How well the finished model explains the label of each of the people: minus the loss."""
        loss = self.machines[0].loss
        each = [
            loss.metric_sums(self.margin[i : i + 1], self.people.y[i : i + 1], None)[loss.metrics[0]]
            for i in range(len(self.people.y))
        ]
        return -np.array(each)

    @property
    def rounds(self) -> list[list[Tree]]:
        """The trees. They are grown while the attackers listen."""
        growing = self.machines[0].growing if self.ears else None
        return growing.rounds if growing else []

    def trees(self, builder: int | None = None) -> list[Tree]:
        """All trees: everybody has built them."""
        return [tree for trees in self.rounds for tree in trees]
