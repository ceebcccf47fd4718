"""What a guarantee costs: log loss and AUC of private trainings by epsilon, with SOLO and ALL-IN beside them.

    python -m benchmarks.private [--data bank ...] [--quick]

Four parties, recipe "joint" with epsilon, delta 1e-5, three seeds. All settings come from the rule
(`simfl/joint/private_rule.py`), all declarations from `benchmarks/declared.py`: nothing is chosen here. SOLO and ALL-IN
have no noise; each finds its number of trees on a fifth of its training rows and then trains on all of them.

Writes docs/results/private.md, .json and .png (--quick: below runs/quick). An interrupted command continues; --data
keeps what the page has of the other tables.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

import simfl
from benchmarks import cells
from benchmarks.declared import STUDIES, Divided, divided, origin
from benchmarks.pages import COLOURS, QUICK_RESULTS, RESULTS, Page, stamp, state
from simfl import baselines

N_PARTIES, DELTA = 4, 1e-5
EPSILONS = (0.1, 0.3, 0.5, 1.0, 3.0, 10.0)
TRUSTED = {N_PARTIES - 1: "no party trusts another", 0: "the parties trust each other, not the hub"}
PLAIN: dict[str, Any] = {"max_depth": 6, "learning_rate": 0.1, "n_trees": 300}  # at most
PLAIN_METHODS = ("ALL-IN", "SOLO")
LEAST_LOSS = {("ijcnn1", 10.0): 0.095, ("ijcnn1", 1.0): 0.145, ("SUSY", 10.0): 0.460, ("SUSY", 1.0): 0.480}
AUC_WITHIN = {"bank": 0.03, "default_credit": 0.03}  # of ALL-IN, at epsilon 1
TITLES = {"logloss": "Log loss", "auc": "AUC"}
Entry = dict[str, Any]


# --- measuring -------------------------------------------------------------------------------------------------------


def wanted(names: Sequence[str], seeds: int, epsilons: Mapping[int, Sequence[float]]) -> list[cells.Cell]:
    """All measurements: first those in which nobody is trusted."""
    found: list[cells.Cell] = []
    for method, name, seed in product(PLAIN_METHODS, names, range(seeds)):
        found.append({"data": name, "seed": seed, "method": method})
    for colluding, several in epsilons.items():
        for name, seed, epsilon in product(names, range(seeds), several):
            found.append({"data": name, "seed": seed, "method": "joint", "epsilon": epsilon, "colluding": colluding})
    return [cell | {"declared": STUDIES[cell["data"]].digest} for cell in found]


def measured(cell: cells.Cell) -> cells.Result:
    """Train and score on the test rows."""
    rows, begun = divided(cell["data"], cell["seed"]), time.perf_counter()
    models = (private if cell["method"] == "joint" else plain)(cell, rows)
    found = {name: statistics.fmean(each) for name, each in scores(models, rows).items()}
    return found | {"seconds": round(time.perf_counter() - begun, 1)} | state()


def members(cell: cells.Cell, rows: Divided, n_parties: int = N_PARTIES) -> list[simfl.Party]:
    """The parties: rows are dealt out at random."""
    schema = STUDIES[cell["data"]].schema
    parts = np.array_split(np.random.default_rng(cell["seed"]).permutation(len(rows.y)), n_parties)
    return [simfl.Party(f"party {i}", rows.X.iloc[part], rows.y[part], schema=schema) for i, part in enumerate(parts)]


def plain(cell: cells.Cell, rows: Divided) -> list[simfl.Model]:
    """Each party alone, or one that has all rows, without noise."""
    parties = members(cell, rows, N_PARTIES if cell["method"] == "SOLO" else 1)
    settings = PLAIN | {"random_state": cell["seed"], "n_jobs": cells.threads()}
    splits, classes = baselines.check(parties, settings | {"validation_fraction": 0.0})
    return [baselines.solo_stopped(own, name, classes, settings) for name, own in splits.items()]


def private(cell: cells.Cell, rows: Divided) -> list[simfl.Model]:
    """All parties together, with epsilon."""
    study = STUDIES[cell["data"]]
    told: dict[str, Any] = {"rows": study.rows, "base_score": study.base_score, "delta": DELTA}
    told |= {"epsilon": cell["epsilon"], "colluding": cell["colluding"], "random_state": cell["seed"]}
    # Noise that parties share out needs masks; otherwise they change nothing and take time.
    told |= {"masked": cell["colluding"] < N_PARTIES - 1, "n_jobs": cells.threads()}
    return [simfl.train(members(cell, rows), recipe="joint", callbacks=[], **told)]


def scores(models: Iterable[simfl.Model], rows: Divided) -> dict[str, list[float]]:
    """Of each model, on the test rows."""
    chances = [model.predict_proba(rows.X_test)[:, 1] for model in models]
    return {
        "logloss": [float(log_loss(rows.y_test, chance)) for chance in chances],
        "auc": [float(roc_auc_score(rows.y_test, chance)) for chance in chances],
    }


# --- the page --------------------------------------------------------------------------------------------------------


def values(found: Iterable[Entry], metric: str, **cell: Any) -> list[float]:
    """One per seed."""
    return [e[metric] for e in found if metric in e and all(e.get(name) == value for name, value in cell.items())]


def mean(found: Iterable[Entry], metric: str, **cell: Any) -> float:
    """Over the seeds; NaN where nothing was measured."""
    each = values(found, metric, **cell)
    return statistics.fmean(each) if each else float("nan")


def figure(found: Iterable[Entry], metric: str, **cell: Any) -> str:
    """The mean over the seeds."""
    each = values(found, metric, **cell)
    return f"{statistics.fmean(each):.4f}" if each else "-"


def spread(found: Iterable[Entry], metric: str, **cell: Any) -> str:
    """The largest of the seeds minus the smallest."""
    each = values(found, metric, **cell)
    return f"{max(each) - min(each):.4f}" if each else "-"


def epsilons(found: Iterable[Entry], colluding: int) -> list[float]:
    """Those that were measured, in order."""
    return sorted({e["epsilon"] for e in found if e.get("colluding") == colluding})


def names(found: Iterable[Entry]) -> list[str]:
    """The tables that were measured, in order."""
    return list(dict.fromkeys(e["data"] for e in found))


def kinds(found: Iterable[Entry]) -> list[int]:
    """How many collude: first those where nobody is trusted."""
    return sorted({e["colluding"] for e in found if "colluding" in e}, reverse=True)


def lines(found: list[Entry], metric: str, colluding: int, told: Callable[..., str] = figure) -> list[list[str]]:
    """A line per table: ALL-IN and SOLO, then by epsilon."""
    return [
        [
            name,
            *(told(found, metric, data=name, method=method) for method in PLAIN_METHODS),
            *(told(found, metric, data=name, epsilon=e, colluding=colluding) for e in epsilons(found, colluding)),
        ]
        for name in names(found)
    ]


def targets(found: list[Entry]) -> list[list[str]]:
    """What was aimed at, with nobody trusted, and whether it was reached."""
    alone, rows = {"colluding": N_PARTIES - 1}, []
    for (name, epsilon), most in LEAST_LOSS.items():
        got = mean(found, "logloss", data=name, epsilon=epsilon, **alone)
        rows.append([f"{name}, log loss at epsilon {epsilon:g}", f"at most {most:.3f}", f"{got:.4f}", _met(got, most)])
    for name, within in AUC_WITHIN.items():
        pooled = mean(found, "auc", data=name, method="ALL-IN")
        lost = pooled - mean(found, "auc", data=name, epsilon=1.0, **alone)
        goal = f"at most {within:.3f} below ALL-IN"
        rows.append([f"{name}, AUC at epsilon 1", goal, f"{lost:.4f} below", _met(lost, within)])
    return [row for row in rows if "nan" not in row[2]]


def _met(got: float, most: float) -> str:
    return "met" if got <= most else "**missed**"


def worth(found: list[Entry], name: str, colluding: int) -> str:
    """From which epsilon on the loss is below that of a party alone without noise.

    >>> alone = {"data": "a", "method": "SOLO", "logloss": 0.3}
    >>> together = [{"data": "a", "colluding": 3, "epsilon": e, "logloss": 0.31 - e / 100} for e in (0.3, 3.0)]
    >>> worth([alone, *together], "a", 3)
    'from 3 on'
    """
    alone = mean(found, "logloss", data=name, method="SOLO")
    at = epsilons(found, colluding)
    losses = {e: mean(found, "logloss", data=name, epsilon=e, colluding=colluding) for e in at}
    least = for_good({e: loss < alone for e, loss in losses.items()})
    return "at none" if least is None else f"from {least:g} on"


def for_good(better: Mapping[float, bool]) -> float | None:
    """From which epsilon on it is better, and stays so.

    >>> for_good({0.3: True, 1.0: False, 3.0: True, 10.0: True}), for_good({1.0: False})
    (3.0, None)
    """
    worse = max((e for e, is_so in better.items() if not is_so), default=0.0)
    return min((e for e in better if e > worse), default=None)


def page(found: list[Entry], quick: bool = False) -> Page:
    """Everything that was measured."""
    made = Page("What a guarantee costs", "python -m benchmarks.private", quick=quick, measured=stamp(found))
    n_seeds = len({e["seed"] for e in found})
    made.say(
        f'`recipe="joint"` with `epsilon`, delta 1e-5, four parties with rows dealt out at random, {n_seeds} seeds; '
        "settings by the rule (`simfl/joint/private_rule.py`). Cells: the mean over the seeds, on test rows. "
        "SOLO (the mean of four parties alone) and ALL-IN (all rows pooled) are XGBoost "
        "without noise, depth 6, learning rate .1, the number of trees found on a fifth of the training rows. SOLO is "
        "at its best here: the parties do not differ. [What is promised](../privacy.md#a-guarantee-for-everything-that"
        "-leaves-recipejoint-with-epsilon)."
    )
    if len({e["code"] for e in found if "code" in e}) > 1:
        told = (f"{name} {stamp(e for e in found if e['data'] == name)}" for name in names(found))
        made.say(f"Measured in parts: {'. '.join(told)}. What the parts have in common, the rule, is the same.")
    made.picture("private.png", "Log loss by epsilon, with SOLO and ALL-IN")
    for metric, title in TITLES.items():
        made.head(title)
        for colluding in kinds(found):
            made.say(f"`colluding = {colluding}`: {TRUSTED[colluding]}.")
            heads = ["data", *PLAIN_METHODS, *(f"epsilon {e:g}" for e in epsilons(found, colluding))]
            made.table(heads, lines(found, metric, colluding))
            if n_seeds > 1:
                made.say("Largest of the seeds minus smallest:")
                made.table(heads, lines(found, metric, colluding, spread))
    say_worth(made, found)
    say_declared(made, names(found))
    return made


def say_worth(made: Page, found: list[Entry]) -> None:
    made.head("Is it worth it?")
    made.say(
        "The epsilon from which on the private model of all four has less log loss than a party alone has "
        "without noise, of those measured:"
    )
    rows = [[name, *(worth(found, name, c) for c in kinds(found))] for name in names(found)]
    made.table(["data", *(f"colluding = {c}" for c in kinds(found))], rows)
    made.head("What was aimed at")
    made.say("Written down before the rule was made; `colluding = 3`.")
    made.table(["", "aim", "measured", ""], targets(found))
    made.say(
        "The rule was changed twice after looks at test rows, each time for bank, and each time by what training rows "
        "that are in no test say. At the first look the AUC of bank and default_credit at epsilon 1 was .0399 and "
        ".0191 below ALL-IN; more of the budget for the columns and shorter steps where a class is rare made that "
        ".0358 and .0184 (and default_credit worse at epsilon .1, .4758 after .4641). Then gradients were shortened, "
        "steps became shorter again, and the first look at a category got a cell for every level (SUSY became worse at "
        "epsilon .1, from .5210). All figures of this page are from after that: the rule is as it was then. Noise is "
        "secret and drawn again in every run, so that a cell measured again differs by what the seeds differ by."
    )


def say_declared(made: Page, tables: list[str]) -> None:
    made.head("What the studies declare")
    made.say(
        "Epsilon does not cover it. Ranges are round numbers written by hand (`benchmarks/declared.py`), not read off "
        "test rows."
    )
    rows = []
    for name in tables:
        study, came = STUDIES[name], origin(name)
        made.lines += ["```toml", f"# {name}: rows = {study.rows}, base_score = {study.base_score}"]
        made.lines += [study.schema.to_toml(), "```", ""]
        rows.append([name, came.remark, came.digest()])
    made.head("Data")
    made.table(["data set", "what it is", "SHA-256 begins"], rows)


def plot(found: list[Entry], path: Path) -> None:
    """A panel per table: log loss by epsilon, SOLO and ALL-IN as lines."""
    import matplotlib.pyplot as plt

    tables = names(found)
    figure, panels = plt.subplots(1, len(tables), figsize=(3.1 * len(tables), 3.2), layout="constrained")
    styles = {N_PARTIES - 1: "o-", 0: "s--"}
    for panel, name in zip(np.atleast_1d(panels), tables, strict=True):
        for colluding in kinds(found):
            style, at = styles[colluding], epsilons(found, colluding)
            losses = [mean(found, "logloss", data=name, epsilon=e, colluding=colluding) for e in at]
            label = f"epsilon, {TRUSTED[colluding]}"
            panel.plot(at, losses, style, color=COLOURS["joint"], markersize=4, label=label)
        for method in PLAIN_METHODS:
            level = mean(found, "logloss", data=name, method=method)
            panel.axhline(level, color=COLOURS[method], linestyle=":", label=f"{method}, no noise")
        panel.set_xscale("log")
        ticks = epsilons(found, kinds(found)[0])
        panel.set_xticks(ticks, [f"{e:g}" for e in ticks])
        panel.minorticks_off()
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("epsilon", fontsize=8)
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    np.atleast_1d(panels)[0].set_ylabel("log loss (less is better)", fontsize=8)
    handles, labels = np.atleast_1d(panels)[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=list(STUDIES), choices=list(STUDIES), help="keeps the others")
    parser.add_argument("--quick", action="store_true", help="one table, one seed, two epsilons")
    parser.add_argument("--draw", action="store_true", help="measure nothing: page and picture from private.json")
    given = parser.parse_args()
    where = QUICK_RESULTS if given.quick else RESULTS
    if given.draw:
        write(json.loads((where / "private.json").read_text()), where, given.quick)
        return
    todo = (
        wanted(["default_credit"], 1, {N_PARTIES - 1: (1.0, 10.0)})
        if given.quick
        else wanted(given.data, 3, dict.fromkeys(TRUSTED, EPSILONS))
    )
    store = cells.Store(cells.FOLDER / "private.jsonl")
    results = cells.run(todo, measured, store, "private", workers=1)
    found = [cell | result for cell, result in zip(todo, results, strict=True)]
    found = in_order([*found, *([] if given.quick else others(where / "private.json", given.data))])
    where.mkdir(parents=True, exist_ok=True)
    (where / "private.json").write_text(json.dumps(found, indent=1))
    write(found, where, given.quick)


def others(path: Path, measured: Iterable[str]) -> list[Entry]:
    """What is known of tables that are not measured now."""
    known: list[Entry] = json.loads(path.read_text()) if path.exists() else []
    return [entry for entry in known if entry["data"] not in set(measured)]


def in_order(found: Iterable[Entry]) -> list[Entry]:
    """By table, as the studies are listed.

    >>> [entry["data"] for entry in in_order([{"data": "bank"}, {"data": "ijcnn1"}])]
    ['ijcnn1', 'bank']
    """
    return sorted(found, key=lambda entry: list(STUDIES).index(entry["data"]))


def write(found: list[Entry], where: Path, quick: bool) -> None:
    """The page and its picture."""
    plot(found, where / "private.png")
    page(found, quick).write(where / "private.md")


if __name__ == "__main__":
    main()
