"""The columns of a study: their names, their order, their kinds, and the levels of categories.

A party's table is read through a schema: declared for the whole study, or proposed from the table and then agreed
between the parties in the handshake. Numbers and truth values become float32, a category becomes the number of its
level, and a missing value NaN.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec
import numpy as np
import pyarrow as pa

from simfl.arrays import AnyArray, Floats, Ints
from simfl.data.arrow import as_arrow, as_numbers, as_texts, column_of, few, is_number, is_text, text_of
from simfl.data.commas import with_commas
from simfl.errors import DataError, UnseenLevelWarning, did_you_mean
from simfl.params import MOST_CUTS

Kind = Literal["number", "boolean", "category", "empty"]
MOST_LEVELS: Final = 100  # more look like names or free text
FEW_LEVELS: Final = 10  # up to here they are never taken for names, however few the rows
_RANGE: Final = ("low", "high", "cuts")
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?([T ].*)?|\d\d?[./]\d\d?[./]\d{4}")
_HOW_TO_DATE = (
    "Turn it into numbers that mean something at every party: days since a fixed event, an age in years, or the month "
    "as a category."
)


class UnusableColumnsError(DataError):
    """Columns of a table can be neither numbers nor categories as they are."""

    def __init__(self, text: str, columns: list[str]) -> None:
        super().__init__(text)
        self.columns = columns


class _WithCommasError(UnusableColumnsError):
    """A column holds numbers as some countries write them."""


class Column(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A feature. `empty` is a column without any value: it takes the kind that the other parties have.

    A number may have a declared range (`low` and `high`), or declared cut points: then trees that are grown together
    are cut there, and nobody asks where its values lie.
    """

    name: str
    kind: Kind = "number"
    levels: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    cuts: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a range that is not one."""
        if wrong := _wrong_range(self):
            raise DataError(f"Column {self.name!r} {wrong}.")

    @property
    def range(self) -> dict[str, Any]:
        """What is declared of its values; nothing where nothing is."""
        return {name: value for name in _RANGE if (value := getattr(self, name)) not in (None, ())}


class Schema(msgspec.Struct, frozen=True):
    """The features of a study, in order.

    >>> import pandas as pd
    >>> patients = pd.DataFrame({"age": [60, 71], "smoker": [True, False], "ward": ["b", "a"]})
    >>> schema = Schema.propose(patients)
    >>> print(schema.to_toml())
    [columns]
    age = "number"
    smoker = "boolean"
    ward = ["a", "b"]
    >>> schema.encode(patients[["ward", "smoker", "age"]])
    array([[60.,  1.,  1.],
           [71.,  0.,  0.]], dtype=float32)
    """

    columns: tuple[Column, ...]

    @classmethod
    def propose(cls, table: Any, who: str = "The table") -> Schema:
        """The schema that a table suggests by itself. Dates, free text and nested columns are refused with advice."""
        frame = as_arrow(table, who)
        if frame is None:
            raise DataError(f"{who} is a {type(table).__name__}, whose columns have no names. Give a data frame.")
        found, refused = [], {}
        for place, name in enumerate(frame.column_names):
            try:
                found.append(_propose(name, frame.column(place), who))
            except _WithCommasError:
                raise  # before all else: the file is to be read in another way
            except DataError as error:
                refused[name] = str(error)
        if refused:
            why, *_ = refused.values()
            others = ", ".join(map(repr, [*refused][1:]))
            text = f"{why} Nor can these be used as they are: {others}." if others else why
            raise UnusableColumnsError(text, [*refused])
        return cls(tuple(found))

    @classmethod
    def of_numbers(cls, names: Iterable[str]) -> Schema:
        """All columns are numbers."""
        return cls(tuple(Column(name=name) for name in names))

    @classmethod
    def from_toml(cls, table: Mapping[str, Any]) -> Schema:
        """The `[columns]` table of a study file: name = "number", "boolean" or the list of a category's levels.

        A number can have a range or cut points: name = { low = 0, high = 120 } or name = { cuts = [18, 65] }.

        >>> Schema.from_toml({"age": {"low": 0, "high": 120}, "ward": ["a", "b"]}).names
        ['age', 'ward']
        """
        return cls(tuple(_declared(name, value) for name, value in table.items()))

    def to_toml(self) -> str:
        """The `[columns]` table for a study file."""
        lines = ["[columns]"]
        for column in self.columns:
            key = column.name if re.fullmatch(r"[A-Za-z0-9_-]+", column.name) else _quoted(column.name)
            lines.append(f"{key} = {_in_toml(column)}")
        return "\n".join(lines)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    def renamed(self, names: Iterable[str]) -> Schema:
        """The same columns under other names."""
        pairs = zip(self.columns, names, strict=True)
        return Schema(tuple(msgspec.structs.replace(column, name=name) for column, name in pairs))

    @property
    def has_categories(self) -> bool:
        """Whether any column is a category."""
        return any(column.kind == "category" for column in self.columns)

    @property
    def feature_types(self) -> list[str]:
        """The kinds in XGBoost's words."""
        return ["c" if column.kind == "category" else "q" for column in self.columns]

    @property
    def n_levels(self) -> Ints:
        """Per column the number of its levels; 0 for what is not a category."""
        return np.array([len(column.levels) for column in self.columns], dtype=np.int32)

    def declared_cuts(self, max_bin: int) -> tuple[Floats | None, ...]:
        """Per column the cut points that are declared, None where the parties must agree on them.

        Booleans and categories need no range. They are asked about only along with numbers that have none.

        >>> ages = Schema.from_toml({"age": {"low": 0, "high": 100}, "smoker": "boolean"})
        >>> [points.tolist() for points in ages.declared_cuts(max_bin=4)]
        [[25.0, 50.0, 75.0], [0.5]]
        """
        complete = all(column.range or column.kind in ("boolean", "category") for column in self.columns)
        return tuple(_cuts(column, max_bin) if complete or column.range else None for column in self.columns)

    def encode(self, table: Any, who: str = "The table") -> Floats:
        """The table's rows in the schema's order, as float32. Other columns are left out.

        A level that the schema does not know counts as missing, with a warning.
        """
        frame = as_arrow(table, who)
        if frame is None:
            raise DataError(f"{who} has columns without names, the schema {self.names}. Give a data frame.")
        missing = [name for name in self.names if name not in frame.column_names]
        if missing:
            here = f"It has {few(frame.column_names)}; the schema asks for {few(self.names)}."
            raise DataError(f"{who} lacks columns (missing: {missing}). {here}")
        encoded = np.empty((frame.num_rows, len(self.columns)), dtype=np.float32)
        for place, column in enumerate(self.columns):
            encoded[:, place] = _encode(column, frame.column(column.name), who)
        return encoded

    def recode(self, X: Floats, own: Schema) -> Floats:
        """Rows that were read through another schema of the same columns, as this schema has them."""
        if [(c.name, c.levels) for c in self.columns] == [(c.name, c.levels) for c in own.columns]:
            return X
        recoded = np.empty_like(X)
        places = {name: place for place, name in enumerate(own.names)}
        for place, column in enumerate(self.columns):
            theirs = own.columns[places[column.name]]
            values = X[:, places[column.name]]
            if column.kind == "category" and theirs.levels != column.levels:
                values = _numbers_of(theirs.levels, column.levels)[np.nan_to_num(values, nan=-1).astype(np.int64)]
            recoded[:, place] = values
        return recoded


