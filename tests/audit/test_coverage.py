"""Every study gets an audit: with what it declares and binds, whatever it learns; and a word on what is left out."""

import html
import tomllib
from functools import partial
from importlib.resources import files

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from simfl.audit import together
from simfl.audit.audit import audit
from simfl.audit.coverage import LINEAR
from simfl.audit.findings import TITLES
from simfl.audit.finished import People
from simfl.audit.private import declared_of
from simfl.audit.scenario import Scenario
from simfl.audit.together import Together
from simfl.data.schema import Schema
from simfl.errors import ParameterError
from simfl.training.losses import LOSSES
from simfl.training.trees import LEAF

TEMPLATE = tomllib.loads((files("simfl.deploy") / "templates" / "study.toml").read_text())["parameters"]
JOINT = {"recipe": "joint", "n_trees": 6, "min_group": 5}


def table(n=240):
    """Three numbers and a yes/no column."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(n, 3)), rng.random(n) < 0.5]).astype(np.float32)
    return X, X[:, 0] + X[:, 1] * X[:, 3] + 0.3 * rng.normal(size=n)


def labels(objective, value):
    """Labels of an objective from numbers."""
    kind = LOSSES[objective].labels
    if kind == "bounds":
        times = np.exp(value)
        return np.column_stack([times, np.where(np.arange(len(times)) % 3, times, np.inf)])
    if kind == "classes":
        return np.digitize(value, [0.0, 1.0] if objective.startswith("multi") else [0.0])
    return np.rint(np.exp(value)) if objective == "count:poisson" else np.exp(value)


@pytest.fixture(scope="module")
def numbers():
    X, value = table()
    return X, value > 0


# --- trees -----------------------------------------------------------------------------------------------------------


def test_a_study_that_stops_early_is_attacked_over_all_its_trees(numbers):
    """In an audit nothing watches: without rows that were set aside growth would end when patience does."""
    stops = {"early_stopping_rounds": 2, "validation_fraction": 0.2, "n_trees": 16}
    found = audit(*numbers, **JOINT | stops, attacks=["rows_from_totals", "members_from_totals", "members_from_model"])
    assert len(found.findings) >= 4
    assert all("16 trees" in finding.sentence for finding in found.findings)
    assert found.notes == []


def test_of_a_study_with_more_trees_than_an_audit_grows_the_result_says_so(numbers, monkeypatch):
    monkeypatch.setattr(together, "MOST_TREES", 24)
    attacks = ["rows_from_totals", "members_from_totals", "members_from_model", "labels_from_totals"]
    found = audit(*numbers, **TEMPLATE, recipe="joint", attacks=attacks)
    assert TEMPLATE["n_trees"] > TEMPLATE["early_stopping_rounds"]
    assert all(f"24 of up to {TEMPLATE['n_trees']} trees" in finding.sentence for finding in found.findings)
    (note,) = found.notes
    assert f"up to {TEMPLATE['n_trees']} rounds of trees, the audit 24" in note
    assert note in found.html()


def test_with_similar_rows_too_all_rows_train_to_the_end(numbers):
    """Else counts of rows would be compared with those of a training that has set some aside."""
    attacks = ["rows_from_trees", "values_from_trees"]
    plain = audit(*numbers, advise=False, attacks=attacks, learning_rate=0.1)
    stops = audit(*numbers, advise=False, attacks=attacks, **TEMPLATE)
    assert stops.findings == plain.findings
    assert stops.findings[0].details["counts_read"] > 0.5
    assert "the audit 20" in stops.notes[0]


def test_a_given_start_value_is_the_one_that_counts_are_read_with(numbers):
    (found,) = audit(*numbers, advise=False, attacks=["rows_from_trees"], base_score=0.3).findings
    assert found.details["counts_read"] > 0.5


# --- columns ---------------------------------------------------------------------------------------------------------


def paths(tree, node=0, above=frozenset()):
    """The columns on every path down a tree."""
    if tree.feature[node] == LEAF:
        return {above}
    here, left = above | {int(tree.feature[node])}, int(tree.left[node])
    return paths(tree, left, here) | paths(tree, left + 1, here)


def patients(n=300):
    """Two numbers and a category, as a study has them."""
    rng = np.random.default_rng(1)
    age, dose, ward = rng.normal(60, 10, n), rng.normal(size=n), rng.integers(0, 3, n)
    frame = pd.DataFrame({"age": age, "ward": np.array(["a", "b", "c"])[ward], "dose": dose})
    return frame, (age - 60) / 10 + dose + (ward == 1) + rng.normal(size=n) > 0


@pytest.mark.parametrize("recipe", ["joint", "similar"])
def test_constraints_bind_the_trees_of_an_audit(recipe, numbers):
    """Columns that may not be used together are not; and the audit is another than without."""
    given = {"recipe": recipe, "interaction_constraints": [[0, 1], [2, 3]]}
    bound, free = (
        (Together if recipe == "joint" else Scenario)(*numbers, 2, 0, given | more | {"n_trees": 8})
        for more in ({}, {"interaction_constraints": None})
    )
    groups = {0, 1}, {2, 3}
    assert all(any(path <= group for group in groups) for tree in bound.trees() for path in paths(tree))
    assert not all(any(path <= group for group in groups) for tree in free.trees() for path in paths(tree))


@pytest.mark.parametrize("recipe", ["joint", "similar"])
def test_a_study_names_the_columns_that_it_binds(recipe):
    frame, y = patients()
    given = {"monotone_constraints": {"age": -1}, "interaction_constraints": [["age", "ward"], ["dose"]]}
    asked = {"recipe": recipe, "n_trees": 8, "min_group": 1, "advise": False, "attacks": ["rows_from_trees"]}
    found, free = audit(frame, y, **asked, **given), audit(frame, y, **asked)
    assert found.notes == []
    assert found.findings != free.findings
    with pytest.raises(ParameterError, match="names the column 'wart'"):
        audit(frame, y, recipe=recipe, monotone_constraints={"wart": 1})


def test_declared_cuts_are_where_trees_are_cut(numbers):
    schema = Schema.from_toml({"a": {"cuts": [-0.5, 0.5]}, "b": {"low": -3, "high": 3}, "c": "number", "d": "boolean"})
    grown = Together(*numbers, 2, 0, dict(JOINT, min_group=1, max_bin=6), schema=schema).trees()
    used = [np.unique(np.concatenate([tree.threshold[tree.feature == j] for tree in grown])).tolist() for j in range(3)]
    assert {*used[0]} <= {-0.5, 0.5}
    assert {*used[1]} <= {-2.0, -1.0, 0.0, 1.0, 2.0}
    assert used[0]
    assert used[1]
    free = Together(*numbers, 2, 0, dict(JOINT, min_group=1, max_bin=6)).trees()
    assert not {*np.concatenate([tree.threshold[tree.feature == 0] for tree in free]).tolist()} <= {-0.5, 0.5}


def test_with_epsilon_the_declared_ranges_are_those_of_the_study(numbers):
    """A study declares all columns; of a table alone it is found out what one would declare."""
    pytest.importorskip("dp_accounting")
    X, y = numbers[0].astype(np.float64), numbers[1].astype(np.float32)
    wide = Schema.from_toml({name: {"low": -9, "high": 9} for name in "abcd"})
    given = {"recipe": "joint", "epsilon": 8.0, "rows": 240, "n_trees": 20, "masked": True}
    for schema in (wide, None):
        model = People.of(X, y, "binary:logistic", 2, 0, given, schema).model
        assert [column.low for column in model.schema.columns] == ([-9.0] * 4 if schema else X.min(axis=0).tolist())
    some = Schema.from_toml({"a": {"low": -9, "high": 9}, "b": "number", "c": "number", "d": "boolean"})
    assert declared_of(X, some).columns[0].low == X[:, 0].min()


def test_what_a_sparse_table_does_not_store_is_missing_as_in_a_training():
    rng = np.random.default_rng(0)
    stored = rng.random((300, 4)) < 0.6
    values = rng.integers(-3, 3, (300, 4))  # zeros that are stored are values
    y = (values[:, 0] > 0) == stored[:, 1]
    at = np.nonzero(stored)
    table = sparse.csr_matrix((values[at].astype(np.float32), at), shape=stored.shape)
    dense = np.where(stored, values, np.nan)
    ours, same, zeros = (Together(X, y, 2, 0, JOINT).trees() for X in (table, dense, table.toarray()))
    for a, b in zip(ours, same, strict=True):
        np.testing.assert_array_equal(a.threshold, b.threshold)
        np.testing.assert_array_equal(a.value, b.value)
    assert any(not np.array_equal(a.threshold, b.threshold) for a, b in zip(ours, zeros, strict=True))


# --- objectives ------------------------------------------------------------------------------------------------------

EVERY = pytest.mark.parametrize("objective", LOSSES)


def settings(objective):
    return {"objective": objective} | ({"quantile_alpha": 0.8} if objective == "reg:quantileerror" else {})


def left_out(found):
    """The attacks that the notes name."""
    return {attack for attack in TITLES for note in found.notes if f"({attack})" in note}


@EVERY
def test_every_objective_is_audited_with_similar_rows(objective):
    X, value = table()
    found = audit(X, labels(objective, value), advise=False, **settings(objective))
    attacks = {finding.attack for finding in found.findings}
    assert found.setting.objective == objective
    assert attacks >= {"rows_from_tokens", "rows_from_pointers", "rows_from_trees", "values_from_trees"}
    of_labels = {"labels_from_sums", "labels_of_known_people"}
    assert attacks & of_labels == (of_labels if objective in LINEAR else set())
    assert left_out(found) == of_labels - attacks
    if objective in LINEAR:
        assert next(f for f in found.findings if f.attack == "labels_from_sums").excess > 0


@EVERY
def test_every_objective_is_audited_with_trees_grown_together(objective):
    X, value = table()
    found = audit(X, labels(objective, value), **JOINT, **settings(objective))
    attacks = {finding.attack for finding in found.findings}
    assert attacks >= {"rows_from_totals", "members_from_totals", "members_from_model", "rows_from_trees"}
    of_labels = {"labels_from_totals", "labels_from_equations"}
    assert attacks & of_labels == (of_labels if objective == "binary:logistic" else set())
    assert left_out(found) == of_labels - attacks
    assert all(note in html.unescape(found.html()) for note in found.notes)


@pytest.mark.parametrize("objective", ["survival:aft", "reg:gamma", "binary:logistic"])
def test_the_model_of_every_kind_of_labels_is_attacked(objective, monkeypatch):
    from simfl.audit import finished

    few = {"members_from_answers": partial(finished.members_from_answers, n_shadows=4)}
    kept = {name: few.get(name, trial) for name, trial in finished.TRIALS.items()}
    kept["rows_from_all_trees"] = partial(finished.rows_from_all_trees, effort=10)
    monkeypatch.setattr(finished, "TRIALS", kept)
    X, value = table()
    found = audit(X, labels(objective, value), n_trees=20, advise=False, attacks=[*kept], **settings(objective))
    attacks = {finding.attack for finding in found.findings}
    assert attacks >= {"members_from_answers", "attribute_from_answers"}
    assert ("rows_from_all_trees" in attacks) == (objective == "binary:logistic")
    assert left_out(found) == {*kept} - attacks


def test_rows_that_count_several_times_are_no_labels_to_the_equations(numbers):
    found = audit(*numbers, **JOINT, scale_pos_weight=4.0)
    assert left_out(found) == {"labels_from_totals", "labels_from_equations"}


def test_all_attacks_on_what_leaves_know_weights_and_others_say_that_they_do_not(numbers, monkeypatch):
    from simfl.audit import finished

    monkeypatch.setattr(finished, "TRIALS", {"members_from_answers": lambda people: []})
    weight, said = 1.0 + np.arange(len(numbers[1])) % 4, "count every row as one"
    found = audit(*numbers, **JOINT, sample_weight=weight)
    assert left_out(found) == set()
    assert not [note for note in found.notes if said in note]
    assert (
        said
        in audit(*numbers, **JOINT, sample_weight=weight, attack_model=True, attacks=["members_from_answers"]).notes[-1]
    )
    private = {"recipe": "joint", "epsilon": 8.0, "rows": 240, "classes": [0, 1], "objective": "binary:logistic"}
    assert said in audit(*numbers, **private, sample_weight=weight, attacks=["rows_from_trees"]).notes[-1]


def test_an_audit_without_any_attack_says_that_it_knows_nothing():
    X, value = table()
    y = labels("multi:softprob", value)
    found = audit(X, y, recipe="joint", epsilon=8.0, rows=240, classes=[0, 1, 2], objective="multi:softprob")
    assert found.findings == []
    assert left_out(found) == {"canaries_from_values"}
    assert "No attack was tried" in found.verdict
    assert found.verdict in found.html()
