"""The report: one HTML page of a run, complete in itself, that needs no network and no server.

`render` turns a `RunRecord` into the page. The charts are Vega-Lite (built with Altair, its JavaScript taken from
vl-convert): vector graphics that can be hovered, printed and read aloud. Under every chart stand its numbers.
"""

from __future__ import annotations

import functools
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import altair as alt
import jinja2
import msgspec
import vl_convert
from markupsafe import Markup

from simfl.errors import FileError
from simfl.report.record import Curve, Gain, Points, RunRecord
from simfl.storage import write_atomically

Rows = list[dict[str, Any]]
FILE = "report.html"
METHODS: Final = ("SimFL", "SOLO", "TFL", "ALL-IN")
DASHES: Final = {"SimFL": [1, 0], "SOLO": [4, 3], "TFL": [1, 2], "ALL-IN": [8, 3]}
METHOD_COLORS: Final = {"SimFL": "var(--c1)", "SOLO": "var(--c2)", "TFL": "var(--c3)", "ALL-IN": "var(--c4)"}
METHOD_WORDS: Final = {
    "SimFL": "SimFL (together)",
    "SOLO": "SOLO (alone)",
    "TFL": "TFL (in turns)",
    "ALL-IN": "ALL-IN (pooled)",
}
METRIC_WORDS: Final = {"logloss": "log loss", "error": "error", "auc": "AUC", "rmse": "root mean square error"}
STAGE_1: Final = {
    *("Greet", "Describe", "DescribeLabels", "Settle", "Introduce", "Meet", "Recall"),
    *("Measure", "Hash", "Match", "TakeSimilar"),
}
FIRST_HOPS = 240  # of stage 2, drawn one by one
MOST_FEATURES = 20
EVERYBODY = "all parties"


@dataclass(frozen=True)
class Table:
    """Rows under a head; `numbers` says from which column on they are numbers."""

    head: list[str]
    rows: list[list[str]]
    numbers: int = 1


@dataclass(frozen=True)
class Figure:
    """A chart with the words that say what to see, and its numbers."""

    name: str
    title: str
    words: str
    charts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # heading, Vega-Lite
    table: Table | None = None
    is_open: bool = False  # whether the numbers are shown at once


def write(folder: str | os.PathLike[str]) -> Path:
    """Write `report.html` beside the `run.json` of a run."""
    home = Path(folder)
    record = RunRecord.load(home)
    if not home.is_dir():
        raise FileError(f"{home} is not a run's folder.")
    write_atomically(home / FILE, render(record).encode())
    return home / FILE


def render(record: RunRecord, *, live: bool = False) -> str:
    """The page. `live`: it asks its server for news, for `simfl watch`."""
    sections = figures(record)
    specs = {f"{s.name}-{i}": spec for s in sections for i, (_, spec) in enumerate(s.charts)}
    template = _environment().get_template("report.html.jinja")
    return template.render(
        run=record,
        headline=headline(record),
        facts=_facts(record),
        sections=sections,
        protections=record.protections,
        audit=record.audit,
        settings=sorted(record.settings.items()),
        versions=record.versions.items(),
        specs=_json(specs),
        record=_json(msgspec.to_builtins(record)),
        library=Markup(_library()),  # noqa: S704
        live=live,
    )


def _environment() -> jinja2.Environment:
    folder = str(resources.files("simfl") / "templates")
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )


def _json(value: Any) -> Markup:
    """JSON that can stand inside a script element, whatever names the parties have."""
    text = msgspec.json.encode(value).decode()
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704


