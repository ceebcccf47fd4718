"""Attacks on the finished model: who is in it, what it tells about known people, and which rows are behind it.

The table is divided at random into members, strangers and the rows of an attacker, which is one of the parties. The
recipe trains on attacker and members; a twin trains on attacker and strangers. So every attack on a member has its
guess beside it: the same attack on a model that does not know that person.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import repeat
from typing import Any

import numpy as np

from simfl import params as parameters
from simfl.arrays import AnyArray, Doubles, Floats, Longs, Mask
from simfl.audit import membership, query, timberstrike
from simfl.audit.attributes import attributes_of, one_hot_groups
from simfl.audit.findings import Counted, Finding, Role, finding
from simfl.audit.private import declared_of
from simfl.audit.views import Prior
from simfl.baselines import all_in
from simfl.data.schema import Schema
from simfl.errors import DataError
from simfl.federation import train
from simfl.model import Model
from simfl.party import Party
from simfl.party.private_rows import settings
from simfl.training import schedule
from simfl.training.losses import Loss, loss_of

MOST_ROWS = 3000  # of the table: a small training keeps more of each row, so this errs on the side of the attacker
SHADOWS = 32
MOST_ASKED = 300  # members whose attributes are asked for
MOST_COLUMNS = 100  # beyond, neither attributes nor rows are searched for: it would take hours
MODEL: list[Role] = ["hub", "builder", "other party", "outsider"]  # whoever has the model, or may ask it
MADE_UP = 4000  # rows of somebody who knows only ranges
FEW_LEVELS = 6  # whole numbers: as many at most are a category

Trainer = Callable[[AnyArray], Model]  # from the numbers of the rows


@dataclass(frozen=True)
class People:
    """A table with numbers for labels, and the parameters of a training."""

    X: Doubles
    y: Floats
    objective: str
    parties: int
    seed: int
    given: dict[str, Any]
    schema: Schema | None = None  # what is declared of the columns

    @classmethod
    def of(
        cls,
        X: Doubles,
        y: Floats,
        objective: str,
        parties: int,
        seed: int,
        given: dict[str, Any],
        schema: Schema | None = None,
    ) -> People:
        """A sample of a table: not more rows than the attacks can take."""
        drawn = np.random.default_rng([seed, 36]).permutation(len(y))[:MOST_ROWS]
        return cls(X[drawn], y[drawn], objective, parties, seed, given, schema)

    @cached_property
    def thirds(self) -> tuple[Longs, Longs, Longs]:
        """The rows of members, strangers and attacker: already in random order."""
        if len(self.y) < 60:
            raise DataError(f"{len(self.y)} rows are too few to attack a model: it takes 60 at least.")
        size = len(self.y) // 3
        members, strangers, attacker = np.arange(3 * size).reshape(3, size)
        return members, strangers, attacker

    def trained(self, rows: AnyArray) -> Model:
        """The recipe, trained on the attacker's rows and these, which the other parties share."""
        parts = [self.thirds[2], *np.array_split(rows, self.parties - 1)]
        schema = declared_of(self.X, self.schema) if parameters.is_private(self.params) else self.schema
        members = [Party(f"party {i}", self.X[part], self.y[part], schema=schema) for i, part in enumerate(parts)]
        return train(members, callbacks=[], **self.settings)

    def shadow(self, rows: AnyArray) -> Model:
        """XGBoost on the same rows, with the model's own settings (but for noise, and what comes with it)."""
        both = np.concatenate([self.thirds[2], rows])
        return all_in([Party("all", self.X[both], self.y[both])], **parameters.without_noise(self.settings))

    @property
    def settings(self) -> dict[str, Any]:
        return self.given | {"objective": self.objective, "random_state": self.seed, "n_jobs": 1}

    @cached_property
    def model(self) -> Model:
        """The model that is attacked."""
        return self.trained(self.thirds[0])

    @cached_property
    def twin(self) -> Model:
        """A model of the strangers: it does not know the members."""
        return self.trained(self.thirds[1])

    @cached_property
    def params(self) -> parameters.Params:
        """The settings of the trees, with the recipe's filled in."""
        return parameters.train_params(**self.settings)

    @cached_property
    def loss(self) -> Loss:
        """The objective."""
        return loss_of(self.params)

    @property
    def steps(self) -> tuple[Iterable[int], float, float]:
        """How many trees share their gradients, learning rate and lambda, as they were used: they are no secret."""
        if parameters.is_private(self.params):
            rule = settings(self.params, self.parties, self.X.shape[1])
            return repeat(rule.lockstep), rule.learning_rate, rule.reg_lambda
        rate = self.params.learning_rate
        most = schedule.lockstep(rate) if self.params.recipe == "joint" else 1
        return schedule.batches(most), rate, self.params.reg_lambda

    @cached_property
    def is_category(self) -> Mask:
        """Per column: whether its values are few and whole."""
        known = [np.unique(column[~np.isnan(column)]) for column in self.X.T]
        return np.array([len(values) <= FEW_LEVELS and bool((values % 1 == 0).all()) for values in known])

    @cached_property
    def prior(self) -> Prior:
        """What the attacker knows."""
        return Prior.of(self.X[self.thirds[2]])

    def confidence(self, model: Model, rows: Doubles, y: AnyArray) -> Doubles:
        """How confident a model is of these labels."""
        return membership.label_confidence(model.margins(rows.astype(np.float32)), y, self.loss)


