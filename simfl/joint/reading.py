"""What follows from the totals of a level: the best split of every node, by XGBoost's gain.

A split of numbers sends the cells up to some cut to the left, one of a category the cells
with the lowest G / H; missing values go where the gain is larger. The runners-up, the best cuts of other columns, are
asked about again in the children.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from simfl.arrays import AnyArray, Doubles, Ints, Longs, Mask
from simfl.joint._part import part
from simfl.joint.candidates import NONE, RUNNERS_UP, Columns
from simfl.joint.level import MISSING, MOST_CELLS, Level
from simfl.params import Params


@dataclass(frozen=True)
class Found:
    """Per open node its best split."""

    slot: Ints  # NONE: it stays a leaf
    left: AnyArray  # uint64: one bit per cell that goes left
    gain: Doubles
    runners_up: Ints  # (nodes, RUNNERS_UP, 2): column and cut
    G: Doubles  # of the left child
    H: Doubles


def best_splits(
    level: Level, sums: tuple[Doubles, Doubles], node: tuple[Doubles, Doubles], bounds: Doubles, columns: Columns,
    params: Params, least: Doubles,
) -> Found:  # fmt: skip
    """`sums`: G and H per cell; `node`: G and H per open node; `bounds`: what its values may be (constraints).

    `least`: the least H of a child, per open node.
    """
    n = len(level.tree)
    slot, left, gain = np.full(n, NONE, np.int32), np.zeros(n, np.uint64), np.zeros(n)
    runners = np.full((n, RUNNERS_UP, 2), NONE, np.int32)
    G, H = np.zeros(n), np.zeros(n)
    signs = np.array(params.monotone_constraints or np.zeros(len(columns.n_points)), dtype=np.int8)
    least_gain = 0.0 if params.extra_depth else params.gamma  # a tree that is grown deeper is pruned by gamma later
    given = (params.reg_lambda, params.reg_alpha, params.max_delta_step or 0.0, least, least_gain)
    _best(
        level.slot_start, level.feature, level.cell_start, level.cell_of_bin, *sums, *node, bounds, signs,
        columns.n_levels, columns.has_missing, *given, slot, left, gain, runners, G, H,
        np.empty(MOST_CELLS, np.int64), np.empty(2),
    )  # fmt: skip
    return Found(slot, left, gain, runners, G, H)


def opened(level: Level, sent: Longs, is_number: Mask, own: Doubles, units: Doubles) -> Doubles:
    """The sum of every cell, from what was sent of all but the last of each slot: that follows from the node's own.

    Of numbers the sums up to each cut were sent. `units`: per open node, a power of two.
    """
    cells: Doubles = np.empty(level.n_cells)
    _open(level.slot_start, level.cell_start, sent, is_number, own, units, cells)
    return cells


@njit(nogil=True, cache=True)
def _open(slot_start, cell_start, sent, is_number, own, units, cells):  # type: ignore[no-untyped-def]
    n = 0
    for i in range(len(own)):
        for s in range(slot_start[i], slot_start[i + 1]):
            known, before, last = 0, 0, cell_start[s + 1] - 1
            for cell in range(cell_start[s], last):
                value = sent[n] - before
                before = sent[n] if is_number[s] else 0
                known, n = known + value, n + 1
                cells[cell] = value * units[i]
            cells[last] = own[i] - known * units[i]


@part
def _within(value, low, high):  # type: ignore[no-untyped-def]
    value = low if low > value else value
    return high if high < value else value


@part
def _weight(G, H, reg_lambda, reg_alpha, limit, low, high):  # type: ignore[no-untyped-def]
    below = H + reg_lambda
    if H <= 0 or below <= 0:
        return _within(0.0, low, high)
    shrunk = abs(G) - reg_alpha if abs(G) > reg_alpha else 0.0
    w = -shrunk / below if G > 0 else shrunk / below
    if limit > 0:
        w = _within(w, -limit, limit)
    return _within(w, low, high)


@part
def _score(G, H, w, reg_lambda, reg_alpha):  # type: ignore[no-untyped-def]
    return -(2 * G * w + (H + reg_lambda) * w * w) - 2 * reg_alpha * abs(w)


@part
def _gain(GL, HL, GR, HR, own, sign, low, high, lam, alpha, limit, least):  # type: ignore[no-untyped-def]
    lighter = HR if HR < HL else HL
    if lighter < least or lighter <= 0:
        return -np.inf
    a, b = _weight(GL, HL, lam, alpha, limit, low, high), _weight(GR, HR, lam, alpha, limit, low, high)
    if sign != 0 and sign * (b - a) < 0:
        return -np.inf
    return _score(GL, HL, a, lam, alpha) + _score(GR, HR, b, lam, alpha) - own


@njit(nogil=True, cache=True)
def _best(  # type: ignore[no-untyped-def]  # noqa: C901
    slot_start, feature, cell_start, cell_of_bin, cell_G, cell_H, node_G, node_H, bounds, signs, n_levels, has_missing,
    lam, alpha, limit, least, least_gain, slot, left, gain, runners, out_G, out_H, order, second,
):  # fmt: skip
    one = np.uint64(1)
    for i in range(len(node_G)):
        G, H, low, high = node_G[i], node_H[i], bounds[i, 0], bounds[i, 1]
        own = _score(G, H, _weight(G, H, lam, alpha, limit, low, high), lam, alpha)
        best, best_cut = 1e-9 * (1.0 + abs(own)), -1
        best = least_gain if least_gain > best else best
        second[0] = second[1] = 0.0
        for s in range(slot_start[i], slot_start[i + 1]):
            first, n, j = cell_start[s], cell_start[s + 1] - cell_start[s], feature[s]
            # The missing rows are the last cell, unless they were merged with others.
            apart = has_missing[j] and _is_apart(cell_of_bin, s, n - 1)
            m = n - 1 if apart else n
            _order(order, cell_G, cell_H, first, m, n_levels[j] > 1, lam)
            mine, mine_mask, mine_G, mine_H = -np.inf, np.uint64(0), 0.0, 0.0
            GL, HL, mask = 0.0, 0.0, np.uint64(0)
            last = m if apart else m - 1  # with missing rows apart: all the others against them, too
            for k in range(last):
                cell = order[k]
                GL, HL, mask = GL + cell_G[first + cell], HL + cell_H[first + cell], mask | (one << np.uint64(cell))
                if k == m - 1 and n_levels[j] > 1:  # missing rows to the left: XGBoost needs a level that goes right
                    GL, HL, mask = cell_G[first + n - 1], cell_H[first + n - 1], one << np.uint64(n - 1)
                found = _gain(GL, HL, G - GL, H - HL, own, signs[j], low, high, lam, alpha, limit, least[i])
                if found > mine:
                    mine, mine_mask, mine_G, mine_H = found, mask, GL, HL
                if apart and k < m - 1:
                    a, b = GL + cell_G[first + n - 1], HL + cell_H[first + n - 1]
                    found = _gain(a, b, G - a, H - b, own, signs[j], low, high, lam, alpha, limit, least[i])
                    if found > mine:
                        mine, mine_mask, mine_G, mine_H = found, mask | (one << np.uint64(n - 1)), a, b
            if mine <= 0.0:
                continue
            cut = _cut(cell_of_bin, s, mine_mask) if n_levels[j] < 2 else -1
            if mine > best:
                if slot[i] >= 0 and best_cut >= 0:
                    _runner(runners, i, second, feature[slot[i]], np.int64(best_cut), best)
                slot[i], left[i], best, best_cut = s, mine_mask, mine, cut
                out_G[i], out_H[i] = mine_G, mine_H
            elif cut >= 0:
                _runner(runners, i, second, j, cut, mine)
        gain[i] = best if slot[i] >= 0 else 0.0


@part
def _is_apart(table, s, cell):  # type: ignore[no-untyped-def]
    """Whether the missing rows have the last cell to themselves."""
    for b in range(MISSING):
        if table[s, b] == cell:
            return False
    return table[s, MISSING] == cell


@part
def _order(order, G, H, first, n, by_value, lam):  # type: ignore[no-untyped-def]
    """Cells of numbers as they are, groups of levels by their best value (the largest first)."""
    for k in range(n):
        order[k] = k
    if by_value:
        for k in range(1, n):
            cell = order[k]
            value = G[first + cell] / (H[first + cell] + lam + 1e-12)
            p = k
            while p > 0 and G[first + order[p - 1]] / (H[first + order[p - 1]] + lam + 1e-12) > value:
                order[p] = order[p - 1]
                p -= 1
            order[p] = cell


@part
def _cut(table, s, mask):  # type: ignore[no-untyped-def]
    last = -1
    for b in range(MISSING):
        if (mask >> np.uint64(table[s, b])) & np.uint64(1):
            last = b
    return last


@part
def _runner(runners, i, second, j, cut, gain):  # type: ignore[no-untyped-def]
    """Keep the best two."""
    if gain > second[0]:
        runners[i, 1, 0], runners[i, 1, 1], second[1] = runners[i, 0, 0], runners[i, 0, 1], second[0]
        runners[i, 0, 0], runners[i, 0, 1], second[0] = j, cut, gain
    elif gain > second[1]:
        runners[i, 1, 0], runners[i, 1, 1], second[1] = j, cut, gain
