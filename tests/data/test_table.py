from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from simfl import Party, SimFLClassifier
from simfl.data.table import as_labels, as_table, as_weights, class_numbers, plain_classes, wrong_weights
from simfl.errors import DataError

WHO = "Party 'north'"
VALUES = np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]], dtype=np.float32)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", ">f8"])
def test_numpy_numbers_become_float32(dtype):
    table, schema = as_table(VALUES.astype(dtype), WHO)
    assert table.dtype == np.float32
    assert schema is None
    np.testing.assert_array_equal(table, VALUES.astype(dtype))


def test_a_list_of_rows_is_a_table():
    np.testing.assert_array_equal(as_table(VALUES.tolist(), WHO)[0], VALUES)


def test_a_column_major_table_becomes_row_major():
    assert as_table(np.asfortranarray(VALUES), WHO)[0].flags.c_contiguous


def test_missing_values_stay_missing():
    assert np.isnan(as_table([[1.0, np.nan]], WHO)[0][0, 1])


def test_a_frame_gives_its_names():
    table, schema = as_table(pd.DataFrame(VALUES, columns=["age", 7, "height"]), WHO)
    assert schema.names == ["age", "7", "height"]
    np.testing.assert_array_equal(table, VALUES)


@pytest.mark.parametrize("dtype", ["Int64", "Float64", "boolean", "UInt8"])
def test_nullable_columns_become_numbers_with_nan(dtype):
    table, _ = as_table(pd.DataFrame({"age": pd.array([1, None, 0], dtype=dtype), "n": [1, 2, 3]}), WHO)
    np.testing.assert_array_equal(table, [[1, 1], [np.nan, 2], [0, 3]])


def test_a_frame_of_bools_and_ints_is_a_table():
    table, _ = as_table(pd.DataFrame({"flag": [True, False], "n": [3, 4]}), WHO)
    np.testing.assert_array_equal(table, [[1, 3], [0, 4]])


@pytest.mark.parametrize(
    "column", [pd.to_datetime(["2020-01-01"] * 2), [1j, 2j], [[1], [2, 3]], [1, "x"], [b"x", b"y"]]
)
def test_a_column_that_cannot_be_used_is_refused_by_name(column):
    with pytest.raises(DataError, match=r"Column 'city' of party 'north' holds"):
        as_table(pd.DataFrame({"age": [1, 2], "city": column}), WHO)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"])
@pytest.mark.parametrize("make", [sparse.csr_matrix, sparse.csr_array])
def test_every_sparse_format_becomes_csr(kind, make):
    table, columns = as_table(make(VALUES).asformat(kind), WHO)
    assert (table.format, table.dtype, columns) == ("csr", np.float32, None)
    np.testing.assert_array_equal(table.toarray(), VALUES)


def test_unsorted_and_repeated_sparse_entries_are_put_in_order():
    messy = sparse.csr_matrix((np.array([5.0, 1.0, 2.0]), np.array([2, 0, 2]), np.array([0, 3])), shape=(1, 3))
    table, _ = as_table(messy, WHO)
    assert table.has_canonical_format
    np.testing.assert_array_equal(table.toarray(), [[1, 0, 7]])


def test_the_callers_sparse_table_is_left_as_it_is():
    messy = sparse.csr_matrix(
        (np.array([5.0, 1.0, 2.0], dtype=np.float32), np.array([2, 0, 2]), np.array([0, 3])), shape=(1, 3)
    )
    as_table(messy, WHO)
    assert messy.nnz == 3
    assert messy.indices.tolist() == [2, 0, 2]


def test_a_sparse_zero_that_is_stored_stays_stored():
    table, _ = as_table(sparse.csr_matrix((np.array([0.0]), np.array([1]), np.array([0, 1])), shape=(1, 2)), WHO)
    assert table.nnz == 1


@pytest.mark.parametrize("table", [np.array([[np.inf]]), np.array([[-np.inf]]), np.array([[1e300]])])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix, pd.DataFrame])
@pytest.mark.filterwarnings("ignore:overflow")
def test_infinite_values_are_refused(table, form):
    with pytest.raises(DataError, match="Party 'north' has infinite values"):
        as_table(form(table), WHO)


def test_repeated_column_names_are_refused():
    with pytest.raises(DataError, match=r"Party 'north' has several columns named \['age'\]"):
        as_table(pd.DataFrame(VALUES, columns=["age", "age", "n"]), WHO)


