"""A study file and a party file, read and checked.

`study.toml` is what all parties share: what is learned, from which columns, how, and by whom. Where the data of a party
lies is nobody else's business and stands in that party's own `party.toml`. Every fact that is wrong is named with the
place where it stands; an unknown key is refused with the one that was probably meant.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import pandas as pd
from msgspec import Meta

from simfl.data import files
from simfl.data.schema import Schema
from simfl.errors import DataError, FileError, ParameterError, StudyError
from simfl.params import PrepareParams, TrainParams, prepare_params, split, train_params
from simfl.party import Party

Kind = Literal["number", "boolean", "category"]
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")  # as a site, a folder and a part of a certificate
_TRUTH: Final = {"1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0, "true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}
_RESERVED: Final = ("hub", "server", "submitter")  # kits of these names exist already


class Member(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[party]]` of the study. `data` only for trying out: `simfl train --local-processes`."""

    name: str
    data: str | None = None


class Engine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[engine]`: where the hub is to be reached."""

    host: str = "localhost"
    port: Annotated[int, Meta(ge=1, le=65535)] = 8002


class Study(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`study.toml`."""

    name: str
    label: str | None = None
    party: list[Member]
    columns: dict[str, Kind | list[str]] = {}
    features: Annotated[int, Meta(ge=1)] | None = None  # of LIBSVM files, whose columns have no names
    parameters: dict[str, Any] = {}
    engine: Engine = Engine()
    patience: Annotated[float, Meta(ge=5)] = 60.0
    on_dropout: Literal["continue", "stop"] = "continue"
    min_parties: Annotated[int, Meta(ge=1)] | None = None
    audit: dict[str, Any] = {}  # read by `simfl audit` alone

    @property
    def parties(self) -> list[str]:
        """The names of the parties."""
        return [member.name for member in self.party]

    @property
    def least(self) -> int | None:
        """With how many parties the training goes on; None: only with all."""
        return None if self.on_dropout == "stop" else self.min_parties or min(2, len(self.party))

    @property
    def schema(self) -> Schema:
        """The columns as a schema."""
        return Schema.from_toml(self.columns)

    def params(self) -> tuple[PrepareParams, TrainParams]:
        """The parameters of both stages."""
        first, second = split(self.parameters)
        return prepare_params(**first), train_params(**second)


class PartyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`party.toml`: one party's own. Paths are as seen from the file."""

    name: str
    data: str
    kit: str | None = None
    n_jobs: Annotated[int, Meta(ge=1)] | None = None
    secret: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None = None  # the same at all parties, never at the hub

    def common_secret(self) -> bytes | None:
        """The secret as bytes; None: the parties agree on one when a training begins."""
        return None if self.secret is None else bytes.fromhex(self.secret)


# --- reading the files -----------------------------------------------------------------------------------------------


def read_study(path: Path) -> Study:
    """A study file, checked."""
    return parse_study(_text(path), str(path))


def parse_study(text: str, where: str = "study.toml") -> Study:
    r"""A study's text, checked.

    >>> parse_study('name = "a"\nlable = "y"\n[[party]]\nname = "north"')
    Traceback (most recent call last):
        ...
    simfl.errors.StudyError: study.toml: there is no key 'lable'. Did you mean 'label'?
    """
    study: Study = _parse(text, Study, where)
    problems = [*_check_names(study), *_check_parameters(study)]
    if study.min_parties is not None and study.min_parties > len(study.party):
        problems.append(f"min_parties is {study.min_parties}, but there are {len(study.party)} parties")
    if study.label is not None and study.label in study.columns:
        problems.append(f"the label {study.label!r} is also among the columns")
    for column, kind in study.columns.items():
        if isinstance(kind, list) and (len(kind) < 2 or len(set(kind)) < len(kind)):
            problems.append(f"column {column!r} must list at least two different categories")
    if problems:
        raise StudyError(f"{where}: {'; '.join(problems)}.")
    return study


def read_party_file(path: Path) -> PartyFile:
    """A party file, with its paths made absolute."""
    party: PartyFile = _parse(_text(path), PartyFile, str(path))
    at = path.resolve().parent
    kit = None if party.kit is None else str(at / party.kit)
    return msgspec.structs.replace(party, data=str(at / party.data), kit=kit)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}. `simfl init` writes an example.") from None
    except UnicodeDecodeError:
        raise StudyError(f"{path} is not a text file in UTF-8.") from None


def _parse(text: str, kind: Any, where: str) -> Any:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{where} is not valid TOML: {error}.") from None
    _refuse_unknown(content, kind, where)
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        fact, _, place = str(error).partition(" - at ")
        at = place.strip("`").removeprefix("$.") or "the file"
        raise StudyError(f"{where}: {at}: {fact.replace('`', '')}.") from None


