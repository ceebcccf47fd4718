"""Several splits of the same parties, and the four hospitals of the package."""

import io
import math

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from sklearn.metrics import log_loss

from simfl.data.files import Dataset, Target, read
from simfl.errors import DataError, FileError
from simfl.report.record import Gain, Score
from simfl.simulate import experiment, splits, tables
from simfl.simulate.processes import spare_processes
from simfl.simulate.simulation import Measured, set_up

FEW = {"n_trees": 6, "random_state": 3, "n_jobs": 1}


@pytest.fixture(scope="module")
def once():
    return experiment.heart(FEW, 1).run()


@pytest.fixture(scope="module")
def twice():
    return experiment.heart(FEW, 2).run()


def test_a_partys_own_score_is_that_of_the_model_it_would_use(once):
    held_out, own = once.played.held_out, once.played.own_rows
    for score in once.measured.own:
        model = once.compared.models[score.method, score.party]
        used = model if score.method == "SOLO" else model.adjusted(*own[score.rows])
        mask = held_out.of(score.rows)
        p = used.predict_proba(held_out.X[mask])
        assert score.value == pytest.approx(log_loss(held_out.y[mask], p, labels=[0, 1]), rel=1e-4)
    assert {(s.method, s.rows) for s in once.measured.own} == {
        (method, party)
        for method in ("SOLO", "TFL", "SimFL", "SimFL joint", "ALL-IN")
        for party in ("cleveland", "budapest", "zurich-basel", "long-beach")
    }


def test_rows_with_weights_train_and_measure_by_them(tmp_path):
    path, rng = tmp_path / "patients.csv", np.random.default_rng(0)
    X = rng.normal(size=(300, 3)).round(3)
    table = pd.DataFrame(X, columns=list("abc")).assign(ill=(X[:, 0] + rng.normal(size=300) > 0).astype(int))
    table.assign(counts=rng.choice([0.0, 1.0, 6.5], 300)).to_csv(path, index=False)
    data = read(path, Target.of("ill", None, "counts"))
    parts = {"a": np.arange(150), "b": np.arange(150, 300)}
    params = FEW | {"objective": "binary:logistic"}
    played = (outcome := experiment.Experiment(data, parts, params).run()).played
    held_out = played.held_out
    assert held_out.weight.min() > 0
    assert len(held_out.y) < 76  # of a quarter, those that count
    for party in played.parties:
        assert party.rows.weight.tolist() == data.weight[party_rows(party, table)].tolist()
    for score in outcome.measured.own:
        model, mask = outcome.compared.models[score.method, score.party], held_out.of(score.rows)
        used = model if score.method == "SOLO" else model.adjusted(*played.own_rows[score.rows])
        p = used.predict_proba(held_out.X[mask])
        expected = log_loss(held_out.y[mask], p, labels=[0, 1], sample_weight=held_out.weight[mask])
        assert score.value == pytest.approx(expected, rel=1e-4)
    simfl = next(r for r in outcome.measured.results if r.method == "SimFL")
    p = outcome.compared.simfl.predict_proba(held_out.X)
    assert simfl.logloss == pytest.approx(log_loss(held_out.y, p, sample_weight=held_out.weight), rel=1e-4)


def party_rows(party, table):
    """The places of a party's rows in the table: no value of a column occurs twice."""
    place = {tuple(row): number for number, row in enumerate(table[list("abc")].to_numpy(np.float32).tolist())}
    return [place[tuple(row)] for row in party.rows.X.tolist()]