@pytest.mark.parametrize(("shape", "what"), [((0, 3), "no rows"), ((3, 0), "no features")])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix, pd.DataFrame])
def test_a_table_of_nothing_is_refused(shape, what, form):
    with pytest.raises(DataError, match=f"Party 'north' has {what}"):
        as_table(form(np.empty(shape)), WHO)


@pytest.mark.parametrize("table", [[1, 2], None, 3.0, np.zeros((2, 2, 2)), [["a"]], np.array([[1j]])])
def test_what_is_not_a_table_of_numbers_is_refused(table):
    with pytest.raises(DataError, match="Party 'north' has a table"):
        as_table(table, WHO)


def test_rows_of_different_lengths_are_refused():
    with pytest.raises(DataError, match="Party 'north'"):
        as_table([[1, 2], [3]], WHO)


def test_complex_sparse_values_are_refused():
    with pytest.raises(DataError, match="Party 'north'"):
        as_table(sparse.csr_matrix([[1j, 2.0]]), WHO)


@pytest.mark.parametrize(
    "labels", [[0, 1], (0, 1), np.array([[0], [1]]), pd.Series([0, 1]), pd.Series([0, 1], dtype="Int64"), ["a", "b"]]
)
def test_labels_come_in_many_forms(labels):
    assert as_labels(labels, 2, WHO).shape == (2,)


@pytest.mark.parametrize(
    "labels", [[0, np.nan], [0, None], ["a", None], pd.Series([0, None], dtype="Int64"), [pd.NaT, pd.NaT]]
)
def test_missing_labels_are_refused_and_counted(labels):
    with pytest.raises(DataError, match=r"Party 'north' has \d missing labels.*Drop these rows"):
        as_labels(labels, 2, WHO)


@pytest.mark.parametrize("labels", [[0], [0, 1, 1], [[0, 1, 2], [1, 0, 2]], 5, None])
def test_labels_must_be_one_per_row(labels):
    with pytest.raises(DataError, match="Party 'north' has 2 rows but labels of shape"):
        as_labels(labels, 2, WHO)


@pytest.mark.parametrize("labels", [[1, "a"], np.array([1.5, "a"], dtype=object), np.array([True, 1], dtype=object)])
def test_numbers_and_text_among_the_labels_are_refused(labels):
    with pytest.raises(DataError, match=r"Party 'north' has labels of type \w+, \w+\. Give numbers only, or text only"):
        as_labels(labels, 2, WHO)


@pytest.mark.parametrize("labels", [["0,5", "1,5"], np.array(["0,5", "1,5"]), pd.Series(["0,5", "1"], dtype="string")])
def test_labels_that_are_numbers_with_a_comma_are_refused(labels):
    with pytest.raises(DataError, match=r"Party 'north' has labels that are numbers with a comma.*If they are classes"):
        as_labels(labels, 2, WHO)


def test_classes_with_a_comma_and_persons_are_no_numbers():
    assert as_labels(["0,5 mg", "1,5 mg"], 2, WHO).tolist() == ["0,5 mg", "1,5 mg"]
    assert Party("a", np.ones((2, 1)), [0, 1], person=["1,5", "2,5"]).rows.person.tolist() == ["1,5", "2,5"]


def test_a_classifier_takes_numbers_with_a_comma_for_classes_as_it_is_told():
    X, y = np.arange(120.0).reshape(-1, 3), np.repeat(["0,5", "1,5"], 20)
    classifier = SimFLClassifier(n_trees=2, max_depth=1).fit(X, y, parties=np.tile(["a", "b"], 20), eval_set=[(X, y)])
    assert set(classifier.predict(X)) == {"0,5", "1,5"}


@pytest.mark.parametrize("labels", [np.array([b"a", b"b"], dtype=object), [b"a", b"b"], [[1], [2, 3]], [{}, set()]])
def test_labels_that_are_neither_numbers_nor_text_are_refused(labels):
    with pytest.raises(DataError, match=r"Party 'north' has labels of type"):
        as_labels(labels, 2, WHO)


def test_text_that_no_file_can_hold_is_refused():
    with pytest.raises(DataError, match=r"Party 'north' has labels that are not valid text \('.ud800'\)"):
        as_labels(["a", "\ud800"], 2, WHO)
    with pytest.raises(DataError, match="Party 'north' has column names"):
        as_table(pd.DataFrame([[1]], columns=pd.Index(["\ud800"], dtype=object)), WHO)
    with pytest.raises(DataError, match="Column 'a' of party 'north' holds"):
        as_table(pd.DataFrame({"a": pd.Series(["x", "\ud800"], dtype=object)}), WHO)


