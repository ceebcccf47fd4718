"""The published tables: splits as published, measures worked out by hand, verdicts that can go either way."""

import csv

import numpy as np
import pytest

import simfl
from benchmarks import pages
from benchmarks.published import __main__ as published
from benchmarks.published import measure, page, pictures, private, tables, timberstrike
from benchmarks.published.estimates import Estimate, Found
from benchmarks.published.figures import FEDXGBLLR, MADDOCK, PUBLISHED, TIMBERSTRIKE
from benchmarks.published.measure import MEAN, POOLED

NEVER = np.inf


def test_concordance_counts_the_pairs_whose_order_is_known():
    times = np.array([[1.0, 1.0], [2.0, 2.0], [2.0, NEVER], [4.0, NEVER]])
    # Known: 1 before the three others, the death at 2 before both who live. Unknown: the last two.
    assert measure.concordance(times, np.array([1.0, 2.0, 3.0, 4.0])) == 1.0
    assert measure.concordance(times, np.array([4.0, 3.0, 2.0, 1.0])) == 0.0
    assert measure.concordance(times, np.zeros(4)) == 0.5
    assert measure.concordance(times, np.array([1.0, 3.0, 2.0, 4.0])) == 4 / 5


def test_concordance_of_nothing_known_is_no_number():
    assert np.isnan(measure.concordance(np.array([[1.0, NEVER], [2.0, NEVER]]), np.array([1.0, 2.0])))


def test_heart_is_split_as_flamby_does(shared_data):
    shared_data("published/heart/cleveland.csv")
    found = tables.study(tables.HEART)
    assert [len(found.train[name][1]) + len(found.test[name][1]) for name in PUBLISHED[tables.HEART].centres] == [
        *(303, 261, 46, 130)
    ]
    assert {X.shape[1] for X, _ in found.train.values()} == {13}
    assert not any(X.isna().to_numpy().any() for X, _ in (*found.train.values(), *found.test.values()))


def test_with_all_columns_nobody_is_left_out():
    found = tables.study(tables.HEART_WHOLE)
    assert sum(len(y) for _, y in (*found.train.values(), *found.test.values())) == 920


def test_no_test_row_of_unifed_is_trained_on(shared_data):
    shared_data("published/unified/breast_homo_test.csv.gz")
    for name in tables.UNIFED:
        found = tables.study(name)
        training = {row.tobytes() for X, _ in found.train.values() for row in X.to_numpy()}
        tested = [row.tobytes() for row in found.test[tables.ALL][0].to_numpy()]
        assert np.mean([row in training for row in tested]) < 0.05, name  # of student and credit, some people are alike


def test_clients_share_out_all_training_rows(shared_data):
    shared_data("ijcnn1_train.npz")
    found = tables.study("ijcnn1", clients=5, seed=1)
    sizes = [len(y) for _, y in found.train.values()]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) + len(found.test[tables.ALL][1]) == 49_990


def test_solo_is_scored_on_its_own_centre():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2)).astype(np.float32)
    y = (X[:, 0] > 0).astype(np.int64)
    turned = tables.Study({}, {"a": (X, y), "b": (X, 1 - y)}, "binary:logistic")
    parties = [simfl.Party("a", X, y), simfl.Party("b", X, 1 - y)]
    trained = measure.models(measure.SOLO, parties, {"n_trees": 20, "objective": "binary:logistic"})
    found = measure.score(trained, turned, "accuracy")
    assert found["a"] > 0.9
    assert found["b"] > 0.9
    assert found[POOLED] == pytest.approx(0.5)  # each is wrong on the other's rows
    assert found["pooled_sd"] >= 0


def test_a_verdict_goes_by_the_interval():
    assert Estimate(0.80, 0.01).against(0.70) == "better"
    assert Estimate(0.80, 0.20).against(0.70) == "level"
    assert Estimate(0.60, 0.01).against(0.70) == "worse"
    assert Estimate(0.60, 0.01).against(0.70, lower_is_better=True) == "better"


def test_the_interval_covers_seeds_and_test_rows():
    rows = [{"data": "student", "seed": s, "method": "joint", POOLED: 20.0 + s, "pooled_sd": 2.0} for s in (0, 1, 2)]
    got = Found(rows).estimate(data="student")
    assert got.mean == 21
    assert got.half == pytest.approx(1.97 * np.sqrt(1 / 3 + 4), rel=0.01)  # test rows decide


def test_where_few_seeds_decide_the_interval_is_students():
    rows = [{"data": "a9a", "seed": s, "method": "joint", POOLED: 0.8 + s / 100, "pooled_sd": 0.0} for s in (0, 1)]
    assert Found(rows).estimate(data="a9a").half == pytest.approx(12.7 * 0.005, rel=0.01)


def test_a_cell_is_measured_and_kept_by_what_the_method_does():
    cell = {"data": tables.HEART_WHOLE, "settings": "stopped", "clients": 0, "method": "joint", "seed": 0}
    found = measure.measured(cell | {"quick": True})
    assert {POOLED, MEAN, "cleveland", "mean_sd", "trees", "code", "date"} <= found.keys()
    assert 0.5 < found[MEAN] <= 1
    assert found["trees"] <= measure.QUICK_TREES


