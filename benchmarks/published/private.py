"""Maddock et al.: AUC against epsilon, in the shape of their figure, from the figures of `benchmarks.private`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

from benchmarks import private
from benchmarks.pages import Page, stamp
from benchmarks.published.estimates import Estimate
from benchmarks.published.figures import MADDOCK, MADDOCK_PLAIN

TABLES = ("default_credit", "bank")
NOBODY = private.N_PARTIES - 1  # collude with the hub, at most
TRUST = {NOBODY: "nobody trusted", 0: "parties trusted"}
EPSILONS = private.EPSILONS
THEIRS = tuple(MADDOCK["random trees"])  # their epsilons
PLACES = [(name, colluding) for name in TABLES for colluding in TRUST]
Entry = Mapping[str, Any]


def kept(auc: float, plain: float) -> float:
    """The share of the AUC above guessing that is left of a training without noise.

    >>> round(kept(0.846, 0.861), 3)
    0.958
    """
    return (auc - 0.5) / (plain - 0.5)


def auc(entries: Sequence[Entry], **told: Any) -> Estimate | None:
    """The mean over the seeds, with Student's interval over them; None where nothing was measured."""
    values = np.array(private.values([dict(entry) for entry in entries], "auc", **told))
    n = len(values)
    if not n:
        return None
    return Estimate(
        float(values.mean()), float(stdtrit(n - 1, 0.975) * values.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    )


def at(entries: Sequence[Entry], name: str, epsilon: float, colluding: int) -> Estimate | None:
    """The AUC of a private training."""
    return auc(entries, data=name, method="joint", epsilon=epsilon, colluding=colluding)


def plain(entries: Sequence[Entry], name: str) -> float:
    """The AUC of pooled rows without noise."""
    found = auc(entries, data=name, method="ALL-IN")
    return found.mean if found else math.nan


def share(entries: Sequence[Entry], name: str, epsilon: float, colluding: int) -> float:
    """What is left of the AUC above guessing; NaN where nothing was measured."""
    found = at(entries, name, epsilon, colluding)
    return kept(found.mean, plain(entries, name)) if found else math.nan


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.0f}"


def _cells(found: Estimate | None) -> list[str]:
    """Mean and half of the interval."""
    return (
        ["-", "-"] if found is None else [f"{found.mean:.3f}", "-" if math.isnan(found.half) else f"{found.half:.3f}"]
    )


def say_verdict(made: Page, entries: Sequence[Entry]) -> None:
    """What is left, at their epsilons."""
    made.say(
        "**Maddock et al.**, what differential privacy costs. Percent of the AUC above guessing that epsilon leaves of "
        "a training without noise (more is better). Their table was not at hand, so that there is no verdict in a word."
    )
    heads = [*(f"theirs, {kind}" for kind in MADDOCK), *(f"{name}, {TRUST[c]}" for name, c in PLACES)]
    lines = [
        [
            f"{epsilon:g}",
            *(_percent(kept(theirs[epsilon], MADDOCK_PLAIN)) for theirs in MADDOCK.values()),
            *(_percent(share(entries, name, epsilon, c)) for name, c in PLACES),
        ]
        for epsilon in THEIRS
    ]
    made.table(["epsilon", *heads], lines)