# --- who is in it ----------------------------------------------------------------------------------------------------


def members_from_answers(people: People, trainer: Trainer | None = None, n_shadows: int = SHADOWS) -> list[Finding]:
    """LiRA with shadow models; XGBoost's, unless others are given."""
    asked = np.concatenate(people.thirds[:2])
    is_member = np.arange(len(asked)) < len(people.thirds[0])
    confidence = people.confidence(people.model, people.X[asked], people.y[asked])
    shadows = cast_shadows(people, asked, trainer or people.shadow, n_shadows)
    counted = counted_members(shadows, confidence, is_member, people.seed)
    d = counted.details
    sentence = (
        "Whoever may ask the model tells members from strangers with {success} right answers, by "
        f"{n_shadows} shadow models of {'XGBoost' if trainer is None else 'the same recipe'} (guessing: {{guess}}); "
        f"AUC {d['auc']:.3f} ({d['auc_low']:.3f} to {d['auc_high']:.3f}); at 1 % false alarms {d['tpr']:.1%} of "
        f"members are found ({d['tpr_low']:.1%} to {d['tpr_high']:.1%})."
    )
    return [finding("members_from_answers", MODEL, counted, sentence, "right answers")]


def cast_shadows(people: People, asked: Longs, trainer: Trainer, n_shadows: int) -> membership.Shadows:
    """Every shadow knows a random half of the people asked about; each pair of shadows has each person once."""
    rng = np.random.default_rng([people.seed, 37])
    inside: list[Mask] = []
    confidence: list[Doubles] = []
    for number in range(n_shadows):
        half = rng.permutation(len(asked)) < len(asked) // 2 if number % 2 == 0 else ~inside[-1]
        inside.append(half)
        confidence.append(people.confidence(trainer(asked[half]), people.X[asked], people.y[asked]))
    return membership.Shadows(np.array(confidence), np.array(inside))


def counted_members(shadows: membership.Shadows, confidence: Doubles, is_member: Mask, seed: int) -> Counted:
    """The attack's answers, and the figures of its variants."""
    aligned, rng = shadows.aligned(confidence), np.random.default_rng([seed, 38])
    kinds = {"lira": membership.lira, "offline": membership.lira_offline, "rmia": membership.rmia}
    scores = {name: kind(shadows, aligned) for name, kind in kinds.items()} | {"confidence": confidence}
    details = membership.measured(scores["lira"][is_member], scores["lira"][~is_member])
    details |= {f"auc_{name}": membership.auc(s[is_member], s[~is_member]) for name, s in scores.items()}
    right = membership.answers_right(scores["lira"], is_member, rng)
    n = int(is_member.sum())  # one entry per pair of a member and a stranger keeps the two in balance
    return Counted((right[:n] + right[n:]) / 2, np.full(n, 0.5), details)


# --- what it tells about known people --------------------------------------------------------------------------------


def attribute_from_answers(people: People) -> list[Finding]:
    """Ask about members, every attribute in turn unknown; guessing is the same with a model that does not know them."""
    if people.X.shape[1] > MOST_COLUMNS:
        return []
    prior, asked = people.prior, people.thirds[0][:MOST_ASKED]
    attributes = attributes_of(prior, one_hot_groups(people.X[people.thirds[2]]))
    rows, y = prior.standard(people.X[asked]), people.y[asked]
    with_model, without = (
        query.attributes_by_query(partial(_ask, people, model, y), rows, attributes, prior)
        for model in (people.model, people.twin)
    )
    imputed = float(query.attributes_by_query(None, rows, attributes, prior).mean())
    sentence = (
        "Whoever knows a member but for one attribute, and may ask the model, gets that attribute right in {success} "
        f"of all cases; with a model trained without that person, in {{guess}}; with no model, in {imputed:.1%}."
    )
    counted = Counted(with_model, without, {"imputed": imputed})
    return [finding("attribute_from_answers", MODEL, counted, sentence)]


