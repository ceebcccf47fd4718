"""The page of published tables: a verdict first, then every table with its protocol, then where they differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import RESULTS, Page
from benchmarks.published import pictures, private, timberstrike
from benchmarks.published.estimates import Estimate, Found, Row, verdict
from benchmarks.published.figures import (
    FEDXGBLLR,
    FEDXGBLLR_ROWS,
    FLAMBY_SOURCE,
    FLOWER_SOURCE,
    HEART_TESTED,
    PUBLISHED,
    UNIFED_SOURCE,
    Figures,
)
from benchmarks.published.measure import ALL_IN, JOINT, MEAN, METHODS, POOLED, RECIPES, SIMILAR
from benchmarks.published.tables import BRCA, HEART, HEART_WHOLE, IID, UNIFED, origin

TITLE = "Tables that others published"
COMMAND = "python -m benchmarks.published"
LABELS = {"joint": "SimFL, joint", "similar": "SimFL, similar", "paper": "SimFL, paper's recipe"}
LABELS |= {"TFL": "TFL (in turns)", "SOLO": "SOLO (alone)", "ALL-IN": "ALL-IN (pooled XGBoost)"}
UNITS = {"default_credit": "AUC", "student": "MSE (less is better)", "breast": "AUC"}
HOW = {"published": "UniFed's settings", "stopped": "the package's defaults, stopped on validation rows"}
ELSEWHERE = (
    "Maddock et al. and TimberStrike are taken from [what a guarantee costs](private.md) and [attacks on the finished "
    "model](attacks.md), which `make published` measures before; each section names its day and its code"
)
PLACES = {MEAN: "mean of the centres", POOLED: "pooled test rows"}
CENTRES = {
    "cleveland": "Cleveland",
    "budapest": "Budapest",
    "zurich-basel": "Zurich, Basel",
    "long-beach": "Long Beach",
}


def write(rows: Sequence[Row], where: Path, absent: Mapping[str, str], *, quick: bool = False) -> None:
    """The page and its pictures."""
    found = Found(rows)
    attacks, guaranteed = (_json(RESULTS / name) for name in ("attacks.json", "private.json"))
    pictures.draw(found, guaranteed, where)
    measured = f"{found.when()}: UniFed, FLamby and FedXGBllr. {ELSEWHERE}"
    made = Page(TITLE, COMMAND + (" --quick" if quick else ""), quick=quick, measured=measured)
    say_verdicts(made, found, absent)
    private.say_verdict(made, guaranteed)
    timberstrike.say_verdict(made, attacks["tables"])
    made.picture("published.png", "Every method with its interval, the published figures as lines")
    say_unifed(made, found)
    say_heart(made, found)
    say_survival(made, found, absent)
    say_clients(made, found)
    private.say(made, guaranteed)
    timberstrike.say(made, attacks["tables"])
    say_data(made, found)
    made.write(where / "published.md")


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def number(got: Estimate | float | None, digits: int) -> str:
    """A mean or a published figure; a dash where there is none."""
    if got is None:
        return "-"
    return f"{got.mean if isinstance(got, Estimate) else got:.{digits}f}"


def half(got: Estimate | None, digits: int) -> str:
    """Half the width of the interval."""
    return "-" if got is None else f"{got.half:.{digits}f}"


# --- verdicts --------------------------------------------------------------------------------------------------------


def say_verdicts(made: Page, found: Found, absent: Mapping[str, str]) -> None:
    """One line per published figure."""
    made.say(
        "Others chose the data, the split and the measure; SimFL stands beside their figures. Every method here has "
        "the same settings, and nothing was chosen on test rows: either the publication's own settings, or the "
        "package's defaults with the number of trees found on a fifth of the training rows (at most 500). *better* and "
        "*worse*: the published figure lies outside our 95 % interval, which covers seeds and test rows (Student's t: "
        "where few seeds decide, it is wider). The published figures' own intervals are not known; where the test rows "
        "are the same, as with UniFed and FLamby, this judgement is cautious."
    )
    rows = [[title, joint, similar, *numbers] for title, *numbers, joint, similar in _all(found)]
    heads = ["table", "joint is", "similar is", "published", "SimFL joint", "SimFL similar", "pooled XGBoost"]
    made.table(heads, rows)
    if any("*" in row[0] for row in rows):
        made.say("\\* The publication has more rows of this table than we have, to our disadvantage (below).")
    for name, why in absent.items():
        made.say(f"**Left out: {name}.** {why}.")
    for row in found.failed:
        made.say(f"**Failed**: {row['data']}, {row['method']}, seed {row['seed']}: {row['failed']}.")


def say_verdict(made: Page, rows: Sequence[Sequence[str]]) -> None:
    """How often each recipe is better, level or worse, and where it is worse."""
    told = [f"{recipe} is {counted([row[place] for row in rows])}" for recipe, place in ((JOINT, -2), (SIMILAR, -1))]
    worse = [row[0] for row in rows if "worse" in row[-2:]]
    made.say(f"**Verdict**: {'; '.join(told)}." + (f" Worse: {'; '.join(worse)}." if worse else ""))


def counted(words: Sequence[str]) -> str:
    """Verdicts in numbers.

    >>> counted(["better", "level", "level", "-"])
    'better on 1, level on 2 and worse on 0 of 3 figures'
    """
    better, level, worse = (words.count(word) for word in ("better", "level", "worse"))
    return f"better on {better}, level on {level} and worse on {worse} of {better + level + worse} figures"


def _all(found: Found) -> list[list[str]]:
    return [*_judged(found), *_judged_clients(found)]


def _of(found: Found, beginning: str) -> list[list[str]]:
    return [row for row in _judged(found) if row[0].startswith(beginning)]


def _judged(found: Found) -> list[list[str]]:
    rows = []
    for data, publication in PUBLISHED.items():
        settings = "published" if data in UNIFED else "stopped"
        for place in (MEAN, POOLED) if publication.centres else (POOLED,):
            got = {m: found.estimate(place, data=data, method=m, settings=settings) for m in (JOINT, SIMILAR, ALL_IN)}
            if not any(got.values()):
                continue
            title = f"{_title(data)}, {PLACES[place]}" if publication.centres else _title(data)
            numbers = [number(value, publication.digits) for value in got.values()]
            words = [verdict(found, data, place, m, settings) for m in (JOINT, SIMILAR)]
            best = publication.best(place).scores[place]
            rows.append([title, number(best, publication.digits), *numbers, *words])
    return rows


def _judged_clients(found: Found) -> list[list[str]]:
    rows = []
    for data, (published, _) in FEDXGBLLR.items():
        for clients, figure in published.items():
            told = {"data": data, "settings": "stopped", "clients": clients}
            got = {m: found.estimate(method=m, **told) for m in (JOINT, SIMILAR)}
            pooled = found.estimate(data=data, settings="stopped", method=ALL_IN)
            if not any(got.values()):
                continue
            words = [value.against(figure) if value else "-" for value in got.values()]
            numbers = [number(value, 4) for value in (*got.values(), pooled)]
            rows.append(
                [f"FedXGBllr, {data}{_star(data)}, {clients} clients, accuracy", f"{figure:.4f}", *numbers, *words]
            )
    return rows


def _star(data: str) -> str:
    """Marks a table of which we have fewer rows than the publication."""
    ours, theirs = FEDXGBLLR_ROWS[data]
    return "" if ours == theirs else "*"


def _title(data: str) -> str:
    if data in UNIFED:
        return f"UniFed, {data}, {UNITS[data]}"
    return {HEART: "FLamby, heart disease, accuracy", BRCA: "FLamby, TCGA-BRCA, C-index"}[data]


# --- tables ----------------------------------------------------------------------------------------------------------


def say_unifed(made: Page, found: Found) -> None:
    """Three tables, once with UniFed's settings and once stopped."""
    names = [name for name in UNIFED if name in found.names()]
    if not names:
        return
    made.head("UniFed: gradient-boosted trees of two parties")
    made.say(
        f"Source: {UNIFED_SOURCE}. Its split: two parties train, the third file tests. Its settings: 64 trees of depth "
        f"6, 64 bins, learning rate .05. {found.seeds(names[0])} seeds. Measured {found.when(*names)}."
    )
    heads = [text for name in names for text in (f"{name}, {UNITS[name]}", "+-")]
    for settings in ("published", "stopped"):
        made.say(f"With {HOW[settings]}:")
        lines = [["*UniFed's best framework*", *_unifed_published(names)]]
        lines += [[LABELS[m], *_unifed_cells(found, names, m, settings)] for m in METHODS]
        made.table(["method", *heads], lines)
    say_verdict(made, _of(found, "UniFed"))
    made.say(
        "Where protocols differ: UniFed masks sums or encrypts them, which changes no figure; here parties are in one "
        "process. It gives one run without an interval. Student has 79 test rows and breast 114: their intervals are "
        "wide, and with 114 rows an AUC of 1.0000, as published, can hardly be told from ours (an interval of AUC, "
        "accuracy or C-index ends at 1, also where mean and +- add up to more).\n\n"
        "**Vehicle is void.** UniFed's fourth table (vehicle_scale) is left out: its test rows are among the training "
        "rows, so that its figure says how well a model remembers."
    )


