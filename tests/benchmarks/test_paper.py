import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

import simfl
from benchmarks import cells, pages
from benchmarks.data import PAPER_NAMES
from benchmarks.paper import bound, claims, efficiency, errors, figures, privacy, training, verdict
from benchmarks.paper.kept import Kept
from benchmarks.paper.training import ALL_IN, DEFAULT, PAPER, SOLO, TFL


@pytest.fixture
def small(monkeypatch):
    """Six hundred rows in place of a data set."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 5)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] ** 2 + rng.normal(size=600) > 1).astype(np.int64)
    monkeypatch.setattr(training, "_data", lambda name: (X, y))
    monkeypatch.setattr(efficiency, "load", lambda name: (X, y))
    return X, y


# --- verdicts --------------------------------------------------------------------------------------------------------

errors_of_runs = st.lists(st.floats(0, 1), min_size=2, max_size=8)


@given(st.data())
def test_a_claim_and_its_opposite_cannot_both_hold(data):
    ours = data.draw(errors_of_runs)
    theirs = data.draw(st.lists(st.floats(0, 1), min_size=len(ours), max_size=len(ours)))
    there, back = claims.lower(ours, theirs), claims.lower(theirs, ours)
    assert {there.word, back.word} in ({"holds", "fails"}, {"open"})
    assert there.difference == pytest.approx(-back.difference)


def test_a_difference_smaller_than_its_doubt_is_open():
    assert claims.lower([0.10, 0.12, 0.14], [0.11, 0.11, 0.14]).word == "open"
    assert claims.lower([0.10, 0.12, 0.14], [0.12, 0.14, 0.16]).word == "holds"
    assert claims.near([0.14, 0.15], [0.10, 0.11]).word == "fails"
    assert claims.near([0.11, 0.12], [0.10, 0.11]).word == "holds"


def test_the_papers_own_figures_support_three_claims_and_not_the_fourth():
    told = errors.own_claims(figures.THETA_80)
    assert "SimFL is below both SOLO on 6 of 6, within 2 points of ALL-IN on 6 of 6, below TFL on 6 of 6" in told
    assert "TFL is worse than the better SOLO on 3 of 6" in told  # the text says always


# --- error tables ----------------------------------------------------------------------------------------------------


def test_every_method_of_both_settings_trains_and_scores(small):
    for settings_name, methods in training.METHODS.items():
        for method in methods:
            cell = training.cell("a9a", settings_name, method, "theta 0.8", 2, 0, 8)
            result = training.train(cell)
            assert len(result["error"]) == (2 if method == SOLO else 1)
            assert all(0 < e < 0.5 for e in result["error"])


def test_all_in_is_one_cell_whatever_the_parties():
    one, other = (training.cell("a9a", "paper", ALL_IN, p, m, 0, 5) for p, m in (("theta 0.8", 2), ("balanced", 10)))
    assert one == other


def made_up(plan, error_of):
    """A table whose errors are given, not trained."""
    table = errors.Table(plan, "paper", "theta 0.8", 2)
    table.results = {
        (data, method, run): {"error": error_of(data, method, run)}
        for data in plan.data
        for method in table.methods
        for run in range(plan.runs["paper"])
    }
    return table


@pytest.mark.parametrize(("ours", "verdict"), [(0.1, "holds"), (0.3, "does NOT hold; on average it is above on a9a")])
def test_the_curves_say_whether_simfl_is_below_solo_and_where_tfl_leaves_the_picture(ours, verdict):
    plan = errors.Plan(("a9a",), {"paper": 2})
    errors_by = {training.PAPER: [ours], training.TFL: [0.9], SOLO: [0.2, 0.25], ALL_IN: [0.1]}
    own = {m: made_up(plan, lambda data, method, run: errors_by[method]) for m in (2, 4)}
    assert verdict in errors._lowest_of(own, training.PAPER)
    figure = errors.pyplot().figure()
    axis = figure.subplots()
    errors._keep_others_apart(axis, own, "a9a", [training.PAPER, training.TFL, "best SOLO", ALL_IN])
    assert axis.get_ylim()[1] < 90
    assert [text.get_text() for text in axis.texts] == ["TFL up to 90"]
    errors.pyplot().close(figure)


def test_the_table_takes_means_ranges_and_the_better_party():
    plan = errors.Plan(("a9a",), {"paper": 2, "today": 1})
    given_errors = {PAPER: [[0.15], [0.19]], TFL: [[0.2], [0.25]], SOLO: [[0.19, 0.25]] * 2, ALL_IN: [[0.15]] * 2}
    table = made_up(plan, lambda data, method, run: given_errors[method][run])
    row = errors._errors_row(table, "a9a", figures.THETA_80["a9a"])
    ours, theirs = row[1:-1:2], row[2:-1:2]  # one number per cell, the paper's beside ours
    assert ours == ["17.0", "22.5", "19.0", "25.0", "15.0", "50"]
    assert theirs == ["17.0", "23.1", "19.1", "22.0", "15.1", "52"]
    assert errors._range_row(table, "a9a", figures.THETA_80["a9a"])[1:] == ["15.0", "19.0", "16.7", "17.2"]
    words = {claim: verdict.word for claim, verdict in errors.claims_of(table, PAPER, "a9a").items()}
    assert list(words.values()) == ["open", "open", "holds", "open"]


def test_a_page_is_drawn_again_from_its_csv_and_no_figure_changes(tmp_path, monkeypatch):
    """The committed pages too: nobody writes a figure into them by hand."""
    monkeypatch.setattr(errors.Page, "sources", lambda self, names: None)
    monkeypatch.setattr(errors, "plot_errors", lambda table, printed, path: None)
    monkeypatch.setattr(errors, "star", lambda data: data if data in ("a9a", "cod-rna", "ijcnn1") else f"{data}*")
    monkeypatch.setattr(training, "behaviour", lambda method: "none")
    plan = errors.Plan(PAPER_NAMES, {"paper": 10, "today": 5}, drawn=pages.RESULTS)
    kept = Kept(pages.RESULTS / "errors-theta-0.8.csv")
    errors.errors(plan, "theta 0.8", kept, tmp_path, "python -m benchmarks.paper errors --theta 0.8")
    before, after = (home / "errors-theta-0.8.md" for home in (pages.RESULTS, tmp_path))
    assert before.read_text().split("\n## Data")[0].rstrip() == after.read_text().rstrip()
    assert not kept.path.exists()


def test_the_verdict_counts_every_run_and_names_every_page(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "behaviour", lambda method: "none")
    for file in pages.RESULTS.glob("*"):
        if file.suffix in (".csv", ".md"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    verdict.write(errors.Plan(PAPER_NAMES, {"paper": 1, "today": 1}), tmp_path, "python -m benchmarks.paper verdict")
    text = (tmp_path / "paper.md").read_text()
    assert text == (pages.RESULTS / "paper.md").read_text()
    assert "Table 2, skewed: SimFL is below SOLO (the better party) | holds on 3 of 6, open on 2" in text
    assert all(f"]({name}.md)" in text for name in verdict.PAGES)


def test_a_cell_that_failed_is_in_the_csv_with_its_message():
    plan = errors.Plan(("a9a",), {"paper": 1, "today": 1})
    table = made_up(plan, lambda data, method, run: [0.1])
    table.results["a9a", TFL, 0] = {"failed": "ValueError: no rows"}
    rows = table.rows()
    assert [r["method"] for r in rows if r.get("failed") == "ValueError: no rows"] == [TFL]
    assert np.isnan(table.errors("a9a", TFL)).all()


def test_pages_and_pictures_are_written(tmp_path, small, monkeypatch):
    monkeypatch.setattr(errors.cells, "run", lambda wanted, work, store, title: [store.put(c, work(c)) for c in wanted])
    monkeypatch.setattr(training, "n_trees", lambda settings, data, quick: 2)
    monkeypatch.setattr(errors, "source", lambda name: type("S", (), {"remark": "as in the paper"}))
    monkeypatch.setattr(errors.Page, "sources", lambda self, names: None)
    store = cells.Store(tmp_path / "cells.jsonl")
    plan = errors.Plan(("a9a",), {"paper": 1, "today": 1}, quick=True)
    errors.errors(plan, "theta 0.8", store, tmp_path, "command")
    errors.over_theta(plan, (0.6, 0.8), store, tmp_path, "command")
    errors.over_parties(plan, (2, 4), store, tmp_path, "command")
    text = (tmp_path / "errors-theta-0.8.md").read_text()
    assert "QUICK RUN" in text
    assert "| below TFL |" in text
    assert DEFAULT in text
    for name in ("theta", "parties"):
        assert "below the best SOLO at" in (tmp_path / f"{name}.md").read_text()
        assert (tmp_path / f"{name}.csv").read_text().count("\n") > 10
    pictures = {p.name for p in tmp_path.glob("*.png")}
    assert {"theta-paper.png", "parties-balanced-today.png", "errors-theta-0.8-paper.png"} <= pictures


# --- Theorem 2 -------------------------------------------------------------------------------------------------------


def test_the_left_side_is_the_difference_of_the_two_objectives():
    """Both objectives written out row by row, as in the paper."""
    rng = np.random.default_rng(1)
    f_m, f_others = rng.normal(size=4), rng.normal(size=6)
    similar = rng.integers(0, 4, size=6)
    g_m, g, h_m, h = rng.normal(size=4), rng.normal(size=6), rng.random(4), rng.random(6)
    over_all = sum(g_m * f_m + h_m * f_m**2 / 2) + sum(g * f_others + h * f_others**2 / 2)
    G, H = g_m.copy(), h_m.copy()
    for row, target in enumerate(similar):
        G[target] += g[row]
        H[target] += h[row]
    weighted = sum(G * f_m + H * f_m**2 / 2)
    left, absolute, worst = bound.sides(f_others, f_m[similar], g, h, max(abs(f_m).max(), abs(f_others).max()))
    assert left == pytest.approx(abs(weighted - over_all))
    assert left <= absolute <= 6 * worst


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 40), st.integers(1, 5), st.integers(0, 1000))
def test_the_diameter_is_the_largest_distance_of_all_pairs(n, d, seed):
    X = np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)
    assert bound.diameter(X) == pytest.approx(cdist(X, X, "cityblock").max(), rel=1e-5)


@pytest.mark.parametrize("settings_name", ["paper", "today"])
def test_the_bound_holds_on_a_real_run(small, settings_name):
    cell = {"data": "a9a", "settings": settings_name, "partition": "theta 0.8", "parties": 2, "run": 0, "trees": 6}
    trees = bound.measure(cell)["trees"]
    assert len(trees) == 6
    assert trees[0]["left"] > 0
    assert all(t["left"] <= t["absolute"] * (1 + 1e-9) and t["absolute"] <= t["right"] for t in trees)
    assert all(0 <= t["moved"] <= min(t["moved_bound"], 1) for t in trees)


def test_values_of_leaves_add_up_to_the_margins(small):
    X, y = small
    parties = [simfl.Party("a", X[:300], y[:300]), simfl.Party("b", X[300:], y[300:])]
    model = simfl.train(parties, n_trees=5, random_state=0, callbacks=[])
    values, _ = bound.tree_values(model, {"a": X[:300]})
    assert bound._start(model) + values["a"].sum(axis=1) == pytest.approx(model.margins(X[:300]), abs=1e-5)


def test_similar_rows_are_those_of_the_search():
    rows = np.arange(8.0).reshape(4, 2)
    parties = [simfl.Party("a", rows, [0, 1, 0, 1]), simfl.Party("b", rows[::-1], [1, 0, 1, 0])]
    ready = simfl.prepare(parties, recipe="paper", bucket_width=0.1, random_state=0)
    assert bound.similar_rows(ready)["a"]["b"].tolist() == [3, 2, 1, 0]  # identical rows find each other


# --- Theorem 1 -------------------------------------------------------------------------------------------------------


def test_more_hashes_tell_more_although_there_are_fewer_than_features(small):
    cell = {"data": "a9a", "recipe": "similar", "run": 0}
    few, many = (privacy.attack(cell | {"n_hashes": n}) for n in (1, 4))
    assert few["blind"] == many["blind"] < few["right"] < many["right"]
    assert many["explained"] > 0.5
    assert 0.5 == few["members_blind"] <= few["members"] < many["members"]


def test_the_condition_refuses_as_many_hashes_as_features():
    assert privacy.condition(8) == (7, True)
    assert privacy.condition(123) == (40, True)


# --- Table 4 ---------------------------------------------------------------------------------------------------------


def test_the_efficiency_row_counts_bytes_and_messages(small):
    found = efficiency.measure({"data": "a9a", "settings": "paper", "trees": 10})
    assert found["rows"] == 450
    assert found["n_hashes"] == 4
    # Two numbers of four bytes per row of the builder and other party, twice: to the hub and on to the builder.
    assert found["bytes_per_tree"] > 8 * 45 * (9 + 1)
    assert found["messages_per_tree"] == pytest.approx(4, abs=1)  # two hops, and those of start and end
    assert found["training_critical_seconds"] < found["training_seconds"]


def test_a_method_that_behaves_the_same_keeps_its_results():
    one, other = training.behaviour(PAPER), training.behaviour(TFL)
    assert one != other
    training.behaviour.cache_clear()
    assert training.behaviour(PAPER) == one
