"""Wide tables with the joint recipe beside ALL-IN: sparse text, and HIGGS among 200 columns of noise.

    python -m benchmarks.wide [--data reuters higgs+200] [--parties 2 10] [--trees 100]

Depth 6, learning rate 0.1, log loss on held-out rows after all trees (Reuters: its own test rows).
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xgboost as xgb
from rich.console import Console
from rich.table import Table
from scipy import sparse
from sklearn.metrics import log_loss

import simfl
from benchmarks.data import folder, load, split

Sets = tuple[Any, np.ndarray, Any, np.ndarray]  # training rows and labels, held-out rows and labels


def reuters() -> Sets:
    """7,770 texts of 8,315 words, 3,299 to test on."""
    X, Z = (sparse.load_npz(folder() / f"reuters_{part}_X.npz").tocsr() for part in ("train", "test"))
    y, z = (np.load(folder() / f"reuters_{part}_y.npy").astype(int) for part in ("train", "test"))
    return X, y, Z, z


def higgs_and_noise() -> Sets:
    """HIGGS with 200 more columns that say nothing."""
    X, y = load("HIGGS")
    rng = np.random.default_rng(0)
    X = np.column_stack([X, rng.normal(size=(len(y), 200))]).astype(np.float32)
    rows, held_out = split(y, 0)
    return X[rows], y[rows], X[held_out], y[held_out]


SETS: dict[str, Callable[[], Sets]] = {"reuters": reuters, "higgs+200": higgs_and_noise}


def all_in(sets: Sets, trees: int) -> dict[str, float]:
    """Pooled XGBoost of the same depth."""
    X, y, Z, z = sets
    begun = time.perf_counter()
    params = {"objective": "binary:logistic", "max_depth": 6, "eta": 0.1}
    booster = xgb.train(params, xgb.DMatrix(X, y), trees)
    seconds = time.perf_counter() - begun
    return {"loss": log_loss(z, booster.predict(xgb.DMatrix(Z)).astype(float)), "seconds": seconds}


def joint(sets: Sets, n_parties: int, trees: int) -> dict[str, float]:
    """Skewed parties, theta 80 %."""
    X, y, Z, z = sets
    parts = simfl.partition.unbalanced(y, n_parties, theta=0.8, seed=0)
    parties = [simfl.Party(f"party {i}", X[rows], y[rows]) for i, rows in enumerate(parts)]
    begun = time.perf_counter()
    model = simfl.train(parties, recipe="joint", n_trees=trees, max_depth=6, random_state=0, callbacks=[])
    return {
        "loss": log_loss(z, model.predict_proba(Z)[:, 1].astype(float)),
        "seconds": time.perf_counter() - begun,
        "KB per tree": sum(record.bytes for record in model.history) / trees / 1e3,
        "MB in all": sum(n for own in model.traffic.values() for kinds in own.values() for n in kinds.values()) / 1e6,
        "memory, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def show(found: Sequence[tuple[str, str, dict[str, float]]]) -> Table:
    """One row per training."""
    heads = ("loss", "seconds", "KB per tree", "MB in all", "memory, MB")
    table = Table("data", "method", *heads)
    for name, method, figures in found:
        cells = [f"{figures[head]:.{4 if head == 'loss' else 1}f}" if head in figures else "" for head in heads]
        table.add_row(name, method, *cells)
    return table


def main() -> None:
    """Read the command line, train, and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--parties", nargs="+", type=int, default=[2, 10])
    parser.add_argument("--trees", type=int, default=100)
    given = parser.parse_args()
    found: list[tuple[str, str, dict[str, float]]] = []
    for name in given.data:
        sets = SETS[name]()
        for n_parties in given.parties:
            found.append((name, f"joint, {n_parties} parties", joint(sets, n_parties, given.trees)))
            print(found[-1], flush=True)
        found.append((name, "ALL-IN", all_in(sets, given.trees)))
        print(found[-1], flush=True)
    Console().print(show(found))


if __name__ == "__main__":
    main()
