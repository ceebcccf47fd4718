"""Time per tree of the joint recipe's kernels, beside XGBoost's on the same rows and threads.

`python -m benchmarks.joint_kernels [rows] [columns] [parties]`: both in turn and in processor time, so that other work
on the machine disturbs the ratio little. The kernels' trees have random candidates, twelve features per node with two
cuts each; the best exact gain wins.
"""

import sys
import time

import numpy as np
import xgboost as xgb

from simfl.joint.cuts import binned, cell_counts, choose, grid
from simfl.joint.level import Followed, Level, Splits
from simfl.joint.rows import Placement

THREADS, TREES, DEPTH, MOST_NODES, SLOTS, CUTS = 2, 8, 10, 350, 12, 2


def table(n, d):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)).astype(np.float32)
    score = X[:, 0] * X[:, 1] + X[:, 2] + 0.5 * X[:, 3] ** 2 - 0.5 + X[:, 4] * (X[:, 5] > 0)
    return X, (score + rng.normal(size=n) > 0).astype(np.float32)


def draw(tree, node, d, n_bins, rng):
    n_slots = len(tree) * SLOTS
    feature = np.argsort(rng.random((len(tree), d)), axis=1)[:, :SLOTS].ravel()
    points = np.sort(rng.integers(1, n_bins, (n_slots, CUTS)), axis=1)
    cells = (np.arange(256)[None, :, None] >= points[:, None, :]).sum(axis=2)
    starts = np.arange(len(tree) + 1) * SLOTS, np.arange(n_slots + 1) * (CUTS + 1)
    numbers = (tree, node, starts[0], feature, starts[1])
    return Level(*(np.asarray(a, dtype=np.int32) for a in numbers), cells.astype(np.uint8))


def best_splits(level, sums):
    """Per open node the slot and cells with the best gain."""
    G, H = (total.reshape(level.n_nodes, SLOTS, CUTS + 1).astype(float) for total in sums[1:])
    left, right = np.cumsum(G, axis=2)[..., :-1], np.cumsum(H, axis=2)[..., :-1]
    all_g, all_h = G.sum(axis=2)[..., None], H.sum(axis=2)[..., None]
    gain = left**2 / (right + 1e3) + (all_g - left) ** 2 / (all_h - right + 1e3) - all_g**2 / (all_h + 1e3)
    best = gain.reshape(level.n_nodes, -1).argmax(axis=1)
    slot = np.where(
        gain.reshape(level.n_nodes, -1).max(axis=1) > 0, np.arange(level.n_nodes) * SLOTS + best // CUTS, -1
    )
    mask = np.where(best % CUTS == 0, 1, 3).astype(np.uint64)
    return slot.astype(np.int32), mask, all_h[:, 0, 0]


def numbered(level, slot, left, n_numbers):
    """The splits, with the next free numbers of each tree for the children."""
    child = np.full(level.n_nodes, -1, np.int32)
    for t in range(TREES):
        own = np.flatnonzero((level.tree == t) & (slot >= 0))
        child[own] = n_numbers[t] + 2 * np.arange(len(own))
        n_numbers[t] += 2 * len(own)
    return Splits(slot, left, child, int(max(n_numbers)))


