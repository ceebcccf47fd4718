"""The first training after an install compiles, and says so; the command line loads nothing heavy before it must."""

import os
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


FIRST = """
import sys, simfl, numba
from numba.core import event
from sklearn.datasets import load_breast_cancer
class Listener(event.Listener):
    def on_start(self, told): pass
    def on_end(self, told):
        own = told.data["dispatcher"].py_func
        if own.__module__.startswith("simfl"): print("COMPILED", own.__module__ + "." + own.__name__)
        else: print("LIBRARY", own.__module__)
X, y = load_breast_cancer(return_X_y=True)
parties = [simfl.Party(name, X[i::4], y[i::4]) for i, name in enumerate("abcd")]
with event.install_listener("numba:compile", Listener()):
    simfl.train(parties, n_trees=60, max_depth=3, random_state=0, callbacks=[], recipe=sys.argv[1])
"""


def first_training(recipe, folder, most_of_libraries=0):
    """The functions that the first training on a small table compiles, kernels and what they call."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder)}  # nothing in it yet
    command = [sys.executable, "-c", FIRST, recipe]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    n_of_libraries = done.stdout.count("LIBRARY")
    assert n_of_libraries <= most_of_libraries, "NumPy's functions inside kernels are compiled, too: write plain loops"
    compiled = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("COMPILED")]
    assert len(compiled) == len(set(compiled)), "one kind of array for each kernel, and no number that is written out"
    return compiled


def test_the_first_training_on_a_small_table_compiles_little_and_nothing_twice(tmp_path):
    compiled = first_training("similar", tmp_path)
    assert "simfl.training.traversal._descend" in compiled
    assert len(compiled) <= 18
    assert not [name for name in compiled if "preprocessing" in name], "few rows are compared in NumPy"


def test_the_first_joint_training_on_a_small_table_compiles_what_it_needs_and_nothing_twice(tmp_path):
    compiled = first_training("joint", tmp_path, most_of_libraries=11)  # dense rows' kernels have room of their own
    assert "simfl.joint._dense.sum_cells" in compiled
    assert len(compiled) <= 62
    assert not [name for name in compiled if "_sparse" in name]
    assert "simfl.joint.candidates._count_levels" not in compiled, "there is no category"


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


@pytest.mark.parametrize("command", ["simulate", "audit"])
def test_a_typo_in_the_label_is_refused_before_anything_heavy_is_loaded(tmp_path, command):
    (tmp_path / "t.csv").write_text("age,sick\n1,0\n")
    words = [command, str(tmp_path / "t.csv"), "--label", "sikc"]
    assert loaded(COMMAND.format(words)) == []


def test_training_loads_nothing_of_the_report():
    code = (
        "import numpy as np, simfl\nX = np.arange(40.0).reshape(20, 2)\n"
        "simfl.train([simfl.Party('a', X, X[:, 0] > 9)], n_trees=1, callbacks=[])"
    )
    assert not {"altair", "vl_convert", "jinja2"} & set(loaded(code))
