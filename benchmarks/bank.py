"""Bank marketing, a table with categories, in four skewed parties: SOLO, TFL, SimFL, SimFL joint and ALL-IN.

`duration` is left out: it is known only after the call whose outcome is to be predicted. Every party holds out a
quarter of its rows; scores are on all held-out rows, log loss after all trees. `--one-hot` turns categories into 0/1
columns first, for comparison.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from benchmarks.data import folder
from simfl import partition
from simfl.data.files import Dataset, read
from simfl.data.schema import Schema
from simfl.simulate import simulation
from simfl.simulate.comparison import compare

BANKS = ("north", "east", "south", "west")


def run(trees: int, seeds: int, *, one_hot: bool) -> list[dict[str, object]]:
    data = read(folder() / "bank-full.csv", "y", drop=["duration"])
    known = 0
    if one_hot:
        frame = pd.get_dummies(data.X, dtype=np.float32)
        known = frame.shape[1] - data.X.shape[1]
        data = Dataset(frame, data.y, Schema.propose(frame))
    found = []
    for seed in range(seeds):
        parts = partition.unbalanced(data.y.astype(str), len(BANKS), theta=0.8, seed=seed)
        stage = simulation.set_up(data, dict(zip(BANKS, parts, strict=True)), seed, stratify=True)
        params = {"n_trees": trees, "random_state": seed, "objective": "binary:logistic", "known_features": known}
        params |= {"validation_fraction": 0.0, "early_stopping_rounds": None}  # after all trees, as the page says
        found += [
            {"seed": seed, "method": r.method, "party": r.party, "logloss": r.logloss, "auc": r.auc, "error": r.error}
            for r in compare(stage.parties, stage.held_out, params, callbacks=[]).results
        ]
    return found


def means(found: list[dict[str, object]]) -> pd.DataFrame:
    """The mean over seeds (and over parties, for SOLO), with the range over seeds."""
    per_seed = pd.DataFrame(found).groupby(["method", "seed"])[["logloss", "auc", "error"]].mean()
    table = per_seed.groupby("method").agg(["mean", "min", "max"])
    return table.loc[["SOLO", "TFL", "SimFL", "SimFL joint", "ALL-IN"]]


def show(table: pd.DataFrame) -> Table:
    shown = Table("method", "log loss", "AUC", "error")
    for method, row in table.iterrows():
        cells = [f"{row[m, 'mean']:.4f} ({row[m, 'min']:.4f}-{row[m, 'max']:.4f})" for m in ("logloss", "auc", "error")]
        shown.add_row(str(method), *cells)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--one-hot", action="store_true", help="categories as 0/1 columns")
    parser.add_argument("--json", type=Path, help="write all scores")
    given = parser.parse_args()
    found = run(given.trees, given.seeds, one_hot=given.one_hot)
    if given.json:
        given.json.write_text(json.dumps(found))
    table = means(found)
    Console(width=100).print(show(table))


if __name__ == "__main__":
    main()
