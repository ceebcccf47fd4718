import tomllib
from datetime import date

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simfl
from simfl.data.schema import MOST_LEVELS, Column, Schema, agree
from simfl.errors import DataError, UnseenLevelWarning
from simfl.preprocessing.expansion import Expansion
from simfl.preprocessing.scaling import WITHOUT_WEIGHT, common_scale, moments

WHO = "Party 'north'"
PATIENTS = {"age": [60, None, 71], "smoker": [True, False, None], "ward": ["b", None, "a"], "dose": [0.5, 1.0, 2.0]}


def category(name, *levels):
    return Column(name=name, kind="category", levels=levels)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_every_make_of_frame_is_read_alike(make):
    frame = make(PATIENTS)
    schema = Schema.propose(frame, WHO)
    kinds = ("number", "boolean", "category", "number")
    assert tuple(c.kind for c in schema.columns) == kinds
    assert schema.columns[2].levels == ("a", "b")
    expected = [[60, 1, 1, 0.5], [np.nan, 0, np.nan, 1], [71, np.nan, 0, 2]]
    np.testing.assert_array_equal(schema.encode(frame, WHO), np.array(expected, dtype=np.float32))


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(["b", "a", None]),
        pd.Series(["b", "a", None], dtype="category"),
        pd.Series(["b", "a", None], dtype="string"),
        pl.Series(["b", "a", None], dtype=pl.Categorical),
        pl.Series(["b", "a", None], dtype=pl.Enum(["a", "b", "c"])),
        pa.array(["b", "a", None]).dictionary_encode(),
        pa.array(["b", "a", None], type=pa.large_string()),
    ],
)
def test_every_kind_of_text_is_a_category(column):
    frame = pl.DataFrame({"ward": column}) if isinstance(column, pl.Series) else pa.table({"ward": column})
    schema = Schema.propose(frame)
    assert schema.columns == (category("ward", "a", "b"),)
    np.testing.assert_array_equal(schema.encode(frame)[:, 0], [1, 0, np.nan])


def test_levels_that_are_whole_numbers_are_the_same_with_and_without_missing_values():
    schema = Schema((category("grade", "1", "2"),))
    for column in ([2, 1], [2.0, 1.0], ["2", "1"], pd.Categorical([2, 1]), pd.array([2, 1], dtype="Int64")):
        np.testing.assert_array_equal(schema.encode(pd.DataFrame({"grade": column}))[:, 0], [1, 0])
    np.testing.assert_array_equal(schema.encode(pd.DataFrame({"grade": [2, None]}))[:, 0], [1, np.nan])


def test_the_index_of_a_frame_is_no_column():
    frame = pd.DataFrame({"age": [1, 2, 3]}, index=[7, 8, 9]).iloc[1:]
    assert Schema.propose(frame).names == ["age"]


def test_a_sparse_frame_is_read():
    frame = pd.DataFrame({"n": pd.arrays.SparseArray([0.0, 1.0, 0.0])})
    assert Schema.propose(frame).encode(frame)[:, 0].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    "dates",
    [
        pd.to_datetime(["2020-01-31"] * 3),
        pd.to_timedelta([1, 2, 3], unit="D"),
        [date(2020, 1, 31)] * 3,
        ["2020-01-31", "2021-02-01", None],
        ["31.01.2020"] * 3,
        ["2020-01-31T10:00:00"] * 3,
    ],
)
def test_dates_are_refused_with_advice(dates):
    with pytest.raises(DataError, match=r"Column 'seen' of party 'north' holds dates.*days since.*month as a category"):
        Schema.propose(pd.DataFrame({"seen": dates}), WHO)


def test_dates_are_refused_where_numbers_were_agreed():
    with pytest.raises(DataError, match="holds dates"):
        Schema.of_numbers(["seen"]).encode(pd.DataFrame({"seen": pd.to_datetime(["2020-01-31"])}))


