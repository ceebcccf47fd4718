import numpy as np
import pytest
import xgboost as xgb
from scipy import sparse
from sklearn.datasets import load_diabetes, load_iris

import simfl
from simfl.errors import SimFLError

FEW = {"n_trees": 5, "max_depth": 4, "random_state": 0}


def plain(X, y, weight=None, **more):
    settings = {"learning_rate": 0.1, "max_depth": 4, "objective": "binary:logistic", "seed": 0} | more
    return xgb.train(settings, xgb.QuantileDMatrix(X, y, weight=weight), 5)


def assert_same(model, booster, X):
    np.testing.assert_allclose(
        model.margins(X), booster.predict(xgb.DMatrix(X), output_margin=True), rtol=1e-5, atol=1e-6
    )


def test_solo_is_xgboost_on_each_partys_rows(halves, table):
    alone = simfl.baselines.solo(halves, **FEW)
    assert list(alone) == ["a", "b"]
    for party in halves:
        assert_same(alone[party.name], plain(party.rows.X, party.rows.y), table)


def test_all_in_is_xgboost_on_all_rows(halves, table, labels):
    assert_same(simfl.baselines.all_in(halves, **FEW), plain(table, labels), table)


def test_all_in_minds_the_weights(table, labels):
    weight = 1 + np.arange(60) % 3
    parties = [
        simfl.Party("a", table[:30], labels[:30], weight[:30]),
        simfl.Party("b", table[30:], labels[30:], weight[30:]),
    ]
    assert_same(simfl.baselines.all_in(parties, **FEW), plain(table, labels, weight), table)


def test_all_in_takes_sparse_tables(table, labels):
    thin = sparse.csr_matrix(np.where(table > 0, table, 0))
    parties = [simfl.Party("a", thin[:30], labels[:30]), simfl.Party("b", thin[30:], labels[30:])]
    assert_same(simfl.baselines.all_in(parties, **FEW), plain(thin, labels), thin)


def test_all_in_of_three_classes_is_xgboosts():
    X, y = load_iris(return_X_y=True)
    parties = [simfl.Party("a", X[::2], y[::2]), simfl.Party("b", X[1::2], y[1::2])]
    model = simfl.baselines.all_in(parties, objective="multi:softprob", **FEW)
    order = np.r_[np.arange(0, 150, 2), np.arange(1, 150, 2)]
    assert_same(model, plain(X[order], y[order], objective="multi:softprob", num_class=3), X)
    assert model.classes.tolist() == [0, 1, 2]


def test_all_in_of_numbers_is_xgboosts():
    X, y = load_diabetes(return_X_y=True)
    model = simfl.baselines.all_in([simfl.Party("a", X, y)], objective="reg:squarederror", **FEW)
    assert_same(model, plain(X, y, objective="reg:squarederror"), X)


def test_one_party_alone_gets_the_same_from_all_four(halves, table):
    a = halves[:1]
    ours = [simfl.train(a, callbacks=[], **FEW), simfl.baselines.tfl(a, callbacks=[], **FEW)]
    theirs = [simfl.baselines.solo(a, **FEW)["a"], simfl.baselines.all_in(a, **FEW)]
    for model in ours + theirs[1:]:
        np.testing.assert_allclose(model.margins(table), theirs[0].margins(table), atol=1e-5)


def test_tfl_sends_no_gradients(hospitals):
    model = simfl.baselines.tfl(hospitals, callbacks=[], **FEW)
    kinds = {kind for ways in model.traffic.values() for kind in ways["sent"]}
    assert kinds <= {"Description", "Classes", "LabelSums", "Started", "RowSums", "Grown", "Finished"}
    full = simfl.train(hospitals, callbacks=[], **FEW)
    for name, ways in model.traffic.items():
        assert ways["sent"]["RowSums"] < 0.4 * full.traffic[name]["sent"]["RowSums"]


def test_tfl_replies_hold_no_sums(halves, monkeypatch):
    from simfl import messages, wire
    from simfl.transport import local

    seen = []
    monkeypatch.setattr(local, "encode", lambda message: seen.append(message) or wire.encode(message))
    simfl.baselines.tfl(halves, callbacks=[], **FEW)
    sums = [m for m in seen if isinstance(m, messages.RowSums)]
    assert sums
    assert not any(m.sums for m in sums)
    assert not [m for m in seen if isinstance(m, messages.LeafSums | messages.Hashes | messages.FeatureSums)]


