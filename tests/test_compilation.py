"""The first training after an install compiles, and says so; the command line loads nothing heavy before it must."""

import subprocess
import sys

import numpy as np
import pytest
from numba import njit

from simfl.callbacks import telling_of_compilation

HEAVY = (
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
    "sklearn",
    "numba",
    "xgboost",
    "altair",
    "vl_convert",
    "jinja2",
    "cryptography",
)
COMMAND = "import sys; sys.argv = ['simfl', *{!r}]\nfrom simfl.cli import main\ntry: main()\nexcept SystemExit: pass"


def loaded(code):
    """The heavy modules that a program has loaded at its end."""
    report = f"\nimport sys; print('LOADED', *(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    return done.stdout.split("LOADED")[-1].split()


def test_one_word_is_said_when_something_is_compiled_and_none_when_nothing_is():
    said = []

    @njit
    def double(x):
        return 2 * x

    with telling_of_compilation(lambda: said.append("compiling")):
        double(1)
        double(1.0)
    assert said == ["compiling"]
    with telling_of_compilation(lambda: said.append("again")):
        double(np.int64(2))
    assert said == ["compiling"]


@pytest.mark.parametrize("command", ["--help", "simulate --help", "train --help", "--version"])
def test_help_loads_nothing_heavy(command):
    assert loaded(COMMAND.format(command.split())) == []


@pytest.mark.parametrize("command", ["simulate", "audit"])
def test_a_typo_in_the_label_is_refused_before_anything_heavy_is_loaded(tmp_path, command):
    (tmp_path / "t.csv").write_text("age,sick\n1,0\n")
    words = [command, str(tmp_path / "t.csv"), "--label", "sikc"]
    assert loaded(COMMAND.format(words)) == []


def test_import_simfl_loads_nothing_heavy():
    assert loaded("import simfl") == []


def test_training_loads_nothing_of_the_report():
    code = (
        "import numpy as np, simfl\nX = np.arange(40.0).reshape(20, 2)\n"
        "simfl.train([simfl.Party('a', X, X[:, 0] > 9)], n_trees=1, callbacks=[])"
    )
    assert not {"altair", "vl_convert", "jinja2"} & set(loaded(code))
