"""Which splits are asked about: drawn from a seed that all parties share, so nothing of a question has to be sent.

Per open node a few cut points are drawn: a feature, in proportion to what it has gained on such paths before (or
uniformly, so that nothing is forgotten), and a cut inside the node's box. Two siblings draw the same columns. The
runners-up of the parent are asked again. A category is asked about in groups of its levels, the same in the whole tree; each level is on its own
where there are few.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from simfl.arrays import AnyArray, Doubles, Ints, Longs, Mask
from simfl.joint._part import below, mix, part, row_token
from simfl.joint.level import MISSING, N_BINS, Level
from simfl.preprocessing.splitmix import row_tokens

UNIFORM = 0.15  # the share of draws in which every feature has the same chance
GOLDEN = 0.6180339887498949  # steps of this size spread any number of draws evenly
GROUPS = 8  # of the levels of a category
RUNNERS_UP = 2
MOST_DRAWS = 24  # of one column in a node: with the runners-up fewer than MOST_CELLS
NONE = -1
ROOM = 8192  # nodes that need no new arrays
COLUMN_BITS, NODE_BITS = 10, 40  # where column and node begin in the key of a cut


@dataclass(frozen=True)
class Columns:
    """What the draws depend on: the same at every party."""

    n_points: Ints  # per column: its cut points; 0 for a category
    n_levels: Ints  # per column: the levels of a category (at most 255, the last one for all others); 0 for a number
    has_missing: Mask


class Nodes:
    """All nodes of the trees of a batch: how they were split, and where they hang."""

    def __init__(self, n_trees: int) -> None:
        self.n = 0
        size = max(4 * n_trees, ROOM)
        self.tree = np.zeros(size, np.int32)
        self.number = np.zeros(size, np.int32)  # inside its tree, breadth first
        self.parent = np.full(size, NONE, np.int32)
        self.is_right = np.zeros(size, np.bool_)
        self.feature = np.full(size, NONE, np.int32)  # NONE: not split (yet)
        self.cut = np.full(size, NONE, np.int32)  # the last bin that goes left; NONE for a category
        self.left_child = np.full(size, NONE, np.int32)
        self.missing_left = np.zeros(size, np.bool_)
        self.levels_left = np.zeros((size, N_BINS // 8), np.uint8)  # of a category: one bit per level
        self.in_tree = np.zeros(n_trees, np.int32)  # how many nodes each tree has

    def add(self, tree: AnyArray, parent: AnyArray, is_right: AnyArray) -> AnyArray:
        """New nodes, numbered on in their trees; returns their places."""
        n = len(tree)
        while self.n + n > len(self.tree):
            self._grow()
        new = np.arange(self.n, self.n + n)
        self.n += n
        self.tree[new], self.parent[new], self.is_right[new] = tree, parent, is_right
        _number(self.tree, self.number, self.in_tree, self.n - n, self.n)
        return new

    def split(self, places: AnyArray) -> AnyArray:
        """The children of these nodes, left and right in turn."""
        new = self.add(np.repeat(self.tree[places], 2), np.repeat(places, 2), np.arange(2 * len(places)) % 2 == 1)
        self.left_child[places] = new[::2]
        return new

    def of_tree(self, tree: int) -> AnyArray:
        """The places of a tree's nodes, breadth first."""
        return np.flatnonzero(self.tree[: self.n] == tree)

    def _grow(self) -> None:
        for name, old in list(vars(self).items()):
            if isinstance(old, np.ndarray) and name != "in_tree":
                new = np.zeros((2 * len(old), *old.shape[1:]), old.dtype)  # pages that are not used cost nothing
                new[: self.n] = old[: self.n]
                if name in ("parent", "feature", "cut", "left_child"):
                    new[self.n :] = NONE
                setattr(self, name, new)


@dataclass(frozen=True)
class Asked:
    """The open nodes of a level and how many cuts each is asked about."""

    place: AnyArray  # among all nodes, ascending by tree and number
    n_cuts: Ints
    inherited: Ints  # (nodes, RUNNERS_UP, 2): column and cut of the parent's runners-up, NONE where there is none
    allowed: Mask  # (nodes, columns), or (1, columns) for all
    seed: int = 0  # of the batch: for the groups of levels


