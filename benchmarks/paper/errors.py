"""Test errors: Table 2 (theta), Table 3 (balanced), the figures over theta and over the number of parties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import cells
from benchmarks.data import source
from benchmarks.pages import COLOURS, Page, measured_of, percent, pyplot, save, write_csv
from benchmarks.paper import training
from benchmarks.paper.claims import NEAR, Verdict, lower, near, share_closed, summary
from benchmarks.paper.figures import BALANCED, THETA_80, Errors
from benchmarks.paper.training import ALL_IN, DEFAULT, PAPER, SOLO, TFL

HEADS = {
    "paper": "With the paper's settings",
    "today": "With today's settings",
}
ABOUT = {
    "paper": "Squared loss on 0/1 labels, no shrinkage (learning rate 1), gamma 1, lambda 1, min_child_weight 1, "
    "depth 8, "
    "{trees} trees, r = 4, L = min(40, d - 1): what the paper's experiments used, partly found by reproducing its "
    "baselines.",
    "today": "Logistic loss, learning rate 0.1, depth 8, {trees} trees, XGBoost's defaults otherwise: what a user "
    "would run.",
}


@dataclass(frozen=True)
class Plan:
    """How much of it to run."""

    data: tuple[str, ...]
    runs: dict[str, int]  # per settings
    quick: bool = False
    drawn: Path | None = None  # where the pages are, if they are only drawn again from their CSV files

    def page(self, title: str, command: str, name: str) -> Page:
        """A new page; drawn again, it says when its figures were measured."""
        measured = measured_of(self.drawn / name) if self.drawn else None
        return Page(title, command, quick=self.quick, measured=measured)

    def runs_of(self, data: str, settings: str) -> int:
        """Text with thousands of columns is dear under today's settings: two runs at most."""
        return min(self.runs[settings], 2) if data == "real-sim" and settings == "today" else self.runs[settings]

    def trees(self, settings: str, data: str) -> int:
        """The number of trees."""
        return training.n_trees(settings, data, quick=self.quick)


class Table:
    """The results of one partition and number of parties, for one kind of settings."""

    def __init__(self, plan: Plan, settings: str, partition: str, parties: int) -> None:
        self.plan, self.settings, self.partition, self.parties = plan, settings, partition, parties
        self.results: dict[tuple[str, str, int], cells.Result] = {}

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods compared under these settings."""
        return training.METHODS[self.settings]

    def cells(self) -> list[cells.Cell]:
        """Everything that must be trained for it."""
        return [cell for _, cell in self._cells()]

    def _cells(self) -> list[tuple[tuple[str, str, int], cells.Cell]]:
        return [
            (
                (data, method, run),
                training.cell(
                    data,
                    self.settings,
                    method,
                    self.partition,
                    self.parties,
                    run,
                    self.plan.trees(self.settings, data),
                ),
            )
            for data in self.plan.data
            for run in range(self.plan.runs_of(data, self.settings))
            for method in self.methods
        ]

    def read(self, store: cells.Store) -> Table:
        """Take the results from where they were kept."""
        self.results = {place: store.get(cell) or {"failed": "not run"} for place, cell in self._cells()}
        return self

    def errors(self, data: str, method: str, party: int | None = None) -> np.ndarray:
        """One error per run; of SOLO the given party's, or the lowest. NaN where it failed."""
        found = []
        for run in range(self.plan.runs_of(data, self.settings)):
            values = self.results[data, method, run].get("error", [np.nan])
            found.append(min(values) if party is None else values[min(party, len(values) - 1)])
        return np.array(found)

    def mean_solo(self, data: str) -> np.ndarray:
        """One mean over the parties per run."""
        runs = range(self.plan.runs_of(data, self.settings))
        return np.array([np.mean(self.results[data, SOLO, run].get("error", [np.nan])) for run in runs])

    def rows(self) -> list[dict[str, Any]]:
        """For the CSV: one row per data set, method and run."""
        about = {"settings": self.settings, "partition": self.partition, "parties": self.parties}
        return [
            about
            | {"data": data, "remark": source(data).remark, "method": method, "run": run, "model": number}
            | {"trees": self.plan.trees(self.settings, data)}
            | {name: values[number] for name, values in result.items() if isinstance(values, list)}
            | ({"failed": result["failed"]} if "failed" in result else {})
            for (data, method, run), result in self.results.items()
            for number in range(len(result.get("error", [None])))
        ]


