"""Which sums are asked for: none over fewer than `k` rows, not even by subtracting one sum from another.

The parties first count the rows in each cell, with noise, so that no count is exact. Each adds its share of the noise,
and counts no further than three quarters of what a cell needs, so that others have rows there, too. Then cells with
fewer than k rows are merged with a neighbour, by a rule that all parties follow from the same counts. A boundary
between two cells that stays is *released*:

- every cell has k rows, and so has the difference of two cuts of the same column in a node;
- a boundary that the parent has released stays only if it stays in both siblings: the sums of the parent minus those
  of the node are the sibling's;
- a boundary that an older ancestor has released, but not the parent, is gone: with it the sums of the parent would
  follow, and from these the sums of the parent's sibling, whose rows nobody has counted there;
- a new boundary of a column that an ancestor has released others of stays in one node of the tree at most: several
  nodes together would give the ancestor's sums, next to what that has told. Below a split of the column itself all
  known boundaries stay, and new ones keep k rows away from them.

What is left are sums that differ by a row or two by chance: of different columns, trees, or boundaries. No count can
find them. So every sum has noise, as large as two rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numba import njit

from simfl.arrays import AnyArray, Longs
from simfl.joint import noise, sending
from simfl.joint._part import part
from simfl.joint.candidates import Columns, Nodes
from simfl.joint.level import MISSING, MOST_CELLS, N_BINS, Level

STEPS = 4  # counts are in units of k / STEPS: half the deviation of their noise, so that a total fits a byte
FREE, SHARED, KEPT, GONE = range(4)  # what may become of a boundary
CAREFUL = 3.0  # deviations of the noise that a count must be safe from


SUM_NOISE = 2.0  # deviation of the noise on every sum, in mean gradients (and hessians) of a row


@dataclass(frozen=True)
class Counting:
    """How rows are counted: in coarse units, with noise."""

    k: int
    n_parties: int
    epsilon: float

    def sent(self, counts: Longs, key: int) -> AnyArray:
        """A party's counts: clipped, with its share of the noise, in units of k / STEPS (rounded at random)."""
        law = noise.law(self.n_parties, self.epsilon)
        return sending.counts(counts, self.k * self.clip // STEPS, STEPS / self.k, law, key).astype(self.word)

    def total(self, words: AnyArray) -> Longs:
        """Totals of counts from their words: noise can make small ones negative."""
        counts: Longs = words.view(f"i{words.itemsize}").astype(np.int64)
        return counts

    @cached_property
    def word(self) -> Any:
        """The smallest words that a total fits in as a signed number, with room for the noise."""
        return np.min_scalar_type(2 * (self.n_parties * self.clip + self._room)).type

    @cached_property
    def clip(self) -> int:
        """A party counts no further: its own rows, which it can subtract, are never enough for a cell."""
        return int(self.needed[1]) * (3 if self.n_parties > 1 else 8) // 4

    @cached_property
    def needed(self) -> Longs:
        """By the number of cells that are merged: the least total. Their noise adds up; a third of k is left of it."""
        p = -math.expm1(-self.epsilon)
        variance = 2 * (1 - p) / p**2 * (STEPS / self.k) ** 2 + self.n_parties / 6  # of the noise, and of the rounding
        spread = CAREFUL * np.sqrt(variance * np.arange(MOST_CELLS + 1))
        least: Longs = np.maximum(np.ceil(STEPS / 3 + spread), STEPS).astype(np.int64)
        return least

    @property
    def _room(self) -> int:
        return math.ceil(noise.SURE / self.epsilon * STEPS / self.k) + self.n_parties


def sum_noise(n_parties: int, bits: int) -> noise.Law:
    """Of the noise on sums, where the mean row has some 2 ** bits units."""
    return noise.law(n_parties, _sum_epsilon(bits))


def most_noise(bits: int) -> float:
    """How large the noise on a sum can be, in the same units. What adds up down to a leaf is within it, too."""
    return noise.SURE / _sum_epsilon(bits)


def _sum_epsilon(bits: int) -> float:
    return math.sqrt(2) / (SUM_NOISE * 2.0**bits)


def merged(
    level: Level, counts: Longs, needed: Longs, nodes: Nodes, places: AnyArray, columns: Columns
) -> tuple[Level, AnyArray]:
    """The level with cells that have enough rows, and for each cell as drawn the one that it is in now (or -1).

    `counts` are totals over all parties, in units of k / STEPS. Notes in `nodes` what the sums of this level will tell.
    """
    n, n_slots = len(places), len(level.feature)
    slot_start, feature, cell_start = (
        np.zeros(n + 1, np.int32),
        np.empty(n_slots, np.int32),
        np.zeros(n_slots + 1, np.int32),
    )
    table, now = np.empty((n_slots, N_BINS), np.uint8), np.empty(level.n_cells, np.int64)
    question = (level.slot_start, level.feature, level.cell_start, level.cell_of_bin)
    about = (columns.first_cut, columns.n_levels, columns.has_missing)
    tree = (nodes.tree, nodes.parent, nodes.feature, nodes.seen, nodes.released, nodes.used)
    answer = (slot_start, feature, cell_start, table)
    siblings, scratch = _siblings(nodes, places), np.empty((4, N_BINS), np.int64)
    n_kept = _merge(question, counts, needed, siblings, places, tree, about, answer, now, scratch)
    kept = Level(
        level.tree, level.node, slot_start, feature[:n_kept], cell_start[: n_kept + 1], cell_of_bin=table[:n_kept]
    )
    return kept, now


def _siblings(nodes: Nodes, places: AnyArray) -> AnyArray:
    """Per open node the number of its sibling among them; -1 where that is not open."""
    parent = nodes.parent[places]
    sibling = np.full(len(places), -1, np.int64)
    pairs = np.flatnonzero((parent[1:] == parent[:-1]) & (parent[1:] >= 0))
    sibling[pairs], sibling[pairs + 1] = pairs + 1, pairs
    return sibling


# --- kernels ---------------------------------------------------------------------------------------------------------


@part
def _find(feature, first, last, wanted):  # type: ignore[no-untyped-def]
    for s in range(first, last):
        if feature[s] == wanted:
            return s
    return -1


@part
def _boundaries(table, s, n, is_category, out):  # type: ignore[no-untyped-def]
    """What the boundary above each cell is called: the last bin below it, or the number of a group of levels."""
    for cell in range(n):
        out[cell] = cell
    if not is_category:
        for b in range(MISSING):
            out[table[s, b]] = b


@part
def _has(bits, row, number):  # type: ignore[no-untyped-def]
    return (bits[row, number >> 3] >> np.uint8(number & 7)) & 1


@part
def _any(bits, row, first, end):  # type: ignore[no-untyped-def]
    number = first
    while number < end:
        if number & 7 == 0 and number + 8 <= end:  # a byte at once
            if bits[row, number >> 3]:
                return True
            number += 8
        elif _has(bits, row, number):
            return True
        else:
            number += 1
    return False


@part
def _set(bits, row, number):  # type: ignore[no-untyped-def]
    bits[row, number >> 3] |= np.uint8(1 << (number & 7))


@part
def _parent_knows(place, column, number, parent, split_on, released):  # type: ignore[no-untyped-def]
    """Whether the parent has released a boundary, or got it from above by splits of this very column."""
    above = parent[place]
    while above >= 0:
        if _has(released, np.int64(above), number):
            return True
        over = parent[above]
        if over < 0 or split_on[over] != column:
            return False
        above = over
    return False


@part
def _states(place, j, apart, is_category, n, names, tree, about, state):  # type: ignore[no-untyped-def]
    """What may become of each boundary, by what the ancestors have released."""
    tree_of, parent, split_on, seen, released, used = tree
    first_cut, _, has_missing = about
    asked = _any(seen, place, first_cut[j], first_cut[j + 1] - (1 if has_missing[j] else 0))
    for cell in range(n - 1):
        number = first_cut[j] + names[cell]
        elsewhere = is_category or _has(used, np.int64(tree_of[place]), number)
        state[cell] = GONE if asked and elsewhere else FREE
        if _has(seen, place, number):
            known = _parent_knows(place, j, number, parent, split_on, released)
            state[cell] = GONE if not known else SHARED if not apart else FREE if is_category else KEPT


@njit(nogil=True, cache=True)
def _merge(question, counts, needed, sibling, places, tree, about, answer, now, scratch):  # type: ignore[no-untyped-def]
    """Returns how many slots have a boundary that stays; the others are left out."""
    slot_start, feature, cell_start, cell_of_bin = question
    tree_of, parent, split_on, seen, released, used = tree
    first_cut, n_levels, has_missing = about
    names, others, state, goes_to = scratch[0], scratch[1], scratch[2], scratch[3]
    kept = np.int64(0)  # not 0: a helper would be compiled for that number alone, too
    for i in range(len(places)):
        place, beside = places[i], sibling[i]
        for s in range(slot_start[i], slot_start[i + 1]):
            j, first, is_category = np.int64(feature[s]), np.int64(cell_start[s]), n_levels[feature[s]] > 1
            n = cell_start[s + 1] - first
            ordered = n - 1 if has_missing[j] else n
            # Where the parent was split by this column, the sibling has none of these rows.
            apart = parent[place] < 0 or split_on[parent[place]] == j
            o = -1 if apart or beside < 0 else _find(feature, slot_start[beside], slot_start[beside + 1], j)
            _boundaries(cell_of_bin, np.int64(s), ordered, is_category, names)
            _states(place, j, apart, is_category, ordered, names, tree, about, state)
            m, theirs = np.int64(0), first
            if o >= 0:
                theirs = np.int64(cell_start[o])
                m = cell_start[o + 1] - theirs - (1 if has_missing[j] else 0)
                _boundaries(cell_of_bin, np.int64(o), m, is_category, others)
            _settle(counts, first, ordered, names, theirs, m, others, needed, state)
            n_cells = _join(counts, first, ordered, state, needed, goes_to)
            _release(goes_to, ordered, first_cut[j], names, released, place, used, np.int64(tree_of[place]))
            if has_missing[j]:
                last = first_cut[j + 1] - 1
                alone = _missing_apart(counts, first, n, needed)
                if alone and _has(seen, place, last):
                    alone = _parent_knows(place, j, last, parent, split_on, released)
                    alone = alone and (apart or (o >= 0 and _missing_apart(counts, theirs, m + 1, needed)))
                # Merged, they join the same end in every node of a tree: two ends would tell the difference.
                goes_to[n - 1] = n_cells if alone else ((tree_of[place] + j) & 1) * (n_cells - 1)
                if alone:
                    n_cells += 1
                    _set(released, place, last)
            kept = _write(s, n_cells, goes_to, question, answer, kept, now)
        answer[0][i + 1] = kept
        for byte in range(seen.shape[1]):
            seen[place, byte] |= released[place, byte]
    return kept


@part
def _write(s, n_cells, goes_to, question, answer, kept, now):  # type: ignore[no-untyped-def]
    """A slot as it is now, unless all of its cells were merged. Returns how many are kept."""
    _, feature, cell_start, cell_of_bin = question
    _, new_feature, new_start, table = answer
    for cell in range(cell_start[s], cell_start[s + 1]):
        now[cell] = new_start[kept] + goes_to[cell - cell_start[s]] if n_cells > 1 else -1
    if n_cells < 2:
        return kept
    for b in range(N_BINS):
        table[kept, b] = goes_to[cell_of_bin[s, b]]
    new_feature[kept], new_start[kept + 1] = feature[s], new_start[kept] + n_cells
    return kept + 1


@part
def _release(goes_to, n, first_cut, names, released, place, used, tree):  # type: ignore[no-untyped-def]
    """Note the boundaries that stay, for the node and for its tree."""
    for cell in range(n - 1):
        if goes_to[cell] != goes_to[cell + 1]:
            _set(released, place, first_cut + names[cell])
            _set(used, tree, first_cut + names[cell])


@part
def _settle(counts, own, n, names, other, m, others, needed, state):  # type: ignore[no-untyped-def]
    """Shared boundaries are kept where both siblings have enough rows between any two. Both come to the same result."""
    mine, my_cells, theirs, their_cells, k, last = 0, 0, 0, 0, 0, -1
    for cell in range(n - 1):
        mine, my_cells = mine + counts[own + cell], my_cells + 1
        while k < m and others[k] <= names[cell]:
            theirs, their_cells, k = theirs + counts[other + k], their_cells + 1, k + 1
        both = 0 < k < m and others[k - 1] == names[cell]
        if state[cell] == SHARED:
            state[cell] = GONE
            if both and mine >= needed[my_cells] and theirs >= needed[their_cells]:
                state[cell], last = KEPT, cell
                mine, my_cells, theirs, their_cells = 0, 0, 0, 0
    while k < m:
        theirs, their_cells, k = theirs + counts[other + k], their_cells + 1, k + 1
    if last >= 0 and (mine + counts[own + n - 1] < needed[my_cells + 1] or theirs < needed[their_cells]):
        state[last] = GONE


@part
def _missing_apart(counts, first, n, needed):  # type: ignore[no-untyped-def]
    """Whether there are enough missing values, and enough others."""
    others = 0
    for cell in range(n - 1):
        others += counts[first + cell]
    return counts[first + n - 1] >= needed[1] and others >= needed[n - 1]


@part
def _join(counts, own, n, state, needed, goes_to):  # type: ignore[no-untyped-def]
    """Merge cells until all have enough rows; kept boundaries stay, free ones where there is room on both sides."""
    total, cells, here = 0, 0, 0
    for cell in range(n):
        total, cells = total + counts[own + cell], cells + 1
        goes_to[cell] = here
        if cell == n - 1 or state[cell] == GONE:
            continue
        stays = state[cell] == KEPT
        if not stays and total >= needed[cells]:
            rest, left = 0, 0
            for after in range(cell + 1, n):
                rest, left = rest + counts[own + after], left + 1
                if state[after] == KEPT or rest >= 2 * needed[left]:
                    break
            stays = rest >= needed[left]
        if stays:
            total, cells, here = 0, 0, here + 1
    return here + 1
