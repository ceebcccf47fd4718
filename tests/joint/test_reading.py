"""The reader's choice: by hand over all splits of a node, the kernel finds none that gains more."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simfl.joint.candidates import Columns
from simfl.joint.level import MISSING, N_BINS, Level
from simfl.joint.reading import best_splits
from simfl.training.pruning import score, weight
from tests.joint.machines import joint

FREE = [-np.inf, np.inf]


def slot_of(n_cells, missing):
    """A table from bins to cells: the first cells have a bin each, the last all others."""
    table = np.minimum(np.arange(N_BINS), n_cells - 1).astype(np.uint8)
    table[MISSING] = n_cells if missing else n_cells - 1
    return table


def question(sizes, categories, missing):
    """One node that is asked about in every column: `sizes` are its cells without those of missing values."""
    n_cells = np.array(sizes) + np.array(missing)
    level = Level(
        tree=np.zeros(1, np.int32),
        node=np.zeros(1, np.int32),
        slot_start=np.array([0, len(sizes)], np.int32),
        feature=np.arange(len(sizes), dtype=np.int32),
        cell_start=np.concatenate([[0], np.cumsum(n_cells)]).astype(np.int32),
        cell_of_bin=np.array([slot_of(n, m) for n, m in zip(sizes, missing, strict=True)]),
    )
    n_levels = np.where(categories, sizes, 0).astype(np.int32)
    return level, Columns(np.where(categories, 0, sizes).astype(np.int32), n_levels, np.array(missing))


def gains(level, columns, sums, params, bounds=FREE):
    """Every split of the node that is allowed: (gain, column, cells that go left)."""
    G, H = sums
    signs = params.monotone_constraints or [0] * len(columns.n_levels)
    for j in range(len(columns.n_levels)):
        own = slice(level.cell_start[j], level.cell_start[j + 1])
        g, h = G[own], H[own]
        n = len(g) - int(columns.has_missing[j])
        if columns.n_levels[j]:
            sides = [set(s) for k in range(1, len(g)) for s in itertools.combinations(range(len(g)), k)]
        else:
            known = [set(range(k)) for k in range(1, n + 1)]
            sides = [s for s in known if len(s) < len(g)] + [s | {n} for s in known[:-1] if n < len(g)]
        for side in sides:
            left = np.isin(np.arange(len(g)), list(side))
            sides_G, sides_H = np.array([g[left].sum(), g[~left].sum()]), np.array([h[left].sum(), h[~left].sum()])
            if sides_H.min() < max(params.min_child_weight, 1e-12):
                continue
            w = np.clip(weight(sides_G, sides_H, params), *bounds)
            if signs[j] * (w[1] - w[0]) < 0:
                continue
            before = np.clip(weight(G[own].sum(), H[own].sum(), params), *bounds)
            yield gain_of(sides_G, sides_H, w, params).sum() - gain_of(g.sum(), h.sum(), before, params), j, side


def gain_of(G, H, w, params):
    return -(2 * G * w + (H + params.reg_lambda) * w * w) - 2 * params.reg_alpha * np.abs(w)


def random_sums(rng, level):
    """The cells of every column add up to the same node."""
    G, H = np.zeros(level.n_cells), np.zeros(level.n_cells)
    total_G, total_H = rng.normal(0, 5), rng.uniform(5, 50)
    for a, b in itertools.pairwise(level.cell_start):
        g, h = rng.normal(0, 4, b - a), rng.uniform(0.1, 1, b - a)
        G[a:b], H[a:b] = g - g.mean() + total_G / (b - a), h / h.sum() * total_H
    return (G, H), (np.array([total_G]), np.array([total_H]))


PARAMS = [
    {},
    {"reg_lambda": 0.0},
    {"min_child_weight": 4.0},
    {"reg_alpha": 1.5},
    {"max_delta_step": 0.3},
    {"monotone_constraints": [1, -1, 0]},
]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(2, 6), min_size=3, max_size=3),
    missing=st.lists(st.booleans(), min_size=3, max_size=3),
    given_params=st.sampled_from(PARAMS),
)
def test_no_split_of_numbers_gains_more(seed, sizes, missing, given_params):
    params = joint(**given_params)
    level, columns = question(sizes, [False] * 3, missing)
    sums, node = random_sums(np.random.default_rng(seed), level)
    found = best_splits(level, sums, node, np.array([FREE]), columns, params)
    by_hand = {(j, sum(1 << c for c in side)): gain for gain, j, side in gains(level, columns, sums, params)}
    best = max(by_hand.values(), default=0.0)
    if best <= 1e-6:
        assert found.slot[0] == -1 or found.gain[0] <= 1e-5
        return
    assert found.gain[0] == pytest.approx(best, rel=1e-6, abs=1e-8)
    assert by_hand[int(found.slot[0]), int(found.left[0])] == pytest.approx(best, rel=1e-6, abs=1e-8)
    own = [c for c in range(64) if int(found.left[0]) >> c & 1]
    first = level.cell_start[found.slot[0]]
    np.testing.assert_allclose([found.G[0], found.H[0]], [part[first + np.array(own)].sum() for part in sums])


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), n=st.integers(2, 7), missing=st.booleans())
def test_no_two_sets_of_levels_gain_more(seed, n, missing):
    """Without reg_lambda the best of all sets is one of the first cells by G / H (Fisher)."""
    params = joint(reg_lambda=0.0, min_child_weight=0.0)
    level, columns = question([n], [True], [missing])
    sums, node = random_sums(np.random.default_rng(seed), level)
    found = best_splits(level, sums, node, np.array([FREE]), columns, params)
    known = {(j, frozenset(side)): gain for gain, j, side in gains(level, columns, sums, params)}
    best = max(known.values())
    assert found.gain[0] == pytest.approx(best, rel=1e-6, abs=1e-7)
    goes_left = (int(found.left[0]) >> level.cell_of_bin[0, :n].astype(int)) & 1
    assert not goes_left.all()  # some level goes right


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), low=st.floats(-1, 0), high=st.floats(0, 1))
def test_bounds_from_above_hold(seed, low, high):
    """Under monotone constraints a node has bounds on its values: gains are those of the bounded values."""
    params = joint(monotone_constraints=[1, 0])
    level, columns = question([5, 4], [False, False], [False, True])
    sums, node = random_sums(np.random.default_rng(seed), level)
    found = best_splits(level, sums, node, np.array([[low, high]]), columns, params)
    best = max((gain for gain, _, _ in gains(level, columns, sums, params, (low, high))), default=0.0)
    assert found.gain[0] == pytest.approx(max(best, 0.0), rel=1e-5, abs=1e-5)


def test_runners_up_are_the_next_best_columns():
    params = joint()
    for seed in range(20):
        level, columns = question([5, 5, 5, 5], [False] * 4, [False, True, False, False])
        sums, node = random_sums(np.random.default_rng(seed), level)
        found = best_splits(level, sums, node, np.array([FREE]), columns, params)
        best = {}
        for gain, j, side in gains(level, columns, sums, params):
            if gain > best.get(j, (0.0,))[0]:
                best[j] = gain, max(c for c in side if c < 5)
        order = sorted(best, key=lambda j: -best[j][0])
        assert found.slot[0] == order[0]
        for place, j in enumerate(order[1:3]):
            cut = best[j][1] if best[j][1] < 4 else MISSING - 1  # all known values
            assert found.runners_up[0, place].tolist() == [j, cut]


@pytest.mark.parametrize(("extra_depth", "splits"), [(0, False), (2, True)])
def test_gamma_counts_at_once_where_nothing_is_pruned_later(extra_depth, splits):
    level, columns = question([2], [False], [False])
    sums, node = (np.array([2.0, -2.0]), np.array([1.0, 1.0])), (np.zeros(1), np.array([2.0]))
    gain = score(sums[0], sums[1], joint()).sum()
    assert gain == 4.0
    params = joint(gamma=4.5, extra_depth=extra_depth)
    found = best_splits(level, sums, node, np.array([FREE]), columns, params)
    assert (found.slot[0] >= 0) == splits


def test_missing_rows_that_were_joined_with_others_stay_with_them():
    """The guard may put them into a cell of numbers: no split can take them apart."""
    level, columns = question([3], [False], [True])
    level.cell_of_bin[0, MISSING] = 1
    joined = Level(
        level.tree, level.node, level.slot_start, level.feature, np.array([0, 3], np.int32), level.cell_of_bin
    )
    sums, node = (np.array([-3.0, 4.0, 1.0]), np.ones(3)), (np.array([2.0]), np.array([3.0]))
    found = best_splits(joined, sums, node, np.array([FREE]), columns, joint(min_child_weight=0.5))
    assert found.left[0] == 0b001


def test_a_node_that_nothing_divides_stays_a_leaf():
    level, columns = question([3, 2], [False, True], [False, False])
    sums, node = (np.zeros(5), np.ones(5)), (np.zeros(1), np.array([3.0]))
    found = best_splits(level, sums, node, np.array([FREE]), columns, joint())
    assert found.slot.tolist() == [-1]
    assert found.left.tolist() == [0]
    assert (found.runners_up == -1).all()
