"""What became slower: the figures of a run of `make bench` beside those that are committed.

A figure is worse if it is beyond the tolerance of its kind and its quartiles lie beyond those of before. Losses and
bytes hardly vary, so their tolerance is small; seconds vary with the machine, so theirs is large. The times of other
software say how the machine differs from that of before: they are told apart, and our own times are divided by them.
What has nothing to be compared with is counted in the summary.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from benchmarks.cells import ROOT


class Kind(NamedTuple):
    """How a kind of figure is judged. `tolerance`: the share by which it may change unnoticed; with `by_difference`,
    of what can be zero or below, the amount. `of_machine`: a slower machine makes it worse.
    """

    name: str
    tolerance: float
    higher_is_better: bool = False
    of_machine: bool = False
    by_difference: bool = False


YARDSTICK = "other software"
SECONDS = Kind("seconds", 0.25, of_machine=True)
PROCESSOR = Kind("processor seconds", 0.15, of_machine=True)
PAIRS = Kind("pairs per second", 0.15, higher_is_better=True, of_machine=True)
# The first pattern that fits decides. What fits none says what was measured, and is not compared.
KINDS: dict[str, Kind] = {
    "*logloss*": Kind("loss", 0.005),
    "identical": Kind("same model", 0, higher_is_better=True, by_difference=True),
    "bytes*": Kind("bytes", 0.01),
    "extra_peak*": Kind("memory", 0.05),
    "peak_bytes": Kind("memory", 0.05),
    "faster_by.*": Kind("ratio", 0.1, higher_is_better=True),
    "pairs_per_second.simfl": PAIRS,
    "pairs_per_second.*": Kind(YARDSTICK, 0.25, higher_is_better=True),
    "*over_*": Kind("ratio", 0.1),
    "overhead_ms": Kind("milliseconds", 10, of_machine=True, by_difference=True),
    "*seconds_per_tree.solo*": Kind(YARDSTICK, 0.25),
    "*seconds_per_tree.all_in": Kind(YARDSTICK, 0.25),
    "all_in": Kind(YARDSTICK, 0.25),
    "xgboost": Kind(YARDSTICK, 0.25),
    "cpu_seconds*": PROCESSOR,
    "own": PROCESSOR,
    "*seconds*": SECONDS,
    **dict.fromkeys(("prepare", "train", "simfl", "builders_grow", "flare", "one_process"), SECONDS),
}
# Neither figures nor what was measured.
IGNORED = ("turns", "load", "hops.*", "paper_seconds")
USUAL = ("recipe", "similar")  # records of before do not say so


class Figure(NamedTuple):
    """A number with its quartiles; what was measured once has none: they are the number itself."""

    middle: float
    low: float
    high: float


class Place(NamedTuple):
    """Where a figure belongs: the measurement, what was measured, the name of the figure."""

    measurement: str
    of: str
    name: str


class Change(NamedTuple):
    """A figure before and now. `factor`: how many times as bad, apart from the machine; of a difference 0, 1 or inf."""

    place: Place
    kind: Kind
    before: Figure
    now: Figure
    factor: float
    verdict: str  # "worse", "better" or nothing


def committed(path: Path) -> dict[str, Any]:
    """A record as the last commit has it; outside a repository, as it is on disk; where there is none, nothing."""
    name = path.relative_to(ROOT).as_posix()
    shown = subprocess.run(["git", "show", f"HEAD:./{name}"], cwd=ROOT, capture_output=True, check=False)
    text = shown.stdout if shown.returncode == 0 else path.read_bytes() if path.exists() else b"{}"
    found: dict[str, Any] = json.loads(text)
    return found


def kind_of(name: str) -> Kind | None:
    """How a figure of this name is judged; None: it is not judged.

    >>> kind_of("over_all_in").name, kind_of("seconds_per_tree.all_in").name, kind_of("rows")
    ('ratio', 'other software', None)
    """
    return next((kind for pattern, kind in KINDS.items() if fnmatchcase(name, pattern)), None)


def figures(found: dict[str, Any]) -> dict[Place, Figure]:
    """All figures of a record. What was measured several times becomes one, with all its quartiles."""
    several: dict[Place, list[Figure]] = {}
    for measurement, results in found.items():
        for result in results if isinstance(results, list) else []:
            flat = dict(_flat(result))
            said = [(name, value) for name, value in flat.items() if kind_of(name) is None]
            of = ", ".join(f"{name}={value}" for name, value in said if (name, value) != USUAL)
            for name, value in flat.items():
                if kind_of(name):
                    middle, low, high = value if isinstance(value, list) else [value] * 3
                    several.setdefault(Place(measurement, of, name), []).append(Figure(middle, low, high))
    return {place: _one(same) for place, same in several.items()}


def _one(same: list[Figure]) -> Figure:
    middles, lows, highs = zip(*same, strict=True)
    return Figure(statistics.median(middles), min(lows), max(highs))


def _flat(result: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values, those within others by both names."""
    for name, value in result.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        elif not any(fnmatchcase(before + name, pattern) for pattern in IGNORED):
            yield before + name, value


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[Change]:
    """All figures that both records have, the worst first."""
    then, found = figures(before), []
    both = {place: figure for place, figure in figures(now).items() if place in then}
    slower = _slower(then, both)
    for place, figure in both.items():
        if kind := kind_of(place.name):
            found.append(_change(place, kind, then[place], figure, slower if kind.of_machine else 1.0))
    return sorted(found, key=lambda change: -change.factor)


