"""Pages of results: Markdown with date, versions and settings, a CSV beside it, and pictures."""

from __future__ import annotations

import csv
import datetime
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import cells
from benchmarks.data import source

RESULTS = cells.ROOT / "docs" / "results"
QUICK_RESULTS = cells.ROOT / "runs" / "quick"
COLOURS = {
    "SimFL": "#1a7f37",
    "SimFL, default recipe": "#1a7f37",
    "SimFL, paper's recipe": "#8250df",
    "TFL": "#bc4c00",
    "SOLO": "#0969da",
    "best SOLO": "#0969da",
    "mean SOLO": "#80b3e8",
    "ALL-IN": "#57606a",
}


class Page:
    """A page under construction."""

    def __init__(self, title: str, command: str, *, quick: bool = False) -> None:
        self.lines = [f"# {title}", ""]
        if quick:
            self.say(
                "**A QUICK RUN: few trees, one run, not all data sets. It shows that the command works; draw no "
                "conclusions from it.**"
            )
        self.say(f"Written by `{command}` on {datetime.date.today().isoformat()} with {versions()}, on {machine()}.")

    def say(self, text: str) -> None:
        """A paragraph."""
        self.lines += [text, ""]

    def head(self, text: str) -> None:
        """A heading."""
        self.lines += [f"## {text}", ""]

    def bullets(self, texts: Iterable[str]) -> None:
        """A list."""
        self.lines += [*(f"- {text}" for text in texts), ""]

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """A table; the first column is text, the others are numbers."""
        self.lines.append("| " + " | ".join(columns) + " |")
        self.lines.append("|---|" + "---:|" * (len(columns) - 1))
        self.lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
        self.lines.append("")

    def picture(self, name: str, what: str) -> None:
        """A picture that lies beside the page."""
        self.lines += [f"![{what}]({name})", ""]

    def sources(self, names: Iterable[str]) -> None:
        """What the data is."""
        self.head("Data")
        self.table(
            ["data set", "what it is", "SHA-256 begins"], [[n, source(n).remark, source(n).digest()] for n in names]
        )

    @property
    def text(self) -> str:
        """The page so far."""
        return "\n".join(self.lines).rstrip() + "\n"

    def write(self, path: Path) -> None:
        """Write the page."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """All rows with all columns that any of them has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def versions() -> str:
    """What was measured, and with what."""
    return f"{cells.code()}{_commit()}, numpy {np.__version__}, Python {platform.python_version()}"


def _commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=cells.ROOT, capture_output=True, text=True, check=False
    )
    return f" (commit {found.stdout.strip()})" if found.returncode == 0 else ""


def machine() -> str:
    """The cores, and how busy they were: seconds of a busy machine are worth little."""
    n = len(os.sched_getaffinity(0))
    return f"{n} cores of {platform.machine()} (load {os.getloadavg()[0]:.1f} at the end)"


def percent(value: float | None, digits: int = 1) -> str:
    """A share as a percentage.

    >>> percent(0.1234), percent(None)
    ('12.3', '-')
    """
    return "-" if value is None or np.isnan(value) else f"{100 * value:.{digits}f}"


def size(n_bytes: float) -> str:
    """Bytes for people.

    >>> size(1234), size(5_600_000)
    ('1.2 KB', '5.6 MB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.1f} {unit}"
    return f"{n_bytes:.0f} B"


def two_digits(value: float) -> str:
    """An estimate: two digits of it, never with an exponent.

    >>> two_digits(1_234_567), two_digits(163.0), two_digits(42.4), two_digits(6.51)
    ('1,200,000', '160', '42', '6.5')
    """
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 10 else f"{rounded:g}"
