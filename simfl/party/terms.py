"""What a party has agreed to, and holds the hub to, whatever arrives. Every refusal names the rule.

Between machines the terms come from the party's own copy of the study, never from a message. In one process there are
none: hub and parties are one program. What a rule is about follows from the study and from what the party itself has
sent before; a question that does not fit is refused before anything is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from simfl import messages as msg
from simfl import wire
from simfl.data.schema import Schema
from simfl.errors import PrivacyError
from simfl.params import PrepareParams, TrainParams, guarded_columns, with_numbers
from simfl.privacy.guard import default_hashes

MOST_ROWS = 2**28  # of one party: sums onto its rows are allocated before they are sent
NARROWEST = 0.05  # of the spread of this party's own projections: a finer bucket would tell single values apart
# What the hub settles where the study leaves it open, and the values that it may choose.
SETTLED: dict[str, tuple[Any, ...]] = {"subsample": (0.5, 1.0), "max_bin": (64, 256)}


@dataclass(frozen=True)
class Terms:
    """The study as this party approved it."""

    parties: tuple[str, ...]
    prepare: PrepareParams
    train: TrainParams
    min_parties: int = 2
    schema: Schema | None = None  # where the study declares columns

    @property
    def masked(self) -> bool:
        """Whether sums must be masked: always, unless the study says no or there is nobody to hide among."""
        return len(self.parties) > 1 and self.train.masked is not False

    @property
    def n_rounds(self) -> int:
        """How many rounds there can be."""
        trees, n = self.train.n_trees, len(self.parties)
        return -(-trees // n) if self.train.turns == "all" else trees

    @property
    def shares_rows(self) -> bool:
        """Whether sums onto rows are sent."""
        return len(self.parties) > 1 and bool(self.prepare.n_neighbors)


@dataclass
class Rules:
    """Checks every question against the terms, and remembers what was asked before."""

    name: str
    terms: Terms
    exchanged: tuple[str, ...] = ()  # those with whom keys were exchanged last, this party included
    first: dict[type, Any] = field(default_factory=dict)  # of questions that have one answer in a run
    round: int = -1  # the newest
    begun: bool = False  # whether it began since the last start
    asked: dict[type, tuple[bytes, msg.Reply]] = field(default_factory=dict)  # in the newest round
    starts: int = 0
    n_outputs: int = 1  # trees of a builder per round
    adopted: int = 0  # rounds whose trees were adopted since the last start
    used: int = -1  # the most of them that the gradients of a round came from
    passed: int = 0  # rounds whose gradients were no newer than those of a round before
    rematched: dict[int, int] = field(default_factory=dict)  # per search during the training: what was adopted then

    def refuse_unless(self, holds: bool, rule: str) -> None:
        """Refuse a question that breaks this rule."""
        if not holds:
            raise PrivacyError(f"Party {self.name!r} refuses: {rule}. It sends nothing.")

    def check(self, question: msg.Request, n_features: int) -> msg.Reply | None:
        """Refuse what the terms do not allow. Returns the earlier answer where the same was asked before."""
        check = self._checks.get(type(question))
        return check(self, question, n_features) if check else None

    def answered(self, question: msg.Request, reply: msg.Reply) -> None:
        """Remember with whom keys were exchanged, and the answers of the newest round."""
        if isinstance(question, msg.TakeKeys):
            self.exchanged = tuple(sorted(question.keys))
        if isinstance(question, msg.SumOntoRows | msg.Grow | msg.SumPerLeaf):
            self.asked[type(question)] = (wire.encode(question), reply)

    def _once(self, kind: type, fact: Any, rule: str) -> None:
        """What is asked for again must be the same as the first time."""
        self.refuse_unless(self.first.setdefault(kind, fact) == fact, f"{rule}, as the first time in this run")

    def _describe(self, question: msg.Describe, _: int) -> None:
        terms = self.terms.prepare
        share = terms.validation_fraction
        self.refuse_unless(question.validation_fraction == share, f"the study sets {share:g} of the rows aside")
        seed = terms.random_state
        self.refuse_unless(seed is None or question.seed == seed, f"the study's random_state is {seed}")
        self._once(msg.Describe, (question.validation_fraction, question.seed), "the same rows are set aside")

    def _settle(self, question: msg.Settle, _: int) -> None:
        if self.terms.schema is not None:
            same = Schema(tuple(question.columns)) == self.terms.schema
            self.refuse_unless(same, "the columns and levels are those of the study")
        self._once(msg.Settle, tuple(question.columns), "the columns are the same")

    def _take_keys(self, question: msg.TakeKeys, _: int) -> None:
        names = tuple(sorted(question.keys))
        strangers = [name for name in names if name not in self.terms.parties]
        self.refuse_unless(not strangers, f"keys are exchanged with parties of the study only, not with {strangers}")
        enough = len(names) >= self.terms.min_parties
        self.refuse_unless(enough, f"at least {self.terms.min_parties} parties take part (min_parties)")

    def _sum(self, question: msg.SumFeatures | msg.SumLabels, _: int) -> None:
        silent = isinstance(question, msg.SumLabels) and self.terms.train.epsilon is not None
        self.refuse_unless(not silent, "label sums are not sent under epsilon: they have no noise")
        classes = question.classes if isinstance(question, msg.SumLabels) else None
        self._once(type(question), (self.exchanged, classes), "sums of features and labels are over the same parties")

    def _n_hashes(self, n_features: int) -> int:
        terms = self.terms.prepare
        guarded = terms.original_features or n_features
        return terms.n_hashes or max(default_hashes(guarded, terms.known_features), 1)

    def _hash(self, question: msg.Hash, n_features: int) -> None:
        terms = self.terms.prepare
        blind = terms.matching == "blind"
        self.refuse_unless(self.terms.shares_rows, "the study looks for no similar rows")
        self.refuse_unless((question.seed is None) == blind, f"the study says matching = {terms.matching}")
        wanted = self._n_hashes(n_features)
        self.refuse_unless(question.n_hashes == wanted, f"the study has {wanted} hash values per row")
        few = wanted < guarded_columns(terms, n_features) or terms.allow_unsafe_hashes
        self.refuse_unless(few, "fewer hash values than unknown columns (L < d)")
        self.refuse_unless(question.law == terms.hash_law, f"the study's hash_law is {terms.hash_law}")
        given = terms.bucket_width
        self.refuse_unless(given is None or question.bucket_width == given, f"the study's bucket_width is {given}")
        self.refuse_unless(question.bucket_width > 0, "a bucket has a width")
        self._once(msg.Hash, wire.encode(question), "rows are hashed in one way")

    def _hash_by_trees(self, question: msg.HashByTrees, n_features: int) -> None:
        blind = self.terms.prepare.matching == "blind"
        self.refuse_unless(question.blind == blind, f"the study says matching = {self.terms.prepare.matching}")
        self.refuse_unless(bool(self.terms.shares_rows and self.terms.train.rematch), "the study has no rematch")
        self.refuse_unless(question.n_hashes == self._n_hashes(n_features), "no more leaves than hash values")
        adopted = self.adopted + bool(question.previous)
        same = self.rematched.get(question.round, adopted) == adopted
        self.refuse_unless(same, f"the search of round {question.round} is after the same trees")
        most = self.terms.train.n_trees.bit_length() + self.starts  # when their number doubles, or somebody is back
        searches = len({*self.rematched, question.round})
        self.refuse_unless(searches <= most, f"similar rows are searched at most {most} times")
        self._adopt(question.previous)
        self.rematched[question.round] = adopted

    def check_spread(self, spread: float, question: msg.Hash) -> None:
        """Buckets must not be narrow beside the spread of this party's own rows, unless the study says how wide."""
        wide = self.terms.prepare.bucket_width is not None or question.bucket_width >= NARROWEST * spread
        self.refuse_unless(wide, f"buckets of {question.bucket_width:g} are too narrow for rows that spread {spread:g}")

    def _match(self, question: msg.Match | msg.TakeSimilar, _: int) -> None:
        blind = self.terms.prepare.matching == "blind"
        fits = isinstance(question, msg.TakeSimilar) == blind
        self.refuse_unless(fits, f"the study says matching = {self.terms.prepare.matching}")
        self._known_names(question.parties)
        self.refuse_unless(self.name in question.parties, "this party is one of those that are matched")
        others = {*question.parties} - {self.name}
        shown = question.similar if isinstance(question, msg.TakeSimilar) else question.tables
        sized = question.n_rows if isinstance(question, msg.TakeSimilar) else question.tables
        self.refuse_unless(self.name not in shown, "similar rows are those of other parties")
        fresh = self.terms.prepare.ids == "fresh"
        self.refuse_unless({*shown} == (set() if fresh else others), "similar rows are those of all that are matched")
        self.refuse_unless({*sized} == others and len(question.parties) == len(others) + 1, "every party is named once")
        self.refuse_unless(bool(others), "similar rows are those of other parties")
        if isinstance(question, msg.Match):
            n = self.terms.prepare.n_neighbors
            self.refuse_unless(question.n_neighbors == n, f"the study has {n} similar rows per row")
            most = self.terms.prepare.max_candidates or None
            self.refuse_unless(question.max_candidates == most, f"the study's max_candidates is {most}")
        else:
            most = max(question.n_rows.values())
            self.refuse_unless(most <= MOST_ROWS, f"no party has more than {MOST_ROWS} rows")

    def _known_names(self, names: Iterable[str]) -> None:
        strangers = [name for name in names if name not in self.terms.parties]
        self.refuse_unless(not strangers, f"the study has no party {strangers}")

    def _describe_labels(self, question: msg.DescribeLabels, _: int) -> None:
        objective = self.terms.train.objective
        self.refuse_unless(question.objective == objective, f"the study's objective is {objective}")

    def _start(self, question: msg.Start, n_features: int) -> None:
        terms, names = self.terms, [c.name for c in self.terms.schema.columns] if self.terms.schema else None
        wanted = with_numbers(terms.train, names, n_features)
        for parameter in wanted.__struct_fields__:
            mine, theirs = getattr(wanted, parameter), getattr(question.params, parameter)
            may_settle = mine is None and theirs in SETTLED.get(parameter, ())
            if parameter in ("leaf_values", "extra_depth") and len(terms.parties) == 1:
                continue  # one party's own leaf values are exact
            if parameter == "rematch" and not terms.shares_rows and theirs == 0:
                continue
            if parameter == "random_state" and mine is None:
                continue  # the run's seed, which the next line holds
            self.refuse_unless(mine == theirs or may_settle, f"the study has {parameter} = {mine}, not {theirs}")
        grid, cuts = (question.mean, question.deviation), terms.train.cuts
        fits = all((part is not None) == (cuts == "shared") for part in grid)
        self.refuse_unless(fits, f"the study's cuts are {cuts}")
        several = terms.train.objective == "multi:softprob"
        n_outputs = len(question.classes or ()) if several else 1
        self.refuse_unless(len(question.base_margin) == n_outputs, f"the study has {n_outputs} outputs")
        self.refuse_unless(question.n_rounds == terms.n_rounds, f"the study has {terms.n_rounds} rounds")
        self.refuse_unless(question.shares_rows == terms.shares_rows, "what is shared follows from the study")
        self.refuse_unless(not question.warm_start, "a study begins from nothing")
        if terms.masked:
            self.refuse_unless(question.n_parties == len(self.exchanged), "sums are over those who exchanged keys")
        n = len(terms.parties)
        self.refuse_unless(min(terms.min_parties, n) <= question.n_parties <= n, f"{n} parties take part")
        self.refuse_unless(self.starts < 10 * n, f"a training starts again at most {10 * n} times")
        alike = (question.seed, question.classes, question.base_margin, *grid)
        self._once(msg.Start, alike, "a training starts alike")
        self.starts, self.adopted, self.n_outputs, self.begun = self.starts + 1, 0, n_outputs, False

    def _replay(self, question: msg.Replay, _: int) -> None:
        for trees in question.rounds:
            self._adopt(trees)

    def _finish(self, question: msg.Finish, _: int) -> None:
        self._adopt(question.previous)

    def _adopt(self, trees: list[msg.AdoptedTree]) -> None:
        """Count the rounds whose trees become part of the model."""
        if trees:
            self.refuse_unless(self.adopted < self.terms.n_rounds, "no more rounds than the study has")
            self._check_number(len(trees))
            self._check_size([tree.structure for tree in trees if tree.structure is not None])
            self.adopted += 1

    def _check_number(self, n: int) -> None:
        builders = len(self.terms.parties) if self.terms.train.turns == "all" else 1
        fits = 0 < n <= builders * self.n_outputs and n % self.n_outputs == 0
        self.refuse_unless(fits, f"a round has {self.n_outputs} trees of each builder, not {n} in all")

    def _in_round(self, question: msg.SumOntoRows | msg.Grow | msg.SumPerLeaf, _: int) -> msg.Reply | None:
        self.refuse_unless(question.round >= self.round, f"round {question.round} is over")
        if question.round == self.round and (known := self.asked.get(type(question))):
            self.refuse_unless(known[0] == wire.encode(question), f"round {question.round} is answered once")
            return known[1]
        over = question.round == self.round and not self.begun
        self.refuse_unless(not over, f"round {question.round} ended when the training started again")
        if isinstance(question, msg.SumPerLeaf):
            self._leaf_sums(question)
        else:
            self._turn(question)
            if question.round > self.round:
                self._new_round(question)
            else:
                self._adopt(question.previous)
        return None

    def _new_round(self, question: msg.SumOntoRows | msg.Grow) -> None:
        """Every round has new gradients, but for a few: where a party was lost, its turn passes."""
        passed = self.passed + (self.adopted + bool(question.previous) <= self.used)
        most = len(self.terms.parties)
        self.refuse_unless(passed <= most, f"at most {most} rounds pass without a new tree")
        self._adopt(question.previous)
        self.round, self.begun, self.asked = question.round, True, {}
        self.passed, self.used = passed, max(self.used, self.adopted)

    def _turn(self, question: msg.SumOntoRows | msg.Grow) -> None:
        """Whether those build whose turn it is."""
        turns, parties = self.terms.train.turns, self.terms.parties
        builders = question.builders if isinstance(question, msg.SumOntoRows) else [self.name]
        self._known_names(builders)
        if turns == "round_robin":
            next_one = parties[question.round % len(parties)]
            self.refuse_unless(builders == [next_one], f"in round {question.round} it is the turn of {next_one!r}")
        alone = turns == "all" or len(builders) == 1
        self.refuse_unless(alone and len({*builders}) == len(builders) > 0, f"the study's turns are {turns}")
        if isinstance(question, msg.SumOntoRows):
            sole = builders == [self.name] and turns != "all"
            self.refuse_unless(not sole, "a sole builder is not asked for sums onto its rows")
            fresh = self.terms.prepare.ids == "fresh"
            self.refuse_unless(fresh or not question.similar, "the study's ids last for the whole training")
            fits = {*question.similar} <= {*builders} - {self.name}
            self.refuse_unless(fits, "similar rows are those of other builders")
            late = question.round == self.round and msg.Grow in self.asked
            self.refuse_unless(not late, "the sums of a round come before its trees")

    def _leaf_sums(self, question: msg.SumPerLeaf) -> None:
        self.refuse_unless(question.round == self.round, "leaf sums follow the growing of their trees")
        exact = self.terms.train.leaf_values == "global" and len(self.terms.parties) > 1
        self.refuse_unless(exact, "the study takes leaf values from the builder")
        self._check_number(len(question.trees))
        self._check_size(question.trees)

    def _check_size(self, trees: list[msg.TreeStructure]) -> None:
        params = self.terms.train
        if params.max_depth:
            most = 2 ** (params.max_depth + (params.extra_depth or 0) + 1)
            self.refuse_unless(all(t.n_nodes < most for t in trees), "no tree is larger than the study allows")

    _checks: ClassVar[dict[type, Callable[..., msg.Reply | None]]] = {
        msg.Describe: _describe,
        msg.Settle: _settle,
        msg.TakeKeys: _take_keys,
        msg.SumFeatures: _sum,
        msg.SumLabels: _sum,
        msg.Hash: _hash,
        msg.HashByTrees: _hash_by_trees,
        msg.Match: _match,
        msg.TakeSimilar: _match,
        msg.DescribeLabels: _describe_labels,
        msg.Start: _start,
        msg.Replay: _replay,
        msg.SumOntoRows: _in_round,
        msg.Grow: _in_round,
        msg.SumPerLeaf: _in_round,
        msg.Finish: _finish,
    }
