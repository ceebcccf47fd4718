"""What each role gets in each mode, measured: the audit's attacks on three kinds of data.

    python -m benchmarks.audit [--data "breast cancer" a9a bank] [--seeds 3] [--json OUT] [--out MD] [--plot PNG]
    python -m benchmarks.audit --from OUT [--out MD] [--plot PNG]      # shows an earlier run again

Two parties of equal size. Each seed draws another split and other hash functions. Intervals span those of all seeds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from sklearn.datasets import load_breast_cancer

from benchmarks.data import folder, load
from benchmarks.pages import Page
from simfl import partition
from simfl.audit.audit import audit
from simfl.audit.findings import Finding, points
from simfl.audit.views import RowSumsView
from simfl.data.files import read
from simfl.preprocessing.lsh import HashFamily, hash_rows
from simfl.preprocessing.scaling import Scale
from simfl.preprocessing.similarity import most_similar

ROLES = ("hub", "hub with a sample", "builder", "other party", "outsider")
PAPER = {"recipe": "paper", "bucket_width": 4.0}
MODES: dict[str, dict[str, Any]] = {
    "shared, paper's recipe": {"matching": "shared"} | PAPER,
    "shared, default recipe": {"matching": "shared"},
    "blind, linked ids, masked": {"matching": "blind", "ids": "linked", "masked": True},
    "blind, fresh ids, masked": {"matching": "blind", "ids": "fresh", "masked": True},
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
}  # for the paper's recipe: r = 4 suits it


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
    return data.expanded, data.y, {"original_features": data.n_features}


NAMES = tuple(COLUMN_SCALE)
CHECKED = {"breast cancer": [("blind", "rows_from_pointers")], "a9a": [("shared", "labels_from_sums")]}


def skewed_sums(X: Any, y: np.ndarray, seed: int) -> list[dict[str, float]]:
    """The first sums between two skewed parties (theta = 80 %) with the paper's recipe, both ways."""
    parts = partition.unbalanced(y, 2, theta=0.8, seed=seed)
    family = HashFamily.draw(seed, 40, X.shape[1], 4.0)
    codes = [hash_rows(X[part], family, Scale.none(X.shape[1])) for part in parts]
    found = []
    for builder, other in ((0, 1), (1, 0)):
        similar = most_similar(codes[other], codes[builder], k=1, seed=seed)[0][:, 0]
        labels, n_rows = y[parts[other]].astype(np.float32), len(parts[builder])
        sums = RowSumsView.of(similar, labels, n_rows, "binary:logistic", np.array([y.mean()]))
        alone, pure = (sums.members() == 1)[similar].mean(), sums.is_pure()[similar].mean()
        found.append({"alone": float(alone), "pure": float(pure)})
    return found


