"""The charts of the report as Vega-Lite, built with Altair: one function for each kind of chart.

A chart is data that the page draws in the browser. Its colours are names of the page's own: they follow light, dark and
print. Channels are given as objects (`alt.X("value:Q")`): Altair takes twenty milliseconds to make one of a text.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import altair as alt
import numpy as np
from altair.utils.schemapi import debug_mode

from simfl.report.colours import GRAY, IN_ORDER, ON_PAGE
from simfl.report.record import Curve, Exchange, Gain, Importance, Points, Score, Similarity
from simfl.report.words import JOINT, METHODS, METRICS, amount, model_name

Rows = list[dict[str, Any]]
Spec = dict[str, Any]
DASHES: Final = {"SimFL": [1, 0], JOINT: [6, 1, 1, 1], "SOLO": [4, 3], "TFL": [3, 2], "ALL-IN": [8, 3]}


def _fitting(narrow: int, wide: int) -> Any:
    """A number for a narrow chart and one for a wide chart: the page puts in the one that fits before it draws.

    As an expression it would come too late: the room above a chart is laid out for one row of entries.
    """
    return alt.ExprRef(f"narrow ? {narrow} : {wide}")


ROW: Final[dict[str, Any]] = {"title": None, "orient": "top", "columns": _fitting(3, 0)}  # 0: all
STROKES: Final = alt.Legend(symbolType="stroke", **ROW)
PARTIES: Final = alt.Legend(
    title=None,
    orient="top",
    columns=_fitting(2, 4),
    labelLimit=_fitting(120, 160),
)
KINDS: Final = alt.Legend(title=None, orient="bottom", columns=2)
BYTES: Final = (  # an axis in words, as `amount` writes them
    "datum.value >= 1e9 ? format(datum.value / 1e9, '~g') + ' GB' : datum.value >= 1e6 ? "
    "format(datum.value / 1e6, '~g') + ' MB' : datum.value >= 1e3 ? format(datum.value / 1e3, '~g') + ' KB' : "
    "format(datum.value, '~g') + ' B'"
)
FOLDED = 3  # lines of parties alone: from here on they are drawn as a band
BAND_POINTS = 25
FAR = 4  # times: curves that fall from more are drawn on a logarithmic scale
MOST_KINDS = 7  # of messages, in one chart: there are eight colours
OTHERS = "other kinds"


@dataclass(frozen=True)
class _Values:
    """The rows of a chart on their way through Altair, which would copy every cell of them several times."""

    rows: Rows


def _spec(chart: Any, description: str, height: int) -> Spec:
    sized = chart.properties(width="container", height=height, description=description)
    spec: Spec = sized.to_dict(validate=False)  # a third of the time; the tests draw every chart in a browser
    spec.pop("config", None)
    return _with_rows(spec)


def _with_rows(spec: Spec) -> Spec:
    """The chart, or each of its layers, with its rows put in."""
    if "data" in spec:
        spec["data"]["values"] = spec["data"]["values"].rows
    for layer in spec.get("layer", ()):
        _with_rows(layer)
    return spec


def _plot(rows: Rows, mark: Literal["bar", "line", "rule", "rect"] = "bar", **look: Any) -> Any:
    with debug_mode(False):  # it would check what stands in for the rows
        data = alt.Data(values=_Values(rows))  # type: ignore[no-untyped-call]
    return alt.Chart(data, mark=alt.MarkDef(mark, **look))


def _by_method(rows: Rows) -> dict[str, Any]:
    """Methods differ by their dashes too, for those who cannot tell the colours apart; one legend shows both."""
    shown = _methods(rows)
    dashes = alt.Scale(domain=shown, range=[DASHES[method] for method in shown])
    return {
        "color": alt.Color("method:N", scale=_colors(rows), legend=STROKES),
        "strokeDash": alt.StrokeDash("method:N", scale=dashes, legend=STROKES),
    }


def _methods(rows: Rows) -> list[str]:
    return [method for method in METHODS if any(row["method"] == method for row in rows)]


def _colors(rows: Rows) -> Any:
    shown = _methods(rows)
    return alt.Scale(domain=shown, range=[ON_PAGE[method] for method in shown])


def _n_parties(rows: Rows) -> int:
    return len({row["party"] for row in rows})


def gains(found: Sequence[Gain]) -> Spec:
    """Every party's gain as a dot, with its interval; the dashed line is no gain."""
    metric, names = METRICS[found[0].metric], ("alone", "together", "gain", "low", "high")
    rows: Rows = [{"party": g.party, **{name: getattr(g, name) for name in names}} for g in found]
    base = _plot(rows).encode(
        y=alt.Y("party:N", title=None, sort=None),
        tooltip=[alt.Tooltip("party:N"), *(alt.Tooltip(f"{name}:Q", format=".4f") for name in names)],
    )
    zero = _plot([{"zero": 0}], "rule", strokeDash=[4, 4]).encode(x=alt.X("zero:Q"))
    bars = base.mark_bar(height=4).encode(x=alt.X("low:Q", title=f"gain in {metric}"), x2=alt.X2("high:Q"))
    dots = base.mark_circle(size=130, opacity=1).encode(x=alt.X("gain:Q"))
    return _spec(zero + bars + dots, f"Gain of every party in {metric}, with intervals", 34 * len(rows) + 20)


