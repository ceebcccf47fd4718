import json

import pytest

from benchmarks import accuracy, bench, speed
from benchmarks.pages import RESULTS


def test_the_page_of_speed_is_what_its_figures_make():
    """So nobody writes a figure into the page by hand. The second paragraph tells date and versions."""
    kept = (RESULTS / "speed.md").read_text().split("\n\n")
    made = bench.page(json.loads((RESULTS / "speed.json").read_text())).text.split("\n\n")
    assert kept[2:] == made[2:]


def test_bins_and_words_are_measured():
    fine = speed.bins("SUSY-like", 1000, n_trees=10)
    assert 0 < fine["256_logloss"] < 0.69
    assert 0 < fine["64_logloss"] < 0.69
    assert fine["256_logloss"] != fine["64_logloss"]
    text = speed.words(3000, n_trees=2)
    assert text["dense_bytes"] == 3000 * 20_000 * 4
    assert text["extra_peak_bytes"] < text["dense_bytes"]
    found = {"bins": [fine], "sparse": [text]}
    assert [len(rows(found)) for rows in (bench._bins, bench._sparse)] == [2, 2]


def test_the_part_of_xgboost_is_within_the_time_of_growing():
    told = speed.profile("SUSY-like", 1000, n_trees=10)["thread_seconds_per_tree"]
    assert 0 < told["XGBoost"] < told["Grow"]


def test_every_measurement_of_bench_is_one_that_exists():
    for words, _ in bench.COMMANDS.values():
        assert words[0] != "benchmarks.speed" or words[1] in speed.WORK


def test_one_change_at_a_time_stands_beside_the_default_recipe():
    curves = {"default": [0.5, 0.4, 0.6], "rematch=0": [0.5, 0.45, 0.44]}
    results = [{"data": "a9a", "parties": 2, "seed": 0, "method": m, "curve": c} for m, c in curves.items()]
    shown = accuracy.show_each(results, [2], ["rematch=0"])
    assert [list(column.cells) for column in shown.columns] == [["default", "rematch=0"], ["0.4000", "0.4400"]]


@pytest.mark.parametrize(("written", "meant"), [("rematch=0", 0), ('cuts="shared"', "shared"), ("epsilon=1.5", 1.5)])
def test_a_parameter_on_the_command_line_is_json(written, meant):
    assert list(accuracy.parsed([written]).values()) == [meant]
