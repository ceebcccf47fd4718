"""The locks belong together: the demonstration installs a part of what the tests install, in the same versions."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def pins(name):
    """Per package of a lock, its entries with versions and hashes. Markers may differ: they say who needs it."""
    found, text = {}, re.sub(r" ; .*(?= \\)", "", (ROOT / name).read_text())
    for entry in re.split(r"\n(?=\S)", text.strip()):
        found.setdefault(entry.split("==")[0], set()).add(entry)
    return found


def names(requirements):
    return {re.match(r"[A-Za-z0-9._-]+", requirement)[0].lower() for requirement in requirements}


def test_the_demonstration_has_the_versions_of_the_tests_and_less_of_them():
    demo, everything = pins("requirements-demo.lock"), pins("requirements.lock")
    assert {name: entries for name, entries in everything.items() if name in demo} == demo
    assert len(demo) < len(everything) / 2


def test_the_demonstration_has_what_the_package_needs_and_nothing_of_development():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    demo = pins("requirements-demo.lock").keys()
    assert names(project["project"]["dependencies"]) <= demo
    development = names(project["project"]["optional-dependencies"]["dev"]) - names(
        project["dependency-groups"]["demo"]
    )
    assert not development & demo


def test_the_image_has_what_its_roles_need_in_the_versions_of_the_tests():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    image, everything = pins("requirements-image.lock"), pins("requirements.lock")
    assert {name: entries for name, entries in everything.items() if name in image}.items() <= image.items()
    wanted = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in ("flare", "sql", "dp"))]
    assert {name for requirements in wanted for name in names(requirements)} <= image.keys()
    assert not {"pytest", "mypy", "ruff", "mkdocs-material", "playwright"} & image.keys()
