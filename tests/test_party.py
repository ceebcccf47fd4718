"""What leaves a party: every byte of a run is watched."""

import json

import numpy as np
import pytest
from msgspec.structs import replace

import simfl
from simfl import hub, wire
from simfl import messages as msg
from simfl.errors import ProtocolError
from simfl.params import prepare_params, train_params
from simfl.training import trees
from simfl.transport.local import LocalTransport

STATISTICS = ("sum_hessian", "base_weights", "loss_changes")


class Tap(LocalTransport):
    """Keeps the bytes of all replies."""

    def __init__(self, parties):
        super().__init__(parties, n_jobs=1)
        self.left = []

    def _carry(self, party, message, data, threads):
        reply = super()._carry(party, message, data, threads)
        self.left.append((party, reply, wire.encode(reply)))
        return reply


def strange_rows(n, seed):
    """Values whose bytes do not come about by chance."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, 5)) * np.pi).astype(np.float32)


def play(parties, objective, recipe="default", **more):
    tap = Tap(parties)
    stage_1 = {name: more.pop(name) for name in ("matching", "ids") if name in more}
    prepared = hub.prepare(tap, prepare_params(recipe=recipe, random_state=0, validation_fraction=0.2, **stage_1))
    more = {"rematch": 3} | more if recipe == "default" else more
    training = hub.train(
        tap, prepared, train_params(recipe=recipe, objective=objective, n_trees=6, max_depth=3, **more)
    )
    return tap, training


def regression_parties():
    return [simfl.Party(f"p{i}", strange_rows(n, i), strange_rows(n, i + 9)[:, 0]) for i, n in enumerate((60, 60, 40))]


def test_a_party_of_one_row_does_not_give_it_away_as_a_sum():
    members = [*regression_parties(), simfl.Party("one", strange_rows(1, 77), [0.5])]
    tap, _ = play(members, "reg:squarederror", turns="proportional")
    sent = b"".join(without_thresholds(reply) for _, reply, _ in tap.left)
    assert not any(np.float64(v).tobytes() in sent for v in members[-1].rows.X.ravel())


def test_a_rematch_sends_no_more_values_than_hashing_did():
    tap, _ = play(regression_parties(), "reg:squarederror", matching="shared")
    hashes = {p: r.values.shape for p, r, _ in tap.left if isinstance(r, msg.Hashes)}
    leaves = [(p, r.leaves.shape) for p, r, _ in tap.left if isinstance(r, msg.LeavesOfRows)]
    assert leaves
    assert all(shape[0] == hashes[p][0] and shape[1] <= hashes[p][1] for p, shape in leaves)


def without_thresholds(reply):
    """A threshold is one value of one of the builder's rows: the one way in which a single value may leave."""
    if not isinstance(reply, msg.Grown):
        return wire.encode(reply)
    empty = wire.pack(np.empty(0, np.float32))
    return wire.encode(replace(reply, trees=[replace(tree, threshold=empty) for tree in reply.trees]))


@pytest.mark.parametrize("recipe", ["default", "paper"])
def test_no_message_carries_a_row_nor_a_value_of_one_but_the_thresholds(recipe):
    members = regression_parties()
    tap, _ = play(members, "reg:squarederror", recipe=recipe)
    sent = b"".join(without_thresholds(reply) for _, reply, _ in tap.left)
    values = np.concatenate([party.rows.X.ravel() for party in members])
    assert not any(np.float32(v).tobytes() in sent or np.float64(v).tobytes() in sent for v in values)


@pytest.mark.parametrize("recipe", ["default", "paper"])
def test_no_message_carries_a_label(recipe):
    members = regression_parties()
    tap, _ = play(members, "reg:squarederror", recipe=recipe, base_score=0.5)
    sent = b"".join(data for _, _, data in tap.left)
    for party in members:
        for y in party.rows.y:
            for value in (y, -y, y - 0.5, 0.5 - y):  # also not as the first gradient
                assert np.float32(value).tobytes() not in sent
                assert np.float64(value).tobytes() not in sent


