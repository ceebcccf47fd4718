"""What people give by mistake: every error names the party and the next step."""

import numpy as np
import pandas as pd
import pytest

import simfl
from simfl.errors import DataError, ParameterError, PrivacyError, UnknownParameterError

FEW = {"n_trees": 3, "random_state": 0, "callbacks": []}


@pytest.fixture
def north(table, labels):
    return simfl.Party("north", pd.DataFrame(table[:30], columns=list("abcde")), labels[:30])


def south(X, y, columns=None):
    return simfl.Party("south", X if columns is None else pd.DataFrame(X, columns=list(columns)), y)


@pytest.mark.parametrize("door", [simfl.prepare, simfl.train])
@pytest.mark.parametrize(
    ("columns", "fact"),
    [
        ("abcdf", r"'south' \(missing: \['e'\]; extra: \['f'\]\)"),
        ("abcd", r"'south' \(missing: \['e'\]\)"),
        (None, r"'south' \(columns without names\)"),
    ],
)
def test_other_columns_are_told_with_the_party(door, north, table, labels, columns, fact):
    other = south(table[30:, : len(columns or "abcde")], labels[30:], columns)
    with pytest.raises(DataError, match=rf"than 'north': {fact}.*Give every party the same columns"):
        door([north, other])


def test_another_number_of_columns_is_told_with_the_party(halves, table, labels):
    with pytest.raises(DataError, match=r"'south' \(4 features, not 5\).*Give every party"):
        simfl.prepare([halves[0], south(table[30:, :4], labels[30:])])


def test_all_parties_with_other_columns_are_told_at_once(north, table, labels):
    others = [simfl.Party(n, table[:, :k], labels) for n, k in (("south", 4), ("west", 3))]
    with pytest.raises(DataError, match=r"'south'.*'west'"):
        simfl.prepare([north, *others])


def test_a_column_of_dates_is_told_with_party_and_column(labels):
    with pytest.raises(DataError, match=r"Column 'born' of party 'south' holds dates.*days since"):
        south(pd.DataFrame({"born": pd.to_datetime(["2020-01-01"] * 60)}), labels)


def test_numbers_of_different_types_are_the_same_numbers(table, labels):
    whole = np.rint(table * 10)
    models = [
        simfl.train(
            [simfl.Party("a", whole[:30], labels[:30]), simfl.Party("b", whole[30:].astype(kind), labels[30:])], **FEW
        )
        for kind in ("float64", "float32", "int32")
    ]
    assert len({str(m.booster.get_dump()) for m in models}) == 1


@pytest.mark.parametrize(
    "other", [np.array([-1, 1]), np.array([1, 2]), np.array([0, 7])], ids=["minus one", "one and two", "seven"]
)
def test_other_numbers_as_classes_are_told_with_each_party(halves, table, labels, other):
    with pytest.raises(DataError, match=r"'a' \[0, 1\], 'south' \[.*multi:softprob"):
        simfl.train([halves[0], south(table[30:], other[labels[30:]])], **FEW)


@pytest.mark.parametrize("other", [np.array(["0", "1"]), np.array(["no", "yes"])])
def test_text_against_numbers_is_told_with_each_party(halves, table, labels, other):
    with pytest.raises(DataError, match=r"text as labels, others numbers: 'a' \[0, 1\], 'south' .*Give all the same"):
        simfl.train([halves[0], south(table[30:], other[labels[30:]])], **FEW)


@pytest.mark.parametrize("kind", [float, bool, "int8", "uint64", object])
def test_the_same_classes_in_another_type_are_the_same(halves, table, labels, kind):
    model = simfl.train([halves[0], south(table[30:], labels[30:].astype(kind))], **FEW)
    plain = simfl.train([halves[0], south(table[30:], labels[30:])], **FEW)
    assert model.predict(table).tolist() == plain.predict(table).tolist()


def test_an_empty_party_is_told(table):
    with pytest.raises(DataError, match=r"Party 'south' has no rows\. Leave it out"):
        south(table[:0], [])


def test_missing_labels_are_told(table, labels):
    y = np.where(np.arange(60) == 7, np.nan, labels)
    with pytest.raises(DataError, match=r"Party 'south' has 1 missing labels.*Drop these rows"):
        south(table, y)


def test_numbers_as_classes_lead_to_regression(halves, table):
    with pytest.raises(DataError, match=r"Party 'south' has labels that look like numbers.*reg:squarederror"):
        simfl.train([halves[0], south(table[30:], table[30:, 0])], **FEW)


def test_a_single_value_that_is_no_class_leads_to_regression(halves, table):
    with pytest.raises(DataError, match=r"Party 'south' has labels that look like numbers.*reg:squarederror"):
        simfl.train([halves[0], south(table[30:], [0.5] * 30)], **FEW)


