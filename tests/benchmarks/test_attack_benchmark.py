"""The benchmark of attacks: its page has every figure beside guessing, and bagging is what it says."""

from itertools import repeat

import numpy as np
import pytest

from benchmarks import attacks
from simfl.audit.timberstrike import Equations, Forest


@pytest.fixture
def two_clients():
    rng = np.random.default_rng(0)
    parts = []
    for n in (60, 40):
        X = rng.normal(size=(n, 3)).astype(np.float32)
        parts.append((X, (X[:, 0] > 0).astype(np.int64)))
    return parts


def test_each_clients_trees_have_the_sums_of_its_own_rows(two_clients):
    trees = attacks.bagged(two_clients, rounds=4)
    assert len(trees) == 8
    forest = Forest.of(trees, 0.0, batches=repeat(2))
    for client, (X, y) in enumerate(two_clients):
        mine = (np.arange(8) % 2 == client)[forest.tree_of_node]
        values = Equations.of_values(forest, attacks.XGBOOST["eta"], attacks.XGBOOST["reg_lambda"]).only(mine)
        assert values.misfit(*forest.sums(X, y)) < 1e-3


def test_the_page_shows_guessing_beside_every_rate():
    table = {
        "data": "diabetes",
        "model": "joint",
        "knows": "A party that has the model",
        "sees": "other party",
        "rows": 9,
        "leaves": 1234,
    }
    details = {"auc": 0.6, "auc_low": 0.55, "auc_high": 0.65, "tpr": 0.02, "tpr_low": 0.01, "tpr_high": 0.04}
    details |= {"auc_offline": 0.58, "auc_rmia": 0.59, "auc_confidence": 0.51, "imputed": 0.5}
    finding = {"success": 0.57, "guess": 0.5, "excess": 0.07, "excess_interval": [0.01, 0.12], "details": details}
    member = {"data": "diabetes", "model": "joint", "finding": finding}
    bound = {"training": "joint, epsilon 1", "promise": 1.0, "seed": 0, "bound": 0.2, "right": 60, "guesses": 100}
    found = {
        "tables": [table | {"success": 0.7, "guess": 0.65}],
        "membership": [member | {"shadows": "XGBoost"}, member | {"shadows": None}],
        "epsilon": [bound | {"code": "simfl 1"}],
    }
    text = attacks.page(found, quick=False, picture="attacks.png").text
    assert "| joint | rows of its own | the model | 9 | 1,234 | 70.0 | 65.0 | +5.0 |" in text
    assert "| diabetes | joint | XGBoost | 57.0 | 0.600 | 0.550 | 0.650 | 2.0 | 1.0 | 4.0 |" in text
    assert "| diabetes | joint | 57.0 | 50.0 | +7.0 | +1.0 | +12.0 | 50.0 |" in text
    assert "| joint, epsilon 1 | 1.0 | 0 | 0.20 | 60 | 100 |" in text
    assert "| joint | +5.0 | 0.60 | - |" in text.split("![")[0]  # the verdict comes first
    assert "| joint, epsilon 1 | - | - | 0.20 |" in text.split("![")[0]
    assert "no bound is above its promise" in text


def test_the_page_says_so_if_a_bound_is_above_its_promise():
    bound = {"training": "joint, epsilon 1", "promise": 1.0, "seed": 0, "bound": 1.2, "right": 90, "guesses": 100}
    text = attacks.page({"epsilon": [bound | {"code": "simfl 1"}]}, quick=False, picture="attacks.png").text
    assert "A bound is above its promise" in text
