"""Tables in folders and databases. The PostgreSQL is a real one, from the system's packages."""

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest

from simfl.data.sources import Source, locate
from simfl.errors import DataError, FileError, MissingExtraError, StudyError

PASSWORD = "p@ss/wörd:1"  # noqa: S105 - all that a URL must quote
rng = np.random.default_rng(0)
VISITS = pd.DataFrame(
    {
        "age": rng.integers(20, 90, 500),
        "pressure": np.where(rng.random(500) < 0.1, np.nan, np.round(rng.normal(130, 15, 500), 1)),
        "smoker": rng.random(500) < 0.3,
        "ward": rng.choice(["surgery", "medicine"], 500),
        "outcome": rng.integers(0, 2, 500),
    }
)


def sorted_rows(frame):
    return frame.sort_values(list(frame.columns)).reset_index(drop=True)


def same_rows(first, second):
    pd.testing.assert_frame_equal(sorted_rows(first), sorted_rows(second), check_dtype=False)


@pytest.fixture
def clinic(tmp_path):
    """A file of DuckDB with a table."""
    with duckdb.connect(tmp_path / "clinic.db") as connection:
        connection.register("frame", VISITS)
        connection.execute("create table visits as select * from frame")
    return locate("duckdb:///clinic.db", tmp_path)


# --- files and folders -----------------------------------------------------------------------------------------------


def test_a_file_is_read_as_before(tmp_path):
    VISITS.to_csv(tmp_path / "visits.csv", index=False)
    source = Source(locate("visits.csv", tmp_path))
    assert source.path == tmp_path / "visits.csv"
    pd.testing.assert_frame_equal(source.read(), VISITS)


def test_a_folder_of_parquet_files_is_one_table_in_the_order_of_their_names(tmp_path):
    VISITS[300:].to_parquet(tmp_path / "2025.parquet")
    VISITS[:300].to_parquet(tmp_path / "2024.parquet")
    (tmp_path / "notes.txt").write_text("not a table")
    assert Source(str(tmp_path)).read()["age"].tolist() == VISITS["age"].tolist()


def test_a_query_reads_a_file_or_a_folder_as_the_table_data(tmp_path):
    VISITS.to_parquet(tmp_path / "visits.parquet")
    query = "select age, outcome from data where ward = 'surgery' -- the others are elsewhere"
    wanted = VISITS.loc[VISITS["ward"] == "surgery", ["age", "outcome"]]
    same_rows(Source(str(tmp_path / "visits.parquet"), query).read(), wanted)
    same_rows(Source(str(tmp_path), query).read(), wanted)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(FileError, match="no Parquet file in the folder"):
        Source(str(tmp_path)).read()


def test_a_place_in_a_party_file_is_relative_to_it(tmp_path):
    assert locate("visits.csv", tmp_path) == str(tmp_path / "visits.csv")
    assert locate("duckdb:////srv/clinic.db", tmp_path) == "duckdb:////srv/clinic.db"
    assert locate("${VISITS}", tmp_path) == "${VISITS}"


def test_a_path_can_come_from_the_environment(tmp_path, monkeypatch):
    VISITS.to_csv(tmp_path / "visits.csv", index=False)
    monkeypatch.setenv("VISITS", str(tmp_path))
    assert len(Source("${VISITS}/visits.csv").read()) == 500


# --- databases -------------------------------------------------------------------------------------------------------


def test_a_database_gives_the_rows_of_its_query(clinic):
    same_rows(Source(clinic, "select * from visits;").read(), VISITS)


def test_the_order_of_the_rows_is_the_same_however_the_database_stores_them(clinic, tmp_path):
    with duckdb.connect(tmp_path / "other.db") as connection:
        connection.register("frame", VISITS.sample(frac=1, random_state=1))
        connection.execute("create table visits as select * from frame")
    first = Source(clinic, "select * from visits")
    second = Source(locate("duckdb:///other.db", tmp_path), "select * from visits")
    pd.testing.assert_frame_equal(first.read(), second.read())
    assert first.digest() == second.digest()
    assert abs(np.corrcoef(first.read()["age"], np.arange(500))[0, 1]) < 0.15  # and says nothing about the rows


def test_the_digest_changes_with_a_row(clinic, tmp_path):
    before = Source(clinic, "select * from visits").digest()
    with duckdb.connect(tmp_path / "clinic.db") as connection:
        connection.execute("update visits set age = age + 1 where rowid = 7")
    assert Source(clinic, "select * from visits").digest() != before


def test_without_a_query_the_error_names_the_tables(clinic):
    with pytest.raises(DataError, match=r'query = "select ..." in party.toml. Its tables: main.visits'):
        Source(clinic).read()


@pytest.mark.parametrize("query", ["drop table visits", "select * from visitors", "select 1; drop table visits"])
def test_a_query_that_is_no_select_or_names_no_table_is_refused(clinic, query):
    with pytest.raises(FileError, match=r"clinic.db cannot be read: (Parser|Catalog) Error"):
        Source(clinic, query).read()
    assert len(Source(clinic, "select * from visits").read()) == 500


def test_the_query_alone_can_say_what_to_read(tmp_path):
    (tmp_path / "a.json").write_text('[{"age": 61, "outcome": 1}, {"age": 48, "outcome": 0}]')
    query = f"select * from read_json('{tmp_path}/*.json')"  # noqa: S608 - a folder of this test
    assert sorted(Source("duckdb://", query).read()["age"]) == [48, 61]


