"""The page of the peers: tables, verdicts, and wall time against latency."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import cells, pages
from benchmarks.pages import Page, pyplot, save, size, two_digits, write_csv
from benchmarks.paper.errors import star
from benchmarks.peers.latency import BANDWIDTH, HIGHEST, LOWEST, Line, told
from benchmarks.peers.measure import (
    ALL_IN,
    BAGGING,
    CYCLIC,
    DEFAULT,
    DIVIDED,
    FEDTREE_BINS,
    FEDTREE_NAME,
    JOINT,
    METHODS,
    OURS,
    PAPER,
    PEERS,
    PLUGIN_NAME,
    SOLO,
)

Measured = list[tuple[cells.Cell, cells.Result]]
# What is measured of a cell.
FACTS = (
    "error", "logloss", "auc", "seconds", "critical_seconds", "bytes", "messages", "mean_logloss", "rows",
    "prepare_bytes", "prepare_messages", "failed",
)  # fmt: skip
COLOURS = {  # our methods as everywhere; the peers' own
    DEFAULT: pages.COLOURS["similar"],
    JOINT: pages.COLOURS["joint"],
    PAPER: pages.COLOURS["paper"],
    PLUGIN_NAME: "#b0365f",
    CYCLIC: "#2a9fb0",
    BAGGING: "#9aa3b2",
    DIVIDED: "#c9d1d9",
}


def place(cell: Mapping[str, Any]) -> tuple[str, ...]:
    """Where a figure belongs, whatever code it was measured with."""
    return tuple(str(cell[fact]) for fact in ("method", "data", "parties", "run", "trees"))


def earlier(path: Path) -> dict[tuple[str, ...], cells.Result]:
    """The figures of a page, from its CSV."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        place(row): {fact: row[fact] if fact == "failed" else json.loads(row[fact]) for fact in FACTS if row.get(fact)}
        for row in rows
    }


class Results:
    """The means over the runs, by data set, number of parties and method."""

    def __init__(self, measured: Measured) -> None:
        self.found: dict[tuple[str, int, str], list[cells.Result]] = {}
        for cell, result in measured:
            self.found.setdefault((cell["data"], cell["parties"], cell["method"]), []).append(result)
        self.trees = {(cell["data"], cell["parties"]): cell["trees"] for cell, _ in measured}
        self.rows = {cell["data"]: result["rows"] for cell, result in measured if "rows" in result}

    @property
    def places(self) -> list[tuple[str, int]]:
        """Data sets and numbers of parties, in their order."""
        return list(self.trees)

    def failure(self, data: str, parties: int, method: str) -> str | None:
        """Why a method has no numbers here."""
        runs = self.found.get((data, parties, method))
        return "not run" if not runs else next((r["failed"] for r in runs if "failed" in r), None)

    def mean(self, data: str, parties: int, method: str, what: str) -> float:
        """The mean over the runs; NaN where there is none."""
        if self.failure(data, parties, method):
            return float("nan")
        values = [r.get(what) for r in self.found[data, parties, method]]
        return float("nan") if None in values else float(np.mean(values))

    def line(self, data: str, parties: int, method: str) -> Line | None:
        """Seconds over latency, where everything for it was measured."""
        work, messages, n_bytes = (
            self.mean(data, parties, method, w) for w in ("critical_seconds", "messages", "bytes")
        )
        return None if np.isnan([work, messages, n_bytes]).any() else Line.of(work, messages, n_bytes)


def write(
    found: Measured, out: Path, command: str, *, quick: bool = False, measured: str | None = None, keeps: bool = True
) -> None:
    """Write page, CSV (unless it was drawn from there) and pictures."""
    results = Results(found)
    page = Page("SimFL and its peers", command, quick=quick, measured=measured)
    page.bullets(verdicts(results))
    versions = ", ".join(sorted({environment.version for environment, *_ in PEERS.values()}))
    page.say(
        "The same parties (theta 0.8: 80 % of one class in one half of the parties), trees, depth (8) and learning "
        f"rate (0.1) for all; 25 % of the rows held out. Peers: {versions}, each in an environment of its own. Log "
        "loss, error and AUC are of the held-out rows; seconds are of this machine with all parties on it, without "
        "compiling (SimFL, once per machine); bytes "
        "count what all parties and the hub or server send, including SimFL's preparation; messages in sequence wait "
        "for one another."
    )
    page.bullets(_remarks())
    _glance(page, results)
    for data, parties in results.places:
        _place(page, results, data, parties)
    _wire(page, results, out)
    page.sources(dict.fromkeys(data for data, _ in results.places))
    page.write(out / "peers.md")
    if keeps:
        write_csv(out / "peers.csv", [cell | result for cell, result in found])