def test_the_labels_of_classes_do_not_travel_row_by_row():
    X = strange_rows(60, 0)
    y = np.where(X[:, 0] > 0, "ill", "well")
    tap, _ = play([simfl.Party("a", X[:30], y[:30]), simfl.Party("b", X[30:], y[30:])], "binary:logistic")
    sent = b"".join(data for _, _, data in tap.left)
    assert sent.count(b"ill") == sent.count(b"well") == 2  # once per party: the list of its classes


@pytest.mark.parametrize("recipe", ["default", "paper"])
def test_no_message_carries_xgboosts_node_statistics(recipe, monkeypatch):
    found = []
    original = trees.from_booster

    def spy(booster):
        saved = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"][0]
        inner = [left >= 0 for left in saved["left_children"]]  # a leaf's weight is its value, which may leave
        found.extend(
            v for name in STATISTICS for v, i in zip(saved[name], inner, strict=True) if i and v != round(v, 3)
        )
        return original(booster)

    monkeypatch.setattr(trees, "from_booster", spy)
    tap, _ = play(regression_parties(), "reg:squarederror", recipe=recipe, learning_rate=0.3)
    sent = b"".join(data for _, _, data in tap.left)
    assert len(found) > 50
    assert not any(np.float32(v).tobytes() in sent or np.float64(v).tobytes() in sent for v in found)
    assert not any(name.encode() in sent for name in STATISTICS)


@pytest.mark.parametrize(("matching", "kinds"), [("shared", {"Hashes", "LeavesOfRows"}), ("blind", {"HiddenRows"})])
def test_only_hashes_and_leaves_grow_with_the_rows_of_the_party_that_sends_them(matching, kinds):
    def sizes(n):
        members = [simfl.Party("a", strange_rows(40, 0), strange_rows(40, 9)[:, 0])]
        members.append(simfl.Party("b", strange_rows(n, 1), strange_rows(n, 2)[:, 0]))
        few_leaves = {"max_leaves": 4, "grow_policy": "lossguide", "extra_depth": 0}
        tap, _ = play(members, "reg:squarederror", matching=matching, **few_leaves)
        sent = {type(reply).__name__ for party, reply, _ in tap.left if party == "b"}
        return {k: max(len(d) for p, r, d in tap.left if p == "b" and type(r).__name__ == k) for k in sent}

    few, many = sizes(50), sizes(500)
    grown = {kind for kind in few if many[kind] > few[kind] + 200}
    assert grown == kinds


def test_a_party_refuses_what_does_not_fit_its_state():
    party = simfl.Party("a", strange_rows(10, 0), np.arange(10))
    with pytest.raises(ProtocolError, match=r"Party 'a'.*before a training began"):
        party.handle(msg.Finish(round=0, previous=[]))
    with pytest.raises(ProtocolError, match=r"Party 'a'.*before it had hashed"):
        party.handle(
            msg.Match(
                seed=0, n_neighbors=1, max_candidates=None, parties=["a"], bucket_values=[], tables={}, round=None
            )
        )
    with pytest.raises(ProtocolError, match="Party 'a' cannot answer Matched"):
        party.handle(msg.Matched(equal_hashes={}, most_uses=0))
    with pytest.raises(ProtocolError, match=r"speaks version 2 .* the hub 99"):
        party.handle(msg.Describe(version=99, validation_fraction=0.0, seed=0))


def test_leaf_values_for_trees_never_seen_are_refused():
    party = simfl.Party("a", strange_rows(10, 0), np.arange(10.0))
    party.handle(msg.Describe(version=msg.VERSION, validation_fraction=0.0, seed=0))
    params = train_params(objective="reg:squarederror")
    party.handle(msg.Start(params=params, seed=0, classes=None, base_margin=[0.0], remember=0))
    values = msg.AdoptedTree(values=wire.pack(np.zeros(3, np.float32)), structure=None)
    with pytest.raises(ProtocolError, match="has not seen"):
        party.handle(msg.Finish(round=1, previous=[values]))


def test_a_party_shows_itself_without_its_rows():
    assert repr(simfl.Party("a", strange_rows(10, 0), np.arange(10))) == "Party('a', 10 rows, 5 features)"
