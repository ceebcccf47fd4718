"""The columns that are audited: those of the study, with a 0/1 column for every level of a category.

Declared ranges and cuts, and constraints on columns, go with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from simfl.arrays import Longs, Table
from simfl.data.schema import Column, Schema
from simfl.params import train_params, with_numbers
from simfl.party import Party
from simfl.preprocessing.expansion import Expansion

CONSTRAINTS: Final = ("monotone_constraints", "interaction_constraints")


def laid_out(party: Party) -> tuple[Table, Schema | None]:
    """The rows in these columns, and what is declared of them; None where columns have no names."""
    if party.schema is None:
        return party.rows.X, None
    wide = [part for column in party.schema.columns for part in _parts(column)]
    names = (f"column {number}" for number in range(len(wide)))
    return Expansion(party.schema.n_levels).expand(party.rows.X), Schema(tuple(wide)).renamed(names)


def _parts(column: Column) -> list[Column]:
    return [Column(name=level, kind="boolean") for level in column.levels] or [column]


def on_columns(params: Mapping[str, Any], schema: Schema | None) -> dict[str, Any]:
    """The parameters of a study with constraints on its columns as constraints on these.

    A category has no order, so nothing binds its levels. It may always be asked about again on a path, and so may all
    its levels.

    >>> schema = Schema.from_toml({"age": "number", "ward": ["a", "b"], "dose": "number"})
    >>> on_columns({"monotone_constraints": {"dose": 1}, "interaction_constraints": [["age", "ward"]]}, schema)
    {'monotone_constraints': [0, 0, 0, 1], 'interaction_constraints': [[0, 1, 2], [1, 2]]}
    """
    given = {name: params[name] for name in CONSTRAINTS if params.get(name) is not None}
    if schema is None or not given:
        return dict(params)
    numbered = with_numbers(train_params(**given), schema.names, len(schema.columns))
    places, levels = _places(schema), schema.n_levels
    signs, groups = numbered.monotone_constraints, numbered.interaction_constraints
    if signs is not None:
        pairs = zip(signs, places, levels, strict=True)
        given["monotone_constraints"] = [0 if n else sign for sign, place, n in pairs for _ in place]
    if groups is not None:
        wide = [[int(c) for n in group for c in places[int(n)]] for group in groups]
        own = [place.tolist() for place, n in zip(places, levels, strict=True) if n]
        given["interaction_constraints"] = [*wide, *own]
    return {**params, **given}


def _places(schema: Schema) -> list[Longs]:
    """Per column of the study the numbers of its audited ones."""
    width = np.maximum(schema.n_levels, 1)
    return np.split(np.arange(int(width.sum())), np.cumsum(width)[:-1])
