"""Four tables for private trainings, and what the people of a study would declare of each before anybody looks.

Ranges are round numbers, written down by hand from what a column means, with a look at rows that no test of the seeds 0
to 2 has (default_credit: at training rows). A range need not hold every value: what lies beyond is in the outermost
cells. Balances and counts of bank have cut points instead, closer where they are small.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.data import Source, folder, load, source, split
from simfl.data.schema import Schema

Declared = dict[str, Any]  # a column, as in [columns] of a study


class Divided(NamedTuple):
    """Rows to train with, and rows to test on."""

    X: pd.DataFrame
    y: np.ndarray
    X_test: pd.DataFrame
    y_test: np.ndarray


@dataclass(frozen=True)
class Declarations:
    """What a study says about a table: its columns, about how many training rows, and the share of positives."""

    columns: Declared
    rows: int
    base_score: float

    @property
    def schema(self) -> Schema:
        """The columns, as every party has them."""
        return Schema.from_toml(self.columns)

    @property
    def digest(self) -> str:
        """Of all that is declared."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:8]


def _range(low: float, high: float) -> Declared:
    return {"low": low, "high": high}


def _cuts(*points: float) -> Declared:
    return {"cuts": list(points)}


_POSITIVE, _ANGLE, _ETA = _range(0, 5), _range(-1.75, 1.75), _range(-2.1, 2.1)  # SUSY: scaled to a mean of about one
_STATUS, _BILL, _PAID = _range(-2, 8), _range(-1, 5), _range(-0.5, 2)  # default_credit: deviations from the mean
_YES_NO = ["no", "yes"]

STUDIES = {
    "ijcnn1": Declarations(
        {f"x{j}": _cuts(0.5) if j < 10 else _range(-1, 1) for j in range(22)}, rows=37_000, base_score=0.1
    ),
    "SUSY": Declarations(
        {f"x{j}": _POSITIVE for j in range(18)}
        | {f"x{j}": _ETA for j in (1, 4)}
        | {f"x{j}": _ANGLE for j in (2, 5, 7)}
        | {"x9": _range(-5, 5), "x16": _range(0, 1.6), "x17": _range(0, 1)},
        rows=22_000,
        base_score=0.46,
    ),
    "bank": Declarations(
        {
            "age": _range(18, 82),
            "job": [
                "admin.",
                "blue-collar",
                "entrepreneur",
                "housemaid",
                "management",
                "retired",
                "self-employed",
                "services",
                "student",
                "technician",
                "unemployed",
                "unknown",
            ],
            "marital": ["divorced", "married", "single"],
            "education": ["primary", "secondary", "tertiary", "unknown"],
            "default": _YES_NO,
            "balance": _cuts(-500, -200, 0, 1, 100, 200, 500, 1000, 1500, 2000, 3000, 5000, 10_000, 20_000),
            "housing": _YES_NO,
            "loan": _YES_NO,
            "contact": ["cellular", "telephone", "unknown"],
            "day": _range(0, 32),
            "month": ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
            "campaign": _cuts(2, 3, 4, 5, 6, 8, 10, 15, 20),
            "pdays": _cuts(0, 30, 60, 90, 100, 120, 150, 180, 210, 240, 270, 300, 365),
            "previous": _cuts(1, 2, 3, 4, 5, 10),
            "poutcome": ["failure", "other", "success", "unknown"],
        },
        rows=34_000,
        base_score=0.12,
    ),
    "default_credit": Declarations(
        {f"x{j}": _STATUS for j in range(23)}
        | {f"x{j}": _BILL for j in range(1, 7)}
        | {f"x{j}": _PAID for j in range(7, 13)}
        | {"x13": _range(-2, 5), "x14": _cuts(0), "x15": _range(-3, 6), "x16": _range(-3, 3), "x17": _range(-2, 5)},
        rows=16_000,
        base_score=0.22,
    ),
}


def origin(name: str) -> Source:
    """The files of a table."""
    if name == "bank":
        return Source((folder() / "bank-full.csv",), "UCI bank marketing, without `duration`")
    if name == "default_credit":
        parts = ("guest", "host_1", "test")
        files = tuple(folder() / "published" / "unified" / f"default_credit_homo_{part}.csv.gz" for part in parts)
        return Source(files, "UCI, as UniFed (2207.10308) divides it: guest and host_1 train, 6,000 rows test")
    return source(name)


def divided(name: str, seed: int) -> Divided:
    """A quarter of the rows for testing, by the seed; default_credit: the rows that were published for that."""
    if name == "default_credit":
        *training, test = (_read(path) for path in origin(name).files)
        rows = pd.concat(training, ignore_index=True)
        columns = list(STUDIES[name].columns)
        return Divided(rows[columns], rows["y"].to_numpy(), test[columns], test["y"].to_numpy())
    X, y = _table(name)
    rows, held_out = split(y, seed)
    return Divided(X.iloc[rows], y[rows], X.iloc[held_out], y[held_out])


def _table(name: str) -> tuple[pd.DataFrame, np.ndarray]:
    columns = list(STUDIES[name].columns)
    if name == "bank":
        frame = _read(origin(name).files[0], sep=";")
        return frame[columns], (frame["y"] == "yes").to_numpy().astype(np.int64)
    X, y = load(name)
    return pd.DataFrame(X, columns=columns), y


def _read(path: Path, **how: Any) -> pd.DataFrame:
    if not path.exists():
        raise SystemExit(f"{path.name} is not at {path.parent}: set SIMFL_DATA to the folder that holds it.")
    frame: pd.DataFrame = pd.read_csv(path, **how)
    return frame