def agree(schemas: Mapping[str, Schema]) -> Schema:
    """One schema for parties with the same column names: the first one's order, and the levels of all.

    >>> north = Schema((Column(name="ward", kind="category", levels=("a", "b")),))
    >>> south = Schema((Column(name="ward", kind="category", levels=("c",)),))
    >>> agree({"north": north, "south": south}).columns[0].levels
    ('a', 'b', 'c')
    """
    return Schema(tuple(_agree_on(name, schemas) for name in next(iter(schemas.values())).names))


def _agree_on(name: str, schemas: Mapping[str, Schema]) -> Column:
    found = {party: next(c for c in schema.columns if c.name == name) for party, schema in schemas.items()}
    kinds = {party: column.kind for party, column in found.items() if column.kind != "empty"}
    if len(set(kinds.values())) > 1 and "category" in kinds.values():
        facts = ", ".join(f"{party!r} has {_kind_in_words(found[party])}" for party in kinds)
        how = "Make it the same everywhere, or declare it in the schema."
        raise DataError(f"Column {name!r} is not of one kind: {facts}. {how}")
    if "category" in kinds.values():
        levels = sorted({level for column in found.values() for level in column.levels})
        return Column(name=name, kind="category", levels=tuple(levels))
    if set(kinds.values()) == {"boolean"}:
        return Column(name=name, kind="boolean")
    return Column(name=name, **_agree_on_range(name, found))


