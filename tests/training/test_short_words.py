"""Sums onto rows in words of 3 or 4 bytes, rounded at random, beside exact ones, from end to end.

The same objective, given as a function, has exact sums: nobody knows how large its gradients can become. Parties of
fewer than 1,000 rows grow their trees with XGBoost either way, so that nothing but the words differs.
"""

import numpy as np
import pytest
from sklearn.metrics import log_loss

import simfl
from simfl import messages as msg
from simfl.training.trees import all_trees
from tests.wire import row_sums

RULE = {"max_depth": 4, "learning_rate": 0.2, "subsample": 1.0, "rematch": 20, "random_state": 0, "callbacks": []}


def logistic(y_true, y_pred):
    p = 1 / (1 + np.exp(-y_pred))
    return p - y_true, p * (1 - p)


def table(seed, n):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6)).astype(np.float32)
    return X, (X[:, 0] + X[:, 1] * X[:, 2] + 0.5 * rng.normal(size=n) > 0).astype(int)


def prepared(seed, n_parties):
    X, y = table(seed, 400 * n_parties)
    members = [simfl.Party(f"p{i}", X[i::n_parties], y[i::n_parties]) for i in range(n_parties)]
    return simfl.prepare(members, random_state=0)


def learned(ready, objective, n_trees, **more):
    """The model, and all questions for sums onto rows with their answers."""
    seen = []
    ready.transport.observe = lambda *both: isinstance(both[1], msg.SumOntoRows) and seen.append(both)
    start = 0.0 if callable(objective) else 0.5  # the same margin
    model = simfl.train(ready, objective=objective, base_score=start, n_trees=n_trees, **RULE | more)
    assert {asked.word_bytes for _, asked, _ in seen} <= ({7, 8} if callable(objective) else {3, 4})
    return model, seen


def probabilities(model, X):
    return 1 / (1 + np.exp(-model.margins(X).ravel()))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("n_parties", [2, 3, 10])
def test_the_first_tree_is_that_of_exact_sums(n_parties, masked):
    """At a margin of zero every gradient is a half and every hessian a quarter: on the grid nothing is rounded."""
    ready = prepared(1, n_parties)
    short, exact = (learned(ready, objective, 1, masked=masked)[0] for objective in ("binary:logistic", logistic))
    (one,), (other,) = all_trees(short.booster), all_trees(exact.booster)
    assert len(one.feature) > 8
    for name in ("feature", "threshold", "left"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()
    np.testing.assert_allclose(one.value, other.value, atol=1e-6)


def test_later_sums_are_exact_but_for_a_step_of_the_grid_and_right_on_average():
    ready = prepared(2, 5)
    found = []
    for objective in ("binary:logistic", logistic):
        second = [both for both in learned(ready, objective, 2)[1] if both[1].round == 1]
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
    losses = {"binary:logistic": [], logistic: []}
    for seed in range(3):
        ready, (X, y) = prepared(seed, n_parties), table(seed + 100, 4000)
        for objective, own in losses.items():
            own.append(log_loss(y, probabilities(learned(ready, objective, 40)[0], X)))
    short, exact = (np.mean(own) for own in losses.values())
    assert 0.97 < short / exact < 1.03
    assert exact < 0.45  # and both learned something
