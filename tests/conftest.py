"""What several tests share: small parties, and the way to the real data."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from sklearn.datasets import load_breast_cancer

import simfl
from simfl import cli

ROOT = Path(__file__).parent.parent

settings.register_profile("simfl", deadline=None)  # the first call of a kernel compiles it
settings.load_profile("simfl")


@pytest.fixture(scope="session")
def shared_data():
    """Find a data set by the name of its file; skip where it is missing."""
    folder = Path(os.environ.get("SIMFL_DATA", ROOT.parent / "shared" / "data"))

    def find(name):
        path = folder / name
        if not path.exists():
            pytest.skip(f"{name} is not in {folder}. Set SIMFL_DATA to the folder that has it.")
        return path

    return find


@pytest.fixture
def simfl_command(monkeypatch, tmp_path):
    """The command, through its own entry point, in this process and a folder of its own; gives the exit status."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["simfl", *map(str, words)])
        try:
            cli.main()
        except SystemExit as end:
            return end.code or 0
        return 0

    return call


@pytest.fixture(scope="session")
def hospitals():
    """Breast cancer data in four skewed parties."""
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    parts = simfl.partition.unbalanced(y, 4, theta=0.8, seed=0)
    names = ("north", "east", "south", "west")
    return [simfl.Party(n, X.iloc[rows], y.iloc[rows]) for n, rows in zip(names, parts, strict=True)]


@pytest.fixture(scope="session")
def table():
    """Sixty rows, five features."""
    return np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)


@pytest.fixture(scope="session")
def labels(table):
    """0 or 1, from the first two features."""
    return (table[:, 0] + 0.5 * table[:, 1] > 0).astype(int)


@pytest.fixture
def halves(table, labels):
    """The sixty rows at two parties."""
    return [simfl.Party("a", table[:30], labels[:30]), simfl.Party("b", table[30:], labels[30:])]


@pytest.fixture
def identities():
    """Certificates of one project, by name."""
    from tests.privacy.authority import Project

    return Project().identity
