"""Parties that differ in kind: what helps a party on its own rows, and when?

Four tables whose parties differ for a reason: hospitals, ways to reach a bank's customers, styles of handwriting, and
areas of California. Every party holds out a quarter of its rows, and every method is measured there:
alone; the shared model as it is; adjusted; and continued at home (more trees, steps for the leaves, or what its
cross-validation prefers). All trainings stop by the same rule, on validation rows. `--choose` tries settings of
`continued` on validation rows: the defaults come from there.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

import simfl
from benchmarks import pages
from benchmarks.cells import ROOT
from benchmarks.data import folder
from simfl.baselines import STOPPING
from simfl.data.files import Dataset, read
from simfl.data.schema import Schema
from simfl.model import Model
from simfl.report import evaluation
from simfl.report.evaluation import HeldOut
from simfl.simulate import experiment, simulation

N_CUSTOMERS = 12_000
N_STYLES = 6
MOST_TREES = 120
RECIPES = ("similar", "joint")
PAGE = ROOT / "docs" / "results" / "own-effect.md"
WAYS = {
    "alone": "alone (SOLO)",
    "as it is": "shared, as it is",
    "adjusted": "adjusted",
    "trees": "continued: more trees",
    "leaves": "continued: leaves",
    "continued": "continued (auto)",
}

Parts = dict[str, np.ndarray]


def heart() -> tuple[Dataset, Parts]:
    found = experiment.heart({"n_trees": 1, "random_state": 0}, 1)
    return found.data, dict(found.parts)


def bank(column: str) -> tuple[Dataset, Parts]:
    """A sample of the customers, so that the parties have hundreds or thousands of rows."""
    data = read(folder() / "bank-full.csv", "y", by=column, drop=["duration"])
    taken = np.sort(np.random.default_rng(0).permutation(len(data.y))[:N_CUSTOMERS])
    frame, y, _ = data.rows(taken)
    return Dataset(frame.reset_index(drop=True), y, data.schema), simfl.partition.by_column(data.by[taken])


def pendigits() -> tuple[Dataset, Parts]:
    """Groups by style: what is left of a row when the mean of its digit is taken away, in clusters."""
    from sklearn.cluster import KMeans

    stored = np.load(folder() / "pendigits.npz")
    X, y = stored["X"].astype(np.float32), stored["y"].astype(np.int64)
    style = X - np.stack([X[y == digit].mean(axis=0) for digit in range(10)])[y]
    group = KMeans(N_STYLES, n_init=3, random_state=0).fit_predict(style)
    frame = pd.DataFrame(X, columns=[f"p{i}" for i in range(X.shape[1])])
    return Dataset(frame, y, Schema.propose(frame)), {
        f"style {g + 1}": np.flatnonzero(group == g) for g in range(N_STYLES)
    }


def california() -> tuple[Dataset, Parts]:
    """Four areas: north and south, coast and inland (by the median of each half). Where a house stands stays in."""
    stored = np.load(folder() / "california_housing.npz")
    names = ["income", "age", "rooms", "bedrooms", "population", "occupants", "latitude", "longitude"]
    frame = pd.DataFrame(stored["X"].astype(np.float32), columns=names)
    north = frame["latitude"].to_numpy() > frame["latitude"].median()
    west = np.zeros(len(frame), dtype=bool)
    for half in (north, ~north):
        west[half] = frame["longitude"][half] < frame["longitude"][half].median()
    labels = np.where(north, "north", "south").astype(object) + np.where(west, " coast", " inland")
    return Dataset(frame, stored["y"].astype(np.float64), Schema.propose(frame)), simfl.partition.by_column(
        labels.astype(str)
    )


TABLES: dict[str, tuple[str, Callable[[], tuple[Dataset, Parts]]]] = {
    "heart, by hospital": ("binary:logistic", heart),
    "bank, by contact": ("binary:logistic", lambda: bank("contact")),
    "pendigits, by style": ("multi:softprob", pendigits),
    "California, by area": ("reg:squarederror", california),
}


def loss_of(model: Model, X: Any, y: Any) -> float:
    held_out = HeldOut(X, y, np.full(len(y), ""))
    metric = evaluation.main_metric(model)
    return float(evaluation.finish(metric, evaluation.losses(model, held_out)[metric].mean()))


def run(table: str, recipe: str, seed: int, trees: int) -> list[dict[str, Any]]:
    """Every way at every party."""
    objective, made = TABLES[table]
    data, parts = made()
    stage = simulation.set_up(data, parts, seed, stratify=objective != "reg:squarederror")
    params: dict[str, Any] = {"n_trees": trees, "random_state": seed, "objective": objective, "n_jobs": 1, **STOPPING}
    alone = simfl.baselines.solo(stage.parties, **params)
    shared = simfl.train(stage.parties, callbacks=[], recipe=recipe, **params)
    found = []
    for name, (X, y, _) in stage.own_rows.items():
        mine = stage.held_out.of(name)
        X_new, y_new = stage.held_out.X[mine], stage.held_out.y[mine]
        models = {
            "alone": alone[name],
            "as it is": shared,
            "adjusted": shared.adjusted(X, y),
            "trees": shared.continued(X, y, how="trees"),
            "leaves": shared.continued(X, y, how="leaves"),
            "continued": shared.continued(X, y),
        }
        known = {"table": table, "recipe": recipe, "seed": seed, "party": name}
        found += [{**known, "way": way, "loss": loss_of(model, X_new, y_new)} for way, model in models.items()]
    return found


def choices(table: str, seed: int, trees: int) -> Iterator[dict[str, Any]]:
    """Settings of `continued`, measured on validation rows: a quarter of what each party trains on."""
    objective, made = TABLES[table]
    data, parts = made()
    first = simulation.set_up(data, parts, seed, stratify=objective != "reg:squarederror")
    inner = {name: np.asarray(X.index) for name, (X, _, _) in first.own_rows.items()}
    stage = simulation.set_up(data, inner, seed + 1, stratify=objective != "reg:squarederror")
    params: dict[str, Any] = {"n_trees": trees, "random_state": seed, "objective": objective, "n_jobs": 1, **STOPPING}
    shared = simfl.train(stage.parties, callbacks=[], **params)
    for rate, depth in itertools.product((0.05, 0.1), (2, 3, 5)):
        values = []
        for name, (X, y, _) in stage.own_rows.items():
            mine = stage.held_out.of(name)
            model = shared.continued(X, y, learning_rate=rate, max_depth=depth)
            base = loss_of(shared.adjusted(X, y), stage.held_out.X[mine], stage.held_out.y[mine])
            values.append(loss_of(model, stage.held_out.X[mine], stage.held_out.y[mine]) / base)
        yield {"table": table, "rate": rate, "depth": depth, "ratio": float(np.mean(values))}


def summary(found: list[dict[str, Any]]) -> pd.DataFrame:
    """Per table, recipe and way: the mean loss over parties and seeds, and how many parties are better than alone."""
    frame = pd.DataFrame(found)
    case = ["table", "recipe"]
    per_party = frame.groupby([*case, "party", "way"], sort=False)["loss"].mean().unstack("way")
    means, seeds = per_party.groupby(case, sort=False).mean(), frame.groupby(case)["seed"].nunique()
    better = per_party.lt(per_party["alone"], axis=0).groupby(case).sum()
    sizes = per_party.groupby(case).size()
    rows = []
    for one in means.index:
        facts = {"table": one[0], "recipe": one[1], "parties": int(sizes[one]), "seeds": int(seeds[one])}
        rows += [{**facts, "way": w, "loss": means.loc[one, w], "better": int(better.loc[one, w])} for w in WAYS]
    return pd.DataFrame(rows)


def page(table: pd.DataFrame) -> pages.Page:
    """The results as a page: losses, the best way of each line in bold, and for how many parties each way helps."""
    made = pages.Page(
        "A party that differs in kind", "python -m benchmarks.own_effect --page docs/results/own-effect.md"
    )
    made.say(
        "Loss on each party's own held-out rows (log loss; root mean square error for California), mean over parties "
        "and seeds. All trainings stop by the same rule, on validation rows; `continued` finds its rounds by "
        "cross-validation on the party's own training rows, and its learning rate of 0.05 was chosen on validation "
        "rows (`--choose`). The held-out rows have no part in it. [What the ways are](../howto/own-effect.md)."
    )
    made.head("Loss")
    made.table(["table", "recipe", "seeds", *WAYS.values()], _lines(table, _losses))
    made.head("Parties that have less loss than alone")
    ways = [title for way, title in WAYS.items() if way != "alone"]
    made.table(["table", "recipe", "parties", *ways], _lines(table, _better))
    return made


def _lines(table: pd.DataFrame, cells: Callable[[pd.DataFrame], list[Any]]) -> list[list[Any]]:
    return [[*case, *cells(rows)] for case, rows in table.groupby(["table", "recipe"], sort=False)]


def _losses(rows: pd.DataFrame) -> list[Any]:
    best = rows["loss"].min()
    return [rows["seeds"].iloc[0], *(f"**{loss:.4f}**" if loss == best else f"{loss:.4f}" for loss in rows["loss"])]


def _better(rows: pd.DataFrame) -> list[Any]:
    return [rows["parties"].iloc[0], *rows["better"][rows["way"] != "alone"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=MOST_TREES, help="at most")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tables", nargs="*", default=list(TABLES))
    parser.add_argument("--recipes", nargs="*", default=list(RECIPES))
    parser.add_argument("--choose", action="store_true", help="try settings of `continued` on validation rows")
    parser.add_argument("--json", type=Path, help="write, and read again, all losses")
    parser.add_argument("--page", type=Path, help=f"write the page ({PAGE.relative_to(ROOT)})")
    given = parser.parse_args()
    console = Console(width=160)
    if given.choose:
        tried = pd.DataFrame(itertools.chain.from_iterable(choices(t, 100, given.trees) for t in given.tables))
        shown = tried.pivot_table(index=["rate", "depth"], columns="table", values="ratio")
        console.print(shown.assign(mean=shown.mean(axis=1)).round(4).to_string())
        return
    found = json.loads(given.json.read_text()) if given.json and given.json.exists() else []
    done = {(one["table"], one["recipe"], one["seed"]) for one in found}
    for case in itertools.product(given.tables, given.recipes, range(given.seeds)):
        if case in done:
            continue
        found += run(*case, given.trees)
        if given.json:
            given.json.write_text(json.dumps(found))
        console.print(f"{case} done", style="dim")
    table = summary(found)
    if given.page:
        page(table).write(given.page)
    shown = Table("table", "recipe", *WAYS.values())
    for (name, recipe), rows in table.groupby(["table", "recipe"], sort=False):
        shown.add_row(name, recipe, *(f"{row.loss:.4f} ({row.better})" for row in rows.itertuples()))
    console.print(shown)


if __name__ == "__main__":
    main()