def own(scores: Sequence[Score], metric: str) -> Spec:
    """Every method on the rows of each party: a dot for each."""
    rows: Rows = [{"party": s.rows, "method": s.method, "value": s.value} for s in scores]
    chart = (
        _plot(rows)
        .mark_point(filled=True, size=110, opacity=0.9)
        .encode(
            x=alt.X("value:Q", title=f"{metric} on its own held-out rows", scale=alt.Scale(zero=False)),
            y=alt.Y("party:N", title=None, sort=None),
            color=alt.Color("method:N", scale=_colors(rows), legend=alt.Legend(**ROW)),
            tooltip=[alt.Tooltip("party:N"), alt.Tooltip("method:N"), alt.Tooltip("value:Q", format=".4f")],
        )
    )
    return _spec(chart, f"The {metric} of every method on each party's own rows", 34 * _n_parties(rows) + 20)


def progress(rows: Rows, gaps: Rows, metric: str, description: str) -> Spec:
    """A metric after every round, on training and on validation rows; shaded where a party was absent."""
    chart = _plot(rows, "line", strokeWidth=2.5).encode(
        x=alt.X("round:Q", title="boosting rounds"),
        y=alt.Y("value:Q", title=metric, scale=alt.Scale(zero=False)),
        color=alt.Color("rows:N", legend=STROKES),
        tooltip=[
            alt.Tooltip("round:Q"),
            alt.Tooltip("rows:N"),
            alt.Tooltip("builder:N"),
            alt.Tooltip("absent:N"),
            alt.Tooltip("value:Q", format=".4f"),
        ],
    )
    if not gaps:
        return _spec(chart, description, 240)
    spans = [{**gap, "from": gap["first"] - 0.5, "to": gap["last"] + 0.5} for gap in gaps]
    shades = _plot(spans, "rect", opacity=0.15).encode(
        x=alt.X("from:Q"),
        x2=alt.X2("to:Q"),
        tooltip=[alt.Tooltip("absent:N"), alt.Tooltip("first:Q"), alt.Tooltip("last:Q")],
    )
    return _spec(shades + chart, description, 240)


def learning(curves: Sequence[Curve], metric: str, heading: str, *, logarithmic: bool) -> Spec:
    """A metric on held-out rows against the number of rounds, one line per model."""
    name, scale = (
        (f"{metric} (log scale)", {"type": "log", "nice": False}) if logarithmic else (metric, {"zero": False})
    )
    alone = [(c.trees, c.values) for c in curves if c.method == "SOLO"]
    rows: Rows = [
        {"method": c.method, "model": model_name(c.method, c.party), "round": t, "value": v}
        for c in curves
        if c.method != "SOLO" or len(alone) < FOLDED
        for t, v in zip(c.trees, c.values, strict=True)
    ]
    band = _band(alone, "round", "value")
    rows += [{"method": "SOLO", "model": f"SOLO, middle of {len(alone)}", **one} for one in band]
    chart = _plot(rows, "line", strokeWidth=2.2).encode(
        x=alt.X("round:Q", title="boosting rounds"),
        y=alt.Y("value:Q", title=name, scale=alt.Scale(**scale)),
        detail=alt.Detail("model:N"),
        tooltip=[alt.Tooltip("model:N"), alt.Tooltip("round:Q"), alt.Tooltip("value:Q", format=".4f")],
        **_by_method(rows),
    )
    return _spec(_over_area(chart, band, "round"), f"Learning curves {heading}", 200)


def falls_far(curves: Sequence[Curve]) -> bool:
    """Whether a curve falls so far that its first rounds would hide how the methods differ at the end."""
    ends = [(min(curve.values), max(curve.values)) for curve in curves if curve.values]
    return all(low > 0 for low, _ in ends) and any(high > FAR * low for low, high in ends)


