"""The wheel as others get it: built from the source distribution, in an environment of its own, and tried there.

The dependencies are those of this environment. What the package itself brings comes from the wheel alone.
"""

import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from tests.conftest import ROOT

SMOKE = """
import pathlib, sys
import simfl
from simfl.report import page
from simfl.simulate import experiment

assert pathlib.Path(simfl.__file__).is_relative_to(sys.prefix), simfl.__file__
tables = simfl.datasets.heart()
parties = [simfl.Party(name, t.drop(columns="disease"), t["disease"]) for name, t in tables.items()]
# One party, so that little is compiled: this environment has no machine code yet.
model = simfl.train(parties[:1], n_trees=2, random_state=0, callbacks=[])
model.save("m.ubj")
assert (simfl.load("m.ubj").predict(tables["budapest"]) == model.predict(tables["budapest"])).all()
import importlib.resources as resources
for home, name in (("simfl.report", "templates/report.html.jinja"), ("simfl.audit", "templates/audit.html.jinja"),
                   ("simfl.deploy", "templates/study.toml"), ("simfl", "py.typed")):
    assert resources.files(home).joinpath(name).is_file(), name
print("fine")
"""


def build(what, source, folder):
    words = [sys.executable, "-m", "hatchling", "build", "-t", what, "-d", str(folder)]
    subprocess.run(words, cwd=source, check=True, capture_output=True)
    [made] = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from the unpacked source distribution: so that it holds all that is needed."""
    home = tmp_path_factory.mktemp("built")
    sdist = build("sdist", ROOT, home / "sdist")
    with tarfile.open(sdist) as packed:
        packed.extractall(home / "source", filter="data")
    [source] = (home / "source").iterdir()
    return build("wheel", source, home / "wheel")


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """An environment with the wheel; its Python."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    where = sysconfig.get_path("purelib", "venv", vars={"base": str(home), "platbase": str(home)})
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(where)  # noqa: S202
    # A path in a .pth file brings the dependencies, but not the editable install of this project.
    (home.joinpath(where) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run(python, *words, folder):
    return subprocess.run(
        [python, *words], cwd=folder, capture_output=True, text=True, check=False, env={"HOME": str(folder)}
    )


def test_the_wheel_trains_saves_and_loads(installed, tmp_path):
    done = run(installed, "-c", SMOKE, folder=tmp_path)
    assert done.stdout.strip().endswith("fine"), done.stderr


def test_the_wheel_brings_the_command(installed, wheel, tmp_path):
    done = run(installed, "-m", "simfl", "--help", folder=tmp_path)
    assert "simulate" in done.stdout, done.stderr
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        [points] = [n for n in names if n.endswith("entry_points.txt")]
        assert "simfl = simfl.cli:main" in packed.read(points).decode()
    assert not [n for n in names if n.startswith(("tests", "benchmarks", "docs"))]


def test_what_every_extra_asks_for_is_at_hand_and_new_enough():
    wanted = [Requirement(text) for text in metadata.requires("simfl") or []]
    extras = {str(r.marker).split('"')[1] for r in wanted if r.marker and "extra" in str(r.marker)}
    assert {"flare", "onnx", "dp"} <= extras
    missing = {}
    for requirement in wanted:
        try:
            here = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            continue  # not in the lock of the tests on this Python
        if not requirement.specifier.contains(here, prereleases=True):
            missing[requirement.name] = here
    assert missing == {}
