"""SimFL beside its peers: the same parties, trees, depth and learning rate for all.

    python -m benchmarks.peers [--quick] [--data a9a ...] [--parties 2 10] [--runs 1] [--only METHOD ...]

Every peer runs in an environment of its own, which this command makes (runs/environments/; needs a package index, and
for FedTree Debian's packages). What cannot be installed, crashes or takes too long is a row with its message. The page,
the CSV and the pictures go to docs/results/ (with --quick to runs/quick/); what is done is kept in runs/cells/ and not
run again.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks import cells
from benchmarks.data import PAPER_NAMES
from benchmarks.pages import QUICK_RESULTS, RESULTS
from benchmarks.peers import measure, page
from benchmarks.peers.environments import NotInstallable

NAMES = ("a9a", "cod-rna", "ijcnn1", "SUSY", "HIGGS", "real-sim")
TREES, WIDE_TREES, QUICK_TREES = 200, 20, 10
LIMIT, QUICK_LIMIT = 600, 60  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_TREES} trees, a9a and cod-rna only")
    parser.add_argument("--data", nargs="+", choices=PAPER_NAMES)
    parser.add_argument("--parties", nargs="+", type=int, default=[2, 10])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=measure.METHODS, help="only these methods")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds that a peer may take for one cell")
    parser.add_argument("--known", action="store_true", help="run nothing: write the page from what is kept")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    names = given.data or (("a9a", "cod-rna") if given.quick else NAMES)
    methods = given.only or measure.METHODS
    wanted = [
        measure.cell(method, data, parties, run, n_trees(data, quick=given.quick))
        for data in names
        for parties in given.parties
        for run in range(given.runs)
        for method in methods
    ]
    store = cells.Store(cells.FOLDER / "peers.jsonl")
    if not given.known:
        refused = install({c["method"] for c in wanted if store.get(c) is None})
        for cell in wanted:
            if cell["method"] in refused:
                store.put(cell, {"failed": refused[cell["method"]]})
        work = partial(measure.measure, limit=min(given.limit, QUICK_LIMIT) if given.quick else given.limit)
        cells.run(wanted, work, store, "peers", workers=1)
    results = [store.get(cell) or {"failed": "not run"} for cell in wanted]
    out = given.out or (QUICK_RESULTS if given.quick else RESULTS)
    extra = (" --quick" if given.quick else "") + (f" --data {' '.join(given.data)}" if given.data else "")
    extra += f" --runs {given.runs}" if given.runs != 1 else ""
    extra += f" --limit {given.limit:g}" if given.limit != LIMIT and not given.quick else ""
    page.write(list(zip(wanted, results, strict=True)), out, f"python -m benchmarks.peers{extra}", quick=given.quick)
    print(f"Written to {out}")


def n_trees(data: str, *, quick: bool) -> int:
    """Text with thousands of columns gets few trees: it is there for the bytes."""
    return QUICK_TREES if quick else WIDE_TREES if data == "real-sim" else TREES


def install(methods: set[str]) -> dict[str, str]:
    """Make the environments; the methods that cannot be had, with the reason."""
    refused = {}
    for method in sorted(methods & set(measure.PEERS)):
        environment = measure.PEERS[method][0]
        with Console(stderr=True).status(f"environment of {environment.name}"):
            try:
                environment.make()
            except NotInstallable as error:
                refused[method] = f"not installable: {error}"
    return refused


if __name__ == "__main__":
    main()