def draw(asked: Asked, nodes: Nodes, columns: Columns, weights: Doubles, seed: int) -> Level:
    """The question of a level. `weights[i, j]`: the gain of column j below a split on i; the last row: anywhere."""
    most = int(asked.n_cuts.max(initial=0)) + RUNNERS_UP
    n = len(asked.place)
    feature, cut = np.full((n, most), NONE, np.int32), np.full((n, most), NONE, np.int32)
    tree = (nodes.parent, nodes.is_right, nodes.feature, nodes.cut, nodes.tree, nodes.number)
    levels_left = nodes.levels_left if columns.n_levels.any() else None  # None: nothing of categories is compiled
    counts, d = np.zeros(n, np.int32), len(columns.n_points)
    _draw(
        asked.place, (asked.n_cuts, asked.inherited, asked.allowed), tree, levels_left,
        (columns.n_points, columns.n_levels), weights, np.uint64(seed), (feature, cut, counts),
        (np.empty(d), np.zeros(d, np.int32), np.empty(d, np.int32)),
    )  # fmt: skip
    keys = np.empty(int(counts.sum()), np.int64)
    _write_keys(feature, cut, counts, keys)
    return _level(asked, nodes, columns, keys)


def all_cuts(asked: Asked, nodes: Nodes, columns: Columns, weights: Doubles, seed: int) -> Level:
    """In place of `draw`: every cut of every column, for comparison with exact growing. At most 62 per column."""
    cuts = [
        _key.py_func(number, int(j), cut)
        for number in range(len(asked.place))
        for j in np.flatnonzero(asked.allowed[number % len(asked.allowed)])
        for cut in ([NONE] if columns.n_levels[j] > 1 else range(columns.n_points[j]))
    ]
    return _level(asked, nodes, columns, np.array(cuts, np.int64))


def _level(asked: Asked, nodes: Nodes, columns: Columns, keys: Longs) -> Level:
    """Cuts, as keys, of the same column become one slot with several cells."""
    keys.sort()
    n, most = len(asked.place), len(keys)  # slots
    slot_start, feature, cell_start = np.zeros(n + 1, np.int32), np.empty(most, np.int32), np.zeros(most + 1, np.int32)
    table = np.empty((most, N_BINS), np.uint8)
    n_slots = _lay_out(keys, columns.n_levels, columns.has_missing, slot_start, feature, cell_start, table)
    _group_levels(table, slot_start, feature[:n_slots], nodes.tree[asked.place], columns, asked.seed)
    return Level(
        tree=nodes.tree[asked.place],
        node=nodes.number[asked.place],
        slot_start=slot_start,
        feature=feature[:n_slots],
        cell_start=cell_start[: n_slots + 1],
        cell_of_bin=table[:n_slots],
    )


def _group_levels(table: AnyArray, slot_start: Ints, feature: Ints, tree: Ints, columns: Columns, seed: int) -> None:
    """The cells of categories: levels in groups that are drawn at random.

    The same groups in the whole tree: others below would tell the sums of single levels by subtraction.
    """
    slots = np.flatnonzero(columns.n_levels[feature] > 1)
    if not len(slots):
        return
    node = np.searchsorted(slot_start, slots, side="right") - 1
    pairs, which = np.unique(np.stack([tree[node], feature[slots]]), axis=1, return_inverse=True)
    t, j = pairs.astype(np.uint64)
    keys = mix.py_func(np.uint64(seed) ^ (t << np.uint64(32)) ^ j)
    groups = np.zeros((len(keys), MISSING), np.uint8)
    for own, key, n in zip(groups, keys.tolist(), columns.n_levels[pairs[1]].tolist(), strict=True):
        tokens = row_tokens(key, n)
        own[:n] = np.searchsorted(np.sort(tokens), tokens) % min(n, GROUPS)
    table[slots, :MISSING] = groups[which.ravel()]


