"""All measurements of speed, one after the other: `make bench`.

    python -m benchmarks.bench [--only NAME ...] [--no-write] [--all] [--quick]

Each runs as a process of its own and writes its JSON into runs/bench/; all together go to docs/results/speed.json, and
as tables to docs/results/speed.md. With --only the others stay as they were. In the end what became worse since the
last commit is printed (`compare.py`), and whether the machine was quiet (`quiet.py`). With --no-write docs/ stays as it
is. With --quick sizes are small, and nothing goes to docs/ or is compared. FAISS is installed into runs/environments
for the comparison; where that fails, its row is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import compare, quiet
from benchmarks.cells import ROOT
from benchmarks.pages import RESULTS, Page, measured_of, size
from simfl.params import cores

FOLDER = ROOT / "runs" / "bench"
QUICK = ROOT / "runs" / "quick" / "bench"
MACHINE = "machine"  # among the measurements: how busy the machine was during each
FAISS = ROOT / "runs" / "environments" / "faiss"
SPEED = ("benchmarks.speed",)
# name -> module and arguments; the same with small sizes
COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "search": (["benchmarks.search"], ["--rows", "8192", "--repeats", "1"]),
    "midsize": ([*SPEED, "midsize"], []),
    "prepare": ([*SPEED, "prepare"], ["--rows", "20000"]),
    "prepare-shared": ([*SPEED, "prepare", "--set", 'matching="shared"'], ["--rows", "20000"]),
    "prepare-exact": ([*SPEED, "prepare", "--set", "max_candidates=0"], ["--rows", "20000"]),
    "growth": ([*SPEED, "growth", "--shapes", "HIGGS-like"], ["--rows", "100000"]),
    "growth-exact": ([*SPEED, "growth", "--shapes", "HIGGS-like", "--set", "max_candidates=0"], ["--rows", "100000"]),
    "five-million": (
        [*SPEED, "prepare", "--shapes", "HIGGS-like", "--set", "max_candidates=2000", "--rows", "5000000"],
        ["--rows", "50000"],
    ),
    "ten-million": (
        [*SPEED, "both", "--shapes", "HIGGS-like", "--set", "max_candidates=2000", "rematch=0"],
        ["--rows", "50000", "--trees", "10"],
    ),
    "joint-ten-million": (
        [*SPEED, "both", "--shapes", "HIGGS-like", "--set", 'recipe="joint"', "--trees", "24"],
        ["--rows", "50000", "--trees", "16"],
    ),
    "training": ([*SPEED, "training"], ["--rows", "20000", "--repeats", "1"]),
    "training-200k": (
        [*SPEED, "training", "--shapes", "HIGGS-like", "--rows", "200000"],
        ["--rows", "20000", "--repeats", "1"],
    ),
    "training-plain": (
        [*SPEED, "training", "--set", "extra_depth=0"],
        ["--rows", "20000", "--repeats", "1"],
    ),
    "growing": ([*SPEED, "growing"], ["--rows", "3000", "--repeats", "1"]),
    "bins": ([*SPEED, "bins", "--shapes", "HIGGS-like"], ["--rows", "20000", "--trees", "20"]),
    "sparse": ([*SPEED, "sparse"], ["--rows", "5000"]),
    "profile": ([*SPEED, "profile", "--shapes", "HIGGS-like"], ["--rows", "20000"]),
    "joint-million": (["benchmarks.joint_speed", "million"], ["--rows", "20000", "--trees", "24"]),
    "joint-growth": (["benchmarks.joint_speed", "growth"], ["--rows", "125000", "--trees", "16"]),
    "joint-midsize": (["benchmarks.joint_speed", "midsize"], ["--trees", "24", "--repeats", "1"]),
    "flare": (["benchmarks.flare", "overhead"], ["--trees", "30"]),
}


def run(name: str, *, quick: bool) -> None:
    """One measurement, into its JSON file."""
    command, small = COMMANDS[name]
    folder = QUICK if quick else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", *command, *(small if quick else []), "--json", str(folder / f"{name}.json")]
    path = os.pathsep.join(filter(None, [str(FAISS), os.environ.get("PYTHONPATH", "")]))
    with quiet.watched() as machine:
        subprocess.run(words, check=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": path})
    kept = _read(folder / f"{MACHINE}.json")
    (folder / f"{MACHINE}.json").write_text(json.dumps(kept | {name: machine}, indent=1) + "\n")


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def install_faiss() -> None:
    """FAISS beside us, not among our own packages."""
    if not (FAISS / "faiss").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--target", str(FAISS), "faiss-cpu"], check=False)


def gather(folder: Path, record: Path) -> dict[str, Any]:
    """What is there of all measurements: of this machine, else what the record has."""
    kept = _read(record)
    files = {name: folder / f"{name}.json" for name in COMMANDS}
    found = {name: json.loads(file.read_text()) if file.exists() else kept.get(name) for name, file in files.items()}
    machine = kept.get(MACHINE, {}) | _read(folder / f"{MACHINE}.json")
    return {n: results for n, results in found.items() if results is not None} | ({MACHINE: machine} if machine else {})


def page(found: dict[str, Any], measured_when: str | None = None) -> Page:
    """The tables. `measured_when`: when and with what, if not now and here."""
    made = Page("Speed, measured", "python -m benchmarks.bench", measured=measured_when)
    made.say(
        "Seconds depend on the machine; ratios come from one run, in which both sides ran in turn. Beside them: the "
        "quartiles over the turns. [What they mean](../speed.md)."
    )
    for title, function in (
        ("The search for similar rows, one core", _search),
        ("Stage 1, ten parties", _prepare),
        ("Ten million rows in one process, ten parties, depth 8", _ten_million),
        ("Growth", _growth),
        ("Training, ten parties, a million rows where nothing else is said, depth 8", _training),
        ("One tree of a builder, ten levels, one thread, processor time", _growing),
        ("Where the time of a tree goes", _profile),
        ("Bins, ten parties, no rematch", _bins),
        ("A mid-size run: a9a, ten parties, 200 trees", _midsize),
        ("Text: sparse rows, ten parties", _sparse),
        ("Trees grown together beside ALL-IN, ten parties", _joint),
        ("Trees grown together: growth with the rows", _joint_growth),
        ("NVIDIA FLARE: three parties, a9a", _flare),
        ("How busy the machine was", _machine),
    ):
        rows = function(found)
        if rows:
            made.head(title)
            made.table(rows[0], rows[1:])
    made.say("Measurements that are not in the last table are of an earlier run of the same command.")
    return made


Rows = list[list[str]]
Cells = Sequence[str | list[str]]  # a list: the median of several turns and its quartiles, which get cells of their own
QUARTILES = ["lower quartile", "upper quartile"]


def _parts(value: float | list[float], digits: int = 2) -> str | list[str]:
    """A ratio for a table. One that was measured once has no quartiles."""
    return [f"{part:.{digits}f}" for part in value] if isinstance(value, list) else f"{value:.{digits}f}"


def _in_columns(rows: Sequence[Cells]) -> Rows:
    """One number per cell: quartiles stand in columns of their own, beside their median.

    >>> _in_columns([["data", "ratio"], ["a", ["2", "1", "3"]], ["b", "4"]])
    [['data', 'ratio', 'lower quartile', 'upper quartile'], ['a', '2', '1', '3'], ['b', '4', '', '']]
    """
    wide = {place for row in rows for place, cell in enumerate(row) if isinstance(cell, list)}

    def widened(row: Cells, beside: list[str]) -> list[str]:
        three = [cell if isinstance(cell, list) else [cell, *beside] for cell in row]
        return [text for place, cell in enumerate(three) for text in (cell if place in wide else cell[:1])]

    return [widened(row, ["", ""] if number else QUARTILES) for number, row in enumerate(rows)]


def _in_rows(words: str, cells: Cells) -> Rows:
    """The same where every column is a setting: quartiles stand in rows of their own, below their median."""
    three = [cell if isinstance(cell, list) else [cell, "", ""] for cell in cells]
    rows = [[head, *texts] for head, *texts in zip([words, *QUARTILES], *three, strict=True)]
    return rows if any(isinstance(cell, list) for cell in cells) else rows[:1]


def _search(found: dict[str, Any]) -> Rows:
    rows: list[Cells] = [["codes", "program", "pairs per second", "bytes per second", "`most_similar` is faster by"]]
    for result in found.get("search", []):
        rates = result["pairs_per_second"]
        for name, rate in rates.items():
            faster = result.get("faster_by", {}).get(name, rates["simfl"] / rate)
            cells = [f"{rate:.2g}", f"{rate * result['hashes']:.2g}", _parts(faster, 1)]
            rows.append([f"{result['shape']}, {result['hashes']} hashes, k = {result['k']}", PROGRAMS[name], *cells])
    return _in_columns(rows) if len(rows) > 1 else []


PROGRAMS = {
    "simfl": "`most_similar`",
    "plain": "plain kernel",
    "bare": "bare loop that only compares bytes",
    "faiss": "FAISS `IndexBinaryFlat` on one-hot codes",
}
WAYS = {
    "prepare": "similar recipe: blind, 10,000 candidates",
    "prepare-shared": "shared tables, 10,000 candidates",
    "prepare-exact": "blind, all rows compared",
    "five-million": "blind, 2,000 candidates",
}


def _prepare(found: dict[str, Any]) -> Rows:
    head = ["rows", "way", "seconds", "the paper's", "memory besides the rows, over them", "bytes", "bytes over 8MNL"]
    rows = [head]
    for name, way in WAYS.items():
        for r in found.get(name, []):
            paper = f"{r['paper_seconds']}" if r["rows"] == 1_000_000 else ""
            cells = [f"{r['seconds']:.1f}", paper, f"{r['extra_peak_over_data']:.1f}", size(r["bytes"])]
            rows.append([f"{r['rows']:,} {r['shape']}", way, *cells, f"{r['bytes_over_paper']:.3f}"])
    return rows if len(rows) > 1 else []


def _ten_million(found: dict[str, Any]) -> Rows:
    head = [
        "rows",
        "recipe",
        "stage 1, s",
        "trees",
        "s per tree",
        "KB per tree",
        "memory besides the rows, over them",
        "most memory",
    ]
    rows = [head]
    for name, recipe in {"ten-million": "similar, 2,000 candidates", "joint-ten-million": "joint"}.items():
        for r in found.get(name, []):
            cells = [f"{r['prepare_seconds']:.0f}", str(r["trees"]), f"{r['seconds_per_tree']:.2f}"]
            cells += [
                f"{r['bytes_per_tree'] / 1000:.0f}",
                f"{r['extra_peak_over_data']['train']:.1f}",
                size(r["peak_bytes"]),
            ]
            rows.append([f"{r['rows']:,} {r['shape']}", recipe, *cells])
    return rows if len(rows) > 1 else []


def _growth(found: dict[str, Any]) -> Rows:
    from benchmarks.speed import exponents

    several = {name: found[name] for name in ("growth", "growth-exact") if len(found.get(name, [])) > 1}
    if not several:
        return []
    sizes = [r["rows"] for r in next(iter(several.values()))]
    rows: list[Cells] = [["HIGGS-like", *(f"{n:,} rows, s" for n in sizes), "seconds grow with rows to the power"]]
    for name, results in several.items():
        way = "10,000 candidates" if name == "growth" else "all rows compared"
        power = exponents(results)
        several_turns = power[1] < power[2]
        rows.append([way, *(f"{r['seconds']:.1f}" for r in results), _parts(power if several_turns else power[0])])
    return _in_columns(rows)


def _training(found: dict[str, Any]) -> Rows:
    kinds = {"training": "similar recipe", "training-200k": "200,000 rows", "training-plain": "no extra levels"}
    columns = [(f"{r['shape']}, {kinds[n]}", r) for n in kinds for r in found.get(n, [])]
    if not columns:
        return []
    rows = [["seconds per tree", *(head for head, _ in columns)]]
    for key, words in {
        "simfl": "SimFL",
        "all_in": "`xgb.train` on all rows (ALL-IN)",
        "solo": "`xgb.train` on one party's rows (SOLO)",
        "solo_deep": "SOLO, two levels deeper, no smallest child",
        "passes": "the others' passes down the trees",
    }.items():
        rows.append([words, *(f"{r['seconds_per_tree'][key]:.3f}" for _, r in columns)])
    for key, words in {
        "over_all_in": "**SimFL over ALL-IN**",
        "over_solo_and_passes": "SimFL over SOLO and passes",
        "over_deep_solo_and_passes": "SimFL over deeper SOLO and passes",
        "bytes_over_paper": "**bytes over 8[N + (2^D - 1)(M - 1)]**",
    }.items():
        rows += _in_rows(words, [_parts(r[key]) for _, r in columns])
    return rows


def _profile(found: dict[str, Any]) -> Rows:
    rows: Rows = []
    for r in found.get("profile", []):
        rows = [[f"{r['rows']:,} {r['shape']} rows, similar recipe", "milliseconds per tree, all threads together"]]
        for kind, seconds in r["thread_seconds_per_tree"].items():
            name = "of `Grow`, the growing itself" if kind == "growing" else f"`{kind}`"
            rows += [[name, f"{1000 * seconds:.1f}"]] if seconds > 1e-3 else []
        rows.append(["wall time", f"{1000 * r['wall_seconds_per_tree']:.1f}"])
    return rows


def _growing(found: dict[str, Any]) -> Rows:
    head = ["rows of the builder", "bins", "leaves", "histograms, ms", "XGBoost, ms", "histograms over XGBoost"]
    rows: list[Cells] = [head]
    for r in found.get("growing", []):
        own, xgboost = (f"{1000 * r[key]:.1f}" for key in ("own", "xgboost"))
        leaves = str(r["leaves"]["own"])
        rows.append([f"{r['rows']:,}", str(r["bins"]), leaves, own, xgboost, _parts(r["over_xgboost"])])
    return _in_columns(rows) if len(rows) > 1 else []


def _bins(found: dict[str, Any]) -> Rows:
    rows: list[Cells] = [["rows, trees", "log loss, 256 bins", "64 bins", "ms per tree, 256 bins", "64 bins", "ratio"]]
    for r in found.get("bins", []):
        cells = [f"{r[f'{n}_logloss']:.4f}" for n in (256, 64)]
        cells += [f"{1000 * r[f'{n}_seconds_per_tree']:.0f}" for n in (256, 64)]
        ratio = r.get("64_over_256", r["64_seconds_per_tree"] / r["256_seconds_per_tree"])
        rows.append([f"{r['rows']:,} {r['shape']}, {r['trees']}", *cells, _parts(ratio)])
    return _in_columns(rows) if len(rows) > 1 else []


LIGHTER = {"rematch": "`rematch=0`", "extra_depth": "no extra levels"}


def _midsize(found: dict[str, Any]) -> Rows:
    head = ["", "stage 1, s", "stage 2, s", "of it growing", "`xgb.train` on all rows, s"]
    rows: list[Cells] = [[*head, "stage 2 over `xgb.train`", "growing alone over `xgb.train`"]]
    keys = ("prepare", "simfl", "builders_grow", "all_in", "over_all_in", "growing_over_all_in")
    for r in found.get("midsize", []):
        name = ", ".join(LIGHTER[k] for k in r["options"]) or "similar recipe"
        rows.append([name, *(_parts(r[k]) for k in keys)])
    return _in_columns(rows) if len(rows) > 1 else []


def _sparse(found: dict[str, Any]) -> Rows:
    rows = [["rows x columns", "stage 1, s", "stage 2, s", "trees", "most memory besides the rows", "as a dense table"]]
    for r in found.get("sparse", []):
        cells = [f"{r['prepare']:.1f}", f"{r['train']:.1f}", str(r["trees"])]
        rows.append([f"{r['rows']:,} x {r['columns']:,}", *cells, size(r["extra_peak_bytes"]), size(r["dense_bytes"])])
    return rows if len(rows) > 1 else []


def _joint(found: dict[str, Any]) -> Rows:
    """What was grown side by side. With several runs of the same, each has its column."""
    results = [r for name in ("joint-million", "joint-midsize") for r in found.get(name, [])]
    if not results:
        return []
    heads = [f"{r['rows']:,} rows, {r['function']}, depth {r['depth']}" for r in results]
    rows = [['`recipe="joint"`', *numbered(heads)]]
    if any("logloss" in r for r in results):
        for key, words in {"joint": "**log loss on new rows**, joint", "all_in": "the same, ALL-IN"}.items():
            losses = [f"{r['logloss'][key]:.4f}" if "logloss" in r else "" for r in results]
            rows.append([f"{words}, after {results[0]['trees']} trees", *losses])
    for kind, words in {"cpu_seconds_per_tree": "processor ms per tree", "seconds_per_tree": "ms per tree"}.items():
        for key, method in {"joint": "joint", "all_in": "ALL-IN"}.items():
            rows.append([f"{words}, {method}", *(f"{1000 * r[kind][key]:.1f}" for r in results)])
    for key, words in {"cpu_over_all_in": "**processor time over ALL-IN**", "over_all_in": "time over ALL-IN"}.items():
        rows += _in_rows(words, [_parts(r[key]) for r in results])
    rows.append(["KB per tree", *(f"{r['bytes_per_tree'] / 1000:.0f}" for r in results)])
    rows.append(["bytes over 8[N + (2^D - 1)(M - 1)]", *(f"{r['bytes_over_paper']:.3f}" for r in results)])
    for place, when in enumerate(("before", "after")):
        rows.append([f"load {when}", *(f"{r['load'][place]:.0f}" for r in results)])
    return rows


def numbered(heads: Sequence[str]) -> list[str]:
    """Headings of which none is the same as another.

    >>> numbered(["a9a", "HIGGS", "a9a"])
    ['a9a, run 1', 'HIGGS', 'a9a, run 2']
    """
    return [
        head if heads.count(head) == 1 else f"{head}, run {heads[: place + 1].count(head)}"
        for place, head in enumerate(heads)
    ]


def _joint_growth(found: dict[str, Any]) -> Rows:
    from benchmarks.joint_speed import exponent

    results = found.get("joint-growth", [])
    if len(results) < 2:
        return []
    rows = [["HIGGS-like", *(f"{r['rows']:,} rows" for r in results), "grows with rows to the power"]]
    milliseconds = [f"{1000 * r['cpu_seconds_per_tree']['joint']:.0f}" for r in results]
    rows.append(["processor ms per tree", *milliseconds, f"{exponent(results, 'cpu_seconds_per_tree'):.2f}"])
    sent = [f"{r['bytes_per_tree'] / 1000:.0f}" for r in results]
    rows.append(["KB per tree", *sent, f"{exponent(results, 'bytes_per_tree'):.2f}"])
    rows.append(["processor time over ALL-IN", *(f"{r['cpu_over_all_in'][0]:.2f}" for r in results), ""])
    return rows


def _machine(found: dict[str, Any]) -> Rows:
    rows = [["measurement", "load before", "load after", "cores used by other programs"]]
    for name, about in found.get(MACHINE, {}).items():
        others = f"{about['others']:.1f}" if "others" in about else ""
        rows.append([f"`{name}`", *(f"{load:.1f}" for load in about["load"]), others])
    return rows if len(rows) > 1 else []


def _flare(found: dict[str, Any]) -> Rows:
    head = ["trees", "in one process, s", "through FLARE, s", "overhead per tree, ms", "identical models"]
    rows: list[Cells] = [head]
    for r in found.get("flare", []):
        same = "yes" if r["identical"] else "NO"
        seconds = [f"{r['one_process']:.1f}", f"{r['flare']:.1f}"]
        rows.append([str(r["trees"]), *seconds, _parts(r["overhead_ms"], 1), same])
    return _in_columns(rows) if len(rows) > 1 else []


def tell_changes(console: Console, now: dict[str, Any], *, everything: bool) -> None:
    """Print what became worse or better since the last commit, and whether the machine was quiet."""
    before = compare.committed(RESULTS / "speed.json")
    found = compare.changes(before, now)
    shown = [change for change in found if everything or change.verdict]
    if shown:
        console.print(compare.table(shown))
    console.print(compare.summary(found, compare.without_counterpart(before, now)))
    if now[MACHINE]:
        console.print(quiet.advice_after(now[MACHINE]))


def measured(folder: Path, names: list[str]) -> dict[str, Any]:
    """What was measured on this machine, of these measurements."""
    files = {name: folder / f"{name}.json" for name in names}
    machine = _read(folder / f"{MACHINE}.json")
    found = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    return found | {MACHINE: {name: about for name, about in machine.items() if name in found}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(COMMANDS), default=list(COMMANDS))
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that the commands work")
    parser.add_argument("--known", action="store_true", help="run nothing: use what runs/bench has")
    parser.add_argument("--no-write", action="store_true", help="compare alone: docs/ stays as it is")
    parser.add_argument("--all", action="store_true", help="print all figures beside the committed ones")
    given = parser.parse_args()
    console, folder = Console(), QUICK if given.quick else FOLDER
    if not given.known:
        console.print(quiet.advice_before(os.getloadavg()[0], cores()))
    if "search" in given.only and not given.known:
        install_faiss()
    for name in [] if given.known else given.only:
        console.rule(name)
        run(name, quick=given.quick)
    if not given.no_write:
        target = QUICK if given.quick else RESULTS
        found = gather(folder, target / "speed.json")
        (target / "speed.json").write_text(json.dumps(found, indent=1) + "\n")
        when = measured_of(target / "speed.md") if given.known else None
        page(found, when).write(target / "speed.md")
        console.print(f"Written to {target / 'speed.md'}")
    if not given.quick:
        tell_changes(console, measured(folder, given.only), everything=given.all)


if __name__ == "__main__":
    main()