def test_names_and_free_text_are_refused_and_not_shown_in_full():
    names = [f"patient {i:03}" for i in range(MOST_LEVELS + 1)]
    with pytest.raises(DataError, match=r"101 different texts in 101 rows.*names or free text") as refused:
        Schema.propose(pd.DataFrame({"name": names}), WHO)
    assert "patient 005" not in str(refused.value)
    with pytest.raises(DataError, match="20 different texts in 30 rows"):
        Schema.propose(pd.DataFrame({"name": names[:20] + names[:10]}), WHO)


def test_a_small_party_may_have_few_levels_that_are_all_different():
    assert len(Schema.propose(pd.DataFrame({"ward": list("abcdefghij")})).columns[0].levels) == 10


def test_a_declared_schema_takes_as_many_levels_as_it_says():
    names = [f"ward {i:03}" for i in range(300)]
    schema = Schema((category("ward", *names),))
    assert schema.encode(pd.DataFrame({"ward": names}))[:, 0].tolist() == list(range(300))


# --- agreeing ---


def test_agreeing_joins_levels_and_takes_the_first_partys_order():
    north = Schema((Column(name="age"), category("ward", "b", "c")))
    south = Schema((category("ward", "a", "c"), Column(name="age")))
    assert agree({"north": north, "south": south}) == Schema((Column(name="age"), category("ward", "a", "b", "c")))


@pytest.mark.parametrize(
    ("kinds", "agreed"),
    [
        (("number", "boolean"), "number"),
        (("boolean", "boolean"), "boolean"),
        (("empty", "boolean"), "boolean"),
        (("empty", "empty"), "number"),
        (("number", "empty"), "number"),
    ],
)
def test_kinds_that_can_be_settled(kinds, agreed):
    schemas = {str(i): Schema((Column(name="x", kind=kind),)) for i, kind in enumerate(kinds)}
    assert agree(schemas).columns[0].kind == agreed


def test_an_empty_column_becomes_a_category_where_another_party_has_one():
    empty = Schema((Column(name="ward", kind="empty"),))
    agreed = agree({"a": empty, "b": Schema((category("ward", "x"),))})
    assert agreed.columns[0].levels == ("x",)
    recoded = agreed.recode(np.full((2, 1), np.nan, dtype=np.float32), empty)
    assert np.isnan(recoded).all()


@pytest.mark.parametrize("kind", ["number", "boolean"])
def test_numbers_and_text_in_one_column_are_told_with_the_parties(kind):
    schemas = {"north": Schema((Column(name="ward", kind=kind),)), "south": Schema((category("ward", "x", "y"),))}
    with pytest.raises(DataError, match=rf"Column 'ward'.*'north' has {kind}s, 'south' has the levels \['x', 'y'\]"):
        agree(schemas)


@given(st.lists(st.sampled_from("abcdef"), min_size=1), st.sets(st.sampled_from("abcdefgh")), st.booleans())
def test_recoding_is_reading_through_the_agreed_schema(values, others, turned):
    frame = pd.DataFrame({"ward": values, "n": range(len(values))})
    frame = frame[["n", "ward"]] if turned else frame
    own = Schema.propose(frame)
    other = Schema((category("ward", *sorted(others or {"z"})), Column(name="n")))
    agreed = agree({"other": other, "own": own})
    np.testing.assert_array_equal(agreed.recode(own.encode(frame), own), agreed.encode(frame))


# --- reading through a schema ---


def test_another_order_and_other_columns_do_no_harm():
    schema = Schema((Column(name="a"), Column(name="b")))
    np.testing.assert_array_equal(schema.encode(pl.DataFrame({"z": [9], "b": [2], "a": [1]})), [[1, 2]])


def test_missing_columns_are_named():
    with pytest.raises(DataError, match=r"Party 'north' lacks columns \(missing: \['b'\]\)"):
        Schema.of_numbers("ab").encode(pd.DataFrame({"a": [1]}), WHO)


def test_unseen_levels_count_as_missing_with_a_warning():
    schema = Schema((category("ward", "a", "b"),))
    with pytest.warns(UnseenLevelWarning, match=r"Column 'ward' of party 'north'.*\['c'\].*count as missing"):
        encoded = schema.encode(pd.DataFrame({"ward": ["b", "c"]}), WHO)
    np.testing.assert_array_equal(encoded[:, 0], [1, np.nan])