def run_all(tables: Sequence[Table], store: cells.Store, title: str) -> None:
    """Run what is missing, then read everything."""
    cells.run([cell for table in tables for cell in table.cells()], training.train, store, title)
    for table in tables:
        table.read(store)


# --- Tables 2 and 3 --------------------------------------------------------------------------------------------------


def errors(plan: Plan, partition: str, store: cells.Store, out: Path, command: str) -> None:
    """Table 2 or 3, with the paper's settings and with today's."""
    balanced = partition == "balanced"
    printed = BALANCED if balanced else THETA_80 if partition == "theta 0.8" else {}
    tables = [Table(plan, settings, partition, 2) for settings in ("paper", "today")]
    run_all(tables, store, f"errors, {partition}")
    name = "errors-balanced" if balanced else f"errors-{partition.replace(' ', '-')}"
    page = plan.page(f"Test errors of two parties, {partition}", command, f"{name}.md")
    page.say(
        "Percent of held-out rows (25 %) that are classified wrongly; lower is better. Means over the runs. Every run "
        "has its own split, partition and hashes, so the range holds all of that; the paper's range holds the hashes "
        "alone. A star marks data that is a sample or a stand-in (see the end): there the paper's figure is of other "
        "rows."
    )
    page.head("What the paper says, on these runs")
    for table in tables:
        _claims_section(page, table, printed if table.settings == "paper" else {})
    for table in tables:
        _errors_section(page, table, printed)
        page.picture(f"{name}-{table.settings}.png", f"errors of every method, {table.settings} settings")
        plot_errors(table, printed, out / f"{name}-{table.settings}.png")
    page.sources(plan.data)
    page.write(out / f"{name}.md")
    write_csv(out / f"{name}.csv", [row for table in tables for row in table.rows()])


def _claims_section(page: Page, table: Table, known: dict[str, Errors]) -> None:
    """The verdicts in words, one table per recipe."""
    for method in _ours(table):
        page.say(f"{HEADS[table.settings]}, {method}:")
        page.table([method, *(star(d) for d in table.plan.data), "in all"], claim_rows(table, method))
    page.say("Plainly: " + "; ".join(plainly(table)) + ".")
    if known:
        page.say(f"By the paper's own figures: {own_claims(known)}.")


def _ours(table: Table) -> list[str]:
    return [method for method in table.methods if method.startswith("SimFL")]


def _errors_section(page: Page, table: Table, printed: dict[str, Errors]) -> None:
    page.head(HEADS[table.settings])
    page.say(about(table))
    # The paper's figures belong to its own settings.
    known = printed if table.settings == "paper" else {}
    columns = [*_columns(table), "gap closed"]
    heads = [text for name in columns for text in ((name, "paper's") if known else (name,))]
    page.table(["data set", *heads, "runs"], [_errors_row(table, data, known.get(data)) for data in table.plan.data])
    page.say(
        f"Gap closed: how much of the way from the better party alone to ALL-IN {table.methods[0]} has gone, in "
        "percent; a dash where there is less than half a point to gain. The lowest and the highest run:"
    )
    ends = [f"{method}, {end}" for method in _ours(table) for end in ("lowest", "highest")]
    ends += ["paper's, lowest", "paper's, highest"] if known else []
    page.table(["data set", *ends], [_range_row(table, data, known.get(data)) for data in table.plan.data])
    page.say("The differences behind the verdicts, in points (negative is better), and their standard errors:")
    for method in _ours(table):
        page.table([method, *(star(d) for d in table.plan.data)], difference_rows(table, method))


