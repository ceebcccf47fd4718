"""The charts of the report as Vega-Lite, built with Altair: one function for each kind of chart.

A chart is data that the page draws in the browser. Its colours are names of the page's own: they follow light, dark and
print.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import altair as alt

from simfl.report.record import Curve, Exchange, Gain, Importance, Points, Similarity
from simfl.report.words import METRICS, amount, model_name

Rows = list[dict[str, Any]]
Spec = dict[str, Any]
DASHES: Final = {"SimFL": [1, 0], "SOLO": [4, 3], "TFL": [1, 2], "ALL-IN": [8, 3]}
COLORS: Final = {"SimFL": "var(--c1)", "SOLO": "var(--c2)", "TFL": "var(--c3)", "ALL-IN": "var(--c4)"}
STROKES: Final = alt.Legend(title=None, orient="top", symbolType="stroke")
KINDS: Final = alt.Legend(title=None, orient="bottom", columns=2)
MOST_KINDS = 7  # of messages, in one chart: there are eight colours


def _spec(chart: Any, description: str, height: int) -> Spec:
    spec: Spec = chart.properties(width="container", height=height, description=description).to_dict()
    spec.pop("config", None)
    return spec


def _plot(rows: Rows, mark: Literal["bar", "line", "rule"] = "bar", **look: Any) -> Any:
    return alt.Chart(alt.Data(values=rows), mark=alt.MarkDef(mark, **look))  # type: ignore[no-untyped-call]


def _by_method(rows: Rows) -> dict[str, Any]:
    """Methods differ by their dashes too, for those who cannot tell the colours apart; one legend shows both."""
    shown = [method for method in COLORS if any(row["method"] == method for row in rows)]
    colors = alt.Scale(domain=shown, range=[COLORS[method] for method in shown])
    dashes = alt.Scale(domain=shown, range=[DASHES[method] for method in shown])
    return {
        "color": alt.Color("method:N", scale=colors, legend=STROKES),
        "strokeDash": alt.StrokeDash("method:N", scale=dashes, legend=STROKES),
    }


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
    zero = _plot([{"zero": 0}], "rule", strokeDash=[4, 4]).encode(x="zero:Q")
    bars = base.mark_bar(height=4).encode(x=alt.X("low:Q", title=f"gain in {metric}"), x2="high:Q")
    dots = base.mark_circle(size=130, opacity=1).encode(x="gain:Q")
    return _spec(zero + bars + dots, f"Gain of every party in {metric}, with intervals", 34 * len(rows) + 20)


def progress(rows: Rows, metric: str, description: str) -> Spec:
    """A metric after every round, on training and on validation rows."""
    chart = _plot(rows, "line", strokeWidth=2.5).encode(
        x=alt.X("round:Q", title="boosting rounds"),
        y=alt.Y("value:Q", title=metric, scale=alt.Scale(zero=False)),
        color=alt.Color("rows:N", legend=STROKES),
        tooltip=["round:Q", "rows:N", "builder:N", alt.Tooltip("value:Q", format=".4f")],
    )
    return _spec(chart, description, 240)


def learning(curves: Sequence[Curve], metric: str, heading: str) -> Spec:
    """A metric on held-out rows against the number of rounds, one line per model."""
    rows: Rows = [
        {"method": c.method, "model": model_name(c.method, c.party), "round": t, "value": v}
        for c in curves
        for t, v in zip(c.trees, c.values, strict=True)
    ]
    chart = _plot(rows, "line", strokeWidth=2.2).encode(
        x=alt.X("round:Q", title="boosting rounds"),
        y=alt.Y("value:Q", title=metric, scale=alt.Scale(zero=False)),
        detail="model:N",
        tooltip=["model:N", "round:Q", alt.Tooltip("value:Q", format=".4f")],
        **_by_method(rows),
    )
    return _spec(chart, f"Learning curves {heading}", 200)


def lines(points: Sequence[Points], x: str, y: str, description: str, *, dots: bool) -> Spec:
    """One line per model, and the diagonal."""
    rows: Rows = [
        {"method": p.method, "model": model_name(p.method, p.party), "x": p.x[i], "y": p.y[i], "place": i}
        for p in points
        for i in range(len(p.x))
    ]
    chart = _plot(rows, "line", point=dots).encode(
        x=alt.X("x:Q", title=x),
        y=alt.Y("y:Q", title=y),
        detail="model:N",
        order="place:Q",
        tooltip=["model:N", alt.Tooltip("x:Q", format=".3f", title=x), alt.Tooltip("y:Q", format=".3f", title=y)],
        strokeWidth=alt.condition(alt.datum.method == "SimFL", alt.value(3), alt.value(1.4)),
        **_by_method(rows),
    )
    ends = [{"x": end, "y": end} for end in (min(r["x"] for r in rows), max(r["x"] for r in rows))]
    diagonal = _plot(ends, "line", strokeDash=[2, 4], strokeWidth=1, color="gray").encode(x="x:Q", y="y:Q")
    return _spec(diagonal + chart, description, 300)


def importance(found: Sequence[Importance], name: str, title: str) -> Spec:
    """Columns by one measure of how much they matter."""
    rows: Rows = [{"column": one.feature, "value": getattr(one, name) or 0.0} for one in found]
    chart = _plot(rows).encode(
        x=alt.X("value:Q", title=title),
        y=alt.Y("column:N", sort="-x", title=None, axis=alt.Axis(labelLimit=150)),
        tooltip=["column:N", alt.Tooltip("value:Q", format=".4f")],
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
    base = _plot(rows).encode(
        x=alt.X("other:N", title="most similar rows of", axis=alt.Axis(labelAngle=0), sort=order),
        y=alt.Y("party:N", title="rows of", sort=order),
        tooltip=["party:N", "other:N", alt.Tooltip("share:Q", format=".0%", title="equal hash values")],
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
        color=alt.Color("party:N", sort=parties, legend=alt.Legend(title=None, orient="top", columns=4)),
        tooltip=["party:N", "times:O", alt.Tooltip("rows:Q", format=".1%")],
    )
    return _spec(chart, description, 220)


def traffic(amounts: Mapping[tuple[str, str], float]) -> Spec:
    """Bytes by party and kind of message."""
    rows: Rows = [{"party": p, "kind": k, "bytes": n, "amount": amount(n)} for (p, k), n in _few_kinds(amounts).items()]
    chart = _plot(rows).encode(
        x=alt.X("sum(bytes):Q", title="bytes", axis=alt.Axis(format="~s")),
        y=alt.Y("party:N", title=None, sort=None),
        color=alt.Color("kind:N", legend=KINDS),
        tooltip=["party:N", "kind:N", "amount:N"],
    )
    return _spec(chart, "Bytes by party and kind of message", 28 * _n_parties(rows) + 20)


def work(seconds: Mapping[tuple[str, str], float], description: str) -> Spec:
    """Seconds by party and kind of question."""
    rows: Rows = [{"party": p, "kind": k, "seconds": s} for (p, k), s in _few_kinds(seconds).items()]
    chart = _plot(rows).encode(
        x=alt.X("sum(seconds):Q", title="seconds at work"),
        y=alt.Y("party:N", title=None, sort=None),
        color=alt.Color("kind:N", sort=None, legend=KINDS),
        tooltip=["party:N", "kind:N", alt.Tooltip("seconds:Q", format=".2f")],
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
        merged[party, kind if kind in shown else "other kinds"] += n
    return merged


def timeline(exchanges: Sequence[Exchange], parties: list[str]) -> Spec:
    """Who worked on which question, and when."""
    rows: Rows = [
        {"party": e.party, "kind": e.kind, "begin": e.begin, "end": e.begin + e.seconds, "seconds": e.seconds}
        for e in exchanges
    ]
    chart = _plot(rows, "bar", height=14, stroke=None, minBandSize=1).encode(
        x=alt.X("begin:Q", title="seconds since the start", scale=alt.Scale(zero=False, nice=False)),
        x2="end:Q",
        y=alt.Y("party:N", title=None, sort=parties),
        color=alt.Color("kind:N", sort=None, legend=KINDS),
        tooltip=["party:N", "kind:N", alt.Tooltip("begin:Q", format=".3f"), alt.Tooltip("seconds:Q", format=".4f")],
    )
    return _spec(chart, "Timeline of questions and answers", 30 * _n_parties(rows) + 20)