def _refuse_unknown(content: dict[str, Any], kind: Any, where: str) -> None:
    """Name every key that does not exist, in the file and in the tables below it."""
    below = {"engine": Engine, "party": Member} if kind is Study else {}
    wrong = _unknown(content, kind.__struct_fields__, "")
    for key, inner in below.items():
        tables = content.get(key, [])
        for table in tables if isinstance(tables, list) else [tables]:
            if isinstance(table, dict):
                wrong += _unknown(table, inner.__struct_fields__, f" in [{key}]")
    if wrong:
        raise StudyError(f"{where}: {' '.join(wrong)}")


def _unknown(content: dict[str, Any], known: Iterable[str], place: str) -> list[str]:
    wrong = []
    for key in content:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known are: {', '.join(known)}."
            wrong.append(f"there is no key {key!r}{place}. {hint}")
    return wrong


def _check_names(study: Study) -> list[str]:
    wrong = [f"the study's name {study.name!r}"] if not NAME.fullmatch(study.name) else []
    wrong += [f"the party's name {name!r}" for name in study.parties if not NAME.fullmatch(name)]
    problems = [f"{fact} may have letters, digits, - and _ only" for fact in wrong]
    problems += [f"no party can be called {name!r}" for name in study.parties if name in _RESERVED]
    problems += [f"several parties are called {n!r}" for n in sorted(set(study.parties)) if study.parties.count(n) > 1]
    return problems or ([] if study.party else ["there is no [[party]]"])


def _check_parameters(study: Study) -> list[str]:
    try:
        study.params()
    except ParameterError as error:
        return [f"[parameters] {str(error).rstrip('.')}"]
    return []


# --- reading a party's table -----------------------------------------------------------------------------------------


def open_table(study: Study, name: str, path: Path) -> tuple[Party, list[str]]:
    """The party with its table, as the study wants it, and notes on what was left out."""
    if not study.columns:
        return _open_plain(study, name, path)
    frame = files.read_frame(path)
    if study.label is None:
        raise DataError("The study names no label column.")
    problems = _missing_columns(study, frame)
    encoded: dict[str, Any] = {}
    for column, kind in study.columns.items():
        if column in frame.columns:
            values, wrong = _encode(frame[column], column, kind)
            encoded |= values
            problems += wrong
    if study.label in frame.columns and frame[study.label].isna().any():
        problems.append(f"{int(frame[study.label].isna().sum())} rows have no label in column {study.label!r}")
    if problems:
        raise DataError(f"{path.name}: {'; '.join(problems)}")
    extra = [str(c) for c in frame.columns if c not in study.columns and c != study.label]
    notes = [f"columns that the study does not use stay unread: {', '.join(extra)}"] if extra else []
    return Party(name, pd.DataFrame(encoded), frame[study.label].to_numpy(), schema=study.schema), notes


def open_own(study_path: Path, party_path: Path) -> tuple[Study, Party, list[str]]:
    """The study, and the table that a party's own file names, read through it; and notes on the way."""
    study, own = read_study(study_path), read_party_file(party_path)
    if own.name not in study.parties:
        raise StudyError(f"{party_path} is of party {own.name!r}; the study has {study.parties}.")
    party, notes = open_table(study, own.name, Path(own.data))
    return study, party, notes


def _open_plain(study: Study, name: str, path: Path) -> tuple[Party, list[str]]:
    """A file that the study says nothing about: all columns but the label, or LIBSVM."""
    data = files.read_libsvm(path, study.features) if study.features else files.read(path, study.label)
    return Party(name, data.X, data.y, schema=data.schema), data.notes


