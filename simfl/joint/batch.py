"""The trees of one batch while they grow: what is asked in a level, and what follows from the totals.

The state is the same at every party: all of them read the totals, and find the same splits.
"""

from __future__ import annotations

import numpy as np

from simfl.arrays import AnyArray, Doubles, Floats, Ints, Longs
from simfl.joint import decisions, reading
from simfl.joint.candidates import NONE, RUNNERS_UP, Asked, Nodes
from simfl.joint.constraints import allowed_columns
from simfl.joint.grown import grown_tree, place_in
from simfl.joint.level import Splits
from simfl.joint.setting import Setting
from simfl.joint.ways import Ways
from simfl.training.pruning import keep_all, node_sums, prune, score, weight
from simfl.training.trees import LEAF, Tree


class Batch:
    """The trees of one batch."""

    def __init__(self, setting: Setting, seed: int, sizes: Doubles, exponents: AnyArray, weights: Doubles) -> None:
        """`sizes`: the sums of |g| and of h of each tree, (2, trees); `exponents`: their units."""
        self.setting, self.params, self.columns = setting, setting.params, setting.columns
        self.seed, self.sizes, self.exponents, self.weights = seed, sizes, exponents, weights
        self.n_trees, self.depth = sizes.shape[1], 0
        self.nodes = Nodes(self.n_trees)
        n = self.n_trees
        self.G, self.H, self.bounds = np.zeros(n), np.zeros(n), np.tile([-np.inf, np.inf], (n, 1))
        self.least = np.maximum(self.params.min_child_weight, setting.least_rows * sizes[1] / max(setting.n_rows, 1))
        self.finished: list[tuple[Tree, Floats]] = []  # with what their splits have gained
        places = self.nodes.add(np.arange(n), np.full(n, NONE), np.zeros(n, bool))
        n_cuts = setting.n_cuts(sizes[1])
        self._ask(places, n_cuts, np.full((n, RUNNERS_UP, 2), NONE, np.int32))

    def _ask(self, places: AnyArray, n_cuts: Ints, inherited: Ints) -> None:
        """Draw the cuts of the open nodes."""
        seed = (self.seed + 0x9E3779B97F4A7C15 * (self.depth + 1)) % 2**64
        allowed = allowed_columns(self.params, self.nodes, places, len(self.columns.n_points), self.seed)
        self.open = Asked(places, n_cuts, inherited, allowed, self.seed)
        self.level = self.setting.draw(self.open, self.nodes, self.columns, self.weights, seed)
        self.ordered = self.columns.n_levels[self.level.feature] < 2  # per slot
        self.has_missing = self.columns.has_missing[self.level.feature]

    @property
    def is_new(self) -> bool:
        """Whether nothing has been split yet."""
        return self.nodes.n == self.n_trees and not self.finished

    @property
    def n_sent(self) -> int:
        """How many pairs of sums are sent: the roots' totals, too, which nobody knows yet."""
        return self.level.n_cells - len(self.level.feature) + (self.n_trees if self.depth == 0 else 0)

    # --- from the totals of all parties to the next level ------------------------------------------------------------

    def advance(self, G: Longs, H: Longs) -> Splits:
        """Split the open nodes, and draw what is asked next. Returns where the rows go."""
        places = self.open.place
        sums = self._opened(G, H)
        node = self.G[places], self.H[places]
        least = self.least[self.level.tree]
        found = reading.best_splits(self.level, sums, node, self.bounds[places], self.columns, self.params, least)
        taken = found.slot >= 0
        split = places[taken]
        Ways(self.level, found.slot, found.left).note(self.nodes, places)
        n_cuts = self._n_cuts_of_children(self.level.tree[taken], found.H[taken], (node[1] - found.H)[taken])
        self.G = self._with_children(self.G, found.G[taken], split)
        self.H = self._with_children(self.H, found.H[taken], split)
        self.bounds = self._bounds_with_children(split)
        new = self.nodes.split(split)
        child = np.full(len(taken), NONE, np.int32)
        child[taken] = self.nodes.number[new[::2]]
        splits = Splits(found.slot, found.left, child, int(self.nodes.in_tree.max()))
        asked = np.flatnonzero(n_cuts)
        if len(asked):
            self.depth += 1
            self._ask(new[asked], n_cuts[asked], np.repeat(found.runners_up[taken], 2, axis=0)[asked])
        else:
            self.finished = [self._finish(tree) for tree in range(self.n_trees)]
        return splits

    def _opened(self, G: Longs, H: Longs) -> tuple[Doubles, Doubles]:
        """The sums of every cell."""
        n, places = self.level.n_cells - len(self.level.feature), self.open.place
        if self.depth == 0:
            self.G, self.H = (np.ldexp(v[n:].astype(float), e) for v, e in zip((G, H), self.exponents, strict=True))
        of_G, of_H = (np.ldexp(1.0, unit)[self.level.tree] for unit in self.exponents)
        return (
            reading.opened(self.level, G, self.ordered, self.G[places], of_G),
            reading.opened(self.level, H, self.ordered, self.H[places], of_H),
        )

    def _n_cuts_of_children(self, tree: Ints, H_left: Doubles, H_right: Doubles) -> Ints:
        """How many cuts they are asked about; 0: they stay leaves. The largest nodes of each tree are split further."""
        H, trees = np.stack([H_left, H_right], axis=1).ravel(), np.repeat(tree, 2)
        n_cuts = np.zeros(len(H), np.int32)
        if self.depth + 1 >= self.setting.deepest:
            return n_cuts
        order = np.lexsort((-H, trees))
        rank = np.arange(len(H)) - np.searchsorted(trees[order], trees[order])
        open_ = order[(rank < self.setting.most_nodes) & (H[order] >= 2 * self.least[trees[order]])]
        n_cuts[open_] = self.setting.n_cuts(H[open_])
        return n_cuts

    def _finish(self, tree: int) -> tuple[Tree, Floats]:
        """The tree with its values. What was grown deeper than asked for is pruned."""
        own = self.nodes.of_tree(tree)
        grown = grown_tree(self.nodes, tree, self.setting.cuts)
        leaf_G, leaf_H = self.G[own][grown.leaves], self.H[own][grown.leaves]
        with np.errstate(over="ignore"):  # what is too large is refused
            final, _ = (prune if self.params.extra_depth else keep_all)(grown, leaf_G, leaf_H, self.params)
        scores = score(node_sums(grown, leaf_G), node_sums(grown, leaf_H), self.params)
        before = place_in(grown, final)
        gain = np.zeros(len(before))
        inner = final.feature != LEAF
        child = grown.left[before[inner]]
        gain[inner] = np.maximum(scores[child] + scores[child + 1] - scores[before[inner]], 0.0)
        decisions.refuse_too_large(final)
        return final, np.minimum(gain, np.finfo(np.float32).max).astype(np.float32)

    @staticmethod
    def _with_children(own: Doubles, left: Doubles, split: AnyArray) -> Doubles:
        return np.concatenate([own, np.stack([left, own[split] - left], axis=1).ravel()])

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