def _agree_on_range(name: str, found: Mapping[str, Column]) -> dict[str, Any]:
    """What the parties that declare a range of the column have declared."""
    ranges = {party: column.range for party, column in found.items() if column.range}
    first = next(iter(ranges.values()), {})
    other = [party for party, own in ranges.items() if own != first]
    if other:
        facts = f"{next(iter(ranges))!r} declares {first}, {other[0]!r} {ranges[other[0]]}"
        raise DataError(f"Column {name!r} has several ranges: {facts}. Give all parties the same schema.")
    return first


def _kind_in_words(column: Column) -> str:
    return f"the levels {few(column.levels)}" if column.kind == "category" else f"{column.kind}s"


def xgboost_types(schema: Schema | None) -> dict[str, Any]:
    """What XGBoost's matrices need to know of the columns: nothing where all are numbers."""
    if schema is None or not schema.has_categories:
        return {}
    return {"feature_types": schema.feature_types, "enable_categorical": True}


# --- one column ------------------------------------------------------------------------------------------------------


def _declared(name: str, value: Any) -> Column:
    if value in ("number", "boolean"):
        return Column(name=name, kind=value)
    if isinstance(value, list) and value and len(set(map(str, value))) == len(value):
        return Column(name=name, kind="category", levels=tuple(text_of(level) for level in value))
    if isinstance(value, Mapping):
        return _declared_range(name, value)
    how = 'Write "number", "boolean", { low = ..., high = ... }, or a category\'s list of different levels.'
    raise DataError(f"[columns] says {name} = {value!r}. {how}")


def _declared_range(name: str, value: Mapping[str, Any]) -> Column:
    unknown = [key for key in value if key not in _RANGE]
    if unknown:
        raise DataError(f"[columns] gives {name} a {unknown[0]!r}. {did_you_mean(unknown[0], _RANGE)}")
    try:
        column = msgspec.convert({"name": name, **value}, Column)
    except msgspec.ValidationError as error:
        raise DataError(f"[columns]: {name}: {str(error).replace('`', '').rstrip('.')}.") from None
    if not column.range:
        raise DataError(f"[columns] gives {name} no range. Write {{ low = ..., high = ... }} or {{ cuts = [...] }}.")
    return column


def _wrong_range(column: Column) -> str:
    """What is wrong with a declared range, in words; empty if nothing is."""
    declared = column.range
    if not declared:
        return ""
    if column.kind != "number":
        return f"is a {column.kind}: only numbers have a range"
    if sorted(declared) not in (["high", "low"], ["cuts"]):
        return "needs low and high, or cuts alone"
    with np.errstate(over="ignore"):
        points = np.array(column.cuts or (column.low, column.high), dtype=np.float32)
    if not np.isfinite(points).all() or not (np.diff(points) > 0).all():
        return f"has {declared}: numbers must rise, and be finite, in float32"
    return f"has {len(points)} cuts: there may be {MOST_CUTS}" if len(points) > MOST_CUTS else ""


def _cuts(column: Column, max_bin: int) -> Floats:
    """As declared, or evenly from `low` to `high`; a boolean is cut between 0 and 1."""
    if column.low is None or column.high is None:
        return np.array(column.cuts or [0.5] * (column.kind == "boolean"), dtype=np.float32)
    n_bins = min(max_bin, MOST_CUTS + 1)
    steps = np.arange(1, n_bins) / n_bins
    return np.unique((column.low + (column.high - column.low) * steps).astype(np.float32))


