"""Ways to place the cut points of the joint recipe, compared on validation rows: what does each cost in loss?

    python -m benchmarks.cuts [--data a9a ...] [--ways "counts" ...] [--trees 100] [--seeds 1] [--json OUT]

Ten skewed parties: theta 80 % where there are two classes, else slices along the first column. A quarter of the rows
is left out altogether (of the five LIBSVM sets the one that `benchmarks.accuracy` holds out with this seed); a quarter
of the others is for validation. Loss after all trees.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

import simfl
from benchmarks.data import MORE, NAMES, load_with_objective, split, take
from simfl.data.schema import Schema
from simfl.joint.cuts import grid
from simfl.params import MOST_CUTS

N_PARTIES = 10
Points = list[float]


class Data(NamedTuple):
    """Rows in parties, and rows to validate on."""

    X: Any
    y: np.ndarray
    parts: list[np.ndarray]
    aside: np.ndarray
    schema: Schema
    objective: str

    def columns(self, rows: np.ndarray) -> np.ndarray:
        """Some rows as numbers; categories by level."""
        own = take(self.X, rows)
        return self.schema.encode(own) if hasattr(self.X, "iloc") else own


def prepared(name: str, seed: int) -> Data:
    """A data set in parties."""
    X, y, schema, objective = _tables(name)
    rows, _ = split(y, seed)
    kept, aside = (rows[part] for part in split(y[rows], seed))
    if objective == "binary:logistic":
        parts = simfl.partition.unbalanced(y[kept], N_PARTIES, theta=0.8, seed=seed)
    else:
        parts = np.array_split(np.argsort(X[kept, 0], kind="stable"), N_PARTIES)
    return Data(X, y, [kept[part] for part in parts], aside, schema, objective)


def _tables(name: str) -> tuple[Any, np.ndarray, Schema, str]:
    X, y, objective = load_with_objective(name)
    if name == "bank":
        return X, y, Schema.propose(X), objective
    X = X.toarray() if name == "a9a" else X  # zeros as values: as entries, there would be nothing to cut
    return X, y, Schema.of_numbers(f"c{j}" for j in range(X.shape[1])), objective


# --- ways ------------------------------------------------------------------------------------------------------------


def quantiles(values: np.ndarray, weight: np.ndarray | None = None) -> Points:
    """Cuts that leave as many rows between each other, or all distinct values where they are few."""
    distinct, place = np.unique(values, return_inverse=True)
    if len(distinct) <= MOST_CUTS + 1:
        return distinct[1:].tolist()
    rows = np.cumsum(np.bincount(place, weights=weight))
    wanted = np.arange(1, MOST_CUTS + 1) * rows[-1] / (MOST_CUTS + 1)
    return np.unique(distinct[np.minimum(np.searchsorted(rows, wanted) + 1, len(distinct) - 1)]).tolist()


def pooled(own: Sequence[np.ndarray]) -> Points:
    """Exact quantiles of all rows: the bound."""
    return quantiles(np.concatenate(own))


def sketches(own: Sequence[np.ndarray]) -> Points:
    """Every party tells 256 quantiles of its own, values of its rows, and how many rows it has."""
    told = [np.quantile(values, np.linspace(0, 1, 256), method="inverted_cdf") for values in own]
    return quantiles(np.concatenate(told), np.repeat([len(values) for values in own], 256).astype(float))


def moments(own: Sequence[np.ndarray]) -> Points:
    """Mean and deviation alone: no counts."""
    values = np.concatenate(own).astype(np.float64)
    return grid(values.mean(keepdims=True), values.std(keepdims=True), [0]).points[0][:MOST_CUTS].tolist()


def full_range(own: Sequence[np.ndarray]) -> tuple[float, float]:
    """What the study could say: the range of all values, in round numbers."""
    return _round_range(np.concatenate(own), 0, 1)


def usual_range(own: Sequence[np.ndarray]) -> tuple[float, float]:
    """The same of 98 of 100 values; of all, where these are one value."""
    low, high = _round_range(np.concatenate(own), 0.01, 0.99)
    return (low, high) if low < high else full_range(own)


def _round_range(values: np.ndarray, low: float, high: float) -> tuple[float, float]:
    first, last = (float(v) for v in np.quantile(values, [low, high], method="inverted_cdf"))
    unit = 10.0 ** np.floor(np.log10(last - first)) / 2 if last > first else 1.0
    return float(np.floor(first / unit) * unit), float(np.ceil(last / unit) * unit)


WAYS: dict[str, Callable[[Sequence[np.ndarray]], Any] | None] = {
    "counts": None,
    "merged quantiles": sketches,
    "pooled quantiles": pooled,
    "moments": moments,
    "full range": full_range,
    "usual range": usual_range,
}


def declared(data: Data, way: Callable[[Sequence[np.ndarray]], Any] | None) -> Schema:
    """The schema with the cuts that a way finds. A column with one value is left to the parties."""
    if way is None:
        return data.schema
    own = [data.columns(part) for part in data.parts]
    columns = []
    for j, column in enumerate(data.schema.columns):
        values = [X[:, j][~np.isnan(X[:, j])] for X in own]
        if column.kind == "number" and len(np.unique(np.concatenate(values))) > 1:
            found = way(values)
            told = {"low": found[0], "high": found[1]} if isinstance(found, tuple) else {"cuts": tuple(found)}
            column = msgspec.structs.replace(column, **told)
        columns.append(column)
    return Schema(tuple(columns))


# --- figures ---------------------------------------------------------------------------------------------------------


def loss(data: Data, schema: Schema, trees: int, seed: int) -> float:
    """Log loss, or root mean square error, on the validation rows."""
    aside = take(data.X, data.aside), data.y[data.aside]
    parties = [
        simfl.Party(f"party {i}", take(data.X, part), data.y[part], validation=None if i else aside, schema=schema)
        for i, part in enumerate(data.parts)
    ]
    settings: dict[str, Any] = {"max_depth": 8, "n_trees": trees, "objective": data.objective, "random_state": seed}
    model = simfl.train(parties, recipe="joint", callbacks=[], **settings)
    return next(iter(model.history[-1].validation.values()))


def run(names: Sequence[str], ways: Sequence[str], trees: int, seeds: int) -> list[dict[str, Any]]:
    """Train everything; one entry per data set, way and seed."""
    found = []
    for name in names:
        for seed in range(seeds):
            data = prepared(name, seed)
            for way in ways:
                begun = time.perf_counter()
                value = loss(data, declared(data, WAYS[way]), trees, seed)
                found.append({"data": name, "way": way, "seed": seed, "loss": value})
                print(json.dumps(found[-1] | {"seconds": round(time.perf_counter() - begun)}), flush=True)
    return found


def show(found: Sequence[dict[str, Any]]) -> Table:
    """One row per data set, one column per way: means over the seeds."""
    ways = list(dict.fromkeys(entry["way"] for entry in found))
    table = Table("data", *ways)
    for name in dict.fromkeys(entry["data"] for entry in found):
        by_way = [[e["loss"] for e in found if (e["data"], e["way"]) == (name, way)] for way in ways]
        table.add_row(name, *(f"{statistics.fmean(losses):.4f}" if losses else "-" for losses in by_way))
    return table


def main() -> None:
    """Read the command line, train, and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=[*NAMES, *MORE], choices=[*NAMES, *MORE])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all losses")
    given = parser.parse_args()
    found = run(given.data, given.ways, given.trees, given.seeds)
    Console().print(show(found))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
