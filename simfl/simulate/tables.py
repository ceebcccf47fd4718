"""The comparison as tables for a terminal: each party's own rows first, then all rows."""

from collections.abc import Sequence
from statistics import fmean

from rich import box
from rich.table import Column
from rich.table import Table as RichTable

from simfl.report.record import Gain, Score
from simfl.report.words import JOINT, METHODS, RISING, SHORT, amount, decimals
from simfl.simulate.comparison import Result


def own_table(scores: Sequence[Score], gains: Sequence[Gain], title: str) -> RichTable:
    """Every method on the held-out rows of each party, and what SimFL gains there."""
    methods = [method for method in METHODS if any(score.method == method for score in scores)]
    gained = {gain.party: gain for gain in gains}
    shown = _empty("rows of", (*methods, "SimFL's gain", "95 % interval"), title)
    digits = decimals([score.value for score in scores])
    for party in dict.fromkeys(score.rows for score in scores):
        values = {score.method: score.value for score in scores if score.rows == party}
        cells = [_marked(f"{values[m]:.{digits}f}", values[m] == min(values.values())) for m in methods]
        gain = gained[str(party)]
        interval = f"{_short(gain.low, digits)} to {_short(gain.high, digits)}"
        shown.add_row(party, *cells, f"{gain.gain:+.{digits}f}", interval)
    return shown


def table(results: Sequence[Result], title: str) -> RichTable:
    """Every method on the held-out rows of all parties, the best of each column marked."""
    methods = [method for method in METHODS if any(result.method == method for result in results)]
    same = {method: [result for result in results if result.method == method] for method in methods}
    metrics = list(dict.fromkeys(name for result in results for name in result.scores))
    heads = (*(SHORT[name] for name in metrics), "rounds", "seconds", "sent")
    shown = _empty("method", heads, title)
    for method, found in same.items():
        cells = [_cell(found, name, list(same.values())) for name in metrics]
        rounds, seconds = fmean(r.rounds for r in found), sum(r.seconds for r in found)
        name = f"{method}, mean of {len(found)}" if len(found) > 1 else method if method == JOINT else METHODS[method]
        shown.add_row(name, *cells, f"{rounds:.0f}", f"{seconds:.1f}", _sent(found))
    return shown


def _empty(first: str, heads: Sequence[str], title: str) -> RichTable:
    """A table without rules between the columns, so that it fits a terminal of 80 characters."""
    numbers = [Column(head, justify="right", no_wrap="interval" in head) for head in heads]
    shown = RichTable(Column(first, no_wrap=first == "rows of"), *numbers, title=title, box=box.SIMPLE_HEAD)
    shown.title_justify, shown.title_style, shown.padding, shown.pad_edge = "left", "bold", (0, 0, 0, 1), False
    return shown


def _short(value: float, digits: int = 3) -> str:
    """With its sign, and without a leading zero.

    >>> _short(-0.0634), _short(0.25), _short(12.3456, 1)
    ('-.063', '+.250', '+12.3')
    """
    text = f"{value:+.{digits}f}"
    return text[0] + text[1:].removeprefix("0")


def _marked(text: str, best: bool) -> str:
    return f"[bold green]{text}*[/]" if best else f"{text} "


def _value(found: Sequence[Result], name: str) -> float | None:
    values = [result.scores.get(name) for result in found]
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _cell(found: Sequence[Result], name: str, methods: Sequence[Sequence[Result]]) -> str:
    value = _value(found, name)
    if value is None:
        return "-"
    known = [v for v in (_value(one, name) for one in methods) if v is not None]
    best = value == (max(known) if name in RISING else min(known))
    return _marked(f"{value:.1%}" if name == "error" else f"{value:.3f}", best)


def _sent(found: Sequence[Result]) -> str:
    if found[0].method == "SOLO":
        return "nothing"
    return f"{amount(found[0].bytes)}{' rows' if found[0].method == 'ALL-IN' else ''}"
