"""Sums onto rows in words of 3 or 4 bytes, rounded at random, beside exact ones, from end to end.

Where no short word is fine enough, sums are exact; nothing else differs.
"""

import numpy as np
import pytest
from sklearn.metrics import log_loss

import simfl
from simfl import messages as msg
from simfl.hub import precision
from simfl.training.trees import all_trees
from tests.wire import row_sums

RULE = {"max_depth": 4, "learning_rate": 0.2, "subsample": 1.0, "rematch": 20, "base_score": 0.5}
RULE |= {"random_state": 0, "callbacks": []}


def table(seed, n):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6)).astype(np.float32)
    return X, (X[:, 0] + X[:, 1] * X[:, 2] + 0.5 * rng.normal(size=n) > 0).astype(int)


def prepared(seed, n_parties):
    X, y = table(seed, 400 * n_parties)
    members = [simfl.Party(f"p{i}", X[i::n_parties], y[i::n_parties]) for i in range(n_parties)]
    return simfl.prepare(members, random_state=0)


def learned(ready, n_trees, *, exact, **more):
    """The model, and all questions for sums onto rows with their answers."""
    seen = []
    ready.transport.observe = lambda *both: isinstance(both[1], msg.SumOntoRows) and seen.append(both)
    with pytest.MonkeyPatch.context() as patch:
        if exact:
            patch.setattr(precision, "VISIBLE", (0.0, 0.0))
        model = simfl.train(ready, n_trees=n_trees, **RULE | more)
    assert {asked.word_bytes for _, asked, _ in seen} <= ({7, 8} if exact else {3, 4})
    return model, seen


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("n_parties", [2, 3, 10])
def test_the_first_tree_is_that_of_exact_sums(n_parties, masked):
    """At a margin of zero every gradient is a half and every hessian a quarter: on the grid nothing is rounded."""
    ready = prepared(1, n_parties)
    short, exact = (learned(ready, 1, exact=exact, masked=masked)[0] for exact in (False, True))
    (one,), (other,) = all_trees(short.booster), all_trees(exact.booster)
    assert len(one.feature) > 8
    for name in ("feature", "threshold", "left"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()
    np.testing.assert_allclose(one.value, other.value, atol=1e-6)


def test_later_sums_are_exact_but_for_a_step_of_the_grid_and_right_on_average():
    ready = prepared(2, 5)
    found = []
    for exact in (False, True):
        second = [both for both in learned(ready, 2, exact=exact)[1] if both[1].round == 1]
        found.append({party: (asked, row_sums(reply.sums, asked)) for party, asked, reply in second})
    short, exact = found
    assert len(short) == 4
    for part in (0, 1):  # gradients and hessians
        steps = 2.0 ** short["p0"][0].exponents[part]
        off = np.concatenate([(short[p][1][part] - exact[p][1][part]).ravel() / steps for p in short])
        assert np.abs(off).max() < 1.001
        off = off[np.abs(off) > 1e-3]  # rows that nobody resembles have nothing to be rounded
        assert len(off) > 400
        assert abs(off.mean()) < 4 * 0.5 / np.sqrt(len(off))


@pytest.mark.parametrize("n_parties", [2, 6])
def test_many_trees_learn_what_exact_sums_learn(n_parties):
    losses = {False: [], True: []}
    for seed in range(3):
        ready, (X, y) = prepared(seed, n_parties), table(seed + 100, 4000)
        for exact, own in losses.items():
            own.append(log_loss(y, learned(ready, 40, exact=exact)[0].predict_proba(X)))
    short, exact = (np.mean(own) for own in losses.values())
    assert 0.97 < short / exact < 1.03
    assert exact < 0.45  # and both learned something