def _columns(table: Table) -> list[str]:
    return [*_ours(table), TFL, "SOLO A", "SOLO B", ALL_IN]


def about(table: Table) -> str:
    """The settings in words."""
    text = ABOUT[table.settings].format(trees=table.plan.trees(table.settings, "a9a"))
    other = table.plan.trees(table.settings, "real-sim")
    if "real-sim" in table.plan.data and other != table.plan.trees(table.settings, "a9a"):
        text += f" On real-sim's stand-in {other} trees."
    return text


def star(data: str) -> str:
    """The name, marked where the rows are not the paper's."""
    return data if source(data).remark.endswith("as in the paper") else f"{data}*"


def _errors_row(table: Table, data: str, printed: Errors | None) -> list[str]:
    """One number per cell: the mean, and beside it the paper's where it has one."""
    means = [_bar(table, data, name) for name in _columns(table)]
    closed = share_closed(table.errors(data, table.methods[0]).mean(), min(means[-3:-1]), means[-1])
    cells_of_row = [*(percent(mean) for mean in means), percent(closed, 0)]
    if printed:
        known = (printed.simfl, printed.tfl, printed.solo_a, printed.solo_b, printed.all_in)
        theirs = [*(f"{figure:.1f}" for figure in known), percent(_closed(printed), 0)]
        cells_of_row = [text for pair in zip(cells_of_row, theirs, strict=True) for text in pair]
    return [star(data), *cells_of_row, str(table.plan.runs_of(data, table.settings))]


def _range_row(table: Table, data: str, printed: Errors | None) -> list[str]:
    found = [table.errors(data, method) for method in _ours(table)]
    ends = [percent(value) for errors_of_runs in found for value in (errors_of_runs.min(), errors_of_runs.max())]
    theirs = [f"{printed.lowest:.1f}", f"{printed.highest:.1f}"] if printed else []
    return [star(data), *ends, *theirs]


def _closed(own: Errors) -> float:
    return share_closed(*(e / 100 for e in (own.simfl, min(own.solo_a, own.solo_b), own.all_in)))


def claims_of(table: Table, method: str, data: str) -> dict[str, Verdict]:
    """The paper's claims about one data set."""
    ours = table.errors(data, method)
    return {
        "below SOLO (the better party)": lower(ours, table.errors(data, SOLO)),
        f"near ALL-IN (within {100 * NEAR:.0f} points)": near(ours, table.errors(data, ALL_IN)),
        "below TFL": lower(ours, table.errors(data, TFL)),
        "TFL is worse than SOLO (the better party)": lower(table.errors(data, SOLO), table.errors(data, TFL)),
    }


def claim_rows(table: Table, method: str) -> list[list[str]]:
    """One row per claim: the verdict on every data set in a word, and in all."""
    per_data = {data: claims_of(table, method, data) for data in table.plan.data}
    return [
        [claim, *(per_data[d][claim].word for d in per_data), summary([per_data[d][claim] for d in per_data])]
        for claim in next(iter(per_data.values()))
    ]


def difference_rows(table: Table, method: str) -> list[list[str]]:
    """Two rows per claim: the mean difference, and its standard error."""
    per_data = {data: claims_of(table, method, data) for data in table.plan.data}
    rows = []
    for claim in next(iter(per_data.values())):
        found = [per_data[data][claim] for data in per_data]
        rows.append([claim, *(f"{100 * verdict.difference:+.1f}" for verdict in found)])
        rows.append(["standard error", *(percent(verdict.error) for verdict in found)])
    return rows