def _unifed_published(names: Sequence[str]) -> list[str]:
    return [
        text
        for name in names
        for text in (number(PUBLISHED[name].best(POOLED).scores[POOLED], PUBLISHED[name].digits), "-")
    ]


def _unifed_cells(found: Found, names: Sequence[str], method: str, settings: str) -> list[str]:
    cells = []
    for name in names:
        got = found.estimate(data=name, method=method, settings=settings)
        cells += [number(got, PUBLISHED[name].digits), half(got, PUBLISHED[name].digits)]
    return cells


def say_heart(made: Page, found: Found) -> None:
    """FLamby's protocol, then every patient and column."""
    if not {HEART, HEART_WHOLE} & set(found.names()):
        return
    made.head("FLamby, Fed-Heart-Disease: four hospitals")
    made.say(
        f"Source: {FLAMBY_SOURCE}. Accuracy. {found.seeds(HEART) or found.seeds(HEART_WHOLE)} seeds. Measured "
        f"{found.when(HEART, HEART_WHOLE)}."
    )
    if HEART in found.names():
        made.say(
            "FLamby's own split and preprocessing: three columns dropped, patients with missing values dropped (740 of "
            "920 are left), 66 % of each hospital to train on. Its methods train logistic regressions, with settings "
            "that were searched for; ours are trees with the package's defaults, stopped on validation rows."
        )
        _centres_table(made, found, HEART)
        line = PUBLISHED[HEART].best(MEAN)
        made.say(
            f"FLamby's pooled figures do not fit its centres': {_bare(line)}'s four centres, weighted by test "
            f"patients, give "
            f"{_weighted(line):.3f}, and {line.scores[POOLED]:.3f} is published. Ours fit by construction."
        )
    if HEART_WHOLE in found.names():
        made.say(
            "**As a user would**: all 920 patients, all 13 columns, missing values left missing, the same split rule. "
            "No published figure: FLamby's methods cannot read missing values. The test patients are others than above."
        )
        _centres_table(made, found, HEART_WHOLE)
    if HEART in found.names():
        say_verdict(made, _of(found, "FLamby, heart"))
    made.say(
        "A centre of 16 (Zurich and Basel, FLamby's rows) or 45 patients tells little by itself. SOLO: each hospital's "
        "own model on its own patients; on pooled test rows the mean of the four models."
    )


