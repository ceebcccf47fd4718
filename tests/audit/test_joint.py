"""Attacks on trees grown together."""

import json

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris

from simfl.audit.audit import audit
from simfl.audit.listening import STRANGER, People, listen
from simfl.audit.totals import Alone, Boxes, Equations, Evidence, TreeSums, in_the_span, one_apart
from simfl.errors import ParameterError
from simfl.joint import growing, setting
from simfl.joint.machine import Labelled, Machine, Mine, Plan
from simfl.params import train_params

ATTACKER = (1,)


@pytest.fixture(scope="module")
def cancer():
    return load_breast_cancer(return_X_y=True)


@pytest.fixture
def fine(monkeypatch):
    """Gradients are rounded to as many bits as there is room for."""
    monkeypatch.setattr(setting, "MEAN_BITS", 30)


def machines(X, y, n_parties=2, weight=None, **params):
    chosen = train_params(**{"recipe": "joint", "n_trees": 24, "learning_rate": 0.2, "random_state": 0} | params)
    plan = Plan(chosen, np.zeros(X.shape[1], np.int32), 1, tuple("abcd"[:n_parties]))
    each = [X, y] if weight is None else [X, y, weight]
    rows = [Labelled(*(part[i::n_parties].astype(np.float32) for part in each)) for i in range(n_parties)]
    return [Machine(plan, Mine(own, None, plan.parties[i].encode())) for i, own in enumerate(rows)]


def nobody(X, weighted=False):
    none = np.empty(0, np.float32)
    return Labelled(np.empty((0, X.shape[1]), np.float32), none, none if weighted else None)


def singled_out(parties, reads=(1,)):
    """The share of foreign rows that one party singles out, and the share of their labels that it has right."""
    people = People.of(parties, nobody(parties[0].mine.rows.X))
    alone = Alone(ATTACKER, people)
    listen(parties, people, [alone])
    alone.look()
    found = alone.of(reads)
    gradient = np.zeros(len(alone.foreign))
    for each in found:
        np.add.at(gradient, each.rows, each.gradient)
    rows = np.unique(np.concatenate([each.rows for each in found]))
    y = people.y[alone.foreign]
    return len(rows) / len(y), float(((gradient < 0) == (y > 0))[rows].mean()) if len(rows) else 0.0


# --- by hand ---------------------------------------------------------------------------------------------------------

G = np.array([0.5, -0.25, 0.125])  # the gradients of three foreign rows


def told(*sums):
    """What one tree tells: `sums` are the rows behind each sum."""
    inside = np.array([[float(row in rows) for row in range(3)] for rows in sums])
    return TreeSums(sparse.csr_matrix(inside), inside @ G)


@pytest.mark.parametrize(
    ("sums", "alone"),
    [
        ([(0, 1, 2), (0, 1)], [2]),
        ([(0, 1), (1, 2), (0, 2)], [0, 1, 2]),  # no difference of two: it takes all three
        ([(0, 1, 2)], []),
        ([(0, 1), (0, 1), (2,)], [2]),
    ],
)
def test_rows_are_found_by_any_combination_of_the_sums_of_a_tree(sums, alone):
    found, gradient = in_the_span(told(*sums))
    assert found.tolist() == alone
    np.testing.assert_allclose(gradient, G[alone], atol=1e-4)


def test_rows_are_found_by_two_boxes_that_differ_by_one():
    marks = np.array([11, 500, 7000], np.uint64)
    rows = [(), (0, 1), (0, 1, 2), (0, 1), (2,)]
    mark = np.array([marks[list(r)].sum() for r in rows], np.uint64)
    value = np.array([G[list(r)].sum() for r in rows])
    value[1], value[3] = value[1] + 0.1, value[3] - 0.1  # noise that cancels: the same box twice
    boxes = Boxes.joined([Boxes(mark, np.array([len(r) for r in rows]), value)])
    found, gradient = one_apart(boxes, marks)
    assert found.tolist() == [2, 2]  # alone in its box, and as the difference of two
    np.testing.assert_allclose(gradient, [G[2], G[2]])


def lonely():
    """Two parties with 100 rows each of a yes/no column; one row of the first has a value that nobody else has."""
    x = np.arange(200) // 100 % 2
    x[0] = 9
    y = np.arange(200) // 2 % 2
    return x[:, None].astype(np.float64), y.astype(np.float64)