@functools.cache
def _library() -> str:
    """Vega's JavaScript. Bundling takes seconds, so it is kept in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "simfl"
    kept = cache / f"vega-{version('vl-convert-python')}-{vl_convert.get_vega_version()}.js"
    try:
        return kept.read_text(encoding="utf-8")
    except OSError:
        bundle: str = vl_convert.javascript_bundle().replace("</script", "<\\/script")  # type: ignore[call-arg]
    try:
        cache.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, bundle.encode())
    except OSError:
        pass  # a home that cannot be written to only costs time
    return bundle


# --- words -----------------------------------------------------------------------------------------------------------


def headline(record: RunRecord) -> list[str]:
    """What the run has shown, in a few sentences."""
    if record.status == "running":
        return [f"The training is going on: {len(record.history)} of {record.n_trees} rounds are done."]
    said = []
    for words, gains in (
        ("On held-out rows of all parties", [g for g in _main(record) if g.rows is None]),
        ("On a party's own held-out rows, with the model adjusted to it,", [g for g in _main(record) if g.adjusted]),
    ):
        if gains:
            said.append(f"{words} {_who_gains(gains)}")
    return said or record.notes[:1] or ["No party's gain was measured in this run."]


def _main(record: RunRecord) -> list[Gain]:
    return [g for g in record.gains if g.metric == record.metric]


def _who_gains(gains: Sequence[Gain]) -> str:
    sure = [g for g in gains if g.low > 0]
    lost = [g for g in gains if g.high < 0]
    metric = METRIC_WORDS[gains[0].metric]
    if len(sure) == len(gains) == 1 and gains[0].alone:
        (one,) = gains
        return f"{one.party} predicts better than alone: its {metric} falls by {100 * one.gain / one.alone:.0f} %."
    if len(sure) == len(gains):
        cut = sorted(100 * g.gain / g.alone for g in gains if g.alone)
        return f"every party predicts better than alone: its {metric} falls by {cut[0]:.0f} to {cut[-1]:.0f} %."
    others = len(gains) - len(sure) - len(lost)
    parts = [f"{len(sure)} of {len(gains)} parties predict better than alone ({metric}, the interval is above zero)"]
    parts += [f"for {others} the held-out rows are too few to tell"] * bool(others)
    parts += [f"{len(lost)} predict worse"] * bool(lost)
    return "; ".join(parts) + "."


def _facts(record: RunRecord) -> list[tuple[str, str]]:
    sent = sum(n for party in record.traffic.values() for n in party.get("sent", {}).values())
    held = sum(p.n_held_out for p in record.parties)
    facts = [
        ("parties", str(len(record.parties))),
        ("rows to train on", f"{sum(p.n_rows for p in record.parties):,}"),
        ("held-out rows", f"{held:,}"),
        ("boosting rounds", str(record.n_trees)),
        ("left the parties", amount(sent)),
        ("seconds", f"{record.seconds:.1f}"),
    ]
    dropped = [p.name for p in record.parties if p.dropped]
    return [*facts, ("dropped out", ", ".join(dropped))] if dropped else facts


def amount(n_bytes: float) -> str:
    """Bytes in words.

    >>> amount(1_234_567)
    '1.2 MB'
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes:.0f} B"


def _label(method: str, party: str | None) -> str:
    return f"{method} {party}" if party else method


# --- the figures, one function each ----------------------------------------------------------------------------------


def figures(record: RunRecord) -> list[Figure]:
    """All figures that the record has data for."""
    made = [
        _gains(record),
        _scores(record),
        _progress(record),
        _learning(record),
        _roc(record),
        _calibration(record),
        _importance(record),
        _likeness(record),
        _uses(record),
        _traffic(record),
        _work(record),
        _timeline(record),
    ]
    return [figure for figure in made if figure is not None]


def _chart(chart: Any, words: str, height: int) -> dict[str, Any]:
    spec: dict[str, Any] = chart.properties(width="container", height=height, description=words).to_dict()
    spec.pop("config", None)  # colours are the page's business: they follow light, dark and print
    return spec


def _plot(rows: Rows) -> Any:
    return alt.Chart(alt.Data(values=rows))  # type: ignore[no-untyped-call]


def _method_color(shown: Sequence[str] = METHODS) -> Any:
    scale = alt.Scale(domain=list(shown), range=[METHOD_COLORS[method] for method in shown])
    return alt.Color("method:N", scale=scale, legend=_legend())


def _method_dash(shown: Sequence[str] = METHODS) -> Any:
    """Methods differ by their dashes too, for those who cannot tell the colours apart; one legend shows both."""
    dashes = [DASHES[method] for method in shown]
    return alt.StrokeDash("method:N", scale=alt.Scale(domain=list(shown), range=dashes), legend=_legend())


