"""The scenario of an audit: one party's table, split at random into an attacker, a victim and other parties.

Stage 1 and a training really run on the split, so that an audit attacks what the given parameters lead to, and
refuses what SimFL refuses.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xgboost as xgb
from scipy import sparse

from simfl import params as parameters
from simfl.arrays import Doubles, Floats, Ints, Longs, Table
from simfl.audit.attributes import attributes_of, one_hot_groups
from simfl.audit.views import Hashing, Prior, RowSumsView, seed_of
from simfl.data.schema import Schema
from simfl.data.table import as_labels, as_table, as_targets, as_weights, objective_for, plain_classes
from simfl.errors import DataError, ParameterError
from simfl.federation import prepare, train
from simfl.model import Model
from simfl.party import Party
from simfl.preprocessing.lsh import HashFamily
from simfl.preprocessing.scaling import Scale, common_scale, moments
from simfl.preprocessing.similarity import most_similar, order_by_likeness
from simfl.training.gradients import draw_similar
from simfl.training.groups import join_small_groups
from simfl.training.losses import in_xgboost, loss_of
from simfl.training.trees import Tree, all_trees

MOST_ROWS = 40_000  # of the table: of a larger one, this many are drawn at random
FEWEST_ROWS = 20  # of a party: fewer teach an attacker nothing
MOST_ATTACKED = 1000  # rows of the victim that the slower attacks are counted on
TREES_PER_PARTY = 10
TABLE = "The table to audit"
# In an audit all rows train, to the end: a study that sets some aside, or stops early, sends no more than that.
NOT_AUDITED = ("validation_fraction", "early_stopping_rounds")
VICTIM, ATTACKER = 0, 1  # places among the parties; the victim builds the first tree


@dataclass(frozen=True)
class HashedRows:
    """Hash functions, and the codes that they give everybody's rows."""

    hashing: Hashing
    attacker: Ints
    victim: Ints
    others: Ints

    @property
    def n_hashes(self) -> int:
        return len(self.hashing.offsets)


