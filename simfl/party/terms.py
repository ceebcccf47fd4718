"""What a party has agreed to, and holds the hub to, whatever arrives. Every refusal names the rule.

Between machines the terms come from the party's own copy of the study, never from a message. In one process there are
none: hub and parties are one program. What a rule is about follows from the study and from what the party itself has
sent before; a question that does not fit is refused before anything is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from simfl import messages as msg
from simfl import wire
from simfl.arrays import AnyArray
from simfl.data.schema import Schema
from simfl.errors import PrivacyError
from simfl.params import (
    BINS,
    BUILDER_BINS,
    COARSE_BINS,
    OF_RECIPE,
    SPREAD,
    Params,
    SearchParams,
    guarded_columns,
    is_private,
    search_of,
    with_numbers,
)
from simfl.party import joint_terms
from simfl.party.similar import sizes_in
from simfl.preprocessing.scaling import WITHOUT_WEIGHT, Scale
from simfl.privacy.guard import n_hashes_of
from simfl.training.losses import is_multi, labels_of, only_finds_splits, settings_of
from simfl.training.schedule import builder_of

MOST_SUMS = 2**30  # bytes of sums onto the rows of one party: they are allocated before they are sent
EXACT_BYTES = 7  # of a word: from there on gradients and hessians are rounded to the nearest
NARROWEST = 0.05  # of the spread of this party's own projections: a finer bucket would tell single values apart
FAR = 100.0  # times: a party's own spread in a column differs from that of all rows by no more
# What the hub settles where the study leaves it open, and the values that it may choose.
SETTLED: dict[str, tuple[Any, ...]] = {"subsample": (0.5, 1.0), "max_bin": (COARSE_BINS, BUILDER_BINS, BINS)}


@dataclass(frozen=True)
class Terms:
    """The study as this party approved it."""

    parties: tuple[str, ...]
    params: Params
    min_parties: int = 2
    schema: Schema | None = None  # where the study declares columns

    @property
    def masked(self) -> bool:
        """Whether sums must be masked: always, unless the study says no or there is nobody to hide among."""
        return len(self.parties) > 1 and self.params.masked is not False

    @property
    def shares_rows(self) -> bool:
        """Whether sums onto rows are sent."""
        return len(self.parties) > 1 and bool(self.params.n_neighbors)

    @property
    def sums_features(self) -> bool:
        """Whether moments of the features are summed: for a common scale, or for the width of buckets."""
        return self.shares_rows and (self.search.scale != "none" or self.search.bucket_width is None)

    @property
    def search(self) -> SearchParams:
        """What decides which rows resemble each other."""
        return search_of(self.params)


@dataclass
class Rules:
    """Checks every question against the terms, and remembers what was asked before."""

    name: str
    terms: Terms
    n_features: int  # of this party's table
    exchanged: tuple[str, ...] = ()  # those with whom keys were exchanged last, this party included
    first: dict[type, Any] = field(default_factory=dict)  # of questions that have one answer in a run
    new: dict[type, Any] = field(default_factory=dict)  # the same of the question under way
    round: int = -1  # the newest
    begun: bool = False  # whether it began since the last start
    asked: dict[type, tuple[bytes, msg.Reply]] = field(default_factory=dict)  # in the newest round
    starts: int = 0
    n_outputs: int = 1  # trees of a round
    n_adopted: int = 0  # rounds whose trees were adopted since the last start
    adopted: list[list[msg.Array]] = field(default_factory=list)  # leaf values of all rounds that ever were
    last_adopted: int = -1  # the last of them
    used: int = -1  # the most of them that the gradients of a round came from
    passed: int = 0  # rounds whose gradients were no newer than those of a round before
    decided: list[bytes] = field(default_factory=list)  # for trees grown together, as far as this party knows
    settled: list[bytes] = field(default_factory=list)  # of it: what no start may take back
    present: frozenset[str] = frozenset()  # those with whom keys were exchanged when the newest round began
    ended: frozenset[str] | None = None  # those with whom keys were exchanged when the training ended
    rematched: dict[int, int] = field(default_factory=dict)  # per search during the training: what was adopted then
    n_rows: dict[str, int] = field(default_factory=dict)  # of all parties, from the search before the training

    def copy(self) -> Rules:
        """As they are now. What has one answer in a run (`first`) is common to both."""
        twin = object.__new__(Rules)  # for every message: `dataclasses.replace` would take four times as long
        twin.__dict__ |= self.__dict__ | {n: getattr(self, n).copy() for n in ("rematched", "adopted")}
        return twin

    def refuse_unless(self, holds: bool, rule: str) -> None:
        """Refuse a question that breaks this rule."""
        if not holds:
            raise PrivacyError(f"Party {self.name!r} refuses: {rule}. It sends nothing.")

    def check(self, question: msg.Request) -> msg.Reply | None:
        """Refuse what the terms do not allow. Returns the earlier answer where the same was asked before."""
        joint_terms.check_recipe(self, question)
        self.new, check = {}, self._checks.get(type(question))
        return check(self, question) if check else None

    def answered(self, question: msg.Request, reply: msg.Reply) -> None:
        """Remember with whom keys were exchanged, what has one answer in a run, and the answers of the newest round."""
        self.first |= self.new
        if isinstance(question, msg.TakeKeys):
            self.exchanged = tuple(sorted(question.keys))
        if isinstance(question, msg.SumOntoRows | msg.Grow | msg.SumPerLeaf):
            self.asked[type(question)] = (wire.encode(question), reply)

    def _once(self, kind: type, fact: Any, rule: str) -> None:
        """What is asked for again must be the same as the first time."""
        self.refuse_unless(self.first.get(kind, fact) == fact, f"{rule}, as the first time in this run")
        self.new[kind] = fact

    def _describe(self, question: msg.Describe) -> None:
        terms = self.terms.params
        share = terms.validation_fraction
        self.refuse_unless(question.validation_fraction == share, f"the study sets {share:g} of the rows aside")
        seed = terms.random_state
        self.refuse_unless(seed is None or question.seed == seed, f"the study's random_state is {seed}")
        self.refuse_unless(question.private == is_private(terms), "rows are counted unless the study has epsilon")
        self._once(msg.Describe, (question.validation_fraction, question.seed), "the same rows are set aside")

    def _check_seed(self, seed: int) -> None:
        _, first = self.first[msg.Describe]
        self.refuse_unless(seed == first, f"one seed serves a run, {first}")

    def _settle(self, question: msg.Settle) -> None:
        if self.terms.schema is not None:
            same = Schema(tuple(question.columns)) == self.terms.schema
            self.refuse_unless(same, "the columns and levels are those of the study")
        self._once(msg.Settle, tuple(question.columns), "the columns are the same")

    def _take_keys(self, question: msg.TakeKeys) -> None:
        names = tuple(sorted(question.keys))
        strangers = [name for name in names if name not in self.terms.parties]
        self.refuse_unless(not strangers, f"keys are exchanged with parties of the study only, not with {strangers}")
        enough = len(names) >= self.terms.min_parties
        self.refuse_unless(enough, f"at least {self.terms.min_parties} parties take part (min_parties)")

    def _sum(self, question: msg.SumFeatures | msg.SumLabels) -> None:
        classes, train = None, self.terms.params
        if isinstance(question, msg.SumLabels):
            classes = question.classes
            own = (question.objective, question.settings) == (train.objective, settings_of(train))
            self.refuse_unless(own, f"the study's objective is {train.objective}")
            self.check_classes(classes)
        else:
            self.refuse_unless(self.terms.sums_features, "nothing in the study needs sums of features")
        self._once(type(question), (self.exchanged, classes), "sums of features and labels are over the same parties")

    def check_classes(self, classes: list[Any] | None) -> None:
        """Labels are classes or numbers, as the objective says. Two classes are 0 and 1: more would be steeper.

        Counts of a regression's labels would be a histogram of them.
        """
        objective = self.terms.params.objective
        few = classes is None or is_multi(objective) or len(classes) == 2
        fits = few and (classes is not None) == (labels_of(objective) == "classes")
        self.refuse_unless(fits, f"the study's objective is {objective}")

    @property
    def _n_hashes(self) -> int:
        return n_hashes_of(self.terms.search, self.n_features)

    def _hash(self, question: msg.Hash) -> None:
        terms = self.terms.search
        blind = terms.matching == "blind"
        self.refuse_unless(self.terms.shares_rows, "the study looks for no similar rows")
        self.refuse_unless((question.seed is None) == blind, f"the study says matching = {terms.matching}")
        if question.seed is not None:
            self._check_seed(question.seed)
        wanted = self._n_hashes
        self.refuse_unless(question.n_hashes == wanted, f"the study has {wanted} hash values per row")
        few = wanted < guarded_columns(terms, self.n_features)
        self.refuse_unless(few, "fewer hash values than unknown columns (L < d)")
        self.refuse_unless(question.law == terms.hash_law, f"the study's hash_law is {terms.hash_law}")
        given = terms.bucket_width
        self.refuse_unless(given is None or question.bucket_width == given, f"the study's bucket_width is {given}")
        self.refuse_unless(question.bucket_width > 0, "a bucket has a width")
        self._once(msg.Hash, wire.encode(question), "rows are hashed in one way")

    def _hash_by_trees(self, question: msg.HashByTrees) -> None:
        blind = self.terms.search.matching == "blind"
        self.refuse_unless(question.blind == blind, f"the study says matching = {self.terms.search.matching}")
        self.refuse_unless(bool(self.terms.shares_rows and self.terms.search.rematch), "the study has no rematch")
        self.refuse_unless(question.n_hashes == self._n_hashes, "no more leaves than hash values")
        adopted = self.n_adopted + bool(question.previous)
        same = self.rematched.get(question.round, adopted) == adopted
        self.refuse_unless(same, f"the search of round {question.round} is after the same trees")
        most = self.terms.params.n_trees.bit_length() + self.starts  # when their number doubles, or somebody is back
        searches = len({*self.rematched, question.round})
        self.refuse_unless(searches <= most, f"similar rows are searched at most {most} times")
        self._adopt(question.previous)
        self.rematched[question.round] = adopted

    def check_scale(self, question: msg.Hash, own: Scale, groups: AnyArray) -> None:
        """No column may count alone: the scale of all rows follows from sums that only the hub knows, but not freely.

        The variance of all rows is at least a party's share of the rows times its own variance. Other parties can
        spread more widely than this one; but a column that hardly counts here is not one of the unknown columns.
        A refusal tells the hub something of this party's rows. So there is one scale, refused or not.
        """
        self.first |= self.new
        mean, deviation = (wire.unpack(array, "f8", own.mean.shape) for array in (question.mean, question.deviation))
        if self.terms.search.scale == "none":
            self.refuse_unless(
                bool((mean == 0).all() and (deviation == 1).all()), "the recipe leaves features on their own scale"
            )
            return
        self.refuse_unless(bool((deviation > 0).all()), "a deviation is above zero")
        varies = own.deviation < WITHOUT_WEIGHT
        spread = np.where(varies, own.deviation / deviation, 0.0)  # of this party's rows, in the hub's units
        self.refuse_unless(spread.max() <= FAR, f"its rows spread more than {FAR:g} times as widely as the hub's scale")
        n = guarded_columns(self.terms.search, self.n_features)
        left = n - len({*groups[varies]} - {*groups[spread * FAR >= 1]})
        few = question.n_hashes < left
        rule = f"the hub's scale leaves {left} of {n} columns, for {question.n_hashes} hash values (L < d)"
        self.refuse_unless(few, f"{rule}. Outliers of another party can be the cause: ask the others")

    def check_spread(self, spread: float, question: msg.Hash) -> None:
        """Buckets must not be narrow beside the spread of this party's own rows, unless the study says how wide."""
        wide = self.terms.search.bucket_width is not None or question.bucket_width >= NARROWEST * spread
        self.refuse_unless(wide, f"buckets of {question.bucket_width:g} are too narrow for this party's rows")

    def _match(self, question: msg.Match | msg.TakeSimilar) -> None:
        blind = self.terms.search.matching == "blind"
        fits = isinstance(question, msg.TakeSimilar) == blind
        self.refuse_unless(fits, f"the study says matching = {self.terms.search.matching}")
        self._known_names(question.parties)
        self.refuse_unless(self.name in question.parties, "this party is one of those that are matched")
        others = {*question.parties} - {self.name}
        shown = question.similar if isinstance(question, msg.TakeSimilar) else question.tables
        sized = sizes_in(question)
        self.refuse_unless(self.name not in shown, "similar rows are those of other parties")
        self.refuse_unless({*shown} == others, "similar rows are those of all that are matched")
        self.refuse_unless({*sized} == others and len(question.parties) == len(others) + 1, "every party is named once")
        self.refuse_unless(bool(others), "similar rows are those of other parties")
        if isinstance(question, msg.Match):
            n = self.terms.search.n_neighbors
            self.refuse_unless(question.n_neighbors == n, f"the study has {n} similar rows per row")
            most = self.terms.search.max_candidates or None
            rule = f"the recipe compares a row with {most or 'all'} rows of each party"
            self.refuse_unless(question.max_candidates == most, rule)
        same = all(self.n_rows.get(other, n) == n for other, n in sized.items())
        self.refuse_unless(same, "a party has as many rows as before")
        self._check_sums(sized, self.n_outputs)

    def _check_sums(self, n_rows: Mapping[str, int], n_outputs: int) -> None:
        fits = 8 * n_outputs * max(n_rows.values(), default=0) <= MOST_SUMS
        self.refuse_unless(fits, f"no sums are larger than {MOST_SUMS} bytes")

    def _known_names(self, names: Iterable[str]) -> None:
        strangers = [name for name in names if name not in self.terms.parties]
        self.refuse_unless(not strangers, f"the study has no party {strangers}")

    def _describe_labels(self, question: msg.DescribeLabels) -> None:
        objective = self.terms.params.objective
        self.refuse_unless(not is_private(self.terms.params), "the study declares the classes: nobody asks for them")
        self.refuse_unless(question.objective == objective, f"the study's objective is {objective}")

    def _start(self, question: msg.Start) -> None:
        terms = self.terms
        self.check_params(question.params)
        self.check_classes(question.classes)
        several = is_multi(terms.params.objective)
        n_outputs = len(question.classes or ()) if several else 1
        self.refuse_unless(len(question.base_margin) == n_outputs, f"the study has {n_outputs} outputs")
        self.refuse_unless(not question.warm_start, "a study begins from nothing")
        if terms.masked:
            self.refuse_unless(question.n_parties == len(self.exchanged), "sums are over those who exchanged keys")
        n = len(terms.parties)
        self.refuse_unless(min(terms.min_parties, n) <= question.n_parties <= n, f"{n} parties take part")
        self.refuse_unless(self.starts < 10 * n, f"a training starts again at most {10 * n} times")
        self._check_sums(self.n_rows, n_outputs)
        self._check_seed(question.seed)
        self._once(msg.Start, (question.classes, question.base_margin), "a training starts alike")
        self.starts, self.n_adopted, self.last_adopted = self.starts + 1, 0, -1
        self.n_outputs, self.begun = n_outputs, False

    def check_params(self, params: Params, *, exactly: bool = False) -> None:
        """The parameters are those of the study, but for what the hub settles: with `exactly`, nothing but a seed."""
        terms = self.terms
        wanted = with_numbers(terms.params, terms.schema.names if terms.schema else None, self.n_features)
        same = params.recipe == wanted.recipe
        self.refuse_unless(same, f"the study has recipe = {wanted.recipe}, not {params.recipe}")
        self.refuse_unless(
            type(params) is type(wanted), f"the study has {'epsilon' if is_private(wanted) else 'no epsilon'}"
        )
        for name in wanted.__struct_fields__:
            mine, theirs = getattr(wanted, name), getattr(params, name)
            if name == "random_state" and mine is None:
                continue  # the run's seed: every start has that of the first
            if not exactly and self._may_settle(name, mine, theirs):
                continue
            told = OF_RECIPE.get(name, f"the study has {name} = {mine}, not {theirs}")
            self.refuse_unless(mine == theirs, told)

    def _may_settle(self, name: str, mine: Any, theirs: Any) -> bool:
        """Whether the hub may choose this value."""
        terms = self.terms
        if name in ("leaf_values", "extra_depth"):
            return len(terms.parties) == 1  # one party's own leaf values are exact
        if name == "rematch":
            return not terms.shares_rows and theirs == 0
        if name == "label_spread":
            return mine is None and terms.params.objective in SPREAD  # from the label sums of all parties
        return mine is None and theirs in SETTLED.get(name, ())

    def _replay(self, question: msg.Replay) -> None:
        for trees in question.rounds:
            self._adopt(trees)

    def _finish(self, question: msg.Finish) -> None:
        """Metrics are sums, too: over others than the first time, or fewer, they would differ by one party's."""
        now = frozenset(self.exchanged)
        fits = self.ended is None or now <= self.ended
        self.refuse_unless(fits, "a training ends over the parties that it ended over before, or fewer")
        self._adopt(question.previous)
        self.ended = now

    def _adopt(self, trees: list[msg.AdoptedTree]) -> None:
        """Count the rounds whose trees become part of the model."""
        if trees:
            self.refuse_unless(self.n_adopted < self.terms.params.n_trees, "no more rounds than the study has")
            self._check_number(len(trees))
            self._check_size([tree.structure for tree in trees if tree.structure is not None])
            signed = [tree.signed for tree in trees if tree.signed is not None]
            number = signed[0].round if signed else self.round  # values alone: of the trees just summed over
            in_turn = not signed or number > self.last_adopted
            self.refuse_unless(in_turn, f"trees of round {number} are adopted in their turn")
            beside = all(tree.structure is not None for tree in trees if tree.signed is not None)
            self.refuse_unless(beside, "a signature comes with its tree")
            self._check_signers(signed, number)
            self._stays_adopted([tree.values for tree in trees])
            self.n_adopted, self.last_adopted = self.n_adopted + 1, number

    def _stays_adopted(self, values: list[msg.Array]) -> None:
        """After a new start the model is the same again: other leaf values would be other questions about the rows."""
        if self.n_adopted == len(self.adopted):
            self.adopted.append(values)
        self.refuse_unless(self.adopted[self.n_adopted] == values, "trees that were adopted stay as they are")

    def _check_signers(self, signed: list[msg.Signed], number: int) -> None:
        """Trees are signed for their round, by whose turn it was. `signing.py` refuses what is not signed."""
        if not signed:
            return
        rounds = {own.round for own in signed}
        self.refuse_unless(rounds == {number}, f"trees of round {number} are signed for it, not for {sorted(rounds)}")
        builder = builder_of(number, self.terms.parties)
        own = [one.builder for one in signed] == [builder] * self.n_outputs
        self.refuse_unless(own, f"the trees of round {number} are signed by {builder!r}, whose turn it was")

    def _check_number(self, n: int) -> None:
        self.refuse_unless(n == self.n_outputs, f"a round has {self.n_outputs} trees, not {n}")

    def _in_round(self, question: msg.SumOntoRows | msg.Grow | msg.SumPerLeaf) -> msg.Reply | None:
        self.refuse_unless(question.round >= self.round, f"round {question.round} is over")
        if question.round == self.round and (known := self.asked.get(type(question))):
            self.refuse_unless(known[0] == wire.encode(question), f"round {question.round} is answered once")
            return known[1]
        ended = question.round == self.round and not self.begun
        self.refuse_unless(not ended, f"round {question.round} ended when the training started again")
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
        """Every round has new gradients, but for a few: where a party was lost, its turn passes to those who are left.

        So a turn passes once per lost party, and who is back waits for the next tree.
        """
        passes, now = self.n_adopted + bool(question.previous) <= self.used, frozenset(self.exchanged)
        fewer = not passes or not self.terms.masked or now < self.present
        self.refuse_unless(fewer, "a round without a new tree is over fewer parties than the one before")
        most = len(self.terms.parties)
        self.refuse_unless(self.passed + passes <= most, f"at most {most} rounds pass without a new tree")
        self._adopt(question.previous)
        self.round, self.begun, self.asked, self.present = question.round, True, {}, now
        self.passed, self.used = self.passed + passes, max(self.used, self.n_adopted)

    def _turn(self, question: msg.SumOntoRows | msg.Grow) -> None:
        """Whether the one builds whose turn it is."""
        long_enough = question.word_bytes >= EXACT_BYTES or only_finds_splits(self.terms.params)
        self.refuse_unless(long_enough, f"the study's sums onto rows take at least {EXACT_BYTES} bytes")
        builder = question.builder if isinstance(question, msg.SumOntoRows) else self.name
        next_one = builder_of(question.round, self.terms.parties)
        self.refuse_unless(builder == next_one, f"in round {question.round} it is the turn of {next_one!r}")
        if isinstance(question, msg.SumOntoRows):
            self.refuse_unless(builder != self.name, "a builder is not asked for sums onto its rows")

    def _leaf_sums(self, question: msg.SumPerLeaf) -> None:
        self.refuse_unless(question.round == self.round, "leaf sums follow the growing of their trees")
        exact = self.terms.params.leaf_values == "global" and len(self.terms.parties) > 1
        self.refuse_unless(exact, "the recipe takes leaf values from the builder")
        self._check_number(len(question.trees))
        self._check_size(question.trees)
        self._check_signers(question.signed, question.round)

    def _check_size(self, trees: list[msg.TreeStructure]) -> None:
        """A tree has at most as many leaves as the study allows, and as its builder has rows."""
        params, limits = self.terms.params, [max(self.n_rows.values())] if self.n_rows else []
        if params.max_depth:
            limits.append(2 ** (params.max_depth + params.extra_depth))
        fits = not limits or all(t.n_nodes < 2 * min(limits) for t in trees)
        self.refuse_unless(fits, "no tree is larger than the study allows")

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
        msg.StartTogether: joint_terms.start,
        msg.SendModel: joint_terms.send_model,
    }
