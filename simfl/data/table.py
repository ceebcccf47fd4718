"""From the tables that people have (data frames, NumPy, scipy.sparse) to the arrays that SimFL works on.

Rows become float32, as in XGBoost, dense or CSR; data frames are read through a `schema`.
A table that cannot be used is refused; `who` names it in the message ("Party 'north'").
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from simfl.arrays import AnyArray, Doubles, Floats, Table
from simfl.data.arrow import as_arrow, is_valid_text
from simfl.data.commas import with_commas
from simfl.data.schema import Schema
from simfl.errors import DataError
from simfl.params import MAX_LABEL, MAX_WEIGHT, MIN_WEIGHT
from simfl.training.losses import Loss

_LABEL_KINDS: dict[str, type] = {"string": np.str_, "integer": np.int64, "boolean": np.bool_}
_LABEL_KINDS |= dict.fromkeys(("floating", "mixed-integer-float", "decimal"), np.float64)


def as_table(X: Any, who: str, schema: Schema | None = None) -> tuple[Table, Schema | None]:
    """The rows as float32, dense or CSR, and their schema where the columns have names.

    A data frame is read through the given schema, or through the one that it suggests by itself.
    """
    frame = None if sparse.issparse(X) else as_arrow(X, who)
    if frame is not None:
        schema = schema or Schema.propose(frame, who)
        table: Any = schema.encode(frame, who)
    else:
        table = _as_csr(X, who) if sparse.issparse(X) else _as_dense(X, who)
        _check_fits(table.shape[1], schema, who)
    if table.shape[1] == 0:
        raise DataError(f"{who} has no features. Check how its table was read.")
    if table.shape[0] == 0:
        raise DataError(f"{who} has no rows. Leave it out, or check how its table was read.")
    if np.isinf(table.data if sparse.issparse(table) else table).any():
        fact = "infinite values (or values beyond float32)"
        raise DataError(f"{who} has {fact}. Replace them; NaN stands for a missing value.")
    return table, schema


def _check_fits(n_columns: int, schema: Schema | None, who: str) -> None:
    if schema is None:
        return
    if schema.has_categories:
        raise DataError(f"{who} has columns without names, and the schema has categories. Give a data frame.")
    if len(schema.columns) != n_columns:
        raise DataError(f"{who} has {n_columns} columns, the schema {len(schema.columns)}: {schema.names[:30]}.")


def as_labels(y: Any, n_rows: int, who: str) -> AnyArray:
    """The labels, one per row, none of them missing; or the two bounds of every row's time."""
    labels = one_per_row(y, n_rows, who)
    refuse_commas(labels, f"{who} has labels that are")
    return labels


def refuse_commas(labels: AnyArray, fact: str) -> None:
    """Refuse texts that are numbers with a comma: they would be taken for classes."""
    values = labels.ravel().tolist() if labels.dtype.kind in "OU" else []
    if told := with_commas({value for value in values if isinstance(value, str)}):
        raise DataError(f"{fact} {told} If they are classes, not amounts: write a word before them, as in 'class 1'.")


def one_per_row(y: Any, n_rows: int, who: str) -> AnyArray:
    """The labels, or the persons, whatever they mean."""
    # As objects first: NumPy would turn the numbers in a list with texts into texts.
    labels = np.asarray(y) if hasattr(y, "dtype") else np.asarray(y, dtype=object)
    if labels.dtype.names:
        labels = _of_events(labels, who)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape not in ((n_rows,), (n_rows, 2)):
        raise DataError(
            f"{who} has {n_rows} rows but labels of shape {labels.shape}. Give one label per row, or for survival:aft "
            "two columns: the lower and the upper bound of its time."
        )
    missing = int(pd.isna(labels).sum())
    if missing:
        raise DataError(f"{who} has {missing} missing labels (NaN). Drop these rows, or fill the labels in.")
    if labels.dtype == object:
        labels = _of_one_kind(labels, who)
    if labels.dtype.kind not in "biufU":
        raise DataError(f"{who} has labels of type {labels.dtype}. Give numbers or text.")
    if labels.dtype.kind == "U" and not is_valid_text("".join(labels.ravel().tolist())):
        strange = next(label for label in labels.ravel().tolist() if not is_valid_text(label))
        raise DataError(f"{who} has labels that are not valid text ({strange!r}). Check how its table was read.")
    return _as_bounds(labels, who) if labels.ndim == 2 else labels