@pytest.mark.parametrize("kind", ["number", "boolean"])
def test_text_where_numbers_were_agreed_is_refused_with_examples(kind):
    with pytest.raises(DataError, match=rf"'age' of party 'north' is a {kind} in the schema and holds \['n/a', 'x'\]"):
        Schema((Column(name="age", kind=kind),)).encode(pd.DataFrame({"age": ["x", "n/a"]}), WHO)


def test_booleans_are_zero_and_one_only():
    schema = Schema((Column(name="smoker", kind="boolean"),))
    assert schema.encode(pd.DataFrame({"smoker": [0, 1]}))[:, 0].tolist() == [0, 1]
    with pytest.raises(DataError, match="other numbers than 0 and 1"):
        schema.encode(pd.DataFrame({"smoker": [0, 2]}))


def test_an_array_has_no_names():
    with pytest.raises(DataError, match="Give a data frame"):
        Schema.propose(np.zeros((2, 2)))
    with pytest.raises(DataError, match="Give a data frame"):
        Schema.of_numbers("ab").encode(np.zeros((2, 2)))


# --- the study file ---


@given(st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="[]<"), min_size=1))
def test_a_schema_survives_the_study_file(text):
    schema = Schema(
        (Column(name=text), Column(name=f"{text}2", kind="boolean"), category(f"{text}3", text, "x" + text))
    )
    assert Schema.from_toml(tomllib.loads(schema.to_toml())["columns"]) == schema


@pytest.mark.parametrize("value", ["text", [], 3, ["a", "a"]])
def test_what_a_study_file_cannot_say_is_refused(value):
    with pytest.raises(DataError, match=r"\[columns\] says ward = "):
        Schema.from_toml({"ward": value})


# --- for hashing ---


