"""What an audit finds: each attack's success beside guessing, with intervals; as data, as a table and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from rich import box
from rich.table import Column
from rich.table import Table as RichTable

from simfl.arrays import Doubles
from simfl.audit.pages import points, template
from simfl.errors import DataError, FileError
from simfl.params import Matching
from simfl.report.bootstrap import interval
from simfl.report.record import AuditResult

Role = Literal[
    "hub",
    "hub with a sample",
    "builder",
    "other party",
    "two parties that collude",
    "all parties but two",
    "submitter",
    "outsider",
]

ATTRIBUTES_RIGHT = "attributes right"
MARKS = {
    "calm": "no better than guessing",
    "few": "too few rows to tell",
    "warn": "better than guessing",
    "bad": "above the limit",
}
SURE = ("warn", "bad")
STYLES = {"calm": None, "few": None, "warn": "yellow", "bad": "bold red"}  # of these, at the terminal
TITLES: dict[str, str] = {
    "rows_from_codes": "Rows, from hash values",
    "members_from_codes": "Who is in the table, from hash values",
    "attribute_from_codes": "One unknown attribute, from hash values",
    "rows_from_leaves": "Rows, from the leaves they fall into",
    "rows_from_tokens": "Rows, from equal tokens",
    "rows_from_pointers": "Rows, from which rows point at them",
    "labels_from_sums": "Labels, from the first sums",
    "labels_of_known_people": "Labels of known people, from the first sums",
    "rows_from_trees": "Rows, from a tree",
    "values_from_trees": "Exact values, from thresholds",
    "rows_from_totals": "Rows singled out, by subtracting totals",
    "attributes_from_totals": "Attributes of rows that were singled out",
    "members_from_totals": "Who took part, from totals",
    "members_from_model": "Who took part, from the model",
    "labels_from_totals": "Labels of known people, from totals",
    "labels_from_equations": "All labels, from totals and everybody's features",
    "canaries_from_values": "Who took part, by one who knows all other rows",
    "members_from_answers": "Who is in the model, from its answers",
    "attribute_from_answers": "One unknown attribute, from the model's answers",
    "rows_from_all_trees": "Rows, from all trees of the model",
}

ENOUGH = 10  # rows: resampling fewer says nothing of how sure a figure is


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One attack's success beside guessing. Intervals: 95 %, by resampling the rows it was counted on."""

    attack: str
    title: str
    roles: list[Role]
    measure: str
    success: float
    success_interval: tuple[float, float]
    guess: float
    excess: float
    excess_interval: tuple[float, float]
    n: int  # rows (or thresholds) that it was counted on
    sentence: str
    details: dict[str, float] = {}

    @property
    def span(self) -> str:
        """The interval of the excess, in words."""
        low, high = self.excess_interval
        return f"({points(low)} to {points(high)})"


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps one attack within a distance of guessing; None: nothing that was tried does."""

    attack: str
    title: str
    max_excess: float
    n_hashes: int | None  # the largest, with the bucket_width of the setting
    bucket_width: float | None  # the smallest, with the n_hashes of the setting
    sentence: str


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What was attacked: the parameters as they were really used."""

    matching: Matching | None  # None: no similar rows are looked for
    masked: bool
    min_group: int
    parties: int
    recipe: str
    objective: str
    n_hashes: int
    bucket_width: float
    n_neighbors: int
    scale: str
    rematch: int
    seed: int
    epsilon: float | None = None  # of trees that are drawn, with noisy sums

    @property
    def words(self) -> str:
        """What was sent, in short."""
        if self.matching is None:
            return f"trees grown together, sums over {self.min_group} rows at least, read by one party in turn"
        return f"{self.matching} matching, {self.n_hashes} hashes, buckets of {self.bucket_width:.3g}"


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The result: findings, advice, and the limits it was held against."""

    name: str
    n_rows: int
    n_features: int
    n_attacker: int
    n_victim: int
    setting: Setting
    findings: list[Finding]
    advice: list[Advice]
    limits: dict[str, float] = {}
    sees: dict[str, str] = {}  # what each role sees
    not_run: list[str] = []  # titles of attacks that were left out, because they take minutes
    notes: list[str] = []  # what could not be attacked, and how what was attacked differs from the study

    @property
    def exceeded(self) -> list[Finding]:
        """The findings whose excess over guessing is above their limit."""
        return [f for f in self.findings if f.attack in self.limits and f.excess > self.limits[f.attack]]

    def mark(self, finding: Finding) -> str:
        """How bad a finding is, as one of `MARKS`."""
        if finding in self.exceeded:
            return "bad"
        above = "warn" if finding.n >= ENOUGH else "few"
        return above if finding.excess_interval[0] > 0 else "calm"

    @property
    def verdict(self) -> str:
        """What was found, in one sentence."""
        n = len(self.findings)
        if not n:
            return "No attack was tried, so nothing is known."
        if self.exceeded:
            return f"{len(self.exceeded)} of {n} attacks do better than the limits allow."
        if self.limits:
            return "Every attack stays within the limits."
        above = sum(self.mark(finding) in SURE for finding in self.findings)
        return f"{above} of {n} attacks surely do better than guessing. No limits were set."

    @property
    def furthest(self) -> Finding | None:
        """The finding that is furthest from guessing."""
        return max(self.findings, key=lambda finding: finding.excess, default=None)

    def to_json(self) -> str:
        """All of it, for programs."""
        content = msgspec.to_builtins(self) | {"exceeded": [f.attack for f in self.exceeded]}
        return msgspec.json.format(msgspec.json.encode(content)).decode() + "\n"

    def table(self) -> RichTable:
        """The findings, for the terminal. Yellow: surely above guessing. Red: above its limit."""
        title = f"{self.name}: {self.setting.words}. Excess in points, with its 95 % interval"
        heads = ("success", "guessing", "excess", "from", "to")
        numbers = [Column(head, justify="right", no_wrap=True) for head in heads]
        shown = RichTable("attack", "by", *numbers, title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        shown.title_justify, shown.title_style, shown.pad_edge = "left", "bold", False
        for f in self.findings:
            excess = (points(value) for value in (f.excess, *f.excess_interval))
            cells = f.title, ", ".join(f.roles), f"{f.success:.1%}", f"{f.guess:.1%}", *excess
            shown.add_row(*cells, style=STYLES[self.mark(f)])
        return shown

    def roles(self) -> RichTable:
        """What each role sees, for the terminal."""
        shown = RichTable("role", "sees", title="Who sees what", title_justify="left", title_style="bold")
        for role, seen in self.sees.items():
            shown.add_row(role, seen)
        return shown

    def for_report(self) -> list[AuditResult]:
        """The findings as the report of a run shows them."""
        return [
            AuditResult(
                attack=f"{f.title} ({', '.join(f.roles)})",
                value=f"{f.success:.1%}; guessing {f.guess:.1%}; excess {points(f.excess)} points {f.span}",
                meaning=f.sentence,
                passed=f not in self.exceeded if f.attack in self.limits else None,
            )
            for f in self.findings
        ]

    @classmethod
    def load(cls, path: Path) -> Audit:
        """Read what `simfl audit --json` wrote."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise FileError(f"The audit {path} cannot be read: {error.strerror}.") from None
        except msgspec.DecodeError as error:
            raise FileError(f"{path} is not what `simfl audit --json` writes: {error}.") from None

    def html(self) -> str:
        """A page for people, from `templates/audit.html.jinja`: no script, no other file; light, dark and on paper."""
        worst_first = sorted(self.findings, key=lambda finding: -finding.excess)
        marked = [(finding, self.mark(finding)) for finding in worst_first]
        found = {mark for _, mark in marked}
        calm = found and ("warn" not in found or self.limits)
        worst = "bad" if "bad" in found else "calm" if calm else "warn"
        return template("audit.html.jinja").render(audit=self, marked=marked, worst=worst, words=MARKS)


class Counted(NamedTuple):
    """What an attack achieved on each row it was tried on, beside guessing; and further figures."""

    success: Doubles
    guess: Doubles
    details: dict[str, float]

    @property
    def excess(self) -> Doubles:
        """How much better than guessing."""
        return self.success - self.guess


def finding(
    attack: str, roles: list[Role], counted: Counted, sentence: str, measure: str = ATTRIBUTES_RIGHT
) -> Finding:
    """The means with their intervals, and the sentence with the means in it."""
    success, guess = counted.success, counted.guess
    if len(success) == 0:
        raise DataError(f"There is nothing to count {attack} on: attacker and victim hold the same rows.")
    return Finding(
        attack=attack,
        title=TITLES[attack],
        roles=roles,
        measure=measure,
        success=float(success.mean()),
        success_interval=interval(success),
        guess=float(guess.mean()),
        excess=float(counted.excess.mean()),
        excess_interval=interval(counted.excess),
        n=len(success),
        sentence=sentence.format(success=f"{success.mean():.1%}", guess=f"{guess.mean():.1%}"),
        details={name: round(value, 6) for name, value in counted.details.items()},
    )
