"""Rows that count more or less, at a party: what a small group is."""

import numpy as np
import pytest
import xgboost as xgb

import simfl
from simfl.joint.rows import LIGHT
from simfl.party import training
from simfl.party.party import Split
from tests.wire import parties


@pytest.mark.parametrize(("recipe", "least"), [("similar", 5), ("joint", 30)])
def test_rows_of_weight_zero_do_not_fill_up_a_group(recipe, least, monkeypatch):
    """One row in ten counts: no sum holds fewer than `min_group` of these, however many others are with them."""
    members, seen = [], []
    for member in parties(400, 400):
        weight = (np.arange(400) % 10 == 0).astype(float)
        members.append(simfl.Party(member.name, member.rows.X, member.rows.y, weight))
    added = training.sum_onto_similar

    def look(rows, g, h, n_rows, seed):
        seen.append(np.bincount(rows[h[:, 0] > 0, 0], minlength=n_rows)[np.unique(rows)])
        return added(rows, g, h, n_rows, seed)

    monkeypatch.setattr(training, "sum_onto_similar", look)
    model = simfl.train(members, recipe=recipe, n_trees=2, min_group=least, random_state=0, callbacks=[])
    if recipe == "similar":
        assert seen
        assert min(counts.min() for counts in seen) >= least
    else:
        leaves = model.booster.predict(xgb.DMatrix(np.vstack([m.rows.X[::10] for m in members])), pred_leaf=True)
        assert all(np.unique(leaf, return_counts=True)[1].min() >= least / 2 for leaf in leaves.T)  # counts have noise


def test_a_party_whose_rows_to_train_on_all_weigh_nothing_fills_up_no_group():
    """The one row of another party that counts is set aside: its thousands of others hide nobody."""
    least, (few, many) = 30, parties(2000, 4000)
    choice = {"validation_fraction": 0.2, "random_state": 0}
    aside = np.isin(many.rows.X[:, 0], Split.of(many, 0.2, 0).validation.X[:, 0])
    weight = (np.arange(4000) == np.flatnonzero(aside)[0]).astype(float)
    members = [few, simfl.Party(many.name, many.rows.X, many.rows.y, weight)]
    model = simfl.train(members, recipe="joint", n_trees=2, min_group=least, callbacks=[], **choice)
    own = xgb.DMatrix(Split.of(few, 0.2, 0).training.X)
    leaves = model.booster.predict(own, pred_leaf=True)
    counts = [np.unique(leaf, return_counts=True)[1] for leaf in leaves.T]
    assert min(len(each) for each in counts) > 1
    assert min(each.min() for each in counts) >= least / 2  # counts have noise


@pytest.mark.parametrize("heavy", [10.0, 1e6])
def test_no_row_has_more_than_its_part_of_a_sum_onto_a_row(heavy, monkeypatch):
    """Some rows weigh much more than the rest: rows that weigh next to nothing do not fill up their groups."""
    members, seen, least = [], [], 5
    for member in parties(400, 400):
        weight = np.where(np.arange(400) % 50 == 7, heavy, 1.0)
        members.append(simfl.Party(member.name, member.rows.X, member.rows.y, weight))
    added = training.sum_onto_similar

    def look(rows, g, h, n_rows, seed):
        total = np.bincount(rows[:, 0], weights=h[:, 0], minlength=n_rows)
        seen.append((h[:, 0] / total[rows[:, 0]]).max())
        return added(rows, g, h, n_rows, seed)

    monkeypatch.setattr(training, "sum_onto_similar", look)
    chosen = {"objective": "reg:squarederror", "n_trees": 2, "random_state": 0}  # the hessian of a row is its weight
    simfl.train(members, recipe="similar", min_group=least, callbacks=[], **chosen)
    assert seen
    assert max(seen) <= 1 / least + 1e-6


@pytest.mark.parametrize("heavy", [1.0, 10.0, 1e6])
def test_a_heavy_row_is_not_the_whole_of_a_sum_of_trees_grown_together(heavy):
    """A party counts its rows by their weight: of two parties, each must have enough of it in every leaf."""
    least, weight = 100, np.where(np.arange(1000) % 50 == 7, heavy, 1.0)
    members = [simfl.Party(m.name, m.rows.X, m.rows.y, weight) for m in parties(1000, 1000)]
    chosen = {"n_trees": 2, "random_state": 0, "min_group": least, "callbacks": []}
    model = simfl.train(members, recipe="joint", **chosen)
    for member in members:
        for leaf in model.booster.predict(xgb.DMatrix(member.rows.X), pred_leaf=True).T:
            own = [weight[leaf == number] for number in np.unique(leaf)]
            assert min(w.sum() / w.max() for w in own) >= LIGHT * least / 8  # a quarter of them, by noisy counts
    n_leaves = [
        len(np.unique(leaf)) for leaf in model.booster.predict(xgb.DMatrix(members[0].rows.X), pred_leaf=True).T
    ]
    assert heavy > 10 or min(n_leaves) > 2