@pytest.mark.parametrize(("min_group", "share"), [(1, 0.01), (30, 0.0)])
def test_the_only_one_of_its_kind_is_singled_out_unless_sums_are_guarded(min_group, share, monkeypatch):
    monkeypatch.setattr(setting, "MEAN_BITS", 12)  # finer noise would take a large table
    X, y = lonely()
    found, right = singled_out(machines(X, y, min_group=min_group, n_trees=8), reads=(0, 1))
    assert found == share
    assert right == (1.0 if share else 0.0)


# --- on a table ------------------------------------------------------------------------------------------------------


def test_the_guard_is_what_keeps_rows_from_being_alone(cancer, monkeypatch):
    assert singled_out(machines(*cancer))[0] < 0.02
    monkeypatch.setattr(setting, "MEAN_BITS", 30)
    found, right = singled_out(machines(*cancer, min_group=1))
    assert found > 0.1  # after 13 trees that the attacker reads
    assert right > 0.9


def test_who_reads_in_more_turns_finds_more(cancer):
    one, all_ = (singled_out(machines(*cancer, min_group=1), reads)[0] for reads in ((1,), (0, 1)))
    assert one < all_


def weights(y, heavy=9.0):
    """One row in five counts more."""
    return np.where(np.arange(len(y)) % 5 == 0, heavy, 1.0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_parties", [2, 4])
def test_what_is_heard_is_what_foreign_rows_add_up_to(cancer, n_parties, weighted, fine):
    """Without a guard there is no noise: every sum is that of the foreign gradients behind it, but for the rounding."""

    class Checks:
        n = 0

        def hear(self, step):
            value = np.zeros(step.batch.level.n_cells)
            sent = step.batch.sent_cells
            value[sent] = step.sums(ATTACKER)[0][: sent.sum()]
            rows, cell = step.pairs_of(number)
            expected = np.bincount(cell, step.gradients[0][foreign[rows], 0], len(value))
            np.testing.assert_allclose(step.between_cuts(value)[sent], expected[sent], atol=3e-3 if weighted else 1e-3)
            self.n += int(sent.sum())

    weight = weights(cancer[1]) if weighted else None
    parties = machines(*cancer, n_parties, weight, min_group=1, n_trees=8)
    people = People.of(parties, nobody(cancer[0], weighted=weighted))
    foreign = people.foreign_to(ATTACKER)
    number = np.full(len(people.y), -1)
    number[foreign] = np.arange(len(foreign))
    checks = Checks()
    listen(parties, people, [checks])
    assert checks.n > 1000


def area(inside, outside):
    return float((inside[:, None] > outside).mean())


@pytest.mark.parametrize(("epsilon", "low", "high"), [(0.005, 0.45, 0.55), (0.5, 0.6, 1.0)])
def test_noisy_counts_average_out_over_many_trees(epsilon, low, high, monkeypatch):
    """The noise of one count hides a row; that of thousands of counts, each with new noise, does not."""
    monkeypatch.setattr("simfl.joint.setting.COUNT_EPSILON", epsilon)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 10)).astype(np.float32)
    y = (X[:, 0] * X[:, 1] + X[:, 2] + rng.normal(size=3000) > 0).astype(np.float32)
    parties = machines(X[600:], y[600:], n_trees=40, learning_rate=0.1)
    people = People.of(parties, Labelled(X[:600], y[:600]))
    evidence = Evidence(ATTACKER, people, np.arange(len(people.y)))
    listen(parties, people, [evidence])
    counts = evidence.of(())[:, 0]
    assert low < area(counts[people.party == 0], counts[people.party == STRANGER]) < high


@pytest.mark.parametrize("weighted", [False, True])
def test_who_knows_all_features_solves_for_the_labels(cancer, weighted, fine):
    weight = weights(cancer[1]) if weighted else None
    parties = machines(*cancer, 2, weight, min_group=1, n_trees=8)
    people = People.of(parties, nobody(cancer[0], weighted=weighted))
    equations = Equations(ATTACKER, people)
    listen(parties, people, [equations])
    y = people.y[equations.foreign]
    nothing_known = np.full(len(y), 0.5)
    assert ((equations.labels(nothing_known, (0, 1)) > 0.5) == (y > 0)).mean() > 0.9
    assert (equations.labels(nothing_known, ()) == 0.5).all()


