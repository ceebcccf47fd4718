import doctest
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import simfl
from simfl import baselines, datasets, estimator, model, params, partition, party
from simfl.data import files

NAMES = {
    "Callback",
    "Model",
    "Party",
    "Preparation",
    "SimFLClassifier",
    "SimFLError",
    "SimFLRegressor",
    "SimFLSurvival",
    "baselines",
    "datasets",
    "load",
    "partition",
    "prepare",
    "survival_bounds",
    "train",
}


def test_the_public_names_are_these():
    assert set(simfl.__all__) == NAMES
    assert all(hasattr(simfl, name) for name in NAMES)
    assert simfl.__all__ == sorted(simfl.__all__)


def test_public_names_and_modules_are_there_without_an_import_of_their_own():
    code = "from simfl import *; import simfl; print(Party is simfl.party.Party, train is simfl.federation.train)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
    assert set(dir(simfl)) == {*NAMES, "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'Partie'"):
        simfl.Partie  # noqa: B018


def test_the_readme_uses_public_names_only():
    text = (Path(__file__).parent.parent / "README.md").read_text()
    used = set(re.findall(r"\bsimfl\.([A-Za-z_]+)\b", text)) - {"csv", "ubj", "json", "py"}
    modules = {path.stem for path in Path(simfl.__file__).parent.iterdir()}
    assert used <= NAMES | modules


def public_modules():
    yield from (simfl, baselines, datasets, partition, files, params, estimator)
    for room in (model, party):
        yield from (m for _, m in inspect.getmembers(room, inspect.ismodule) if m.__name__.startswith(room.__name__))


def public_things():
    for module in public_modules():
        for name, thing in inspect.getmembers(module):
            ours = getattr(thing, "__module__", "").startswith("simfl")
            if not name.startswith("_") and ours and (inspect.isclass(thing) or inspect.isfunction(thing)):
                yield f"{thing.__module__}.{name}", thing


@pytest.mark.parametrize(("name", "thing"), dict(public_things()).items())
def test_every_public_name_is_described(name, thing):
    assert inspect.getdoc(thing), name
    if inspect.isclass(thing):
        for own, method in vars(thing).items():
            if inspect.isfunction(method) and not own.startswith("_"):
                assert inspect.getdoc(getattr(thing, own)), f"{name}.{own}"


@pytest.mark.parametrize("door", ["train", "prepare", "load", "Party", "SimFLClassifier", "SimFLRegressor"])
def test_every_door_has_an_example(door):
    found = doctest.DocTestFinder(recurse=False).find(getattr(simfl, door), door)
    assert any(test.examples for test in found)
