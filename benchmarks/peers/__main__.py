"""SimFL beside its peers: the same parties, trees, depth and learning rate for all.

    python -m benchmarks.peers [--quick] [--data a9a ...] [--parties 2 10] [--runs 1] [--only METHOD ...] [--keep]

Every peer runs in an environment of its own, which this command makes (runs/environments/; needs a package index, and
for FedTree Debian's packages). What cannot be installed, crashes or takes too long is a row with its message. The page,
the CSV and the pictures go to docs/results/ (with --quick to runs/quick/); what is done is kept in runs/cells/ and not
run again. `--only METHOD --keep` measures one method and takes all other figures from the CSV that is there; with
`--data` and `--parties` too, it measures these places alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks import cells
from benchmarks.data import PAPER_NAMES
from benchmarks.pages import QUICK_RESULTS, RESULTS, measured_of, now_and_here, read_csv
from benchmarks.peers import measure, page
from benchmarks.peers.environments import NotInstallable

NAMES = ("a9a", "cod-rna", "ijcnn1", "SUSY", "HIGGS", "real-sim")
PARTIES = (2, 10)
TREES, WIDE_TREES, QUICK_TREES = 200, 20, 10
LIMIT, QUICK_LIMIT = 600, 60  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_TREES} trees, a9a and cod-rna only")
    parser.add_argument("--data", nargs="+", choices=PAPER_NAMES)
    parser.add_argument("--parties", nargs="+", type=int, help="default: 2 and 10")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=measure.METHODS, help="only these methods")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds that a peer may take for one cell")
    parser.add_argument("--known", action="store_true", help="run nothing: write the page from what is kept")
    parser.add_argument("--keep", action="store_true", help="take what is not measured now from the page's CSV")
    parser.add_argument("--draw", action="store_true", help="run nothing: page and pictures again from peers.csv")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.draw:
        draw(given.out or RESULTS)
        return
    all_data, all_parties = ("a9a", "cod-rna") if given.quick else NAMES, PARTIES
    data, parties = given.data or all_data, given.parties or all_parties
    if given.keep and not (given.only and {*data} <= {*all_data} and {*parties} <= {*all_parties}):
        parser.error(f"--keep needs --only, and places that the page has: {', '.join(all_data)}, {all_parties}")
    out = given.out or (QUICK_RESULTS if given.quick else RESULTS)
    earlier = page.earlier(out / "peers.csv") if given.keep else {}
    wanted = [
        measure.cell(method, name, n_parties, run, n_trees(name, quick=given.quick))
        for name in (all_data if given.keep else data)
        for n_parties in (all_parties if given.keep else parties)
        for run in range(given.runs)
        for method in (measure.METHODS if given.keep else given.only or measure.METHODS)
    ]
    methods = given.only or measure.METHODS
    now = [c for c in wanted if c["method"] in methods and c["data"] in data and c["parties"] in parties]
    store = cells.Store(cells.FOLDER / "peers.jsonl")
    if not given.known:
        refused = install({c["method"] for c in now if store.get(c) is None})
        for cell in now:
            if cell["method"] in refused:
                store.put(cell, {"failed": refused[cell["method"]]})
        work = partial(measure.measure, limit=min(given.limit, QUICK_LIMIT) if given.quick else given.limit)
        cells.run(now, work, store, "peers", workers=1)
    results = [store.get(cell) or earlier.get(page.place(cell)) or {"failed": "not run"} for cell in wanted]
    asked = f" --data {' '.join(given.data)}" if given.data else ""
    asked += f" --parties {' '.join(map(str, given.parties))}" if given.parties else ""
    limit = f" --limit {given.limit:g}" if given.limit != LIMIT and not given.quick else ""
    told = measured_of(out / "peers.md") if given.keep and given.only else None
    measured = _measured(told, given.only, asked, limit) if told else None
    extra = (" --quick" if given.quick else "") + (f" --runs {given.runs}" if given.runs != 1 else "")
    command = f"python -m benchmarks.peers{extra}{'' if told else asked + limit}"
    page.write(list(zip(wanted, results, strict=True)), out, command, quick=given.quick, measured=measured)
    print(f"Written to {out}")


def _measured(before: str, only: Sequence[str], places: str = "", limit: str = "") -> str:
    """When and with what: of most methods first, then of those that were measured before, or now; some places last.

    >>> said = _measured("on 1; FedTree on 2; SimFL, joint on 3", ["FedTree"], limit=" --limit 9")
    >>> said.startswith("on 1; SimFL, joint on 3; FedTree with `--only ... --keep --limit 9` on ")
    True
    >>> said = _measured("on 1; FedTree on 2", ["FedTree"], " --parties 10")
    >>> said.startswith("on 1; FedTree on 2; FedTree with `--only ... --keep --parties 10` on ")
    True
    """
    kept = [method for method in measure.METHODS if method not in only]
    if len(kept) < len(only) and not places:
        return f"{now_and_here()}; {', '.join(kept)} {before}"
    command = f"with `--only ... --keep{places}{limit}`"
    names = tuple(f"{method} " if not places else f"{method} {command} " for method in only)
    still = [part for part in before.split("; ") if not part.startswith(names)]
    return f"{'; '.join(still)}; {', '.join(only)} {command} {now_and_here()}"


def draw(out: Path) -> None:
    """The page and its pictures from the CSV beside it."""
    rows, told = read_csv(out / "peers.csv"), (out / "peers.md").read_text()
    command = told.split("`")[1]
    page.write([(row, row) for row in rows], out, command, measured=measured_of(out / "peers.md"), keeps=False)


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
