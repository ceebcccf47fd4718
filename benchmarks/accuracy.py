"""How accurate the recipes are: best log loss over the number of trees on 25 % held-out rows, theta 80 %.

    python -m benchmarks.accuracy [--data a9a ...] [--parties 10 2] [--seeds 3] [--json OUT] [--record]
    python -m benchmarks.accuracy --from OUT ... [--record]      # shows earlier runs again
    python -m benchmarks.accuracy --draw      # measures nothing: docs/gain.png from docs/results/accuracy.csv
    python -m benchmarks.accuracy --stopped --methods joint ALL-IN      # trees chosen by early stopping, for both
    python -m benchmarks.accuracy --data bank pendigits housing --methods joint ALL-IN      # other kinds of tables
    python -m benchmarks.accuracy --each rematch=0 max_bin=64 ... [--seeds 1]      # similar recipe, each change alone
    python -m benchmarks.accuracy --methods joint --each min_group=5 ...      # the same of another recipe

Every method gets depth 8, learning rate 0.1, up to 400 trees and XGBoost's defaults otherwise. The held-out rows are
watched as validation rows of the first party; nothing is chosen by them but the number of trees that is reported.
--record puts the best losses into docs/results/accuracy.csv, in place of earlier ones of the same data, parties and
method, and draws docs/gain.png from that file. The tables of docs/recipes.md have the same figures.
With several classes (pendigits) or a number to predict (California housing: root mean square error instead of log loss)
each party has a slice along the first column.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sklearn.metrics import log_loss, root_mean_squared_error

import simfl
from benchmarks import fixed
from benchmarks.data import MORE, NAMES, load_with_objective, split, take
from benchmarks.pages import COLOURS, OTHERS, RESULTS, read_csv, state, write_csv

SETTINGS: dict[str, Any] = {"max_depth": 8, "learning_rate": 0.1, "n_trees": 400}
STOPPING = {"validation_fraction": 0.2, "early_stopping_rounds": 30}
# The goals of the similar recipe: at most so much.
TARGETS = {
    10: {"a9a": 0.331, "cod-rna": 0.107, "ijcnn1": 0.046, "SUSY": 0.449, "HIGGS": 0.557},
    2: {"a9a": 0.335, "cod-rna": 0.107, "ijcnn1": 0.046, "SUSY": 0.453, "HIGGS": 0.552},
}
Curve = list[float]
RECORD, PICTURE = RESULTS / "accuracy.csv", RESULTS.parent / "gain.png"
KEY = ("data", "parties", "method")
DRAWN_PARTIES = 10
DRAWN = {  # in the picture
    "SOLO": "SOLO",
    "TFL": "TFL",
    "paper": "SimFL, paper's recipe",
    "similar": "SimFL",
    "joint": "SimFL joint",
    "ALL-IN": "ALL-IN",
}


def members(X: Any, y: np.ndarray, n_parties: int, seed: int) -> list[simfl.Party]:
    """The parties, the first of which watches the held-out rows."""
    rows, held_out = split(y, seed)
    aside = take(X, held_out), y[held_out]
    return [
        simfl.Party(f"party {i}", take(X, rows[p]), y[rows[p]], validation=aside if i == 0 else None)
        for i, p in enumerate(parts(X, y, rows, n_parties, seed))
    ]


def parts(X: Any, y: np.ndarray, rows: np.ndarray, n_parties: int, seed: int) -> list[np.ndarray]:
    """Which of the rows each party has: skewed by class where there are two, else by the first column."""
    if len(np.unique(y)) == 2:
        return simfl.partition.unbalanced(y[rows], n_parties, theta=0.8, seed=seed)
    return np.array_split(np.argsort(X[rows, 0], kind="stable"), n_parties)


def curve(model: simfl.Model) -> Curve:
    """The first metric is the one that the objective is about."""
    return [next(iter(record.validation.values())) for record in model.history]


def pooled(X: Any, y: np.ndarray, seed: int) -> simfl.Party:
    rows, held_out = split(y, seed)
    return simfl.Party("all", take(X, rows), y[rows], validation=(take(X, held_out), y[held_out]))


def solo(X: Any, y: np.ndarray, n_parties: int, seed: int, settings: dict[str, Any]) -> Curve:
    """The mean over the parties of what each gets alone."""
    _, held_out = split(y, seed)
    curves = []
    for party in members(X, y, n_parties, seed):
        alone = simfl.Party(party.name, party.rows.X, party.rows.y, validation=(take(X, held_out), y[held_out]))
        if len(np.unique(party.rows.y)) > 1:
            curves.append(curve(simfl.train([alone], callbacks=[], random_state=seed, **settings)))
    return np.mean(curves, axis=0).tolist()


def stopped(parties: list[simfl.Party], held_out: tuple[Any, np.ndarray], settings: dict[str, Any]) -> Curve:
    """One number: the loss on the held-out rows, of as many trees as a fifth of the training rows says."""
    alone = [simfl.Party(p.name, p.rows.X, p.rows.y) for p in parties]
    model, (X, y) = simfl.train(alone, callbacks=[], **settings | STOPPING), held_out
    if settings["objective"] == "reg:squarederror":
        return [float(root_mean_squared_error(y, model.predict(X)))]
    return [float(log_loss(y, model.predict_proba(X)))]


DEFAULT = "similar"
OURS: dict[str, dict[str, Any]] = {
    "paper": {"recipe": "paper"},
    DEFAULT: {},
    "joint": {"recipe": "joint"},
    "joint, no guard": {"recipe": "joint", "min_group": 1},
}


def trained(X: Any, y: np.ndarray, n_parties: int, seed: int, settings: dict[str, Any]) -> Curve:
    return curve(fixed.train(members(X, y, n_parties, seed), callbacks=[], random_state=seed, **settings))


METHODS: dict[str, Callable[..., Curve]] = {
    "SOLO": solo,
    "TFL": lambda X, y, m, s, kw: curve(simfl.baselines.tfl(members(X, y, m, s), callbacks=[], random_state=s, **kw)),
    **{name: lambda X, y, m, s, kw, own=own: trained(X, y, m, s, own | kw) for name, own in OURS.items()},
    "ALL-IN": lambda X, y, m, s, kw: curve(simfl.train([pooled(X, y, s)], callbacks=[], random_state=s, **kw)),
}


def stop_early(method: str) -> Callable[..., Curve]:
    """The same method, its number of trees chosen by validation rows."""

    def train(X: Any, y: np.ndarray, n_parties: int, seed: int, settings: dict[str, Any]) -> Curve:
        _, held_out = split(y, seed)
        parties = [pooled(X, y, seed)] if method == "ALL-IN" else members(X, y, n_parties, seed)
        return stopped(
            parties, (take(X, held_out), y[held_out]), OURS.get(method, {}) | settings | {"random_state": seed}
        )

    return train


def run(
    names: list[str], party_counts: list[int], seeds: int, wanted: dict[str, tuple[Callable[..., Curve], dict]]
) -> list[dict]:
    """Train everything; one entry per data set, number of parties, method (with changes of its settings) and seed."""
    results: list[dict] = []
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("accuracy", total=len(names) * len(party_counts) * seeds * len(wanted))
        for name in names:
            X, y, objective = load_with_objective(name)
            for m, seed, method in product(party_counts, range(seeds), wanted):
                train, more = wanted[method]
                results.append({"data": name, "parties": m, "seed": seed, "method": method})
                settings = SETTINGS | {"objective": objective} | more
                results[-1] |= _pooled_before(results) or _timed(train, X, y, m, seed, settings)
                progress.advance(task)
    return results


def _timed(train: Callable[..., Curve], *given: Any) -> dict[str, Any]:
    begun = time.perf_counter()
    return {"curve": train(*given), "seconds": time.perf_counter() - begun} | state()


def _pooled_before(results: list[dict]) -> dict[str, Any] | None:
    """All rows pooled are the same rows, however many parties they come from: they are trained on once."""
    *before, now = results
    for r in before:
        if now["method"] == "ALL-IN" and all(r[fact] == now[fact] for fact in ("data", "seed", "method")):
            return {fact: r[fact] for fact in r if fact not in now}
    return None


def parsed(pairs: list[str]) -> dict[str, Any]:
    """Parameters as they are written on the command line.

    >>> parsed(["rematch=0", 'matching="shared"'])
    {'rematch': 0, 'matching': 'shared'}
    """
    return {name: json.loads(value) for name, value in (pair.split("=", 1) for pair in pairs)}


def best(results: list[dict], data: str, parties: int, method: str) -> float:
    """The mean over the seeds of each one's best."""
    found = [min(r["curve"]) for r in results if (r["data"], r["parties"], r["method"]) == (data, parties, method)]
    return statistics.fmean(found) if found else float("nan")


