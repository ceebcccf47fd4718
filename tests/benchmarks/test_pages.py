import csv
import re
import shutil
import subprocess

import pytest

from benchmarks import pages
from benchmarks.pages import Page, percent, read_csv, stamp, write_csv


def test_a_page_tells_its_command_date_versions_and_that_it_was_quick(tmp_path):
    page = Page("Title", "python -m benchmarks.paper theta", quick=True)
    page.table(["data", "error"], [["a9a", 15.1]])
    page.write(tmp_path / "results" / "page.md")
    text = (tmp_path / "results" / "page.md").read_text()
    assert text.startswith("# Title\n")
    assert "QUICK RUN" in text
    assert "`python -m benchmarks.paper theta`" in text
    assert "simfl 0." in text
    assert "| data | error |\n|---|---:|\n| a9a | 15.1 |" in text


def test_a_csv_has_every_column_that_any_row_has(tmp_path):
    write_csv(tmp_path / "x.csv", [{"a": 1}, {"a": 2, "failed": 'no, not "here"'}])
    with (tmp_path / "x.csv").open() as file:
        assert list(csv.DictReader(file)) == [{"a": "1", "failed": ""}, {"a": "2", "failed": 'no, not "here"'}]


def test_a_missing_number_is_a_dash():
    assert [percent(v) for v in (None, float("nan"), 0.5)] == ["-", "-", "50.0"]


def test_a_stamp_has_the_days_every_version_and_its_first_commit():
    first = {"date": "2026-11-16", "code": "simfl 1+ab, xgboost 3", "commit": "1234567"}
    rows = [first, first | {"date": "2026-11-17", "commit": "7654321"}, {"code": "simfl 1+cd, xgboost 3"}, {"auc": 1}]
    assert stamp(rows) == (
        "on 2026-11-16 to 2026-11-17 with simfl 1+ab (commit 1234567), xgboost 3; simfl 1+cd, xgboost 3"
    )
    assert stamp([]) == ""


def test_a_commit_that_looks_like_a_number_stays_a_commit(tmp_path):
    write_csv(tmp_path / "x.csv", [{"commit": "12e4567", "auc": 0.5}])
    assert read_csv(tmp_path / "x.csv") == [{"commit": "12e4567", "auc": 0.5}]


def test_every_commit_that_a_page_names_is_in_the_history():
    def git(*words):
        program = shutil.which("git") or "git"
        return subprocess.run([program, *words], cwd=pages.cells.ROOT, capture_output=True, text=True, check=False)

    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("this is no checkout with its history")
    every = [page.read_text() for page in pages.RESULTS.parent.rglob("*.md")]
    named = {commit for text in every for commit in re.findall(r"commit ([0-9a-f]{7,})\b", text)}
    assert named
    assert [commit for commit in sorted(named) if git("merge-base", "--is-ancestor", commit, "HEAD").returncode] == []