def test_the_committed_page_is_what_its_figures_make(tmp_path, shared_data):
    """So nobody writes a figure into the page by hand. After private.json or attacks.json changed: `--draw`."""
    shared_data("published/heart/cleveland.csv")
    page.write(pages.read_csv(pages.RESULTS / "published.csv"), tmp_path, {})
    made, kept = (home / "published.md" for home in (tmp_path, pages.RESULTS))
    assert made.read_text() == kept.read_text()


def test_no_interval_of_a_share_is_drawn_beyond_one():
    rows = [
        {"data": "breast", "settings": "published", "method": "joint", "seed": s, POOLED: 0.99, "pooled_sd": 0.02}
        for s in (0, 1)
    ]
    axis = pictures.pyplot().subplots()[1]
    pictures._tables_panel(axis, Found(rows), ("breast", POOLED))
    drawn = [point for part in axis.collections for path in part.get_paths() for point in path.vertices[:, 0]]
    assert max(drawn) == 1.0
    assert axis.get_xlim()[1] == 1.0


def test_what_an_outsider_gets_counts_with_epsilon_too():
    one = {"data": "diabetes", "guess": 0.4, "rows": 9}
    outside = {"knows": "Whoever has the model and knows the range of each column", "sees": "outsider"}
    inside = {"knows": "A party that has the model", "sees": "other party"}
    entries = [
        one | {"model": "XGBoost, pooled", "knows": "ranges", "sees": "values and sum_hessian", "success": 0.7},
        one | {"model": "XGBoost, pooled", "knows": "ranges", "sees": "values alone", "success": 0.9},
        one | outside | {"model": "joint", "success": 0.5},
        one | inside | {"model": "joint", "success": 0.8},
        one | outside | {"model": "joint, epsilon 10", "success": 0.62, "leaves": 4800},
        one | outside | {"model": "joint, epsilon 10", "success": 0.48, "leaves": 720, "trees": 90},
    ]
    points = {timberstrike.name(e): timberstrike.points(entries, timberstrike.name(e), "diabetes") for e in entries}
    assert points == pytest.approx(
        {
            "XGBoost, pooled, with node statistics": 30,
            "XGBoost, pooled, leaf values alone": 50,
            "SimFL, joint": 10,
            "SimFL, joint, epsilon 10": 22,
        }
    )
    told = timberstrike.verdict(entries)
    assert "gets more than from the same recipe without: 22.0 after 10.0." in told
    assert "4,800 leaves, and each is an equation; by 90 of them, with 720 leaves as without epsilon" in told
    assert "the attack gets 8.0 after 10.0. " in told
    entries[-2]["success"] = 0.45  # less than without
    assert "gets more" not in timberstrike.verdict(entries)


def test_private_training_is_held_against_training_alone():
    one = {"data": "bank", "seed": 0}
    aucs = {0.3: 0.6, 1.0: 0.75, 10.0: 0.79}
    entries = [one | {"method": "joint", "epsilon": e, "colluding": 3, "auc": auc} for e, auc in aucs.items()]
    entries += [one | {"method": "joint", "epsilon": 1.0, "colluding": 0, "auc": 0.69}]
    entries += [one | {"method": "SOLO", "auc": 0.7}]
    told = "bank, nobody trusted, from epsilon 1 on; bank, parties trusted, at no epsilon here."
    assert private.beside_solo(entries).endswith(told)


def test_epsilon_has_students_interval_over_seeds():
    entries = [
        {"data": "bank", "method": "joint", "epsilon": 1.0, "colluding": 0, "seed": s, "auc": 0.76 + s / 100}
        for s in (0, 1, 2)
    ]
    got = private.at(entries, "bank", 1.0, 0)
    assert got.mean == pytest.approx(0.77)
    assert got.half == pytest.approx(4.303 * 0.01 / np.sqrt(3), rel=1e-3)
    assert private.at(entries, "bank", 1.0, 3) is None


def test_every_published_figure_is_in_the_committed_page():
    text = (pages.RESULTS / "published.md").read_text()
    for figures in PUBLISHED.values():
        for line in figures.lines:
            assert f"{line.scores[POOLED]:.{figures.digits}f}" in text
    assert all(f"{value:.4f}" in text for published, _ in FEDXGBLLR.values() for value in published.values())
    assert all(f"| {high:.1f} |" in text for rates in TIMBERSTRIKE.values() for _, high in rates.values())
    assert all(f"| {value:.3f} |" in text for at in MADDOCK.values() for value in at.values())


def test_numbers_of_a_csv_are_numbers_again(tmp_path):
    pages.write_csv(tmp_path / "a.csv", [{"data": "x", "seed": 1, "value": 0.5}, {"data": "y"}])
    assert pages.read_csv(tmp_path / "a.csv") == [{"data": "x", "seed": 1, "value": 0.5}, {"data": "y"}]
    with (tmp_path / "a.csv").open() as file:
        assert len(list(csv.reader(file))) == 3


def test_tables_that_are_not_measured_now_keep_their_place(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "missing", lambda name: "no file" if name == "student" else None)
    path = tmp_path / "published.csv"
    pages.write_csv(path, [{"data": name, "pooled": 0.5} for name in ("heart", "breast", "student")])
    kept = published._others(path, ["breast", "student"])
    assert [row["data"] for row in kept] == ["heart", "student"]  # measured now: breast alone
    assert published._others(tmp_path / "none.csv", ["breast"]) == []
