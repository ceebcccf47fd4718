import numpy as np
import pytest

import simfl
from benchmarks.wire import watched
from simfl.transport.local import LocalTransport


@pytest.fixture
def parties():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    y = (X[:, 0] + rng.normal(size=300) > 0).astype(int)
    return [simfl.Party(f"party {i}", X[i::3], y[i::3]) for i in range(3)]


@pytest.mark.parametrize(("recipe", "hops"), [("paper", 2), ("similar", 3)])
def test_a_tree_takes_two_hops_with_the_papers_recipe_and_three_with_ours(parties, recipe, hops):
    ready = simfl.prepare(parties, recipe=recipe, random_state=0)
    counted = []
    for n_trees in (3, 7):
        with watched() as wire:
            simfl.train(ready, n_trees=n_trees, callbacks=[])
        counted.append(wire.hops)
    assert counted[1] - counted[0] == 4 * hops
    assert wire.messages == 2 * wire.hops


def test_bytes_are_those_of_the_traffic_and_watching_changes_no_model(parties):
    plain = simfl.train(parties, n_trees=5, random_state=0, callbacks=[])
    before = LocalTransport.ask_all
    with watched() as wire:
        model = simfl.train(parties, n_trees=5, random_state=0, callbacks=[])
    assert LocalTransport.ask_all is before
    assert wire.bytes == model.n_bytes
    assert 0 < wire.critical_seconds <= wire.party_seconds
    assert np.array_equal(model.margins(parties[0].rows.X), plain.margins(parties[0].rows.X))
