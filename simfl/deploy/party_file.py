"""party.toml: read and checked. Where a party keeps its data, and its own rules: in no text that leaves it.

Nothing here, nor in what it imports, loads a table or a tree: `simfl party start` reads it, and runs for months.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from simfl.data.sources import Source, locate
from simfl.errors import FileError, StudyError, did_you_mean

if TYPE_CHECKING:
    from simfl.deploy.study import Study


class Require(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[require]` of party.toml: rules that hold for every study. A study that breaks one is not joined."""

    signed: bool = True  # keys are exchanged under certificates only. false: to try things out without kits
    masked: bool = True  # sums leave under masks only
    matching: Literal["blind", "shared", "any"] = "blind"
    min_group: Annotated[int, Meta(ge=1)] = 1
    min_parties: Annotated[int, Meta(ge=1)] = 2
    max_trees: Annotated[int, Meta(ge=1)] | None = None
    epsilon_total: Annotated[float, Meta(gt=0, le=1e6)] | None = None  # of all runs on this party's table together
    delta_total: Annotated[float, Meta(gt=0, lt=1)] = 1e-5  # the delta at which they are added up
    labels: list[str] | None = None  # the columns that may be learned; None: any
    columns: list[str] | None = None  # the columns that may be used, as features or weights; None: any

    def broken_by(self, study: Study) -> list[str]:
        """The rules that a study breaks, in words."""
        params = study.params()
        needed, trees, group = study.parties_needed, params.n_trees, params.min_group
        used = {*study.columns, *([] if study.weight is None else [study.weight])}
        unasked = sorted(used - (used if self.columns is None else set(self.columns)))
        masked = len(study.parties) == 1 or params.masked is not False
        matching, learned = getattr(params, "matching", None), study.target.learned if study.target else ()
        label = ", ".join(map(repr, learned))
        broken = {
            "masked = true, and the study switches masks off": self.masked and not masked,
            f"matching = {self.matching}, and the study has {matching}": matching is not None
            and self.matching not in ("any", matching),
            f"min_group = {self.min_group}, and the study has {group}": group < self.min_group
            and params.epsilon is None,
            f"min_parties = {self.min_parties}, and the study continues with {needed}": needed < self.min_parties,
            f"max_trees = {self.max_trees}, and the study has {trees}": trees > (self.max_trees or trees),
            f"epsilon_total = {self.epsilon_total}, and the study has no epsilon": self.epsilon_total is not None
            and params.epsilon is None,
            f"labels = [...], and the study learns {label}": self.labels is not None
            and not set(learned) <= set(self.labels),
            f"columns = [...], and the study also uses {unasked}": bool(unasked),
            "columns = [...], and the study declares none": self.columns is not None and not study.columns,
        }
        return [f"it requires {rule}" for rule, is_broken in broken.items() if is_broken]


class PartyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`party.toml`: what only this party knows. Paths are relative to the file."""

    name: str
    data: str  # a file, a folder of Parquet files or a database: simfl/data/sources.py
    query: str | None = None  # what to read of it, in DuckDB's SQL
    study: str | None = None  # its own copy, the one that its people have checked. Without it, it joins nothing
    kit: str | None = None
    n_jobs: Annotated[int, Meta(ge=1)] | None = None
    # In hexadecimal, the same at all parties, never at the hub. None: they agree on one when a training begins.
    secret: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None = None
    person: str | None = None  # the column that says whose row it is, for max_rows_per_person; it is never sent
    ledger: str = "ledger"  # what this table has spent of its privacy; one for all party files of the same table
    require: Require = Require()

    @property
    def source(self) -> Source:
        """Where its table lives."""
        return Source(self.data, self.query)


msgspec.json.Decoder(PartyFile)  # from the import on: threads that first work out a type at once crash


# --- reading ---------------------------------------------------------------------------------------------------------


def read_party_file(path: Path) -> PartyFile:
    """Read a party file; its paths become absolute."""
    party: PartyFile = parse(read_text(path), PartyFile, {"require": Require}, str(path))
    folder = path.resolve().parent
    kit = None if party.kit is None else str(folder / party.kit)
    study = None if party.study is None else str(folder / party.study)
    paths = {"data": locate(party.data, folder), "ledger": str(folder / party.ledger)}
    return msgspec.structs.replace(party, kit=kit, study=study, **paths)


def read_bytes(path: Path) -> bytes:
    """A study or party file as it is."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}. `simfl init` writes an example.") from None


def read_text(path: Path) -> str:
    """A study or party file as text."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError:
        raise StudyError(f"{path} is not a text file in UTF-8.") from None


def parse(text: str, kind: Any, below: Mapping[str, Any], where: str) -> Any:
    """The text of a file as this kind of struct; `below` has the kinds of its tables."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{where} is not valid TOML: {error}.") from None
    _refuse_unknown(content, kind, below, where)
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        fact, _, place = str(error).partition(" - at ")
        at = place.strip("`").removeprefix("$.") or "the file"
        raise StudyError(f"{where}: {at}: {fact.replace('`', '')}.") from None


def _refuse_unknown(content: dict[str, Any], kind: Any, below: Mapping[str, Any], where: str) -> None:
    """Name every key that does not exist, in the file and in the tables below it."""
    wrong = _unknown(content, kind.__struct_fields__, "")
    for key, inner in below.items():
        tables = content.get(key, [])
        for table in tables if isinstance(tables, list) else [tables]:
            if isinstance(table, dict):
                wrong += _unknown(table, inner.__struct_fields__, f" in [{key}]")
    if wrong:
        raise StudyError(f"{where}: {' '.join(wrong)}")


def _unknown(content: dict[str, Any], known: Sequence[str], place: str) -> list[str]:
    return [f"there is no key {key!r}{place}. {did_you_mean(key, known)}" for key in content if key not in known]