def _remarks() -> list[str]:
    return [
        f"**{PLUGIN_NAME}**: XGBoost's own lossless histogram exchange, one process per party through its gRPC server; "
        "bytes and "
        "calls are counted by a relay on the way, which is part of its seconds.",
        f"**{CYCLIC}**, **{BAGGING}**: Flower's own strategies in one process, without Flower's engine, which adds "
        "seconds per message; bytes are those of its messages. Both send the model as JSON. Bagging gets the same "
        "number of trees in all, so fewer rounds; its trees are added with the whole step each, or with the step "
        "divided by the number of "
        "parties.",
        f"**{FEDTREE_NAME}**: horizontal mode, no encryption, {FEDTREE_BINS} bins, parties simulated in one process; "
        "bytes and "
        "messages are computed from its protocol, not measured.",
        f"**{JOINT}**: `recipe='joint'`, with its guard.",
        f"**{SOLO}**: the party with the lowest log loss on the held-out rows, which nobody could have known.",
    ]


def _place(page: Page, results: Results, data: str, parties: int) -> None:
    trees = results.trees[data, parties]
    page.head(f"{star(data)}, {parties} parties, {trees} trees")
    rows, failures = [], []
    for method in METHODS:
        if (data, parties, method) not in results.found:
            continue
        failed = results.failure(data, parties, method)
        if failed:
            rows.append([method, *"-" * 7])
            failures.append(f"{method}: {plainly(failed)}.")
            continue
        loss, error, auc, seconds, n_bytes, messages = (
            results.mean(data, parties, method, w) for w in ("logloss", "error", "auc", "seconds", "bytes", "messages")
        )
        alone = method in (SOLO, ALL_IN)
        sent = ["-", "-"] if alone else [size(n_bytes), size(n_bytes / trees)]
        label = f"**{method}**" if method == DEFAULT else method
        rows.append([label, f"{loss:.4f}", f"{100 * error:.2f} %", f"{auc:.4f}", f"{seconds:.1f}", *sent])
        rows[-1].append("-" if alone else f"{messages / trees:.1f}")
    page.table(
        ["method", "log loss", "error", "AUC", "seconds", "sent", "sent per tree", "messages in sequence per tree"],
        rows,
    )
    for failure in failures:
        page.say(failure)


def plainly(failure: str) -> str:
    """A failure without Python's name for it.

    >>> plainly("TimeoutError: not finished after 1200 seconds"), plainly("not run")
    ('not finished after 1200 seconds', 'not run')
    """
    name, colon, fact = failure.partition(": ")
    return fact if colon and name.isidentifier() else failure


RIVALS = (CYCLIC, BAGGING, DIVIDED, PAPER)  # what the similar recipe must be better than
KEEPING = (DEFAULT, JOINT, PLUGIN_NAME, *RIVALS[:3], FEDTREE_NAME, PAPER)  # nobody hands out rows


def verdicts(results: Results) -> list[str]:
    """What the recipes must show, and at how many places they do."""
    beaten, unlike, lowest, level = 0, [], 0, 0
    for data, parties in results.places:
        losses = {m: results.mean(data, parties, m, "logloss") for m in (*KEEPING, ALL_IN)}
        ours, joint = losses[DEFAULT], losses[JOINT]
        worse = [f"{m} ({losses[m]:.4f})" for m in RIVALS if losses[m] <= ours]
        worse += [f"{m} (no figure)" for m in RIVALS if np.isnan(losses[m])]
        beaten += not worse
        unlike += [f"{star(data)}, {parties} parties: not below {', '.join(worse)}"] if worse else []
        lowest += all(joint <= loss for m, loss in losses.items() if m != ALL_IN and not np.isnan(loss))
        level += joint <= losses[ALL_IN]
    n = len(results.places)
    return [
        f"**Similar: lower log loss than cyclic, bagging and the paper's recipe at {beaten} of {n} places.**",
        *unlike,
        f"Joint: the lowest log loss of all that keep their rows at {lowest} of {n} places, at or below pooling's at "
        f"{level} of {n}.",
    ]


def _glance(page: Page, results: Results) -> None:
    """All log losses in one table; the lowest of those who keep their rows is bold."""
    methods = (*KEEPING, SOLO, ALL_IN)
    rows = []
    for data, parties in results.places:
        losses = {m: results.mean(data, parties, m, "logloss") for m in methods}
        best = min((losses[m] for m in KEEPING if not np.isnan(losses[m])), default=0.0)
        told = [
            "-" if np.isnan(loss) else f"**{loss:.4f}**" if loss == best and m in KEEPING else f"{loss:.4f}"
            for m, loss in losses.items()
        ]
        rows.append([f"{star(data)}, {parties} parties", *told])
    page.head("Log loss at a glance")
    page.table(["", *methods], rows)
    page.say("Bold: the lowest of those who keep their rows. A dash: no figure; the tables below say why.")