@pytest.mark.parametrize(("by_weight", "low", "high"), [(True, 0.55, 0.7), (False, 0.74, 1.0)])
def test_heavy_rows_stand_out_in_sums_unless_rows_count_by_their_weight(by_weight, low, high, monkeypatch):
    """Labels that no model could know: sums tell those of heavy rows, if light ones fill up the cells."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(1200, 6)).astype(np.float32), (rng.random(1200) < 0.5).astype(np.float32)
    if not by_weight:
        monkeypatch.setattr(growing, "counted_as", lambda weight: None)
    parties = machines(X, y, 2, weights(y, 50.0), n_trees=40, learning_rate=0.1)
    people = People.of(parties, nobody(X, weighted=True))
    evidence = Evidence(ATTACKER, people, np.arange(len(people.y)))
    listen(parties, people, [evidence])
    score = evidence.of((1,))[:, 3]
    heavy = (people.party == 0) & (people.weight > 1)
    assert low < area(score[heavy & (people.y == 1)], score[heavy & (people.y == 0)]) < high


def test_what_rows_count_as_is_known_to_who_counts():
    people = People(np.zeros((5, 1)), np.zeros(5), np.array([0, 0, 0, 1, 1]), np.array([8, 1, 4, 1, 1], np.float32))
    assert people.counts.tolist() == [1, 0.5, 1, 1, 1]
    assert people.times.tolist() == [8, 1, 4, 1, 1]


# --- through the door ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def joint(cancer):
    return audit(*cancer, recipe="joint", parties=5, n_trees=16)


def test_every_role_has_its_line(joint):
    roles = ["hub", "other party", "reader", "all readers", "two parties that collude", "all parties but two"]
    assert list(joint.sees) == [*roles, "submitter"]
    attacked = {role for finding in joint.findings for role in finding.roles}
    assert attacked == {*roles, "submitter", "outsider"} - {"hub"}  # it sees nothing to attack
    assert joint.setting.min_group == 30
    assert joint.setting.matching is None
    assert joint.advice == []


def test_every_attack_has_its_interval_and_guessing_beside_it(joint):
    attacks = {finding.attack for finding in joint.findings}
    assert attacks >= {"rows_from_totals", "members_from_totals", "members_from_model", "labels_from_totals"}
    for f in joint.findings:
        assert f.excess_interval[0] <= f.excess <= f.excess_interval[1]
        assert f.excess == pytest.approx(f.success - f.guess)
        assert "{" not in f.sentence
    assert {f.guess for f in joint.findings if f.attack.startswith("members")} == {0.5}
    assert {f.guess for f in joint.findings if f.attack == "rows_from_totals"} == {0.0}


def test_parties_that_collude_outnumber_the_guard(cancer):
    """The rows of all who collude fill a cell: few foreign ones are left in it."""
    found = audit(*cancer, recipe="joint", parties=10, n_trees=40, attacks=["rows_from_totals"])
    alone = {f.roles[0]: f.success for f in found.findings}
    assert alone["all parties but two"] > alone["reader"] + 0.05


def test_the_page_and_the_file_have_the_roles(joint):
    page = joint.html()
    assert "Trees grown together" in page
    assert "noisy counts of rows per cell" in page
    assert json.loads(joint.to_json())["sees"]["hub"] == "sizes of vectors, and who takes part"


@pytest.mark.parametrize("load", [load_iris, load_diabetes])
def test_classes_and_numbers_are_audited_too(load):
    found = audit(*load(return_X_y=True), recipe="joint", n_trees=4)
    assert {"rows_from_totals", "members_from_totals"} <= {f.attack for f in found.findings}


def test_parties_may_differ_in_a_column(cancer):
    found = audit(*cancer, recipe="joint", n_trees=8, by_column=0, attacks=["rows_from_totals"])
    assert len(found.findings) == 2
    with pytest.raises(ParameterError, match="by_column"):
        audit(*cancer, by_column=0)


@pytest.mark.parametrize("option", [{"matching": "blind"}, {"n_hashes": 5}])
def test_what_joint_does_not_know_is_refused(cancer, option):
    with pytest.raises(ParameterError, match="joint"):
        audit(*cancer, recipe="joint", **option)