def plainly(table: Table) -> list[str]:
    """What does not hold, and where."""
    told = []
    for method in (m for m in table.methods if m.startswith("SimFL")):
        per_data = {data: claims_of(table, method, data) for data in table.plan.data}
        for claim in list(next(iter(per_data.values())))[:3]:
            where = [star(data) for data, found in per_data.items() if found[claim].word == "fails"]
            if where:
                told.append(f"{method} is NOT {claim} on {', '.join(where)}")
    return told or ["none of the claims about SimFL fails here"]


def own_claims(printed: dict[str, Errors]) -> str:
    """The same claims, held against the figures that the paper prints."""
    better = {d: min(e.solo_a, e.solo_b) for d, e in printed.items()}
    counts = {
        "SimFL is below both SOLO": sum(e.simfl < better[d] for d, e in printed.items()),
        f"within {100 * NEAR:.0f} points of ALL-IN": sum(e.simfl - e.all_in <= 100 * NEAR for e in printed.values()),
        "below TFL": sum(e.simfl < e.tfl for e in printed.values()),
        "TFL is worse than the better SOLO": sum(e.tfl > better[d] for d, e in printed.items()),
    }
    return ", ".join(f"{claim} on {n} of {len(printed)}" for claim, n in counts.items())


LABEL: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8, "color": "white"}


def plot_errors(table: Table, printed: dict[str, Errors], path: Path) -> None:
    """One panel per data set, one bar per method, the paper's figure as a tick."""
    plt = pyplot()
    figure, axes = plt.subplots(1, len(table.plan.data), figsize=(2.2 * len(table.plan.data) + 1.4, 2.6), sharey=True)
    labels = [m for m in table.methods if m not in (SOLO, ALL_IN)] + ["SOLO A", "SOLO B", ALL_IN]
    for axis, data in zip(np.atleast_1d(axes), table.plan.data, strict=True):
        values = [_bar(table, data, label) for label in labels]
        colours = [COLOURS.get(label, COLOURS[SOLO]) for label in labels]
        own = printed.get(data) if table.settings == "paper" and "STAND-IN" not in source(data).remark else None
        marks = [own.simfl, own.tfl, own.solo_a, own.solo_b, own.all_in] if own else [0.0] * len(labels)
        axis.barh(labels, [100 * v for v in values], color=colours)
        if own:
            axis.scatter(marks, labels, marker="|", s=160, color="black", zorder=3)
        for place, value in enumerate(values):  # in the bar: beside it, it would read as the mark's
            axis.annotate(percent(value), (0, place), (4, 0), **LABEL)
        axis.set_title(star(data), fontsize=10)
        axis.set_xlabel("wrong rows, percent", fontsize=8)
        axis.set_xlim(0, 1.1 * max(*(100 * v for v in values), *marks, 1e-9))
        axis.locator_params(axis="x", nbins=3)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(left=False)
        axis.tick_params(axis="x", labelsize=8)
    np.atleast_1d(axes)[0].invert_yaxis()
    marked = (
        "\nblack line: the paper's figure, where the data is the paper's or a sample of it"
        if printed and table.settings == "paper"
        else ""
    )
    figure.suptitle(
        f"Rows that are classified wrongly, two parties, {table.partition}, {table.settings}'s settings{marked}",
        fontsize=10,
    )
    save(figure, path)


def _bar(table: Table, data: str, label: str) -> float:
    if label.startswith("SOLO"):
        return float(table.errors(data, SOLO, party="AB".index(label[-1])).mean())
    return float(table.errors(data, label).mean())


# --- the figures -----------------------------------------------------------------------------------------------------


