"""The figures of the report, one function each: what is shown, the words that say what to see, and the numbers.

A function returns None where the record has no data for its figure.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from altair.utils.schemapi import debug_mode

from simfl.callbacks import TreeRecord
from simfl.report import charts
from simfl.report.record import Curve, Gain, Points, RunRecord
from simfl.report.verdict import main_gains
from simfl.report.words import EVERYBODY, METHODS, METRICS, RISING, model_name, trained_on

START = "Start"  # the question that begins stage 2
FIRST_EXCHANGES = 240  # of stage 2, drawn one by one
MOST_FEATURES = 20


@dataclass(frozen=True)
class Figure:
    """Charts with the words that say what to see, and a table of their numbers."""

    name: str
    title: str
    words: str
    charts: list[tuple[str, charts.Spec]]  # heading, Vega-Lite
    head: list[str]
    rows: list[list[str]]
    numbers: int = 1  # the first column that holds numbers
    is_open: bool = False  # whether the numbers are shown at once
    best: frozenset[tuple[int, int]] = frozenset()  # the cells (row, column) with the best value
    is_folded: bool = False  # whether the charts are shown only on demand


def figures(record: RunRecord) -> list[Figure]:
    """All figures that the record has data for."""
    quality = (_gains, _own, _scores, _progress, _learning, _roc, _calibration, _importance)
    # Altair would check every part against a schema: a third of the time, and the tests draw all charts.
    with debug_mode(False):
        made = [figure(record) for figure in (*quality, _likeness, _uses, _traffic, _work, _timeline)]
    return [figure for figure in made if figure is not None]


def _gains(record: RunRecord) -> Figure | None:
    on_own, on_all = main_gains(record.gains, record.metric)
    if not on_all and not on_own:
        return None
    headings = ("on its own held-out rows, model adjusted", "on held-out rows of all parties")
    drawn = [(heading, charts.gains(g)) for heading, g in zip(headings, (on_own, on_all), strict=True) if g]
    head = ["party", "measured on rows of", "metric", "alone", "together", "gain", "from (95 %)", "to (95 %)", "rows"]
    words = (
        f"A dot is what a party gains in {METRICS[(on_all or on_own)[0].metric]} over being alone: right of the dashed "
        f"line it is better off together. The line through the dot is its 95 % interval, {_interval(record.n_splits)}. "
        "Where an outcome is more or less common at one party than at the others, the shared model is adjusted before "
        "use there: one number, found from the party's own training rows. The numbers below also show the gain "
        "without that."
    )
    return Figure("gain", "What each party gains", words, drawn, head, [_gain_cells(g) for g in record.gains], 3)


def _interval(n_splits: int) -> str:
    if n_splits == 1:
        return "by resampling the held-out rows"
    return (
        f"over {n_splits} splits into training and held-out rows, widened because they share rows (Nadeau and Bengio)"
    )


def _gain_cells(gain: Gain) -> list[str]:
    use = ", model adjusted" if gain.adjusted else ", model continued" if gain.continued else ""
    rows = f"{gain.rows or EVERYBODY}{use}"
    scores = f"{gain.alone:.4f}", f"{gain.together:.4f}", f"{gain.gain:+.4f}", f"{gain.low:+.4f}", f"{gain.high:+.4f}"
    return [gain.party, rows, METRICS[gain.metric], *scores, f"{gain.n_rows:,}"]


def _own(record: RunRecord) -> Figure | None:
    """All methods on each party's own rows."""
    scores = [s for s in record.scores if s.rows is not None]
    if not scores:
        return None
    metric = METRICS[scores[0].metric]
    methods = [method for method in METHODS if any(s.method == method for s in scores)]
    values = {(s.rows, s.method): s.value for s in scores}
    rows = [
        [party, *(f"{values[party, method]:.4f}" for method in methods)]
        for party in dict.fromkeys(str(s.rows) for s in scores)
    ]
    words = (
        f"The {metric} of every method on the held-out rows of each party; further left is better. SOLO is the party's "
        "own model; the others are adjusted to its rows, as a party would use them."
    )
    head, chart = ["rows of", *(METHODS[m] for m in methods)], charts.own(scores, metric)
    best = frozenset((i, 1 + _place_of_best([values[row[0], m] for m in methods])) for i, row in enumerate(rows))
    return Figure("own", "On each party's own rows", words, [("", chart)], head, rows, is_open=True, best=best)


