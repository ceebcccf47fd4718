"""What leaves a party: every byte of a run is watched."""

import json
from collections import Counter

import numpy as np
import pytest
from msgspec.structs import replace

import simfl
from simfl import messages as msg
from simfl import wire
from simfl.errors import ProtocolError
from simfl.params import train_params
from simfl.privacy.exact import to_wide, wide_to_bytes
from simfl.training import trees
from tests.wire import recorded, sessions, train, under_training

STATISTICS = ("sum_hessian", "base_weights", "loss_changes")


def strange_rows(n, seed):
    """Values whose bytes do not come about by chance."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, 5)) * np.pi).astype(np.float32)


def play(members, objective="reg:squarederror", recipe="similar", **more):
    """A run of both stages: all replies, with their senders."""
    seen = recorded(members)
    more = {"rematch": 3} | more if recipe == "similar" else more
    params = {"n_trees": 6, "max_depth": 3, "validation_fraction": 0.2, "random_state": 0} | more
    train(seen, objective=objective, recipe=recipe, **params)
    return [(party, reply) for party, _, reply in seen.log]


def regression_parties():
    return [simfl.Party(f"p{i}", strange_rows(n, i), strange_rows(n, i + 9)[:, 0]) for i, n in enumerate((60, 60, 40))]


@pytest.fixture(scope="module", params=["similar", "paper"])
def left(request):
    """What left the parties, by recipe."""
    return play(regression_parties(), recipe=request.param, base_score=0.5)


def in_bytes(left, without_thresholds=False):
    """All replies as bytes. Thresholds are the one way in which single values may leave: those of a builder's rows."""
    empty = wire.pack(np.empty(0, np.float32))
    replies = [reply for _, reply in left]
    if without_thresholds:
        replies = [
            replace(reply, trees=[replace(tree, threshold=empty) for tree in reply.trees])
            if isinstance(reply, msg.Grown)
            else reply
            for reply in replies
        ]
    return b"".join(wire.encode(reply) for reply in replies)


def occurring(values, sent):
    """Those of the values that are somewhere in the bytes: in an array ("<"), as a number (">"), or as a wide sum."""
    kinds = [np.dtype(kind) for kind in ("<f4", "<f8", ">f8")]

    def forms(value):
        wide = wide_to_bytes(to_wide([float(value)])) if abs(value) > 1e-30 else wide_to_bytes([1])
        return [np.asarray(value, kind).tobytes() for kind in kinds] + [wide]

    return [v for v in values if any(form in sent for form in forms(v))]


def test_a_party_of_one_row_does_not_give_it_away_as_a_sum():
    members = [*regression_parties(), simfl.Party("one", strange_rows(1, 77), [0.5])]
    sent = in_bytes(play(members), without_thresholds=True)
    assert not occurring(members[-1].rows.X.ravel(), sent)


def test_a_rematch_sends_no_more_values_than_hashing_did():
    left = play(regression_parties(), matching="shared")
    hashes = {p: r.values.shape for p, r in left if isinstance(r, msg.Hashes) and r.round == 0}
    leaves = [(p, r.values.shape) for p, r in left if isinstance(r, msg.Hashes) and r.round > 0]
    assert leaves
    assert all(shape[0] == hashes[p][0] and shape[1] <= hashes[p][1] for p, shape in leaves)


def test_no_message_carries_a_row_nor_a_value_of_one_but_the_thresholds(left):
    values = np.concatenate([party.rows.X.ravel() for party in regression_parties()])
    assert not occurring(values, in_bytes(left, without_thresholds=True))
    assert occurring(values, in_bytes(left))  # the search finds what is there: thresholds


def test_no_message_carries_a_label(left):
    labels = np.concatenate([party.rows.y for party in regression_parties()])
    first_gradients = labels - 0.5
    assert not occurring([*labels, *-labels, *first_gradients, *-first_gradients], in_bytes(left))


