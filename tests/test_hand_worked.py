"""Two parties of three rows each: every hash, similar row, G, H and leaf value worked out by hand.

Rows (features x1, x2, x3, x4) and labels; hash k is floor(x_k), for k = 1, 2, 3:

    a0 (0.2, 0.5, 0.4, 0)  y 1   hashes 0 0 0        b0 (0.4, 0.6, 0.3, 0)  y 1   hashes 0 0 0
    a1 (1.5, 0.5, 0.3, 0)  y 2   hashes 1 0 0        b1 (1.1, 0.7, 0.1, 0)  y 4   hashes 1 0 0
    a2 (3.1, 2.5, 1.5, 0)  y 6   hashes 3 2 1        b2 (1.6, 0.2, 1.2, 0)  y 3   hashes 1 0 1

Most equal hashes: a0-b0 three, a1-b1 three, a2-b2 one; b2 has two in common with a1.
So S of a is (b0, b1, b2) and S of b is (a0, a1, a1).

Squared error from the start value 0: g = -y, h = 1. At builder a:

    G = (-1-1, -2-4-3, -6) = (-2, -9, -6),  H = (2, 3, 1)

Best split with lambda 1: x1 < 1.5, gain 4/3 + 225/5 - 289/7 = 5.05 (the other way on x1: 121/6 + 36/2 - 289/7 < 0).
Leaf values of the paper: 2/(2+1) = 0.6667 and 15/(4+1) = 3.
Leaf values from all rows: left a0, b0, b1: 6/(3+1) = 1.5; right a1, a2, b2: 11/(3+1) = 2.75.

After the first tree of the paper: a (2/3, 3, 3), b (2/3, 2/3, 3). At builder b, whose rows are those similar to a's:

    G = (-1/3-1/3, -10/3+1, 0-3) = (-2/3, -7/3, -3),  H = (2, 2, 2)

Best split: x1 < 1.1, score 4/27 + 256/45 = 5.84 (b0, b1 | b2: 9/5 + 9/3 = 4.8; b1 alone: 49/27 + 121/45 = 4.50).
Leaf values: (2/3)/(2+1) = 2/9 and (16/3)/(4+1) = 16/15.
"""

from functools import cache

import numpy as np
import pytest

import simfl
from simfl import hub, wire
from simfl import messages as msg
from simfl.params import prepare_params
from simfl.preprocessing.lsh import HashFamily
from simfl.preprocessing.tables import HashValues, merge_tables
from tests.wire import recorded, settled, similar_rows
from tests.wire import row_sums as words_of

A = np.array([[0.2, 0.5, 0.4, 0], [1.5, 0.5, 0.3, 0], [3.1, 2.5, 1.5, 0]])
B = np.array([[0.4, 0.6, 0.3, 0], [1.1, 0.7, 0.1, 0], [1.6, 0.2, 1.2, 0]])
SETTINGS = {
    "objective": "reg:squarederror",
    "base_score": 0.0,
    "n_trees": 2,
    "learning_rate": 1.0,
    "max_depth": 1,
    "min_child_weight": 0.0,
}
RECIPES = {"paper": {}, "similar": {"extra_depth": 0, "subsample": 1.0}}


def both():
    return [simfl.Party("a", A, [1, 2, 6]), simfl.Party("b", B, [1, 4, 3])]