def over_theta(plan: Plan, thetas: Sequence[float], store: cells.Store, out: Path, command: str) -> None:
    """Error against theta, two parties."""
    tables = {s: {t: Table(plan, s, f"theta {t:g}", 2) for t in thetas} for s in ("paper", "today")}
    run_all([t for own in tables.values() for t in own.values()], store, "error against theta")
    page = plan.page("Test error against theta, two parties", command, "theta.md")
    page.say(
        "Theta of class 0 and 1 - theta of class 1 are with one party, the rest with the other. The paper prints this "
        "as a figure without numbers. Its claims: SimFL works well compared with TFL and SOLO, above all where theta "
        "is high, and varies little between runs."
    )
    for settings, own in tables.items():
        _curves_section(page, own, "theta", settings)
        first = training.METHODS[settings][0]
        gains = {
            t: np.mean([(table.errors(d, SOLO) - table.errors(d, first)).mean() for d in plan.data])
            for t, table in own.items()
        }
        told = ", ".join(f"{100 * g:+.1f} points at theta {t:g}" for t, g in gains.items())
        grows = gains[max(gains)] > gains[min(gains)]
        page.bullets(
            [
                f"Gain of {first} over the better party alone, mean over the data sets: {told}. "
                f"The gain is {'larger' if grows else 'NOT larger'} at the highest theta than at the lowest.",
                _lowest_of(own, first),
            ]
        )
        page.picture(f"theta-{settings}.png", f"error against theta, {settings} settings")
        plot_curves(
            own, f"Test error against theta, two parties, {settings}'s settings", "theta", out / f"theta-{settings}.png"
        )
    page.sources(plan.data)
    page.write(out / "theta.md")
    write_csv(out / "theta.csv", [row for own in tables.values() for table in own.values() for row in table.rows()])


def over_parties(plan: Plan, counts: Sequence[int], store: cells.Store, out: Path, command: str) -> None:
    """Error against the number of parties, both partitions."""
    kinds = [(s, p) for s in ("paper", "today") for p in ("theta 0.8", "balanced")]
    tables = {(s, p): {m: Table(plan, s, p, m) for m in counts} for s, p in kinds}
    run_all([t for own in tables.values() for t in own.values()], store, "error against parties")
    page = plan.page("Test error against the number of parties", command, "parties.md")
    page.say(
        "The paper prints this as figures without numbers. Its claims: SimFL is below the lowest error of SOLO most "
        "of the time, and changes less with the number of parties than TFL. SOLO is a party alone: the best of them, "
        "and their mean."
    )
    for (settings, partition), own in tables.items():
        _curves_section(page, own, "parties", settings, partition)
        first = training.METHODS[settings][0]
        page.bullets([_lowest_of(own, first), _stability(own, first)])
        picture = f"parties-{partition.replace(' ', '-')}-{settings}.png"
        page.picture(picture, f"error against the number of parties, {partition}, {settings} settings")
        plot_curves(
            own,
            f"Test error against the number of parties, {partition}, {settings}'s settings",
            "parties",
            out / picture,
        )
    page.sources(plan.data)
    page.write(out / "parties.md")
    write_csv(out / "parties.csv", [row for own in tables.values() for table in own.values() for row in table.rows()])


def _curves_section(page: Page, own: dict[Any, Table], axis: str, settings: str, partition: str = "") -> None:
    any_table = next(iter(own.values()))
    page.head(HEADS[settings] + (f", {partition}" if partition else ""))
    page.say(about(any_table))
    methods = [m for m in any_table.methods if m not in (SOLO, ALL_IN)] + ["best SOLO", "mean SOLO", ALL_IN]
    page.table(
        [f"data set, {axis}", *methods, "runs"],
        [
            [
                f"{star(data)}, {at:g}",
                *(percent(curve(table, data, m).mean()) for m in methods),
                str(table.plan.runs_of(data, settings)),
            ]
            for data in any_table.plan.data
            for at, table in own.items()
        ],
    )


def curve(table: Table, data: str, method: str) -> np.ndarray:
    """The errors of a method, one per run."""
    if method == "mean SOLO":
        return table.mean_solo(data)
    return table.errors(data, SOLO if method == "best SOLO" else method)


