"""No sum over fewer than k rows: not one that is released, and none that follows from others of the same tree."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simfl.joint import guard, noise, sending
from simfl.joint.cuts import binned
from simfl.joint.guard import Counting
from simfl.joint.level import MISSING
from simfl.joint.machine import Labelled, Machine, Mine, Plan
from simfl.params import train_params

K = guard.STEPS  # as many rows as a count has units: no rounding
NO_VALUE = "missing"


@pytest.fixture(autouse=True, scope="module")
def little_noise():
    """On counts: what is tested here is not about them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simfl.joint.setting.COUNT_EPSILON", 1e6)
        yield


def table(seed, n):
    """Two numbers, one of few values, one that is often missing, categories of 3 and of 20 levels."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6)).astype(np.float32)
    X[:, 2], X[:, 4], X[:, 5] = rng.integers(0, 4, n), rng.integers(0, 3, n), rng.integers(0, 20, n) ** 2 // 20
    X[rng.random(n) < 0.15, 3] = np.nan
    f = X[:, 0] * (1 + X[:, 2]) + (X[:, 4] == 1) + (X[:, 5] % 3 == 0) + np.isnan(X[:, 3])
    return X, (f + rng.normal(0, 0.4, n) > 1).astype(np.float32), [0, 0, 0, 0, 3, 20]


def machines_of(X, y, levels, n_parties, **params):
    plan = Plan(train_params(recipe="joint", random_state=0, **params), np.array(levels), 1, tuple("abcd"[:n_parties]))
    share = np.random.default_rng(len(y)).integers(0, n_parties, len(y))
    rows = [Labelled(X[share == i], y[share == i]) for i in range(n_parties)]
    return [Machine(plan, Mine(own, None, plan.parties[i].encode())) for i, own in enumerate(rows)]


class Eavesdropper:
    """Follows a run and notes, per tree, which boundaries of which columns every node's sums have told."""

    def __init__(self, machines):
        self.machines, self.told, self.groups = machines, defaultdict(set), {}

    def run(self):
        while not self.machines[0].finished:
            growing = self.machines[0].growing
            if growing and growing._batch:
                self.look(growing._batch)
            parts = zip(*(m.contribution() for m in self.machines), strict=True)
            total = [np.sum(part, axis=0, dtype=part[0].dtype) for part in parts]
            reader, before = self.machines[0].reader, growing and len(growing.batches)
            nodes = growing._batch.nodes if growing and growing._batch else None
            decision = self.machines[reader or 0].read(total)
            for machine in self.machines:
                machine.apply(decision)
            assert len({m.digest() for m in self.machines}) == 1
            if nodes is not None and len(growing.batches) > before:
                yield nodes
                self.told.clear()

    def look(self, batch):
        level, columns = batch.level, batch.columns
        of_slot = np.repeat(batch.open.place, np.diff(level.slot_start))
        for s, (place, j) in enumerate(zip(of_slot, level.feature, strict=True)):
            cells = level.cell_of_bin[s]
            if not batch.counted:
                self.groups[batch.nodes.tree[place], j] = cells.copy()
                continue
            if columns.n_levels[j]:
                group = self.groups[batch.nodes.tree[place], j][: columns.n_levels[j]]
                by_group = [cells[np.flatnonzero(group == g)[0]] for g in range(group.max() + 1)]
            else:
                by_group = cells[:MISSING]
            self.told[place, j] |= set(np.flatnonzero(np.diff(np.asarray(by_group, int))).tolist())
            if columns.has_missing[j] and cells[MISSING] > max(by_group):
                self.told[place, j].add(NO_VALUE)

    def ranks(self, bins, tree, j, columns):
        """Where rows are in the order of a column; -1: missing, where these have a cell."""
        of_bin = self.groups[tree, j].astype(int) if columns.n_levels[j] else np.arange(256)
        return np.where(columns.has_missing[j] & (bins[:, j] == MISSING), -1, of_bin[bins[:, j]])


def rows_of(nodes, bins):
    """Per node the numbers of its rows."""
    out = {}
    for place in range(nodes.n):
        above = nodes.parent[place]
        if above < 0:
            out[place] = np.arange(len(bins))
            continue
        b = bins[out[above], nodes.feature[above]].astype(int)
        left = ((nodes.levels_left[above, b >> 3] >> (b & 7)) & 1).astype(bool)
        out[place] = out[above][left != nodes.is_right[place]]
    return out


def spread(nodes, told, j, is_category):
    """What follows: of a parent and its two children two give the third; below a split of the column all is shared."""
    known = {place: set(told[place, j]) for place in range(nodes.n)}
    size = -1
    while size != sum(map(len, known.values())):
        size = sum(map(len, known.values()))
        for place in np.flatnonzero(nodes.left_child[: nodes.n] >= 0):
            left, right = int(nodes.left_child[place]), int(nodes.left_child[place]) + 1
            trio = (place, left, right)
            for name in set().union(*(known[p] for p in trio)):
                if nodes.feature[place] != j:
                    same = trio if sum(name in known[p] for p in trio) > 1 else ()
                elif name == NO_VALUE:
                    same = (place, left if nodes.missing_left[place] else right)
                else:
                    same = trio if is_category else (place, left if name < nodes.cut[place] else right)
                    same = (place,) if not is_category and name == nodes.cut[place] else same
                for p in same:
                    known[p].add(name)
    return known


