"""The charts of the report as Vega-Lite, built with Altair: one function for each kind of chart.

A chart is data that the page draws in the browser. Its colours are names of the page's own: they follow light, dark and
print. Channels are given as objects (`alt.X("value:Q")`): Altair takes twenty milliseconds to make one of a text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import altair as alt
import numpy as np
from altair.utils.schemapi import debug_mode

from simfl.report.colours import ON_PAGE
from simfl.report.record import Curve, Gain, Importance, Points, Score
from simfl.report.words import JOINT, METHODS, METRICS, model_name

Rows = list[dict[str, Any]]
Spec = dict[str, Any]
DASHES: Final = {"SimFL": [1, 0], JOINT: [6, 1, 1, 1], "SOLO": [4, 3], "TFL": [3, 2], "ALL-IN": [8, 3]}
# The page puts in the number that fits before it draws, 0 for all entries in a row. As an expression it would come too
# late: the room above a chart is laid out for one row of entries.
ROW: Final[dict[str, Any]] = {"title": None, "orient": "top", "columns": alt.ExprRef("narrow ? 3 : 0")}
STROKES: Final = alt.Legend(symbolType="stroke", **ROW)
FOLDED = 3  # lines of parties alone: from here on they are drawn as a band
BAND_POINTS = 25
FAR = 4  # times: curves that fall from more are drawn on a logarithmic scale


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
    n_parties = len({row["party"] for row in rows})
    return _spec(chart, f"The {metric} of every method on each party's own rows", 34 * n_parties + 20)


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