def trees_to_reach(results: list[dict], data: str, parties: int, method: str) -> str:
    """How many trees reach ALL-IN's best, as the mean over the seeds; a dash if not all do."""
    needed = []
    for r in results:
        if (r["data"], r["parties"], r["method"]) == (data, parties, method):
            goal = [
                min(a["curve"])
                for a in results
                if a["method"] == "ALL-IN" and a["data"] == data and a["seed"] == r["seed"]
            ]
            below = np.flatnonzero(np.array(r["curve"]) <= goal[0]) if goal else []
            needed.append(int(below[0]) + 1 if len(below) else None)
    return f"{statistics.fmean(needed):.0f}" if needed and None not in needed else "-"


def show(results: list[dict], parties: int, methods: list[str]) -> Table:
    chosen = all(len(r["curve"]) == 1 for r in results)
    what = "log loss, trees chosen by validation rows" if chosen else "best log loss"
    table = Table(title=f"{parties} parties: {what}", title_justify="left")
    ours = [method for method in methods if method in (DEFAULT, "joint", "joint, no guard") and not chosen]
    for head in ("data", *methods, "target", *(f"{method}: trees to ALL-IN's best" for method in ours)):
        table.add_column(head, justify="left" if head == "data" else "right")
    for data in dict.fromkeys(r["data"] for r in results):
        cells = [f"{best(results, data, parties, method):.4f}" for method in methods]
        target = TARGETS.get(parties, {}).get(data) if DEFAULT in methods and not chosen else None
        met = target is not None and best(results, data, parties, DEFAULT) <= target
        reached = "" if target is None else f"{target:.3f} {'met' if met else 'MISSED'}"
        table.add_row(data, *cells, reached, *(trees_to_reach(results, data, parties, method) for method in ours))
    return table