def children(level, splits, hessian):
    """The open nodes of the next level: the children of the heaviest nodes of each tree."""
    tree, node = [], []
    for t in range(TREES):
        own = np.flatnonzero((level.tree == t) & (splits.slot >= 0))
        heavy = splits.child[own[np.sort(np.argsort(-hessian[own], kind="stable")[: MOST_NODES // 2])]]
        node.append(np.stack([heavy, heavy + 1], axis=1).ravel())
        tree.append(np.full(2 * len(heavy), t))
    return np.concatenate(tree), np.concatenate(node)


def grow(placements, packed, d, n_bins, rng, clock):
    """One batch; adds the seconds inside the kernels to the clock."""
    tree, node, n_numbers = np.arange(TREES), np.zeros(TREES, int), np.ones(TREES, int)
    ways = [{} for _ in range(TREES)]
    timed(clock, "begin", Placement.begin, [(p, whole(g)) for p, g in zip(placements, packed, strict=True)])
    for _ in range(DEPTH):
        level = draw(tree, node, d, n_bins, rng)
        own = timed(clock, "sums", Placement.sums, [(p, level) for p in placements])
        slot, left, hessian = best_splits(level, [sum(parts) for parts in zip(*own, strict=True)])
        splits = numbered(level, slot, left, n_numbers)
        for k in np.flatnonzero(slot >= 0):
            ways[level.tree[k]][level.node[k]] = (
                level.feature[slot[k]],
                goes_right(level, slot[k], left[k]),
                splits.child[k],
            )
        timed(clock, "split", Placement.split, [(p, level, splits) for p in placements])
        tree, node = children(level, splits, hessian)
    finished = [followed(own, rng.normal(size=n).astype("f4")) for own, n in zip(ways, n_numbers, strict=True)]
    margins = [np.zeros((g.shape[1], 1), np.float32) for g in packed]
    pairs = zip(placements, margins, strict=True)
    calls = [(p, t, own, m, 0) for p, m in pairs for t, own in enumerate(finished)]
    timed(clock, "leaf values", Placement.add_values, calls)


def whole(packed):
    """Every row is taken by every tree."""

    def take(t, rows, out):
        rows[:], out[:] = np.arange(len(rows)), packed[t]
        return len(rows)

    return take


def goes_right(level, slot, left):
    return (left >> level.cell_of_bin[slot].astype(np.uint64)) & np.uint64(1) == 0


def followed(ways, values):
    """A finished tree as rows follow it."""
    step, right = np.arange(len(values)).astype(np.uint64) << np.uint64(32), np.zeros((len(values), 256), bool)
    for node, (feature, goes, child) in ways.items():
        step[node], right[node] = int(child) << 32 | int(feature), goes
    words = np.packbits(right, axis=1, bitorder="little").view("<u4").astype(np.uint32).ravel()
    return Followed(step, words, values, DEPTH)


def timed(clock, name, function, calls):
    start = time.process_time()
    out = [function(*call) for call in calls]
    clock[name] = clock.get(name, 0.0) + time.process_time() - start
    return out


def main(n=1_000_000, d=28, n_parties=10, repeats=4):
    X, y = table(n, d)
    rng = np.random.default_rng(1)
    public = grid(X.mean(axis=0, dtype=float), X.std(axis=0, dtype=float), [0] * d)
    parts = np.array_split(np.arange(n), n_parties)
    cuts = choose(public, sum(cell_counts(X[rows], public) for rows in parts), 256, 1)
    placements = [Placement(binned(X[rows], cuts), TREES, THREADS) for rows in parts]
    gradients = (np.round((0.5 - y) * 2000).astype(np.int64) << 32) + 500
    packed = [np.repeat(gradients[rows][None], TREES, axis=0) for rows in parts]
    pooled = xgb.QuantileDMatrix(X, y, max_bin=256, nthread=THREADS)
    settings = {"max_depth": 8, "objective": "binary:logistic", "nthread": THREADS, "max_bin": 256}
    ratios = []
    for repeat in range(repeats + 1):
        clock = {}
        grow(placements, packed, d, 255, rng, clock)
        booster = xgb.Booster(settings, [pooled])
        timed(clock, "xgboost", booster.update, [(pooled, i) for i in range(TREES)])
        if repeat:  # the first one compiles
            pooled_time = clock.pop("xgboost")
            ratios.append(sum(clock.values()) / pooled_time)
            shown = ", ".join(f"{name} {1e3 * seconds / TREES:.0f}" for name, seconds in clock.items())
            print(f"CPU ms per tree: {shown}; xgboost {1e3 * pooled_time / TREES:.0f}; ratio {ratios[-1]:.2f}")
    print(f"ratio, median of {repeats}: {np.median(ratios):.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
