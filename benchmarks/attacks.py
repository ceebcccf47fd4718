"""What the finished model gives away, measured: membership, attributes, rows, and a lower bound on epsilon.

    python -m benchmarks.attacks [--quick] [--parts tables membership epsilon] [--from JSON [--models ...]]

tables      rows from all trees on TimberStrike's own two tables, beside its published rates: first on XGBoost with
            node statistics, as others give it out, so that the attack itself is held against a known figure
membership  LiRA with shadow models, and attributes by query: paper, similar, joint, pooled XGBoost and SOLO
epsilon     one-run auditing with canaries: the bound beside the promise, and what a training without noise shows

Writes docs/results/attacks.md, .json and .png (--quick: below runs/quick).
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import xgboost as xgb
from rich.console import Console

import simfl
from benchmarks import fixed
from benchmarks.attacks_page import page, plot
from benchmarks.data import folder, load
from benchmarks.pages import QUICK_RESULTS, RESULTS, state
from simfl.audit import finished, timberstrike
from simfl.audit.findings import Finding
from simfl.audit.lower_bound import Bound, audit_epsilon
from simfl.audit.private import ranges_of
from simfl.data.schema import Schema
from simfl.errors import PrivacyWarning, SimFLError
from simfl.params import is_private
from simfl.training.traversal import leaf_numbers
from simfl.training.trees import Tree, all_trees

ATTACKER = 2  # TimberStrike's compromised client; its victim is client 0
STROKE_CATEGORIES = (3, 4, 5, 6, 7, 8, 9)
XGBOOST = {
    "objective": "binary:logistic",
    "eta": 0.3,
    "max_depth": 6,
    "reg_lambda": 1.0,
    "base_score": 0.5,
    "nthread": 1,
}
RECIPES: dict[str, dict[str, Any]] = {
    "paper": {"recipe": "paper"},
    "similar": {"recipe": "similar"},
    "joint": {"recipe": "joint"},
}
ONE_SCALE = {"scale": "standard"}  # for the paper's recipe, which has none: its r is meant for such columns
PRIVATE: dict[str, dict[str, Any]] = {  # the number of rows is declared by each table
    f"joint, epsilon {epsilon:g}": {"recipe": "joint", "epsilon": epsilon} for epsilon in (10.0, 1.0)
}


def say(text: str) -> None:
    Console(stderr=True).print(f"{time.strftime('%H:%M:%S')} {text}", highlight=False)


# --- TimberStrike's tables -------------------------------------------------------------------------------------------


def clients(name: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """TimberStrike's own split of a table."""
    path = folder() / "published" / "timberstrike" / {"diabetes": "diabetes_3.npz", "stroke": "stroke_5.npz"}[name]
    if not path.exists():
        raise SystemExit(f"{path.name} is not at {path.parent}: set SIMFL_DATA to the folder that holds published/.")
    stored = np.load(path)
    n = sum(file.startswith("x_train") for file in stored.files)
    return [(stored[f"x_train_{i}"].astype(np.float32), stored[f"y_train_{i}"].ravel()) for i in range(n)]


def played(name: str) -> list[int]:
    """The clients that take part where rows are pooled or SimFL trains. Of stroke two: the search takes long."""
    return [0, 1, ATTACKER] if name == "diabetes" else [0, ATTACKER]


@dataclass(frozen=True)
class Divided(finished.People):
    """TimberStrike's clients as parties: the attacker's rows come last."""

    sizes: tuple[int, ...] = ()

    @classmethod
    def of_clients(cls, parts: list[tuple[np.ndarray, np.ndarray]], given: dict[str, Any]) -> Divided:
        X, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        sizes = tuple(len(part[1]) for part in parts)
        return cls(X.astype(np.float64), y.astype(np.float32), "binary:logistic", len(parts), 0, given, sizes=sizes)

    @property
    def thirds(self) -> tuple[Any, Any, Any]:
        known = len(self.y) - self.sizes[-1]
        return np.arange(known), np.arange(0), np.arange(known, len(self.y))

    def trained(self, rows: Any) -> simfl.Model:
        parts = np.split(np.arange(len(self.y)), np.cumsum(self.sizes)[:-1])
        schema = ranges_of(self.X) if is_private(self.params) else None
        members = [simfl.Party(f"party {i}", self.X[part], self.y[part], schema=schema) for i, part in enumerate(parts)]
        return simfl.train(members, callbacks=[], **self.settings)


