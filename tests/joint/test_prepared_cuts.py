"""`simfl.prepare(recipe="joint")`: the parties agree on cut points once, for many trainings."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import simfl
from simfl.errors import FileError, ParameterError
from simfl.hub.joint import Adding

B = {"n_trees": 8, "max_depth": 3, "callbacks": []}


def table(seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": rng.normal(50, 10, 600), "ward": rng.choice(list("abc"), 600)})
    return frame, np.where(frame.age + 10 * (frame.ward == "a") + rng.normal(0, 5, 600) > 52, "yes", "no")


def parties(X=None, y=None):
    X, y = table() if X is None else (X, y)
    return [simfl.Party(f"p{i}", X[i::3], y[i::3]) for i in range(3)]


def trees_of(model):
    return json.loads(model.booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]


@pytest.mark.parametrize("masked", [False, True])
def test_a_training_on_prepared_cuts_gives_the_same_model(masked):
    ready = simfl.prepare(parties(), recipe="joint", random_state=3, masked=masked)
    alone = simfl.train(parties(), recipe="joint", random_state=3, masked=masked, **B)
    for _ in range(2):
        assert trees_of(simfl.train(ready, **B)) == trees_of(alone)


def test_nothing_is_asked_about_columns_any_more(monkeypatch):
    ready = simfl.prepare(parties(), recipe="joint", random_state=3)
    assert "common cut points" in repr(ready)
    steps = []
    monkeypatch.setattr("simfl.hub.joint.Adding._same", _noting(steps))
    simfl.train(ready, **B)
    assert steps[0] == "labels"
    steps.clear()
    simfl.train(parties(), recipe="joint", random_state=3, **B)
    assert steps[0] == "moments of the columns"


def _noting(steps):
    original = Adding._same

    def same(self, replies):
        first = original(self, replies)
        steps.append(first.name)
        return first

    return same


@pytest.mark.parametrize("masked", [False, True])
def test_it_can_be_saved_and_loaded(tmp_path, masked):
    ready = simfl.prepare(parties(), recipe="joint", random_state=3, masked=masked)
    ready.save(tmp_path / "ready")
    again = simfl.Preparation.load(tmp_path / "ready", parties())
    assert trees_of(simfl.train(again, **B)) == trees_of(simfl.train(ready, **B))
    with pytest.raises(FileError, match="is not the one"):
        simfl.Preparation.load(tmp_path / "ready", parties(*table(seed=1)))


def test_masked_cuts_are_sealed_for_the_parties():
    plain = simfl.prepare(parties(), recipe="joint", random_state=3)
    masked = simfl.prepare(parties(), recipe="joint", random_state=3, masked=True)
    sizes = [len(ready.about.agreed) for ready in (plain, masked)]
    assert sizes == [3, 3]
    assert {result.announced.sealed[:2] for result in plain.about.agreed} == {b"x\x9c"}  # compressed, not encrypted
    assert not {result.announced.sealed[:2] for result in masked.about.agreed} & {b"x\x9c"}


def test_a_hub_that_sees_all_asks_again_where_the_cuts_are_sealed():
    ready = simfl.prepare(parties(), recipe="joint", random_state=3, masked=True)
    assert trees_of(simfl.train(ready, masked=False, **B)) == trees_of(simfl.train(ready, **B))


def test_one_preparation_serves_other_depths_objectives_and_bins():
    X = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    ready = simfl.prepare(parties(X, (X[:, 0] > 0).astype(int)), recipe="joint", random_state=0)
    for more in ({"max_depth": 2}, {"objective": "reg:squarederror"}, {"max_bin": 8}, {"random_state": 5}):
        assert simfl.train(ready, **{**B, **more}).n_trees == 8
    with pytest.raises(ParameterError, match="prepared with recipe='joint'"):
        simfl.train(ready, recipe="similar", **B)


def test_sparse_rows_and_one_party():
    X = sparse.random(300, 5, 0.5, "csr", dtype=np.float32, random_state=0)
    y = (np.asarray(X.sum(axis=1)).ravel() > 1.2).astype(int)
    ready = simfl.prepare([simfl.Party("alone", X, y)], recipe="joint", random_state=0)
    alone = simfl.train([simfl.Party("alone", X, y)], recipe="joint", random_state=0, **B)
    assert trees_of(simfl.train(ready, **B)) == trees_of(alone)