def without_counterpart(before: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Of each measurement how many figures only the new record has, and how many only the one of before."""
    then, found = figures({name: results for name, results in before.items() if name in now}), figures(now)
    new, gone = (
        Counter(place.measurement for place in places) for places in (found.keys() - then, then.keys() - found)
    )
    return {name: (new[name], gone[name]) for name in sorted(new | gone)}


def _slower(then: dict[Place, Figure], now: dict[Place, Figure]) -> float:
    """How many times as long other software took now: so much is the machine's."""
    kinds = {place: kind for place in now if (kind := kind_of(place.name)) and kind.name == YARDSTICK}
    factors = [_factor(kind, then[place].middle, now[place].middle) for place, kind in kinds.items()]
    return statistics.median([factor for factor in factors if 0 < factor < math.inf] or [1.0])


def _factor(kind: Kind, before: float, now: float) -> float:
    """How many times as bad."""
    good, bad = (now, before) if kind.higher_is_better else (before, now)
    if good <= 0 or bad <= 0:
        return 1.0 if good <= 0 and bad <= 0 else math.inf if bad > 0 else 0.0
    return bad / good


def _change(place: Place, kind: Kind, before: Figure, now: Figure, slower: float) -> Change:
    here = Figure(*(part * slower if kind.higher_is_better else part / slower for part in now))
    risen, fallen = here.low > before.high, here.high < before.low
    worse, better = (fallen, risen) if kind.higher_is_better else (risen, fallen)
    if kind.by_difference:
        far = abs(here.middle - before.middle) > kind.tolerance
        factor = math.inf if worse and far else 0.0 if better and far else 1.0
    else:
        factor = _factor(kind, before.middle, here.middle)
    verdict = "worse" if worse and factor > 1 + kind.tolerance else ""
    verdict = "better" if better and factor < 1 / (1 + kind.tolerance) else verdict
    return Change(place, kind, before, now, factor, verdict)


def table(found: Iterable[Change]) -> Table:
    """Changes for the terminal."""
    shown = Table("measurement", "of", "figure", "before", "now", "times as bad", "", title_justify="left")
    for change in found:
        times = "" if change.kind.by_difference else f"{change.factor:.2f}"
        numbers = (_readable(change.before), _readable(change.now), times)
        shown.add_row(*change.place, *numbers, change.verdict)
    return shown


def _readable(figure: Figure) -> str:
    middle, low, high = (f"{part:.3g}" for part in figure)
    return middle if figure.low == figure.high else f"{middle} ({low} to {high})"


def summary(found: list[Change], alone: dict[str, tuple[int, int]]) -> str:
    """One paragraph: how many figures changed, which had no counterpart, and what the machine is like."""
    ours = [change for change in found if change.kind.name != YARDSTICK]
    theirs = [change.factor for change in found if change.kind.name == YARDSTICK]
    counts = {verdict: sum(change.verdict == verdict for change in ours) for verdict in ("worse", "better")}
    text = f"{len(ours)} figures compared with the committed ones: {counts['worse']} worse, {counts['better']} better."
    if theirs:
        slower = f"{statistics.median(theirs):.2f} times as long as then"
        text += f" Other software took {slower}: so much is the machine's, and our own times are divided by it."
    if alone:
        each = ", ".join(f"{name} ({new} new, {gone} gone)" for name, (new, gone) in alone.items())
        text += f" Not compared, for want of a counterpart: {each}."
    return text