def _legend(**more: Any) -> Any:
    return alt.Legend(title=None, orient="top", symbolType="stroke", **more)


def _kinds() -> Any:
    return alt.Legend(title=None, orient="bottom", columns=2)


def _gains(record: RunRecord) -> Figure | None:
    on_all, on_own = ([g for g in _main(record) if g.rows is None], [g for g in _main(record) if g.adjusted])
    if not on_all and not on_own:
        return None
    charts = [
        (heading, _gain_chart(gains))
        for heading, gains in (
            ("on held-out rows of all parties", on_all),
            ("on its own held-out rows, model adjusted", on_own),
        )
        if gains
    ]
    all_gains = [[g.party, _rows_of(g), METRIC_WORDS[g.metric], *_gain_cells(g)] for g in record.gains]
    head = ["party", "measured on rows of", "metric", "alone", "together", "gain", "95 % interval", "rows"]
    words = (
        f"A dot is what a party gains in {METRIC_WORDS[_main(record)[0].metric]} over being alone: right of the dashed "
        "line it is better off together. The line through the dot holds the gain in 95 of 100 resamplings of the "
        "held-out rows. Where an outcome is more or less common at one party than at the others, the shared model is "
        "adjusted before use there: one number, found from the party's own training rows. The numbers below also show "
        "the gain without that."
    )
    return Figure("gain", "What each party gains", words, charts, Table(head, all_gains, 3))


def _gain_chart(gains: Sequence[Gain]) -> dict[str, Any]:
    metric = METRIC_WORDS[gains[0].metric]
    names = ("alone", "together", "gain", "low", "high")
    rows: Rows = [{"party": g.party, **{name: getattr(g, name) for name in names}} for g in gains]
    base = _plot(rows).encode(
        y=alt.Y("party:N", title=None, sort=None),
        tooltip=[alt.Tooltip("party:N"), *(alt.Tooltip(f"{name}:Q", format=".4f") for name in names)],
    )
    zero = _plot([{"zero": 0}]).mark_rule(strokeDash=[4, 4]).encode(x="zero:Q")
    bars = base.mark_bar(height=4).encode(x=alt.X("low:Q", title=f"gain in {metric}"), x2="high:Q")
    dots = base.mark_circle(size=130, opacity=1).encode(x="gain:Q")
    return _chart(zero + bars + dots, f"Gain of every party in {metric}, with intervals", 34 * len(rows) + 20)


def _rows_of(gain: Gain) -> str:
    return f"{gain.rows or EVERYBODY}{', model adjusted' if gain.adjusted else ''}"


def _gain_cells(gain: Gain) -> list[str]:
    each = f"{gain.alone:.4f}", f"{gain.together:.4f}", f"{gain.gain:+.4f}", f"{gain.low:+.4f} to {gain.high:+.4f}"
    return [*each, f"{gain.n_rows:,}"]


def _scores(record: RunRecord) -> Figure | None:
    scores = [s for s in record.scores if s.rows is None]
    if not scores:
        return None
    metrics = list(dict.fromkeys(s.metric for s in scores))
    value = {(s.method, s.party, s.metric): s.value for s in scores}
    models = list(dict.fromkeys((s.method, s.party) for s in scores))
    rows = [
        [METHOD_WORDS.get(m, m), p or ("all, pooled" if m == "ALL-IN" else EVERYBODY)]
        + [f"{value[m, p, name]:.4f}" if (m, p, name) in value else "-" for name in metrics]
        for m, p in models
    ]
    words = "Every method on the same held-out rows of all parties. Lower is better; for AUC, higher."
    head = ["method", "trained on rows of", *(METRIC_WORDS[m] for m in metrics)]
    return Figure("scores", "All methods compared", words, [], Table(head, rows, 2), is_open=True)


