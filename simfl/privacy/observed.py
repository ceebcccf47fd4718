"""Which protections were really on: inferred from the messages that were sent, not from what was asked for.

Every question and answer shows a little (`shows`): a search by names or by hash values, sums with masks or without. A
transport counts that at the hub, a party's journal keeps it at the party, and `protections` reads it.
"""

import math
from collections import Counter
from collections.abc import Mapping

import msgspec

from simfl import messages as msg

NO_HASHES = "No hash values were sent."
ABOUT_HASHES = ("Blind matching", "Fewer hash values than columns (L < d)")
MEANINGS = (  # of every protection: on, and off
    (
        "Blind matching",
        "Rows were compared under names that mean something to the parties only.",
        "Hash values of all rows were sent {sent} times: rows can be estimated from them.",
    ),
    (
        "Fresh ids",
        "Which rows resemble the same foreign row is known for one tree at a time only, under new ids.",
        "Which rows resemble the same foreign row stays the same over all trees: it can be located by them.",
    ),
    (
        "Masked sums",
        "All {sums} replies with sums were masked: the hub could read totals only.",
        "{plain} of {sums} replies with sums were not masked: a sum over one row gives its label away.",
    ),
    (
        "Small groups",
        "Every sum onto a row was asked to hold at least {least:g} rows of each party, or none.",
        "A sum onto a row can hold a single row, and then gives its label away to the builder.",
    ),
    (
        "Shared cut points",
        "Thresholds come from a public grid.",
        "A threshold is the exact value of one of the builder's rows.",
    ),
    ("Noise (differential privacy)", "Sums carry noise for epsilon = {epsilon:g}.", "Sums are exact."),
    (
        "Fewer hash values than columns (L < d)",
        "A row cannot be solved for exactly from its hash values. It can still be estimated.",
        "{hashes:g} hash values for {columns:g} unknown columns: a row can be solved for.",
    ),
    (
        "No statistics of tree nodes",
        "{trees} messages with trees: structure and leaf values, no counts of rows per node.",
        "",
    ),
)
FACTS: dict[type, str] = {msg.HiddenRows: "names", msg.Hashes: "hash values", msg.Grown: "trees"}
SUMS = (msg.RowSums, msg.LeafSums, msg.FeatureSums, msg.LabelSums)


class Protection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A measure that keeps rows private: whether it was on, and what that means."""

    name: str
    on: bool
    meaning: str


def shows(question: msg.Request, answer: msg.Reply) -> list[str]:
    """What one question and its answer show.

    >>> shows(msg.Settle(columns=[]), msg.Done())
    []
    """
    found = _asked(question)
    if isinstance(answer, SUMS) or getattr(answer, "scores", None) is not None:  # metrics are sums, too
        found.append("masked sums" if getattr(question, "mask", None) is not None else "plain sums")
    if isinstance(answer, msg.Description):
        found.append(f"columns {answer.n_features}")
    return found + [fact for kind, fact in FACTS.items() if isinstance(answer, kind)]


def _asked(question: msg.Request) -> list[str]:
    if isinstance(question, msg.SumOntoRows) and question.similar:
        return ["fresh ids"]
    if isinstance(question, msg.TakeSimilar) and question.similar:
        return ["lasting ids"]
    if isinstance(question, msg.Hash):
        return [f"hashes {question.n_hashes}"]
    if isinstance(question, msg.Start):
        params = question.params
        noise = "exact sums" if params.epsilon is None else f"epsilon {params.epsilon:g}"
        return [f"min_group {params.min_group}", f"{params.cuts} cut points", noise]
    return []


def protections(shown: Mapping[str, int], guarded: int | None = None) -> list[Protection]:
    """All protections, from how often each thing was shown. `guarded`: the unknown columns that L must stay below.

    >>> [p.name for p in protections({"hash values": 3, "hashes 9": 3, "columns 8": 3, "masked sums": 9}) if p.on]
    ['Masked sums', 'No statistics of tree nodes']
    """
    n = Counter(shown)
    columns = guarded if guarded is not None else min(_numbers(n, "columns"), default=math.inf)
    sums, least = n["masked sums"] + n["plain sums"], min(_numbers(n, "min_group"), default=1)
    epsilon, hashes = max(_numbers(n, "epsilon"), default=0.0), max(_numbers(n, "hashes"), default=0.0)
    facts = {"sums": sums, "least": least, "epsilon": epsilon, "hashes": hashes, "columns": columns}
    facts |= {"sent": n["hash values"], "plain": n["plain sums"], "trees": n["trees"]}
    is_on = (
        n["hash values"] == 0,
        n["fresh ids"] > 0 and n["lasting ids"] == 0,
        sums > 0 and n["plain sums"] == 0,
        least > 1,
        n["shared cut points"] > 0 and n["own cut points"] == 0,
        epsilon > 0 and n["exact sums"] == 0,
        hashes < columns,
        True,  # a message has no field for them
    )
    found = []
    for (name, yes, no), on in zip(MEANINGS, is_on, strict=True):
        nothing = on and not hashes and name in ABOUT_HASHES
        found.append(
            Protection(name=name, on=on, meaning=NO_HASHES if nothing else (yes if on else no).format(**facts))
        )
    return found


def _numbers(shown: Mapping[str, int], name: str) -> list[float]:
    """The numbers that were shown under a name."""
    return [float(key.removeprefix(f"{name} ")) for key in shown if key.startswith(f"{name} ")]
