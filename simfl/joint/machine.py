"""All steps of the joint recipe in their order: cut points, labels, then batch after batch of trees.

A machine knows its party's rows and what all parties have agreed on so far. It says what this party contributes to the
next step, what follows from the total, and takes on what was decided. It knows nothing of keys, masks and messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from simfl.arrays import AnyArray, Doubles, Floats, Table
from simfl.errors import ProtocolError
from simfl.joint.agreement import Agreed, Agreement
from simfl.joint.decisions import numbers
from simfl.joint.declared import Declared, asked_columns, completed
from simfl.joint.growing import Following, Growing, Own, counts
from simfl.joint.parts import Parts, shaped
from simfl.joint.setting import Setting
from simfl.joint.shared import Shared
from simfl.outbox.rule import Rule
from simfl.params import BINS, Params
from simfl.training.losses import loss_of, with_spread
from simfl.training.traversal import walker
from simfl.training.trees import Tree

Metrics = tuple[dict[str, float], dict[str, float]]  # of a round, on training and on validation rows


@dataclass(frozen=True)
class Labelled:
    """Rows with labels as numbers."""

    X: Table
    y: Floats
    weight: Floats | None = None


@dataclass(frozen=True)
class Plan:
    """What all parties know before the first step."""

    params: Params  # columns in constraints by number
    n_levels: AnyArray  # per column; 0 for numbers
    n_outputs: int
    parties: tuple[str, ...]  # those that are present
    base_score: Doubles | None = None  # None: from the labels
    earlier: list[list[Tree]] = field(default_factory=list)  # the rounds of a model that this training continues from
    cuts_only: bool = False  # for later trainings: no labels, no trees
    declared: Declared | None = None  # cut points per column, None where they are to be agreed on; or all of them are


@dataclass(frozen=True)
class Mine:
    """What only this party has. `secret`: behind its noise, its rounding and its part of every seed."""

    rows: Labelled
    validation: Labelled | None
    secret: bytes = field(repr=False)
    threads: int = 1
    shared: Shared | None = None  # with the other parties of this process


class Machine:
    """One party's part in a training."""

    def __init__(self, plan: Plan, mine: Mine, agreed: Agreed | None = None) -> None:
        self.plan, self.mine, self.agreed, self.base_score = plan, mine, agreed, plan.base_score
        self.loss = loss_of(plan.params)
        # Alone, nobody sees its sums.
        self.rule = Rule(plan.params.min_group if len(plan.parties) > 1 else 0, mine.secret)
        self.keeps = False  # whether who comes later needs the decision that was applied last
        self.kept: list[bytes] = []
        self.growing: Growing | None = None
        self._agreement = None if agreed else self._agree()
        self._digest = hashlib.blake2b(repr(plan.parties).encode(), digest_size=16)
        self._grow_if_ready()

    # --- the steps ---------------------------------------------------------------------------------------------------

    @property
    def step(self) -> str:
        """In words."""
        now = self._agreement or self.growing
        return now.step if now else "labels"

    @property
    def finished(self) -> bool:
        """Whether all trees are grown, or all that was asked for is agreed on."""
        if self.plan.cuts_only:
            return self.agreed is not None
        return self.growing is not None and self.growing.finished

    @property
    def n_rounds(self) -> int:
        """How many are finished."""
        return len(self.rounds)

    @property
    def rounds(self) -> list[list[Tree]]:
        """The finished trees."""
        return self.growing.rounds if self.growing else []

    @property
    def gains(self) -> list[Doubles]:
        """Per round: what each column has gained."""
        return self.growing.gains if self.growing else []

    @property
    def best_round(self) -> int | None:
        """Where early stopping watches: the best one so far."""
        return self.growing.best_round if self.growing else None

    def contribution(self) -> Parts:
        """What this party adds."""
        now = self._agreement or self.growing
        return now.contribution() if now else [self._label_sums()]

    def read(self, total: Parts) -> bytes:
        """What follows from a total."""
        now = self._agreement or self.growing
        if now:
            return now.read(total)
        (sums,) = shaped(total, [(np.float64, self._n_labels + 1)])
        return sums.astype("<f8").tobytes()

    def apply(self, decision: bytes) -> None:
        """Check what was decided, and move to the next step."""
        before = len(self.growing.batches) if self.growing else -1
        kept = decision
        if self._agreement:
            self._agreement.apply(decision)
            self.agreed = self._agreement.agreed
            self._agreement = None if self.agreed else self._agreement
        elif self.growing:
            self.growing.apply(decision)
            kept = self.growing.batches[-1] if len(self.growing.batches) > before else b""
        else:
            self._take_labels(numbers(decision, np.float64, self._n_labels + 1))
        self.keeps = bool(kept)
        if self.keeps:
            self.kept.append(kept)
        self._digest.update(hashlib.blake2b(decision, digest_size=16).digest())
        self._grow_if_ready()

    def resume(self, decisions: Sequence[bytes]) -> None:
        """Take on what was kept of a training that is under way."""
        for decision in decisions:
            if self.growing:
                self.growing.replay(decision)
                self.kept.append(decision)
            else:
                self.apply(decision)
        self._digest = hashlib.blake2b(repr((self.plan.parties, list(decisions))).encode(), digest_size=16)

    def use(self, threads: int) -> None:
        """How many threads the next step may have: a party that is asked alone has those of all."""
        if self.growing:
            self.growing.threads = threads

    def digest(self) -> bytes:
        """Of everything that was applied so far."""
        return self._digest.digest()

    def metrics(self, first: int = 0) -> list[Metrics]:
        """Of all rounds that are scored, from this one on."""
        return [(scores.train, scores.validation) for scores in self.growing.scores[first:]] if self.growing else []

    # --- cut points --------------------------------------------------------------------------------------------------

    def _agree(self) -> Agreement:
        """On the columns whose cut points are not declared."""
        plan, X = self.plan, self.mine.rows.X
        asked = asked_columns(plan.declared)
        X, n_levels = (X, plan.n_levels) if asked is None else (X[:, asked], plan.n_levels[asked])
        return Agreement(X, n_levels, plan.parties, self.rule)

    # --- labels ------------------------------------------------------------------------------------------------------

    @property
    def _n_labels(self) -> int:
        return max(self.plan.n_outputs, 2) if self.loss.classifies else self.loss.n_sums

    def _label_sums(self) -> Doubles:
        """The weight of each class (or the sum of the labels), and of all rows."""
        y, weight = self.mine.rows.y, self.mine.rows.weight
        each = np.ones(len(y)) if weight is None else weight.astype(np.float64)
        sums = np.array(self.loss.label_sums(y, weight, self._n_labels))
        if self.loss.classifies:
            rows = np.bincount(y.astype(np.int64), weights=counts(y, weight), minlength=self._n_labels)
            sums = self.rule.of_classes(sums, rows, "labels")
            return np.append(sums, sums.sum())
        return self.rule.of_all(np.append(sums, each.sum()), counts(y, weight).sum(), "labels")

    def _take_labels(self, sums: Doubles) -> None:
        """The start value, unless it is given, and the spread, where the objective needs it."""
        weight = float(sums[-1])
        possible = weight > 0 and np.isfinite(sums).all()
        if not possible or not self.loss.possible(sums[:-1].tolist(), weight):
            raise ProtocolError("The label sums over all parties are not possible.")
        each = sums[:-1].tolist()
        self.base_score = self.loss.start(each, weight) if self.base_score is None else self.base_score
        self.plan = replace(self.plan, params=with_spread(self.plan.params, each, weight))
        self.loss = loss_of(self.plan.params)

    # --- trees -------------------------------------------------------------------------------------------------------

    def _grow_if_ready(self) -> None:
        if self.growing or self.agreed is None or self.base_score is None or self.plan.cuts_only:
            return
        if self.loss.needs_spread and self.plan.params.label_spread is None:
            return
        params = self.plan.params
        found = self.agreed.cuts(params.max_bin or BINS)
        setting = Setting(
            params=params,
            cuts=completed(found, self.plan.n_levels, self.plan.declared),
            n_outputs=self.plan.n_outputs,
            n_rows=self.agreed.n_rows,
            parties=self.plan.parties,
            most_hessian=self.loss.usual_hessian(float(np.mean(self.loss.margin(self.base_score)))),
        )
        self.growing = Growing(setting, self._own(self.base_score))

    def _own(self, base_score: Doubles) -> Own:
        margin = np.array(self.loss.margin(base_score), dtype=np.float32)
        aside = self.mine.validation
        train = self._following(self.mine.rows, margin)
        return Own(
            self.mine.rows.X,
            train,
            self._following(aside, margin) if aside else None,
            self.rule,
            self.mine.threads,
            self.mine.shared,
        )

    def _following(self, rows: Labelled, margin: Floats) -> Following:
        by_level = bool(np.any(self.plan.n_levels))
        out = Following(walker(rows.X, by_level=by_level), rows.y, rows.weight, np.tile(margin, (len(rows.y), 1)))
        for trees in self.plan.earlier:
            out.add(trees)
        return out