def test_tfl_trees_are_each_builders_own(halves, table):
    first = simfl.baselines.tfl(halves, n_trees=1, callbacks=[], random_state=0, base_score=0.5)
    alone = simfl.baselines.solo(halves[:1], n_trees=1, random_state=0, base_score=0.5)["a"]
    np.testing.assert_allclose(first.margins(table), alone.margins(table), atol=1e-6)


def test_tfl_is_tfl_whatever_else_is_asked(halves):
    asked = simfl.baselines.tfl(halves, n_neighbors=5, callbacks=[], **FEW)
    assert asked.booster.get_dump() == simfl.baselines.tfl(halves, callbacks=[], **FEW).booster.get_dump()


@pytest.mark.parametrize("method", ["solo", "all_in", "tfl"])
def test_a_party_with_one_class_takes_part(table, labels, method):
    parties = [simfl.Party("a", table[:30], np.zeros(30, int)), simfl.Party("b", table[30:], labels[30:])]
    found = getattr(simfl.baselines, method)(parties, **FEW)
    for model in found.values() if isinstance(found, dict) else [found]:
        assert model.classes.tolist() == [0, 1]
        assert np.isfinite(model.predict_proba(table)).all()


def test_a_missing_class_at_one_party_keeps_its_column():
    X, y = load_iris(return_X_y=True)
    parties = [simfl.Party("a", X[:100], y[:100]), simfl.Party("b", X[50:], y[50:])]
    for model in simfl.baselines.solo(parties, objective="multi:softprob", **FEW).values():
        assert model.predict_proba(X).shape == (150, 3)


def test_the_baselines_have_a_history(halves):
    history = simfl.baselines.all_in(halves, **FEW).history
    assert [r.round for r in history] == [0, 1, 2, 3, 4]
    assert [r.train["logloss"] for r in history] == sorted((r.train["logloss"] for r in history), reverse=True)


@pytest.mark.parametrize("method", ["solo", "all_in", "tfl"])
def test_an_unknown_parameter_suggests_the_near_one(halves, method):
    with pytest.raises(SimFLError, match="Did you mean 'n_trees'"):
        getattr(simfl.baselines, method)(halves, n_tree=3)


@pytest.mark.parametrize("method", ["solo", "all_in", "tfl"])
@pytest.mark.parametrize(
    ("y", "more"),
    [
        ([0, 1, 2] * 10, {}),
        (np.linspace(0, 1, 30), {}),
        (["ill", "well"] * 15, {"objective": "reg:squarederror"}),
        ([0, 1] * 15, {"base_score": 2.0}),
    ],
)
def test_labels_that_do_not_fit_the_objective_are_refused(table, method, y, more):
    parties = [simfl.Party("a", table[:30], y), simfl.Party("b", table[30:], y)]
    with pytest.raises(SimFLError):
        getattr(simfl.baselines, method)(parties, **FEW, **more)


@pytest.mark.parametrize("method", ["all_in", "tfl"])
def test_columns_in_another_order_are_put_in_order(table, labels, method):
    a = simfl.Party("a", table[:30], labels[:30], columns=list("vwxyz"))
    b = simfl.Party("b", table[30:], labels[30:], columns=list("vwxyz"))
    turned = simfl.Party("b", table[30:, ::-1], labels[30:], columns=list("zyxwv"))
    one, other = (getattr(simfl.baselines, method)([a, second], **FEW) for second in (b, turned))
    np.testing.assert_array_equal(one.margins(table), other.margins(table))


@pytest.mark.parametrize("method", ["solo", "all_in", "tfl"])
def test_two_parties_of_one_name_are_refused(halves, method):
    with pytest.raises(SimFLError, match="named"):
        getattr(simfl.baselines, method)([halves[0], halves[0]], **FEW)


@pytest.mark.parametrize("method", ["solo", "all_in", "tfl"])
def test_no_party_at_all_is_refused(method):
    with pytest.raises(SimFLError, match="no party"):
        getattr(simfl.baselines, method)([], **FEW)


def test_baselines_stop_early_on_the_same_kind_of_validation_rows(halves):
    params = {"n_trees": 60, "early_stopping_rounds": 3, "validation_fraction": 0.3, "learning_rate": 0.5}
    model = simfl.baselines.all_in(halves, random_state=0, **params)
    assert model.n_trees < 60
    assert "logloss" in model.history[-1].validation
    simfl.baselines.tfl(halves, rematch=50, random_state=0, **params)  # one set of parameters for all
