"""A party whose table is in a database trains like one whose table is a file."""

import duckdb
import pytest

pytest.importorskip("nvflare")

from simfl.data.sources import Source
from simfl.deploy import run as runs
from tests.deploy.one_process import open_federation


def test_a_party_with_a_database_gives_the_model_of_the_same_rows_in_a_file(tmp_path, monkeypatch):
    federation = open_federation(tmp_path, monkeypatch, 6, 120)
    party_file = federation.kits / "north" / "party.toml"
    with duckdb.connect(tmp_path / "clinic.db") as clinic:
        clinic.read_csv(str(tmp_path / "north.csv")).create("visits")
    monkeypatch.setenv("CLINIC", str(tmp_path / "clinic.db"))
    lines = party_file.read_text().splitlines()
    lines[1] = 'data = "duckdb:///${CLINIC}"\nquery = "select * from visits"'
    party_file.write_text("\n".join(lines))
    first = runs.run_study(federation.study, out=tmp_path / "first")

    source = Source("duckdb:///${CLINIC}", "select * from visits")
    source.read().to_csv(tmp_path / "ordered.csv", index=False)
    lines[1] = f'data = "{tmp_path / "ordered.csv"}"'
    party_file.write_text("\n".join(lines))
    second = runs.run_study(federation.study, out=tmp_path / "second")
    assert (first / "model.ubj").read_bytes() == (second / "model.ubj").read_bytes()
    kept = b"".join(path.read_bytes() for path in (federation.kits / "north" / "runs").rglob("*") if path.is_file())
    assert b"clinic.db" not in kept  # where the data is, is in no folder of a run
    assert str(tmp_path / "clinic.db") not in str(source)