def _lowest_of(own: dict[Any, Table], method: str) -> str:
    places = [(table, data) for table in own.values() for data in table.plan.data]
    below_solo = sum(t.errors(d, method).mean() < t.errors(d, SOLO).mean() for t, d in places)
    below_tfl = sum(t.errors(d, method).mean() < t.errors(d, TFL).mean() for t, d in places)
    distance = {
        d: np.mean([t.errors(d, method).mean() - t.errors(d, SOLO).mean() for t in own.values()])
        for d in next(iter(own.values())).plan.data
    }
    above = [star(d) for d, points in distance.items() if points > 0]
    return (
        f"{method} is below the best SOLO at {below_solo} of {len(places)} points and below TFL at {below_tfl}. "
        f"'Below SOLO most of the time' {'holds' if 2 * below_solo > len(places) else 'does NOT hold'}"
        + (f"; on average it is above on {', '.join(above)}." if above else ", on every data set on average.")
    )


def _stability(own: dict[Any, Table], method: str) -> str:
    data = next(iter(own.values())).plan.data

    def change(which: str) -> dict[str, float]:
        means = {d: [table.errors(d, which).mean() for table in own.values()] for d in data}
        return {d: max(values) - min(values) for d, values in means.items()}

    ours, theirs = change(method), change(TFL)
    steadier = sum(ours[d] < theirs[d] for d in data)
    return (
        f"Between fewest and most parties {method} changes by {100 * np.mean(list(ours.values())):.1f} points on "
        f"average, TFL by {100 * np.mean(list(theirs.values())):.1f}: SimFL is steadier on {steadier} of {len(data)} "
        "data sets."
    )


def plot_curves(own: dict[Any, Table], title: str, across: str, path: Path) -> None:
    """One panel per data set, one line per method; the band is the range over the runs."""
    plt = pyplot()
    any_table = next(iter(own.values()))
    data_sets = any_table.plan.data
    n_columns = min(3, len(data_sets))
    n_rows = -(-len(data_sets) // n_columns)
    figure, axes = plt.subplots(n_rows, n_columns, figsize=(3.4 * n_columns, 2.5 * n_rows + 0.6), squeeze=False)
    methods = [m for m in any_table.methods if m not in (SOLO, ALL_IN)] + ["best SOLO", "mean SOLO", ALL_IN]
    for axis in axes.flat[len(data_sets) :]:
        axis.set_visible(False)
    for axis, data in zip(axes.flat, data_sets, strict=False):
        for method in methods:
            found = [100 * curve(table, data, method) for table in own.values()]
            line = {"color": COLOURS[method], "linestyle": "--" if method == ALL_IN else "-"}
            axis.plot(list(own), [f.mean() for f in found], marker="o", markersize=3, label=method, **line)
            if method in (DEFAULT, PAPER):
                axis.fill_between(
                    list(own), [f.min() for f in found], [f.max() for f in found], color=COLOURS[method], alpha=0.2
                )
        _keep_others_apart(axis, own, data, methods)
        axis.set_title(star(data), fontsize=10)
        axis.set_xticks(list(own))
        axis.set_xlabel(across, fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("test error, percent", fontsize=8)
    figure.legend(
        *axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8, frameon=False
    )
    figure.suptitle(title, fontsize=11)
    save(figure, path)


def _keep_others_apart(axis: Any, own: dict[Any, Table], data: str, methods: Sequence[str]) -> None:
    """Where TFL diverges (whole steps on one party's rows alone), cut it off and say so: the others matter."""
    highest = {m: max(100 * curve(table, data, m).max() for table in own.values()) for m in methods}
    others = max(value for method, value in highest.items() if method != TFL)
    if highest[TFL] > 2 * others:
        axis.set_ylim(0, 1.25 * others)
        axis.annotate(
            f"TFL up to {highest[TFL]:.0f}",
            (0.98, 0.97),
            xycoords="axes fraction",
            ha="right",
            va="top",
            fontsize=8,
            color=COLOURS[TFL],
        )
