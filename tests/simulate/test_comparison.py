import msgspec
import numpy as np
import pytest
import xgboost as xgb
from rich.console import Console
from sklearn.datasets import load_diabetes, load_iris
from sklearn.metrics import log_loss, roc_auc_score

import simfl
from simfl.party import Split
from simfl.report.evaluation import HeldOut, scores
from simfl.report.words import JOINT
from simfl.simulate import comparison
from simfl.simulate.tables import table

FEW = {"n_trees": 3, "random_state": 0}


def rows(X, y):
    return HeldOut(X, y, np.array(["a"] * len(y)))


def compare(parties, X, y, params, **options):
    return comparison.compare(parties, rows(X, y), params, callbacks=[], **options)


@pytest.fixture(scope="module")
def stopped(hospitals):
    """Enough rounds for all methods to stop by themselves."""
    X, y = hospitals[0].rows.X, hospitals[0].rows.y
    return compare(hospitals, X, y, {"n_trees": 120, "learning_rate": 0.4, "random_state": 0})


def test_every_method_keeps_its_best_round_on_validation_rows(stopped):
    for (method, party), model in stopped.models.items():
        watched = [record.validation["logloss"] for record in model.history]
        seen = watched[: model.n_trees + 20]  # trees grown together come in batches: what follows was not waited for
        assert model.n_trees == np.argmin(seen) + 1, (method, party)
        assert len(watched) >= min(model.n_trees + 20, 120), (method, party)
    assert all(model.n_trees < 100 for (method, _), model in stopped.models.items() if method != "TFL")


def test_the_rows_that_measure_have_no_part_in_when_a_method_stops(stopped, hospitals):
    X, y = hospitals[0].rows.X, hospitals[0].rows.y
    other = compare(hospitals, X[::-1][:50], 1 - y[:50], {"n_trees": 120, "learning_rate": 0.4, "random_state": 0})
    assert [model.n_trees for model in other.models.values()] == [model.n_trees for model in stopped.models.values()]
    for key, model in stopped.models.items():
        np.testing.assert_array_equal(model.margins(X), other.models[key].margins(X))


def test_alone_watches_a_fifth_of_its_own_training_rows(stopped, hospitals):
    """SOLO's record is that of XGBoost on the rows that the party itself would set aside."""
    party = hospitals[0]
    own = Split.of(party, 0.2, seed=0)
    assert len(own.validation.y) == round(0.2 * len(party.rows.y))
    settings = {"learning_rate": 0.4, "max_depth": 6, "objective": "binary:logistic", "seed": 0}
    rows = xgb.QuantileDMatrix(own.training.X, own.training.y)
    kept = {}
    aside = (xgb.QuantileDMatrix(own.validation.X, own.validation.y, ref=rows), "aside")
    xgb.train(settings, rows, 120, evals=[aside], early_stopping_rounds=20, verbose_eval=False, evals_result=kept)
    watched = [record.validation["logloss"] for record in stopped.models["SOLO", party.name].history]
    assert watched == pytest.approx(kept["aside"]["logloss"], rel=1e-6)


@pytest.fixture(scope="module")
def compared(hospitals):
    X, y = hospitals[0].rows.X, hospitals[0].rows.y
    told = []
    found = compare(hospitals, X, y, FEW, tell=told.append)
    return found.results, found.simfl, told


def test_every_method_is_scored_once(compared):
    results, _, told = compared
    assert [(r.method, r.party) for r in results] == [
        ("SOLO", "north"),
        ("SOLO", "east"),
        ("SOLO", "south"),
        ("SOLO", "west"),
        ("TFL", None),
        ("SimFL", None),
        ("SimFL joint", None),
        ("ALL-IN", None),
    ]
    assert told == ["SOLO north", "SOLO east", "SOLO south", "SOLO west", "TFL", "SimFL", "SimFL joint", "ALL-IN"]


def test_the_scores_are_scikit_learns(compared, hospitals):
    results, model, _ = compared
    X, y = hospitals[0].rows.X, hospitals[0].rows.y
    found = next(r for r in results if r.method == "SimFL")
    p = model.predict_proba(X).astype(np.float64)
    assert found.error == pytest.approx(np.mean(model.predict(X) != y))
    assert found.logloss == pytest.approx(log_loss(y, p / p.sum(axis=1, keepdims=True)), rel=1e-5)
    assert found.auc == pytest.approx(roc_auc_score(y, p[:, 1]))


def test_bytes_are_those_that_travelled(compared, hospitals):
    results, model, _ = compared
    sent = {r.method: r.bytes for r in results}
    assert sent["SOLO"] == 0
    assert 0 < sent["TFL"] < sent["SimFL"] == model.n_bytes
    assert sent["ALL-IN"] == sum(p.rows.X.nbytes for p in hospitals)


def test_the_results_become_json(compared):
    again = msgspec.json.decode(msgspec.json.encode({"results": compared[0]}))
    assert {"method", "party", "error", "logloss", "auc", "seconds", "bytes", "rounds"} <= set(again["results"][0])


def test_the_table_shows_every_method_and_marks_the_best(compared):
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table(compared[0], "title"))
    text = console.export_text()
    assert all(word in text for word in ("SOLO", "TFL", "SimFL", "ALL-IN", "log loss", "AUC", "*", "nothing"))
    assert "RMSE" not in text


def test_a_regression_is_scored_by_its_error():
    X, y = load_diabetes(return_X_y=True)
    parties = [simfl.Party("a", X[::2], y[::2]), simfl.Party("b", X[1::2], y[1::2])]
    found = compare(parties, X, y, FEW | {"objective": "reg:squarederror"})
    results, model = found.results, found.simfl
    assert all(r.rmse > 0 and r.error is r.logloss is r.auc is None for r in results)
    assert next(r.rmse for r in results if r.method == "SimFL") == pytest.approx(
        np.sqrt(np.mean((model.predict(X) - y) ** 2)), rel=1e-5
    )


def test_three_classes_are_scored():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    parties = [simfl.Party("a", X[::2], names[::2]), simfl.Party("b", X[1::2], names[1::2])]
    results = compare(parties, X, names, FEW | {"objective": "multi:softprob"}).results
    assert all(r.auc > 0.9 and r.error < 0.25 for r in results if r.method != JOINT)
    assert next(r for r in results if r.method == JOINT).auc >= 0.5  # too few rows for its guard


def test_held_out_rows_of_one_class_have_no_auc(halves, table, labels):
    model = simfl.train(halves, callbacks=[], **FEW)
    ones = labels[:30] == 1
    assert scores(model, rows(halves[0].rows.X[ones], labels[:30][ones]))["auc"] is None


def test_a_class_that_no_party_has_counts_as_wrong(halves):
    model = simfl.train(halves, callbacks=[], **FEW)
    found = scores(model, rows(halves[0].rows.X[:2], np.array([5, 5])))
    assert found["error"] == 1.0


def test_a_joint_training_has_no_second_line(hospitals):
    X, y = hospitals[0].rows.X, hospitals[0].rows.y
    joint = compare(hospitals, X, y, {"n_trees": 4, "recipe": "joint", "random_state": 0})
    assert [r.method for r in joint.results][4:] == ["TFL", "SimFL", "ALL-IN"]
    assert {record.builder for record in joint.simfl.history} == {"all"}
