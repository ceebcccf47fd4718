import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

import simfl
from simfl import messages as msg
from simfl import wire
from simfl.audit import views
from simfl.audit.scenario import ATTACKER, VICTIM, Scenario
from simfl.errors import ParameterError
from simfl.model import warm_start
from simfl.params import NAMES
from simfl.privacy.words import FORMS, from_bytes, split
from simfl.training.losses import loss_named
from tests.wire import Recorder, places, sessions, train

SHARED = {"matching": "shared"} if "matching" in NAMES else {}


@pytest.fixture(scope="module")
def recorded():
    """A real run of the scenario's parties: every message and its reply."""
    X, y = load_breast_cancer(return_X_y=True)
    scenario = Scenario(X, y, 2, 7, dict(SHARED))
    parties = [simfl.Party(f"party {i}", scenario.X[rows], scenario.y[rows]) for i, rows in enumerate(scenario.members)]
    seen = Recorder(sessions(parties))
    train(seen, n_trees=2, random_state=7, leaf_values="builder", **SHARED)  # sums onto rows as exact as they can be
    return scenario, seen.log


def find(heard, party, kind):
    return next((message, reply) for name, message, reply in heard if name == party and isinstance(reply, kind))


@pytest.mark.parametrize(("place", "side"), [(VICTIM, "victim"), (ATTACKER, "attacker")])
def test_the_codes_attacked_are_the_codes_sent(recorded, place, side):
    scenario, heard = recorded
    _, reply = find(heard, f"party {place}", msg.Hashes)
    n, n_hashes = len(scenario.members[place]), scenario.hashed.n_hashes
    sent = wire.unpack(reply.values, reply.values.dtype, (n, n_hashes)).astype(int)
    sent = sent + wire.unpack(reply.lowest, "i4", (n_hashes,))
    np.testing.assert_array_equal(sent, getattr(scenario.hashed, side))


def test_the_sums_sent_are_read_as_the_attack_reads_them(recorded):
    scenario, heard = recorded
    # The victim builds the first tree, so that round's sums come from the attacker's rows: their labels are read here.
    message, reply = find(heard, f"party {ATTACKER}", msg.RowSums)
    array, form = reply.sums, FORMS[message.word_bytes]
    assert array.shape == (len(scenario.victim), 1)
    gradients, hessians = (part[:, None] for part in split(from_bytes(array.data, form.n_bytes), form))
    view = views.RowSumsView(gradients, hessians, message.exponents, scenario.loss, scenario.start)
    labels = scenario.y[scenario.attacker]
    assert view.members().sum() == len(labels)
    np.testing.assert_allclose(view.label_totals().sum(axis=0), np.bincount(labels.astype(int)), atol=1e-3)
    np.testing.assert_allclose(view.label_totals(), np.rint(view.label_totals()), atol=1e-3)


def test_the_start_value_is_the_one_sent(recorded):
    scenario, heard = recorded
    message, _ = find(heard, "party 0", msg.Started)
    np.testing.assert_allclose(message.base_margin, loss_named("binary:logistic").margin(scenario.start))


def test_tokens_keep_equality_and_nothing_else():
    rng = np.random.default_rng(0)
    codes = rng.integers(-3, 4, (50, 4)).astype(np.int32)
    tokens, order = views.TokensView.of(codes, 1.0, rng)
    for column in range(4):
        a, b = codes[order, column], tokens.values[:, column]
        np.testing.assert_array_equal(a[:, None] == a, b[:, None] == b)
    assert not np.array_equal(order, np.arange(50))
    assert tokens.values.min() == 0


@pytest.fixture(scope="module")
def blind():
    """A real blind run of the scenario's parties, and the order of rows that each kept to itself."""
    X, y = load_breast_cancer(return_X_y=True)
    scenario = Scenario(X, y, 2, 7, {})
    parties = [simfl.Party(f"party {i}", scenario.X[rows], scenario.y[rows]) for i, rows in enumerate(scenario.members)]
    seen = Recorder(sessions(parties, secret=7))  # as in one process: the hash functions of the shared mode
    train(seen, n_trees=4, rematch=0, random_state=7)
    orders = [places(seen.handlers[f"party {i}"]) for i in (0, 1)]
    return scenario, seen.log, orders


def sent(log, kind, party, side=1):
    return [entry[side] for entry in log if entry[0] == f"party {party}" and isinstance(entry[side], kind)]