def test_a_category_varies_as_much_as_one_number_does():
    """Two rows drawn at random differ by as much, squared and on average, in ten levels as in one number."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(5, 3, 4000), rng.integers(0, 10, 4000)]).astype(np.float32)
    expansion = Expansion(np.array([0, 10]))
    wide = expansion.expand(X)
    scale = common_scale(moments(wide), len(X), expansion.groups)
    scaled = (wide - scale.mean) / scale.deviation
    apart = (scaled[:2000] - scaled[2000:]) ** 2
    assert apart[:, 0].mean() == pytest.approx(2, rel=0.1)
    assert apart[:, 1:].sum(axis=1).mean() == pytest.approx(2, rel=0.1)
    assert scale.norm == pytest.approx(np.sqrt(2))


def test_numbers_alone_are_scaled_as_ever():
    X = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    assert Expansion(np.zeros(4, dtype=np.int32)).expand(X) is X
    assert np.array_equal(common_scale(moments(X), 50).deviation, common_scale(moments(X), 50, np.arange(4)).deviation)


def test_a_level_that_nobody_has_does_not_count():
    wide = Expansion(np.array([3])).expand(np.array([[0], [1]], dtype=np.float32))
    assert common_scale(moments(wide), 2, np.zeros(3, dtype=int)).deviation[2] == WITHOUT_WEIGHT


# --- declared ranges -------------------------------------------------------------------------------------------------


def test_a_range_and_cut_points_can_be_declared_and_are_written_as_they_are_read():
    declared = {"age": {"low": 0.0, "high": 120.0}, "dose": {"cuts": [0.5, 1.0]}, "smoker": "boolean", "bmi": "number"}
    schema = Schema.from_toml(declared)
    assert [column.range for column in schema.columns] == [{"low": 0, "high": 120}, {"cuts": (0.5, 1)}, {}, {}]
    assert {column.kind for column in schema.columns} == {"number", "boolean"}
    assert tomllib.loads(schema.to_toml())["columns"] == declared


@pytest.mark.parametrize(
    ("declared", "fact"),
    [
        ({"low": 0}, "needs low and high, or cuts alone"),
        ({"low": 0, "high": 1, "cuts": [0.5]}, "needs low and high, or cuts alone"),
        ({"low": 3, "high": 3}, "must rise"),
        ({"low": 1, "high": 1 + 1e-12}, "must rise, and be finite, in float32"),
        ({"low": float("nan"), "high": 1}, "finite"),
        ({"low": 0, "high": 1e300}, "finite"),
        ({"cuts": [2, 1]}, "must rise"),
        ({"cuts": list(range(255))}, "255 cuts: there may be 254"),
        ({"cuts": []}, "no range"),
        ({}, "no range"),
        ({"low": "a", "high": "b"}, "Expected float"),
        ({"low": 0, "hihg": 1}, "Did you mean 'high'"),
    ],
)
def test_a_range_that_is_none_is_refused(declared, fact):
    with pytest.raises(DataError, match=fact):
        Schema.from_toml({"age": declared})


def test_only_numbers_have_a_range():
    with pytest.raises(DataError, match="'ward' is a category: only numbers have a range"):
        Column(name="ward", kind="category", levels=("a", "b"), low=0, high=1)


def test_parties_keep_a_declared_range_and_refuse_two():
    north, plain = Schema((Column(name="age", low=0, high=120),)), Schema((Column(name="age"),))
    assert agree({"a": plain, "b": north}) == north
    with pytest.raises(DataError, match=r"'a' declares .*'b'"):
        agree({"a": north, "b": Schema((Column(name="age", cuts=(18, 65)),))})


def test_all_columns_that_cannot_be_used_are_named_at_once():
    rows = range(200)
    table = pd.DataFrame({"id": [f"P{i}" for i in rows], "age": list(rows), "note": [f"text {i}" for i in rows]})
    table["seen"] = "2024-01-01"
    with pytest.raises(DataError, match=r"'id'.*Nor can these be used as they are: 'note', 'seen'\.$"):
        Schema.propose(table)


def refusal(values):
    with pytest.raises(DataError) as caught:
        Schema.propose(pd.DataFrame({"dose": values}))
    return str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        ["1.100,50", "7,5"],
        ["1,5E-05", "2,5e3"],
        [" 0,5 ", "1,5"],
        [",5", "1,5"],
        ["0,500", "0,125"],  # no thousands begin with 0
        ["1,5", "2,5", "k.A."],
        [*(f"{n},5" for n in range(27)), "-", "k.A.", "n.b."],
    ],
)
def test_decimals_with_a_comma_are_known_however_they_are_written(values):
    told = refusal(values)
    assert 'decimal=","' in told
    assert ('thousands="."' in told) == ("1.100,50" in values)
    assert ("na_values" in told) == ("k.A." in values)
    assert "thousands or decimals" not in told


def test_thousands_with_a_comma_are_not_called_decimals():
    told = refusal(["1,000", "2,500", "40,000"])
    assert "thousands or decimals?" in told
    assert 'thousands=","' in told
    assert 'decimal=","' in told
    for values in (["1,000", "1,234,567"], ["1,000.5", "2,000"]):
        told = refusal(values)
        assert 'thousands=","' in told
        assert "decimal" not in told


@pytest.mark.parametrize("values", [["1,2", "A1,3", "4,5"], ["1,2", "none"], ["1,2,3", "1,2", "2,3"], ["a", "b"]])
def test_other_texts_with_a_comma_are_levels(values):
    assert Schema.propose(pd.DataFrame({"code": values})).columns[0].kind == "category"


def test_who_made_a_category_of_numbers_with_a_comma_has_decided():
    frame = pd.DataFrame({"code": pd.Categorical(["0,1", "1,0", "1,1"])})
    assert Schema.propose(frame).columns[0].levels == ("0,1", "1,0", "1,1")
    assert simfl.Party("a", frame, [0, 1, 1]).schema == Schema.propose(frame)
    plain = frame.astype(str)
    told = refusal(plain["code"])
    assert "declare them in a schema, or make the column a category in pandas" in told
    declared = Schema.from_toml({"code": ["0,1", "1,0", "1,1"]})
    assert simfl.Party("a", plain, [0, 1, 1], schema=declared).rows.X.ravel().tolist() == [0, 1, 2]
