"""Data frames as Arrow tables: pandas, Polars, Arrow and whatever else speaks Arrow's stream interface.

A column is read as float32 numbers (`as_numbers`) or as texts with a code per row (`as_texts`); a missing value is NaN
or -1. `who` names the table in error messages ("Party 'north'").
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from simfl.arrays import AnyArray
from simfl.errors import DataError


def as_arrow(table: Any, who: str) -> pa.Table | None:
    """A data frame of any make as an Arrow table; None for what has no named columns."""
    if isinstance(table, pd.DataFrame):
        return _from_pandas(table, who)
    if not (hasattr(table, "__arrow_c_stream__") and hasattr(table, "columns")):
        return None
    frame = pa.table(table)
    check_names(frame.column_names, who)
    return frame


def _from_pandas(table: pd.DataFrame, who: str) -> pa.Table:
    names = [str(name) for name in table.columns]
    check_names(names, who)
    arrays = []
    for place, name in enumerate(names):
        column = table.iloc[:, place]
        if isinstance(column.dtype, pd.SparseDtype):
            column = pd.Series(column.to_numpy())
        try:
            arrays.append(pa.chunked_array([pa.array(column, from_pandas=True)]))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, UnicodeEncodeError):
            raise DataError(
                f"{column_of(name, who)} holds {column.dtype}: values of several kinds, or of one that is neither "
                "number nor text. Make all its values numbers, or all text."
            ) from None
    return pa.table(arrays, names=names)


def check_names(columns: list[str], who: str) -> None:
    """Refuse names of features that XGBoost would refuse, or that no file can hold."""
    broken = [c for c in columns if not is_valid_text(c)]
    if broken:
        raise DataError(f"{who} has column names that are not valid text: {broken}. Rename them.")
    strange = [c for c in columns if any(sign in c for sign in "[]<")]
    if strange:
        raise DataError(f"{who} has column names with a sign that XGBoost refuses ([, ] or <): {strange}. Rename them.")
    repeated = sorted({c for c in columns if columns.count(c) > 1})
    if repeated:
        raise DataError(f"{who} has several columns named {repeated}. Rename them.")


def as_texts(values: pa.ChunkedArray) -> tuple[AnyArray, list[str]]:
    """Codes (-1: missing) and the texts that they stand for; only those that occur."""
    if pa.types.is_dictionary(values.type):
        return _stored_dictionary(values)
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), None, values)
    encoded = values.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
    return codes, [text_of(value) for value in encoded.dictionary.to_pylist()]


def _stored_dictionary(values: pa.ChunkedArray) -> tuple[AnyArray, list[str]]:
    """The same of a column that has levels already; every chunk may number them in its own way."""
    places: dict[str, int] = {}
    codes = []
    for chunk in values.chunks:
        numbers = pc.fill_null(chunk.indices, len(chunk.dictionary)).to_numpy(zero_copy_only=False).astype(np.int64)
        texts = [None if value is None else text_of(value) for value in chunk.dictionary.to_pylist()]
        used = set(np.unique(numbers).tolist())
        own = [-1 if t is None or i not in used else places.setdefault(t, len(places)) for i, t in enumerate(texts)]
        codes.append(np.array([*own, -1])[numbers])
    return np.concatenate(codes), list(places)


def as_numbers(values: pa.ChunkedArray) -> AnyArray:
    """Numbers, decimals and truth values as float32."""
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.float64())
    if values.null_count:
        values = values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values
        values = pc.fill_null(values.cast(pa.float64(), safe=False), np.nan)
    with np.errstate(over="ignore"):
        return np.asarray(values.to_numpy(), dtype=np.float32)


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type holds numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds plain text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_valid_text(text: str) -> bool:
    """Whether a text can be written to a file: half of a surrogate pair cannot."""
    return not re.search("[\\ud800-\\udfff]", text)


def text_of(value: Any) -> str:
    """A level as text; 1.0 is the level 1, since missing values turn whole numbers into floats."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def column_of(name: str, who: str) -> str:
    """How an error message begins."""
    owner = who[:1].lower() + who[1:] if who.startswith(("Party ", "The ")) else who
    return f"Column {name!r} of {owner}"


def few(names: Iterable[str], most: int = 6) -> str:
    """The first names of a list that can be long."""
    names = list(names)
    return f"{names[:most]}{' and more' if len(names) > most else ''}"
