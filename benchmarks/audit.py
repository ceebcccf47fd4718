"""What each role gets in each mode, measured: the audit's attacks on three kinds of data.

    python -m benchmarks.audit [--data "breast cancer" a9a bank] [--seeds 3] [--out FOLDER]
    python -m benchmarks.audit --draw      # page and picture again from audit.csv

Two parties of equal size. Each seed draws another split and other hash functions. Intervals span those of all seeds.
Writes audit.md, audit.csv and audit.png to docs/results/, or to the folder that is given.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from sklearn.datasets import load_breast_cancer

from benchmarks import fixed
from benchmarks.audited import Row, rows_of, say_all, say_excess, say_verdict
from benchmarks.data import folder, load
from benchmarks.pages import COLOURS, RESULTS, Page, measured_of, read_csv, write_csv
from simfl.audit.audit import audit
from simfl.data.files import read

PAPER = {"recipe": "paper", "bucket_width": 4.0}
MODES: dict[str, dict[str, Any]] = {
    "shared, paper's recipe": {"matching": "shared"} | PAPER,
    "shared, similar recipe": {"matching": "shared"},
    "blind, masked": {"matching": "blind", "masked": True},
}
SHORT = {
    "rows_from_codes": "rows, hash values",
    "members_from_codes": "membership, hash values",
    "attribute_from_codes": "one attribute, hash values",
    "rows_from_leaves": "rows, leaves",
    "rows_from_tokens": "rows, tokens",
    "rows_from_pointers": "rows, neighbour ids",
    "labels_from_sums": "labels, sums",
    "labels_of_known_people": "labels of known people, sums",
    "rows_from_trees": "rows, first tree",
    "values_from_trees": "exact values, thresholds",
}
COLUMN_SCALE = {
    "breast cancer": "standard",
    "a9a": "none",
    "bank": "standard",
}  # for the paper's recipe, which has none: r = 4 suits it


def table(name: str) -> tuple[Any, np.ndarray, dict[str, Any]]:
    """Rows, labels, and the audit's parameters for them."""
    if name == "breast cancer":
        return *load_breast_cancer(return_X_y=True), {}
    if name == "a9a":
        return *load("a9a"), {}
    path = folder() / "bank-full.csv"
    if not path.exists():
        raise SystemExit(f"{path.name} is not at {folder()}: set SIMFL_DATA to the folder that holds it.")
    data = read(path, "y")
    return data.X, data.y, {}


NAMES = tuple(COLUMN_SCALE)
LOOKS: dict[str, dict[str, Any]] = {  # the colour of the recipe; of the similar one two kinds
    "shared, paper's recipe": {"color": COLOURS["paper"]},
    "shared, similar recipe": {"color": "white", "edgecolor": COLOURS["SimFL"], "hatch": "/////", "linewidth": 0.8},
    "blind, masked": {"color": COLOURS["SimFL"]},
}


def run(names: Sequence[str], seeds: int, say: Callable[[str], None]) -> list[Row]:
    """All audits, as rows."""
    results: list[dict[str, Any]] = []
    for name in names:
        X, y, more = table(name)
        for seed in range(seeds):
            for mode, options in MODES.items():
                say(f"{name}, {mode}, seed {seed}")
                scale = {"scale": COLUMN_SCALE[name]} if "recipe" in options else {}
                with fixed.changed(options | scale) as params:
                    found = audit(X, y, name=name, advise=False, random_state=seed, **params, **more)
                results.append({"data": name, "mode": mode, "findings": msgspec.to_builtins(found.findings)})
    return rows_of(results, "mode", SHORT)


# --- the page --------------------------------------------------------------------------------------------------------


def page(rows: Sequence[Row], seeds: int, measured: str | None = None) -> Page:
    made = Page("What each role gets, measured", "python -m benchmarks.audit", measured=measured)
    say_verdict(made, rows, list(MODES))
    made.say(
        f"Two parties of equal size, the attacks of `simfl audit`, mean of {seeds} seeds. *Excess*: percentage points "
        "above what the same attacker gets without the message. Bold: surely more than five points (the widest span of "
        "the 95 % intervals of all seeds). A dash: sees no such thing. For the paper's recipe the columns of breast "
        "cancer and bank were put on a common scale first: its r = 4 is meant for that."
    )
    made.picture("audit.png", "Excess over guessing of every attack, in every mode, on three tables")
    names = list(dict.fromkeys(row["data"] for row in rows))
    for name in names:
        made.head(f"Excess on {name}")
        say_excess(made, [row for row in rows if row["data"] == name], list(MODES))
    made.head("What is counted")
    made.say(
        "Rows: attributes right (numbers: within half a standard deviation). Membership: right answers for as many "
        "members as strangers. Labels: labels right. Every attacker has the other half of the rows as background, also "
        "the outsider; only the *hub* with its tokens knows no more than means and deviations. The blind mode is "
        "attacked in what it would send: see [privacy](../privacy.md)."
    )
    for name in names:
        made.head(f"All figures: {name}")
        say_all(made, [row for row in rows if row["data"] == name])
    return made


def plot(rows: Sequence[Row], path: Path) -> None:
    """Per kind of data: the excess over guessing of every attack in every mode."""
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row["data"] for row in rows))
    attacks = [a for a in SHORT.values() if a != SHORT["values_from_trees"]]
    excess = {(r["data"], r["case"], r["attack"]): r["excess"] for r in rows}  # of the last role: a hub with a sample
    figure, panels = plt.subplots(
        1, len(names), figsize=(11, 4.8), layout="constrained", sharex=True, sharey=True, squeeze=False
    )
    for panel, name in zip(panels[0], names, strict=True):
        for place, mode in enumerate(MODES):
            bars = [100 * max(0.0, excess.get((name, mode, attack), 0.0)) for attack in attacks]
            panel.barh(np.arange(len(attacks)) + (place - 1) * 0.26, bars, 0.22, label=mode, **LOOKS[mode])
        panel.set_title(name, fontsize=10)
        panel.set_yticks(range(len(attacks)), attacks, fontsize=9)
        panel.set_xlabel("percentage points above guessing", fontsize=9)
        panel.tick_params(axis="x", labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].invert_yaxis()
    handles = panels[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    figure.suptitle("How much better than guessing every attack is (no bar: no better, or sees no such thing)")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder for page, CSV and picture")
    parser.add_argument("--draw", action="store_true", help="run nothing: page and picture again from audit.csv")
    given = parser.parse_args()
    kept, measured = given.out / "audit.csv", measured_of(given.out / "audit.md") if given.draw else None
    rows = read_csv(kept) if given.draw else run(given.data, given.seeds, Console(stderr=True).print)
    if not given.draw:
        write_csv(kept, rows)
    plot(rows, given.out / "audit.png")
    page(rows, given.seeds, measured).write(given.out / "audit.md")


if __name__ == "__main__":
    main()