def bagged(parts: list[tuple[np.ndarray, np.ndarray]], rounds: int) -> list[Tree]:
    """Bagging as in Flower: every round each client grows a tree from its own rows; all are added."""
    rows = [xgb.DMatrix(X, y) for X, y in parts]
    margins, trees = [np.zeros(len(y)) for _, y in parts], []
    for _ in range(rounds):
        new = []
        for table, margin in zip(rows, margins, strict=True):
            table.set_base_margin(margin)
            new += all_trees(xgb.train(XGBOOST, table, 1))
        trees += new
        for (X, _), margin in zip(parts, margins, strict=True):
            for tree in new:
                margin += tree.value[tree.leaves][leaf_numbers(tree, X)]
    return trees


def known_model(name: str, kind: str, rounds: int, effort: int) -> list[dict[str, Any]]:
    """XGBoost with the statistics of its nodes: the attack beside published rates, and with values alone."""
    parts = clients(name)
    if kind == "bagging":
        X, y = parts[0]
        forest = timberstrike.Forest.of(bagged(parts, rounds), 0.0, repeat(len(parts)))
        mine = np.arange(len(forest.start)) % len(parts) == 0
        nodes = mine[forest.tree_of_node]
    else:
        X, y = (np.concatenate([parts[i][j] for i in played(name)]) for j in (0, 1))
        forest = timberstrike.Forest.of(all_trees(xgb.train(XGBOOST, xgb.DMatrix(X, y), rounds)), 0.0)
        nodes = np.ones(len(forest.feature), bool)
    values = timberstrike.Equations.of_values(forest, XGBOOST["eta"], XGBOOST["reg_lambda"]).only(nodes)
    sums = values.with_sums(*forest.sums(X, y), nodes)
    people = Divided.of_clients([(X, y), parts[ATTACKER]], {})
    found = []
    for knows, has_rows in (("ranges", False), ("rows of its own", True)):
        start, pool = finished.first_guess(people, len(y), has_rows)
        for seen, equations in (("values and sum_hessian", sums), ("values alone", values)):
            say(f"{name}, {kind}, {knows}, {seen}")
            rows = timberstrike.rows_behind(forest, equations, start, pool, 0, effort)
            entry = {"data": name, "model": f"XGBoost, {kind}", "knows": knows, "sees": seen}
            entry["leaves"] = int(equations.asked.sum())
            found.append(entry | shares(people, rows, start, X, y))
    return found