def test_text_for_a_regression_leads_to_classes(halves, table):
    with pytest.raises(DataError, match=r"Party 'south' has labels that are not numbers.*multi:softprob"):
        simfl.train([halves[0], south(table[30:], ["x"] * 30)], objective="reg:squarederror", **FEW)


@pytest.mark.parametrize("value", [np.inf, 1e300])
def test_labels_too_large_to_train_on_are_told(halves, table, value):
    with pytest.raises(DataError, match="Party 'south' has labels beyond 1e18"):
        simfl.train([halves[0], south(table[30:], [value] * 30)], objective="reg:squarederror", **FEW)


@pytest.mark.parametrize("n_hashes", [5, 6, 40])
def test_as_many_hashes_as_features_are_refused_with_the_way_out(halves, n_hashes):
    with pytest.raises(PrivacyError, match=r"L < d.*n_hashes=4 or fewer.*known_features=None"):
        simfl.train(halves, n_hashes=n_hashes, **FEW)


def test_known_features_lower_the_limit(halves):
    with pytest.raises(PrivacyError, match="n_hashes=2 or fewer"):
        simfl.prepare(halves, n_hashes=3, known_features=2)
    assert simfl.prepare(halves, n_hashes=2, known_features=2).about.n_hashes == 2


def test_who_insists_may_use_more_hashes(halves):
    assert simfl.prepare(halves, n_hashes=9, known_features=None).about.n_hashes == 9


@pytest.mark.parametrize("width", [0, -4, float("nan")])
def test_a_bucket_width_of_nothing_is_refused(halves, width):
    with pytest.raises(ParameterError, match=r"bucket_width=.*> 0"):
        simfl.train(halves, bucket_width=width, **FEW)


@pytest.mark.parametrize("door", [simfl.prepare, simfl.train])
def test_two_parties_of_one_name_are_refused(door, halves):
    with pytest.raises(DataError, match=r"\['a'\].*a name of its own"):
        door([halves[0], halves[0]])


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_party_needs_a_name(table, labels, name):
    with pytest.raises(DataError, match="name"):
        simfl.Party(name, table, labels)


@pytest.mark.parametrize("wrong", [[], None, "parties", [("north", 1)], {"a": 1}])
def test_what_is_no_list_of_parties_is_refused(wrong):
    with pytest.raises(DataError, match=r"simfl\.Party"):
        simfl.train(wrong, **FEW)


def test_parties_may_come_from_a_generator(halves):
    assert simfl.train((party for party in halves), **FEW).n_trees == 3


def test_an_unknown_parameter_is_refused_at_both_doors(halves):
    with pytest.raises(UnknownParameterError, match="Did you mean 'n_hashes'"):
        simfl.prepare(halves, n_hash=3)
    with pytest.raises(UnknownParameterError, match="Did you mean 'learning_rate'"):
        simfl.train(halves, learningrate=3)


@pytest.mark.parametrize("recipe", ["similar", "paper"])
def test_a_party_with_one_class_takes_part(halves, table, recipe):
    model = simfl.train([south(table[:30], [0] * 30), halves[1]], recipe=recipe, **FEW)
    assert [r.builder for r in model.history] == ["south", "b", "south"]
    assert np.isfinite(model.margins(table)).all()


@pytest.mark.parametrize("recipe", ["similar", "paper"])
@pytest.mark.parametrize("order", [1, -1])
def test_a_party_with_a_single_row_takes_part(halves, table, labels, recipe, order):
    model = simfl.train([south(table[:1], labels[:1]), halves[1]][::order], recipe=recipe, **FEW)
    assert {r.builder for r in model.history} == {"south", "b"}
    assert np.isfinite(model.margins(table)).all()


def test_a_single_row_with_validation_is_still_trained_on(halves, table, labels):
    model = simfl.train([south(table[:1], labels[:1]), halves[1]], validation_fraction=0.9, **FEW)
    assert model.n_trees == 3


def test_one_class_at_all_parties_is_nothing_to_learn(table):
    parties = [simfl.Party(n, table, [1] * 60) for n in ("north", "south")]
    with pytest.raises(DataError, match=r"one class \(1\)"):
        simfl.train(parties, **FEW)


@pytest.mark.parametrize("validation", [(1,), 5, ([[1.0]], [1, 2]), (np.zeros((2, 4)), [0, 1])])
def test_validation_rows_of_the_wrong_form_are_told(table, labels, validation):
    with pytest.raises(DataError, match="Party 'south'"):
        simfl.Party("south", table, labels, validation=validation)


def test_a_failed_training_leaves_the_preparation_usable(halves):
    ready = simfl.prepare(halves, random_state=0)
    before = simfl.train(ready, **FEW).booster.get_dump()
    with pytest.raises(ParameterError):
        simfl.train(ready, base_score=3.0, **FEW)
    assert simfl.train(ready, **FEW).booster.get_dump() == before
