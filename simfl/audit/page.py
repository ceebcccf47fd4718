"""An audit as one page for people: no script, no other file; light, dark and on paper."""

from __future__ import annotations

from html import escape

from simfl.audit.findings import Advice, Audit, Finding, points

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; --paper: #ffffff; --box: #f6f8fa;
  --calm: #1a7f37; --warn: #9a6700; --bad: #cf222e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --paper: #0d1117;
  --box: #151b23; --calm: #3fb950; --warn: #d29922; --bad: #f85149; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 62rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; } h2 { font-size: 1.2rem; margin: 2.25rem 0 .75rem; }
p { margin: .4rem 0; } .soft { color: var(--soft); }
.verdict { border-left: .3rem solid var(--warn); background: var(--box); padding: .7rem 1rem; margin: 1.25rem 0; }
.verdict.bad { border-color: var(--bad); } .verdict.calm { border-color: var(--calm); }
article { border: 1px solid var(--line); border-radius: .5rem; padding: .9rem 1.1rem 1rem; margin: .8rem 0;
  break-inside: avoid; }
article h3 .soft { font-weight: 400; }
article h3 { font-size: 1rem; margin: 0; display: flex; gap: 1rem; justify-content: space-between; flex-wrap: wrap; }
.mark { font-weight: 600; } .mark.calm { color: var(--calm); } .mark.warn { color: var(--warn); }
.mark.bad { color: var(--bad); }
svg { display: block; width: 100%; height: 2.6rem; margin: .5rem 0 .2rem; overflow: visible; }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
.track { fill: var(--box); stroke: var(--line); } .fill.calm { fill: var(--calm); } .fill.warn { fill: var(--warn); }
.fill.bad { fill: var(--bad); } .span { stroke: var(--ink); stroke-width: 2; }
.halo { stroke: var(--paper); stroke-width: 7; } .guess { stroke: var(--ink); stroke-width: 3; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.wide { overflow-x: auto; }
@media print { body { max-width: none; padding: 0; font-size: 11pt; } .fill, .track { print-color-adjust: exact;
  -webkit-print-color-adjust: exact; } }
"""

WORDS = {"calm": "no better than guessing", "warn": "better than guessing", "bad": "above the limit"}


def page(audit: Audit) -> str:
    """The page."""
    title = f"What {audit.name} would reveal"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(_setting(audit))}</p>',
        _verdict(audit),
        "<h2>The attacks</h2>",
        '<p class="soft">Bar: success and its 95 % interval. Upright line: the same attacker without the message.</p>',
        *(_article(audit, finding) for finding in audit.findings),
        _advice(audit.advice),
        "<h2>All figures</h2>",
        _table(audit),
        "<h2>How to read this</h2>",
        *(f"<p>{escape(line)}</p>" for line in _reading(audit)),
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n'
    )


def _setting(audit: Audit) -> str:
    s = audit.setting
    ids = f", {s.ids} ids" if s.matching == "blind" else ""
    sums = "masked sums" if s.masked else "sums in the clear"
    return (
        f"{audit.n_rows} rows, {audit.n_features} features. {s.matching.capitalize()} matching{ids}, "
        f"{s.n_hashes} hashes, buckets of {s.bucket_width:.3g}, {s.n_neighbors} similar rows, "
        f"groups of at least {s.min_group}, {sums}, {s.parties} parties, {s.recipe} recipe, seed {s.seed}."
    )


def level(audit: Audit, finding: Finding) -> str:
    """How a finding is marked: calm, warn or bad."""
    if finding in audit.exceeded:
        return "bad"
    return "warn" if finding.excess_interval[0] > 0 else "calm"


def _verdict(audit: Audit) -> str:
    above = [f for f in audit.findings if level(audit, f) != "calm"]
    if audit.exceeded:
        text = f"{len(audit.exceeded)} of {len(audit.findings)} attacks do better than the limits allow."
    elif audit.limits:
        text = "Every attack stays within the limits."
    else:
        text = f"{len(above)} of {len(audit.findings)} attacks surely do better than guessing. No limits were set."
    worst = max(audit.findings, key=lambda f: f.excess)
    mark = "bad" if audit.exceeded else "warn" if above else "calm"
    strongest = f"The furthest from guessing: {escape(worst.sentence)}"
    return f'<div class="verdict {mark}"><p><strong>{escape(text)}</strong></p><p>{strongest}</p></div>'


def _article(audit: Audit, finding: Finding) -> str:
    mark = level(audit, finding)
    by = f"by {', '.join(finding.roles)}"
    return (
        f'<article><h3><span>{escape(finding.title)} <span class="soft">{escape(by)}</span></span>'
        f'<span class="mark {mark}">{points(finding.excess)} points: {WORDS[mark]}</span></h3>'
        f"{_bar(finding, mark)}<p>{escape(finding.sentence)}</p></article>"
    )


def _bar(finding: Finding, mark: str) -> str:
    low, high = (100 * end for end in finding.success_interval)
    success, guess = 100 * finding.success, 100 * finding.guess
    label = f"{finding.measure}: success {success:.1f} %, guessing {guess:.1f} %"
    return (
        f'<svg role="img" aria-label="{escape(label)}">'
        '<rect class="track" x="0" y="16" width="100%" height="14" rx="2"/>'
        f'<rect class="fill {mark}" x="0" y="16" width="{success:.2f}%" height="14" rx="2"/>'
        f'<line class="span" x1="{low:.2f}%" x2="{high:.2f}%" y1="23" y2="23"/>'
        f'<line class="halo" x1="{guess:.2f}%" x2="{guess:.2f}%" y1="13" y2="33"/>'
        f'<line class="guess" x1="{guess:.2f}%" x2="{guess:.2f}%" y1="13" y2="33"/>'
        f'<text x="0" y="10">{escape(label)}</text></svg>'
    )


def _advice(advice: list[Advice]) -> str:
    if not advice:
        return ""
    lines = "".join(f"<tr><td>{escape(a.title)}</td><td>{escape(a.sentence)}</td></tr>" for a in advice)
    head = "<tr><th>attack</th><th>what keeps it low</th></tr>"
    return f'<h2>Advice</h2><div class="wide"><table>{head}{lines}</table></div>'


def _table(audit: Audit) -> str:
    heads = ("success", "95 %", "guessing", "excess", "95 %", "counted on")
    head = "<th>attack</th><th>by</th>" + "".join(f'<th class="number">{h}</th>' for h in heads)
    rows = []
    for f in audit.findings:
        numbers = (
            f"{f.success:.1%}",
            " to ".join(f"{end:.1%}" for end in f.success_interval),
            f"{f.guess:.1%}",
            points(f.excess),
            " to ".join(points(end) for end in f.excess_interval),
            str(f.n),
        )
        cells = "".join(f'<td class="number">{n}</td>' for n in numbers)
        rows.append(f"<tr><td>{escape(f.title)}</td><td>{escape(', '.join(f.roles))}</td>{cells}</tr>")
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _reading(audit: Audit) -> list[str]:
    return [
        f"The {audit.n_rows} rows were split at random: {audit.n_victim} rows of a victim, {audit.n_attacker} of an "
        "attacker who knows these, the protocol, and what its role would see.",
        "An attacker with more knowledge of the people, or a better attack, finds more. Success close to guessing "
        "shows that these attacks fail here, not that nothing leaks.",
        "The intervals tell how much the figures depend on which rows were attacked; another split, other hash "
        "functions or another party's data can give other figures.",
    ]
