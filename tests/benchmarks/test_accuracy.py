"""The picture of the gain: its figures are in a file, in the tables of the recipes, and in the picture itself."""

import re

import pytest
from PIL import Image

from benchmarks import accuracy, pages

RECIPES = pages.RESULTS.parent / "recipes.md"
IN_TABLES = {"no guard": "joint, no guard"}


def tables_of_the_recipes() -> list[tuple[str, int, str, str]]:
    """Data, parties, method and loss, from the tables that the record is of."""
    found, parties, heads = [], 0, []
    for line in RECIPES.read_text().split("In these tables the held-out rows choose")[0].splitlines():
        name, *cells = [cell.strip().strip("*") for cell in line.strip("|").split("|")]
        if told := re.match(r"(\d+) parties$", name):
            parties, heads = int(told.group(1)), cells
        elif line.startswith("| "):
            told = zip(heads, cells, strict=True)
            found += [(name, parties, IN_TABLES.get(head, head), loss) for head, loss in told if "trees" not in head]
    return found


def test_the_record_of_the_recipes_is_what_their_tables_say():
    record = {tuple(row[name] for name in accuracy.KEY): row for row in pages.read_csv(accuracy.RECORD)}
    told = tables_of_the_recipes()
    assert len(told) == 2 * 5 * (5 + 4)
    for *key, loss in told:
        assert accuracy.words(record[tuple(key)]) == loss, key


def test_the_recipes_say_when_and_with_what_their_tables_were_measured():
    told = RECIPES.read_text()
    for row in pages.read_csv(accuracy.RECORD):
        assert f"{row['date']} (commit {row['commit']})" in told, row["method"]


def test_the_picture_of_the_gain_shows_the_record():
    shown = dict(part.split(": ") for part in Image.open(accuracy.PICTURE).text["Description"].split("; "))
    rows = [row for row in pages.read_csv(accuracy.RECORD) if row["parties"] == accuracy.DRAWN_PARTIES]
    drawn = {f"{row['data']}, {row['method']}": accuracy.words(row) for row in rows if row["method"] in accuracy.DRAWN}
    assert shown == drawn


def test_what_is_measured_now_takes_the_place_of_what_was():
    earlier = [{"data": "a9a", "parties": 2, "method": method, "logloss": 0.5} for method in ("SOLO", "joint")]
    now = {"data": "a9a", "parties": 2, "method": "joint", "commit": "1234567", "date": "2026-11-16"}
    curves = [now | {"seed": s, "curve": [0.5, 0.4 - s / 10]} for s in (0, 1)]
    solo, joint = accuracy.recorded(curves, earlier)
    assert solo == earlier[0]
    assert joint["logloss"] == pytest.approx(0.35)
    assert joint["seeds"] == 2
    assert (joint["commit"], joint["date"]) == ("1234567", "2026-11-16")
