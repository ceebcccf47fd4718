import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfl.data.quality import look_at, look_at_weights
from simfl.data.schema import Schema

rng = np.random.default_rng(0)
N = 400
LABEL = (np.arange(N) % 5 == 0).astype(int)


def findings(kind, values, label=LABEL, classes=True):
    X = np.asarray(values, dtype=np.float32)[:, None]
    return look_at(X, label, Schema.from_toml({"column": kind}), classes=classes)


@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        ("number", rng.permutation(N), "looks like an id: its 400 whole numbers all differ"),
        ("number", 10**8 + np.arange(N), "has whole numbers beyond 16,777,216, which are rounded"),
        ("number", np.full(N, 3.5), "has the same value in all rows (3.5)"),
        ("number", np.full(N, np.nan), "has no value at all"),
        ("number", np.where(np.arange(N) % 3, np.nan, rng.normal(size=N)), "lacks 66% of its values"),
        ("number", LABEL + 0.1 * rng.random(N), "alone predicts the label in 100.0% of the rows (guessing: 80.0%)"),
        (["a", "b", "c"], np.r_[2, np.arange(N - 1) % 2], "has levels that occur in one row only (['c'])"),
        (["a", "b", "c"], np.arange(N) % 2, "never has the levels ['c'] of the study"),
        ({"low": 0, "high": 120}, rng.random(N) * 150, "outside of what the study declares (0 to 120), such as 149"),
        (
            {"low": 0, "high": 300},
            0.5 + rng.random(N),
            "a hundredth of what the study declares (0 to 300): another unit?",
        ),
        ({"cuts": [1000, 2000]}, rng.random(N), "no value between the first and last cut"),
    ],
)
def test_every_kind_of_finding_is_said(kind, values, said):
    found = findings(kind, values)
    assert any(said in text for text in found), found


def test_that_a_value_is_missing_can_give_the_label_away():
    assert "alone predicts" in findings("number", np.where(LABEL, np.nan, rng.normal(size=N)))[-1]


def test_a_number_that_follows_the_label_gives_it_away_too():
    label = rng.normal(size=N)
    assert "alone predicts the label (R2 0.9" in findings("number", 3 * label + 1, label, classes=False)[-1]
    assert findings("number", label + rng.normal(size=N), label, classes=False) == []


def test_a_good_column_is_not_mentioned():
    assert findings("number", LABEL + rng.normal(size=N)) == []
    assert findings({"low": 0, "high": 100}, 100 * rng.random(N)) == []
    assert findings("boolean", rng.integers(0, 2, N)) == []
    assert findings(["a", "b"], rng.integers(0, 2, N)) == []


@given(
    values=st.lists(st.floats(width=32, allow_infinity=False) | st.just(np.nan), min_size=1, max_size=80),
    classes=st.booleans(),
)
def test_no_table_is_too_strange_to_look_at(values, classes):
    label = np.arange(len(values)) % 2
    assert all(text.startswith("column 'column' ") for text in findings("number", values, label, classes))


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([2.0] * 9, ["all rows have the same weight (2)"]),
        ([0.0] * 6 + [1.0] * 5, ["6 of 11 rows have the weight 0 and do not count"]),
        ([30.0] + [1.0] * 99, ["one row has 23% of all weight"]),
        ([0.0] * 6 + [5.0, 1.0], ["6 of 8 rows have the weight 0", "one row has 83% of all weight"]),
        ([20.0] + [1.0] * 99, []),
        ([100.0] + [1.0] * 999, ["the heaviest row weighs 91 times the mean"]),
    ],
)
def test_weights_that_are_worth_a_look(weights, said):
    found = look_at_weights(np.array(weights, np.float32))
    assert [sentence[: len(start)] for sentence, start in zip(found, said, strict=True)] == said