def _band(lines: Sequence[tuple[Sequence[float], Sequence[float]]], x: str, y: str, *, hold: bool = True) -> Rows:
    """Many lines as one: their lowest, middle and highest value. `hold`: a line that has ended keeps its last value;
    otherwise it counts only from its beginning to its end.
    """
    if len(lines) < FOLDED:
        return []
    grid = np.linspace(min(a[0] for a, _ in lines), max(a[-1] for a, _ in lines), BAND_POINTS)
    beyond = {} if hold else {"left": np.nan, "right": np.nan}
    values = np.stack([np.interp(grid, a, b, **beyond) for a, b in lines])
    found = []
    for at, here in zip(grid, values.T, strict=True):
        known = here[~np.isnan(here)]
        if len(known):
            three = {"low": float(known.min()), y: float(np.median(known)), "high": float(known.max())}
            found.append({x: round(float(at), 4), **three})
    return found


def _over_area(chart: Any, band: Rows, x: str) -> Any:
    """A chart over the area of all parties alone, from the lowest to the highest; screen readers hear their middle."""
    if not band:
        return chart
    area = _plot(band).mark_area(opacity=0.2, color=ON_PAGE["SOLO"], aria=False)
    return area.encode(x=alt.X(f"{x}:Q"), y=alt.Y("low:Q"), y2=alt.Y2("high:Q")) + chart


def lines(points: Sequence[Points], x: str, y: str, description: str, *, dots: bool) -> Spec:
    """One line per model, and the diagonal."""
    alone = [(p.x, p.y) for p in points if p.method == "SOLO"]
    band = _band(alone, "x", "y", hold=False)
    rows: Rows = [
        {"method": p.method, "model": model_name(p.method, p.party), "x": p.x[i], "y": p.y[i], "place": i}
        for p in points
        if p.method != "SOLO" or not band
        for i in range(len(p.x))
    ]
    middle = f"SOLO, middle of {len(alone)}"
    rows += [{"method": "SOLO", "model": middle, "place": i, **one} for i, one in enumerate(band)]
    chart = _plot(rows, "line", point=dots).encode(
        x=alt.X("x:Q", title=x),
        y=alt.Y("y:Q", title=y),
        detail=alt.Detail("model:N"),
        order=alt.Order("place:Q"),
        tooltip=[
            alt.Tooltip("model:N"),
            alt.Tooltip("x:Q", format=".3f", title=x),
            alt.Tooltip("y:Q", format=".3f", title=y),
        ],
        strokeWidth=alt.StrokeWidthValue(1.4, condition={"test": "datum.method === 'SimFL'", "value": 3}),
        **_by_method(rows),
    )
    ends = [{"x": end, "y": end} for end in (min(r["x"] for r in rows), max(r["x"] for r in rows))]
    diagonal = _plot(ends, "line", strokeDash=[2, 4], strokeWidth=1, color="gray").encode(
        x=alt.X("x:Q"), y=alt.Y("y:Q")
    )
    return _spec(diagonal + _over_area(chart, band, "x"), description, 300)


def importance(found: Sequence[Importance], name: str, title: str) -> Spec:
    """Columns by one measure of how much they matter."""
    rows: Rows = [{"column": one.feature, "value": getattr(one, name) or 0.0} for one in found]
    chart = _plot(rows).encode(
        x=alt.X("value:Q", title=title),
        y=alt.Y("column:N", sort="-x", title=None, axis=alt.Axis(labelLimit=150)),
        tooltip=[alt.Tooltip("column:N"), alt.Tooltip("value:Q", format=".4f")],
    )
    return _spec(chart, f"Columns by {title}", 19 * len(rows) + 20)


def likeness(found: Similarity) -> Spec:
    """The share of equal hash values, party against party."""
    rows: Rows = [
        {"party": party, "other": other, "share": n / found.n_hashes}
        for party, others in found.equal_hashes.items()
        for other, n in others.items()
    ]
    order = list(found.equal_hashes)
    names = alt.Axis(labelAngle=0, labelLimit=alt.ExprRef("bandwidth('x') - 4"))  # in full on the other axis
    base = _plot(rows).encode(
        x=alt.X("other:N", title="most similar rows of", axis=names, sort=order),
        y=alt.Y("party:N", title="rows of", sort=order),
        tooltip=[
            alt.Tooltip("party:N"),
            alt.Tooltip("other:N"),
            alt.Tooltip("share:Q", format=".0%", title="equal hash values"),
        ],
    )
    scale = alt.Scale(domain=[0, 1], range=["#eaf2fb", "#6aa9e0"])  # light enough for black figures on it
    cells = base.mark_rect().encode(color=alt.Color("share:Q", scale=scale, legend=None))
    labels = base.mark_text(color="#000").encode(text=alt.Text("share:Q", format=".0%"))
    return _spec(cells + labels, "Equal hash values between parties", 36 * len(order) + 20)


