"""Runs the Python blocks of README.md and docs/*.md as tests, and keeps idle threads of all tests from spinning."""

import os
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

# XGBoost's threads spin while they wait for each other. Where tests run beside each other that takes most of the time.
# Read when XGBoost is loaded, also in the processes that tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

collect_ignore_glob = ["benchmarks/peers/drive_*.py"]  # they run in the peers' own environments


@pytest.fixture(scope="module")
def in_a_folder_of_its_own(tmp_path_factory):
    """What the examples write must not stay in the project."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("docs"))
    yield
    os.chdir(before)


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["*.md"],
    fixtures=["in_a_folder_of_its_own"],
).pytest()