def test_a_party_whose_held_out_rows_weigh_nothing_is_refused():
    X, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2
    weight = np.zeros(20, np.float32)
    weight[set_up(Dataset(X, y), {"a": np.arange(20)}, 0, stratify=True).parties[0].rows.X[:, 0].astype(int) // 2] = 1
    with pytest.raises(DataError, match="Party 'a' holds out rows of weight zero only"):
        set_up(Dataset(X, y, weight=weight), {"a": np.arange(20)}, 0, stratify=True)


def test_several_splits_give_the_means_of_each(once, twice):
    other = experiment.heart(FEW | {"random_state": 4}, 1).run()
    for both, a, b in zip(twice.measured.results, once.measured.results, other.measured.results, strict=True):
        assert (both.method, both.party) == (a.method, a.party)
        assert both.logloss == pytest.approx((a.logloss + b.logloss) / 2)
    for both, a, b in zip(twice.measured.gains, once.measured.gains, other.measured.gains, strict=True):
        assert (both.party, both.rows, both.adjusted) == (a.party, a.rows, a.adjusted)
        assert both.gain == pytest.approx((a.gain + b.gain) / 2)
        assert both.low <= both.gain <= both.high
    assert twice.measured.n_splits == 2


def test_the_first_split_is_the_one_of_a_single_run(once, twice):
    rows = once.played.held_out.X
    np.testing.assert_array_equal(twice.played.held_out.X, rows)
    np.testing.assert_array_equal(twice.compared.simfl.margins(rows), once.compared.simfl.margins(rows))


def test_spare_processes_measure_the_same(twice):
    with spare_processes(1) as spare:
        spread = experiment.heart(FEW, 2).run(spare=spare)
    assert spread.measured.gains == twice.measured.gains
    assert spread.measured.own == twice.measured.own


def test_spare_processes_leave_the_first_of_every_so_many_parts_to_this_one():
    with spare_processes(2) as spare:
        begun = spare.begin(abs, 7)
        assert {part: done.result() for part, done in begun.items()} == {1: 1, 2: 2, 4: 4, 5: 5}
    with spare_processes(0) as spare:
        assert spare.begin(abs, 7) == {}


def test_a_spare_process_writes_the_page_that_this_one_would(once, tmp_path):
    once.played.record(once.compared, once.measured, title="x", began=0.0).save(tmp_path)
    with spare_processes(1) as spare, spare_processes(0) as none:
        by_spare = spare.write_page(tmp_path).read_text()
        assert none.write_page(tmp_path).read_text() == by_spare
        with pytest.raises(FileError, match="There is no run at"):
            spare.write_page(tmp_path / "nowhere")


def test_the_interval_is_nadeau_and_bengios():
    """Variance of the mean: (1/n + held out / trained on) times that of the splits; Student's t with n - 1."""
    low, high = splits.interval([0.1, 0.2, 0.3, 0.2], test_share=0.25)
    half = 3.182446 * math.sqrt((1 / 4 + 1 / 3) * 0.02 / 3)
    assert (low, high) == pytest.approx((0.2 - half, 0.2 + half), abs=1e-6)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """A mean's gain over a guess, by splits that share rows: nine in ten intervals or more hold the true value."""
    rng, covered = np.random.default_rng(0), 0
    for _ in range(200):
        y = rng.normal(size=40)
        gains = []
        for _ in range(5):
            order = rng.permutation(40)
            trained, held_out = y[order[10:]], y[order[:10]]
            gains.append(np.mean((held_out - 1) ** 2) - np.mean((held_out - trained.mean()) ** 2))
        low, high = splits.interval(gains, 0.25)
        covered += low <= 1 - 1 / 30 <= high
    assert covered / 200 > 0.9


def test_one_split_keeps_the_intervals_over_rows(once):
    assert splits.mean_gains([once.measured.gains], 0.25) == once.measured.gains


def test_the_first_table_shows_each_partys_own_rows(once):
    console = Console(width=150, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(tables.own_table(once.measured.own, once.measured.own_gains(), "title"))
    text = console.export_text()
    for gain in once.measured.own_gains():
        line = next(line for line in text.splitlines() if gain.party in line)
        assert f"{gain.alone:.3f}" in line
        assert f"{gain.together:.3f}" in line
        assert f"{gain.low:+.3f} to {gain.high:+.3f}".replace("0.", ".") in line


def test_the_first_table_fits_a_terminal_of_80_characters(once):
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(tables.own_table(once.measured.own, once.measured.own_gains(), "title"))
    lines = console.export_text().splitlines()
    for gain in once.measured.own_gains():
        line = next(line for line in lines if gain.party in line)  # the whole name, and the interval in the same line
        assert f"{gain.high:+.3f}".replace("0.", ".") in line
        assert line.count("*") == 1


def test_the_record_of_several_splits_has_their_gains(twice):
    record = twice.played.record(twice.compared, twice.measured, title="Hearts", began=0.0)
    assert record.n_splits == 2
    assert record.gains == twice.measured.gains
    assert [s for s in record.scores if s.rows is not None] == twice.measured.own


def test_own_gains_are_those_of_the_adjusted_model_in_the_main_metric():
    facts = {"alone": 0.5, "together": 0.4, "gain": 0.1, "low": 0.0, "high": 0.2, "n_rows": 9}
    gains = [
        Gain(party="a", rows=rows, metric=metric, adjusted=adjusted, **facts)
        for rows, adjusted in ((None, False), ("a", False), ("a", True))
        for metric in ("logloss", "error")
    ]
    scores = [Score(method="SOLO", party="a", rows="a", metric="logloss", value=0.5)]
    assert Measured([], scores, gains).own_gains() == [gains[4]]


def test_large_numbers_are_not_cut_at_80_characters():
    methods = ("SOLO", "TFL", "SimFL", "SimFL joint", "ALL-IN")
    scores = [Score(method=m, party=None, rows="party 1", metric="rmse", value=1063.753) for m in methods]
    known = {"party": "party 1", "rows": "party 1", "metric": "rmse", "alone": 1.0, "together": 1.0, "n_rows": 9}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(tables.own_table(scores, [Gain(**known, gain=110.445, low=-2.03, high=1222.484)], "own rows"))
    text = console.export_text()
    assert "+110" in text
    assert "-2 to +1222" in text
    assert "…" not in text
