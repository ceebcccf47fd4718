"""Protections that can be had for some accuracy: groups, cut points, noise."""

import warnings

import numpy as np
import pytest
from msgspec.structs import replace

import simfl
from simfl import messages as msg
from simfl import wire
from simfl.errors import DataError, PrivacyError, PrivacyWarning
from tests.wire import by_party, model_bits, parties, recorded, row_sums, rows, train

# --- small groups ----------------------------------------------------------------------------------------------------


def group_sizes(min_group, **more):
    """How many rows are in each sum of the first tree: with squared error every hessian is one."""
    seen = recorded(parties(300, 200, 3))
    params = {"objective": "reg:squarederror", "n_trees": 4, "rematch": 2, "random_state": 0}
    train(seen, min_group=min_group, **params, **more)
    found = []
    for party, message, reply in seen.log:
        if isinstance(reply, msg.RowSums):
            for array in reply.sums.values():
                _, sums = row_sums(array, message)
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


# --- differential privacy --------------------------------------------------------------------------------------------


def test_noise_is_added_to_all_sums_and_nothing_is_sent_without():
    def played(epsilon):
        seen = recorded(parties(200, 150))
        train(seen, matching="shared", random_state=0, n_trees=4, epsilon=epsilon)
        return seen

    def first(seen, kind):
        return next(wire.encode(r) for _, _, r in seen.log if isinstance(r, kind))

    noisy, plain = [played(5.0), played(5.0)], [played(None), played(None)]
    replies = [reply for _, _, reply in noisy[0].log]
    assert not any(isinstance(r, msg.LabelSums) for r in replies)
    scores = [r.scores for r in replies if hasattr(r, "scores")]
    assert scores == [None] * 10  # two per tree, two at the end
    for kind in (msg.RowSums, msg.LeafSums):
        assert first(noisy[0], kind) != first(noisy[1], kind)
        assert first(plain[0], kind) == first(plain[1], kind)


@pytest.mark.parametrize("more", [{}, {"masked": True}, {"turns": "all"}])
def test_much_epsilon_costs_little_and_is_told_with_the_model(more, tmp_path):
    members = parties(600, 500, 500)
    model = simfl.train(members, n_trees=20, max_depth=3, epsilon=2000.0, delta=1e-6, random_state=0, **more)
    X, y = rows(2000, 99)
    assert (model.predict(X) == y).mean() > 0.7
    assert (model.epsilon, model.delta) == (2000.0, 1e-6)
    model.save(tmp_path / "m.ubj")
    assert simfl.load(tmp_path / "m.ubj").epsilon == 2000.0
    assert model.history[-1].train == {}
    assert simfl.train(members[:2], n_trees=2).epsilon is None


def test_several_classes_can_have_noise():
    members = [
        simfl.Party(f"p{i}", X, np.digitize(X[:, 0], [-0.5, 0.5]))
        for i, (X, _) in enumerate([rows(900, 0), rows(700, 1)])
    ]
    model = simfl.train(members, objective="multi:softprob", n_trees=15, max_depth=3, epsilon=3000.0, random_state=0)
    X, _ = rows(500, 9)
    assert (model.predict(X) == np.digitize(X[:, 0], [-0.5, 0.5])).mean() > 0.7


def test_a_party_sends_no_more_sums_than_were_counted_on():
    seen = recorded(parties(60, 50))
    train(seen, random_state=0, n_trees=2, epsilon=5.0)
    party = seen.handlers["p0"]
    asked = [question for question, _ in by_party(seen.log)["p0"]]
    start, sums = (next(m for m in asked if isinstance(m, kind)) for kind in (msg.Start, msg.SumOntoRows))
    party.handle(start)
    again = replace(sums, previous=[])
    for _ in range(2):
        party.handle(again)
    with pytest.raises(PrivacyError, match="more sums than epsilon"):
        party.handle(again)


def test_heavy_rows_are_refused_with_noise():
    X, y = rows(50, 0)
    heavy = simfl.Party("heavy", X, y, sample_weight=np.full(50, 3.0))
    with pytest.raises(DataError, match="weight above 1"):
        simfl.train([heavy, *parties(50)], epsilon=1.0, n_trees=2)