def shares(people: finished.People, found: Any, start: Any, X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    kinds, truth = np.append(people.is_category, True), np.column_stack([X, y])
    success, guess = (timberstrike.matched_share(np.column_stack(rows), truth, kinds).mean() for rows in (found, start))
    return {"success": float(success), "guess": float(guess), "rows": len(y)}


def settings_of(recipe: str, n_rows: int) -> dict[str, Any]:
    """Of a recipe for a table of so many rows."""
    return PRIVATE[recipe] | {"rows": n_rows} if recipe in PRIVATE else RECIPES.get(recipe, {})


def our_model(name: str, recipe: str, n_trees: int, effort: int) -> list[dict[str, Any]]:
    """The same attack on a recipe, from each role's view."""
    parts = clients(name)
    people = Divided.of_clients([parts[i] for i in played(name)], {})
    people = replace(people, given=settings_of(recipe, len(people.y)) | {"n_trees": n_trees})
    found = []
    for seen in finished.views_of(people):
        asked = [None, as_many_leaves(people)] if recipe in PRIVATE and not seen.has_rows else [None]
        for some in asked:
            say(f"{name}, {recipe}: {seen.who}{f', {some} trees' if some else ''}")
            counted = finished.reconstruct(people, seen, effort, some)
            entry = {"data": name, "model": recipe, "knows": seen.who, "sees": seen.role, "rows": len(counted.success)}
            entry |= {"trees": some} if some else {}
            entry |= {"success": float(counted.success.mean()), "guess": float(counted.guess.mean())}
            found.append(entry | {"leaves": int(counted.details["leaves"])})
    return found


def as_many_leaves(people: finished.People) -> int:
    """How many trees of a private model have as many leaves as the joint recipe without epsilon: a fair comparison."""
    plain = replace(people, given=RECIPES["joint"] | {"n_trees": people.given["n_trees"]})
    n, private = (int((timberstrike.forest_of(p.model).feature < 0).sum()) for p in (plain, people))
    return max(round(n / private * len(timberstrike.forest_of(people.model).start)), 1)


def tables(quick: bool, only: Sequence[str]) -> list[dict[str, Any]]:
    """All of it; a quick run is diabetes with few trees."""
    rounds, effort = (10, 50) if quick else (40, timberstrike.PROPOSALS)
    found = []
    if not only:
        found += known_model("diabetes", "bagging", rounds, effort)
        found += known_model("diabetes", "pooled", 10 if quick else 100, effort)
        for kind, n in () if quick else (("bagging", 20), ("pooled", 100)):
            found += known_model("stroke", kind, n, effort // 3)
    for name in ("diabetes",) if quick else ("diabetes", "stroke"):
        for recipe in chosen((*RECIPES, *PRIVATE), only):
            found += our_model(name, recipe, 16 if quick else 100, effort if name == "diabetes" else effort // 3)
    return found


def chosen(models: Iterable[str], only: Sequence[str]) -> list[str]:
    """Those that are to be measured: all, unless some are named."""
    return [model for model in models if not only or model in only]


# --- membership and attributes ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pooled(finished.People):
    """All rows in one place."""

    def trained(self, rows: Any) -> simfl.Model:
        return self.shadow(rows)


@dataclass(frozen=True)
class Solo(finished.People):
    """One party alone: the attacker's rows have no part in it."""

    def shadow(self, rows: Any) -> simfl.Model:
        return simfl.baselines.all_in([simfl.Party("alone", self.X[rows], self.y[rows])], **self.settings)

    trained = shadow


def people_tables(quick: bool) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Rows that nobody has seen before: samples of real tables."""
    rng = np.random.default_rng(0)
    found = {}
    for name in ("diabetes",) if quick else ("diabetes", "stroke"):
        found[name] = tuple(np.concatenate([part[i] for part in clients(name)]) for i in (0, 1))
    if not quick:
        X, y = load("HIGGS")
        drawn = rng.permutation(len(y))[:3000]
        found["HIGGS"] = X[drawn], y[drawn]
    return found


def member_attacks(quick: bool, only: Sequence[str]) -> list[dict[str, Any]]:
    """Every recipe on every table: shadows of XGBoost, and of the recipe itself."""
    found = []
    kinds = dict.fromkeys((*RECIPES, *PRIVATE), finished.People) | {"pooled XGBoost": Pooled, "SOLO": Solo}
    for name, (X, y) in people_tables(quick).items():
        for model in chosen(kinds, only):
            kind = kinds[model]
            given = settings_of(model, min(len(y), finished.MOST_ROWS)) | {"n_trees": 16 if quick else 100}
            people = kind.of(X.astype(np.float64), y.astype(np.float32), "binary:logistic", 3, 0, given)
            trainers = [("XGBoost", None, 4 if quick else 32)]
            if model in RECIPES and name == "diabetes" and not quick:
                trainers.append(("the recipe", people.trained, 16))
            for shadows, trainer, n in trainers:
                say(f"membership: {name}, {model}, {n} shadows of {shadows}")
                (one,) = finished.members_from_answers(people, trainer, n)
                found.append({"data": name, "model": model, "shadows": shadows, "finding": plain(one)})
            (one,) = finished.attribute_from_answers(people)
            found.append({"data": name, "model": model, "shadows": None, "finding": plain(one)})
    return found


def plain(finding: Finding) -> dict[str, Any]:
    names = ("success", "success_interval", "guess", "excess", "excess_interval", "details", "n")
    return {name: getattr(finding, name) for name in names}


# --- epsilon ---------------------------------------------------------------------------------------------------------


@dataclass
class Promise:
    """A training with canaries, and what it promises."""

    name: str
    epsilon: float | None
    given: dict[str, Any] = field(default_factory=dict)
    ranges: dict[str, Any] | None = None  # of the columns, where they must be declared


def epsilon_bounds(quick: bool, only: Sequence[str]) -> list[dict[str, Any]]:
    """The bound of each training beside its promise; recipes that this version does not have are left out."""
    X, y = (np.concatenate([part[i] for part in clients("stroke")]) for i in (0, 1))
    drawn = np.random.default_rng(0).permutation(len(y))[: 500 if quick else 1500]
    X, y = X[drawn], y[drawn]
    spans = zip(X.min(axis=0).tolist(), X.max(axis=0).tolist(), strict=True)
    ranges = {f"x{j}": {"low": low, "high": high} for j, (low, high) in enumerate(spans)}
    promises = [Promise(recipe, None, given | {"n_trees": 100}) for recipe, given in RECIPES.items()]
    promises += [Promise(name, own["epsilon"], settings_of(name, len(y)), ranges) for name, own in PRIVATE.items()]
    found = []
    for promise in [promise for promise in promises if chosen([promise.name], only)]:
        for seed in range(1 if quick else 3):
            say(f"epsilon: {promise.name}, seed {seed}")
            n = 60 if quick else 200
            try:
                more = {"schema": Schema.from_toml(promise.ranges)} if promise.ranges else {}
                bound = audit_epsilon(X, y, canaries=n, parties=4, random_state=seed, **more, **promise.given)
            except SimFLError as error:
                say(f"... left out: {error}")
                break
            found.append(entry_of(promise, bound, seed))
    return found


def entry_of(promise: Promise, bound: Bound, seed: int) -> dict[str, Any]:
    counts = {"guesses": bound.guesses, "right": bound.right, "canaries": bound.canaries}
    return {"training": promise.name, "promise": promise.epsilon, "seed": seed, "bound": bound.epsilon} | counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parts = {"tables": tables, "membership": member_attacks, "epsilon": epsilon_bounds}
    parser.add_argument("--parts", nargs="+", choices=list(parts), default=list(parts))
    parser.add_argument("--from", dest="earlier", type=Path, help="results of an earlier run, for the other parts")
    models = [*RECIPES, *PRIVATE]
    parser.add_argument("--models", nargs="+", choices=models, default=[], help="these alone, the others as --from has")
    given = parser.parse_args()
    if given.models and not given.earlier:
        parser.error("--models needs --from: the figures of the other models")
    warnings.simplefilter("ignore", PrivacyWarning)
    where = QUICK_RESULTS if given.quick else RESULTS
    where.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = json.loads(given.earlier.read_text()) if given.earlier else {}
    measures = not given.earlier or given.parts != list(parts) or given.models
    for part in given.parts if measures else ():
        others = [e for e in found.get(part, []) if e.get("model", e.get("training")) not in given.models]
        with fixed.changed(ONE_SCALE):
            new = [entry | state() for entry in parts[part](given.quick, given.models)]
        found[part] = (others if given.models else []) + new
        (where / "attacks.json").write_text(json.dumps(found, indent=1))
    plot(found, where / "attacks.png")
    page(found, given.quick, "attacks.png").write(where / "attacks.md")
    say(f"Written: {where / 'attacks.md'}")


if __name__ == "__main__":
    main()
