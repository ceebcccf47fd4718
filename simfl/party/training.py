"""Stage 2 at a party: its rows follow the model, its gradients are summed, and when it is its turn it grows trees."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import xgboost as xgb

from simfl import messages as msg
from simfl import wire
from simfl.arrays import AnyArray, Floats, Ints, smallest_type
from simfl.data.schema import Schema, xgboost_types
from simfl.data.table import as_targets
from simfl.errors import ProtocolError
from simfl.model.compare import Adopted, GrownTree
from simfl.params import BINS
from simfl.party.party import Rows, Split
from simfl.party.sealing import Sealing
from simfl.party.signing import Content, Signing
from simfl.party.similar import SimilarRows
from simfl.preprocessing.tables import HashValues
from simfl.privacy.exact import power_above
from simfl.privacy.masks import told
from simfl.privacy.words import FORMS
from simfl.training import trees
from simfl.training.gradients import Landed, add_values, draw_similar, sum_onto_similar, sum_per_leaf, weighted
from simfl.training.groups import join_small_groups
from simfl.training.histograms import HistogramGrower, Histogrammed, fits, histogrammed
from simfl.training.losses import loss_of
from simfl.training.traversal import Walker, walker
from simfl.training.trees import Tree

Binned = xgb.QuantileDMatrix | Histogrammed


@dataclass
class Kept:
    """What all trainings on the same rows share."""

    bins: dict[tuple[int, bool], Binned] = field(default_factory=dict)  # by their number, and whether without XGBoost
    walkers: dict[str, Walker] = field(default_factory=dict)  # of training and validation rows

    def walker(self, which: str, rows: Rows, schema: Schema | None) -> Walker:
        """The rows, ready to go down trees."""
        if which not in self.walkers:
            self.walkers[which] = walker(rows.X, by_level=schema is not None and schema.has_categories)
        return self.walkers[which]


@dataclass
class Following:
    """Rows that follow the model: their labels as numbers, their margins, the leaves that they fell into last."""

    walker: Walker
    rows: Rows
    y: Floats
    margin: Floats
    leaves: list[Ints] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Rows, walk: Walker, start: msg.Start, who: str) -> Following:
        """Rows at the start value."""
        y = as_targets(rows.y, loss_of(start.params), start.classes, who)
        margin = np.tile(np.array(start.base_margin, dtype=np.float32), (len(y), 1))
        return cls(walk, rows, y, margin)

    def fall(self, grown: list[Tree]) -> None:
        """Find every row's leaf in each tree."""
        self.leaves = [self.walker.leaf_numbers(tree) for tree in grown]

    def add(self, values: list[AnyArray]) -> None:
        """Add the leaf values to the margins: trees are in the order of the outputs."""
        for output, (leaf, value) in enumerate(zip(self.leaves, values, strict=True)):
            add_values(self.margin, output, leaf, value)


