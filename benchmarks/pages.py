"""Pages of results: Markdown with date, versions and settings, a CSV beside it, and pictures."""

from __future__ import annotations

import csv
import datetime
import functools
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import cells
from benchmarks.data import source
from simfl.report.colours import ON_PAPER
from simfl.report.words import JOINT

RESULTS = cells.ROOT / "docs" / "results"
QUICK_RESULTS = cells.ROOT / "runs" / "quick"
# A cell of a column of numbers: a number, perhaps in bold and with a unit; a dash; nothing.
_NUMBER = re.compile(r"(?:\*\*)?[+-]?[\d.,]*\d(?:e[+-]?\d+)?(?: (?:%|ms|s|[KMG]?B))?(?:\*\*)?|-|")
PALE_SOLO = "#eab48f"
OTHERS = "#1c2330"  # software of others, and what is published
COLOURS = {  # the report's, by all the names that our tables use
    **ON_PAPER,
    **dict.fromkeys(("similar", "SimFL, similar recipe", "SimFL, similar"), ON_PAPER["SimFL"]),
    **dict.fromkeys(("joint", "SimFL, joint"), ON_PAPER[JOINT]),
    **dict.fromkeys(("SimFL, paper's recipe", "SimFL, paper"), ON_PAPER["paper"]),
    "best SOLO": ON_PAPER["SOLO"],
    "mean SOLO": PALE_SOLO,
}


class Page:
    """A page under construction."""

    def __init__(self, title: str, command: str, *, quick: bool = False, measured: str | None = None) -> None:
        self.lines = [f"# {title}", ""]
        if quick:
            self.say(
                "**A QUICK RUN: few trees, one run, not all data sets. It shows that the command works; draw no "
                "conclusions from it.**"
            )
        # A page that is drawn again from kept figures says when and with what these were measured.
        self.say(f"Measured by `{command}` {measured or now_and_here()}.")

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
        """A table. Columns of numbers have their numbers below each other; the first one names the rows."""
        cells = [[str(cell) for cell in row] for row in rows]
        below = [all(_NUMBER.fullmatch(row[place]) for row in cells) for place in range(1, len(columns))]
        self.lines.append("| " + " | ".join(columns) + " |")
        self.lines.append("|---|" + "".join("---:|" if numbers else "---|" for numbers in below))
        self.lines += ["| " + " | ".join(row) + " |" for row in cells]
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


def pyplot() -> Any:
    """Matplotlib without a screen."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["figure.constrained_layout.use"] = True
    return plt


def save(figure: Any, path: Path) -> None:
    """Write a picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot().close(figure)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """All rows with all columns that any of them has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def measured_of(path: Path) -> str | None:
    """When and with what a page says that it was measured; None: there is no such page."""
    found = re.search(r"^(?:Written|Measured) by `[^`]*` (.*)\.$", path.read_text(), re.M) if path.exists() else None
    return found.group(1) if found else None


def read_csv(path: Path) -> list[dict[str, Any]]:
    """The rows of `write_csv`: numbers as numbers, without empty cells. A commit such as 12e4567 is no number."""
    with path.open(newline="") as file:
        return [
            {name: text if name == "commit" else _number(text) for name, text in row.items() if text}
            for row in csv.DictReader(file)
        ]


def _number(text: str) -> Any:
    """A number where the text is one.

    >>> _number("5"), _number("0.25"), _number("nan"), _number("similar")
    (5, 0.25, nan, 'similar')
    """
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def now_and_here() -> str:
    """When and with what something is measured now."""
    return f"on {datetime.date.today().isoformat()} with {versions()}, on {machine()}"


def versions() -> str:
    """What was measured, and with what."""
    told = with_commit(cells.code(), commit())
    return f"{told}, numpy {np.__version__}, Python {platform.python_version()}"


@functools.cache
def commit() -> str:
    """The commit of the code, in short; empty where there is no history."""
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=cells.ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


# A process measures with the code that it began with, whatever is committed meanwhile.
commit()
cells.code()


def with_commit(code: str, short: str) -> str:
    """The commit behind our own version.

    >>> with_commit("simfl 0.1.0+5b482061, xgboost 3.2.0", "f078303")
    'simfl 0.1.0+5b482061 (commit f078303), xgboost 3.2.0'
    """
    ours, comma, others = code.partition(", ")
    return f"{ours} (commit {short}){comma}{others}" if short else code


def state() -> dict[str, str]:
    """Day and code of a measurement, kept with its result for `stamp`."""
    return {"code": cells.code(), "commit": commit(), "date": datetime.date.today().isoformat()}


def stamp(rows: Iterable[Mapping[str, Any]]) -> str:
    """When and with what kept results were measured: the days, and all versions, each with its first commit.

    >>> stamp([{"date": "2026-11-16", "code": "simfl 1+ab, xgboost 3", "commit": "1234567"}])
    'on 2026-11-16 with simfl 1+ab (commit 1234567), xgboost 3'
    """
    known = [row for row in rows if "code" in row]
    days = sorted({str(row["date"]) for row in known if "date" in row})
    when = f"on {' to '.join(dict.fromkeys((days[0], days[-1])))} " if days else ""
    codes = {str(row["code"]): str(row.get("commit", "")) for row in reversed(known)}
    return f"{when}with {'; '.join(with_commit(*code) for code in sorted(codes.items()))}" if known else ""


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