# --- kernels ---------------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _number(tree, number, in_tree, first, end):  # type: ignore[no-untyped-def]
    """Number new nodes on in their trees."""
    for place in range(first, end):
        number[place] = in_tree[tree[place]]
        in_tree[tree[place]] += 1


@part
def _key(node, column, cut):  # type: ignore[no-untyped-def]
    """A cut as one number: they are in order of node, column and cut."""
    return (np.int64(node) << NODE_BITS) + (np.int64(column) << COLUMN_BITS) + cut + 1


@part
def _share(token):  # type: ignore[no-untyped-def]
    return np.float64(token >> np.uint64(11)) * 2.0**-53


@part
def _box(place, column, n_points, parent, is_right, feature, cut):  # type: ignore[no-untyped-def]
    """The cuts of a column that still divide a node: from the first to before the second."""
    low, high = 0, n_points[column]
    above = parent[place]
    while above >= 0:
        if feature[above] == column:
            if is_right[place]:
                low = cut[above] + 1 if cut[above] >= low else low
            else:
                high = cut[above] if cut[above] < high else high
        place, above = above, parent[above]
    return low, high


@part
def _has_level(place, column, level, parent, is_right, feature, levels_left):  # type: ignore[no-untyped-def]
    """Whether rows of this level can be in a node."""
    above = parent[place]
    while above >= 0:
        if feature[above] == column:
            left = (levels_left[above, level >> 3] >> (level & 7)) & 1
            if bool(left) == is_right[place]:
                return False
        place, above = above, parent[above]
    return True


@part
def _path_weights(place, allowed, parent, feature, weights, total):  # type: ignore[no-untyped-def]
    """Running totals of the columns' chances below this path. False where nothing is known yet."""
    n = len(total)
    last = len(weights) - 1
    for j in range(n):
        total[j] = 0.0
    above, found = parent[place], False
    while above >= 0 and last > 0:
        row, found = feature[above], True
        for j in range(n):
            total[j] += weights[row, j]
        above = parent[above]
    if not found:
        for j in range(n):
            total[j] = weights[last, j]
    running = 0.0
    for j in range(n):
        running += total[j] if allowed[j] else 0.0
        total[j] = running
    return running > 0.0


@part
def _find_usable(allowed, n_points, n_levels, usable):  # type: ignore[no-untyped-def]
    """The allowed columns that have a cut at all; returns how many."""
    n = 0
    for j in range(len(allowed)):
        if allowed[j] and (n_points[j] > 0 or n_levels[j] > 1):
            usable[n], n = j, n + 1
    return n


@njit(nogil=True, cache=True)
def _draw(places, asked, tree, levels_left, about, weights, seed, out, scratch):  # type: ignore[no-untyped-def]  # noqa: C901
    """Per open node: columns and cuts, and how many. `levels_left`: None where there is no category."""
    (n_cuts, inherited, allowed), (parent, is_right, feature, cut, tree_of, number) = asked, tree
    (n_points, n_levels), (out_f, out_c, counts), (total, times, usable) = about, out, scratch
    d = len(n_points)
    for i in range(len(places)):
        place = places[i]
        above = parent[place]
        ok = allowed[i % len(allowed)]
        known = _path_weights(place, ok, parent, feature, weights, total)
        n_usable = _find_usable(ok, n_points, n_levels, usable)
        if n_usable == 0:
            continue
        # Siblings share the sequence of columns: its key is the parent's, a root's its own.
        key = mix(seed ^ row_token(np.uint64(tree_of[place]) + np.uint64(1), number[above] if above >= 0 else -1))
        n = np.int64(0)  # not 0: a helper would be compiled for that number alone, too
        for r in range(inherited.shape[1]):
            j, c = np.int64(inherited[i, r, 0]), inherited[i, r, 1]
            if j >= 0 and ok[j] and n < n_cuts[i]:
                low, high = _box(place, j, n_points, parent, is_right, feature, cut)
                n = _put(out_f, out_c, i, n, j, np.int64(c)) if low <= c < high else n
        here = mix(seed ^ row_token(np.uint64(tree_of[place]) + np.uint64(1), np.int64(number[place])))
        for step in range(n_cuts[i] - n):
            a, b = row_token(key, 2 * step), row_token(key, 2 * step + 1)
            if known and _share(a) >= UNIFORM:
                j = _first_above(total, _share(b) * total[d - 1])
            else:
                j = np.int64(usable[np.int64(below(b, n_usable))])
            if not ok[j]:
                continue
            if levels_left is not None:  # noqa: SIM102 - on its own, Numba leaves it out where no category is
                if n_levels[j] > 1:
                    if _count_levels(place, j, n_levels[j], parent, is_right, feature, levels_left) > 1:
                        n = _put(out_f, out_c, i, n, j, np.int64(NONE))
                    continue
            low, high = _box(place, j, n_points, parent, is_right, feature, cut)
            if high <= low or times[j] >= MOST_DRAWS:
                continue
            u = _share(row_token(here ^ np.uint64(0x5851F42D4C957F2D), j)) + GOLDEN * times[j]
            times[j] += 1
            n = _put(out_f, out_c, i, n, j, low + np.int64((u - np.floor(u)) * (high - low)))
        counts[i] = n
        for k in range(n):
            times[out_f[i, k]] = 0