def run(names: list[str], seeds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """All audits, and the figures that earlier measurements are held against."""
    results: list[dict[str, Any]] = []
    checks: list[dict[str, Any]] = []
    for name in names:
        X, y, more = table(name)
        for seed in range(seeds):
            for mode, options in MODES.items():
                say(f"{name}, {mode}, seed {seed}")
                scale = {"scale": COLUMN_SCALE[name]} if "recipe" in options else {}
                found = audit(X, y, name=name, advise=False, random_state=seed, **options, **scale, **more)
                findings = msgspec.to_builtins(found.findings)
                results.append({"data": name, "mode": mode, "seed": seed, "findings": findings})
            for matching, attack in CHECKED.get(name, ()):
                for k in (1, 20):
                    say(f"{name}, {k} similar rows, seed {seed}")
                    common = {"n_neighbors": k, "advise": False, "random_state": seed, "attacks": [attack]} | more
                    findings = msgspec.to_builtins(audit(X, y, matching=matching, **common).findings)
                    checks.append({"data": name, "k": k, "seed": seed, "findings": findings})
    skewed = [pair for seed in range(seeds) for pair in skewed_sums(*load("a9a"), seed)] if "a9a" in names else []
    return {"results": results, "checks": checks, "skewed": skewed, "seeds": seeds}


# --- the page --------------------------------------------------------------------------------------------------------


def select(entries: list[dict[str, Any]], attack: str, role: str | None = None, **where: Any) -> list[Finding]:
    found = []
    for entry in entries:
        if all(entry[key] == value for key, value in where.items()):
            findings = msgspec.convert(entry["findings"], list[Finding])
            found += [f for f in findings if f.attack == attack and (role is None or role in f.roles)]
    return found


def cell(found: list[Finding]) -> str:
    if not found:
        return ""
    success, guess = np.mean([f.success for f in found]), np.mean([f.guess for f in found])
    low, high = min(f.excess_interval[0] for f in found), max(f.excess_interval[1] for f in found)
    text = f"{success:.1%} for {guess:.1%} ({points(low)} to {points(high)})"
    return f"**{text}**" if low > 0.05 else text


def by_data(entries: list[dict[str, Any]], data: str) -> list[str]:
    lines = [f"### {data}", "", "| role | attack | " + " | ".join(MODES) + " |", "|---|---|" + "---|" * len(MODES)]
    for attack, short in SHORT.items():
        roles: dict[tuple[str, ...], list[str]] = {}  # roles with the same figures share a line
        for role in ROLES:
            cells = tuple(cell(select(entries, attack, role, data=data, mode=mode)) or "-" for mode in MODES)
            roles.setdefault(cells, []).append(role)
        for cells, who in roles.items():
            if set(cells) != {"-"}:
                lines.append(f"| {', '.join(who)} | {short} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def spread(values: list[float], percent: bool = True) -> str:
    low, high = min(values), max(values)
    if percent:
        return f"{low:.0%}" if round(low, 2) == round(high, 2) else f"{100 * low:.0f} to {100 * high:.0f} %"
    return f"{low:.2f}" if round(low, 2) == round(high, 2) else f"{low:.2f} to {high:.2f}"


def reproduced(found: dict[str, Any]) -> list[str]:
    """The prototype's figures beside today's."""
    results, checks = found["results"], found["checks"]
    names = {entry["data"] for entry in results}
    lines = ["| figure | prototype | here |", "|---|---|---|"]

    def add(text: str, before: str, now: str) -> None:
        lines.append(f"| {text} | {before} | {now} |")

    if "breast cancer" in names:
        codes = select(results, "rows_from_codes", data="breast cancer", mode="shared, paper's recipe")
        add("breast cancer, L = 29, r = 4: values within half a deviation", "96 %", spread([f.success for f in codes]))
        add("... guessing", "40 %", spread([f.guess for f in codes]))
        for k, before in ((20, "67 to 70 %, R2 .46 to .52"), (1, "56 %, R2 .15")):
            ids = select(checks, "rows_from_pointers", data="breast cancer", k=k)
            now = f"{spread([f.success for f in ids])}, R2 {spread([f.details['r2'] for f in ids], percent=False)}"
            add(f"... from neighbour ids that last, {k} similar rows", before, now)
    if "a9a" in names:
        members = select(results, "members_from_codes", data="a9a", mode="shared, paper's recipe")
        one = select(results, "attribute_from_codes", data="a9a", mode="shared, paper's recipe")
        sums = [f for f in select(checks, "labels_from_sums", data="a9a") if "builder" in f.roles]
        sums += select(results, "labels_from_sums", "builder", data="a9a")
        add(
            "a9a, L = 40: different codes per different row",
            "1",
            spread([f.details["codes_per_row"] for f in members], False),
        )
        add("... one unknown attribute", "with certainty", spread([f.success for f in one]))
        for key, text, before in (
            ("alone", "alone in their sum", "13 to 43 %"),
            ("pure", "in sums of one label", "78 to 85 %"),
        ):
            add(
                f"... rows {text}, skewed parties (theta = 80 %)",
                before,
                spread([pair[key] for pair in found["skewed"]]),
            )
            add("... the same, equal parties, 1 to 20 similar rows", "", spread([f.details[key] for f in sums]))
    return lines


def page(found: dict[str, Any], picture: str | None) -> str:
    made = Page("What each role gets, measured", "python -m benchmarks.audit")
    made.say(
        f"{found['seeds']} seeds, two parties of equal size, the attacks of `simfl audit`. A cell reads: success *for* "
        "what the same attacker gets without the message; in brackets the excess in percentage points (the widest span "
        "of the 95 % intervals of all seeds); a dash: sees no such thing. Bold: surely more than five points above "
        "guessing."
    )
    made.say(
        "Rows: attributes right (numbers: within half a standard deviation). Membership: right answers for as many "
        "members as strangers. Labels: labels right. Every attacker has the other half of the rows as background, also "
        "the outsider; only the *hub* with its tokens knows no more than means and deviations. The blind modes are "
        "attacked in what they would send: see [privacy](../privacy.md)."
    )
    if picture:
        made.picture(picture, "Excess over guessing")
    for name in dict.fromkeys(entry["data"] for entry in found["results"]):
        made.lines += by_data(found["results"], name)
    made.head("Beside the prototype")
    made.lines += reproduced(found)
    return made.text


def plot(found: dict[str, Any], path: Path) -> None:
    """Per kind of data: the excess over guessing of every attack in every mode."""
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(entry["data"] for entry in found["results"]))
    colours = ["#cf222e", "#e16f24", "#0969da", "#1a7f37"]
    attacks = [a for a in SHORT if a != "values_from_trees"]
    figure, panels = plt.subplots(1, len(names), figsize=(11, 4.6), layout="constrained", sharey=True, squeeze=False)
    for panel, name in zip(panels[0], names, strict=True):
        for place, (mode, colour) in enumerate(zip(MODES, colours, strict=True)):
            bars = []
            for attack in attacks:
                role = "hub with a sample" if attack == "rows_from_tokens" else None
                each = select(found["results"], attack, role, data=name, mode=mode)
                bars.append(100 * max(0.0, float(np.mean([f.excess for f in each]))) if each else 0.0)
            panel.barh(np.arange(len(attacks)) + (place - 1.5) * 0.2, bars, 0.19, color=colour, label=mode)
        panel.set_title(name, fontsize=10)
        panel.set_yticks(range(len(attacks)), [SHORT[a] for a in attacks], fontsize=8)
        panel.set_xlabel("points above guessing", fontsize=8)
        panel.tick_params(axis="x", labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].invert_yaxis()
    figure.legend(
        *panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False
    )
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write all findings")
    parser.add_argument("--from", dest="earlier", type=Path, help="show the results of an earlier run")
    parser.add_argument("--out", type=Path, help="write the page (Markdown)")
    parser.add_argument("--plot", type=Path, help="draw the excess of every attack")
    given = parser.parse_args()
    console = Console(stderr=True)
    found = json.loads(given.earlier.read_text()) if given.earlier else run(given.data, given.seeds, console.print)
    if given.json:
        given.json.write_text(json.dumps(found))
    if given.plot:
        plot(found, given.plot)
    text = page(found, given.plot.name if given.plot else None)
    if given.out:
        given.out.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
