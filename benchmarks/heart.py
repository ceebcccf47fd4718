"""Four real hospitals: what training together is worth to each on its own patients, over many splits.

    python -m benchmarks.heart [--splits 20] [--draw]

The demonstration (`simfl demo`) with more splits, so that means and intervals are steadier. All methods stop by the
same rule, on validation rows; the patients who measure have no part in it. Writes docs/results/heart.md and .csv and
docs/heart.png, the picture of the README. --draw writes page and picture again from the CSV and measures nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from benchmarks.pages import COLOURS, RESULTS, Page, read_csv, stamp, state, write_csv
from simfl.report.verdict import verdict
from simfl.report.words import JOINT
from simfl.simulate import experiment
from simfl.simulate.simulation import TEST_SHARE, Measured
from simfl.simulate.splits import interval

PICTURE = RESULTS.parent / "heart.png"
METHODS = {"SOLO": "alone", "TFL": "in turns", "SimFL": "SimFL, similar", JOINT: "SimFL, joint", "ALL-IN": "pooled"}
DRAWN = {"SOLO": "alone", "SimFL": "SimFL", "ALL-IN": "pooled"}
GAINERS = ("SimFL", JOINT, "ALL-IN")
PLACES = {
    "cleveland": "Cleveland",
    "budapest": "Budapest",
    "zurich-basel": "Zurich and Basel",
    "long-beach": "Long Beach",
    "all": "patients of all four",
}
Row = Mapping[str, Any]


# --- measuring -------------------------------------------------------------------------------------------------------


def rows_of(measured: Measured, split: int) -> list[dict[str, Any]]:
    """Log loss of a split by method: on each hospital's own held-out patients, and on those of all four.

    Alone: on its own patients a hospital's own model, on those of all four the mean of the four models.
    """
    found = [{"place": s.rows, "method": s.method, "logloss": s.value} for s in measured.own if s.metric == "logloss"]
    for method in METHODS:
        same = [result for result in measured.results if result.method == method]
        told = {"rounds": fmean(r.rounds for r in same), "bytes": same[0].bytes}
        found.append({"place": "all", "method": method, "logloss": fmean(r.logloss or 0.0 for r in same)} | told)
    return [{"split": split} | row | state() for row in found]


def measure(n_splits: int, n_trees: int) -> list[dict[str, Any]]:
    """All splits, one after the other; says the verdict."""
    params = {"n_trees": n_trees, "random_state": 0, "n_jobs": 1}
    hospitals = experiment.heart(params, n_splits)
    splits = [hospitals.measured(number) for number in range(n_splits)]
    for sentence in verdict(Measured.over(splits).gains, "logloss"):
        Console(width=120).print(sentence, highlight=False)
    return [row for number, measured in enumerate(splits) for row in rows_of(measured, number)]


# --- the page --------------------------------------------------------------------------------------------------------


def losses(rows: Sequence[Row], place: str, method: str) -> list[float]:
    """One per split."""
    return [float(row["logloss"]) for row in rows if (row["place"], row["method"]) == (place, method)]


def gains(rows: Sequence[Row], place: str, method: str, than: str = "SOLO") -> tuple[float, float, float]:
    """By how much a method's log loss is lower than another's: the mean over the splits, and its 95 % interval."""
    each = [a - b for a, b in zip(losses(rows, place, than), losses(rows, place, method), strict=True)]
    return fmean(each), *interval(each, TEST_SHARE)


def page(rows: Sequence[Row]) -> Page:
    """Everything that was measured."""
    made = Page("Four hospitals", "python -m benchmarks.heart", measured=stamp(rows))
    n_splits = len({row["split"] for row in rows})
    made.say(
        "Heart disease in Cleveland, Budapest, Zurich and Basel, and Long Beach: 920 patients, 13 columns (UCI, comes "
        f"with the package). Log loss on held-out patients (less is better), the mean of {n_splits} splits; in every "
        "split each hospital holds out a quarter of its patients. All methods have the package's defaults and stop by "
        "the same rule, on validation rows of the training patients (at most 300 trees). On a hospital's own patients, "
        "what was trained together or pooled is adjusted with one number that is computed from its own rows "
        "(`model.adjusted`). On patients of all four, *alone* is the mean of the four models, and nothing is adjusted."
    )
    made.picture("../heart.png", "Log loss at four hospitals and on patients of all four: alone, with SimFL, pooled")
    made.head("Log loss")
    lines = [[title, *(f"{fmean(losses(rows, place, m)):.3f}" for m in METHODS)] for place, title in PLACES.items()]
    made.table(["patients of", *METHODS.values()], lines)
    made.head("Gain over being alone")
    made.say(
        "By how much the log loss is lower than alone, and the 95 % interval over the splits. Splits share patients; "
        "the interval is widened for that (Nadeau and Bengio). An interval that lies above zero: it is worth it."
    )
    heads = [text for m in GAINERS for text in (METHODS[m], "from", "to")]
    made.table(["patients of", *heads], [[title, *_gains(rows, place, GAINERS)] for place, title in PLACES.items()])
    made.head("Similar and joint")
    made.say("By how much the log loss of the similar recipe is lower than that of the joint one, with its interval:")
    lines = [[title, *_signed(gains(rows, place, "SimFL", JOINT))] for place, title in PLACES.items()]
    made.table(["patients of", "difference", "from", "to"], lines)
    made.head("Trees, and what was sent")
    told = {m: [row for row in rows if row["method"] == m and row["place"] == "all"] for m in METHODS}
    made.say("Per training, the mean of the splits. Pooling sends the rows themselves.")
    lines = [[METHODS[m], *(f"{value:.{d}f}" for value, d in _costs(own))] for m, own in told.items()]
    made.table(["method", "trees", "MB"], lines)
    return made


def _gains(rows: Sequence[Row], place: str, methods: Sequence[str]) -> list[str]:
    return [text for method in methods for text in _signed(gains(rows, place, method))]


def _signed(values: Sequence[float]) -> list[str]:
    return [f"{value:+.3f}" for value in values]


def _costs(rows: Sequence[Row]) -> list[tuple[float, int]]:
    """Trees and megabytes, each with its decimals."""
    return [(fmean(row["rounds"] for row in rows), 0), (fmean(row["bytes"] for row in rows) / 1e6, 2)]


def plot(rows: Sequence[Row], path: Path) -> None:
    """Three bars for each hospital, and for all patients."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
    middles = [number + 0.3 * (place == "all") for number, place in enumerate(PLACES)]
    for at, (method, name) in enumerate(DRAWN.items()):
        x = [middle + (at - 1) * 0.27 for middle in middles]
        values = [fmean(losses(rows, place, method)) for place in PLACES]
        axes.bar(x, values, width=0.25, color=COLOURS[method], label=name)
        for left, value in zip(x, values, strict=True):
            axes.text(left, value + 0.008, _short(value), ha="center", fontsize=9)
    axes.set_xticks(middles, list(PLACES.values()))
    axes.axvline(len(PLACES) - 1.35, color="#d8dde5", linewidth=1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylabel("log loss (less is better)", fontsize=9)
    axes.tick_params(labelsize=9)
    axes.tick_params(axis="x", bottom=False)
    axes.legend(frameon=False, ncols=3, loc="upper left", fontsize=9)
    n_splits = len({row["split"] for row in rows})
    axes.set_title(
        f"Heart disease: each hospital on its own patients, and all four together (mean of {n_splits} splits)",
        fontsize=10,
        loc="left",
    )
    figure.savefig(path, dpi=150, metadata={"Description": in_words(rows)})


def in_words(rows: Sequence[Row]) -> str:
    """The figures of the picture, for those who cannot see it."""
    each = {title: [fmean(losses(rows, place, m)) for m in DRAWN] for place, title in PLACES.items()}
    told = "; ".join(f"{title} {' '.join(_short(value) for value in values)}" for title, values in each.items())
    return f"Log loss {', '.join(DRAWN.values())}: {told}"


def _short(value: float) -> str:
    return f"{value:.2f}".lstrip("0")


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--trees", type=int, default=300, help="at most")
    parser.add_argument("--draw", action="store_true", help="measure nothing: page and picture from the CSV")
    given = parser.parse_args()
    if not given.draw:
        write_csv(RESULTS / "heart.csv", measure(given.splits, given.trees))
    rows = read_csv(RESULTS / "heart.csv")
    plot(rows, PICTURE)
    page(rows).write(RESULTS / "heart.md")


if __name__ == "__main__":
    main()