class PartyTraining:
    """A party's part in one training. `signing`: where parties have certificates."""

    def __init__(
        self, start: msg.Start, name: str, split: Split, similar: SimilarRows, kept: Kept, signing: Signing | None
    ) -> None:
        self.name, self.split, self.similar, self.signing = name, split, similar, signing
        self.params, self.seed = start.params, start.seed
        self.loss = loss_of(start.params)
        rows, aside, who = split.training, split.validation, split.who
        self.train = Following.of(rows, kept.walker("training", rows, split.schema), start, who)
        watched = aside and Following.of(aside, kept.walker("validation", aside, split.schema), start, who)
        self.validation = watched or None
        self.recent: deque[AnyArray] = deque(maxlen=start.remember)  # the leaves of the last trees
        self.shown: Counter[str] = Counter()  # what was done to what was sent: the exit's, once there is one
        self._bins = kept.bins
        self._grower: trees.Grower | HistogramGrower | None = None
        self._seen: list[Tree] = []  # trees whose values are not known yet
        self._seen_as: list[msg.TreeStructure] = []  # the same, as they were sent
        self._said = told(start, split.schema)  # all that the hub must have told the others, too
        self._adopted: list[list[GrownTree]] = []  # per round
        self.g, self.h = np.empty((0, 0), np.float32), np.empty((0, 0), np.float32)
        self._classes, self._base_margin = start.classes, start.base_margin
        self.n_outputs = n_outputs = len(start.base_margin)
        for first in range(0, len(start.warm_start), n_outputs):
            self.adopt(start.warm_start[first : first + n_outputs])

    def begin(self, start: msg.Start, sealing: Sealing) -> msg.Started:
        """Prepare the exit for this training's sums, and announce their bounds."""
        rows = self.split.training
        sealing.n_parties, self.shown = start.n_parties, sealing.shown
        g, h = self.loss.bounds(self.train.margin, self.train.y)
        return msg.Started(
            gradient=power_above(g * rows.heaviest),
            hessian=power_above(h * rows.heaviest),
            total_gradient=power_above(g * rows.total_weight),
            total_hessian=power_above(h * rows.total_weight),
        )

    # --- trees of others ---------------------------------------------------------------------------------------------

    def adopt(self, previous: list[msg.AdoptedTree]) -> None:
        """Add the previous trees to the margins; then the gradients are those of the new model."""
        if previous:
            self._see_adopted(previous)
            if len(self._seen) != len(previous):
                raise ProtocolError(f"{self.split.who} was given leaf values for trees that it has not seen.")
            values = [wire.unpack(p.values, "f4", (t.n_leaves,)) for p, t in zip(previous, self._seen, strict=True)]
            self._adopted.append(list(zip(self._seen, values, strict=True)))
            self._said = told(self._said, self._seen_as, [p.values for p in previous])
            for following in self._following:
                following.add(values)
            if self.recent.maxlen:
                pairs = zip(self.train.leaves, self._seen, strict=True)
                self.recent.extend(leaf.astype(smallest_type(t.n_leaves)) for leaf, t in pairs)
            self._seen = []
        if previous or not self.g.size:
            self.g, self.h = self.loss.gradients(self.train.margin, self.train.y, self.train.rows.weight)

    @property
    def n_rounds(self) -> int:
        """How many rounds' trees were adopted."""
        return len(self._adopted)

    @property
    def adopted(self) -> Adopted:
        """What this party knows of the model."""
        schema, n_features = self.split.schema, self.split.n_features
        return Adopted(self.params, self._classes, self._base_margin, schema, n_features, self._adopted)

    @property
    def _following(self) -> list[Following]:
        return [self.train] + ([self.validation] if self.validation else [])

    @property
    def _by_builder(self) -> bool:
        return self.params.leaf_values == "builder"

    def _see_adopted(self, previous: list[msg.AdoptedTree]) -> None:
        """Look at trees that come with their structures. Those of leaf sums are known."""
        grown = [Content(p.structure, p.values if self._by_builder else None) for p in previous if p.structure]
        if len(grown) == len(previous):
            self._see(grown, [p.signed for p in previous])

    def _see(self, grown: list[Content], signed: Sequence[msg.Signed | None]) -> None:
        """Find the leaves of all rows in these trees, if their builder signed them."""
        if self.signing:
            self.signing.check(signed, grown)
        self._seen_as = [own.tree for own in grown]
        self._seen = [wire.tree_from_message(s, self.split.n_features) for s in self._seen_as]
        for following in self._following:
            following.fall(self._seen)

    def leaves_as_hashes(self, n_hashes: int) -> HashValues:
        """The leaves of the last trees: rows that fall into the same leaves are similar as the model sees it."""
        recent = list(self.recent)[-n_hashes:]
        if not recent:
            raise ProtocolError(f"{self.split.who} was asked for the leaves of its rows before there was a tree.")
        leaves = np.stack(recent, axis=1)  # in the type of the largest tree
        return HashValues(np.zeros(leaves.shape[1], dtype=np.int32), leaves)

    def scores(self, mask: msg.Masking | None, sealing: Sealing) -> msg.SmallSums:
        """Sums of the metrics and the weight behind them, on training and on validation rows."""
        sums: list[float] = []
        for following in (self.train, self.validation):
            found = following and self.loss.all_sums(following.margin, following.y, following.rows.weight)
            sums += [found[name] if found else 0.0 for name in self.loss.sums]
            sums.append(following.rows.total_weight if following else 0.0)
        return sealing.small(sums, mask, "scores", self._said)

    # --- step 1: sums onto the rows of the builder -------------------------------------------------------------------

    def sum_onto_rows(self, question: msg.SumOntoRows, sealing: Sealing) -> msg.RowSums:
        """Add this party's gradients onto the rows of the builder that its rows resemble."""
        sealing.check(question.mask)
        self.adopt(question.previous)
        sums = None
        seed = _seed(self.seed, 5, question.round, self.similar.parties.index(self.name))
        similar = self._similar_rows(question.builder, seed)
        if similar is not None:
            landed = self._sum_onto(similar, self.similar.n_rows[question.builder], seed)
            sums = sealing.onto_rows(landed, question, self._said)
        return msg.RowSums(round=question.round, sums=sums, scores=self.scores(question.mask, sealing))

    def _similar_rows(self, builder: str, seed: int) -> AnyArray | None:
        """The builder's rows that this party's rows resemble."""
        ids = self.similar.rows.get(builder)
        if ids is None:
            return None
        if self.params.min_group > 1:  # small groups are joined by all similar rows
            return ids.unpacked()
        return ids.to_draw_from(seed)

    def _sum_onto(self, similar: Ints, n_rows: int, seed: int) -> Landed:
        """Gradients and hessians, added onto the builder's rows in groups that are not too small."""
        least, near = self.params.min_group, self.similar.near
        self.shown[f"min_group {1 if near is None else least}"] += 1
        if least == 1 or near is None:
            return sum_onto_similar(similar, self.g, self.h, n_rows, seed)
        drawn = draw_similar(similar, seed)
        joined = join_small_groups(similar, drawn, near, n_rows, least, self.train.rows.weight)
        if joined is None:
            return Landed(np.zeros((n_rows, self.g.shape[1], 2)), np.zeros(n_rows, dtype=np.uint64))
        g, h = (self.g, self.h) if joined.rows is None else (self.g[joined.rows], self.h[joined.rows])
        return sum_onto_similar(joined.goes_to[:, None], g, h, n_rows, seed)

    # --- step 2: the builder grows -----------------------------------------------------------------------------------

    def grow(self, question: msg.Grow, sealing: Sealing, n_jobs: int) -> msg.Grown:
        """The next trees, from this party's gradients and the sums of the others."""
        sealing.check(question.mask)
        self.adopt(question.previous)
        g, h = self._weighted(question, sealing)
        grower = self._grower_for(n_jobs)
        grown = [
            grower.grow(
                np.ascontiguousarray(g[:, output]),
                np.ascontiguousarray(h[:, output]),
                seed=_seed(self.seed, 6, question.round, output) >> 33,  # XGBoost takes 31 bits
            )
            for output in range(g.shape[1])
        ]
        values = [wire.pack(t.value[t.leaves]) for t in grown] if self._by_builder else None
        scores = self.scores(question.mask, sealing)
        structures = [wire.tree_to_message(t) for t in grown]
        self.shown["trees"] += 1
        own = [Content(tree, values[n] if values else None) for n, tree in enumerate(structures)]
        signed = self.signing.sign(question.round, own) if self.signing else []
        return msg.Grown(round=question.round, trees=structures, values=values, scores=scores, signed=signed)

    def _weighted(self, question: msg.Grow, sealing: Sealing) -> tuple[Floats, Floats]:
        """The paper's weighted gradients: this party's own and the sums of the others."""
        sums = sealing.opened(question, self.name, self.g.shape, self._said)
        if sums is None:
            return self.g, self.h
        G, H = sums
        places, spare = self.similar.places, FORMS[question.word_bytes].spare
        return (
            weighted(self.g, G, question.exponents[0], places, spare),
            weighted(self.h, H, question.exponents[1], places, spare),
        )

    def _grower_for(self, n_jobs: int) -> trees.Grower | HistogramGrower:
        threads, kept = trees.threads_for(self.split.training.X, n_jobs), self._grower
        if kept is None or (isinstance(kept, trees.Grower) and kept.threads != threads):
            binned = self._binned(threads)
            if isinstance(binned, Histogrammed):
                kept = HistogramGrower(binned, self.params)
            else:
                kept = trees.Grower(binned, self.params, threads)
        if isinstance(kept, HistogramGrower):
            kept.threads = n_jobs
        self._grower = kept
        return kept

    @property
    def _by_histograms(self) -> bool:
        """Whether this party grows its trees without XGBoost. One party alone is plain XGBoost, to the last bit."""
        has_categories = self.split.schema is not None and self.split.schema.has_categories
        return fits(self.params) and not has_categories and len(self.similar.parties) > 1

    def _binned(self, threads: int) -> Binned:
        """The rows in bins."""
        key = self.params.max_bin or BINS, self._by_histograms
        if key not in self._bins:
            rows, types = self.split.training, xgboost_types(self.split.schema)
            cut = xgb.QuantileDMatrix(rows.X, weight=rows.weight, max_bin=key[0], nthread=threads, **types)
            self._bins[key] = (histogrammed(rows.X, cut) if self._by_histograms else None) or cut
        return self._bins[key]

    # --- step 3: sums per leaf ---------------------------------------------------------------------------------------

    def sum_per_leaf(self, question: msg.SumPerLeaf, sealing: Sealing) -> msg.LeafSums:
        """Add up this party's gradients in every leaf of the new trees."""
        if not self.g.size:
            raise ProtocolError(f"{self.split.who} was asked for leaf sums before a round began.")
        self._see([Content(tree, None) for tree in question.trees], question.signed)
        sums = [
            sum_per_leaf(leaf, self.g, self.h, output, tree.n_leaves)
            for output, (leaf, tree) in enumerate(zip(self.train.leaves, self._seen, strict=True))
        ]
        return sealing.per_leaf(sums, question, self._said)


def _seed(*parts: int) -> int:
    """One seed of 64 bits from several numbers."""
    return int.from_bytes(hashlib.blake2b(struct.pack(f"<{len(parts)}Q", *parts), digest_size=8).digest(), "little")
