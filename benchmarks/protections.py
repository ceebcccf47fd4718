"""What the protections cost: time, bytes, accuracy.

    python -m benchmarks.protections masks|matching|accuracy [--rows N] [--parties M] [--json OUT]

masks     CPU seconds per tree with and without masks, in turns; bytes per tree beside the paper's formula,
          8 [N + (2^D - 1)(M - 1)]
matching  CPU seconds and bytes of stage 1, blind and shared, beside the paper's 8 M N L bytes
accuracy  log loss on held-out rows with min_group, on ijcnn1 and SUSY

CPU seconds of this process count, so that a busy machine disturbs little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import simfl
from benchmarks.data import load, split
from benchmarks.speed import rows as make_rows
from simfl.errors import PrivacyWarning

DEPTH = 8
SETTINGS: dict[str, dict[str, Any]] = {
    "no protection beyond matching": {},
    "min_group 3": {"min_group": 3},
    "min_group 5": {"min_group": 5},
    "min_group 10": {"min_group": 10},
    "similar rows of nobody (TFL)": {"n_neighbors": 0},
}


def parties(X: Any, y: np.ndarray, n: int, seed: int = 0) -> list[simfl.Party]:
    parts = simfl.partition.unbalanced(y, n, theta=0.8, seed=seed)
    return [simfl.Party(f"p{i}", X[rows], y[rows]) for i, rows in enumerate(parts)]


def per_tree(n_rows: int, n_parties: int, n_trees: int, repeats: int) -> list[dict[str, Any]]:
    X, y = make_rows("SUSY-like", n_rows)
    members = parties(X, y, n_parties)
    ready = simfl.prepare(members, random_state=0, n_jobs=1)
    more = {"n_trees": n_trees, "max_depth": DEPTH, "rematch": 0, "n_jobs": 1, "callbacks": []}
    seconds: dict[str, list[float]] = {"plain": [], "masked": []}
    n_bytes: dict[str, float] = {}
    for _ in range(repeats + 1):
        for mode, times in seconds.items():
            start = time.process_time()
            model = simfl.train(ready, masked=mode == "masked", **more)
            times.append((time.process_time() - start) / n_trees)
            n_bytes[mode] = statistics.mean(record.bytes for record in model.history[1:])
    paper = 8 * (n_rows + (2**DEPTH - 1) * (n_parties - 1))
    base = statistics.median(seconds["plain"][1:])
    return [
        {
            "mode": mode,
            "ms per tree": 1000 * statistics.median(times[1:]),
            "time / plain": statistics.median(times[1:]) / base,
            "bytes per tree": n_bytes[mode],
            "bytes / paper": n_bytes[mode] / paper,
        }
        for mode, times in seconds.items()
    ]


def stage_1(n_rows: int, n_parties: int, repeats: int) -> list[dict[str, Any]]:
    X, y = make_rows("SUSY-like", n_rows)
    members = parties(X, y, n_parties)
    results = []
    for _ in range(repeats + 1):
        for matching in ("shared", "blind"):
            start = time.process_time()
            ready = simfl.prepare(members, matching=matching, random_state=0, n_jobs=1)
            took = time.process_time() - start
            results.append((matching, took, ready.transport.traffic.total, ready.about.n_hashes))
    rows = []
    for matching in ("shared", "blind"):
        own = [r for r in results[2:] if r[0] == matching]
        paper = 8 * n_parties * n_rows * own[0][3]
        seconds = statistics.median(r[1] for r in own)
        rows.append({"matching": matching, "seconds": seconds, "bytes": own[0][2], "bytes / paper": own[0][2] / paper})
    return rows


def accuracy(n_parties: int, n_trees: int, names: list[str]) -> list[dict[str, Any]]:
    found = []
    for name in names:
        X, y = load(name)
        train, test = split(y, seed=0)
        members = parties(X[train], y[train], n_parties)
        for setting, more in SETTINGS.items():
            model = simfl.train(members, n_trees=n_trees, random_state=0, callbacks=[], **more)
            p = model.predict_proba(X[test])[:, 1].clip(1e-7, 1 - 1e-7)
            loss = -np.mean(np.where(y[test] == 1, np.log(p), np.log(1 - p)))
            error = np.mean((p > 0.5) != (y[test] == 1))
            found.append({"data": name, "setting": setting, "log loss": float(loss), "error %": 100 * float(error)})
    return found


def as_table(results: list[dict[str, Any]]) -> Table:
    table = Table(*results[0])
    for result in results:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in result.values()))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="What the protections cost.")
    parser.add_argument("what", choices=("masks", "matching", "accuracy"))
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--parties", type=int, default=10)
    parser.add_argument("--trees", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", nargs="+", default=["ijcnn1", "SUSY"])
    parser.add_argument("--json", type=Path, metavar="OUT")
    args = parser.parse_args()
    warnings.simplefilter("ignore", PrivacyWarning)
    if args.what == "masks":
        results = per_tree(args.rows, args.parties, args.trees or 20, args.repeats)
    elif args.what == "matching":
        results = stage_1(args.rows, args.parties, args.repeats)
    else:
        results = accuracy(args.parties, args.trees or 200, args.data)
    Console().print(as_table(results))
    if args.json:
        args.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
