"""The page for the file: what a data-protection officer needs of a study, before a party takes part in it.

It says what leaves, who sees it, which protections were approved, what the attacks of the audit achieved, what is
guaranteed, which risk remains and what is kept for how long. The attacks are the findings of the audit as they are,
whatever attacks it has; nothing is measured a second time. Purpose and legal basis only people know: the page has room
for them.
"""

from __future__ import annotations

import msgspec

from simfl.audit.findings import MARKS, SURE, Audit, Finding
from simfl.audit.pages import template
from simfl.privacy.observed import Protection

ALWAYS = (  # true of every study, whatever the audit found
    "Whoever has the model can query it at will, and it remembers some rows better than others.",
    "That the party takes part, its number of rows, its columns and its classes are known to the others.",
    "Parties and hub that collude put together what each of them sees.",
    "A failed attack proves nothing: another attacker may know more, or attack better.",
    "The attacks were run on this table, divided at random; the other parties' tables can differ from it.",
)
BY_HAND = (
    "Controller, and contact of the data-protection officer",
    "Purpose of the processing, and its legal basis",
    "Why it is necessary and proportionate; what else was considered",
    "Whose data it is, and how people are informed",
    "Until when runs are kept (simfl forget)",
    "Remaining risk accepted, or not: by whom, date, signature",
)


class Leaving(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of message: what it says, who sees it, and its bytes in the rehearsal (None: there was none)."""

    kind: str
    meaning: str
    seen_by: str
    sent: int | None


class Keeping(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept, and until when."""

    files: list[str]
    holds: str
    until: str


class Filing(msgspec.Struct, frozen=True, kw_only=True):
    """All that the page says beside the findings, as it was approved and rehearsed."""

    study: str
    party: str
    date: str
    processing: dict[str, str]
    leaves: list[Leaving]
    unsent: list[str]  # kinds of messages that the study does not use
    protections: list[Protection]
    rules: dict[str, str]  # of the party, for every study
    refusals: list[str]  # why the party would not take part
    guarantee: str | None
    spending: str
    keeps: dict[str, list[Keeping]]  # by place
    versions: dict[str, str]
    digests: dict[str, str]


# Who can read a message: with masks (as between machines), and without.
SEEN_BY = {
    "Greeting": ("the hub", ""),
    "Description": ("the hub; columns and levels: all parties", ""),
    "Done": ("the hub", ""),
    "PublicKey": ("everybody", ""),
    "SealedSecret": ("the other parties; the hub cannot open it", ""),
    "FeatureSums": ("the total of all parties: everybody", "the hub; the total: everybody"),
    "Hashes": ("the hub and all parties", ""),
    "HiddenRows": ("the hub, as names that it cannot read; which rows are similar: all parties", ""),
    "Matched": ("the hub", ""),
    "Recalled": ("the hub", ""),
    "Classes": ("everybody", ""),
    "LabelSums": ("the total of all parties: everybody", "the hub; the total: everybody"),
    "Started": ("the hub", ""),
    "RowSums": ("the total of the others: the builder of the tree", "the hub; the total of the others: the builder"),
    "Grown": ("everybody who has the model", ""),
    "LeafSums": ("the total of all parties: the hub; leaf values: everybody", "the hub; leaf values: everybody"),
    "Finished": ("the total of the metrics: the hub", "the hub"),
    "Addend": ("the total of all parties: the reader of the step, or all parties", "the hub; the total: all parties"),
    "Announced": ("the other parties, sealed", ""),
    "SealedModel": ("the submitter, sealed", ""),
}


def seen_by(kind: str, *, masked: bool) -> str:
    """Who can read a kind of message."""
    with_masks, without = SEEN_BY[kind]
    return with_masks if masked or not without else without


def render(audit: Audit, filing: Filing) -> str:
    """The page: no script, no other file; on A4 and on a screen."""
    marked = sorted(((f, audit.mark(f)) for f in audit.findings), key=lambda pair: -pair[0].excess)
    return template("dpia.html.jinja").render(
        audit=audit,
        filing=filing,
        marked=marked,
        words=MARKS,
        verdict=verdict(audit, marked),
        remaining=remaining(filing, marked),
        by_hand=BY_HAND,
    )


def verdict(audit: Audit, marked: list[tuple[Finding, str]]) -> str:
    """The result of the attacks in one sentence."""
    n, above = len(marked), sum(mark in SURE for _, mark in marked)
    if not n:
        return audit.verdict
    if audit.exceeded:
        return f"{len(audit.exceeded)} of {n} attacks do better than the limits of the study allow."
    if audit.limits:
        return f"All {n} attacks stay within the limits of the study; {above} surely do better than guessing."
    return f"{above} of {n} attacks surely do better than guessing. The study sets no limits."


def remaining(filing: Filing, marked: list[tuple[Finding, str]]) -> list[str]:
    """The risk that remains: what attacks achieve, which protections are off, and what holds for every study."""
    attacks = [f"{f.title} ({', '.join(f.roles)}): {f.sentence}" for f, mark in marked if mark != "calm"]
    off = [f"{p.name} is off: {p.meaning}" for p in filing.protections if not p.on]
    none = [] if filing.guarantee else ["No bound is proven for what leaves: all figures are of these attacks."]
    return [*attacks, *off, *none, *ALWAYS]
