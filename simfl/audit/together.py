"""The scenario of an audit of trees grown together: all parties' machines really run, and several attackers listen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from simfl import params as parameters
from simfl.arrays import Doubles, Floats, Longs
from simfl.audit.findings import Role
from simfl.audit.listening import STRANGER, People, listen
from simfl.audit.scenario import ATTACKER, MOST_ATTACKED, VICTIM, Scenario
from simfl.audit.totals import Alone, Equations, Evidence
from simfl.audit.views import seed_of
from simfl.errors import ParameterError
from simfl.joint.machine import Labelled, Machine, Mine, Plan
from simfl.joint.shared import Shared
from simfl.training.trees import Tree

MOST_ROWS = 12_000  # of the table, those of strangers included
MOST_TREES = 100
EXCHANGED = 0.02  # share of the rows that are not with the party of their column's value
STRANGERS = 0.1  # share of the rows that take no part: attackers must tell members from them


@dataclass(frozen=True)
class Listener:
    """Parties that put together what they know: their rows and their noise, and the sums of turns that they read."""

    roles: list[Role]
    parties: tuple[int, ...]
    reads: tuple[int, ...]


class Ears:
    """The attacks of one set of parties, while they listen."""

    def __init__(self, parties: tuple[int, ...], people: People, asked: Longs, seed: int, solves: bool) -> None:
        self.alone, self.evidence = Alone(parties, people, seed), Evidence(parties, people, asked)
        self.equations = Equations(parties, people) if solves else None


class Together(Scenario):
    """Who has which rows; the last part has no party: strangers."""

    most_rows = MOST_ROWS

    def __init__(
        self, X: Any, y: Any, parties: int, seed: int, params: dict[str, Any], by_column: int | None = None
    ) -> None:
        self.by_column = by_column
        super().__init__(X, y, parties, seed, params)

    def _divided(self, n_rows: int, parties: int) -> list[Longs]:
        order = self._rng(2).permutation(n_rows)
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
        trees = min(self.stage_2.n_trees, MOST_TREES)
        if self.stage_2.monotone_constraints or self.stage_2.interaction_constraints:
            raise ParameterError("An audit of trees grown together takes no constraints on columns. Leave them out.")
        self.stage_2 = msgspec.structs.replace(self.stage_2, n_trees=trees, objective=self.objective)

    @property
    def has_likely_strangers(self) -> bool:
        """Whether strangers are like members. Where parties differ in a column, this alone tells them apart."""
        return self.by_column is None

    @property
    def n_outputs(self) -> int:
        """Trees of a round."""
        return int(self.y.max()) + 1 if self.objective == "multi:softprob" else 1

    @cached_property
    def machines(self) -> list[Machine]:
        """Of all parties, before the first step."""
        names = tuple(f"party {i}" for i in range(len(self.members)))
        plan = Plan(self.stage_2, np.zeros(self.X.shape[1], np.int32), self.n_outputs, names)
        secrets, shared = [seed_of(self.seed, 6, i).to_bytes(8) for i in range(len(names))], Shared()
        own = [self._labelled(rows) for rows in self.members]
        return [Machine(plan, Mine(rows, None, secret, 1, shared)) for rows, secret in zip(own, secrets, strict=True)]

    def _labelled(self, rows: Longs) -> Labelled:
        return Labelled(self.dense[rows].astype(np.float32), self.y[rows].astype(np.float32))

    @cached_property
    def people(self) -> People:
        """All rows, party by party."""
        return People.of(self.machines, self._labelled(self.strangers))

    @property
    def row(self) -> Longs:
        """The place in the table of each of the people."""
        return np.concatenate([*self.members, self.strangers])

    @cached_property
    def listeners(self) -> list[Listener]:
        """Who listens. Roles that hear the same are one."""
        n = len(self.members)
        every = tuple(range(n))
        several = every[ATTACKER : n - 1]
        chosen: dict[Role, tuple[tuple[int, ...], tuple[int, ...]]] = {
            "other party": ((ATTACKER,), ()),
            "reader": ((ATTACKER,), (ATTACKER,)),
            "all readers": ((ATTACKER,), every),
        }
        if n > 2:
            chosen["two parties that collude"] = (every[1:3], every[1:3])
        if n > 4:
            chosen["all parties but two"] = (several, several)
        groups: dict[Any, list[Role]] = {}
        for role, (parties, reads) in chosen.items():
            groups.setdefault((parties, every if self.stage_2.readers == "all" else reads), []).append(role)
        if self.stage_2.hub_sees == "totals":
            next(iter(groups.values())).insert(0, "hub")
        return [Listener(roles, *key) for key, roles in groups.items()]

    @cached_property
    def ears(self) -> dict[tuple[int, ...], Ears]:
        """By the parties that listen: what their attacks have found when all trees are grown."""
        people, found = self.people, {}
        for parties in dict.fromkeys(listener.parties for listener in self.listeners):
            asked = np.concatenate([self._some(people, party) for party in ([VICTIM], parties, [STRANGER])])
            solves = parties == (ATTACKER,) and self.objective == "binary:logistic"
            found[parties] = Ears(parties, people, asked, self.seed, solves)
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
            loss.metric_sums(self.margin[i : i + 1], self.people.y[i : i + 1], None)[loss.metric]
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
