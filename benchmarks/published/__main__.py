"""Tables that others published, with SimFL beside them.

    python -m benchmarks.published [--quick] [--data heart breast ...] [--seeds 5] [--draw]

UniFed, FLamby, FedXGBllr's reproduction: paper, similar, joint, TFL, SOLO and pooled XGBoost on the publication's own
split. Maddock et al. and TimberStrike: from the figures of `benchmarks.private` and `benchmarks.attacks`, which `make
published` measures before. Writes docs/results/published.md, .csv and pictures (--quick: below runs/quick). An
interrupted command continues; --data keeps what the page has of the other tables; --draw writes page and pictures again
from the CSV. What data is missing, the page says.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks import cells
from benchmarks.pages import QUICK_RESULTS, RESULTS, read_csv, write_csv
from benchmarks.published import measure, page, tables

NAMES = (*tables.UNIFED, tables.HEART, tables.HEART_WHOLE, tables.BRCA, *tables.IID)
QUICK_NAMES = ("breast", tables.HEART_WHOLE)


def rows(given: argparse.Namespace) -> list[cells.Result]:
    """Measure what is missing."""
    wanted_names = [name for name in given.data if tables.missing(name) is None]
    todo = measure.wanted(wanted_names, given.seeds)
    if given.quick:
        todo = [cell | {"quick": True} for cell in todo]
    store = cells.Store(cells.FOLDER / "published.jsonl")
    results = cells.run(todo, measure.measured, store, "published", workers=given.workers)
    return [cell | result for cell, result in zip(todo, results, strict=True)]


def _others(path: Path, measured: Sequence[str]) -> list[cells.Result]:
    """What the page has of tables that are not measured now, or whose data is missing here."""
    known = read_csv(path) if path.exists() else []
    return [row for row in known if row["data"] not in measured or tables.missing(row["data"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two small tables, one seed, ten trees")
    parser.add_argument("--data", nargs="+", choices=NAMES, help="only these tables")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="cells at a time")
    parser.add_argument("--draw", action="store_true", help="measure nothing: page and pictures from the CSV")
    given = parser.parse_args()
    where: Path = QUICK_RESULTS if given.quick else RESULTS
    given.data = given.data or (QUICK_NAMES if given.quick else NAMES)
    if given.quick:
        given.seeds = 1
    path = where / "published.csv"
    if not given.draw:
        write_csv(path, [*_others(path, given.data), *rows(given)])
    found = read_csv(path)
    known = {row["data"] for row in found}
    absent = {name: why for name in given.data if (why := tables.missing(name)) and name not in known}
    page.write(found, where, absent, quick=given.quick)
    print(f"Written to {where}")


if __name__ == "__main__":
    main()