def test_labels_beyond_64_bits_are_refused():
    with pytest.raises(DataError, match="Party 'north' has labels beyond 64 bits"):
        as_labels([1, 2**70], 2, WHO)


def test_decimal_labels_are_numbers():
    assert as_labels([Decimal("0.5"), Decimal(2)], 2, WHO).tolist() == [0.5, 2.0]


def test_no_weights_are_none():
    assert as_weights(None, 3, WHO) is None


def test_weights_become_float32():
    weights = as_weights(pd.Series([1, 0, 2]), 3, WHO)
    assert weights.dtype == np.float32
    assert weights.tolist() == [1, 0, 2]


@pytest.mark.parametrize("weights", [[1, -1], [1, np.nan], [1, np.inf], [0, 0], ["a", "b"], [1], [[1, 1]]])
def test_weights_that_mean_nothing_are_refused(weights):
    with pytest.raises(DataError, match=r"Party 'north'.*sample weights"):
        as_weights(weights, 2, WHO)


@pytest.mark.parametrize("heaviest", [1e13, 1e38, 1e300])
def test_weights_whose_sums_lose_all_precision_are_refused(heaviest):
    assert as_weights([1, 1e12], 2, WHO) is not None
    with pytest.raises(DataError, match=r"Party 'north' has sample weights .*: 1 above 1e\+12 .*by the same number"):
        as_weights([1, heaviest], 2, WHO)


def test_all_that_is_wrong_with_weights_is_said_with_counts_and_no_value():
    assert wrong_weights(np.array([1.0, np.nan, -7.5, -7.5, np.inf, 7e13])) == (
        "1 missing (fill it in, or leave the row out), 2 below zero (correct it, or leave the row out), "
        "1 infinite (correct it, or leave the row out), 1 above 1e+12 (divide the weights of all parties by the same "
        "number)"
    )
    assert wrong_weights(np.array([0.0, 0.0])).startswith("all of them zero")
    assert wrong_weights(np.array([0.0, 1e12])) is None


@pytest.mark.parametrize("heaviest", [1e-60, 1e-30, 9e-13])
def test_weights_that_are_all_next_to_nothing_are_refused(heaviest):
    said = "all of them below 1e-12 (no tree could be split: multiply the weights of all parties by the same number)"
    assert wrong_weights(np.array([0.0, heaviest])) == said
    assert wrong_weights(np.array([1e-12, heaviest])) is None


def test_weights_with_commas_are_refused_with_a_hint():
    with pytest.raises(DataError, match=r"Party 'north' has sample weights that are numbers with a comma \('0,5'\)\."):
        as_weights(["0,5", "1,25"], 2, WHO)
    with pytest.raises(DataError, match="not numbers"):
        as_weights(["a,b", 1.0], 2, WHO)


def test_classes_are_pythons_own_values():
    assert plain_classes(np.array([2.0, 1.0, 2.0])) == [1, 2]
    assert plain_classes(np.array(["b", "a"])) == ["a", "b"]
    assert plain_classes(np.array([True, False])) == [False, True]


def test_whole_numbers_in_an_object_column_stay_numbers():
    assert plain_classes(np.array([1, 0, 1], dtype=object)) == [0, 1]


def test_bools_in_an_object_column_stay_bools():
    assert plain_classes(np.array([True, False], dtype=object)) == [False, True]


def test_class_numbers_are_places_in_the_list():
    assert class_numbers(np.array([3, -1, 3]), [-1, 0, 3], WHO).tolist() == [2, 0, 2]
    assert class_numbers(np.array([1.0, 0.0]), [0, 1], WHO).tolist() == [1, 0]
    assert class_numbers(np.array(["b", "a"]), ["a", "b"], WHO).tolist() == [1, 0]


def test_a_label_outside_the_classes_is_refused():
    with pytest.raises(DataError, match=r"Party 'north' has labels \[2\] that are not among"):
        class_numbers(np.array([0, 2]), [0, 1], WHO)


def test_text_labels_do_not_pass_for_numbers():
    with pytest.raises(DataError, match="Party 'north' has labels of type"):
        class_numbers(np.array(["0", "1"]), [0, 1], WHO)
