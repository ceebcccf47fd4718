import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer

import simfl
from simfl import messages as msg
from simfl.params import NAMES
from simfl.privacy import views
from simfl.privacy.case import ATTACKER, VICTIM, Case
from simfl.training.losses import LOSSES

SHARED = {"matching": "shared"} if "matching" in NAMES else {}


@pytest.fixture(scope="module")
def recorded():
    """A real run of the case's parties: every message and its reply."""
    X, y = load_breast_cancer(return_X_y=True)
    case = Case(X, y, 2, 7, dict(SHARED))
    heard = []

    class Recorded(simfl.Party):
        def handle(self, message):
            reply = super().handle(message)
            heard.append((self.name, message, reply))
            return reply

    parties = [Recorded(f"party {i}", case.X[rows], case.y[rows]) for i, rows in enumerate(case.members)]
    simfl.train(parties, n_trees=2, random_state=7, callbacks=[], **SHARED)
    return case, heard


def find(heard, party, kind):
    return next((message, reply) for name, message, reply in heard if name == party and isinstance(reply, kind))


@pytest.mark.parametrize(("place", "side"), [(VICTIM, "victim"), (ATTACKER, "own")])
def test_the_codes_attacked_are_the_codes_sent(recorded, place, side):
    case, heard = recorded
    _, reply = find(heard, f"party {place}", msg.Hashes)
    n, n_hashes = len(case.members[place]), case.hashed.n_hashes
    sent = msg.unpack(reply.values, reply.values.dtype, (n, n_hashes)).astype(int)
    sent = sent + msg.unpack(reply.lowest, "i4", (n_hashes,))
    np.testing.assert_array_equal(sent, getattr(case.hashed, side))


def test_the_sums_sent_are_read_as_the_attack_reads_them(recorded):
    case, heard = recorded
    # The victim builds the first tree, so that round's sums come from the attacker's rows: their labels are read here.
    message, reply = find(heard, f"party {ATTACKER}", msg.RowSums)
    n = len(case.victim)
    gradients, hessians = (
        msg.unpack(arrays[f"party {VICTIM}"], dtype, (n, 1))
        for arrays, dtype in ((reply.gradients, "i4"), (reply.hessians, "i3"))
    )
    view = views.RowSums(gradients, hessians, message.exponents, "binary:logistic", case.start)
    labels = case.y[case.attacker]
    assert view.members().sum() == len(labels)
    np.testing.assert_allclose(view.label_totals().sum(axis=0), np.bincount(labels.astype(int)), atol=1e-3)
    np.testing.assert_allclose(view.label_totals(), np.rint(view.label_totals()), atol=1e-3)


def test_the_start_value_is_the_one_sent(recorded):
    case, heard = recorded
    message, _ = find(heard, "party 0", msg.Started)
    np.testing.assert_allclose(message.base_margin, LOSSES["binary:logistic"].margin(case.start))


def test_tokens_keep_equality_and_nothing_else():
    rng = np.random.default_rng(0)
    codes = rng.integers(-3, 4, (50, 4)).astype(np.int32)
    tokens, order = views.Tokens.of(codes, 1.0, rng)
    for column in range(4):
        a, b = codes[order, column], tokens.values[:, column]
        np.testing.assert_array_equal(a[:, None] == a, b[:, None] == b)
    assert not np.array_equal(order, np.arange(50))
    assert tokens.values.min() == 0


def test_fresh_ids_differ_from_tree_to_tree_and_mean_the_same_rows():
    rng = np.random.default_rng(0)
    own, foreign = rng.integers(0, 3, (30, 6)), rng.integers(0, 3, (20, 6))
    linked, _ = views.pointers(own, foreign, 3, 1, fresh=False, n_trees=1, n_jobs=1)
    fresh, orders = views.pointers(own, foreign, 3, 1, fresh=True, n_trees=4, n_jobs=1)
    assert (linked.ids.shape, fresh.ids.shape) == ((1, 30, 3), (4, 30, 1))
    for tree, order in enumerate(orders):
        meant = order[fresh.ids[tree, :, 0]]
        assert all(meant[row] in linked.ids[0, row] for row in range(30))
    assert not np.array_equal(fresh.ids[0], fresh.ids[1])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 9), min_size=6, max_size=40), st.integers(1, 6))
def test_no_group_stays_too_small(similar, least):
    positions = np.random.default_rng(0).normal(size=(10, 2))
    groups = views.merge_small_groups(np.array(similar, dtype=np.int32), positions, least)
    assert np.bincount(groups)[np.unique(groups)].min() >= least
    for group in np.unique(similar):  # who was together stays together
        assert len(np.unique(groups[np.array(similar) == group])) == 1


def test_missing_values_count_as_the_mean():
    X = np.array([[1.0, np.nan], [3.0, 4.0], [5.0, 6.0]])
    prior = views.Prior.of(X)
    assert prior.mean.tolist() == [3.0, 5.0]
    assert prior.rows[0, 1] == 0.0