@pytest.mark.parametrize(("place", "side"), [(VICTIM, "victim"), (ATTACKER, "attacker")])
def test_the_tokens_attacked_are_equal_where_those_sent_are(blind, place, side):
    scenario, log, orders = blind
    (reply,) = sent(log, msg.HiddenRows, place, side=2)
    codes = getattr(scenario.hashed, side)
    names = wire.unpack(reply.codes, reply.codes.dtype, codes.shape)
    for column, own in enumerate(codes[orders[place]].T):
        np.testing.assert_array_equal(own[:, None] == own, names[:, column, None] == names[:, column])


def test_the_ids_attacked_lead_to_rows_as_similar_as_those_sent(blind):
    scenario, log, orders = blind
    own, victim = scenario.hashed.attacker, scenario.hashed.victim
    view = views.PointersView.of(own, victim, 5, seed=7, n_jobs=1)
    alike = np.sort((own[:, None] == victim[None]).sum(axis=2), axis=1)[:, ::-1][:, :5]  # the five best of each row
    (taken,) = sent(log, msg.TakeSimilar, ATTACKER)
    array = taken.similar[f"party {VICTIM}"]
    ids = wire.unpack(array, array.dtype, (len(own), 5))
    rows = np.empty_like(ids)
    rows[orders[ATTACKER]] = orders[VICTIM][ids]  # both orders undone
    for found in (rows, view.ids):
        counts = (own[:, None] == victim[found]).sum(axis=2)
        np.testing.assert_array_equal(np.sort(counts, axis=1)[:, ::-1], alike)


@pytest.mark.parametrize("min_group", [2, 5])
def test_the_groups_attacked_are_joined_as_a_party_joins_them(min_group):
    X, y = load_breast_cancer(return_X_y=True)
    scenario = Scenario(X, y, 3, 7, {})
    sums, groups = scenario.sums(min_group)
    first = len(scenario.victim)
    for part in (groups[:first], groups[first:]):  # each party counts its own rows
        assert np.bincount(part)[np.unique(part)].min() >= min_group
    np.testing.assert_array_equal(np.bincount(groups, minlength=len(scenario.attacker)), sums.members())


@pytest.mark.parametrize("heavy", [1.0, 20.0, 1e9])
def test_the_groups_attacked_are_joined_by_the_weight_of_their_rows(heavy):
    X, y = load_breast_cancer(return_X_y=True)
    weight = np.where(np.arange(len(y)) == 5, heavy, 1.0)
    scenario = Scenario(X, y, 2, 6, {}, weight=weight)
    assert scenario.weight[scenario.others].max() == heavy
    sums, groups = scenario.sums(5)
    there = groups >= 0
    assert np.flatnonzero(~there).tolist() == ([] if heavy < 1e9 else [np.argmax(scenario.weight[scenario.others])])
    own = scenario.weight[scenario.others][there].astype(float)
    total = np.bincount(groups[there], own, len(scenario.attacker))
    assert (5 * own <= total[groups[there]] * (1 + 1e-9)).all()
    np.testing.assert_allclose(sums.members(), total, rtol=1e-2)


@pytest.mark.parametrize(
    ("min_group", "every", "fact"),
    [
        (300, 1, "min_group=300 is more than the 285 rows that a party has"),
        (5, 100, "Fewer than min_group=5 of the 285 rows that a party has .* have a weight that a group can hide"),
    ],
)
def test_a_party_that_can_form_no_group_is_told_whether_rows_or_weights_are_to_blame(min_group, every, fact):
    """Rows of weight zero hide nobody: if one in a hundred counts, a party has no five."""
    X, y = load_breast_cancer(return_X_y=True)
    scenario = Scenario(X, y, 2, 6, {}, weight=(np.arange(len(y)) % every == 0) * 1.0)
    with pytest.raises(ParameterError, match=fact):
        scenario.sums(min_group)


def test_the_training_that_is_attacked_counts_rows_by_their_weight():
    X, y = load_breast_cancer(return_X_y=True)
    weight = np.where(y == 1, 20.0, 1.0)
    plain, weighted = (Scenario(X, y, 2, 7, {"max_depth": 2}, leaves=False, weight=w) for w in (None, weight))
    assert weighted.start[0] > 0.95 > plain.start[0]
    assert warm_start(weighted.model).base_score == pytest.approx(weighted.start, rel=1e-5)
    assert weighted.believed(X).mean(axis=0)[1] > plain.believed(X).mean(axis=0)[1]


def test_missing_values_count_as_the_mean():
    X = np.array([[1.0, np.nan], [3.0, 4.0], [5.0, 6.0]])
    prior = views.Prior.of(X)
    assert prior.mean.tolist() == [3.0, 5.0]
    assert prior.rows[0, 1] == 0.0