def _in_toml(column: Column) -> str:
    if column.kind == "category":
        return f"[{', '.join(_quoted(level) for level in column.levels)}]"
    if declared := column.range:
        values = {name: list(value) if name == "cuts" else value for name, value in declared.items()}
        return f"{{ {', '.join(f'{name} = {value}' for name, value in values.items())} }}"
    return _quoted("number" if column.kind == "empty" else column.kind)


def _refuse_dates(kind: pa.DataType, where: str) -> None:
    if pa.types.is_temporal(kind):
        raise DataError(f"{where} holds dates or times ({kind}). {_HOW_TO_DATE}")


def _propose(name: str, values: pa.ChunkedArray, who: str) -> Column:
    kind, where = values.type, column_of(name, who)
    _refuse_dates(kind, where)
    if pa.types.is_null(kind) or values.null_count == len(values):
        return Column(name=name, kind="empty")
    if pa.types.is_boolean(kind):
        return Column(name=name, kind="boolean")
    if is_number(kind):
        return Column(name=name)
    if is_text(kind) or pa.types.is_dictionary(kind):
        levels = _levels(values, where)
        if is_text(kind):  # who made it a category has decided
            _refuse_commas(name, levels, where)
        _refuse_free_text(levels, len(values) - values.null_count, where)
        return Column(name=name, kind="category", levels=levels)
    raise DataError(f"{where} holds {kind}. Drop it, or split it up into numbers and categories.")


def _levels(values: pa.ChunkedArray, where: str) -> tuple[str, ...]:
    levels = sorted(set(as_texts(values)[1]))
    if levels and all(_DATE.fullmatch(level) for level in levels[:20]):
        raise DataError(f"{where} holds dates as text ({levels[0]!r}). {_HOW_TO_DATE}")
    return tuple(levels)


def _refuse_commas(name: str, levels: Iterable[str], where: str) -> None:
    if told := with_commas(levels):
        how = "If they are levels, not amounts: declare them in a schema, or make the column a category in pandas."
        raise _WithCommasError(f"{where} holds {told} {how}", [name])


def _refuse_free_text(levels: tuple[str, ...], known: int, where: str) -> None:
    if len(levels) > MOST_LEVELS or (len(levels) > FEW_LEVELS and len(levels) > known / 2):
        raise DataError(
            f"{where} has {len(levels)} different texts in {known} rows, like {few(levels, 3)}: names or free text, "
            "not categories. Drop it, turn it into numbers, group its values, or declare its levels in a schema."
        )


def _encode(column: Column, values: pa.ChunkedArray, who: str) -> AnyArray:
    where = column_of(column.name, who)
    _refuse_dates(values.type, where)
    if pa.types.is_null(values.type) or values.null_count == len(values):
        return np.full(len(values), np.nan, dtype=np.float32)
    if column.kind == "category":
        return _encode_category(column, values, where)
    if not (is_number(values.type) or pa.types.is_boolean(values.type)):
        examples = few(sorted(set(as_texts(values)[1]))) if is_text(values.type) else str(values.type)
        fact = f"{where} is a {column.kind} in the schema and holds {examples} here"
        raise DataError(f"{fact}. Make it the same everywhere.")
    numbers = as_numbers(values)
    if column.kind == "boolean" and not np.isin(numbers[~np.isnan(numbers)], (0, 1)).all():
        raise DataError(f"{where} is a boolean in the schema and holds other numbers than 0 and 1.")
    return numbers


def _encode_category(column: Column, values: pa.ChunkedArray, where: str) -> AnyArray:
    codes, found = as_texts(values)
    unseen = sorted(set(found) - set(column.levels))
    if unseen:
        fact = f"{where} has levels that the schema does not know: {few(unseen)}"
        warnings.warn(f"{fact}. They count as missing.", UnseenLevelWarning, stacklevel=2)
    return _numbers_of(found, column.levels)[codes]


def _numbers_of(found: Iterable[str], levels: Iterable[str]) -> Floats:
    """The number of each found level among the levels, NaN for one that is not there, and NaN for missing (last)."""
    places = {level: place for place, level in enumerate(levels)}
    return np.array([*(places.get(level, np.nan) for level in found), np.nan], dtype=np.float32)


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()  # a TOML basic string is quoted as JSON quotes