def _place_of_best(values: Sequence[float | None], *, highest: bool = False) -> int:
    known = [(value, place) for place, value in enumerate(values) if value is not None]
    return (max if highest else min)(known)[1]


def _scores(record: RunRecord) -> Figure | None:
    scores = [s for s in record.scores if s.rows is None]
    if not scores:
        return None
    metrics = list(dict.fromkeys(s.metric for s in scores))
    cells = {(s.method, s.party, s.metric): f"{s.value:.4f}" for s in scores}
    rows = [
        [METHODS.get(method, method), trained_on(method, party)]
        + [cells.get((method, party, metric), "-") for metric in metrics]
        for method, party in dict.fromkeys((s.method, s.party) for s in scores)
    ]
    higher = "".join(f"; for {METRICS[metric]}, higher" for metric in metrics if metric in RISING)
    words = f"Every method on the same held-out rows of all parties. Lower is better{higher}."
    head = ["method", "trained on rows of", *(METRICS[m] for m in metrics)]
    exact = {(s.method, s.party, s.metric): s.value for s in scores}
    order = list(dict.fromkeys((s.method, s.party) for s in scores))
    best = frozenset(
        (_place_of_best([exact.get((*one, metric)) for one in order], highest=metric in RISING), 2 + place)
        for place, metric in enumerate(metrics)
    )
    return Figure("scores", "All methods compared", words, [], head, rows, 2, is_open=True, best=best)


def _progress(record: RunRecord) -> Figure | None:
    """The metric of all parties after every round: all that is known while a run is going on."""
    first = record.history[0].validation or record.history[0].train if record.history else {}
    if not first or record.curves:  # with differential privacy no metrics are sent
        return None
    metric = next(iter(first))
    rows: charts.Rows = [
        {
            "round": r.round + 1,
            "rows": where,
            "value": values[metric],
            "builder": r.builder,
            "absent": ", ".join(r.absent),
        }
        for r in record.history
        for where, values in (("training rows", r.train), ("validation rows", r.validation))
        if metric in values
    ]
    name = METRICS.get(metric, metric)
    gaps = absences(record.history)
    words = f"The {name} over all parties after every round.{_without(gaps)}"
    cells = [[str(r["round"]), r["rows"], f"{r['value']:.4f}", r["builder"]] for r in rows]
    head = ["round", "rows", "metric", "built by"]
    return Figure("progress", "Progress", words, [("", charts.progress(rows, gaps, name, words))], head, cells)


def absences(history: Sequence[TreeRecord]) -> charts.Rows:
    """Which parties were absent, from which round to which."""
    found: charts.Rows = []
    for tree in history:
        absent = ", ".join(tree.absent)
        if not absent:
            continue
        if found and found[-1]["absent"] == absent and found[-1]["last"] == tree.round:
            found[-1]["last"] = tree.round + 1
        else:
            found.append({"first": tree.round + 1, "last": tree.round + 1, "absent": absent})
    return found


def _without(gaps: charts.Rows) -> str:
    """Whose rows are not in the mean, and when."""
    spans = [f"in rounds {g['first']} to {g['last']} without the rows of {g['absent']}" for g in gaps[:5]]
    more = f", and {len(gaps) - 5} times more" if len(gaps) > 5 else ""
    return f" It is the mean over the parties that were there (shaded: {'; '.join(spans)}{more})." if gaps else ""


