"""A party: one organisation and its table. It is data and does not change; what it does in a run is in `session.py`."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from simfl import html
from simfl.arrays import AnyArray, Floats, Table
from simfl.data.arrow import as_arrow, check_names
from simfl.data.schema import Schema
from simfl.data.table import as_labels, as_table, as_weights, one_per_row
from simfl.errors import DataError, ProtocolError
from simfl.preprocessing.expansion import Expansion


@dataclass(frozen=True)
class Rows:
    """Labelled rows: those trained on, or those set aside for validation."""

    X: Table
    y: AnyArray
    weight: Floats | None = None
    person: AnyArray | None = None  # whose row it is

    @property
    def total_weight(self) -> float:
        """The sum of the weights."""
        return float(len(self.y)) if self.weight is None else float(self.weight.sum(dtype=np.float64))

    @property
    def heaviest(self) -> float:
        """The largest weight of a row."""
        return 1.0 if self.weight is None else float(self.weight.max())

    def part(self, rows: AnyArray) -> Rows:
        """Some of the rows."""
        weight, person = (None if part is None else part[rows] for part in (self.weight, self.person))
        return Rows(self.X[rows], self.y[rows], weight, person)

    @property
    def counting(self) -> Rows:
        """Those that count: all but rows of weight zero."""
        if self.weight is None or self.weight.min(initial=1.0) > 0:
            return self
        return self.part(np.flatnonzero(self.weight > 0))

    def limited(self, most: int) -> Rows | None:
        """The first rows of each person, `most` at most; None where nobody knows whose row it is."""
        if self.person is None:
            return None
        return self.part(np.flatnonzero(pd.Series(self.person).groupby(self.person).cumcount() < most))


class Party:
    """One organisation with its table.

    Parameters
    ----------
    name : how the others call it
    X : rows by features: a data frame (pandas, Polars, Arrow), NumPy or scipy.sparse. Text columns are categories.
        NaN, null and what a sparse table does not store are missing.
    y : one label per row; for survival:aft two columns, the lower and the upper bound of its time
    sample_weight : one weight per row, optional
    validation : (X, y) or (X, y, sample_weight), rows that are not trained on but watched, optional
    columns : names of the features, where the table has none
    schema : the columns that the study has agreed on; without it a data frame suggests its own
    person : whose row it is, one name or number per row, for `max_rows_per_person`; never sent, optional

    >>> Party("north", [[1.0, 2.0], [3.0, 4.0]], [0, 1])
    Party('north', 2 rows, 2 features)
    """

    def __init__(
        self,
        name: str,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        validation: Any = None,
        columns: list[str] | None = None,
        schema: Schema | None = None,
        person: Any = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise DataError(f"A party's name must be a text that is not empty, not {name!r}.")
        self.name, self.declared = name, schema is not None
        self.rows, self.schema = self._read(X, y, sample_weight, schema)
        if person is not None:
            self.rows = replace(self.rows, person=one_per_row(person, len(self.rows.y), f"{self}, as persons,"))
        if columns is not None:
            self.schema = self._renamed(columns)
        self.validation = self._read_validation(validation)

    @classmethod
    def of_rows(cls, name: str, rows: Rows, schema: Schema | None, *, declared: bool = False) -> Party:
        """A party of rows that have been read already. `declared`: the schema was not found in a table."""
        party = cls.__new__(cls)
        party.name, party.rows, party.schema, party.validation = name, rows, schema, None
        party.declared = declared
        return party

    def __repr__(self) -> str:
        return f"Party({self.name!r}, {self.rows.X.shape[0]} rows, {self.rows.X.shape[1]} features)"

    def __str__(self) -> str:
        return f"Party {self.name!r}"

    def _repr_html_(self) -> str:
        """For a notebook: the form of the table, no value of a row."""
        n, width = self.rows.X.shape
        rows: list[tuple[str, object]] = [("rows", f"{n:,}"), ("columns", width)]
        if self.validation is not None:
            rows.append(("validation rows", f"{len(self.validation.y):,}"))
        kinds = Counter(column.kind for column in self.schema.columns) if self.schema else Counter()
        rows += [(f"{kind} columns", number) for kind, number in kinds.items()]
        return html.facts(f"Party {self.name}", rows)

    @property
    def columns(self) -> list[str] | None:
        """The names of the features, where there are any."""
        return self.schema.names if self.schema else None

    def part(self, name: str, rows: AnyArray) -> Party:
        """Some of the rows as another party, for a rehearsal."""
        return Party.of_rows(name, self.rows.part(rows), self.schema, declared=self.declared)

    def _read(self, X: Any, y: Any, weight: Any, schema: Schema | None) -> tuple[Rows, Schema | None]:
        table, found = as_table(X, str(self), schema)
        n = table.shape[0]
        return Rows(table, as_labels(y, n, str(self)), as_weights(weight, n, str(self))), found

    def _renamed(self, given: list[str]) -> Schema:
        if len(given) != self.rows.X.shape[1]:
            raise DataError(f"{self} has {self.rows.X.shape[1]} features but {len(given)} names for them.")
        names = [str(name) for name in given]
        check_names(names, str(self))
        return self.schema.renamed(names) if self.schema else Schema.of_numbers(names)

    def _read_validation(self, validation: Any) -> Rows | None:
        if validation is None:
            return None
        if not isinstance(validation, tuple | list) or len(validation) not in (2, 3):
            raise DataError(f"{self} has validation rows of the wrong form. Give validation=(X, y).")
        X, y, weight = (*validation, None)[:3]
        named = as_arrow(X, str(self))
        if named is not None and self.columns and set(named.column_names) != set(self.columns):
            raise DataError(f"{self} has other columns in its validation rows than in its training rows.")
        rows, _ = self._read(X, y, weight, self.schema if named is not None else None)
        if rows.X.shape[1] != self.rows.X.shape[1]:
            raise DataError(f"{self} has other columns in its validation rows than in its training rows.")
        return rows


@dataclass(frozen=True)
class Split:
    """A party's rows in one run: those that it trains on and those that it set aside, in the columns agreed on."""

    who: str
    training: Rows
    validation: Rows | None
    schema: Schema | None

    @classmethod
    def of(cls, party: Party, validation_fraction: float, seed: int) -> Split:
        """Set a share of the rows aside, unless the party brought validation rows. One row at least is trained on."""
        rows, n = party.rows, len(party.rows.y)
        n_aside = min(round(validation_fraction * n), n - 1)
        if party.validation is not None or n_aside <= 0:
            return cls(str(party), rows, party.validation, party.schema)
        order = np.random.default_rng([seed, 3, *party.name.encode()]).permutation(n)
        aside, kept = np.sort(order[:n_aside]), np.sort(order[n_aside:])
        return cls(str(party), rows.part(kept), rows.part(aside), party.schema)

    def settled(self, agreed: Schema) -> Split:
        """The same rows in the order of columns, and with the numbers of levels, that all parties agreed on."""
        own = self.schema
        if own is None or own == agreed:
            return self
        if sorted(own.names) != sorted(agreed.names):
            raise ProtocolError(f"{self.who} has the columns {own.names}; the agreed ones are {agreed.names}.")
        kinds = {column.name: column.kind for column in own.columns}
        other = [c.name for c in agreed.columns if (c.kind == "category") != (kinds[c.name] == "category")]
        other = [name for name in other if kinds[name] != "empty"]
        if other:
            raise ProtocolError(f"{self.who} has columns of another kind than was agreed on: {other}.")
        training = replace(self.training, X=agreed.recode(self.training.X, own))
        aside = self.validation and replace(self.validation, X=agreed.recode(self.validation.X, own))
        return Split(self.who, training, aside, agreed)

    @property
    def n_features(self) -> int:
        """The number of columns."""
        return int(self.training.X.shape[1])

    @property
    def expansion(self) -> Expansion:
        """How the columns are laid out for hashing."""
        return Expansion(self.schema.n_levels if self.schema else np.zeros(self.n_features, dtype=np.int32))

    def fingerprint(self) -> str:
        """A digest of the rows that stage 1 depends on."""
        X = self.training.X
        digest = hashlib.blake2b(repr((X.shape, self.schema)).encode(), digest_size=16)
        for part in (X.data, X.indices, X.indptr) if sparse.issparse(X) else (X,):
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()
