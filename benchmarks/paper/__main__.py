"""The tables, figures and theorems of the paper, measured again.

    python -m benchmarks.paper TABLE [--quick] [--runs 10]

errors --theta 0.8 | --balanced   Tables 2 and 3: test errors of two parties
theta                             error against theta 0.6 to 0.9
parties                           error against 2 to 10 parties, both partitions
efficiency                        Table 4: seconds and bytes of ten parties (wants a quiet machine)
error-bound                       Theorem 2: both sides, measured
privacy                           Theorem 1: its condition, and what an attack gets although it holds
verdict                           what holds of the paper, in one table, from the CSV files of the pages above
all                               everything: under two hours on two cores, with --quick under five minutes

Pages, CSV files and pictures go to docs/results/ (with --quick to runs/quick/). What is done is kept in runs/cells/ and
not run again; an interrupted command goes on where it stopped. `all --draw` writes pages and pictures again from the
CSV files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import cells
from benchmarks.data import PAPER_NAMES
from benchmarks.pages import QUICK_RESULTS, RESULTS
from benchmarks.paper import bound, efficiency, errors, privacy, verdict
from benchmarks.paper.kept import Kept

TABLES = ("errors", "theta", "parties", "efficiency", "error-bound", "privacy", "verdict")
QUICK_NAMES = ("a9a", "cod-rna", "ijcnn1", "SUSY", "HIGGS")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=[*TABLES, "all"])
    parser.add_argument("--theta", type=float, help="errors: the unbalanced partition with this theta (default: 0.8)")
    parser.add_argument("--balanced", action="store_true", help="errors: the balanced partition")
    parser.add_argument("--runs", type=int, default=10, help="runs of `errors`; the figures take a part of them")
    parser.add_argument("--quick", action="store_true", help="few trees, one run, no text data")
    parser.add_argument("--data", nargs="+", choices=PAPER_NAMES, help="only these data sets")
    parser.add_argument("--out", type=Path, help="where the pages go")
    parser.add_argument("--draw", action="store_true", help="measure nothing: pages and pictures from the CSV files")
    given = parser.parse_args()
    out = given.out or (QUICK_RESULTS if given.quick else RESULTS)
    given.out = out
    store = cells.Store(cells.FOLDER / "paper.jsonl")
    for table in TABLES if given.table == "all" else [given.table]:
        _make(table, given, store, out)
    print(f"Written to {out}")


def plan(given: argparse.Namespace, paper: int, today: int) -> errors.Plan:
    """How many runs: at most those asked for."""
    names = tuple(given.data or (QUICK_NAMES if given.quick else PAPER_NAMES))
    runs = (
        {"paper": 1, "today": 1} if given.quick else {"paper": min(given.runs, paper), "today": min(given.runs, today)}
    )
    return errors.Plan(names, runs, quick=given.quick, drawn=given.out if given.draw else None)


def command(table: str, given: argparse.Namespace) -> str:
    """What to type for this page."""
    extra = (f" --data {' '.join(given.data)}" if given.data else "") + (" --quick" if given.quick else "")
    runs = f" --runs {given.runs}" if given.runs != 10 else ""
    return f"python -m benchmarks.paper {table}{runs}{extra}"


def _store(page: str, given: argparse.Namespace, store: cells.Store) -> cells.Store:
    """Where results are: the CSV of the page, if it is only drawn again."""
    return Kept(given.out / f"{page}.csv") if given.draw else store


def _make(table: str, given: argparse.Namespace, store: cells.Store, out: Path) -> None:
    quick, told = given.quick, command(table, given)
    store = store if table in ("errors", "verdict") else _store(table, given, store)
    if table == "errors":
        partitions = ["balanced"] if given.balanced else [f"theta {given.theta:g}"] if given.theta else None
        for partition in partitions or ["theta 0.8", "balanced"]:
            flag = "--balanced" if partition == "balanced" else f"--theta {partition.split()[1]}"
            told = command(f"errors {flag}", given)
            store = _store(f"errors-{partition.replace(' ', '-')}", given, store)
            errors.errors(plan(given, given.runs, max(given.runs // 2, 1)), partition, store, out, told)
    elif table == "theta":
        errors.over_theta(plan(given, 3, 2), (0.6, 0.8, 0.9) if quick else (0.6, 0.7, 0.8, 0.9), store, out, told)
    elif table == "parties":
        errors.over_parties(plan(given, 2, 1), (2, 10) if quick else (2, 4, 6, 8, 10), store, out, told)
    elif table == "efficiency":
        efficiency.table_4(plan(given, 1, 1), store, out, told)
    elif table == "error-bound":
        bound.theorem_2(plan(given, 1, 1), store, out, told)
    elif table == "verdict":
        if not given.quick:  # few trees on few tables say nothing about the paper
            verdict.write(plan(given, 1, 1), given.out, told)
    else:
        privacy.theorem_1(plan(given, 1, 1), store, out, told)


if __name__ == "__main__":
    main()
