"""Which protections were really on: read from what every party noted of its own deeds, not from what it was asked.

A party notes at its exits what it does: masks added, noise added, rows sent under names (`Session.shown`). Its journal
keeps that, and its last reply tells the hub (`Finished.shown`): the hub has the word of each party. `protections` reads
it.
"""

import math
from collections import Counter
from collections.abc import Mapping

import msgspec

NO_HASHES = "No hash values were sent."
ABOUT_HASHES = ("Blind matching", "Fewer hash values than columns (L < d)")
MEANINGS = (  # of every protection: on, and off
    (
        "Blind matching",
        "Rows were compared under names that mean something to the parties only.",
        "Hash values of all rows were sent {sent} times: rows can be estimated from them.",
    ),
    (
        "No ids of similar rows",
        "No row has a neighbour: no ids were sent.",
        "Which rows resemble the same foreign row is known: it can be located by them.",
    ),
    (
        "Masked sums",
        "All {sums} sets of sums left under masks: the hub could read totals only.",
        "{plain} of {sums} sets of sums left without masks: a sum over one row gives its label away.",
    ),
    (
        "Small groups",
        "Every sum onto a row held at least {least:g} rows of each party, or none.",
        "A sum onto a row can hold a single row, and then gives its label away to the builder.",
    ),
    ("Noise (differential privacy)", "", "Sums are exact."),
    (
        "Fewer hash values than columns (L < d)",
        "A row cannot be solved for exactly from its hash values. It can still be estimated.",
        "{hashes:g} hash values for {columns:g} unknown columns: a row can be solved for.",
    ),
    (
        "No statistics of tree nodes",
        "{trees} times trees were sent: structure and leaf values, no counts of rows per node.",
        "",
    ),
)


TOGETHER = {  # of trees that were grown together: on, and off, where it is something else
    "Masked sums": (
        "All {sums} sets of numbers left under masks: the hub could read neither these nor their totals.",
        "{plain} of {sums} sets of numbers left without masks: the hub could read each party's.",
    ),
    "Small groups": (
        "Every sum held at least {least:g} rows of all parties, by counts with noise.",
        "A sum can hold a single row, and then gives its label away to who reads the total.",
    ),
    "Noise (differential privacy)": ("", "Counts carry noise and sums are rounded, but not for an epsilon."),
    "No statistics of tree nodes": (
        "Readers announce trees to the other parties: splits, their gains and leaf values, no counts of rows per node.",
        "",
    ),
}


DRAWN = {  # of trees that were drawn at random, with epsilon
    "Small groups": ("", "A sum can hold a single row: the noise hides it."),
    "Noise (differential privacy)": (
        "All that leaves because of rows are sums per leaf, with discrete noise for epsilon = {epsilon:g}.",
        "",
    ),
    "No statistics of tree nodes": ("All parties work out the trees alike, from noisy totals.", ""),
}


class Protection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A measure that keeps rows private: whether it was on, and what that means."""

    name: str
    on: bool
    meaning: str


def protections(shown: Mapping[str, int], guarded: int | None = None) -> list[Protection]:
    """All protections, from how often each thing was done. `guarded`: the unknown columns that L must stay below.

    >>> shown = {"hash values": 3, "hashes 9": 3, "columns 8": 3, "masked sums": 9}
    >>> [p.name for p in protections(shown) if p.on]
    ['No ids of similar rows', 'Masked sums', 'No statistics of tree nodes']
    """
    n = Counter(shown)
    columns = guarded if guarded is not None else min(_numbers(n, "columns"), default=math.inf)
    sums, least = n["masked sums"] + n["plain sums"], min(_numbers(n, "min_group"), default=1)
    epsilon, hashes = max(_numbers(n, "epsilon"), default=0.0), max(_numbers(n, "hashes"), default=0.0)
    facts: dict[str, object] = {"sums": sums, "least": least, "epsilon": epsilon, "hashes": hashes, "columns": columns}
    facts |= {"sent": n["hash values"], "plain": n["plain sums"], "trees": n["trees"]}
    meanings = {name: (yes, no) for name, yes, no in MEANINGS} | (TOGETHER if n["grown together"] else {})
    meanings |= DRAWN if n["drawn trees"] else {}
    is_on = (
        n["hash values"] == 0,
        n["ids of rows"] == 0,
        sums > 0 and n["plain sums"] == 0,
        least > 1,
        epsilon > 0 and n["exact sums"] == 0,
        hashes < columns,
        True,  # a message has no field for them
    )
    nothing = dict.fromkeys(ABOUT_HASHES, NO_HASHES) if not hashes else {}
    found = []
    for (name, *_), on in zip(MEANINGS, is_on, strict=True):
        yes, no = meanings[name]
        meaning = nothing.get(name, yes) if on else no
        found.append(Protection(name=name, on=on, meaning=meaning.format(**facts)))
    return found


def _numbers(shown: Mapping[str, int], name: str) -> list[float]:
    """The numbers that were noted under a name."""
    return [float(key.removeprefix(f"{name} ")) for key in shown if key.startswith(f"{name} ")]
