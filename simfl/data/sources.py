"""Where a party's table lives: a file, a folder of Parquet files, or a database. DuckDB reads folders and databases.

| `data = ...` in party.toml | what it is |
|---|---|
| `"patients.csv"`, `"patients.parquet"`, `"patients.svm"` | a file |
| `"patients/"` | all Parquet files of a folder, in the order of their names |
| `"duckdb:///clinic.db"` | a file of DuckDB, relative to party.toml (four slashes: absolute) |
| `"duckdb://"` | no file: the query itself says what it reads, such as `select * from read_json('visits/*.json')` |
| `"postgresql://reader:${DB_PASSWORD}@db.clinic/patients"` | PostgreSQL, in libpq's form |

`query` is DuckDB's SQL. Over a file or a folder it reads the table `data`; databases are opened for reading only.
`${NAME}` is the environment variable of this name. It is put in when the table is read and is in no text that SimFL
writes: not in a run folder, a log, or an error.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, quote, urlsplit

from simfl.errors import DataError, FileError, MissingExtraError, StudyError

if TYPE_CHECKING:
    import pandas as pd
    from duckdb import DuckDBPyConnection

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_DATABASE: Final = re.compile(r"(duckdb|postgres|postgresql)://", re.IGNORECASE)
_ANY_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
# A database gives its rows in no fixed order, and a resumed training needs the same one: that of a digest of each row,
# which is also no order that says anything about the row (as one by date or by name would).
_IN_FIXED_ORDER: Final = "select * from (\n{}\n) as t order by md5(cast(t as varchar))"


@dataclass(frozen=True)
class Source:
    """A party's table, as its party.toml names it.

    >>> str(Source("postgresql://reader:${DB_PASSWORD}@db.clinic/patients", "select * from visits"))
    'postgresql://db.clinic/patients'
    """

    data: str
    query: str | None = None

    def __str__(self) -> str:
        """What may be shown and written down: never what stands for a user or a password."""
        if not _DATABASE.match(self.data):
            return self.data
        return re.sub(r"//[^/@]*@", "//", self.data.split("?")[0])

    @property
    def path(self) -> Path | None:
        """The file, where the table is a file and nothing else."""
        path = None if self._is_database else Path(self._filled_in)
        return path if self.query is None and not (path and path.is_dir()) else None

    def read(self) -> pd.DataFrame:
        """All columns and rows as they are."""
        path = self.path
        if path is not None:
            from simfl.data import files

            return files.read_frame(path)
        with self._reading(), closing(_connect(self._filled_in)) as connection:
            relation = connection.sql(self._statement(connection))
            if relation is None:
                raise DataError(f"The query of {self} gives no rows: it must be one select.")
            frame: pd.DataFrame = relation.df()
        return frame.rename(columns=str)

    def digest(self) -> str:
        """A digest of the file, or of the rows that a folder or a database gives now."""
        path = self.path
        if path is None:
            import pandas as pd

            return hashlib.sha256(pd.util.hash_pandas_object(self.read().astype(str)).to_numpy().data).hexdigest()
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise FileError(f"{self} cannot be read: {error.strerror}.") from None

    @property
    def _is_database(self) -> bool:
        return _DATABASE.match(self._filled_in) is not None

    @property
    def _filled_in(self) -> str:
        """With the environment's values. A user or a password is quoted, as a URL needs it."""
        at = self.data.rfind("@") if _DATABASE.match(self.data) else -1
        return _VARIABLE.sub(lambda found: _value(found[1], in_url=found.start() < at), self.data)

    def _statement(self, connection: DuckDBPyConnection) -> str:
        if self.query is not None:
            return _IN_FIXED_ORDER.format(self.query.strip().rstrip(";"))
        if not self._is_database:
            return "select * from data"
        found = connection.sql("select table_schema || '.' || table_name from information_schema.tables").fetchall()
        names = ", ".join(sorted(name for (name,) in found)[:20])
        raise DataError(f'Say what to read from {self}: query = "select ..." in party.toml. Its tables: {names}.')

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn DuckDB's errors into one sentence, without the values of the environment."""
        try:
            yield
        except _duckdb().Error as error:
            said = str(error).strip().splitlines()[0].rstrip(".")
            for name in _VARIABLE.findall(self.data):
                for value in filter(None, (os.environ.get(name), quote(os.environ.get(name, ""), safe=""))):
                    said = said.replace(value, f"${{{name}}}")
            raise FileError(f"{self} cannot be read: {said}.") from None


