"""Four real hospitals: what training together is worth to each on its own patients, over many splits.

The demonstration (`simfl demo`) with more splits, so that means and intervals are steadier, and as a picture. All
methods stop by the same rule, on validation rows; the patients who measure have no part in it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.pages import COLOURS
from simfl.report.verdict import main_gains, verdict
from simfl.simulate import experiment, tables
from simfl.simulate.simulation import Measured

DRAWN = {"SOLO": "alone", "SimFL": "SimFL", "ALL-IN": "pooled"}
TITLES = {
    "cleveland": "Cleveland",
    "budapest": "Budapest",
    "zurich-basel": "Zurich and Basel",
    "long-beach": "Long Beach",
}


def heights(measured: Measured) -> dict[str, dict[str, float]]:
    """Log loss by hospital and method; the last is of patients of all four (alone: the mean of the four models)."""
    found = {TITLES[party]: {s.method: s.value for s in measured.own if s.rows == party} for party in TITLES}
    on_all = {m: [r.logloss or 0.0 for r in measured.results if r.method == m] for m in DRAWN}
    return found | {"patients of all four": {m: sum(v) / len(v) for m, v in on_all.items()}}


def plot(measured: Measured, path: Path) -> None:
    import matplotlib.pyplot as plt

    groups = heights(measured)
    figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
    for place, (method, name) in enumerate(DRAWN.items()):
        x = [group + (place - 1) * 0.27 + (group == len(TITLES)) * 0.3 for group in range(len(groups))]
        values = [group[method] for group in groups.values()]
        axes.bar(x, values, width=0.25, color=COLOURS[method], label=name)
        for left, value in zip(x, values, strict=True):
            axes.text(left, value + 0.008, f"{value:.2f}".lstrip("0"), ha="center", fontsize=9)
    axes.set_xticks([g + (g == len(TITLES)) * 0.3 for g in range(len(groups))], list(groups))
    axes.axvline(len(TITLES) - 0.35, color="#d8dde5", linewidth=1)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_yticks([])
    axes.tick_params(bottom=False)
    axes.legend(frameon=False, ncols=3, loc="upper left", fontsize=9)
    axes.set_title(
        "Heart disease at four hospitals: log loss on each one's own patients (less is better)", fontsize=10, loc="left"
    )
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--trees", type=int, default=300, help="at most")
    parser.add_argument("--json", type=Path, help="write everything that was measured")
    parser.add_argument("--plot", type=Path, help="draw the log loss")
    given = parser.parse_args()
    params = {"n_trees": given.trees, "random_state": 0, "n_jobs": 1}
    measured = experiment.heart(params, given.splits).run().measured
    console = Console(width=120)
    for sentence in verdict(measured.gains, "logloss"):
        console.print(sentence, highlight=False)
    own, _ = main_gains(measured.gains, "logloss")
    console.print(tables.own_table(measured.own, own, f"Own held-out patients, log loss, {given.splits} splits"))
    console.print(tables.table(measured.results, "Held-out patients of all four"))
    if given.json:
        given.json.write_text(json.dumps(msgspec.to_builtins(measured), indent=1))
    if given.plot:
        plot(measured, given.plot)


if __name__ == "__main__":
    main()