class Scenario:
    """Who has which rows. `others` are those of all parties but the attacker, the victim's first."""

    most_rows = MOST_ROWS

    def __init__(
        self,
        X: Any,
        y: Any,
        parties: int,
        seed: int,
        params: dict[str, Any],
        *,
        weight: Any = None,
        schema: Schema | None = None,
        leaves: bool = True,
        by_column: int | None = None,
    ) -> None:
        table, _ = as_table(X, TABLE)
        labels, each = as_labels(y, table.shape[0], TABLE), as_weights(weight, table.shape[0], TABLE)
        self.n_rows, self.seed, self.schema = table.shape[0], seed, schema
        self.leaves, self.by_column = leaves, by_column
        _check_size(self.n_rows, parties)
        given = params.get("objective", "auto")
        self.objective: str = objective_for(labels) if given == "auto" else given
        kept = {name: value for name, value in params.items() if name not in NOT_AUDITED}
        kept |= {"objective": self.objective}
        self.given = {name: value for name, value in kept.items() if name in parameters.TRAIN_NAMES}
        self.stage_2 = parameters.train_params(**kept)
        self.loss = loss_of(self.stage_2)
        chosen = np.sort(self._rng(1).permutation(self.n_rows)[: self.most_rows])
        self.X: Table = table[chosen]
        self.weight: Floats | None = None if each is None else each[chosen]
        known = plain_classes(labels[chosen]) if self.loss.classifies else None
        self.classes: list[Any] | None = None if known is None else list(range(max(len(known), 2)))
        self.y = as_targets(labels[chosen], self.loss, known, TABLE)
        self.dense: Doubles = (self.X.toarray() if sparse.issparse(self.X) else self.X).astype(np.float64)
        self.members = self._divided(len(chosen), parties)
        self.victim, self.attacker = self.members[VICTIM], self.members[ATTACKER]
        self.others = np.concatenate([rows for place, rows in enumerate(self.members) if place != ATTACKER])
        self._prepare(parameters.first_stage(kept) | {"random_state": seed})
        self.prior = Prior.of(self.dense[self.attacker])
        self.attributes = attributes_of(self.prior, one_hot_groups(self.dense[self.attacker]))
        if not self.attributes:
            raise DataError(f"{TABLE} has no column that varies. There is nothing to guess.")
        self.truth = self.prior.standard(self.dense[self.victim])
        self.sample = np.sort(self._rng(3).permutation(len(self.victim))[:MOST_ATTACKED])

    def _divided(self, n_rows: int, parties: int) -> list[Longs]:
        """The rows of each party."""
        return [np.sort(part) for part in np.array_split(self._rng(2).permutation(n_rows), parties)]

    def _rng(self, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, 20, purpose])

    def _prepare(self, given: dict[str, Any]) -> None:
        """Let the real stage 1 fill in the parameters."""
        parties = [
            Party(f"party {i}", self.X[rows], self.y[rows], self.weight_of(rows)) for i, rows in enumerate(self.members)
        ]
        self.ready = prepare(parties, **given)
        about = self.ready.about
        if not about.n_hashes or about.bucket_width is None:
            raise ParameterError("n_neighbors=0 hashes nothing. Audit with at least one similar row.")
        self.stage_1 = parameters.search_of(about.params)
        standard = self.stage_1.scale == "standard"
        self.scale = common_scale(moments(self.X), len(self.y)) if standard else Scale.none(self.X.shape[1])
        self.hashed = self.hash(about.n_hashes, about.bucket_width)

    def weight_of(self, rows: Longs) -> Floats | None:
        """How much these rows count; None: all alike."""
        return None if self.weight is None else self.weight[rows]

    def hash(self, n_hashes: int, width: float, draw: int = 0) -> HashedRows:
        """The codes of all rows with other hash functions. Draw 0 is the real one."""
        family = HashFamily.draw(self.seed + draw, n_hashes, self.X.shape[1], width, self.stage_1.hash_law)
        hashing = Hashing.of(family, self.scale)
        codes = hashing.codes(np.where(np.isnan(self.dense), self.scale.mean, self.dense))
        return HashedRows(hashing, codes[self.attacker], codes[self.victim], codes[self.others])

    @property
    def most_trees(self) -> int:
        """How many the parameters lead to."""
        return self.stage_2.n_trees

    @property
    def n_trees(self) -> int:
        """How many are grown here: a few per party or, where the leaves of rows are of interest, up to a rematch."""
        return (self.leaves and parameters.search_of(self.stage_2).rematch) or TREES_PER_PARTY * len(self.members)

    @cached_property
    def model(self) -> Model:
        """A real training."""
        return train(self.ready, callbacks=[], **self.given | {"n_trees": self.n_trees, "random_state": self.seed})

    @property
    def two_classes(self) -> bool:
        """Whether a label is one of two."""
        return self.loss.classifies and not self.loss.is_multi

    def trees(self, builder: int | None = None) -> list[Tree]:
        """All trees of the training, or those of one builder."""
        built_by = enumerate(record.builder for record in self.model.history)
        rounds = [r for r, name in built_by if builder is None or name == f"party {builder}"]
        return [tree for r in rounds for tree in all_trees(self.model.booster[r : r + 1])]

    @cached_property
    def start(self) -> Doubles:
        """The start value of the training, which everybody receives."""
        given = self.stage_2.base_score
        sums = self.loss.label_sums(self.y, self.weight, len(self.classes or ()))
        total = len(self.y) if self.weight is None else self.weight.sum(dtype=np.float64)
        start = self.loss.start(sums, float(total))
        return start if given is None else np.full(len(start), given)

    def similar(self, queries: Ints, seed: int) -> Ints:
        """The attacker's rows that rows with these codes resemble."""
        k = min(self.stage_1.n_neighbors or 1, len(self.attacker))
        found, _ = most_similar(queries, self.hashed.attacker, k=k, seed=seed, n_jobs=self.stage_1.n_jobs)
        return found

    def sums(self, min_group: int) -> tuple[RowSumsView, Ints]:
        """The first round's sums, the attacker being the builder; and its row that each foreign gradient went to.

        That is -1 for a row that is in no sum: no group can hide its weight.
        """
        similar = self.similar(self.hashed.others, self.seed)
        groups = draw_similar(similar, seed_of(self.seed, 5, 0))
        if min_group > 1:
            groups = self._joined(similar, groups, min_group)
        there = groups >= 0
        rows, n = self.others[there], len(self.attacker)
        return RowSumsView.of(groups[there], self.y[rows], n, self.loss, self.start, self.weight_of(rows)), groups

    def _joined(self, similar: Ints, drawn: Ints, min_group: int) -> Ints:
        """The same after every party has joined its groups that are too small."""
        found, weight = np.full_like(drawn, -1), self.weight_of(self.others)
        sizes = [len(rows) for place, rows in enumerate(self.members) if place != ATTACKER]
        for part in np.split(np.arange(len(drawn)), np.cumsum(sizes)[:-1]):
            near = order_by_likeness(self.hashed.others[part])
            own = None if weight is None else weight[part]
            joined = join_small_groups(similar[part], drawn[part], near, len(self.attacker), min_group, own)
            if joined is None:
                raise _too_few(min_group, len(part))
            found[part if joined.rows is None else part[joined.rows]] = joined.goes_to
        return found

    @cached_property
    def own_model(self) -> xgb.Booster:
        """A model of the attacker's rows."""
        classes = {"num_class": len(self.classes or ())} if self.loss.is_multi else {}
        options = {"max_depth": 4, "learning_rate": 0.2, "verbosity": 0, "nthread": 1}
        own = self.attacker
        rows = xgb.DMatrix(self.X[own], label=self.y[own], weight=self.weight_of(own))
        return xgb.train(in_xgboost(self.stage_2) | options | classes, rows, 40)

    def believed(self, X: Table) -> Doubles:
        """What the attacker's own model says about rows: a probability per class, or a number."""
        margin = self.own_model.predict(xgb.DMatrix(X), output_margin=True)
        p = self.loss.predicted(margin).astype(np.float64)
        return np.column_stack([1 - p, p]) if self.two_classes else p.reshape(len(p), -1)

    def prior_labels(self, n: int) -> Doubles:
        """What the attacker's own labels say about anybody's: the shares of the classes, or the mean."""
        own = self.y[self.attacker]
        if not self.loss.classifies:
            return np.full((n, 1), float(own.mean()))
        shares = np.bincount(own.astype(np.int64), minlength=len(self.classes or ())) / len(own)
        return np.tile(shares, (n, 1))

    def labels_right(self, belief: Doubles) -> Doubles:
        """Per row of the victim: the chance that the likeliest label is the true one; ties are guessed."""
        y = self.y[self.victim]
        if not self.loss.classifies:
            return (np.abs(belief[:, 0] - y) <= 0.5 * float(self.y[self.attacker].std())).astype(np.float64)
        top = belief >= belief.max(axis=1, keepdims=True) - 1e-9
        return np.asarray(top[np.arange(len(y)), y.astype(np.int64)] / top.sum(axis=1))


def _too_few(min_group: int, n_rows: int) -> ParameterError:
    """Why a party of this audit can form no group: for the number of its rows, or for their weights."""
    there = f"{n_rows} rows that a party has in this audit"
    fact, step = f"min_group={min_group} is more than the {there}", ""
    if n_rows >= min_group:
        fact = f"Fewer than min_group={min_group} of the {there} have a weight that a group can hide"
        step = ", or with weights that differ less"
    return ParameterError(
        f"{fact}: it would add nothing, and there is nothing to attack. Audit with fewer parties or a smaller "
        f"min_group{step}."
    )


def _check_size(n_rows: int, parties: int) -> None:
    if parties < 2:
        raise ParameterError(f"parties={parties} is not possible: an attacker and a victim make two.")
    if n_rows < FEWEST_ROWS * parties:
        raise DataError(
            f"{n_rows} rows are too few to audit with {parties} parties: it takes {FEWEST_ROWS * parties} at least."
        )