def _missing_columns(study: Study, frame: pd.DataFrame) -> list[str]:
    problems = []
    for wanted in [study.label, *study.columns]:
        if wanted not in frame.columns:
            near = difflib.get_close_matches(str(wanted), [str(c) for c in frame.columns], n=1)
            hint = f" (is it {near[0]!r}?)" if near else ""
            what = "the label column" if wanted == study.label else "column"
            problems.append(f"{what} {wanted!r} is missing{hint}")
    return problems


def _encode(values: pd.Series[Any], name: str, kind: Kind | list[str]) -> tuple[dict[str, Any], list[str]]:
    """A column as numbers, or as text where it is a category. And what does not fit."""
    if isinstance(kind, list):
        text = values.astype("string")
        unknown = sorted(set(text.dropna()) - set(kind))
        wrong = [f"column {name!r} has categories that the study does not list: {unknown[:5]}"] if unknown else []
        return {name: text}, wrong
    if kind == "category":
        return {}, [f"column {name!r} is a category: the study must list its values, {name} = [...]"]
    if kind == "boolean":
        numbers = values.astype("string").str.strip().str.lower().map(_TRUTH)
    else:
        numbers = pd.to_numeric(values, errors="coerce")
    failed = values[numbers.isna() & values.notna()]
    what = "numbers" if kind == "number" else "yes or no"
    wrong = (
        [f"column {name!r} has {len(failed)} values that are not {what}, as {failed.iloc[0]!r}"] if len(failed) else []
    )
    return {name: numbers.astype("float32")}, wrong


EXAMPLE_STUDY: Final = """\
# A SimFL study: shared by all parties. Nothing here says where anybody's data lies.
name = "example"
label = "outcome"            # the column to learn

# What happens when a party stops answering:
patience = 60                # seconds without a sign of life until it counts as lost
on_dropout = "continue"      # or "stop": end cleanly; `simfl train --resume` goes on later
min_parties = 2              # continue only while so many are there

[engine]
host = "localhost"           # the hub's host name, as the parties reach it
port = 8002                  # the only port that must be open, and only at the hub

[columns]                    # "number", "boolean", or the list of a category's values
age = "number"
smoker = "boolean"
ward = ["surgery", "medicine", "other"]

[parameters]                 # all of them: python -c "import simfl; help(simfl.train)"
objective = "binary:logistic"
n_trees = 100
learning_rate = 0.1
validation_fraction = 0.2    # rows that each party sets aside, to measure on them what it gains over being alone

[audit]                      # read by `simfl audit study.toml`, which attacks a party's own rows before any leaves
# max_excess = 0.3           # exit with an error if an attack beats guessing by more than 30 points

[[party]]                    # one for each; names have letters, digits, - and _
name = "north"
# data = "north.csv"         # only for trying out on one machine: simfl train --local-processes

[[party]]
name = "south"
# data = "south.csv"
"""


def example(table: Path | None = None, label: str | None = None) -> str:
    """A commented study file; with a table, its columns and their kinds are those of the table."""
    if table is None:
        return EXAMPLE_STUDY
    data = files.read(table, label)
    if data.schema is None:
        raise DataError(f"{table} has columns without names. Give a CSV or Parquet file.")
    before, rest = EXAMPLE_STUDY.split("[columns]", 1)
    before = before.replace('label = "outcome"   ', f'label = "{label}"')
    note = f"# As {table.name} suggests them. Add the values of categories that only other parties have."
    return f"{before}{note}\n{data.schema.to_toml()}\n\n[parameters]{rest.split('[parameters]', 1)[1]}"


EXAMPLE_PARTY: Final = """\
# One party's own file. It stays here.
name = "north"               # as in study.toml, and in the certificate of the kit
data = "north.csv"           # CSV, Parquet or LIBSVM, as seen from this file
kit = "kits/north"           # the folder that whoever ran `simfl provision` sent you
# n_jobs = 4                 # threads; all cores where it is not given
"""