def _bare(line: Figures) -> str:
    """A method without its publication.

    >>> _bare(Figures("FLamby, FedAdam", {}))
    'FedAdam'
    """
    return line.method.split(", ")[-1]


def _weighted(line: Figures) -> float:
    """The accuracy on all test patients that the centres' figures give."""
    return sum(line.scores[name] * n for name, n in HEART_TESTED.items()) / sum(HEART_TESTED.values())


def _centres_table(made: Page, found: Found, data: str) -> None:
    publication = PUBLISHED.get(data)
    digits = 3
    names = [name for name in CENTRES if any(name in row for row in found.of(data=data))] or [
        name for name in (PUBLISHED[data].centres if publication else ()) if any(name in r for r in found.of(data=data))
    ]
    heads = [CENTRES.get(name, name) for name in names]
    lines = []
    for line in publication.lines if publication else ():
        scores = [number(line.scores.get(place), digits) for place in (*names, MEAN)]
        lines.append([f"*{line.method}*", *scores, "-", number(line.scores[POOLED], digits), "-"])
    for method in METHODS:
        told = {"data": data, "method": method, "settings": "stopped"}
        mean, pooled = found.estimate(MEAN, **told), found.estimate(POOLED, **told)
        own = [number(found.estimate(name, **told), digits) for name in names]
        lines.append([LABELS[method], *own, *(f(e, digits) for e in (mean, pooled) for f in (number, half))])
    made.table(["method", *heads, "mean", "+-", "pooled test", "+-"], lines)


