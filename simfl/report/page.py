"""The report: one HTML page of a run, complete in itself, that needs no network and no server.

`render` turns a `RunRecord` into the page. The charts are Vega-Lite: vector graphics that can be hovered, printed and
read aloud. Their JavaScript comes with vl-convert. Under every chart stand its numbers.
"""

import contextlib
import functools
import os
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
import msgspec
import vl_convert
from markupsafe import Markup

from simfl.callbacks import duration
from simfl.errors import FileError
from simfl.report.colours import css
from simfl.report.figures import figures
from simfl.report.record import RunRecord
from simfl.report.verdict import verdict
from simfl.report.words import METRICS, amount, date, stopping_rule
from simfl.storage import write_atomically

FILE = "report.html"


def write(folder: str | os.PathLike[str]) -> Path:
    """Write `report.html` beside the `run.json` of a run."""
    home = Path(folder)
    record = RunRecord.load(home)
    if not home.is_dir():
        raise FileError(f"{home} is not a run's folder.")
    write_atomically(home / FILE, render(record).encode())
    return home / FILE


def render(record: RunRecord, *, version: str | None = None) -> str:
    """The page. With a `version` it asks its server for a newer one, for `simfl watch`."""
    loader = jinja2.PackageLoader("simfl.report")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    sections = figures(record)
    specs = {f"{s.name}-{i}": spec for s in sections for i, (_, spec) in enumerate(s.charts)}
    return environment.get_template("report.html.jinja").render(
        run=record,
        started=date(record.started),
        headline=headline(record),
        rule=stopping_rule(record.settings) if record.scores else None,
        facts=_facts(record),
        sections=sections,
        specs=_json(specs),
        record=_json(msgspec.to_builtins(record)),
        library=Markup(_library()),  # noqa: S704
        version=version,
        light=css(0),
        dark=css(1),
    )


def _json(value: Any) -> Markup:
    """JSON that can stand inside a script element, whatever names the parties have."""
    text = msgspec.json.encode(value).decode()
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704


@functools.cache
def _library() -> str:
    """Vega's JavaScript. Bundling takes seconds, so it is kept in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "simfl"
    kept = cache / f"vega-{metadata.version('vl-convert-python')}-{vl_convert.get_vega_version()}.js"
    try:
        return kept.read_text(encoding="utf-8")
    except OSError:
        bundle: str = vl_convert.javascript_bundle().replace("</script", "<\\/script")  # type: ignore[call-arg]
    with contextlib.suppress(OSError):  # a home that cannot be written to only costs time
        cache.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, bundle.encode())
    return bundle


RECENT = 20  # rounds that the pace is taken from


def headline(record: RunRecord) -> list[str]:
    """What the run has shown, in a few sentences."""
    if record.status == "running":
        done = f"{len(record.history)} of {record.n_trees} rounds are done{_left(record)}"
        sent = amount(sum(r.bytes for r in record.history))
        return [f"The training is running: {done}.", *([f"{sent} were sent so far."] if record.history else [])]
    said = verdict(record.gains, record.metric)
    return said or [*_learned(record), *record.notes[:1]] or ["No party's gain was measured in this run."]


def _learned(record: RunRecord) -> list[str]:
    """What a run without measured gains has shown: how far the metric of all parties fell."""
    kept = record.history[: record.n_trees]
    where, metrics = "validation", [r.validation for r in kept]
    if not kept or not metrics[-1]:
        where, metrics = "training", [r.train for r in kept]
    if not kept or not metrics[0] or not metrics[-1]:
        return []
    name, last = next(iter(metrics[-1].items()))
    fell = f"{METRICS.get(name, name)} on {where} rows of all parties went from {metrics[0][name]:.4f} to {last:.4f}"
    return [f"{len(record.parties)} parties trained one model in {len(kept)} rounds: {fell}."]


def _left(record: RunRecord) -> str:
    """How long a running training will take at most, at its present pace."""
    recent = [tree.seconds for tree in record.history[1:]][-RECENT:]  # the first one includes the preparation
    left = record.n_trees - len(record.history)
    if not recent or left < 1:
        return ""
    each = sum(recent) / len(recent)
    return f", {duration(each)} each: at most {duration(each * left)} are left"


def _rows(record: RunRecord) -> str:
    """Counted, or as the study declares them: with epsilon nobody counts."""
    declared = record.settings.get("rows")
    return f"{declared:,} (declared)" if declared else f"{sum(p.n_rows for p in record.parties):,}"


def _facts(record: RunRecord) -> list[tuple[str, str]]:
    sent = sum(n for party in record.traffic.values() for n in party.get("sent", {}).values())
    return [
        ("parties", str(len(record.parties))),
        ("rows to train on", _rows(record)),
        ("held-out rows", f"{sum(p.n_held_out for p in record.parties):,}"),
        ("boosting rounds", str(record.n_trees)),
        ("left the parties", amount(sent)),
        ("time", duration(record.seconds)),
    ]