def _learning(record: RunRecord) -> Figure | None:
    if not record.curves:
        return None
    metric = METRICS[record.curves[0].metric]
    drawn, far = [], charts.falls_far(record.curves)
    for party in (None, *(p.name for p in record.parties)):
        if lines := [c for c in record.curves if c.rows == party]:
            heading = f"on rows of {party or EVERYBODY}"
            drawn.append((heading, charts.learning(lines, metric, heading, logarithmic=far)))
    head = ["model", "held-out rows of", f"best {metric}", "after rounds", "at the end"]
    words = (
        f"The {metric} on held-out rows against the number of boosting rounds; lower is better. On one party's "
        "rows: its own model, and SimFL's and the pooled one adjusted to it, as above. Models of many parties alone "
        "are drawn as a band, from the lowest to the highest, with their middle."
    )
    return Figure("learning", "Learning curves", words, drawn, head, [_curve_cells(c) for c in record.curves], 2)


def _curve_cells(curve: Curve) -> list[str]:
    best = min(curve.values)
    scores = f"{best:.4f}", str(curve.trees[curve.values.index(best)]), f"{curve.values[-1]:.4f}"
    return [model_name(curve.method, curve.party), curve.rows or EVERYBODY, *scores]


def _roc(record: RunRecord) -> Figure | None:
    if not record.roc:
        return None
    words = "The further up and to the left, the better a model tells the two classes apart."
    chart = charts.lines(record.roc, "share of false alarms", "share found", "ROC curves", dots=False)
    areas = {(s.method, s.party): s.value for s in record.scores if s.metric == "auc" and s.rows is None}
    rows = [[model_name(p.method, p.party), f"{areas.get((p.method, p.party), _area(p)):.4f}"] for p in record.roc]
    return Figure("roc", "ROC curves", words, [("", chart)], ["model", "area under it"], rows)


def _area(line: Points) -> float:
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(zip(line.x, line.y, strict=True)))


def _calibration(record: RunRecord) -> Figure | None:
    if not record.calibration:
        return None
    x, y = _predicted_and_observed(record.objective)
    words = (
        "Held-out rows in ten groups by their prediction. On the dotted line, what was predicted is what happened; "
        "a model trained on one party's rows is often off it elsewhere."
    )
    chart = charts.lines(record.calibration, x, y, "Calibration", dots=True)
    rows = [
        [model_name(p.method, p.party), f"{a:.4f}", f"{b:.4f}", f"{n:,}"]
        for p in record.calibration
        for a, b, n in zip(p.x, p.y, p.weights, strict=True)
    ]
    return Figure("calibration", "Calibration", words, [("", chart)], ["model", x, y, "rows"], rows)


def _predicted_and_observed(objective: str) -> tuple[str, str]:
    """What the two axes of the calibration are.

    >>> _predicted_and_observed("binary:logistic"), _predicted_and_observed("count:poisson")
    (('predicted probability', 'observed share'), ('predicted', 'observed mean'))
    """
    if objective.startswith("multi:"):
        return "predicted probability of the likeliest class", "share of rows where it is right"
    return (
        ("predicted probability", "observed share")
        if objective.startswith("binary:")
        else ("predicted", "observed mean")
    )


def _importance(record: RunRecord) -> Figure | None:
    found = record.importance[:MOST_FEATURES]
    if not found:
        return None
    drawn = []
    if any(one.shap is not None for one in found):
        drawn.append(("mean absolute SHAP value", charts.importance(found, "shap", "effect on the score")))
    if any(one.gain is not None for one in found):
        drawn.append(("gain over all splits and parties", charts.importance(found, "gain", "loss removed")))
    words = (
        "Which columns the model uses: how far each moves the score of a held-out row (SHAP, from XGBoost's own "
        "contributions, on at most 2,000 rows drawn at random, whose own numbers at every node it uses; only where "
        "there are rows to look at), and how much loss its splits removed for all parties together."
    )
    if len(record.importance) > MOST_FEATURES:
        words += f" The {MOST_FEATURES} strongest are drawn."
    rows = [[i.feature, _cell(i.shap, 4), _cell(i.gain, 1), str(i.splits)] for i in record.importance]
    return Figure("importance", "Important columns", words, drawn, ["column", "SHAP", "gain", "splits"], rows)