def survival_bounds(time: Any, event: Any, who: str = "The table") -> Doubles:
    """Labels for survival:aft from times and whether something has happened then: two columns, lower and upper bound.

    Where nothing has happened yet, the time is a lower bound, and the upper one is infinite.

    >>> survival_bounds([5.0, 8.0], [True, False])
    array([[ 5.,  5.],
           [ 8., inf]])
    """
    try:
        times, events = np.asarray(time, dtype=np.float64), np.asarray(event).astype(np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{who} has times or events that are not numbers. Events are 1 (it happened) or 0.") from None
    if times.ndim != 1 or times.shape != events.shape:
        raise DataError(f"{who} has times of shape {times.shape} and events of shape {events.shape}. Give one per row.")
    if not np.isin(events, (0.0, 1.0)).all():
        raise DataError(f"{who} has events that are neither 1 (it happened) nor 0 (not yet).")
    return np.column_stack([times, np.where(events == 1, times, np.inf)])


def _of_events(labels: AnyArray, who: str) -> Doubles:
    """Bounds from an array with two fields, an event and a time, as scikit-survival has them."""
    kinds = {name: labels.dtype[name].kind for name in labels.dtype.names or ()}
    events, times = ([n for n, kind in kinds.items() if (kind == "b") == is_event] for is_event in (True, False))
    if len(events) != 1 or len(times) != 1:
        raise DataError(f"{who} has labels with the fields {list(kinds)}. Give an event (true or false) and a time.")
    return survival_bounds(labels[times[0]], labels[events[0]], who)


def _as_bounds(labels: AnyArray, who: str) -> Doubles:
    """Two columns of labels, if they can be bounds of times."""
    if labels.dtype.kind not in "biuf":
        raise DataError(f"{who} has bounds of times of type {labels.dtype}. Give numbers.")
    bounds = labels.astype(np.float64)
    low, high = bounds.T
    facts = {
        "whose lower bound of the time is below zero or beyond 1e18": (low < 0) | (low >= MAX_LABEL),
        "whose upper bound of the time is below the lower one": high < low,
        "that have happened at time zero, which has no logarithm": (low == 0) & (high == 0),
    }
    for fact, rows in facts.items():
        if rows.any():
            raise DataError(f"{who} has {int(rows.sum())} rows {fact}. Correct them, or leave them out.")
    return bounds


def _of_one_kind(labels: AnyArray, who: str) -> AnyArray:
    """Labels that came as Python objects, as an array of their own type."""
    kind = _LABEL_KINDS.get(pd.api.types.infer_dtype(labels.ravel(), skipna=False))
    if kind is None:
        found = ", ".join(sorted({type(label).__name__ for label in labels.ravel()}))
        raise DataError(f"{who} has labels of type {found}. Give numbers only, or text only.")
    try:
        return labels.astype(kind)
    except OverflowError:
        raise DataError(f"{who} has labels beyond 64 bits. Give smaller numbers, or text.") from None


def as_numbers(labels: AnyArray, who: str) -> Doubles:
    """Labels as the numbers that a regression learns."""
    refuse_bounds(labels, who)
    try:
        numbers = np.asarray(labels, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(
            f"{who} has labels that are not numbers. Use objective='binary:logistic' or 'multi:softprob' for classes."
        ) from None
    if not (np.abs(numbers) < MAX_LABEL).all():
        raise DataError(f"{who} has labels beyond 1e18. Drop these rows, or measure in a larger unit.")
    return numbers


def as_weights(weight: Any, n_rows: int, who: str) -> Floats | None:
    """The sample weights: finite, not negative, none above `MAX_WEIGHT`, and not all of them next to nothing."""
    if weight is None:
        return None
    try:
        weights = np.asarray(weight, dtype=np.float64)
    except (TypeError, ValueError):
        texts = {value for value in np.asarray(weight, dtype=object).ravel() if isinstance(value, str)}
        told = with_commas(texts) or "not numbers. Give a number from 0 on for each row."
        raise DataError(f"{who} has sample weights that are {told}") from None
    if weights.shape != (n_rows,):
        raise DataError(f"{who} has {n_rows} rows but sample weights of shape {weights.shape}.")
    if wrong := wrong_weights(weights):
        fact = f"has sample weights that cannot be used: {wrong}"
        raise DataError(f"{who} {fact}.", public=f"its table {fact}")
    return weights.astype(np.float32)


def wrong_weights(weights: Doubles) -> str | None:
    """What is wrong with sample weights, and what to do: with counts, without a value.

    >>> wrong_weights(np.array([1.0, np.nan, -2.0]))
    '1 missing (fill it in, or leave the row out), 1 below zero (correct it, or leave the row out)'
    >>> wrong_weights(np.array([0.0, 0.5]))
    """
    amend = "correct it, or leave the row out"
    facts = {
        "missing (fill it in, or leave the row out)": np.isnan(weights),
        f"below zero ({amend})": weights < 0,
        f"infinite ({amend})": np.isposinf(weights),
        f"above {MAX_WEIGHT:g} (divide the weights of all parties by the same number)": (weights > MAX_WEIGHT)
        & np.isfinite(weights),
    }
    if found := [f"{int(rows.sum())} {fact}" for fact, rows in facts.items() if rows.any()]:
        return ", ".join(found)
    if not weights.any():
        return "all of them zero (no row counts: name another column, or leave the weights out)"
    amend = "no tree could be split: multiply the weights of all parties by the same number"
    return None if weights.max() >= MIN_WEIGHT else f"all of them below {MIN_WEIGHT:g} ({amend})"


def plain_classes(labels: AnyArray) -> list[bool | int | float | str]:
    """The distinct labels, as Python's own values.

    >>> plain_classes(np.array([1, 0, 1])), plain_classes(np.array([1.0, 2.0]))
    ([0, 1], [1, 2])
    """
    found = np.unique(labels).tolist()
    return [int(c) if isinstance(c, float) and c.is_integer() else c for c in found]


def objective_for(labels: AnyArray) -> str:
    """What there is to learn. Two values: binary; text or few whole numbers: classes; bounds: times; else a number.

    >>> objective_for(np.array(["no", "yes"])), objective_for(np.array([0.5, 1.5, 2.5]))
    ('binary:logistic', 'reg:squarederror')
    """
    if labels.ndim == 2:
        return "survival:aft"
    n_values = len(np.unique(labels.astype(str)))
    if n_values <= 2:
        return "binary:logistic"
    is_text = labels.dtype.kind not in "iuf"
    few = is_text or (n_values <= 50 and bool(np.all(labels == np.round(labels))))
    return "multi:softprob" if few else "reg:squarederror"


def why_objective(labels: AnyArray) -> str:
    """Why `objective_for` chose what it chose, and how to choose otherwise.

    >>> why_objective(np.array([3, 4, 5, 6]))
    'Because the label has 4 whole numbers, they are classes. If they are amounts: --objective reg:squarederror'
    """
    if labels.ndim == 2:
        return "Because the label is a time with its bounds, it is learned when something happens."
    n, is_text = len(np.unique(labels.astype(str))), labels.dtype.kind not in "iuf"
    chosen = objective_for(labels)
    if chosen == "reg:squarederror":
        return f"Because the label has {n} different numbers, it is an amount. For classes: --objective multi:softprob"
    if is_text or n <= 2:
        return f"Because the label has {n} different values, they are classes."
    other = "If they are amounts: --objective reg:squarederror"
    return f"Because the label has {n} whole numbers, they are classes. {other}"


def class_numbers(labels: AnyArray, classes: Sequence[Any], who: str) -> Floats:
    """The place of every label in the list of classes."""
    refuse_bounds(labels, who)
    known = np.asarray(classes)
    if known.dtype.kind != labels.dtype.kind and not {known.dtype.kind, labels.dtype.kind} <= set("iufb"):
        raise DataError(f"{who} has labels of type {labels.dtype}, the training knows {list(classes)}.")
    order = np.argsort(known)
    numbers = order[np.minimum(np.searchsorted(known, labels, sorter=order), len(known) - 1)]
    if (known[numbers] != labels).any():
        strange = np.unique(labels[known[numbers] != labels]).tolist()[:5]
        raise DataError(f"{who} has labels {strange} that are not among the classes {list(classes)}.")
    return numbers.astype(np.float32)


def as_targets(labels: AnyArray, loss: Loss, classes: Sequence[Any] | None, who: str) -> Floats:
    """What XGBoost learns: the place of every class, a regression's numbers, or the bounds of times."""
    if loss.classifies:
        return class_numbers(labels, classes or [], who)
    if loss.labels == "bounds":
        return times_between(labels, who)
    numbers = as_numbers(labels, who)
    if wrong := loss.wrong_labels(numbers):
        raise DataError(f"{who} {wrong}.")
    return numbers.astype(np.float32)


def times_between(labels: AnyArray, who: str) -> Floats:
    """The lower and upper bound of every row's time."""
    if labels.ndim == 1:
        raise DataError(
            f"{who} has one label per row, and survival:aft needs two: the lower and the upper bound of its time. "
            "`simfl.survival_bounds(time, event)` makes them; between machines the study names both columns."
        )
    bounds = labels.astype(np.float32)
    if ((bounds[:, 1] == 0) | np.isinf(bounds[:, 0])).any():
        raise DataError(f"{who} has times beyond what float32 can hold. Measure in another unit.")
    return bounds


def refuse_bounds(labels: AnyArray, who: str) -> None:
    """Refuse labels in two columns where one is needed."""
    if labels.ndim == 2:
        raise DataError(f"{who} has two label columns, bounds of times. Use objective='survival:aft' for them.")


def _as_dense(X: Any, who: str) -> Floats:
    try:
        values = np.asarray(X)
    except ValueError:
        raise DataError(f"{who} has rows of different lengths. Give rows by columns.") from None
    if values.ndim != 2:
        raise DataError(f"{who} has a table with {values.ndim} dimensions. Give rows by columns.")
    if values.dtype.kind not in "buif":
        raise DataError(f"{who} has a table of type {values.dtype}. Give numbers.")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32)


def _as_csr(X: Any, who: str) -> Any:
    if X.dtype.kind not in "buif":
        raise DataError(f"{who} has a table of type {X.dtype}. Give numbers.")
    table = sparse.csr_matrix(X, dtype=np.float32)
    if not table.has_canonical_format:  # tree traversal relies on sorted columns
        table = table.copy()  # the caller's own stays as it is
        table.sum_duplicates()
    return table
