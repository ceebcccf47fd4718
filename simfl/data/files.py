"""Tables in files: CSV, Parquet and LIBSVM are read, CSV and Parquet written."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simfl.arrays import AnyArray, Floats
from simfl.data.arrow import column_of
from simfl.data.header import Asked, check_named, columns_of, kind_of, reading, separator
from simfl.data.schema import Schema
from simfl.data.table import as_weights, refuse_commas, survival_bounds
from simfl.errors import DataError, FileError, ParameterError
from simfl.storage import write_atomically

MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "-nan", "null", "NULL", "<NA>", "#N/A", "#NA")  # in a CSV file


@dataclass(frozen=True)
class Target:
    """The columns that are no features: those to learn, and how much each row counts, where a column says it.

    To learn are a label, or a time and whether something happened then, or a time's two bounds.
    """

    labels: tuple[str, ...]
    event: str | None = None
    weight: str | None = None

    @classmethod
    def of(
        cls, label: str | Sequence[str] | None, event: str | None = None, weight: str | None = None
    ) -> Target | None:
        """As the command line and a study name them; None: no label is named."""
        names = (label,) if isinstance(label, str) else tuple(label or ())
        if len(names) > 2 or (event is not None and len(names) != 1):
            raise ParameterError(
                "Name one label; or one label and an event; or two labels, the lower and the upper bound of a time."
            )
        if weight is not None and (weight in (*names, event) or not names):
            fact = f"{weight!r} is also what is learned" if names else "there is no label"
            raise ParameterError(f"A column of weights stands beside the label, and {fact}. Name two columns.")
        return cls(names, event, weight) if names else None

    @property
    def learned(self) -> tuple[str, ...]:
        """The columns to learn."""
        return self.labels if self.event is None else (*self.labels, self.event)

    @property
    def columns(self) -> tuple[str, ...]:
        """All of them."""
        return self.learned if self.weight is None else (*self.learned, self.weight)

    def gap(self, frame: pd.DataFrame) -> tuple[str, int] | None:
        """A column to learn with missing values, and how many. An upper bound that is missing is not known yet."""
        for name in self.learned if len(self.labels) == 1 else self.labels[:1]:
            if missing := int(frame[name].isna().sum()):
                return name, missing
        return None

    def read(self, frame: pd.DataFrame, who: str) -> AnyArray:
        """The labels; those of times as lower and upper bounds."""
        if self.event is not None:
            return survival_bounds(frame[self.labels[0]], frame[self.event], who)
        if len(self.labels) == 1:
            labels: AnyArray = frame[self.labels[0]].to_numpy()
            refuse_commas(labels, f"{column_of(self.labels[0], who)} (the label) holds")
            return labels
        low, high = (pd.to_numeric(frame[name], errors="coerce") for name in self.labels)
        if (low.isna() | (high.isna() & frame[self.labels[1]].notna())).any():
            raise DataError(f"{who} has bounds of times that are not numbers ({', '.join(self.labels)}).")
        return np.column_stack([low, high.fillna(np.inf)]).astype(np.float64)

    def weights(self, frame: pd.DataFrame, who: str) -> Floats | None:
        """How much each row counts; None: all alike."""
        return None if self.weight is None else as_weights(frame[self.weight], len(frame), column_of(self.weight, who))


@dataclass(frozen=True)
class Dataset:
    """Rows (a pandas frame or CSR), labels, a frame's schema; where asked for, the column to split by, and weights."""

    X: Any
    y: AnyArray
    schema: Schema | None = None
    by: AnyArray | None = None
    weight: Floats | None = None

    def rows(self, numbers: AnyArray) -> tuple[Any, AnyArray, Floats | None]:
        """Some of the rows with their labels and weights."""
        X = self.X.iloc[numbers] if isinstance(self.X, pd.DataFrame) else self.X[numbers]
        return X, self.y[numbers], None if self.weight is None else self.weight[numbers]

    @property
    def notes(self) -> list[str]:
        """What is worth knowing about the columns."""
        columns = self.schema.columns if self.schema else ()
        found = [
            f"{c.name} ({len(c.levels)} level{'s' * (len(c.levels) != 1)})" for c in columns if c.kind == "category"
        ]
        notes = [f"categories: {', '.join(found)}"] if found else []
        return notes if self.weight is None else [*notes, "rows count by their weight, also those that are held out"]


def read(path: Path, label: str | Target | None = None, by: str | None = None, drop: Sequence[str] = ()) -> Dataset:
    """Read a file with labels; its ending or its first line says the format."""
    if kind_of(path) == "libsvm":
        named = {"--by": by, "--weight": label.weight if isinstance(label, Target) else None}
        if options := [option for option, name in named.items() if name is not None]:
            raise DataError(
                f"{path} is a LIBSVM file, whose columns have no names: {', '.join(options)} cannot be used with it."
            )
        return read_libsvm(path)
    return from_frame(read_frame(path), path, label, by, drop)