def _wire(page: Page, results: Results, out: Path) -> None:
    page.head("On the wire: where SimFL wins, and where it does not")
    rows = []
    for data, parties in results.places:
        trees = results.trees[data, parties]
        ours, theirs = (results.mean(data, parties, m, "bytes") for m in (DEFAULT, PLUGIN_NAME))
        hops, calls = (results.mean(data, parties, m, "messages") for m in (DEFAULT, PLUGIN_NAME))
        if np.isnan([ours, theirs]).any():
            continue
        rows.append(
            [
                f"{star(data)}, {parties} parties",
                size(ours / trees),
                size(theirs / trees),
                two_digits(theirs / ours),
                f"{results.rows[data]:,}",
                two_digits(results.rows[data] * theirs / ours),
                f"{hops / trees:.1f}",
                f"{calls / trees:.1f}",
            ]
        )
    page.table(
        [
            "per tree",
            "SimFL bytes",
            "plugin bytes",
            "plugin / SimFL",
            "rows",
            "rows for equal bytes",
            "SimFL messages",
            "plugin messages",
        ],
        rows,
    )
    page.say(
        "SimFL sends two numbers per row of the builder and party, whatever the columns; the plugin sends a histogram "
        "of all columns for every node and party, whatever the rows. So SimFL sends less where there are many "
        "features and deep trees, and more where there are many rows, few features and shallow trees. *Rows for equal "
        "bytes* is where that turns at this depth and with these columns, if SimFL's bytes grow with the rows and the "
        "plugin's do not."
    )
    page.say(
        "Wall time against the latency of a link, one way, computed: the work of the slowest party of every hop, plus "
        f"messages in sequence times latency, plus bytes over {8 * BANDWIDTH / 1e6:.0f} Mbit/s at the hub "
        "(`benchmarks/peers/latency.py`). The plugin's work is the CPU time of its busiest process. Up to "
        f"how many milliseconds SimFL is faster ({1000 * HIGHEST:.0f}: at every latency looked at, 0: at none):"
    )
    rivals = (PLUGIN_NAME, CYCLIC, BAGGING)
    for ours in (DEFAULT, JOINT):
        page.table(
            [f"{ours}, against", *rivals],
            [
                [f"{star(data)}, {parties} parties", *(_crossed(results, data, parties, ours, m) for m in rivals)]
                for data, parties in results.places
            ],
        )
    page.picture("peers-latency.png", "wall time against link latency")
    plot_latency(results, out / "peers-latency.png")
    page.picture("peers-logloss.png", "log loss of every method")
    plot_losses(results, out / "peers-logloss.png")


def _crossed(results: Results, data: str, parties: int, method: str, other: str) -> str:
    ours, theirs = (results.line(data, parties, m) for m in (method, other))
    return "-" if ours is None or theirs is None else told(ours, theirs)


def plot_latency(results: Results, path: Path) -> None:
    """One panel per data set and number of parties."""
    plt = pyplot()
    figure, axes = _panels(plt, results)
    at = np.geomspace(LOWEST, HIGHEST, 60)
    handles: dict[str, Any] = {}
    for axis, (data, parties) in zip(axes.flat, results.places, strict=False):
        for method, colour in COLOURS.items():
            line = results.line(data, parties, method)
            if line is not None:
                style = "-" if method in OURS else "--"
                handles[method] = axis.plot(
                    1000 * at, [line.seconds(a) for a in at], style, color=colour, label=method
                )[0]
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set_title(f"{star(data)}, {parties} parties, {results.trees[data, parties]} trees", fontsize=9)
        axis.set_xlabel("latency in ms, one way", fontsize=8)
        axis.set_ylabel("seconds", fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.suptitle(
        "Seconds of a whole training against link latency (computed from measured messages and bytes)", fontsize=11
    )
    save(figure, path)


def plot_losses(results: Results, path: Path) -> None:
    """One panel per data set and number of parties, one bar per method."""
    plt = pyplot()
    figure, axes = _panels(plt, results, width=3.9)
    methods = [m for m in METHODS if any((*place, m) in results.found for place in results.places)]
    drawn = COLOURS | {SOLO: pages.COLOURS["SOLO"], ALL_IN: pages.COLOURS["ALL-IN"]}
    for axis, (data, parties) in zip(axes.flat, results.places, strict=False):
        values = [results.mean(data, parties, m, "logloss") for m in methods]
        colours = [drawn.get(m, pages.OTHERS) for m in methods]
        bars = axis.barh(methods, np.nan_to_num(values), color=colours)
        axis.bar_label(bars, ["no figure" if np.isnan(v) else f"{v:.4f}" for v in values], padding=3, fontsize=7)
        axis.invert_yaxis()
        axis.tick_params(left=False, labelsize=7)
        axis.locator_params(axis="x", nbins=4)
        axis.set_xlabel("log loss (less is better)", fontsize=8)
        axis.set_xlim(0, 1.3 * max(np.nanmax(values), 1e-9))
        axis.set_title(f"{star(data)}, {parties} parties, {results.trees[data, parties]} trees", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[:, 1:].flat:
        axis.set_yticklabels([])
    figure.suptitle("Log loss on held-out rows (lower is better)", fontsize=11)
    save(figure, path)


def _panels(plt: Any, results: Results, width: float = 3.4) -> tuple[Any, Any]:
    n_columns = max(len({parties for _, parties in results.places}), 1)
    n_rows = -(-len(results.places) // n_columns)
    figure, axes = plt.subplots(n_rows, n_columns, figsize=(width * n_columns + 1.5, 2.5 * n_rows + 0.8), squeeze=False)
    for axis in axes.flat[len(results.places) :]:
        axis.set_visible(False)
    return figure, axes
