"""A look at a table before anything is sent: what a data engineer would ask about. For the party's own eyes only.

Each finding is a sentence with the column, the fact and what to do. They may hold values of the table, so they are
shown by `simfl check` at the party and sent nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from simfl.arrays import AnyArray, Floats
from simfl.data.arrow import few
from simfl.data.schema import Column, Schema

MANY = 50  # rows from which values that all differ are no accident
EXACT = 2**24  # whole numbers beyond are rounded in float32
MISSING = 0.5  # the share of missing values from which a column is mentioned
GIVEN_AWAY = 0.95  # of the errors of guessing, a column that gives the label away avoids at least this share
LOOKED_AT = 20_000  # rows that the search for such columns uses
HEAVY = 0.2  # of all weight, the share from which one row is mentioned
FAR = 50  # times the mean weight, the same: beside such a row the others hardly count towards min_group
NARROW = 0.01  # all values within this part of a declared range: probably another unit


def look_at(X: Floats, y: AnyArray, schema: Schema, *, classes: bool) -> list[str]:
    """Everything worth a look in a table that was read through a schema. `classes`: the labels are classes.

    >>> schema = Schema.from_toml({"visit": "number", "site": ["a", "b"]})
    >>> X = np.column_stack([np.arange(60), np.zeros(60)]).astype(np.float32)
    >>> for finding in look_at(X, np.arange(60) % 2, schema, classes=True):
    ...     print(finding)
    column 'visit' looks like an id: its 60 whole numbers all differ. Leave it out: it says nothing about other rows
    column 'site' has the same value in all rows ('a'): nothing can be learned from it here
    column 'site' never has the levels ['b'] of the study. Is it coded otherwise here?
    """
    found: list[str] = []
    for place, column in enumerate(schema.columns):
        values = X[:, place]
        known = values[~np.isnan(values)]
        found += _of_column(column, values, known)
    return [*found, *_giving_away(X, y, schema, classes=classes)]


def look_at_weights(weight: Floats) -> list[str]:
    """What is worth a look in the weights of rows.

    >>> look_at_weights(np.array([8, 1, 1], dtype=np.float32))
    ['one row has 80% of all weight: it decides alone, and stands out in every sum. Is that meant?']
    """
    total, heaviest = float(weight.sum(dtype=np.float64)), float(weight.max())
    if heaviest == weight.min():
        return [f"all rows have the same weight ({heaviest:g}): it only says how much this party counts"]
    zeros, found = int((weight == 0).sum()), []
    if zeros > MISSING * len(weight):
        found.append(f"{zeros} of {len(weight)} rows have the weight 0 and do not count. Is that meant?")
    if heaviest > HEAVY * total:
        share = f"one row has {heaviest / total:.0%} of all weight"
        found.append(f"{share}: it decides alone, and stands out in every sum. Is that meant?")
    mean = total / (len(weight) - zeros)
    if heaviest > FAR * mean:
        fact = f"the heaviest row weighs {heaviest / mean:.0f} times the mean"
        found.append(f"{fact}: beside it the others count for little in min_group. Limit the largest weights")
    return found


def _of_column(column: Column, values: Floats, known: Floats) -> Iterator[str]:
    name = f"column {column.name!r}"
    if not len(known):
        yield f"{name} has no value at all: nothing can be learned from it here"
        return
    different, counts = np.unique(known, return_counts=True)
    if len(different) == 1 and len(values) > 1:
        some = "" if len(known) == len(values) else " that have one"
        value = repr(column.levels[int(known[0])]) if column.kind == "category" else f"{known[0]:g}"
        yield f"{name} has the same value in all rows{some} ({value}): nothing can be learned from it here"
    absent = 1 - len(known) / len(values)
    if absent > MISSING:
        yield f"{name} lacks {absent:.0%} of its values. Is it recorded elsewhere, or under another name?"
    if column.kind == "category":
        yield from _of_levels(column, different, counts)
    elif column.kind == "number":
        yield from _of_numbers(column, known, different)


def _of_levels(column: Column, different: Floats, counts: AnyArray) -> Iterator[str]:
    once = [column.levels[int(code)] for code in different[counts == 1]]
    if once:
        yield (
            f"column {column.name!r} has levels that occur in one row only ({few(once)}): such a row stands out. "
            "Group rare levels"
        )
    never = [level for code, level in enumerate(column.levels) if code not in different]
    if never:
        yield f"column {column.name!r} never has the levels {few(never)} of the study. Is it coded otherwise here?"


def _of_numbers(column: Column, known: Floats, different: Floats) -> Iterator[str]:
    name = f"column {column.name!r}"
    whole = bool((known == np.round(known)).all())
    if whole and np.median(np.abs(known)) > EXACT:
        yield f"{name} has whole numbers beyond {EXACT:,}, which are rounded. An id? Then leave it out"
    elif whole and len(different) == len(known) >= MANY:
        fact = f"its {len(known)} whole numbers all differ"
        yield f"{name} looks like an id: {fact}. Leave it out: it says nothing about other rows"
    if column.low is not None and column.high is not None:
        yield from _of_range(name, known, column.low, column.high)
    elif len(column.cuts) > 1 and not ((known > column.cuts[0]) & (known < column.cuts[-1])).any():
        first, last = column.cuts[0], column.cuts[-1]
        yield f"{name} has no value between the first and last cut of the study ({first:g}, {last:g}): another unit?"


def _of_range(name: str, known: Floats, low: float, high: float) -> Iterator[str]:
    """Values that do not lie in the declared range, or in a small corner of it."""
    declared = f"what the study declares ({low:g} to {high:g})"
    beyond = np.maximum(low - known, known - high)
    if (beyond > 0).any():
        yield f"{name} has {(beyond > 0).sum()} values outside of {declared}, such as {known[np.argmax(beyond)]:g}"
    elif 0 < np.ptp(known) < NARROW * (high - low):
        low, high = known.min(), known.max()
        yield f"{name} has values from {low:g} to {high:g} only, a hundredth of {declared}: another unit?"


def _giving_away(X: Floats, y: AnyArray, schema: Schema, *, classes: bool) -> Iterator[str]:
    """Columns from which alone the label follows, on rows that had no part in finding that out."""
    rows = np.random.default_rng(0).permutation(len(y))[:LOOKED_AT]
    y = y[:, 0] if y.ndim == 2 else y  # of the bounds of times, the lower: the upper one may not be known
    labels = np.unique(y[rows].astype(str), return_inverse=True)[1] if classes else y[rows].astype(np.float64)
    smallest = np.bincount(labels).min() if classes else len(labels)
    if smallest < 10 or len(np.unique(labels)) < 2:
        return
    for place, column in enumerate(schema.columns):
        guessed, wrong = _errors(X[rows][:, [place]], labels, classes=classes)
        if wrong > (1 - GIVEN_AWAY) * guessed:
            continue
        how = (
            f"in {1 - wrong:.1%} of the rows (guessing: {1 - guessed:.1%})"
            if classes
            else f"(R2 {1 - wrong / guessed:.3f})"
        )
        yield f"column {column.name!r} alone predicts the label {how}. Is it known before the label is?"


def _errors(x: Floats, labels: AnyArray, *, classes: bool) -> tuple[float, float]:
    """The error of guessing, and of a small tree over one column: the share of wrong rows, or the squared error."""
    kind, folds = (DecisionTreeClassifier, StratifiedKFold) if classes else (DecisionTreeRegressor, KFold)
    tree = kind(max_leaf_nodes=32, min_samples_leaf=5, random_state=0)
    found = cross_val_predict(tree, x, labels, cv=folds(2, shuffle=True, random_state=0))
    if classes:
        return 1 - np.bincount(labels).max() / len(labels), float((found != labels).mean())
    return float(np.var(labels)), float(np.mean((found - labels) ** 2))
