"""The trees of one batch while they grow: what is asked in a level, and what follows from the answers.

The state is the same at every party; only the reader also knows the sums of the nodes.
"""

from __future__ import annotations

import math

import numpy as np

from simfl.arrays import AnyArray, Doubles, Ints, Longs, Mask
from simfl.errors import ProtocolError
from simfl.joint import checking, decisions, guard, reading, sending
from simfl.joint.candidates import NONE, RUNNERS_UP, Asked, Nodes
from simfl.joint.constraints import allowed_columns
from simfl.joint.decisions import LevelDecision
from simfl.joint.grown import grown_tree, place_in
from simfl.joint.level import Splits
from simfl.joint.setting import Setting
from simfl.training.pruning import keep_all, node_sums, prune, score, weight
from simfl.training.trees import LEAF

ROUNDING = 1.001  # leaf values are float32


class Batch:
    """The trees of one batch."""

    def __init__(self, setting: Setting, seed: int, sizes: Doubles, exponents: AnyArray, weights: Doubles) -> None:
        """`sizes`: the sums of |g| and of h of each tree, (2, trees); `exponents`: their units."""
        self.setting, self.params, self.columns = setting, setting.params, setting.columns
        self.seed, self.sizes, self.exponents, self.weights = seed, sizes, exponents, weights
        self.n_trees, self.depth = sizes.shape[1], 0
        self.nodes = Nodes(self.n_trees, int(self.columns.first_cut[-1]))
        n = self.n_trees
        self.G, self.H, self.bounds = np.zeros(n), np.zeros(n), np.tile([-np.inf, np.inf], (n, 1))  # the reader's
        self._found: reading.Found | None = None
        places = self.nodes.add(np.arange(n), np.full(n, NONE), np.zeros(n, bool))
        n_cuts = setting.n_cuts(sizes[1])
        self._ask(places, n_cuts, np.full((n, RUNNERS_UP, 2), NONE, np.int32))

    def _ask(self, places: AnyArray, n_cuts: Ints, inherited: Ints) -> None:
        """Draw the cuts of the open nodes."""
        seed = (self.seed + 0x9E3779B97F4A7C15 * (self.depth + 1)) % 2**64
        allowed = allowed_columns(self.params, self.nodes, places, len(self.columns.n_points), self.seed)
        self.open = Asked(places, n_cuts, inherited, allowed, self.seed)
        self.level = self.setting.draw(self.open, self.nodes, self.columns, self.weights, seed)
        self.counted = not self.setting.guarded
        self._note_sent(np.arange(self.level.n_cells))

    def _note_sent(self, now: AnyArray) -> None:
        self.sent = sending.sent_of(self.level, now, self.columns.n_levels)

    @property
    def is_new(self) -> bool:
        """Whether nothing has been counted or split yet."""
        return self.nodes.n == self.n_trees and self.counted == (not self.setting.guarded)

    def take_counts(self, counts: Longs) -> None:
        """Join cells with too few rows."""
        self.level, now = guard.merged(
            self.level, counts, self.setting.counting.needed, self.nodes, self.open.place, self.columns
        )
        self.counted = True
        self._note_sent(now)

    @property
    def sent_cells(self) -> Mask:
        """All cells but the last of each slot, which follows from the node's total."""
        wanted = np.ones(self.level.n_cells, bool)
        wanted[self.level.cell_start[1:] - 1] = False
        return wanted

    @property
    def n_sent(self) -> int:
        """How many pairs of sums are sent: the roots' totals, too, which nobody knows yet."""
        return self.sent.n + (self.n_trees if self.depth == 0 else 0)

    # --- the reader --------------------------------------------------------------------------------------------------

    def decide(self, G: Longs, H: Longs) -> LevelDecision:
        """The best splits, from the totals of all parties."""
        places = self.open.place
        sums = self._opened(G, H)
        node = self.G[places], self.H[places]
        found = reading.best_splits(self.level, sums, node, self.bounds[places], self.columns, self.params)
        self._found, split = found, found.slot >= 0
        n_cuts = self._n_cuts_of_children(self.level.tree[split], found.H[split], (node[1] - found.H)[split])
        return LevelDecision(
            slot=found.slot.astype("<i4").tobytes(),
            left=found.left.astype("<u8").tobytes(),
            n_cuts=n_cuts.astype("<u2").tobytes(),
            runners_up=found.runners_up[split].astype("<i4").tobytes(),
            trees=[] if n_cuts.any() else self._finished(found),
        )

    def _opened(self, G: Longs, H: Longs) -> tuple[Doubles, Doubles]:
        """The sums of every cell."""
        n, places = self.sent.n, self.open.place
        if self.depth == 0:
            self.G, self.H = (np.ldexp(v[n:].astype(float), e) for v, e in zip((G, H), self.exponents, strict=True))
        of_G, of_H = (np.ldexp(1.0, unit)[self.level.tree] for unit in self.exponents)
        is_number = self.sent.is_number
        return (
            reading.opened(self.level, G, is_number, self.G[places], of_G),
            reading.opened(self.level, H, is_number, self.H[places], of_H),
        )

    def _n_cuts_of_children(self, tree: Ints, H_left: Doubles, H_right: Doubles) -> Ints:
        """How many cuts they are asked about; 0: they stay leaves. The largest nodes of each tree are split further."""
        H, trees = np.stack([H_left, H_right], axis=1).ravel(), np.repeat(tree, 2)
        n_cuts = np.zeros(len(H), np.int32)
        if self.depth + 1 >= self.setting.deepest:
            return n_cuts
        order = np.lexsort((-H, trees))
        rank = np.arange(len(H)) - np.searchsorted(trees[order], trees[order])
        open_ = order[(rank < self.setting.most_nodes) & (H[order] >= 2 * self.params.min_child_weight)]
        n_cuts[open_] = self.setting.n_cuts(H[open_])
        return n_cuts

    def _finished(self, found: reading.Found) -> list[decisions.FinishedTree]:
        """The trees with their values. What was grown deeper than asked for is pruned."""
        nodes = self.nodes.copy()
        checking.Ways(self.level, found.slot, found.left).note(nodes, self.open.place)
        split = self.open.place[found.slot >= 0]
        nodes.split(split)
        G, H = self._sums_with_children(found, split)
        return [self._finish(nodes, tree, G, H) for tree in range(self.n_trees)]

    def _finish(self, nodes: Nodes, tree: int, G: Doubles, H: Doubles) -> decisions.FinishedTree:
        own = nodes.of_tree(tree)
        grown = grown_tree(nodes, tree, self.setting.cuts)
        leaf_G, leaf_H = G[own][grown.leaves], H[own][grown.leaves]
        with np.errstate(over="ignore"):  # what is too large is refused when the tree is packed
            final, _ = (prune if self.params.extra_depth else keep_all)(grown, leaf_G, leaf_H, self.params)
        scores = score(node_sums(grown, leaf_G), node_sums(grown, leaf_H), self.params)
        before = place_in(grown, final)
        gain = np.zeros(len(before))
        inner = final.feature != LEAF
        child = grown.left[before[inner]]
        gain[inner] = np.maximum(scores[child] + scores[child + 1] - scores[before[inner]], 0.0)
        return decisions.pack_tree(final, gain)

    def _sums_with_children(self, found: reading.Found, split: AnyArray) -> tuple[Doubles, Doubles]:
        taken = found.slot >= 0
        out = []
        for own, left in ((self.G, found.G[taken]), (self.H, found.H[taken])):
            pairs = np.stack([left, own[split] - left], axis=1).ravel()
            out.append(np.concatenate([own, pairs]))
        return out[0], out[1]

    def _bounds_with_children(self, split: AnyArray) -> Doubles:
        """Under monotone constraints the middle between two children bounds all nodes below them, as in XGBoost."""
        new = np.repeat(self.bounds[split], 2, axis=0)
        if self.params.monotone_constraints:
            first = len(self.bounds)
            w = np.clip(weight(self.G[first:], self.H[first:], self.params), new[:, 0], new[:, 1])
            signs = np.array(self.params.monotone_constraints)[self.nodes.feature[split]]
            middle = (w[::2] + w[1::2]) / 2
            for sign, high, low in ((1, 0, 1), (-1, 1, 0)):
                of = np.flatnonzero(signs == sign)
                new[2 * of + high, 1] = middle[of]
                new[2 * of + low, 0] = middle[of]
        return np.concatenate([self.bounds, new])

    # --- everybody ---------------------------------------------------------------------------------------------------

    def split(self, decision: LevelDecision) -> Splits:
        """Check the splits and take them on. Returns where the rows go."""
        places = self.open.place
        slot = decisions.numbers(decision.slot, np.int32, len(places))
        left = decisions.numbers(decision.left, np.uint64, len(places))
        split = places[slot >= 0]
        n_cuts = decisions.numbers(decision.n_cuts, np.uint16, 2 * len(split)).astype(np.int32)
        runners = decisions.numbers(decision.runners_up, np.int32, 2 * RUNNERS_UP * len(split))
        runners = runners.reshape(-1, RUNNERS_UP, 2)
        ways = checking.checked(self.level, self.columns.n_levels, slot, left, runners)
        self._check_children(slot >= 0, n_cuts)
        ways.note(self.nodes, places)
        if self._found is not None:
            self.G, self.H = self._sums_with_children(self._found, split)
            self.bounds = self._bounds_with_children(split)
            self._found = None
        new = self.nodes.split(split)
        child = np.full(len(slot), NONE, np.int32)
        child[slot >= 0] = self.nodes.number[new[::2]]
        splits = Splits(slot, left, child, int(self.nodes.in_tree.max()))
        asked = np.flatnonzero(n_cuts)
        if len(asked):
            self.depth += 1
            self._ask(new[asked], n_cuts[asked], np.repeat(runners, 2, axis=0)[asked])
        return splits

    def _check_children(self, split: Mask, n_cuts: Ints) -> None:
        """The rule of what is asked next: no more than the study allows."""
        per_tree = np.bincount(np.repeat(self.level.tree[split], 2)[n_cuts > 0], minlength=self.n_trees)
        too_deep = self.depth + 1 >= self.setting.deepest and n_cuts.any()
        if per_tree.max(initial=0) > self.setting.most_nodes or too_deep:
            raise ProtocolError("The reader announced more open nodes than the study allows.")
        if n_cuts.max(initial=0) > self.setting.most_cuts:
            raise ProtocolError("The reader announced more cuts of a node than the study allows.")

    def most_value(self, tree: int, n_leaves: int) -> float:
        """How large a leaf value can be: all gradients in the lightest leaf, rounded up by one unit each, and noise."""
        params, (unit_g, unit_h) = self.params, np.ldexp(1.0, self.exponents[:, tree])
        lightest = max(unit_h, params.min_child_weight if n_leaves > 1 else 0.0)
        noise = guard.most_noise(self.setting.bits) if self.setting.guarded else 0.0
        step = (self.sizes[0, tree] + (self.setting.n_rows + noise) * unit_g) / (params.reg_lambda + lightest)
        return float(ROUNDING * params.learning_rate * min(step, params.max_delta_step or math.inf))
