import json

import numpy as np
import pytest

from benchmarks import accuracy, bench, joint_speed, speed
from benchmarks.pages import RESULTS


def test_the_page_of_speed_is_what_its_figures_make():
    """So nobody writes a figure into the page by hand. The second paragraph tells date and versions."""
    kept = (RESULTS / "speed.md").read_text().split("\n\n")
    made = bench.page(json.loads((RESULTS / "speed.json").read_text())).text.split("\n\n")
    assert kept[2:] == made[2:]


def test_bins_and_words_are_measured():
    fine = speed.bins("SUSY-like", 1000, n_trees=10, repeats=1)
    assert 0 < fine["256_logloss"] < 0.69
    assert 0 < fine["64_logloss"] < 0.69
    assert fine["256_logloss"] != fine["64_logloss"]
    text = speed.words(3000, n_trees=2)
    assert text["dense_bytes"] == 3000 * 20_000 * 4
    assert text["extra_peak_bytes"] < text["dense_bytes"]
    found = {"bins": [fine], "sparse": [text]}
    assert [len(rows(found)) for rows in (bench._bins, bench._sparse)] == [2, 2]


@pytest.mark.parametrize("options", [{"max_candidates": 50, "rematch": 0}, {"recipe": "joint"}])
def test_both_stages_are_measured_in_one_process(options):
    found = speed.both("SUSY-like", 2000, n_trees=8, **options)
    assert found["data_bytes"] == 2000 * 18 * 4
    assert found["peak_bytes"] > found["data_bytes"]
    assert found["extra_peak_over_data"]["prepare"] <= found["extra_peak_over_data"]["train"]
    assert 0 < found["seconds_per_tree"] < found["train_seconds"]
    (_, row) = bench._ten_million({"ten-million": [found]})
    assert row[:2] == ["2,000 SUSY-like", "similar, 2,000 candidates"]


def test_growing_itself_is_within_the_time_of_the_question():
    told = speed.profile("SUSY-like", 1000, n_trees=10)["thread_seconds_per_tree"]
    assert 0 < told["growing"] < told["Grow"]


def test_a_tree_is_grown_both_ways():
    found = speed.growing(1500, repeats=1)
    assert found["over_xgboost"] == pytest.approx([found["own"] / found["xgboost"]] * 3)
    assert found["leaves"]["own"] == found["leaves"]["xgboost"]
    assert len(bench._growing({"growing": [found]})) == 2


def test_every_measurement_of_bench_is_one_that_exists():
    known = {"benchmarks.speed": speed.WORK, "benchmarks.joint_speed": joint_speed.WORK}
    for words, _ in bench.COMMANDS.values():
        assert words[0] not in known or words[1] in known[words[0]]


def test_all_in_grows_a_tree_for_every_tree_of_the_joint_recipe():
    X, y = joint_speed.interactions(1200, d=5)
    found = joint_speed.side_by_side((X[:1000], y[:1000]), (X[1000:], y[1000:]), depth=3, n_trees=20)
    assert 0 < found["logloss"]["joint"] < 0.72
    assert 0 < found["logloss"]["all_in"] < 0.69
    assert min(*found["seconds_per_tree"].values(), *found["cpu_seconds_per_tree"].values()) > 0
    assert found["bytes_over_paper"] == pytest.approx(found["bytes_per_tree"] / (8 * (1000 + 7 * 9)))
    assert {len(row) for row in bench._joint({"joint-million": [found | {"function": "interactions"}]})} == {2}
    sizes = [found | {"rows": n, "bytes_per_tree": 7.0 * n**0.5} for n in (100, 400)]
    assert bench._joint_growth({"joint-growth": sizes})[2][-1] == "0.50"


def test_the_time_of_a_batch_is_that_of_all_its_trees():
    """The first batch is not counted, and neither are the trees of one that is smaller than the others."""
    pairs = [joint_speed.Pair(float(i), 1.0, 0.0, 0.0) for i in range(10)]
    np.testing.assert_array_equal(joint_speed.batches(pairs, 4), [[4 + 5 + 6 + 7, 4, 0, 0]])


def test_parties_without_two_classes_have_slices_along_the_first_column():
    X, y = np.random.default_rng(0).normal(size=(90, 2)), np.arange(90) % 3
    parts = [X[part, 0] for part in accuracy.parts(X, y, np.arange(90), 3, seed=0)]
    assert [len(part) for part in parts] == [30, 30, 30]
    assert parts[0].max() < parts[1].min()
    assert parts[1].max() < parts[2].min()


def test_pooled_rows_are_trained_on_once_for_all_numbers_of_parties():
    entry = {"data": "a9a", "parties": 10, "seed": 0, "method": "ALL-IN", "curve": [0.5], "seconds": 1.0}
    again = {"data": "a9a", "parties": 2, "seed": 0, "method": "ALL-IN"}
    assert accuracy._pooled_before([entry, again]) == {"curve": [0.5], "seconds": 1.0}
    assert accuracy._pooled_before([entry, again | {"seed": 1}]) is None
    assert accuracy._pooled_before([entry | {"method": "joint"}, again | {"method": "joint"}]) is None


def test_one_change_at_a_time_stands_beside_the_recipe():
    curves = {"similar": [0.5, 0.4, 0.6], "rematch=0": [0.5, 0.45, 0.44]}
    results = [{"data": "a9a", "parties": 2, "seed": 0, "method": m, "curve": c} for m, c in curves.items()]
    shown = accuracy.show_each(results, [2], "similar", ["rematch=0"])
    assert [list(column.cells) for column in shown.columns] == [["similar", "rematch=0"], ["0.4000", "0.4400"]]


@pytest.mark.parametrize(("written", "meant"), [("rematch=0", 0), ('recipe="paper"', "paper"), ("epsilon=1.5", 1.5)])
def test_a_parameter_on_the_command_line_is_json(written, meant):
    assert list(accuracy.parsed([written]).values()) == [meant]