@pytest.fixture(scope="module")
def played():
    family = HashFamily(np.eye(3, 4), np.zeros(3), bucket_width=1.0)

    @cache
    def play(recipe):
        transport = recorded(both())
        prepared = hub.prepare(transport, prepare_params(recipe="paper", bucket_width=1.0, random_state=0))
        return transport, hub.train(transport, prepared, settled(recipe=recipe, **SETTINGS | RECIPES[recipe]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HashFamily, "draw", lambda *args, **kwargs: family)
        yield play


def test_every_hash(played):
    transport, _ = played("paper")
    hashes = {
        party: wire.unpack(reply.values, "u1", (3, 3)) + wire.unpack(reply.lowest, "i4", (3,))
        for party, reply in transport.replies(msg.Hashes).items()
    }
    assert hashes["a"].tolist() == [[0, 0, 0], [1, 0, 0], [3, 2, 1]]
    assert hashes["b"].tolist() == [[0, 0, 0], [1, 0, 0], [1, 0, 1]]
    tables = merge_tables({name: HashValues.of(values) for name, values in hashes.items()})
    assert [values.tolist() for values in tables.values] == [[0, 1, 3], [0, 2], [0, 1]]
    assert tables.codes["a"].tolist() == [[0, 0, 0], [1, 0, 0], [2, 1, 1]]
    assert tables.codes["b"].tolist() == [[0, 0, 0], [1, 0, 0], [1, 0, 1]]


def test_every_similar_row(played):
    transport, _ = played("paper")
    similar = {name: similar_rows(session) for name, session in transport.handlers.items()}
    assert similar["a"]["b"].tolist() == [[0], [1], [2]]
    assert similar["b"]["a"].tolist() == [[0], [1], [1]]
    means = {party: reply.equal_hashes for party, reply in transport.replies(msg.Matched).items()}
    assert means["a"]["b"] == pytest.approx((3 + 3 + 1) / 3)
    assert means["b"]["a"] == pytest.approx((3 + 3 + 2) / 3)


def row_sums(transport, number, exponents):
    (reply,) = (r for _, _, r in transport.log if isinstance(r, msg.RowSums) and r.round == number)
    question = next(m for _, m, r in transport.log if r is reply)
    assert question.exponents == exponents
    return [part[:, 0] for part in words_of(reply.sums, question)]


def exponents_of(transport):
    return transport.questions(msg.SumOntoRows)[0].exponents


def test_every_sum_of_the_first_tree(played):
    transport, _ = played("paper")
    g, h = row_sums(transport, 0, exponents_of(transport))
    assert g.tolist() == [-1, -7, 0]  # b0 onto a0, b1 and b2 onto a1
    assert h.tolist() == [1, 2, 0]


def test_every_leaf_value_of_the_paper(played):
    _, training = played("paper")
    tree = training.rounds[0][0]
    assert tree.feature.tolist() == [0, -1, -1]
    assert tree.threshold[0] == np.float32(1.5)
    assert tree.value[1:] == pytest.approx([2 / 3, 3])


def test_every_leaf_value_from_all_rows(played):
    transport, training = played("similar")
    sums = {
        party: (wire.unpack(reply.gradients[0], "i8", (2,)), wire.unpack(reply.hessians[0], "i8", (2,)))
        for party, _, reply in transport.log
        if isinstance(reply, msg.LeafSums) and reply.round == 0
    }
    exponents = transport.questions(msg.SumPerLeaf)[0].exponents
    assert np.ldexp(sums["a"][0].astype(float), exponents[0]).tolist() == [-1, -8]
    assert np.ldexp(sums["b"][0].astype(float), exponents[0]).tolist() == [-5, -3]
    assert np.ldexp(sums["a"][1].astype(float), exponents[1]).tolist() == [1, 2]
    assert np.ldexp(sums["b"][1].astype(float), exponents[1]).tolist() == [2, 1]
    tree = training.rounds[0][0]
    assert tree.value[1:] == pytest.approx([1.5, 2.75])


def test_every_sum_of_the_second_tree(played):
    transport, training = played("paper")
    g, h = row_sums(transport, 1, exponents_of(transport))
    assert g == pytest.approx([-1 / 3, 1, -3], abs=1e-6)  # a0 onto b0, a1 onto b1, a2 onto b2
    assert h.tolist() == [1, 1, 1]
    assert training.history[1].builder == "b"


def test_every_leaf_value_of_the_second_tree(played):
    _, training = played("paper")
    tree = training.rounds[1][0]
    assert tree.feature.tolist() == [0, -1, -1]
    assert tree.threshold[0] == np.float32(1.1)
    assert tree.value[1:] == pytest.approx([2 / 9, 16 / 15])


def test_the_model_adds_the_trees_up(played):
    _, training = played("paper")
    model = simfl.train(both(), recipe="paper", bucket_width=1.0, random_state=0, **SETTINGS)
    assert model.n_trees == len(training.rounds) == 2
    assert model.predict(A) == pytest.approx([2 / 3 + 2 / 9, 3 + 16 / 15, 3 + 16 / 15])
    assert model.predict(B) == pytest.approx([2 / 3 + 2 / 9, 2 / 3 + 16 / 15, 3 + 16 / 15])