def read_several(paths: Sequence[Path], label: str | Target | None = None, drop: Sequence[str] = ()) -> Dataset:
    """Read several files with the same columns, one for each party; the column to split by has the files' names."""
    names = [path.stem for path in paths]
    if len(set(names)) < len(names):
        raise DataError(f"Several files have the same name: {sorted(names)}. The name of a file is that of its party.")
    parts = [from_frame(read_frame(path), path, label, None, drop) for path in paths]
    for path, part in zip(paths, parts, strict=True):
        if differing := sorted(set(part.X.columns) ^ set(parts[0].X.columns)):
            raise DataError(
                f"{path} and {paths[0]} do not have the same columns: only one of them has {differing[:30]}."
            )
    X = pd.concat([part.X for part in parts], ignore_index=True)
    owner = np.repeat(names, [len(part.y) for part in parts])
    weights = [part.weight for part in parts if part.weight is not None]
    y, weight = np.concatenate([part.y for part in parts]), np.concatenate(weights) if weights else None
    return Dataset(X, y, Schema.propose(X), owner, weight)


def read_libsvm(path: Path, n_features: int | None = None) -> Dataset:
    """Read a LIBSVM file. `n_features`: the number of columns; None: as many as occur."""
    from sklearn.datasets import load_svmlight_file  # takes longer to load than a table takes to read

    with reading(path, "" if n_features is None else f" as LIBSVM with {n_features} features"):
        X, y = load_svmlight_file(str(path), n_features=n_features, dtype=np.float32)
    return Dataset(X.tocsr(), y.astype(np.int64) if np.all(y == np.round(y)) else y)


def read_frame(path: Path) -> pd.DataFrame:
    """Read a CSV or Parquet file as it is."""
    kind = kind_of(path)
    if kind == "libsvm":
        raise DataError(f"{path} is a LIBSVM file, whose columns have no names. Give a CSV or Parquet file.")
    if kind == "csv":
        columns_of(path)  # refuses names that occur twice, which pandas would rename
    with reading(path):
        frame = pd.read_parquet(path) if kind == "parquet" else _read_csv(path)
    return frame.rename(columns=str)


def _read_csv(path: Path) -> pd.DataFrame:
    """A CSV file. Only what stands for a missing value everywhere does here: "None" can be an answer."""
    return pd.read_csv(path, sep=separator(path), keep_default_na=False, na_values=MISSING)


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a CSV or Parquet file, by its ending."""
    if path.suffix not in (".csv", ".parquet"):
        raise FileError(f"The file for the predictions must end in .csv or .parquet, not {path.name!r}.")
    buffer = io.BytesIO()
    if path.suffix == ".csv":
        buffer.write(to_csv(frame).encode())
    else:
        frame.to_parquet(buffer)
    write_atomically(path, buffer.getvalue())


def to_csv(frame: pd.DataFrame) -> str:
    r"""A table as CSV that a spreadsheet opens as what it is: no text of a party becomes a formula.

    >>> to_csv(pd.DataFrame({"prediction": ["=HYPERLINK(1)", "yes"]}))
    "prediction\n'=HYPERLINK(1)\nyes\n"
    """
    texts = {str(name): column.map(_no_formula) for name, column in frame.items() if column.dtype.kind not in "biuf"}
    return str(frame.assign(**texts).rename(columns=_no_formula).to_csv(index=False))


def _no_formula(value: Any) -> Any:
    """A text that begins as a formula does, with an apostrophe before it, as spreadsheets write such texts."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def from_frame(
    frame: pd.DataFrame,
    path: Path | str,
    label: str | Target | None,
    by: str | None = None,
    drop: Sequence[str] = (),
) -> Dataset:
    """The features, the labels and the groups of a table. `path` is where it came from."""
    target = (label if isinstance(label, Target) else Target.of(label)) or Target(())
    asked = Asked(target.labels, target.event, by, tuple(drop), target.weight)
    check_named(path, [str(name) for name in frame.columns], asked)
    if (gap := target.gap(frame)) is not None:
        raise DataError(f"{path} has {gap[1]} rows without a label in column {gap[0]!r}. Drop or fill them first.")
    if frame.empty:
        raise DataError(f"{path} has no rows below its header.")
    if by is not None and (unknown := int(frame[by].isna().sum())):
        raise DataError(
            f"{path} has {unknown} rows without a value in column {by!r} (--by): whose are they? Fill them in, or drop "
            "these rows."
        )
    features = frame.drop(columns=[c for c in {*target.columns, by, *drop} if c is not None])
    groups = None if by is None else frame[by].astype(str).to_numpy()
    name = Path(path).name
    y, weight = target.read(frame, name), target.weights(frame, name)
    return Dataset(features, y, Schema.propose(features, name), groups, weight)