def say(made: Page, entries: Sequence[Entry]) -> None:
    """The tables and what they say."""
    made.head("Maddock et al.: what differential privacy costs")
    seeds = len({entry["seed"] for entry in entries})
    measured = stamp(entry for entry in entries if entry["data"] in TABLES)
    made.say(
        "Source: Maddock et al., arXiv 2210.02910: trees drawn at random, noise on leaf sums; AUC from their "
        "replication data, depth 4. **Their data (Give Me Some Credit, 150,000 rows) was not at hand: other tables "
        "stand here, with 16,000 (default_credit) and 34,000 training rows (bank). Figures of different tables cannot "
        'be compared; the shape can.** Ours: `recipe="joint"` with `epsilon`, delta 1e-5, four parties, '
        f"{seeds} seeds, by `python -m benchmarks.private` {measured} ([all figures](private.md)). *Nobody trusted*: "
        "each party's messages are private by themselves. *Parties trusted*: noise is shared out, as in their "
        "distributed setting. *+-*: half of the 95 % interval over the seeds (Student's t). Noise is secret and "
        "differs from run to run; the seeds differ in it, in who has which rows, and with bank in the test rows."
    )
    made.picture("published-epsilon.png", "AUC against epsilon: theirs and ours")
    made.say("**Give Me Some Credit**, published:")
    lines = [[f"{e:g}", *(f"{theirs[e]:.3f}" for theirs in MADDOCK.values())] for e in THEIRS]
    lines.append(["no noise", *(f"{MADDOCK_PLAIN:.3f}" for _ in MADDOCK)])
    made.table(["epsilon", *MADDOCK], lines)
    for name in TABLES:
        made.say(f"**{name}**, SimFL, joint:")
        lines = [[f"{e:g}", *(text for c in TRUST for text in _cells(at(entries, name, e, c)))] for e in EPSILONS]
        for words, method in (("no noise, pooled", "ALL-IN"), ("no noise, alone", "SOLO")):
            found = _cells(auc(entries, data=name, method=method))
            lines.append([words, *found, *found])
        made.table(["epsilon", *(text for trust in TRUST.values() for text in (trust, "+-"))], lines)
    made.say(f"**Verdict**: {verdict(entries)} {beside_solo(entries)}")
    made.say(
        "*Alone*: the mean over the parties' own models, which nobody else sees and which have no noise. "
        "Rows are dealt out at random here, so that a party alone has a fair quarter of them; skewed parties have more "
        "to gain. The other recipes and TFL have no epsilon, and no place here."
    )


def beside_solo(entries: Sequence[Entry]) -> str:
    """From which epsilon on a private training is worth more than none."""
    told = []
    for name in TABLES:
        alone = auc(entries, data=name, method="SOLO")
        if alone is None:
            continue
        for colluding, trust in TRUST.items():
            known = {e: got.mean > alone.mean for e in EPSILONS if (got := at(entries, name, e, colluding))}
            least = private.for_good(known)
            told.append(f"{name}, {trust}, {'at no epsilon here' if least is None else f'from epsilon {least:g} on'}")
    return f"It is above that of training alone: {'; '.join(told)}." if told else ""


def verdict(entries: Sequence[Entry]) -> str:
    """In sentences; the figures are those of the first table of the page."""
    told = []
    for epsilon in reversed(THEIRS):
        ours = {c: [100 * share(entries, name, epsilon, c) for name in TABLES] for c in TRUST}
        words = ", ".join(f"{_span(found)} % with {TRUST[c]}" for c, found in ours.items() if not np.isnan(found).any())
        theirs = (f"{kind} {_percent(kept(at[epsilon], MADDOCK_PLAIN))} %" for kind, at in MADDOCK.items())
        told.append(f"epsilon {epsilon:g} leaves {words} (theirs: {', '.join(theirs)})")
    falls = ", ".join(f"{name} {_fall(lambda e, name=name: share(entries, name, e, NOBODY))}" for name in TABLES)
    theirs = ", ".join(f"{kind} {_fall(lambda e, at=at: kept(at[e], MADDOCK_PLAIN))}" for kind, at in MADDOCK.items())
    return (
        f"of the AUC above guessing, {'; '.join(told)}. From epsilon {max(THEIRS):g} to {min(THEIRS):g} that falls by "
        f"these points, with nobody trusted: {falls} (theirs: {theirs}). Theirs have several times the rows, and "
        "noise weighs less the more rows there are."
    )


def _fall(left: Callable[[float], float]) -> str:
    """How many points are lost from their largest epsilon to their smallest, by the whole points of the table."""
    return f"{round(100 * left(max(THEIRS))) - round(100 * left(min(THEIRS)))}"


def _span(values: Sequence[float]) -> str:
    """The least and the most.

    >>> _span([91.6, 96.2]), _span([91.6, 91.9])
    ('92 to 96', '92')
    """
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low} to {high}"