def _progress(record: RunRecord) -> Figure | None:
    """The metric of all parties after every round: all that is known while a run goes on."""
    first = record.history[0].validation or record.history[0].train if record.history else {}
    if not first or record.curves:  # with differential privacy no metrics are sent
        return None
    metric = next(iter(first))
    rows: Rows = [
        {"round": r.round + 1, "rows": where, "value": values[metric], "builder": r.builder}
        for r in record.history
        for where, values in (("training rows", r.train), ("validation rows", r.validation))
        if metric in values
    ]
    chart = _plot(rows).mark_line(strokeWidth=2.5)
    chart = chart.encode(
        x=alt.X("round:Q", title="boosting rounds"),
        y=alt.Y("value:Q", title=METRIC_WORDS.get(metric, metric), scale=alt.Scale(zero=False)),
        color=alt.Color("rows:N", legend=_legend()),
        tooltip=["round:Q", "rows:N", "builder:N", alt.Tooltip("value:Q", format=".4f")],
    )
    table = Table(
        ["round", "rows", "metric", "built by"],
        [[str(r["round"]), str(r["rows"]), f"{r['value']:.4f}", str(r["builder"])] for r in rows],
    )
    words = f"The {METRIC_WORDS.get(metric, metric)} over all parties after every round."
    return Figure("progress", "Progress", words, [("", _chart(chart, words, 240))], table)


def _learning(record: RunRecord) -> Figure | None:
    if not record.curves:
        return None
    metric = METRIC_WORDS[record.curves[0].metric]
    charts = []
    for party in (None, *(p.name for p in record.parties)):
        lines = [c for c in record.curves if c.rows == party]
        if lines:
            heading = f"on rows of {party}" if party else "on rows of all parties"
            charts.append((heading, _learning_chart(lines, metric, heading)))
    rows = [
        [_label(c.method, c.party), c.rows or EVERYBODY, f"{min(c.values):.4f}", str(_best(c)), f"{c.values[-1]:.4f}"]
        for c in record.curves
    ]
    head = ["model", "held-out rows of", f"best {metric}", "after rounds", "at the end"]
    words = (
        f"The {metric} on held-out rows after so many boosting rounds; lower is better. On one party's rows the shared "
        "models are adjusted to it, as above."
    )
    return Figure("learning", "Learning curves", words, charts, Table(head, rows, 2))


def _best(curve: Curve) -> int:
    return curve.trees[curve.values.index(min(curve.values))]


def _learning_chart(lines: Sequence[Curve], metric: str, heading: str) -> dict[str, Any]:
    rows: Rows = [
        {"method": c.method, "model": _label(c.method, c.party), "round": t, "value": v}
        for c in lines
        for t, v in zip(c.trees, c.values, strict=True)
    ]
    shown = [method for method in METHODS if any(c.method == method for c in lines)]
    chart = _plot(rows).mark_line(strokeWidth=2.2)
    chart = chart.encode(
        x=alt.X("round:Q", title="boosting rounds"),
        y=alt.Y("value:Q", title=metric, scale=alt.Scale(zero=False)),
        color=_method_color(shown),
        strokeDash=_method_dash(shown),
        detail="model:N",
        tooltip=["model:N", "round:Q", alt.Tooltip("value:Q", format=".4f")],
    )
    return _chart(chart, f"Learning curves {heading}", 200)


def _lines(points: Sequence[Points]) -> list[dict[str, Any]]:
    return [
        {"method": p.method, "model": _label(p.method, p.party), "x": x, "y": y, "place": i}
        for p in points
        for i, (x, y) in enumerate(zip(p.x, p.y, strict=True))
    ]


def _line_chart(
    rows: list[dict[str, Any]], x: str, y: str, words: str, *, dots: bool, diagonal: bool
) -> dict[str, Any]:
    shown = [method for method in METHODS if any(r["method"] == method for r in rows)]
    base = _plot(rows).encode(
        x=alt.X("x:Q", title=x),
        y=alt.Y("y:Q", title=y),
        color=_method_color(shown),
        detail="model:N",
        order="place:Q",
        tooltip=["model:N", alt.Tooltip("x:Q", format=".3f", title=x), alt.Tooltip("y:Q", format=".3f", title=y)],
    )
    is_main = alt.datum.method == "SimFL"
    chart: Any = base.mark_line(point=dots).encode(
        strokeWidth=alt.condition(is_main, alt.value(3), alt.value(1.4)),
        strokeDash=_method_dash(shown),
    )
    if diagonal:
        low, high = min(r["x"] for r in rows), max(r["x"] for r in rows)
        line = [{"x": low, "y": low}, {"x": high, "y": high}]
        chart = _plot(line).mark_line(strokeDash=[2, 4], strokeWidth=1, color="gray").encode(x="x:Q", y="y:Q") + chart
    return _chart(chart, words, 300)