@part
def _first_above(running, value):  # type: ignore[no-untyped-def]
    """The first of running totals that is above a value, or the last one."""
    low, high = 0, len(running) - 1
    while low < high:
        middle = (low + high) // 2
        if running[middle] > value:
            high = middle
        else:
            low = middle + 1
    return low


@njit(nogil=True, cache=True)
def _write_keys(out_f, out_c, counts, keys):  # type: ignore[no-untyped-def]
    n = 0
    for i in range(len(counts)):
        for k in range(counts[i]):
            keys[n], n = _key(i, np.int64(out_f[i, k]), np.int64(out_c[i, k])), n + 1


@part
def _put(out_f, out_c, i, n, j, c):  # type: ignore[no-untyped-def]
    for k in range(n):
        if out_f[i, k] == j and out_c[i, k] == c:
            return n
    out_f[i, n], out_c[i, n] = j, c
    return n + 1


@part
def _count_levels(place, column, n_levels, parent, is_right, feature, levels_left):  # type: ignore[no-untyped-def]
    n = 0
    for level in range(n_levels):
        n += _has_level(place, column, level, parent, is_right, feature, levels_left)
    return n


@njit(nogil=True, cache=True)
def _lay_out(keys, n_levels, has_missing, slot_start, feature, cell_start, table):  # type: ignore[no-untyped-def]
    """The slots of sorted keys, some of which are there twice. Returns how many."""
    s, k = 0, 0
    while k < len(keys):
        node, slot = keys[k] >> NODE_BITS, keys[k] >> COLUMN_BITS
        j = slot - (node << (NODE_BITS - COLUMN_BITS))
        cells, value = 0, 0
        while k < len(keys) and keys[k] >> COLUMN_BITS == slot:
            cut = keys[k] - (slot << COLUMN_BITS)  # the first bin behind it
            if cells == 0 or cut > value:
                while value < cut and value < MISSING:
                    table[s, value] = cells
                    value += 1
                cells, value = cells + 1, cut
            k += 1
        if n_levels[j] > 1:  # its table is filled in later
            cells = n_levels[j] if n_levels[j] < GROUPS else GROUPS
        else:
            while value < MISSING:
                table[s, value] = cells
                value += 1
            cells += 1
        table[s, MISSING] = cells - 1
        if has_missing[j]:
            table[s, MISSING] = cells
            cells += 1
        feature[s], cell_start[s + 1], s = j, cell_start[s] + cells, s + 1
        slot_start[node + 1] = s
    for node in range(len(slot_start) - 1):
        if slot_start[node + 1] < slot_start[node]:
            slot_start[node + 1] = slot_start[node]
    return s
