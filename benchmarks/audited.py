"""The figures of audits as rows of a CSV, and as tables of a page: one number per cell, the verdict first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from benchmarks.pages import Page
from simfl.audit.findings import Finding
from simfl.audit.pages import points

Row = dict[str, Any]
CLEAR = 0.05  # surely further above guessing than this: bold
ALL_COLUMNS = ("attack", "by", "case", "success, %", "guessing, %", "excess", "from", "to")


def rows_of(entries: Sequence[Mapping[str, Any]], case: str, titles: Mapping[str, str]) -> list[Row]:
    """The findings of audits, by data, attack and case: means over seeds, and the widest interval.

    Roles with the same figures in all cases share their rows. `case`: the key of an entry that names its case.
    """
    found = []
    for data in dict.fromkeys(entry["data"] for entry in entries):
        own = [entry for entry in entries if entry["data"] == data]
        for attack, title in titles.items():
            for who, cases in _by_roles(own, attack, case).items():
                found += [{"data": data, "attack": title, "by": who, "case": name, **row} for name, row in cases]
    return found


def _by_roles(entries: Sequence[Mapping[str, Any]], attack: str, case: str) -> dict[str, list[tuple[str, Row]]]:
    """By roles that share their figures: the figures of one attack in every case."""
    of_role: dict[str, dict[str, list[Finding]]] = {}
    for entry in entries:
        for finding in msgspec.convert(entry["findings"], list[Finding]):
            for role in finding.roles if finding.attack == attack else ():
                of_role.setdefault(role, {}).setdefault(entry[case], []).append(finding)
    shared: dict[str, tuple[list[str], list[tuple[str, Row]]]] = {}
    for role, cases in of_role.items():
        figures = [(name, _figures(found)) for name, found in cases.items()]
        shared.setdefault(repr(figures), ([], figures))[0].append(role)
    return {", ".join(roles): figures for roles, figures in shared.values()}


def _figures(found: Sequence[Finding]) -> Row:
    success, guess = (float(np.mean([getattr(f, name) for f in found])) for name in ("success", "guess"))
    low, high = min(f.excess_interval[0] for f in found), max(f.excess_interval[1] for f in found)
    known = {"success": success, "guess": guess, "excess": success - guess, "low": low, "high": high}
    area = [f.details["area under the curve"] for f in found if "area under the curve" in f.details]
    return {name: round(value, 4) for name, value in known.items()} | ({"area": round(area[0], 3)} if area else {})


def say_verdict(page: Page, rows: Sequence[Row], cases: Sequence[str]) -> None:
    """For each case: which attacks are clearly above guessing on some table, and how far at most."""
    lines = []
    for case in cases:
        own = [row for row in rows if row["case"] == case]
        most: dict[str, float] = {}
        for row in own:
            if row["low"] > CLEAR:
                most[row["attack"]] = max(row["excess"], most.get(row["attack"], 0.0))
        told = [f"{name[0].lower()}{name[1:]} ({points(most[name])})" for name in sorted(most, key=lambda n: -most[n])]
        tried = len({row["attack"] for row in own})
        lines.append(f"**{case}**: {len(most)} of {tried} attacks{': ' if told else ''}{'; '.join(told)}.")
    page.say(
        f"**In short.** Attacks that get surely more than {100 * CLEAR:.0f} points above guessing on some table, by "
        "whoever does best, and how far above it they get:"
    )
    page.bullets(lines)


def say_excess(page: Page, rows: Sequence[Row], cases: Sequence[str]) -> None:
    """The excess of every attack, one column per case."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        text = points(row["excess"])
        shown = f"**{text}**" if row["low"] > CLEAR else text
        lines.setdefault((row["attack"], row["by"]), {})[row["case"]] = shown
    table = [[*line, *(cells.get(case, "-") for case in cases)] for line, cells in lines.items()]
    page.table(["attack", "by", *cases], table)


def say_all(page: Page, rows: Sequence[Row]) -> None:
    """Every figure of some rows."""
    area = any("area" in row for row in rows)
    table = []
    for row in rows:
        shares = (f"{100 * row[name]:.1f}" for name in ("success", "guess"))
        excess = (points(row[name]) for name in ("excess", "low", "high"))
        more = [f"{row['area']:.2f}" if "area" in row else "-"] if area else []
        table.append([row["attack"], row["by"], row["case"], *shares, *excess, *more])
    page.table([*ALL_COLUMNS, *(["area"] if area else [])], table)
