"""Tables in files: CSV, Parquet and LIBSVM are read, CSV and Parquet written."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_svmlight_file

from simfl.arrays import AnyArray
from simfl.data.schema import Schema
from simfl.errors import DataError, FileError
from simfl.preprocessing.expansion import Expansion
from simfl.storage import write_atomically

_ENDINGS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv"}
_ENDINGS |= dict.fromkeys((".libsvm", ".svm", ".svmlight"), "libsvm")


@dataclass(frozen=True)
class Dataset:
    """Rows (a pandas frame or CSR), labels, the schema of a frame and the column to split by, where asked for."""

    X: Any
    y: AnyArray
    schema: Schema | None = None
    by: AnyArray | None = None

    def rows(self, numbers: AnyArray) -> tuple[Any, AnyArray]:
        """Some of the rows with their labels."""
        X = self.X.iloc[numbers] if isinstance(self.X, pd.DataFrame) else self.X[numbers]
        return X, self.y[numbers]

    @property
    def n_features(self) -> int:
        """How many columns there are."""
        return int(self.X.shape[1])

    @property
    def expanded(self) -> Any:
        """The rows as numbers, with a 0/1 column for every level of a category."""
        if self.schema is None or not self.schema.has_categories:
            return self.X
        names = [n for c in self.schema.columns for n in ([f"{c.name}={x}" for x in c.levels] or [c.name])]
        return pd.DataFrame(Expansion(self.schema.n_levels).expand(self.schema.encode(self.X)), columns=names)

    @property
    def notes(self) -> list[str]:
        """What is worth knowing about the columns."""
        columns = self.schema.columns if self.schema else ()
        found = [f"{c.name} ({len(c.levels)} levels)" for c in columns if c.kind == "category"]
        return [f"categories: {', '.join(found)}"] if found else []


def read(path: Path, label: str | None = None, by: str | None = None, drop: Sequence[str] = ()) -> Dataset:
    """Read a file with labels; its ending or its first line says the format."""
    if _kind(path) == "libsvm":
        if by is not None:
            raise DataError(f"{path} is a LIBSVM file, whose columns have no names: --by cannot be used with it.")
        return read_libsvm(path)
    return _from_frame(read_frame(path), path, label, by, drop)


def read_libsvm(path: Path, n_features: int | None = None) -> Dataset:
    """Read a LIBSVM file. `n_features`: the number of columns; None: as many as occur."""
    with _reading(path, "" if n_features is None else f" as LIBSVM with {n_features} features"):
        X, y = load_svmlight_file(str(path), n_features=n_features, dtype=np.float32)
    return Dataset(X.tocsr(), y.astype(np.int64) if np.all(y == np.round(y)) else y)


def read_frame(path: Path) -> pd.DataFrame:
    """Read a CSV or Parquet file as it is."""
    kind = _kind(path)
    if kind == "libsvm":
        raise DataError(f"{path} is a LIBSVM file, whose columns have no names. Give a CSV or Parquet file.")
    with _reading(path):
        frame = pd.read_parquet(path) if kind == "parquet" else pd.read_csv(path, sep=_separator(path))
    return frame.rename(columns=str)


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a CSV or Parquet file, by its ending."""
    if path.suffix not in (".csv", ".parquet"):
        raise FileError(f"The file for the predictions must end in .csv or .parquet, not {path.name!r}.")
    buffer = io.BytesIO()
    frame.to_csv(buffer, index=False) if path.suffix == ".csv" else frame.to_parquet(buffer)
    write_atomically(path, buffer.getvalue())


def _kind(path: Path) -> str:
    if path.is_dir():
        raise FileError(f"{path} is a folder. Give a CSV, Parquet or LIBSVM file.")
    if not path.is_file():
        raise FileError(f"There is no file {path}. Check the name and the folder ({Path.cwd()}).")
    with _reading(path):
        return _ENDINGS.get(path.suffix.lower()) or ("libsvm" if _looks_like_libsvm(path) else "csv")


@contextmanager
def _reading(path: Path, how: str = "") -> Iterator[None]:
    """Turn what goes wrong while a file is read into one sentence."""
    try:
        yield
    except (OSError, ValueError) as error:  # UnicodeDecodeError and pandas' ParserError are ValueErrors
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise FileError(f"{path} cannot be read{how}: {first_line}.") from None


def _looks_like_libsvm(path: Path) -> bool:
    """Whether the first row with features reads: label, then number:value pairs (and perhaps a query id)."""
    with path.open(encoding="utf-8") as file:
        for line in islice(file, 1000):
            row = line.split("#")[0].strip()
            if re.fullmatch(r"[-+.\deE]*", row):
                continue  # a comment, an empty row, or a row without features
            return re.fullmatch(r"\S+(\s+qid:\d+)?(\s+\d+:\S+)+", row) is not None
    return False


def _separator(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        head = file.readline()
    try:
        return csv.Sniffer().sniff(head, delimiters=",;\t|").delimiter
    except csv.Error:
        return ","


def _from_frame(frame: pd.DataFrame, path: Path, label: str | None, by: str | None, drop: Sequence[str]) -> Dataset:
    if label is None:
        raise DataError(f"Say which column of {path} is the label: --label COLUMN. {_columns(frame)}")
    for option, name in (("--label", label), ("--by", by), *(("--drop", name) for name in drop)):
        if name is not None and name not in frame.columns:
            raise DataError(f"{path} has no column {name!r} ({option}). {_columns(frame)}")
    missing = int(frame[label].isna().sum())
    if missing:
        raise DataError(f"{path} has {missing} rows without a label in column {label!r}. Drop or fill them first.")
    if frame.empty:
        raise DataError(f"{path} has no rows below its header.")
    features = frame.drop(columns=[c for c in {label, by, *drop} if c is not None])
    groups = None if by is None else frame[by].astype(str).to_numpy()
    return Dataset(features, frame[label].to_numpy(), Schema.propose(features, path.name), groups)


def _columns(frame: pd.DataFrame) -> str:
    names = [str(c) for c in frame.columns]
    return f"Its columns are: {', '.join(names[:30])}{', ...' if len(names) > 30 else ''}."
