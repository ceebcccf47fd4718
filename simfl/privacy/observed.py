"""Which protections were really on: inferred from the messages that were sent, not from what was asked for.

Every question and answer shows a little (`shows`): a search by names or by hash values, sums with masks or without. A
transport counts that at the hub, a party's journal keeps it at the party, and `protections` reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from simfl import messages as msg

NO_HASHES = "No hash values were sent."
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
    columns = guarded if guarded is not None else min(_numbers(n, "columns"), default=None)
    return [
        _blind_matching(n),
        _fresh_ids(n),
        _masked_sums(n),
        _small_groups(n),
        _shared_cut_points(n),
        _noise(n),
        _few_hashes(n, columns),
        Protection(
            name="No statistics of tree nodes",
            on=True,  # a message has no field for them
            meaning=f"{n['trees']} messages with trees: structure and leaf values, no counts of rows per node.",
        ),
    ]


def _numbers(shown: Mapping[str, int], name: str) -> list[float]:
    """The numbers that were shown under a name."""
    return [float(key.removeprefix(f"{name} ")) for key in shown if key.startswith(f"{name} ")]


def _protection(name: str, on: bool, yes: str, no: str) -> Protection:
    return Protection(name=name, on=on, meaning=yes if on else no)


def _blind_matching(n: Counter[str]) -> Protection:
    read = "Rows were compared under names that mean something to the parties only." if n["names"] else NO_HASHES
    sent = f"Hash values of all rows were sent {n['hash values']} times: rows can be estimated from them."
    return _protection("Blind matching", n["hash values"] == 0, read, sent)


def _fresh_ids(n: Counter[str]) -> Protection:
    return _protection(
        "Fresh ids",
        n["fresh ids"] > 0 and n["lasting ids"] == 0,
        "Which rows resemble the same foreign row is known for one tree at a time only, under new ids.",
        "Which rows resemble the same foreign row stays the same over all trees: it can be located by them.",
    )


def _masked_sums(n: Counter[str]) -> Protection:
    total = n["masked sums"] + n["plain sums"]
    return _protection(
        "Masked sums",
        total > 0 and n["plain sums"] == 0,
        f"All {total} replies with sums were masked: the hub could read totals only.",
        f"{n['plain sums']} of {total} replies with sums were not masked: a sum over one row gives its label away.",
    )


def _small_groups(n: Counter[str]) -> Protection:
    least = min(_numbers(n, "min_group"), default=1)
    return _protection(
        "Small groups",
        least > 1,
        f"Every sum onto a row was asked to hold at least {least:g} rows of each party, or none.",
        "A sum onto a row can hold a single row, and then gives its label away to the builder.",
    )


def _shared_cut_points(n: Counter[str]) -> Protection:
    return _protection(
        "Shared cut points",
        n["shared cut points"] > 0 and n["own cut points"] == 0,
        "Thresholds come from a public grid.",
        "A threshold is the exact value of one of the builder's rows.",
    )


def _noise(n: Counter[str]) -> Protection:
    epsilon = max(_numbers(n, "epsilon"), default=0.0)
    on = epsilon > 0 and n["exact sums"] == 0
    return _protection(
        "Noise (differential privacy)", on, f"Sums carry noise for epsilon = {epsilon:g}.", "Sums are exact."
    )


def _few_hashes(n: Counter[str], columns: float | None) -> Protection:
    hashes = max(_numbers(n, "hashes"), default=0.0)
    kept = (
        "A row cannot be solved for exactly from its hash values. It can still be estimated." if hashes else NO_HASHES
    )
    broken = f"{hashes:g} hash values for {columns or 0:g} unknown columns: a row can be solved for."
    return _protection("Fewer hash values than columns (L < d)", columns is None or hashes < columns, kept, broken)
