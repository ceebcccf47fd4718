"""What each role gets of trees grown together, measured: the audit's attacks, with the guard and without, and beside
them those on the similar recipe.

    python -m benchmarks.joint_audit [--data "breast cancer" HIGGS a9a] [--cases "2 parties"] [--quick] [--json OUT]
    python -m benchmarks.joint_audit --from OUT [OUT ...]      # writes the page from earlier runs

Writes docs/results/joint-audit.md (with --quick: runs/quick/). What OUT already holds is not run again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from sklearn.datasets import load_breast_cancer

from benchmarks.audited import Row, rows_of, say_all, say_excess, say_verdict
from benchmarks.data import load
from benchmarks.pages import QUICK_RESULTS, RESULTS, Page, measured_of, write_csv
from simfl.audit.audit import audit
from simfl.audit.findings import TITLES

ROWS = {"breast cancer": 569, "HIGGS": 11_000, "a9a": 8_900}  # a tenth, at most 1,000, takes no part
GUARD_OFF = {"min_group": 1}
CASES: dict[str, dict[str, Any]] = {
    "2 parties": {"parties": 2},
    "10 parties": {"parties": 10},
    "2, parties differ in a column": {"parties": 2, "by_column": True},
    "2, no guard": {"parties": 2} | GUARD_OFF,
    "10, no guard": {"parties": 10} | GUARD_OFF,
}
SIMILAR: dict[str, Any] = {"recipe": "similar", "matching": "blind", "masked": True}
BESIDE = "similar recipe, 2 parties"
AS_IT_IS = ("2 parties", "10 parties")


def table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels, drawn at random from the data set."""
    if name == "breast cancer":
        X, y = load_breast_cancer(return_X_y=True)
        return X, y
    X, y = load(name)
    chosen = np.random.default_rng(0).permutation(len(y))[: ROWS[name]]
    rows = X[chosen]
    return (rows.toarray() if hasattr(rows, "toarray") else rows), y[chosen]


def telling_column(X: np.ndarray, y: np.ndarray) -> int:
    """The column that goes with the label most."""
    centred = (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 1e-12)
    return int(np.abs(centred.T @ (y - y.mean())).argmax())


def run(wanted: Iterable[tuple[str, str]], trees: int, kept: list[dict[str, Any]], keep: Callable[[], None]) -> None:
    """All audits (data and case) that are not in `kept` yet; `keep` is called after each."""
    for name, case in wanted:
        if not any((entry["data"], entry["case"], entry["trees"]) == (name, case, trees) for entry in kept):
            Console(stderr=True).print(f"{name}, {case}")
            X, y = table(name)
            more = dict(SIMILAR) if case == BESIDE else {"recipe": "joint", "n_trees": trees} | CASES[case]
            if more.pop("by_column", False):
                more["by_column"] = telling_column(X, y)
            found = audit(X, y, name=name, advise=False, random_state=0, **more)
            entry = {"data": name, "case": case, "trees": trees, "sees": found.sees}
            kept.append(entry | {"findings": msgspec.to_builtins(found.findings)})
            keep()


# --- the page --------------------------------------------------------------------------------------------------------


def page_of(rows: Sequence[Row], sees: dict[str, str], trees: int, quick: bool, measured: str | None) -> Page:
    """The page of all results."""
    title = "What each role gets of trees grown together"
    page = Page(title, "python -m benchmarks.joint_audit", quick=quick, measured=measured)
    cases = [case for case in (*CASES, BESIDE) if any(row["case"] == case for row in rows)]
    say_verdict(page, rows, cases)
    page.say(
        f"One seed, {trees} trees, the attacks of `simfl audit --recipe joint`; a tenth of the rows (at most 1,000) "
        "takes no part. *Excess*: percentage points above what the same attacker gets without the totals. Bold: surely "
        "more than five points (95 %). A dash: sees no such thing, or no row to describe."
    )
    page.say(
        "The guard is the recipe's (`min_group=30`, counts with noise of epsilon 0.1); *no guard*: "
        "`min_group=1`; *differ in a column*: each party has one end of the column that goes with the label most, 2 % "
        "of the rows exchanged. *All parties but two* attack what is left: the rows of two parties. "
        "The similar recipe runs on the same rows: blind matching, masked sums."
    )
    page.table(["role", "sees"], sees.items())
    names = list(dict.fromkeys(row["data"] for row in rows))
    for data in names:
        page.head(f"Excess on {data}, {ROWS[data]:,} rows")
        own = [row for row in rows if row["data"] == data]
        for some in ([case for case in cases if case != BESIDE], [BESIDE]):
            say_excess(page, [row for row in own if row["case"] in some], some)
    page.head("All figures of the recipe as it is")
    page.say("*Area*: under the curve of members told from strangers. Other cases: [joint-audit.csv](joint-audit.csv).")
    for data in names:
        page.say(f"**{data}**")
        say_all(page, [row for row in rows if row["data"] == data and row["case"] in AS_IT_IS])
    return page


def _apart(entries: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The trees grown together, and the similar recipe beside them: their roles are not the same."""
    return [[e for e in entries if (e["case"] == BESIDE) == beside] for beside in (False, True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--cases", nargs="+", default=[*CASES, BESIDE], choices=[*CASES, BESIDE])
    parser.add_argument("--json", type=Path, help="keep all findings here")
    parser.add_argument("--from", dest="earlier", nargs="+", type=Path, help="show the results of earlier runs")
    parser.add_argument("--quick", action="store_true", help="breast cancer, few trees")
    given = parser.parse_args()
    folder = QUICK_RESULTS if given.quick else RESULTS
    path = given.json or folder / "joint-audit.json"
    sources = given.earlier or [path]
    kept = [entry for source in sources if source.exists() for entry in json.loads(source.read_text())]

    def keep() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(kept, indent=1))

    if not given.earlier:
        names = ["breast cancer"] if given.quick else given.data
        run(product(names, given.cases), 16 if given.quick else 100, kept, keep)
        keep()
    rows = [row for part in _apart(kept) for row in rows_of(part, "case", TITLES)]
    write_csv(folder / "joint-audit.csv", rows)
    widest = max(kept, key=lambda entry: len(entry["sees"]) if entry["case"] == "10 parties" else 0)
    measured = measured_of(folder / "joint-audit.md") if given.earlier else None
    page_of(rows, widest["sees"], kept[0]["trees"], given.quick, measured).write(folder / "joint-audit.md")


if __name__ == "__main__":
    main()