def _roc(record: RunRecord) -> Figure | None:
    if not record.roc:
        return None
    words = "The further up and to the left, the better a model tells the two classes apart."
    chart = _line_chart(
        _lines(record.roc), "share of false alarms", "share found", "ROC curves", dots=False, diagonal=True
    )
    areas = {(s.method, s.party): s.value for s in record.scores if s.metric == "auc" and s.rows is None}
    rows = [[_label(p.method, p.party), f"{areas.get((p.method, p.party), _area(p)):.4f}"] for p in record.roc]
    return Figure("roc", "ROC curves", words, [("", chart)], Table(["model", "area under it"], rows))


def _area(points: Points) -> float:
    """The area under a line."""
    corners = list(zip(points.x, points.y, strict=True))
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(corners))


def _calibration(record: RunRecord) -> Figure | None:
    if not record.calibration:
        return None
    regression = record.objective.startswith("reg")
    x, y = ("predicted", "observed mean") if regression else ("predicted probability", "observed share")
    words = (
        "Held-out rows in ten groups by their prediction. On the dotted line, what was predicted is what happened; "
        "a model trained on one party's rows is often off it elsewhere."
    )
    chart = _line_chart(_lines(record.calibration), x, y, "Calibration", dots=True, diagonal=True)
    rows = [
        [_label(p.method, p.party), f"{a:.4f}", f"{b:.4f}", f"{n:,}"]
        for p in record.calibration
        for a, b, n in zip(p.x, p.y, p.weights, strict=True)
    ]
    return Figure("calibration", "Calibration", words, [("", chart)], Table(["model", x, y, "rows"], rows))


def _importance(record: RunRecord) -> Figure | None:
    found = record.importance[:MOST_FEATURES]
    if not found:
        return None
    charts = []
    if any(one.shap is not None for one in found):
        charts.append(("mean absolute SHAP value", _importance_chart(found, "shap", "effect on the score")))
    if any(one.gain is not None for one in found):
        charts.append(("gain over all splits and parties", _importance_chart(found, "gain", "loss taken away")))
    rows = [
        [
            one.feature,
            "-" if one.shap is None else f"{one.shap:.4f}",
            "-" if one.gain is None else f"{one.gain:.1f}",
            str(one.splits),
        ]
        for one in record.importance
    ]
    words = (
        "Which columns the model uses: how far each moves the score of a held-out row (SHAP, from XGBoost's own "
        "contributions; only where there are rows to look at), and how much loss its splits took away for all parties "
        "together."
    )
    if len(record.importance) > MOST_FEATURES:
        words += f" The {MOST_FEATURES} strongest are drawn."
    return Figure("importance", "Important columns", words, charts, Table(["column", "SHAP", "gain", "splits"], rows))


def _importance_chart(found: Sequence[Any], name: str, title: str) -> dict[str, Any]:
    rows: Rows = [{"column": one.feature, "value": getattr(one, name) or 0.0} for one in found]
    chart = _plot(rows).mark_bar()
    chart = chart.encode(
        x=alt.X("value:Q", title=title),
        y=alt.Y("column:N", sort="-x", title=None, axis=alt.Axis(labelLimit=150)),
        tooltip=["column:N", alt.Tooltip("value:Q", format=".4f")],
    )
    return _chart(chart, f"Columns by {title}", 19 * len(rows) + 20)


