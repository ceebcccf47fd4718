"""Parts of a recipe that nobody can set: benchmarks change them to measure what they give.

In this process only: parties in processes of their own keep the recipe's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

import simfl
from simfl import federation
from simfl.params import PaperParams, Params, SearchParams

SEARCH = ("max_candidates", "scale")  # attributes of the classes of parameters
TREES = ("extra_depth", "leaf_values")  # fields that the recipe fills


@contextmanager
def changed(options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Change the fixed parts among these options for a while, and hand out the others: they are parameters.

    >>> with changed({"max_candidates": 2000, "rematch": 0}) as params:
    ...     SearchParams.max_candidates, params
    (2000, {'rematch': 0})
    >>> SearchParams.max_candidates
    10000
    """
    search, trees = ({name: options[name] for name in names if name in options} for names in (SEARCH, TREES))
    kept = [(struct, name, getattr(struct, name)) for struct in (SearchParams, PaperParams) for name in search]
    checked = federation.train_params

    def train_params(**given: Any) -> Params:
        return msgspec.structs.replace(checked(**given), **trees)

    for struct, name, _ in kept:
        setattr(struct, name, search[name])
    federation.train_params = train_params
    try:
        yield {name: value for name, value in options.items() if name not in (*SEARCH, *TREES)}
    finally:
        federation.train_params = checked
        for struct, name, value in kept:
            setattr(struct, name, value)


def prepare(parties: Iterable[simfl.Party], **options: Any) -> simfl.Preparation:
    """`simfl.prepare` that takes fixed parts as well."""
    with changed(options) as params:
        return simfl.prepare(parties, **params)


def train(parties: Iterable[simfl.Party] | simfl.Preparation, **options: Any) -> simfl.Model:
    """`simfl.train` that takes fixed parts as well."""
    with changed(options) as params:
        return simfl.train(parties, **params)
