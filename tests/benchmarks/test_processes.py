"""The page of the processes has the figures that were measured."""

import json
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from benchmarks.pages import RESULTS
from benchmarks.processes import SETTING, arguments, command_of, keep, write_page


def figures() -> list[dict]:
    return json.loads((RESULTS / "processes.json").read_text())


def test_the_page_is_that_of_the_figures(tmp_path: Path):
    write_page(figures(), tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == (RESULTS / "processes.md").read_text()


def test_a_new_figure_takes_the_place_of_the_old_one(tmp_path: Path):
    old, other = figures()[:2]
    for found in (old, other, old | {"seconds_per_tree": 77.77, "measured": "later"}):
        keep(found, tmp_path / "kept.json")
    assert len(json.loads((tmp_path / "kept.json").read_text())) == 2
    page = (tmp_path / "kept.md").read_text()
    assert "| 77.77 |" in page
    assert "later" in page


@pytest.mark.parametrize("found", figures(), ids=lambda found: command_of(found).partition(" --")[2])
def test_the_page_names_the_command_that_measures_a_figure(found):
    given = vars(arguments().parse_args(command_of(found).split()[3:]))
    assert given["keep"]
    assert found["parties"] in given.pop("parties")
    assert [found["recipe"]] == given.pop("recipes")
    assert {name: given[name] for name in (*SETTING, "trees") if name in given} == {
        name: found[name] for name in (*SETTING, "trees") if name in given
    }