def _likeness(record: RunRecord) -> Figure | None:
    found = record.similarity
    if found is None:
        return None
    rows: Rows = [
        {"party": party, "other": other, "share": n / found.n_hashes}
        for party, others in found.equal_hashes.items()
        for other, n in others.items()
    ]
    base = _plot(rows).encode(
        x=alt.X("other:N", title="most similar rows of", axis=alt.Axis(labelAngle=0), sort=list(found.equal_hashes)),
        y=alt.Y("party:N", title="rows of", sort=list(found.equal_hashes)),
        tooltip=["party:N", "other:N", alt.Tooltip("share:Q", format=".0%", title="equal hash values")],
    )
    scale = alt.Scale(domain=[0, 1], range=["#eaf2fb", "#6aa9e0"])  # light enough for black figures on it
    cells = base.mark_rect().encode(color=alt.Color("share:Q", scale=scale, legend=None))
    labels = base.mark_text(color="#000").encode(text=alt.Text("share:Q", format=".0%"))
    words = (
        f"The share of the {found.n_hashes} hash values that a row and the most similar row of another party have in "
        "common, on average. Where it is low, that party has hardly any rows like these."
    )
    table = Table(
        ["rows of", "most similar rows of", "equal hash values", "of"],
        [[r["party"], r["other"], f"{r['share'] * found.n_hashes:.2f}", str(found.n_hashes)] for r in rows],
        2,
    )
    chart = _chart(cells + labels, "Equal hash values between parties", 36 * len(found.equal_hashes) + 20)
    return Figure("likeness", "How alike the parties' rows are", words, [("", chart)], table)


