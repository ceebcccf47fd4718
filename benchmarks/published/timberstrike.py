"""TimberStrike: rows reconstructed from the trees, from the figures of `benchmarks.attacks`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import attacks_page
from benchmarks.pages import Page, stamp
from benchmarks.published.figures import TIMBERSTRIKE

LABELS = {"joint": "SimFL, joint", "similar": "SimFL, similar", "paper": "SimFL, paper's recipe"}
LABELS |= {f"joint, epsilon {epsilon}": f"SimFL, joint, epsilon {epsilon}" for epsilon in (10, 1)}
WITH_SUMS = "values and sum_hessian"
WHY = (
    "Epsilon bounds what the model says about a single row, not how well all rows together can be guessed; at epsilon "
    "10 that bound is loose."
)
Entry = Mapping[str, Any]


def of_outsiders(entries: Sequence[Entry]) -> list[Entry]:
    """Attacks on whole models by whoever has the model and knows the columns' ranges."""
    return [e for e in entries if attacks_page.attacker(dict(e))[0] == "ranges" and "trees" not in e]


def name(entry: Entry) -> str:
    """The model that is attacked; of XGBoost also what is given out of it."""
    given_out = "with node statistics" if entry["sees"] == WITH_SUMS else "leaf values alone"
    return LABELS.get(entry["model"], f"{entry['model']}, {given_out}")


def points(entries: Sequence[Entry], model: str, data: str) -> float | None:
    """What an outsider gets above guessing, in percentage points."""
    for entry in of_outsiders(entries):
        if (name(entry), entry["data"]) == (model, data):
            return 100 * float(entry["success"] - entry["guess"])
    return None


def say_verdict(made: Page, entries: Sequence[Entry]) -> None:
    """One line per model: what an outsider gets above guessing."""
    made.say(
        "**TimberStrike**, rows reconstructed from the trees. Percentage points above guessing, by whoever has the "
        "model and knows the range of each column (less is better). The publication gives rates without guessing, "
        "which is high by this measure, so that its figures stand only [below](#timberstrike-rows-reconstructed-from-"
        "the-trees). A dash: not attacked."
    )
    models = list(dict.fromkeys(name(entry) for entry in of_outsiders(entries)))
    lines = [[model, *(_signed(points(entries, model, data)) for data in TIMBERSTRIKE)] for model in models]
    made.table(["attack on", *TIMBERSTRIKE], lines)


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f}"


def say(made: Page, entries: Sequence[Entry]) -> None:
    """Reconstruction beside the published rates."""
    made.head("TimberStrike: rows reconstructed from the trees")
    made.say(
        "Source: TimberStrike, arXiv 2506.07605, and its repository; percent of values that agree after the best "
        "pairing, on its own clients. Ours, with our own attack, which first has to reach the published rates on "
        f"XGBoost: `python -m benchmarks.attacks`, {stamp(entries)}. [All figures, and where the attack "
        "differs](attacks.md)."
    )
    for data, published in TIMBERSTRIKE.items():
        lines = [[f"*{who}*", *"--", f"{low:.1f}", f"{high:.1f}", *"--"] for who, (low, high) in published.items()]
        lines += [_line(entry) for entry in entries if entry["data"] == data]
        made.say(f"**{data}**")
        heads = ["attack on", "attacker knows, and sees", "rows", "published, from", "to", "ours", "guessing"]
        made.table(heads, lines)
    made.say(
        "Published rates: all columns, the depths 3 to 8; diabetes and stroke with three clients unless five are "
        "named. The range of the publication's abstract, 73.1 to 95.6 on stroke, is from the lowest of all columns to "
        "the highest of the most important columns alone; ours are of all columns. *Rows*: those that are to be found. "
        "Bagging is attacked at one client, as in the publication. Of SimFL's models, whoever knows the ranges looks "
        "for the rows of all parties, a party for those of the others; of pooled XGBoost both look for all rows. The "
        "more rows there are, the better guessing fares by this measure."
    )
    made.say(f"**Verdict**: {verdict(entries)}")


def _line(entry: Entry) -> list[str]:
    knows, sees = attacks_page.attacker(dict(entry))
    rates = (f"{100 * entry[rate]:.1f}" for rate in ("success", "guess"))
    return [LABELS.get(entry["model"], entry["model"]), f"{knows}; {sees}", f"{entry['rows']:,}", *"--", *rates]


def verdict(entries: Sequence[Entry]) -> str:
    """In sentences; the figures are those of the tables."""
    xgboost = {name(e): e["sees"] for e in of_outsiders(entries) if e["model"].startswith("XGBoost")}
    kinds = {"SimFL's models without epsilon": [LABELS[recipe] for recipe in ("paper", "similar", "joint")]}
    kinds["XGBoost with node statistics"] = [model for model, sees in xgboost.items() if sees == WITH_SUMS]
    kinds["XGBoost's leaf values alone"] = [model for model, sees in xgboost.items() if sees != WITH_SUMS]
    told = [
        f"on {data} " + ", ".join(f"{_span(entries, models, data)} from {kind}" for kind, models in kinds.items())
        for data in TIMBERSTRIKE
    ]
    return (
        "a rate says something only beside guessing, which the publication does not give. On diabetes our attack "
        "reaches the published rates of bagging and of pooled statistics on XGBoost with node statistics, on stroke "
        "those of pooled statistics (of two clients), and it stays a little below those of bagging. Points above "
        f"guessing, by whoever has the model and knows the columns' ranges: {'; '.join(told)}. So a model without "
        "node statistics gives away less than the same one with them, "
        f"and not nothing; SimFL's are no exception.{_with_epsilon(entries)}"
    )


def _with_epsilon(entries: Sequence[Entry]) -> str:
    """Whether a guarantee that is loose lets an outsider have less."""
    both = [[points(entries, LABELS[model], data) for model in ("joint", "joint, epsilon 10")] for data in TIMBERSTRIKE]
    known = [(plain, private) for plain, private in both if plain is not None and private is not None]
    if not known or not all(private > plain for plain, private in known):
        return ""
    told = " and ".join(f"{private:.1f} after {plain:.1f}" for plain, private in known)
    return f" **With epsilon 10 it gets more than from the same recipe without: {told}.** {_by_leaves(entries)}{WHY}"


def _by_leaves(entries: Sequence[Entry]) -> str:
    """What is left of the difference where both have as many leaves."""
    told = []
    for e in entries:
        if (e["model"], "trees" in e) != ("joint, epsilon 10", True):
            continue
        whole = next(o["leaves"] for o in of_outsiders(entries) if (o["model"], o["data"]) == (e["model"], e["data"]))
        plain = points(entries, LABELS["joint"], e["data"])
        told.append(
            f"on {e['data']} they have {whole:,} leaves, and each is an equation; by {e['trees']} of them, with "
            f"{e['leaves']:,} leaves as without epsilon, the attack gets {100 * (e['success'] - e['guess']):.1f} after "
            f"{plain:.1f}"
        )
    return f"The rule for epsilon grows more trees: {'; '.join(told)}. " if told else ""


def _span(entries: Sequence[Entry], models: Sequence[str], data: str) -> str:
    """The least and the most of some models, on one table."""
    found = [value for model in models if (value := points(entries, model, data)) is not None]
    return (
        " to ".join(dict.fromkeys(f"{value:.1f}" for value in (min(found), max(found)))) if found else "nothing known"
    )