def check(eavesdropper, nodes, bins, columns):
    rows = rows_of(nodes, bins)
    for j in range(bins.shape[1]):
        known = spread(nodes, eavesdropper.told, j, columns.n_levels[j] > 0)
        for place, names in known.items():
            if not names:
                continue
            rank = eavesdropper.ranks(bins[rows[place]], nodes.tree[place], j, columns)
            edges = sorted(name for name in names if name != NO_VALUE)
            sizes = np.bincount(np.searchsorted(edges, rank[rank >= 0]), minlength=len(edges) + 1)
            assert min(sizes[sizes > 0], default=K) >= K, f"column {j} in node {place}: {sizes} rows between {edges}"
            if NO_VALUE in names:
                assert (rank < 0).sum() == 0 or (rank < 0).sum() >= K


@settings(max_examples=25, deadline=None)
@example(0, 818, 2, 1)  # a pruned tree with the splits of a narrow category only
@given(st.integers(0, 10_000), st.integers(60, 900), st.integers(2, 4), st.integers(1, 4))
def test_no_sum_of_fewer_than_k_rows_follows_from_those_of_a_tree(seed, n, n_parties, lockstep):
    X, y, levels = table(seed, n)
    params = {"n_trees": 2 * lockstep, "learning_rate": 0.8 / lockstep, "max_depth": 4, "min_child_weight": 0.0}
    eavesdropper = Eavesdropper(machines_of(X, y, levels, n_parties, min_group=K, **params))
    for nodes in eavesdropper.run():
        first = eavesdropper.machines[0]
        bins = np.concatenate([binned(m.mine.rows.X, first.growing.setting.cuts).bins for m in eavesdropper.machines])
        check(eavesdropper, nodes, bins, first.growing.setting.columns)


@given(st.integers(2, 200), st.integers(1, 60), st.floats(0.01, 1e6), st.integers(0, 2**32))
def test_noise_never_turns_a_small_count_into_a_large_one(k, n_parties, epsilon, seed):
    counting = Counting(k, n_parties, epsilon)
    total = np.zeros(100, counting.word)
    for party in range(n_parties):
        total += counting.sent(np.zeros(100, np.int64), seed + party)
    most = noise.SURE / epsilon * guard.STEPS / k + n_parties + 1
    assert abs(counting.total(total)).max() <= most


@pytest.mark.parametrize("k", [5, 10, 30, 100])
@pytest.mark.parametrize("n_parties", [2, 10, 40])
def test_empty_cells_are_not_released_however_many_are_merged(k, n_parties):
    counting = Counting(k, n_parties, 0.5)
    words = sum((counting.sent(np.zeros(64_000, np.int64), i) for i in range(n_parties)), np.zeros(1, counting.word))
    counts, goes_to = counting.total(words).reshape(-1, 16), np.empty(256, np.int64)
    state = np.full(256, guard.FREE, np.int8)
    split = [guard._join.py_func(own, 0, 16, state, counting.needed, goes_to) > 1 for own in counts]
    assert np.mean(split) < 0.002


@pytest.mark.parametrize("k", [5, 30])
@pytest.mark.parametrize("n_parties", [2, 10])
def test_a_cell_of_one_partys_rows_is_too_small_and_one_of_two_is_not(k, n_parties):
    counting = Counting(k, n_parties, 1e6)
    rows = np.array([0, 10 * k, 10 * k])  # of the first party in each cell
    words = counting.sent(rows, 1) + counting.sent(np.array([10 * k, 0, 10 * k]), 2)
    large = counting.total(words) >= counting.needed[1]
    assert large.tolist() == [False, False, True]


def test_what_a_party_cannot_subtract_is_noise_enough():
    """Of two parties one knows its own share: the other's alone has the deviation of epsilon."""
    share = noise.shares(noise.law(2, 0.5), 7, 200_000)
    assert share.std() == pytest.approx(np.sqrt(2 * np.exp(-0.5)) / (1 - np.exp(-0.5)), rel=0.02)
    others = sum(noise.shares(noise.law(10, 0.5), i, 200_000) for i in range(9))
    assert others.std() == pytest.approx(share.std(), rel=0.02)


def test_sums_have_noise_of_two_rows_and_none_without_a_guard():
    X, y, levels = table(0, 600)
    spread_of = {}
    for k in (1, K):
        params = {"min_group": k, "n_trees": 8, "max_depth": 2}
        machines = machines_of(X, y, levels, 2, **params)
        while "sums" not in machines[0].step:
            parts = zip(*(m.contribution() for m in machines), strict=True)
            total = [np.sum(part, axis=0, dtype=part[0].dtype) for part in parts]
            for machine in machines:
                machine.apply(machine.read(total))
        growing = machines[0].growing
        exact = sending.sums(growing._sums[1], growing._totals[0], growing._now.sent, None, 0)
        spread_of[k] = (growing.contribution()[0] - exact).view(np.int32).std()
    assert spread_of[1] == 0
    assert 0.5 < spread_of[K] / (guard.SUM_NOISE * 2**4) < 2
