"""The wheel as others get it: built from the source distribution, in an environment of its own, and tried there.

The dependencies are those of this environment. What the package itself brings comes from the wheel alone.
"""

import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from email.parser import Parser
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


# --- extras ----------------------------------------------------------------------------------------------------------

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
NOT_INSTALLED = {"nvidia-nccl-cu12", "nvidia-nccl-cu13"}  # XGBoost's library for several GPUs: the locks leave it out


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def missing(wanted):
    """What does not fit in this environment: the requirements, what they require in turn, and what is here instead."""
    found, seen, queue = set(), set(), list(wanted)
    while queue:
        requirement = queue.pop()
        name = canonical(requirement.name)
        try:
            here = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            found |= {f"{requirement}: not here"} if name not in NOT_INSTALLED else set()
            continue
        if not requirement.specifier.contains(here.version, prereleases=True):
            found.add(f"{requirement}: {here.version}")
        for extra in {"", *requirement.extras} - {known for other, known in seen if other == name}:
            seen.add((name, extra))
            needed = map(Requirement, here.requires or [])
            queue += [one for one in needed if one.marker is None or one.marker.evaluate({"extra": extra})]
    return sorted(found)


def test_what_is_missing_is_found():
    wanted = [Requirement(text) for text in ("numpy<1", "nowhere-to-be-found>=3", "pytest>=8")]
    assert missing(wanted) == ["nowhere-to-be-found>=3: not here", f"numpy<1: {metadata.version('numpy')}"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_and_all_that_it_brings_fit_together_here(extra):
    assert missing(map(Requirement, [*PROJECT["dependencies"], *EXTRAS[extra]])) == []


@pytest.mark.parametrize("python", ["3.11.7", "3.12.1", "3.13.0"])
@pytest.mark.parametrize("extra", EXTRAS)
def test_the_lock_has_every_extra_for_every_python(extra, python):
    here = {"python_full_version": python, "python_version": python.rpartition(".")[0]}
    pinned = {}
    for line in re.findall(r"^[a-z0-9][^\\\n]*", (ROOT / "requirements.lock").read_text(), re.MULTILINE):
        pin = Requirement(line.strip())
        if pin.marker is None or pin.marker.evaluate(here):
            pinned[pin.name] = next(iter(pin.specifier)).version
    for requirement in map(Requirement, [*EXTRAS[extra], *PROJECT["dependencies"]]):
        assert requirement.specifier.contains(pinned[canonical(requirement.name)], prereleases=True), requirement


def test_the_wheel_offers_the_extras_of_the_project_with_all_that_they_ask_for(wheel):
    with zipfile.ZipFile(wheel) as packed:
        [name] = [n for n in packed.namelist() if n.endswith(".dist-info/METADATA")]
        offered = Parser().parsestr(packed.read(name).decode())
    assert set(offered.get_all("Provides-Extra")) == EXTRAS.keys()
    found = {extra: set() for extra in ["", *EXTRAS]}
    for requirement in map(Requirement, offered.get_all("Requires-Dist")):
        extra = re.search(r"extra == [\"'](.+)[\"']", str(requirement.marker))
        requirement.marker = None
        found[extra[1] if extra else ""].add(str(requirement))
    wanted = EXTRAS | {"": PROJECT["dependencies"]}
    assert found == {extra: {str(Requirement(text)) for text in texts} for extra, texts in wanted.items()}


def texts_that_name_extras():
    """Everything that tells people what to install: documentation, templates, messages, commands."""
    for place in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "docs", "examples", "simfl", ".ci"):
        path = ROOT / place
        for file in [path] if path.is_file() else path.rglob("*"):
            if (
                file.suffix in (".md", ".py", ".toml", ".ipynb", ".jinja", ".yaml", ".yml", ".service", "")
                and file.is_file()
            ):
                yield file, file.read_text(errors="replace")


def test_only_extras_that_exist_are_named():
    named = {
        (extra, str(file.relative_to(ROOT)))
        for file, text in texts_that_name_extras()
        for listed in re.findall(r"(?:simfl|[\"' ]\.)\\?\[([a-z]+(?:,[a-z]+)*)\]", text)
        for extra in listed.split(",")
    }
    assert {extra for extra, _ in named} >= {"flare", "sql", "onnx", "dp", "mlflow"}
    assert {(extra, file) for extra, file in named if extra not in EXTRAS} == set()
