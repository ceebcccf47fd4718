"""Reading tables from files: CSV, Parquet and LIBSVM.

For trying SimFL out on one file that is then split into parties. Text columns become one yes/no column per value.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_svmlight_file

from simfl.arrays import AnyArray, Table
from simfl.errors import DataError, FileError

MOST_VALUES = 100  # of a text column: more look like names or free text


@dataclass(frozen=True)
class Dataset:
    """Rows, labels, column names, the column to split by (where asked for) and what was done on the way."""

    X: Table
    y: AnyArray
    columns: list[str] | None
    by: AnyArray | None
    notes: list[str]
    n_original: int  # columns before text became yes/no columns


def read_frame(path: Path) -> pd.DataFrame:
    """A CSV or Parquet file as it is."""
    if not path.is_file():
        raise FileError(f"There is no file {path}. Check the name and the folder ({Path.cwd()}).")
    try:
        return pd.read_parquet(path) if _kind(path) == "parquet" else pd.read_csv(path, sep=_separator(path))
    except (OSError, ValueError, UnicodeDecodeError, pd.errors.ParserError) as error:
        raise FileError(f"{path} cannot be read: {_first_line(error)}.") from None


def read(path: Path, label: str | None = None, by: str | None = None) -> Dataset:
    """Read a file; its ending or its first line tells the format."""
    if path.is_dir():
        raise FileError(f"{path} is a folder. Give a CSV, Parquet or LIBSVM file.")
    if not path.is_file():
        raise FileError(f"There is no file {path}. Check the name and the folder ({Path.cwd()}).")
    try:
        kind = _kind(path)
        if kind == "libsvm":
            return _read_libsvm(path, by)
        frame = pd.read_parquet(path) if kind == "parquet" else pd.read_csv(path, sep=_separator(path))
    except (OSError, ValueError, UnicodeDecodeError, pd.errors.ParserError) as error:
        if isinstance(error, FileError | DataError):
            raise
        raise FileError(f"{path} cannot be read: {_first_line(error)}.") from None
    return _from_frame(frame, path, label, by)


def _kind(path: Path) -> str:
    ending = path.suffix.lower()
    if ending in (".parquet", ".pq"):
        return "parquet"
    if ending in (".csv", ".tsv"):
        return "csv"
    if ending in (".libsvm", ".svm", ".svmlight"):
        return "libsvm"
    return "libsvm" if _looks_like_libsvm(path) else "csv"


def _looks_like_libsvm(path: Path) -> bool:
    """Whether the first row with features reads: label, then number:value pairs (and perhaps a query id)."""
    with path.open(encoding="utf-8") as file:
        for line in islice(file, 1000):
            row = line.split("#")[0].strip()
            if re.fullmatch(r"[-+.\deE]*", row):
                continue  # a comment, an empty row, or a row without features
            return re.fullmatch(r"\S+(\s+qid:\d+)?(\s+\d+:\S+)+", row) is not None
    return False


def _head(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline()


def _separator(path: Path) -> str:
    try:
        return csv.Sniffer().sniff(_head(path), delimiters=",;\t|").delimiter
    except csv.Error:
        return ","


def _read_libsvm(path: Path, by: str | None) -> Dataset:
    if by is not None:
        raise DataError(f"{path} is a LIBSVM file, whose columns have no names: --by cannot be used with it.")
    X, y = load_svmlight_file(str(path), dtype=np.float32)
    labels = y.astype(np.int64) if np.all(y == np.round(y)) else y
    return Dataset(X.tocsr(), labels, None, None, [], X.shape[1])


def _from_frame(frame: pd.DataFrame, path: Path, label: str | None, by: str | None) -> Dataset:
    for option, name in (("--label", label), ("--by", by)):
        if name is None and option == "--label":
            raise DataError(f"Say which column of {path} is the label: --label COLUMN. {_columns(frame)}")
        if name is not None and name not in frame.columns:
            raise DataError(f"{path} has no column {name!r} ({option}). {_columns(frame)}")
    missing = int(frame[label].isna().sum())
    if missing:
        raise DataError(f"{path} has {missing} rows without a label in column {label!r}. Drop or fill them first.")
    groups = None if by is None else frame[by].astype(str).to_numpy()
    if frame.empty:
        raise DataError(f"{path} has no rows below its header.")
    original = frame.drop(columns=[c for c in (label, by) if c is not None])
    features, notes = _encode(original)
    X, y = features.to_numpy(dtype=np.float32), frame[label].to_numpy()
    return Dataset(X, y, list(features.columns), groups, notes, original.shape[1])


def _columns(frame: pd.DataFrame) -> str:
    names = [str(c) for c in frame.columns]
    return f"Its columns are: {', '.join(names[:30])}{', ...' if len(names) > 30 else ''}."


def _encode(features: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    features = features.rename(columns=str)
    text = [c for c in features.columns if not pd.api.types.is_numeric_dtype(features[c])]
    for column in text:
        try:
            n_values = features[column].nunique()
        except TypeError:
            raise DataError(
                f"Column {column!r} holds lists or other structures. Drop it, or split it up first."
            ) from None
        if n_values > MOST_VALUES:
            raise DataError(
                f"Column {column!r} has {n_values} different texts. Drop it, or turn it into numbers first."
            )
    if not text:
        return features, []
    encoded: Any = pd.get_dummies(features, columns=text, dtype=np.float32)
    added = encoded.shape[1] - features.shape[1] + len(text)
    return encoded, [f"{len(text)} text columns became {added} yes/no columns"]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
