"""An audit as one HTML page for people: no script, no other file; light, dark and on paper."""

from __future__ import annotations

import jinja2

from simfl.audit.findings import Audit, Finding, points

WORDS = {"calm": "no better than guessing", "warn": "better than guessing", "bad": "above the limit"}


def page(audit: Audit) -> str:
    """The page, from `templates/audit.html.jinja`."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("simfl.audit"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"percent": "{:.1%}".format, "points": points}
    marked = [(finding, _mark(audit, finding)) for finding in audit.findings]
    n_above = sum(mark != "calm" for _, mark in marked)
    return environment.get_template("audit.html.jinja").render(audit=audit, marked=marked, n_above=n_above, words=WORDS)


def _mark(audit: Audit, finding: Finding) -> str:
    if finding in audit.exceeded:
        return "bad"
    return "warn" if finding.excess_interval[0] > 0 else "calm"
