"""study.toml: read and checked; and both files, study.toml and party.toml, written as examples.

All parties share `study.toml`: what is learned, from which columns, how, and by whom. Every error names the place in
the file, and an unknown key is refused with the one that was probably meant.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import pandas as pd
from msgspec import Meta

from simfl.data import files
from simfl.data.schema import Schema
from simfl.data.table import objective_for, why_objective
from simfl.deploy.party_file import PartyFile, parse, read_bytes, read_text
from simfl.errors import DataError, FileError, ParameterError, PrivacyError, StudyError
from simfl.params import Params, is_private, train_params
from simfl.privacy.ledger import Ledger, Limit
from simfl.storage import write_atomically
from simfl.training.losses import labels_of

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")  # also a FLARE site, a folder and part of a certificate
_RESERVED: Final = ("hub", "server", "submitter")  # these kits exist in every study
MOST_CODES: Final = 10  # a column of whole numbers with more values is hardly a code
Excess = Annotated[float, Meta(ge=0, le=1)]


class StudyParty(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[party]]` of the study. `data` is only for `simfl train --local-processes`."""

    name: str
    data: str | None = None


class Engine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[engine]`: where the parties reach the hub."""

    host: str = "localhost"
    port: Annotated[int, Meta(ge=1, le=65535)] = 8002


class AuditLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[audit]`: by how much an attack may beat guessing. One limit for all attacks, or one for each by name."""

    max_excess: Excess | dict[str, Excess] | None = None


class Study(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`study.toml`."""

    name: str
    label: str | list[str] | None = None  # two: the lower and the upper bound of a time
    event: str | None = None  # with a label that is a time: whether something happened then
    weight: str | None = None  # how much each row counts; None: all alike
    party: list[StudyParty]
    columns: dict[str, str | list[str] | dict[str, Any]] = {}
    features: Annotated[int, Meta(ge=1)] | None = None  # of LIBSVM files, whose columns have no names
    parameters: dict[str, Any] = {}
    engine: Engine = Engine()
    patience: Annotated[float, Meta(ge=5)] = 60.0
    on_dropout: Literal["continue", "stop"] = "continue"
    min_parties: Annotated[int, Meta(ge=1)] | None = None
    audit: AuditLimits = AuditLimits()

    @property
    def parties(self) -> list[str]:
        """The names of the parties."""
        return [party.name for party in self.party]

    @property
    def target(self) -> files.Target | None:
        """The columns to learn, and the one of weights."""
        return files.Target.of(self.label, self.event, self.weight)

    @property
    def parties_needed(self) -> int:
        """How many parties a training needs to continue, once it has begun with all of them.

        Trees that are grown together with epsilon need the noise of all.
        """
        everybody = self.on_dropout == "stop" or is_private(self.params())
        return len(self.party) if everybody else self.min_parties or min(2, len(self.party))

    @property
    def schema(self) -> Schema:
        """The columns as a schema."""
        return Schema.from_toml(self.columns)

    def params(self) -> Params:
        """The parameters of both stages."""
        return train_params(**self.parameters)


# --- reading ---------------------------------------------------------------------------------------------------------


def read_study(path: Path) -> Study:
    """Read and check a study file."""
    return parse_study(read_text(path), str(path))


def parse_study(text: str, where: str = "study.toml") -> Study:
    r"""Check the text of a study file.

    >>> parse_study('name = "a"\nlable = "y"\n[[party]]\nname = "north"')
    Traceback (most recent call last):
        ...
    simfl.errors.StudyError: study.toml: there is no key 'lable'. Did you mean 'label'?
    """
    tables = {"engine": Engine, "audit": AuditLimits, "party": StudyParty}
    study: Study = parse(text, Study, tables, where)
    problems = [*_check_names(study), *_check_tables(study)]
    if study.min_parties is not None and study.min_parties > len(study.party):
        problems.append(f"min_parties is {study.min_parties}, but there are {len(study.party)} parties")
    problems += _check_target(study)
    one = [name for name, kind in study.columns.items() if isinstance(kind, list) and len(kind) == 1]
    problems += [f"column {name!r} must list at least two different levels" for name in one]
    if problems:
        raise StudyError(f"{where}: {'; '.join(problems)}.")
    return study


def columns_of(path: Path) -> Schema:
    """The `[columns]` of a study file, whatever else it has."""
    try:
        return Schema.from_toml(tomllib.loads(read_text(path)).get("columns", {}))
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{path} is not valid TOML: {error}.") from None


def _check_names(study: Study) -> list[str]:
    wrong = [f"the study's name {study.name!r}"] if not NAME.fullmatch(study.name) else []
    wrong += [f"the party's name {name!r}" for name in study.parties if not NAME.fullmatch(name)]
    problems = [f"{fact} may have letters, digits, - and _ only" for fact in wrong]
    reserved = (*_RESERVED, study.engine.host)  # the hub's certificate is made out to its host
    problems += [f"no party can be called {name!r}" for name in study.parties if name in reserved]
    problems += [f"several parties are called {n!r}" for n in sorted(set(study.parties)) if study.parties.count(n) > 1]
    return problems or ([] if study.party else ["there is no [[party]]"])


def _check_target(study: Study) -> list[str]:
    try:
        target = study.target or files.Target(())
    except ParameterError as error:
        return [str(error).rstrip(".")]
    learned = target.learned
    problems = [f"the label {name!r} is also among the columns" for name in learned if name in study.columns]
    if target.weight in study.columns:
        problems.append(f"the weight {target.weight!r} is also among the columns: how much a row counts is no feature")
    if target.weight is not None and study.features is not None:
        problems.append("weight names a column, and LIBSVM files (features = ...) have no names of columns")
    try:
        objective = study.params().objective
    except ParameterError:
        return problems  # said of [parameters] already
    if learned and (len(learned) == 2) != (labels_of(objective) == "bounds"):
        needs = 'label = "time" and event = "died", or label = ["lower", "upper"]'
        problems.append(f"survival:aft, and only that, learns two columns: {needs}; the objective is {objective}")
    return problems