def _ask(people: People, model: Model, y: AnyArray, rows: Doubles) -> Doubles:
    """The log likelihood of the labels; several versions of each row follow each other."""
    repeated = np.repeat(y, len(rows) // len(y), axis=0)
    confidence = people.confidence(model, rows * people.prior.deviation + people.prior.mean, repeated)
    return np.asarray(-np.logaddexp(0, -confidence)) if people.loss.classifies else confidence


# --- which rows are behind it ----------------------------------------------------------------------------------------


def rows_from_all_trees(people: People, effort: int = timberstrike.PROPOSALS) -> list[Finding]:
    """The other parties' rows: by a party, by somebody who has the model alone, and by whoever sees leaf sums."""
    if not people.loss.classifies or people.loss.is_multi or people.X.shape[1] > MOST_COLUMNS:
        return []
    found = []
    for seen in views_of(people):
        sentence = (
            f"{seen.who} finds rows of which {{success}} of the values agree with the rows of the others, as paired by "
            "TimberStrike's measure; rows made up without the model: {guess}."
        )
        counted = reconstruct(people, seen, effort)
        found.append(finding("rows_from_all_trees", [seen.role], counted, sentence, "values of paired rows that agree"))
    return found


@dataclass(frozen=True)
class Seen:
    """What a role has of the trees: the model, its own rows, and the leaf sums of one batch in `sums_every`."""

    role: Role
    who: str
    has_rows: bool
    sums_every: int = 0  # 0: no sums; 1: those of all batches


def views_of(people: People) -> list[Seen]:
    """Who can try, by recipe. Hub and parties of the joint recipe see no sums but what is said here."""
    views = [
        Seen("outsider", "Whoever has the model and knows the range of each column", False),
        Seen("other party", "A party that has the model", True),
    ]
    if parameters.is_private(people.params):
        return views  # all sums have noise: the values of the model are all that there is
    if people.params.recipe == "joint":
        turn = "A party that reads the sums of every batch that is its turn"
        views.append(Seen("other party", turn, True, people.parties))
        views.append(Seen("other party", "A party of the training", True, 1))
    elif people.params.leaf_values == "global":
        views.append(
            Seen("hub with a sample", "The hub, which sees the totals of all leaves, with rows like these", True, 1)
        )
    return views


def reconstruct(people: People, seen: Seen, effort: int, n_trees: int | None = None) -> Counted:
    """The attack of `timberstrike.py` beside the rows that it began with; from all trees, or from some, at random.

    Sums are given exactly, without the noise that the joint recipe adds: the attack can only do better than in life.
    """
    members, _, own = people.thirds
    batches, rate, reg_lambda = people.steps
    forest = timberstrike.forest_of(people.model, batches)
    equations = timberstrike.Equations.of_values(forest, rate, reg_lambda)
    mine, theirs = (forest.sums(people.X[part], people.y[part]) for part in (own, members))
    if seen.sums_every:
        _, batch = np.unique(forest.before[forest.tree_of_node], return_inverse=True)
        equations = equations.with_sums(mine[0] + theirs[0], mine[1] + theirs[1], batch % seen.sums_every == 0)
    if seen.has_rows:
        equations = equations.without(*mine)
    if n_trees is not None:
        drawn = np.random.default_rng(people.seed).permutation(len(forest.start))[:n_trees]
        equations = equations.only(np.isin(forest.tree_of_node, drawn))
    target = members if seen.has_rows else np.concatenate([members, own])
    start, pool = first_guess(people, len(target), seen.has_rows)
    found = timberstrike.rows_behind(forest, equations, start, pool, people.seed, effort)
    truth, categories = np.column_stack([people.X[target], people.y[target]]), np.append(people.is_category, True)
    tables = (np.column_stack(rows) for rows in (found, start))
    success, guess = (timberstrike.matched_share(table, truth, categories) for table in tables)
    misfits = [equations.misfit(*forest.sums(*rows)) for rows in (found, (people.X[target], people.y[target]))]
    details = dict(zip(("misfit", "misfit_of_truth"), misfits, strict=True))
    return Counted(success, guess, details | {"leaves": float(equations.asked.sum())})


def first_guess(people: People, n: int, has_rows: bool) -> tuple[tuple[AnyArray, AnyArray], AnyArray]:
    """Rows and labels to begin with, and the rows whose values are tried: the attacker's own, or made-up ones."""
    rng, own = np.random.default_rng([people.seed, 39]), people.thirds[2]
    if has_rows:
        drawn = rng.integers(0, len(own), n)
        return (people.X[own][drawn], people.y[own][drawn]), people.X[own]
    levels = [
        np.unique(c[~np.isnan(c)]) if few else None for c, few in zip(people.X.T, people.is_category, strict=True)
    ]
    pool = timberstrike.uniform_rows(
        np.nanmin(people.X, axis=0), np.nanmax(people.X, axis=0), levels, MADE_UP, people.seed
    )
    return (pool[rng.integers(0, MADE_UP, n)], rng.integers(0, 2, n).astype(np.float32)), pool


# --- all of them -----------------------------------------------------------------------------------------------------

TRIALS: dict[str, Callable[[People], list[Finding]]] = {
    "members_from_answers": members_from_answers,
    "attribute_from_answers": attribute_from_answers,
    "rows_from_all_trees": rows_from_all_trees,
}