def _cell(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _likeness(record: RunRecord) -> Figure | None:
    found = record.similarity
    if found is None:
        return None
    words = (
        f"The share of the {found.n_hashes} hash values that a row and the most similar row of another party have in "
        "common, on average. Where it is low, that party has hardly any rows like these."
    )
    rows = [
        [party, other, f"{n:.2f}", str(found.n_hashes)]
        for party, others in found.equal_hashes.items()
        for other, n in others.items()
    ]
    head = ["rows of", "most similar rows of", "equal hash values", "of"]
    return Figure("likeness", "How alike the parties' rows are", words, [("", charts.likeness(found))], head, rows, 2)


def _uses(record: RunRecord) -> Figure | None:
    found = record.similarity
    if found is None or not found.uses:
        return None
    bins = [_bin(place) for place in range(max(map(len, found.uses.values())))]
    words = (
        "How often each row was chosen as similar by rows of the other parties. Gradients gather on rows that are "
        "chosen often; a row that is never chosen learns from its own party only."
    )
    head = ["party", *(f"{name} times" for name in bins), "most rows of one party that resemble the same row"]
    rows = [
        [party, *(f"{n:,}" for n in counts + [0] * (len(bins) - len(counts))), str(found.most_uses.get(party, "-"))]
        for party, counts in found.uses.items()
    ]
    chart = charts.uses(found, bins, [p.name for p in record.parties], words)
    return Figure("uses", "How often each row is used", words, [("", chart)], head, rows)


def _bin(place: int) -> str:
    """What a count with this number of binary digits can be.

    >>> [_bin(place) for place in range(4)]
    ['0', '1', '2-3', '4-7']
    """
    return str(place) if place < 2 else f"{2 ** (place - 1)}-{2**place - 1}"


def _traffic(record: RunRecord) -> Figure | None:
    amounts = {
        (way, party, kind): n
        for party, ways in record.traffic.items()
        for way in ("sent", "received")
        for kind, n in ways.get(way, {}).items()
        if n
    }
    if not amounts:
        return None
    drawn = []
    for way in ("sent", "received"):
        this_way = {(party, kind): n for (w, party, kind), n in amounts.items() if w == way}
        drawn.append((f"{way} by the party", charts.traffic(this_way, way)))
    rows = [[party, way, kind, f"{n:,}"] for (way, party, kind), n in amounts.items()]
    words = (
        "Bytes by kind of message. What a party sends is what leaves it; each kind is described in simfl/messages.py."
    )
    return Figure("traffic", "Traffic", words, drawn, ["party", "way", "kind of message", "bytes"], rows, 3)


def _work(record: RunRecord) -> Figure | None:
    if not record.timeline:
        return None
    seconds, total = defaultdict[tuple[str, str], float](float), defaultdict[str, float](float)
    for exchange in record.timeline:
        seconds[exchange.party, exchange.kind] += exchange.seconds
        total[exchange.party] += exchange.seconds
    words = (
        "Seconds that each party worked, by the question it was asked. The parties of a simulation share one machine."
    )
    built = Counter(r.builder for r in record.history)
    rows = [[party, str(built[party]), f"{spent:.2f}"] for party, spent in total.items()]
    head = ["party", "trees built", "seconds at work"]
    return Figure("work", "How long each party worked", words, [("", charts.work(seconds, words))], head, rows)


def _timeline(record: RunRecord) -> Figure | None:
    asked = record.timeline
    if not asked:
        return None
    start = next((i for i, exchange in enumerate(asked) if exchange.kind == START), len(asked))
    stages = {
        "stage 1: similar rows": asked[:start],
        "stage 2: the first rounds": asked[start : start + FIRST_EXCHANGES],
    }
    parties = [p.name for p in record.parties]
    drawn = [(heading, charts.timeline(part, parties)) for heading, part in stages.items() if part]
    dropped = "; ".join(f"{p.name} left: {p.dropped}" for p in record.parties if p.dropped)
    words = (
        "Who was asked what, and how long the answer took. Where nobody works, the hub is adding up. "
        f"{dropped or 'No party dropped out.'}"
    )
    kinds = Counter(exchange.kind for exchange in asked)
    rows = [[kind, f"{n:,}"] for kind, n in kinds.items()]
    return Figure("timeline", "Timeline", words, drawn, ["question", "times asked"], rows, is_folded=True)