def locate(data: str, folder: Path) -> str:
    """The same place, wherever it is read from: paths in a party file are relative to the file.

    >>> locate("duckdb:///clinic.db", Path("/srv/simfl")), locate("visits", Path("/srv/simfl"))
    ('duckdb:////srv/simfl/clinic.db', '/srv/simfl/visits')
    """
    scheme = _ANY_SCHEME.match(data)
    if scheme and not _DATABASE.match(data):
        raise StudyError(
            f"data names a source of kind {scheme[1]!r}. Known are files, folders of Parquet files, duckdb:// and "
            "postgresql://; a query over duckdb:// reads whatever DuckDB can."
        )
    if data.lower().startswith("duckdb:///") and not data.startswith("${", len("duckdb:///")):
        return f"duckdb:///{folder / data[len('duckdb:///') :]}"
    if scheme:
        _refuse_password(data)
        return data
    return data if data.startswith("${") else str(folder / data)


def _refuse_password(data: str) -> None:
    """A password belongs into the environment: party files are copied, backed up and shown around."""
    url = urlsplit(data)
    passwords = [url.password or "", *parse_qs(url.query).get("password", [])]
    if any(password and not _VARIABLE.fullmatch(password) for password in passwords):
        raise StudyError(
            "data names a password. Put it into an environment variable, such as DB_PASSWORD, and write "
            "postgresql://user:${DB_PASSWORD}@host/database."
        )


def _value(name: str, *, in_url: bool) -> str:
    if name not in os.environ:
        raise StudyError(
            f"data names ${{{name}}}, and there is no environment variable {name}. Set it and start again."
        )
    return quote(os.environ[name], safe="") if in_url else os.environ[name]


# --- DuckDB ----------------------------------------------------------------------------------------------------------


def _duckdb() -> Any:
    try:
        return import_module("duckdb")
    except ModuleNotFoundError:
        raise MissingExtraError(
            'DuckDB reads databases, folders and queries, and is not installed. Run: pip install "simfl[sql]"'
        ) from None


def _connect(data: str) -> DuckDBPyConnection:
    """A connection in which the table or the tables can be read by name. Nothing is downloaded, nothing written."""
    duckdb = _duckdb()
    connection: DuckDBPyConnection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    kind = _DATABASE.match(data)
    if kind is None:
        _view(connection, Path(data))
    elif kind[1].lower() != "duckdb":
        connection.execute(f"load {_literal(_postgres_extension(duckdb.__version__))}")
        connection.execute(f"attach {_literal(data)} as source (type postgres, read_only)").execute("use source")
    elif file := data[len("duckdb://") :].removeprefix("/"):
        if not Path(file).is_file():
            raise FileError(f"There is no file {file}. Check data = ... in party.toml.")
        connection.execute(f"attach {_literal(file)} as source (read_only)").execute("use source")
    return connection


def _view(connection: DuckDBPyConnection, path: Path) -> None:
    """A file or a folder of Parquet files as the table `data`."""
    if not path.is_dir():
        from simfl.data import files

        connection.register("data", files.read_frame(path))
        return
    found = sorted(str(file) for file in path.glob("*.parquet"))
    if not found:
        raise FileError(f"There is no Parquet file in the folder {path}. Check data = ... in party.toml.")
    connection.read_parquet(found, union_by_name=True).create_view("data")


def _postgres_extension(version: str) -> str:
    """The file of DuckDB's extension for PostgreSQL. DuckDB loads only what its own authors have signed."""
    try:
        home: Any = import_module("duckdb_extension_postgres_scanner")
    except ModuleNotFoundError:
        home = None
    file = (
        Path(home.__file__).parent / "extensions" / f"v{version}" / "postgres_scanner.duckdb_extension"
        if home
        else None
    )
    if file is None or not file.is_file():
        raise MissingExtraError(
            f"DuckDB {version} needs its extension for PostgreSQL, of the same version, and it is not installed. "
            'Run: pip install "simfl[sql]"'
        )
    return str(file)


def _literal(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"
