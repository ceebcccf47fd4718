"""What the messages can carry, and what they refuse."""

import math

import msgspec
import numpy as np
import pytest
import xgboost as xgb
from hypothesis import given
from hypothesis import strategies as st

from simfl import messages as msg
from simfl import wire
from simfl.errors import ProtocolError
from simfl.training.trees import from_booster


def a_tree(seed=0, depth=4):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(200, 3)).astype(np.float32)
    params = {"max_depth": depth, "base_score": 0.0}
    return from_booster(xgb.train(params, xgb.QuantileDMatrix(X, X[:, 0] * X[:, 1]), 1))


@pytest.mark.parametrize("seed", range(5))
def test_a_tree_survives_the_journey(seed):
    tree = a_tree(seed, depth=seed)
    message = wire.tree_to_message(tree)
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=msg.TreeStructure)
    back = wire.tree_from_message(travelled, n_features=3).with_leaf_values(tree.value[tree.leaves])
    for name, value in vars(tree).items():
        assert np.array_equal(getattr(back, name), value), name


def test_a_split_costs_five_bytes_and_a_few_bits():
    tree = a_tree(depth=8)
    message = msgspec.msgpack.encode(wire.tree_to_message(tree))
    n_splits = tree.n_leaves - 1
    assert len(message) < 5.5 * n_splits + 120


def broken(**changes):
    return msgspec.structs.replace(wire.tree_to_message(a_tree()), **changes)


@pytest.mark.parametrize(
    "message",
    [
        broken(n_nodes=2),
        broken(n_nodes=-1),
        broken(n_nodes=10**12),
        broken(inner=b""),
        broken(inner=bytes(len(wire.tree_to_message(a_tree()).inner))),
        broken(feature=wire.pack(np.full((a_tree().n_leaves - 1), 3, np.uint8))),
        broken(feature=wire.pack(np.full((a_tree().n_leaves - 1), -1, np.int32))),
        broken(threshold=wire.pack(np.full((a_tree().n_leaves - 1), np.nan, np.float32))),
        broken(threshold=wire.pack(np.zeros(3, np.float32))),
        broken(default_left=b"\0" * 99),
    ],
)
def test_what_is_not_a_tree_is_refused(message):
    with pytest.raises(ProtocolError):
        wire.tree_from_message(message, n_features=3)


def test_a_tree_that_runs_in_circles_is_refused():
    # Five nodes of which the last two are splits: their children would stand before them.
    message = msg.TreeStructure(
        n_nodes=5,
        inner=np.packbits([0, 0, 0, 1, 1]).tobytes(),
        feature=wire.pack(np.zeros(2, np.uint8)),
        threshold=wire.pack(np.zeros(2, np.float32)),
        default_left=b"\0",
    )
    with pytest.raises(ProtocolError):
        wire.tree_from_message(message, n_features=3)


@given(st.binary(max_size=300))
def test_rubbish_is_refused(data):
    with pytest.raises(ProtocolError):
        wire.decode(data)


@given(st.data())
def test_a_damaged_message_is_refused_or_still_a_message(data):
    whole = bytearray(wire.encode(msg.SumFeatures()) if data.draw(st.booleans()) else wire.encode(a_reply()))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        message = wire.decode(bytes(whole))
    except ProtocolError:
        return
    assert isinstance(message, msg.Message)


def a_reply():
    scores = wire.pack_wide([5, 3, 0, 0])
    sums = wire.pack_words(np.arange(3, dtype=np.uint64), 3, (3,))
    return msg.RowSums(round=0, sums=sums, scores=scores)


@given(
    st.sampled_from(["u1", "u3", "u7", "i4", "i8", "f4", "f8"]),
    st.lists(st.integers(-2, 5), max_size=3).map(tuple),
    st.binary(max_size=64),
)
def test_an_array_has_the_bytes_that_it_says(dtype, shape, data):
    array = msg.Array(dtype, shape, data)
    fits = min(shape, default=1) >= 0 and int(np.prod(shape, dtype=object)) * int(dtype[1]) == len(data)
    if fits and shape:
        assert wire.unpack(array, dtype, shape).shape == shape
    elif not fits:
        with pytest.raises(ProtocolError):
            wire.unpack(array, dtype, shape)


def test_the_wrong_kind_of_message_is_refused_with_its_sender():
    with pytest.raises(ProtocolError, match="'b' sent SumFeatures where RowSums belongs"):
        wire.expect(msg.RowSums, msg.SumFeatures(), "b")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused_however_deep_it_lies(number):
    for reply in (
        msg.Matched(equal_hashes={"b": number}, most_uses=1),
        msg.Classes(classes=[number, "a"]),
        msg.Started(gradient=1.0, hessian=number, total_gradient=1.0, total_hessian=1.0),
    ):
        with pytest.raises(ProtocolError, match="not a SimFL message"):
            wire.decode(wire.encode(reply))
    assert wire.decode(wire.encode(a_reply())) == a_reply()
