"""Rows that count more or less, at a party: what a small group is."""

import numpy as np
import pytest
import xgboost as xgb

import simfl
from simfl.party import training
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