def test_a_missing_file_and_a_missing_variable_are_named(tmp_path):
    with pytest.raises(FileError, match=r"There is no file .*clinic\.db"):
        Source(locate("duckdb:///clinic.db", tmp_path), "select 1").read()
    with pytest.raises(StudyError, match=r"no environment variable NO_SUCH_THING\. Set it"):
        Source("postgresql://u:${NO_SUCH_THING}@db/clinic", "select 1").read()


def test_a_source_of_another_kind_is_refused():
    with pytest.raises(StudyError, match=r"'mysql'\. Known are files, folders of Parquet"):
        locate("mysql://db/clinic", Path())


def test_without_duckdb_the_extra_is_named(clinic, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    with pytest.raises(MissingExtraError, match=r'pip install "simfl\[sql\]"'):
        Source(clinic, "select 1").read()


# --- secrets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["postgresql://u:geheim@db/clinic", "postgres://db/clinic?user=u&password=geheim"])
def test_a_password_in_the_party_file_is_refused(data):
    with pytest.raises(StudyError, match="Put it into an environment variable") as refused:
        locate(data, Path())
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize("data", ["postgresql://u:${SECRET}@localhost:1/x", "${WHOLE}"])
def test_a_password_is_in_no_error_and_in_no_name(data, monkeypatch):
    monkeypatch.setenv("SECRET", PASSWORD)
    monkeypatch.setenv("WHOLE", "postgresql://u:geheim@localhost:1/x")
    source = Source(locate(data, Path()), "select 1")
    with pytest.raises(FileError, match="Unable to connect") as refused:
        source.read()
    shown = f"{refused.value} {source} {source!r}"
    assert not any(secret in shown for secret in (PASSWORD, "p%40ss", "geheim"))


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


def _programs():
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or [Path(shutil.which("initdb") or "")]
    return found[-1].parent if found[-1].is_file() else None


@pytest.fixture(scope="module")
def postgres():
    """A PostgreSQL of its own, reached over TCP with a password; the URL has `${PG_SECRET}` in its place."""
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    home = Path(tempfile.mkdtemp(prefix="simfl-postgres-"))  # a folder that its own user can reach
    (home / "secret").write_text(PASSWORD)
    as_user = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(home, "postgres")
        shutil.chown(home / "secret", "postgres")
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]

    def run(program, *words):
        subprocess.run([*as_user, programs / program, *words], check=True, timeout=120, capture_output=True, cwd=home)

    data = ["-D", home / "data"]
    run("initdb", *data, "--auth=scram-sha-256", "--username=reader", f"--pwfile={home / 'secret'}", "--encoding=UTF8")
    run("pg_ctl", *data, "-w", "-l", home / "log", "-o", f"-p {port} -c listen_addresses=localhost -k {home}", "start")
    yield f"postgresql://reader:${{PG_SECRET}}@localhost:{port}/postgres"
    run("pg_ctl", *data, "-w", "-m", "fast", "stop")
    shutil.rmtree(home)


@pytest.fixture
def filled(postgres, monkeypatch):
    """The same with a table in a schema of its own, and a view of it."""
    from simfl.data.sources import _connect

    monkeypatch.setenv("PG_SECRET", PASSWORD)
    url = Source(postgres)._filled_in
    with _connect(url) as connection:  # the attached one is for reading only: fill it through another
        connection.execute("use memory").execute("detach source")
        connection.execute(f"attach '{url}' as target (type postgres)")
        connection.register("frame", VISITS)
        connection.execute("create schema if not exists target.clinic")
        connection.execute("drop table if exists target.clinic.visits cascade")
        connection.execute("create table target.clinic.visits as select * from frame")
        connection.execute("call postgres_execute('target', 'create view recent as select * from clinic.visits')")
    return postgres


def test_postgresql_gives_the_rows_of_its_query(filled):
    same_rows(Source(filled, "select * from clinic.visits").read(), VISITS)
    counts = Source(filled, "select ward, count(*) as n from recent group by ward").read()
    assert dict(zip(counts["ward"], counts["n"], strict=True)) == VISITS["ward"].value_counts().to_dict()


def test_postgresql_is_opened_for_reading_only(filled):
    from simfl.data.sources import _connect

    with _connect(Source(filled)._filled_in) as connection, pytest.raises(duckdb.Error, match="read-only"):
        connection.execute("delete from clinic.visits")


def test_a_wrong_password_is_not_shown(filled, monkeypatch):
    monkeypatch.setenv("PG_SECRET", "wr0ng-secret")
    with pytest.raises(FileError, match="password authentication failed") as refused:
        Source(filled, "select 1").read()
    assert "wr0ng-secret" not in str(refused.value)


def test_a_party_checks_its_study_against_postgresql(filled, simfl_command, tmp_path, capsys):
    columns = 'age = "number"\npressure = "number"\nsmoker = "boolean"\nward = ["surgery", "medicine"]\n'
    parties = "".join(f'[[party]]\nname = "{name}"\n' for name in ("north", "south"))
    (tmp_path / "study.toml").write_text(f'name = "s"\nlabel = "outcome"\n[columns]\n{columns}{parties}')
    query = "select * from clinic.visits"
    (tmp_path / "party.toml").write_text(
        f'name = "north"\nstudy = "study.toml"\ndata = "{filled}"\nquery = "{query}"\n'
    )
    assert simfl_command("check", "study.toml", "party.toml") == 0
    shown = capsys.readouterr().out
    assert "The table fits the study: 500 rows, 4 columns." in shown
    assert PASSWORD not in shown
