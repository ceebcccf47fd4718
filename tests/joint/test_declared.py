"""Cut points that a study declares: then nobody asks where the values of a column lie."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import simfl
from simfl.data.schema import Schema
from simfl.joint.machine import Labelled, Machine, Mine, Plan
from simfl.params import train_params

RANGES = {"age": {"low": 0, "high": 100}, "dose": {"cuts": [0.5, 1.5]}}
FRAME = RANGES | {"smoker": "boolean", "ward": ["a", "b", "c"]}


def rows(n=900, seed=0):
    rng = np.random.default_rng(seed)
    age, dose = rng.uniform(20, 90, n), rng.choice([0.0, 1.0, 2.0], n)
    y = (age / 30 + dose + rng.normal(0, 0.5, n) > 2.8).astype(np.float32)
    return np.column_stack([age, dose]).astype(np.float32), y


def machines(declared, X, y, n_parties=3):
    names = tuple(f"party {i}" for i in range(n_parties))
    plan = Plan(train_params(recipe="joint", n_trees=4), np.zeros(X.shape[1], np.int32), 1, names, declared=declared)
    own = [(X[i::n_parties], y[i::n_parties]) for i in range(n_parties)]
    return [Machine(plan, Mine(Labelled(*mine), None, name.encode())) for name, mine in zip(names, own, strict=True)]


def agree(parties):
    """All steps before the labels: their names, and how many numbers each party sent."""
    steps = []
    while parties[0].step != "labels":
        sent = [party.contribution() for party in parties]
        steps.append((parties[0].step, sum(part.size for part in sent[0])))
        total = [sum(words) for words in zip(*sent, strict=True)]
        for party in parties:
            party.apply(party.read(total))
    return steps


def test_with_all_columns_declared_only_the_number_of_rows_is_added_up():
    X, y = rows()
    parties = machines(Schema.from_toml(RANGES).declared_cuts(256), X, y)
    assert agree(parties) == [("moments of the columns", 1)]
    assert parties[0].agreed.n_rows == 900


def test_with_some_columns_declared_only_the_others_are_asked_about():
    X, y = rows()
    alone = machines(None, X[:, 1:], y)
    mixed = machines(Schema.from_toml({**RANGES, "dose": "number"}).declared_cuts(256), X, y)
    assert agree(mixed) == agree(alone)


def trees_of(model):
    return json.loads(model.booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]


def thresholds(model):
    """Per column the thresholds of all splits, but for those between known values and missing ones."""
    out = {}
    for tree in trees_of(model):
        for j, at, left in zip(tree["split_indices"], tree["split_conditions"], tree["left_children"], strict=True):
            if left != -1 and at < 1e38:
                out.setdefault(j, set()).add(np.float32(at))
    return out


def train(schema, make=np.asarray, **params):
    X, y = rows()
    parties = [simfl.Party(f"p{i}", make(X[i::3]), y[i::3], schema=schema) for i in range(3)]
    return simfl.train(parties, recipe="joint", n_trees=16, random_state=0, callbacks=[], **params), X, y


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix])
def test_trees_are_cut_where_the_study_says(make):
    model, X, y = train(Schema.from_toml(RANGES), make, max_bin=11)
    found = thresholds(model)
    assert found[0] <= {np.float32(100 * k / 11) for k in range(1, 11)}
    assert found[1] <= {np.float32(0.5), np.float32(1.5)}
    assert ((model.predict_proba(make(X))[:, 1] > 0.5) == y).mean() > 0.8


def test_masks_change_no_bit_of_it():
    plain, masked = train(Schema.from_toml(RANGES))[0], train(Schema.from_toml(RANGES), masked=True)[0]
    assert trees_of(plain) == trees_of(masked)


def test_booleans_and_categories_need_no_range_and_missing_values_find_their_way():
    X, y = rows()
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"age": X[:, 0], "dose": X[:, 1], "smoker": rng.random(900) < 0.3})
    frame["ward"] = np.where(rng.random(900) < 0.9, np.where(y > 0, "a", "b"), "c")
    frame.loc[y > 0, "age"] = np.where(rng.random(int(y.sum())) < 0.5, np.nan, frame.age[y > 0])
    schema = Schema.from_toml(FRAME)
    assert [points is not None for points in schema.declared_cuts(256)] == [True] * 4
    parties = [simfl.Party(f"p{i}", frame[i::3], y[i::3], schema=schema) for i in range(3)]
    model = simfl.train(parties, recipe="joint", n_trees=24, random_state=0, callbacks=[])
    assert ((model.predict_proba(frame)[:, 1] > 0.5) == y).mean() > 0.95


def test_without_the_range_of_one_number_booleans_and_categories_are_asked_about_along_with_it():
    declared = Schema.from_toml({**FRAME, "dose": "number"}).declared_cuts(256)
    assert [points is not None for points in declared] == [True, False, False, False]
