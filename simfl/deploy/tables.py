"""A party's table, read through the study.

The study says which columns count and what their values may be. All that does not fit is said in one message, so that a
party corrects its file once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from simfl.data import files
from simfl.data.commas import with_commas
from simfl.data.sources import Source
from simfl.data.table import wrong_weights
from simfl.deploy.party_file import read_party_file
from simfl.deploy.study import Study, read_study
from simfl.errors import DataError, StudyError, did_you_mean
from simfl.party import Party

Problem = tuple[str, str]  # what the hub may know, and what is for the party alone: values, and names of other columns
_TRUTH: Final = {"1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0, "true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}


def open_party(study_path: Path, party_path: Path) -> tuple[Study, Party, list[str]]:
    """The study; the party of this party file, with its table; and notes."""
    study, own = read_study(study_path), read_party_file(party_path)
    if own.name not in study.parties:
        raise StudyError(f"{party_path} is of party {own.name!r}; the study has {study.parties}.")
    party, notes = open_table(study, own.name, own.source, own.person)
    return study, party, notes


def open_table(study: Study, name: str, source: Source | Path, person: str | None = None) -> tuple[Party, list[str]]:
    """The party with the columns that the study names, and notes on what was left out. `person`: whose row it is."""
    source = Source(str(source)) if isinstance(source, Path) else source
    return _open_described(study, name, source, person) if study.columns else _open_undescribed(study, name, source)


def _open_described(study: Study, name: str, source: Source, person: str | None) -> tuple[Party, list[str]]:
    frame = source.read()
    if study.target is None:
        raise DataError("The study names no label column.")
    problems: list[Problem] = _missing_columns(study, frame)
    if person is not None and person not in frame.columns:
        problems.append(("the column that names persons is missing", f" (person = {person!r} in its party.toml)"))
    encoded: dict[str, Any] = {}
    for column, kind in study.columns.items():
        if column in frame.columns:
            encoded[column], wrong = _encode(frame[column], column, kind)
            problems += wrong
    if set(study.target.learned) <= set(frame.columns) and (gap := study.target.gap(frame)) is not None:
        problems.append((f"{gap[1]} rows have no label in column {gap[0]!r}", ""))
    weight, wrong = _weights(frame, study.weight)
    problems += wrong
    if problems:
        public = "; ".join(fact for fact, _ in problems)
        raise DataError(
            f"{Path(str(source)).name}: {'; '.join(fact + detail for fact, detail in problems)}", public=public
        )
    extra = [str(c) for c in frame.columns if c not in study.columns and c not in (*study.target.columns, person)]
    notes = [f"columns that the study does not use stay unread: {', '.join(extra)}"] if extra else []
    whose = None if person is None else frame[person].astype("string").to_numpy(dtype=object)
    y = study.target.read(frame, Path(str(source)).name)
    return Party(name, pd.DataFrame(encoded), y, weight, schema=study.schema, person=whose), notes


def _open_undescribed(study: Study, name: str, source: Source) -> tuple[Party, list[str]]:
    """A table whose columns the study does not list: all columns but the label and the weight, or LIBSVM."""
    path = source.path
    if path is None:
        data = files.from_frame(source.read(), str(source), study.target)
    else:
        data = files.read_libsvm(path, study.features) if study.features else files.read(path, study.target)
    return Party(name, data.X, data.y, data.weight, schema=data.schema), data.notes


def _missing_columns(study: Study, frame: pd.DataFrame) -> list[Problem]:
    problems = []
    target = study.target or files.Target(())
    what = dict.fromkeys(target.learned, "the label column") | {target.weight: "the weight column"}
    for wanted in [*target.columns, *study.columns]:
        if wanted not in frame.columns:
            hint = did_you_mean(str(wanted), [str(c) for c in frame.columns])
            problems.append((f"{what.get(wanted, 'column')} {wanted!r} is missing", f" ({hint.rstrip('.')})"))
    return problems


def _weights(frame: pd.DataFrame, name: str | None) -> tuple[pd.Series[Any] | None, list[Problem]]:
    """How much each row counts (None: all alike), and what does not fit: how many, never a value."""
    if name is None or name not in frame.columns:
        return None, []
    weights, problems = _encode(frame[name], name, "number")
    if not problems and (wrong := wrong_weights(weights.to_numpy(np.float64))):
        problems = [(f"the weight column {name!r} has sample weights that cannot be used: {wrong}", "")]
    return weights, problems


def _encode(values: pd.Series[Any], name: str, kind: Any) -> tuple[pd.Series[Any], list[Problem]]:
    """A column as numbers, or as text where it is a category; and what does not fit."""
    if isinstance(kind, list):
        text = values.astype("string")
        unknown = sorted(set(text.dropna()) - set(kind))
        fact = f"column {name!r} has categories that the study does not list"
        return text, [(fact, f": {unknown[:5]}")] if unknown else []
    if kind == "boolean":
        numbers = values.astype("string").str.strip().str.lower().map(_TRUTH)
    else:
        numbers = pd.to_numeric(values, errors="coerce")
    failed = values[numbers.isna() & values.notna()]
    what = "yes or no" if kind == "boolean" else "numbers"
    fact = f"column {name!r} has {len(failed)} values that are not {what}"
    told = "" if kind == "boolean" else with_commas(value for value in failed if isinstance(value, str))
    details = [f": {told.rstrip('.')}"] if told else [f", as {value!r}" for value in failed.iloc[:1]]
    return numbers.astype("float32"), [(fact, detail) for detail in details]