def _uses(record: RunRecord) -> Figure | None:
    found = record.similarity
    if found is None or not found.uses:
        return None
    bins = [_bin(place) for place in range(max(map(len, found.uses.values())))]
    rows: Rows = [
        {"party": party, "times": bins[place], "place": place, "rows": n / max(sum(counts), 1)}
        for party, counts in found.uses.items()
        for place, n in enumerate(counts)
    ]
    order = [p.name for p in record.parties]
    chart = _plot(rows).mark_bar()
    chart = chart.encode(
        x=alt.X("times:O", title="times found", sort=bins, axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        xOffset=alt.XOffset("party:N", sort=order),
        y=alt.Y("rows:Q", title="share of its rows", axis=alt.Axis(format="%")),
        color=alt.Color("party:N", sort=order, legend=alt.Legend(title=None, orient="top", columns=4)),
        tooltip=["party:N", "times:O", alt.Tooltip("rows:Q", format=".1%")],
    )
    table = Table(
        ["party", *(f"{name} times" for name in bins), "most rows of one party that resemble the same row"],
        [
            [party, *(f"{n:,}" for n in counts + [0] * (len(bins) - len(counts))), str(found.most_uses.get(party, "-"))]
            for party, counts in found.uses.items()
        ],
    )
    words = (
        "How often each row was chosen as similar by rows of the other parties. Gradients gather on rows that are "
        "chosen often; a row that is never chosen learns from its own party only."
    )
    return Figure("uses", "How often each row is used", words, [("", _chart(chart, words, 220))], table)


def _bin(place: int) -> str:
    """What a count of this many binary digits can be.

    >>> [_bin(place) for place in range(4)]
    ['0', '1', '2-3', '4-7']
    """
    return str(place) if place < 2 else f"{2 ** (place - 1)}-{2**place - 1}"


def _traffic(record: RunRecord) -> Figure | None:
    rows: Rows = [
        {"party": party, "way": way, "kind": kind, "bytes": n}
        for party, ways in record.traffic.items()
        for way in ("sent", "received")
        for kind, n in ways.get(way, {}).items()
        if n
    ]
    if not rows:
        return None
    charts = [
        (f"{way} by the party", _traffic_chart([r for r in rows if r["way"] == way])) for way in ("sent", "received")
    ]
    table = Table(
        ["party", "way", "kind of message", "bytes"],
        [[r["party"], r["way"], r["kind"], f"{r['bytes']:,}"] for r in rows],
        3,
    )
    words = (
        "Bytes by kind of message. What a party sends is what leaves it; each kind is described in simfl/messages.py."
    )
    return Figure("traffic", "Traffic", words, charts, table)


def _traffic_chart(rows: list[dict[str, Any]]) -> dict[str, Any]:
    merged = _few_kinds({(r["party"], r["kind"]): r["bytes"] for r in rows})
    values: Rows = [{"party": p, "kind": k, "bytes": n, "amount": amount(n)} for (p, k), n in merged.items()]
    chart = _plot(values).mark_bar()
    chart = chart.encode(
        x=alt.X("sum(bytes):Q", title="bytes", axis=alt.Axis(format="~s")),
        y=alt.Y("party:N", title=None, sort=None),
        color=alt.Color("kind:N", legend=_kinds()),
        tooltip=["party:N", "kind:N", "amount:N"],
    )
    return _chart(chart, "Bytes by party and kind of message", 28 * len(record_parties(values)) + 20)


def _few_kinds(amounts: dict[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """By party and kind; what is too small to be seen is put together, so that there are colours for all kinds."""
    total = Counter[str]()
    for (_, kind), n in amounts.items():
        total[kind] += n  # type: ignore[assignment]
    shown = {kind for kind, n in total.most_common(7) if n >= 0.01 * total.total()}
    merged: dict[tuple[str, str], float] = defaultdict(float)
    for (party, kind), n in amounts.items():
        merged[party, kind if kind in shown else "other kinds"] += n
    return merged


def record_parties(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The parties that occur, in order."""
    return list(dict.fromkeys(row["party"] for row in rows))


def _work(record: RunRecord) -> Figure | None:
    if not record.timeline:
        return None
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for hop in record.timeline:
        seconds[hop.party, hop.kind] += hop.seconds
    values: Rows = [{"party": p, "kind": k, "seconds": s} for (p, k), s in _few_kinds(seconds).items()]
    chart = _plot(values).mark_bar()
    chart = chart.encode(
        x=alt.X("sum(seconds):Q", title="seconds at work"),
        y=alt.Y("party:N", title=None, sort=None),
        color=alt.Color("kind:N", sort=None, legend=_kinds()),
        tooltip=["party:N", "kind:N", alt.Tooltip("seconds:Q", format=".2f")],
    )
    built = Counter(name for r in record.history for name in r.builder.split(", "))
    parties = record_parties(values)
    table = Table(
        ["party", "trees built", "seconds at work"],
        [[p, str(built.get(p, 0)), f"{sum(v['seconds'] for v in values if v['party'] == p):.2f}"] for p in parties],
    )
    words = (
        "Seconds that each party worked, by the question it was asked. The parties of a simulation share one machine."
    )
    charts = [("", _chart(chart, words, 28 * len(parties) + 20))]
    return Figure("work", "Who worked how long", words, charts, table)


def _timeline(record: RunRecord) -> Figure | None:
    if not record.timeline:
        return None
    begins = next((i for i, h in enumerate(record.timeline) if h.kind not in STAGE_1), len(record.timeline))
    first, second = record.timeline[:begins], record.timeline[begins:]
    charts = [
        (title, _timeline_chart(hops, [p.name for p in record.parties]))
        for title, hops in (("stage 1: similar rows", first), ("stage 2: the first rounds", second[:FIRST_HOPS]))
        if hops
    ]
    dropped = "; ".join(f"{p.name} left: {p.dropped}" for p in record.parties if p.dropped)
    words = "Who was asked what, and how long the answer took. Where nobody works, the hub adds up. " + (
        dropped or "No party dropped out."
    )
    kinds = Counter(h.kind for h in record.timeline)
    table = Table(["question", "times asked"], [[kind, f"{n:,}"] for kind, n in kinds.items()])
    return Figure("timeline", "Time line", words, charts, table)


def _timeline_chart(hops: Sequence[Any], parties: list[str]) -> dict[str, Any]:
    rows: Rows = [
        {"party": h.party, "kind": h.kind, "begin": h.begin, "end": h.begin + h.seconds, "seconds": h.seconds}
        for h in hops
    ]
    chart = _plot(rows).mark_bar(height=14, stroke=None, minBandSize=1)
    chart = chart.encode(
        x=alt.X("begin:Q", title="seconds since the start", scale=alt.Scale(zero=False, nice=False)),
        x2="end:Q",
        y=alt.Y("party:N", title=None, sort=parties),
        color=alt.Color("kind:N", sort=None, legend=_kinds()),
        tooltip=["party:N", "kind:N", alt.Tooltip("begin:Q", format=".3f"), alt.Tooltip("seconds:Q", format=".4f")],
    )
    return _chart(chart, "Time line of questions and answers", 30 * len(record_parties(rows)) + 20)
