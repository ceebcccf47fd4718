"""The report: one HTML page of a run, complete in itself, that needs no network and no server.

`render` turns a `RunRecord` into the page. The charts are Vega-Lite: vector graphics that can be hovered, printed and
read aloud. Their JavaScript comes with vl-convert. Under every chart stand its numbers.
"""

import contextlib
import functools
import os
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
import msgspec
import vl_convert
from markupsafe import Markup

from simfl.errors import FileError
from simfl.report.figures import figures, main_gains
from simfl.report.record import Gain, RunRecord
from simfl.report.words import METRICS, amount
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
        headline=headline(record),
        facts=_facts(record),
        sections=sections,
        specs=_json(specs),
        record=_json(msgspec.to_builtins(record)),
        library=Markup(_library()),  # noqa: S704
        version=version,
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


def headline(record: RunRecord) -> list[str]:
    """What the run has shown, in a few sentences."""
    if record.status == "running":
        return [f"The training is running: {len(record.history)} of {record.n_trees} rounds are done."]
    where = ("On held-out rows of all parties", "On a party's own held-out rows, with the model adjusted to it,")
    said = [f"{words} {_who_gains(gains)}" for words, gains in zip(where, main_gains(record), strict=True) if gains]
    return said or record.notes[:1] or ["No party's gain was measured in this run."]


def _who_gains(gains: Sequence[Gain]) -> str:
    sure, lost = sum(g.low > 0 for g in gains), sum(g.high < 0 for g in gains)
    metric = METRICS[gains[0].metric]
    if sure == len(gains):
        cut = sorted(100 * g.gain / g.alone for g in gains)  # a sure gain is above zero, so the loss alone is too
        who, falls = (gains[0].party, "") if len(gains) == 1 else ("every party", f"{cut[0]:.0f} to ")
        return f"{who} predicts better than alone: its {metric} falls by {falls}{cut[-1]:.0f} %."
    unclear = len(gains) - sure - lost
    parts = [f"{sure} of {len(gains)} parties predict better than alone ({metric}, the interval is above zero)"]
    parts += [f"for {unclear} the held-out rows are too few to tell"] * bool(unclear)
    parts += [f"{lost} predict worse"] * bool(lost)
    return "; ".join(parts) + "."


def _facts(record: RunRecord) -> list[tuple[str, str]]:
    sent = sum(n for party in record.traffic.values() for n in party.get("sent", {}).values())
    facts = [
        ("parties", str(len(record.parties))),
        ("rows to train on", f"{sum(p.n_rows for p in record.parties):,}"),
        ("held-out rows", f"{sum(p.n_held_out for p in record.parties):,}"),
        ("boosting rounds", str(record.n_trees)),
        ("left the parties", amount(sent)),
        ("seconds", f"{record.seconds:.1f}"),
    ]
    dropped = [p.name for p in record.parties if p.dropped]
    return [*facts, ("dropped out", ", ".join(dropped))] if dropped else facts