def show_each(results: list[dict], party_counts: list[int], method: str, changes: list[str]) -> Table:
    """One row per change of the recipe, one column per data set."""
    table = Table(title="Best log loss, one change at a time", title_justify="left")
    names = list(dict.fromkeys(r["data"] for r in results))
    for head in ("", *(f"{name}, {m}" for name in names for m in party_counts)):
        table.add_column(head, justify="left" if not head else "right")
    for change in (method, *changes):
        table.add_row(change, *(f"{best(results, name, m, change):.4f}" for name in names for m in party_counts))
    return table


def recorded(results: list[dict], earlier: list[dict]) -> list[dict]:
    """The best loss of every data set, number of parties and method; what was not measured now is as it was."""
    new = {}
    for r in results:
        key = tuple(r[name] for name in KEY)
        seeds = len({other["seed"] for other in results if tuple(other[name] for name in KEY) == key})
        when = {fact: r[fact] for fact in ("code", "commit", "date") if fact in r}  # not now: --from has earlier ones
        new[key] = dict(zip(KEY, key, strict=True)) | {"logloss": best(results, *key), "seeds": seeds} | when
    kept = {tuple(row[name] for name in KEY): row for row in earlier}
    return list((kept | new).values())


def words(row: dict) -> str:
    """A loss as in the tables of the documentation.

    >>> words({"logloss": 0.09714})
    '.0971'
    """
    return f"{row['logloss']:.4f}".lstrip("0")