def uses(found: Similarity, bins: list[str], parties: list[str], description: str) -> Spec:
    """How often each row was found, as shares of a party's rows."""
    rows: Rows = [
        {"party": party, "times": bins[place], "place": place, "rows": n / max(sum(counts), 1)}
        for party, counts in found.uses.items()
        for place, n in enumerate(counts)
    ]
    chart = _plot(rows).encode(
        x=alt.X("times:O", title="times found", sort=bins, axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        xOffset=alt.XOffset("party:N", sort=parties),
        y=alt.Y("rows:Q", title="share of its rows", axis=alt.Axis(format="%")),
        color=alt.Color("party:N", sort=parties, legend=PARTIES),
        tooltip=[alt.Tooltip("party:N"), alt.Tooltip("times:O"), alt.Tooltip("rows:Q", format=".1%")],
    )
    return _spec(chart, description, 220)


def traffic(amounts: Mapping[tuple[str, str], float], way: str) -> Spec:
    """Bytes by party and kind of message; `way`: sent or received."""
    rows: Rows = [{"party": p, "kind": k, "bytes": n, "amount": amount(n)} for (p, k), n in _few_kinds(amounts).items()]
    chart = _plot(rows).encode(
        x=alt.X("sum(bytes):Q", title=way, axis=alt.Axis(labelExpr=BYTES)),
        y=alt.Y("party:N", title=None, sort=None),
        color=_by_kind(rows),
        tooltip=[alt.Tooltip("party:N"), alt.Tooltip("kind:N"), alt.Tooltip("amount:N")],
    )
    return _spec(chart, f"Bytes {way}, by party and kind of message", 28 * _n_parties(rows) + 20)


def work(seconds: Mapping[tuple[str, str], float], description: str) -> Spec:
    """Seconds by party and kind of question."""
    rows: Rows = [{"party": p, "kind": k, "seconds": s} for (p, k), s in _few_kinds(seconds).items()]
    chart = _plot(rows).encode(
        x=alt.X("sum(seconds):Q", title="seconds at work"),
        y=alt.Y("party:N", title=None, sort=None),
        color=_by_kind(rows),
        tooltip=[alt.Tooltip("party:N"), alt.Tooltip("kind:N"), alt.Tooltip("seconds:Q", format=".2f")],
    )
    return _spec(chart, description, 28 * _n_parties(rows) + 20)


def _few_kinds(amounts: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """By party and kind; kinds too small to be seen are put together, so that there are colours for all."""
    total, merged = defaultdict[str, float](float), defaultdict[tuple[str, str], float](float)
    for (_, kind), n in amounts.items():
        total[kind] += n
    largest = sorted(total, key=total.__getitem__, reverse=True)[:MOST_KINDS]
    shown = {kind for kind in largest if total[kind] >= 0.01 * sum(total.values())}
    for (party, kind), n in amounts.items():
        merged[party, kind if kind in shown else OTHERS] += n
    return merged


def _by_kind(rows: Rows) -> Any:
    """A colour for each kind of message, the largest first; what was put together is gray, and last."""
    size = defaultdict[str, float](float)
    for row in rows:
        size[row["kind"]] += row["bytes"] if "bytes" in row else row["seconds"]
    kinds = sorted(size, key=lambda kind: (kind == OTHERS, -size[kind]))
    free = [colour for colour in IN_ORDER if colour != GRAY]
    colours = [GRAY if kind == OTHERS else free[place] for place, kind in enumerate(kinds)]
    return alt.Color("kind:N", scale=alt.Scale(domain=kinds, range=colours), sort=kinds, legend=KINDS)


def timeline(exchanges: Sequence[Exchange], parties: list[str]) -> Spec:
    """Who worked on which question, and when."""
    rows: Rows = [
        {"party": e.party, "kind": e.kind, "begin": e.begin, "end": e.begin + e.seconds, "seconds": e.seconds}
        for e in exchanges
    ]
    chart = _plot(rows, "bar", height=14, stroke=None, minBandSize=1).encode(
        x=alt.X("begin:Q", title="seconds since the start", scale=alt.Scale(zero=False, nice=False)),
        x2=alt.X2("end:Q"),
        y=alt.Y("party:N", title=None, sort=parties),
        color=alt.Color("kind:N", sort=None, legend=KINDS),
        tooltip=[
            alt.Tooltip("party:N"),
            alt.Tooltip("kind:N"),
            alt.Tooltip("begin:Q", format=".3f"),
            alt.Tooltip("seconds:Q", format=".4f"),
        ],
    )
    return _spec(chart, "Timeline of questions and answers", 30 * _n_parties(rows) + 20)