def say_survival(made: Page, found: Found, absent: Mapping[str, str]) -> None:
    """C-index of survival models, and whether trees between machines beat FedAdam."""
    if BRCA not in found.names():
        return
    made.head("FLamby, Fed-TCGA-BRCA: survival in six regions")
    made.say(
        f"Source: {FLAMBY_SOURCE}. C-index, FLamby's split; its methods train a linear Cox model. Ours: "
        '`objective="survival:aft"`, the package\'s defaults, stopped on validation rows. '
        f"{found.seeds(BRCA)} seeds. Measured {found.when(BRCA)}."
    )
    _centres_table(made, found, BRCA)
    say_verdict(made, _of(found, "FLamby, TCGA"))
    best = PUBLISHED[BRCA].best(POOLED)
    got = {m: found.estimate(POOLED, data=BRCA, method=m, settings="stopped") for m in RECIPES}
    known = {method: value for method, value in got.items() if value}
    method = max(known, key=lambda m: known[m].mean)
    beaten = known[method].low > best.scores[POOLED]
    made.say(
        f"A tree model between machines {'beats' if beaten else 'does **not** beat'} {_bare(best)}'s "
        f"{best.scores[POOLED]:.3f} on pooled test rows: {LABELS[method]} has {known[method].mean:.3f} "
        f"(+- {known[method].half:.3f}). The regions have 11 to 63 test patients and 1 to 14 deaths, 32 together: "
        "a region's figure, 1.000 included, is mostly chance, and boosted trees find little to split on. Where "
        "protocols differ: FLamby searched for the settings of every method; here nothing was searched for."
    )


def say_clients(made: Page, found: Found) -> None:
    """Accuracy by the number of clients."""
    names = [name for name in IID if name in found.names()]
    if not names:
        return
    made.head("FedXGBllr and its reproduction: 2, 5 and 10 equal clients")
    made.say(
        f"Source: {FLOWER_SOURCE}. Accuracy on a quarter of the rows, the others dealt out at random. "
        f"{found.seeds(names[0])} seeds, each with its own split; the package's defaults, stopped on validation rows. "
        "Two seeds say little about what seeds change: where they differ more than test rows would explain, the "
        f"interval is the wider for it (Student's t). Measured {found.when(*names)}."
    )
    made.picture(
        "published-clients.png", "Accuracy against the number of clients, every method and the published figures"
    )
    for name in names:
        made.say(f"**{name}**")
        published, pooled = FEDXGBLLR[name]
        at = list(published)
        lines = [["*FedXGBllr, Flower's reproduction*", *(text for n in at for text in (f"{published[n]:.4f}", "-"))]]
        lines.append(["*XGBoost on all rows, Flower's*", *(text for _ in at for text in (f"{pooled:.4f}", "-"))])
        lines += [[LABELS[method], *_clients_cells(found, name, method, at)] for method in METHODS]
        made.table(["method", *(text for n in at for text in (f"{n} clients", "+-"))], lines)
    say_verdict(made, _judged_clients(found))
    made.say(
        "Where protocols differ: **the rows**. The reproduction joins other files of LIBSVM than its text counts: "
        f"{_rows_words(names)}. Only a9a is the same table. A figure marked * is from fewer rows, to our disadvantage. "
        "FedXGBllr's settings (depth 8, 500 trees, then a network that weighs the trees) were tuned per table there."
    )


def _rows_words(names: Sequence[str]) -> str:
    return ", ".join(f"{name} {FEDXGBLLR_ROWS[name][1]:,} rows (here {FEDXGBLLR_ROWS[name][0]:,})" for name in names)


def _clients_cells(found: Found, data: str, method: str, at: Sequence[int]) -> list[str]:
    told: dict[str, Any] = {"data": data, "method": method, "settings": "stopped"}
    got = [found.estimate(**told, **({} if method == ALL_IN else {"clients": n})) for n in at]
    return [text for g in got for text in (number(g, 4), half(g, 4))]


def say_data(made: Page, found: Found) -> None:
    """The files, by their digests."""
    made.head("Data")
    rows = [[name, origin(name).remark, origin(name).digest()] for name in found.names()]
    made.table(["table", "what it is", "SHA-256 begins"], rows)