def test_the_search_finds_a_value_wherever_it_is():
    numbers = msg.Started(gradient=0.1, hessian=0.2, total_gradient=0.3, total_hessian=0.4)
    arrays = msg.LeafSums(round=0, gradients=[wire.pack(np.array([0.5]))], hessians=[wire.pack(np.float32([0.6]))])
    wide = msg.LabelSums(sums=wire.pack_wide(to_wide([0.7])))
    sent = in_bytes([("a", numbers), ("a", arrays), ("a", wide)])
    assert occurring([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], sent) == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]


@pytest.mark.parametrize("recipe", ["similar", "paper"])
def test_no_message_carries_the_margin_or_a_gradient_of_a_row(recipe):
    transport, values = recorded(regression_parties()), set()

    class Look(simfl.Callback):
        def after_tree(self, record):
            for run in filter(None, map(under_training, transport.handlers.values())):
                values.update(run.train.margin.ravel().tolist(), run.g.ravel().tolist())

    more = {"recipe": recipe, "n_trees": 4, "max_depth": 3, "base_score": 0.5, "random_state": 0}
    train(transport, callbacks=[Look()], objective="reg:squarederror", **more)
    assert len(values) > 200
    assert not occurring(values, in_bytes([(party, reply) for party, _, reply in transport.log]))


def test_the_labels_of_classes_do_not_travel_row_by_row():
    X = strange_rows(60, 0)
    y = np.where(X[:, 0] > 0, "ill", "well")
    sent = in_bytes(play([simfl.Party("a", X[:30], y[:30]), simfl.Party("b", X[30:], y[30:])], "binary:logistic"))
    assert sent.count(b"ill") == sent.count(b"well") == 2  # once per party: the list of its classes


@pytest.mark.parametrize("params", [{"colsample_bytree": 0.5}, {"recipe": "paper"}])  # XGBoost grows these trees
def test_no_message_carries_xgboosts_node_statistics(params, monkeypatch):
    found = []
    original = trees.from_booster

    def spy(booster):
        saved = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"][-1]
        inner = [left >= 0 for left in saved["left_children"]]  # a leaf's weight is its value, which may leave
        found.extend(
            v for name in STATISTICS for v, i in zip(saved[name], inner, strict=True) if i and v != round(v, 3)
        )
        return original(booster)

    monkeypatch.setattr(trees, "from_booster", spy)
    sent = in_bytes(play(regression_parties(), **params, learning_rate=0.3))
    assert len(found) > 50
    assert not occurring(found, sent)
    assert not any(name.encode() in sent for name in STATISTICS)


@pytest.mark.parametrize(("matching", "kinds"), [("shared", {"Hashes"}), ("blind", {"HiddenRows"})])
def test_only_hashes_and_leaves_grow_with_the_rows_of_the_party_that_sends_them(matching, kinds):
    def sizes(n):
        members = [simfl.Party("a", strange_rows(40, 0), strange_rows(40, 9)[:, 0])]
        members.append(simfl.Party("b", strange_rows(n, 1), strange_rows(n, 2)[:, 0]))
        few_leaves = {"max_depth": 2, "extra_depth": 0}
        largest = Counter()
        for party, reply in play(members, matching=matching, **few_leaves):
            if party == "b":
                kind = type(reply).__name__
                largest[kind] = max(largest[kind], len(wire.encode(reply)))
        return largest

    few, many = sizes(50), sizes(500)
    grown = {kind for kind in few if many[kind] > few[kind] + 200}
    assert grown == kinds


def test_leaf_values_for_trees_never_seen_are_refused():
    (party,) = sessions([simfl.Party("a", strange_rows(10, 0), np.arange(10.0))])
    party.handle(msg.Describe(version=msg.VERSION, validation_fraction=0.0, seed=0))
    params = train_params(objective="reg:squarederror")
    party.handle(msg.Start(params=params, seed=0, classes=None, base_margin=[0.0], remember=0))
    values = msg.AdoptedTree(values=wire.pack(np.zeros(3, np.float32)), structure=None)
    with pytest.raises(ProtocolError, match="has not seen"):
        party.handle(msg.Finish(previous=[values]))


def test_a_party_shows_itself_without_its_rows():
    assert repr(simfl.Party("a", strange_rows(10, 0), np.arange(10))) == "Party('a', 10 rows, 5 features)"
