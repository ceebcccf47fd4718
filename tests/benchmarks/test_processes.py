"""The figures of docs/speed.md are those that were measured."""

import json
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from benchmarks.processes import row

DOCS = Path(__file__).parents[2] / "docs"


def test_the_rows_on_the_page_are_those_that_were_measured():
    page = (DOCS / "speed.md").read_text()
    for found in json.loads((DOCS / "results" / "processes.json").read_text()):
        if found["parties"] != 4:  # the slow party: in words
            assert row(found) in page