def _check_tables(study: Study) -> list[str]:
    try:
        schema, params = study.schema, study.params()  # refuses kinds that do not exist
    except ParameterError as error:
        return [f"[parameters] {str(error).rstrip('.')}"]
    except DataError as error:
        return [str(error).rstrip(".")]
    return _undeclared(schema) if is_private(params) else []


def _undeclared(schema: Schema) -> list[str]:
    """What a study with epsilon must declare, because nobody may ask for it."""
    if not schema.columns:
        return ["with epsilon nobody may ask for columns and their values: declare them in [columns]"]
    lacks = [c.name for c in schema.columns if c.kind == "number" and not c.range]
    say = (
        "with epsilon nobody may ask where the values of {0} lie: write {0} = {{ low = ..., high = ... }} in [columns]"
    )
    return [say.format(name) for name in lacks]


# --- consent ---------------------------------------------------------------------------------------------------------


def digest_of(study: bytes) -> str:
    """The digest of a study file, for people to compare: eight groups of four.

    >>> digest_of(b"name = 'example'")[:9]
    '665d d29b'
    """
    words = hashlib.sha256(study).hexdigest()[:32]
    return " ".join(words[i : i + 4] for i in range(0, 32, 4))


def approved_study(own: PartyFile, sent: bytes) -> Study:
    """The study, if it is byte for byte the one that the party has approved, and keeps the party's own rules."""
    if own.study is None:
        raise PrivacyError("it names no study that it has approved: set study = ... in its party.toml")
    approved = read_bytes(Path(own.study))
    if approved != sent:
        raise PrivacyError(
            f"the study that was sent (digest {digest_of(sent)}) is not the one that it has approved "
            f"(digest {digest_of(approved)}). Compare the digests that `simfl check` shows"
        )
    study = parse_study(sent.decode())
    if own.name not in study.parties:
        raise PrivacyError(f"the study does not name {own.name!r}: it has {', '.join(study.parties)}")
    broken = own.require.broken_by(study)
    if broken:
        raise PrivacyError("; ".join(broken))
    return study


def ledger_of(own: PartyFile) -> Ledger:
    """What this party's table has spent, and how much it may."""
    limit = Limit(own.require.epsilon_total, own.require.delta_total)
    return Ledger(Path(own.ledger), f"Party {own.name!r}", limit)


# --- examples --------------------------------------------------------------------------------------------------------


def write_examples(
    folder: Path, table: Path | None = None, label: str | None = None, weight: str | None = None
) -> list[Path]:
    """Write an example study.toml and party.toml, unless one is there; after a table, if one is given."""
    study = example_study(table, label, weight)
    texts = {folder / "study.toml": study, folder / "party.toml": _example_party(folder, table)}
    for path in texts:
        if path.exists():
            raise FileError(f"{path} is there already and is left as it is.")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        write_atomically(path, text.encode(), private=path.name == "party.toml")  # it can hold a secret
    return list(texts)


def example_study(table: Path | None = None, label: str | None = None, weight: str | None = None) -> str:
    """A commented study file. With a table, columns, levels and the objective are those that it suggests."""
    text = _template("study.toml")
    if table is None:
        return text
    data = files.read(table, files.Target.of(label, None, weight))
    if data.schema is None:
        raise DataError(f"{table} has columns without names. Give a CSV or Parquet file.")
    known = data.y[~pd.isna(data.y)]
    objective, why = objective_for(known), why_objective(known).replace("--objective ", "")
    head, rest = text.split("[columns]", 1)
    head = head.replace('"outcome"   ', _quoted(label))
    if weight is not None:
        head = head.replace('# weight = "factor"', f"weight = {_quoted(weight)}  ")
    note = f"# As {table.name} suggests them. Add the values of categories that only other parties have."
    rest = rest.split("[parameters]", 1)[1].replace('"binary:logistic"', f'"{objective}"  # {why}')
    columns = "\n".join(_with_codes(line, data.X) for line in data.schema.to_toml().split("\n"))
    return f"{head}{note}\n{columns}\n\n[parameters]{rest}"


def _quoted(name: str | None) -> str:
    return msgspec.json.encode(name).decode()  # as TOML does


def _with_codes(line: str, table: Any) -> str:
    """A line of [columns]; a number with few whole values may be a code, and has them beside it as levels."""
    name, _, kind = line.partition(" = ")
    if kind != '"number"' or name not in table:
        return line
    found = sorted(set(table[name].dropna().tolist()))
    if not 3 <= len(found) <= MOST_CODES or any(value != round(value) for value in found):
        return line
    levels = ", ".join(f'"{round(value)}"' for value in found)
    return f"{line}  # or, if these are codes without an order: [{levels}]"


def _example_party(folder: Path, table: Path | None) -> str:
    """A commented party file; `data` is the table, if one is given."""
    text = _template("party.toml")
    if table is None:
        return text
    near = table.resolve().is_relative_to(folder.resolve())
    path = table.resolve().relative_to(folder.resolve()) if near else table.resolve()
    return text.replace('"north.csv"', _quoted(path.as_posix()))


def _template(name: str) -> str:
    return (resources.files("simfl.deploy") / "templates" / name).read_text(encoding="utf-8")
