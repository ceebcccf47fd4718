"""Protections that can be had for some accuracy: groups and cut points."""

import warnings

import numpy as np
import pytest

import simfl
from simfl import messages as msg
from simfl.errors import PrivacyWarning
from tests.wire import model_bits, parties, recorded, row_sums, train

# --- small groups ----------------------------------------------------------------------------------------------------


def group_sizes(min_group, **more):
    """How many rows are in each sum of the first tree: with squared error every hessian is one."""
    seen = recorded(parties(300, 200, 3))
    params = {"objective": "reg:squarederror", "n_trees": 4, "rematch": 2, "random_state": 0}
    train(seen, min_group=min_group, **params, **more)
    found = []
    for party, message, reply in seen.log:
        if isinstance(reply, msg.RowSums):
            _, sums = row_sums(reply.sums, message)
            found.append((party, np.rint(sums[sums != 0]).astype(int)))
    return found


@pytest.mark.parametrize("more", [{}, {"matching": "shared"}, {"n_neighbors": 1}])
def test_every_sum_holds_the_least_number_of_rows(more):
    sizes = group_sizes(5, **more)
    assert len(sizes) == 8
    for party, counts in sizes:
        if party == "p2":
            assert len(counts) == 0  # three rows are too few: they are not sent at all
        else:
            assert counts.min() >= 5
            assert counts.sum() == (300 if party == "p0" else 200)
    assert min(counts.min() for _, counts in group_sizes(1, **more)) == 1


def test_groups_cost_little_and_one_is_the_plain_way():
    plain = simfl.train(parties(300, 200), n_trees=20, random_state=0)
    one = simfl.train(parties(300, 200), n_trees=20, random_state=0, min_group=1)
    assert model_bits(plain) == model_bits(one)
    grouped = simfl.train(parties(300, 200), n_trees=20, random_state=0, min_group=4)
    assert grouped.history[-1].train["logloss"] < plain.history[-1].train["logloss"] + 0.05


def test_a_saved_preparation_knows_which_rows_are_near(tmp_path):
    members = parties(100, 80)
    ready = simfl.prepare(members, random_state=0)
    ready.save(tmp_path / "ready")
    again = simfl.Preparation.load(tmp_path / "ready", members)
    more = {"n_trees": 6, "min_group": 4}
    assert model_bits(simfl.train(ready, **more)) == model_bits(simfl.train(again, **more))


def test_two_parties_are_told_what_a_sum_reveals():
    with pytest.warns(PrivacyWarning, match=r"'p0' sees the exact sums of 'p1'.*gives its label away.*min_group=5"):
        simfl.train(parties(30, 30), n_trees=2, masked=True)
    with pytest.warns(PrivacyWarning, match="each sum holds 3 rows"):
        simfl.train(parties(30, 30), n_trees=2, masked=True, min_group=3)


def test_three_parties_and_one_process_are_not_warned():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        simfl.train(parties(30, 30, 30), n_trees=2, masked=True)
        simfl.train(parties(30, 30), n_trees=2)
    assert not [w for w in told if issubclass(w.category, PrivacyWarning)]


# --- thresholds ------------------------------------------------------------------------------------------------------


def test_thresholds_are_values_of_rows_except_with_the_joint_recipe():
    def share(recipe):
        members = parties(300, 200)
        nodes = simfl.train(members, recipe=recipe, random_state=0, n_trees=6).booster.trees_to_dataframe()
        found = nodes.loc[nodes["Feature"] != "Leaf", "Split"].to_numpy(np.float32)
        return np.isin(found, np.concatenate([p.rows.X.ravel() for p in members])).mean()

    assert share("similar") > 0.9
    assert share("paper") > 0.9
    assert share("joint") == 0
