import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from simfl.preprocessing import tables
from simfl.preprocessing.tables import HashValues, bucket_numbers, merge_tables


@pytest.fixture(autouse=True, scope="module", params=["compiled", "few codes"])
def both_ways(request):
    """Few codes are translated in NumPy: all of this must hold for both ways."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "FEW_CODES", 0 if request.param == "compiled" else 10**6)
        yield


hashes = arrays(np.int32, st.tuples(st.integers(1, 20), st.just(3)), elements=st.integers(-5, 5))


@given(hashes, hashes)
def test_rows_share_a_bucket_number_exactly_where_their_hash_values_are_equal(a, b):
    tables = merge_tables({"a": HashValues.of(a), "b": HashValues.of(b)})
    equal = a[:, None, :] == b[None, :, :]
    assert ((tables.codes["a"][:, None, :] == tables.codes["b"][None, :, :]) == equal).all()


@given(hashes, hashes)
def test_a_bucket_number_stands_for_its_value(a, b):
    tables = merge_tables({"a": HashValues.of(a), "b": HashValues.of(b)})
    for own, codes in ((a, tables.codes["a"]), (b, tables.codes["b"])):
        for table, values in enumerate(tables.values):
            assert values[codes[:, table]].tolist() == own[:, table].tolist()


def test_a_byte_per_hash_is_enough_for_256_buckets():
    values = np.arange(256, dtype=np.int32)[:, None]
    assert merge_tables({"a": HashValues.of(values)}).codes["a"].dtype == np.uint8
    assert merge_tables({"a": HashValues.of(np.vstack([values, [[999]]]))}).codes["a"].dtype == np.uint16
    assert merge_tables({"a": HashValues.of(np.arange(70_000, dtype=np.int32)[:, None])}).codes["a"].dtype == np.uint32


def test_a_party_finds_its_own_numbers_from_the_values():
    a, b = np.array([[5], [9]], np.int32), np.array([[7]], np.int32)
    tables = merge_tables({"a": HashValues.of(a), "b": HashValues.of(b)})
    assert bucket_numbers(HashValues.of(a), tables.values).tolist() == tables.codes["a"].tolist() == [[0], [2]]