def plot(rows: list[dict], parties: int, path: Path) -> None:
    """One panel per data set, one bar per method. The picture's description has the figures, too."""
    import matplotlib.pyplot as plt

    shown = {(row["data"], row["method"]): row for row in rows if row["parties"] == parties and row["method"] in DRAWN}
    names = [name for name in NAMES if any(data == name for data, _ in shown)]
    figure, panels = plt.subplots(1, len(names), figsize=(11, 2.8), layout="constrained", sharey=True)
    for panel, name in zip(np.atleast_1d(panels), names, strict=True):
        own = {method: shown[name, method] for method in DRAWN if (name, method) in shown}
        losses = [row["logloss"] for row in own.values()]
        bars = panel.barh([DRAWN[m] for m in own], losses, color=[COLOURS.get(m, OTHERS) for m in own])
        panel.bar_label(bars, [words(row) for row in own.values()], padding=3, fontsize=8)
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("log loss (less is better)", fontsize=8)
        panel.set_xlim(0, max(losses) * 1.35)
        panel.locator_params(axis="x", nbins=3)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(left=False)
        panel.tick_params(axis="x", labelsize=8)
    np.atleast_1d(panels)[0].invert_yaxis()
    figure.suptitle(f"Held-out rows, {parties} skewed parties, best of at most 400 trees", fontsize=11)
    told = "; ".join(f"{data}, {method}: {words(row)}" for (data, method), row in shown.items())
    figure.savefig(path, dpi=150, metadata={"Description": told})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=list(NAMES), choices=[*NAMES, *MORE])
    parser.add_argument("--parties", nargs="+", type=int, default=[10, 2])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument(
        "--each",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="changes of a recipe: the first of --methods, or similar",
    )
    parser.add_argument("--stopped", action="store_true", help="trees chosen by a fifth of the training rows")
    parser.add_argument("--json", type=Path, help="write the curves of all runs")
    parser.add_argument("--from", dest="earlier", type=Path, nargs="+", help="show the results of earlier runs")
    parser.add_argument("--record", action="store_true", help="into docs/results/accuracy.csv and docs/gain.png")
    parser.add_argument("--draw", action="store_true", help="measure nothing: the picture from the record")
    given = parser.parse_args()
    if given.draw:
        plot(read_csv(RECORD), DRAWN_PARTIES, PICTURE)
        return
    if given.record and (given.each or given.stopped):
        parser.error("--record keeps the best loss of the recipes as they come: without --each and --stopped")
    changed = given.methods[0] if given.methods[0] in OURS else DEFAULT
    methods = [changed] if given.each else [m for m in given.methods if not given.stopped or m in (*OURS, "ALL-IN")]
    if given.earlier:
        results = [entry for path in given.earlier for entry in json.loads(path.read_text())]
    else:
        wanted = {method: (stop_early(method) if given.stopped else METHODS[method], {}) for method in methods}
        wanted |= {change: (METHODS[changed], parsed([change])) for change in given.each}
        results = run(given.data, given.parties, given.seeds, wanted)
    if given.json:
        given.json.write_text(json.dumps(results))
    if given.each:
        Console(width=160).print(show_each(results, given.parties, changed, given.each))
        return
    for parties in given.parties:
        Console(width=120).print(show(results, parties, methods))
    if given.record:
        write_csv(RECORD, recorded(results, read_csv(RECORD) if RECORD.exists() else []))
        plot(read_csv(RECORD), DRAWN_PARTIES, PICTURE)


if __name__ == "__main__":
    main()
