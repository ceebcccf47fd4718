import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

from simfl.data import files
from simfl.data.files import Target, read, read_frame, read_several
from simfl.data.schema import MOST_LEVELS
from simfl.errors import DataError, FileError, ParameterError


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 80, 20),
            "weight": rng.normal(70, 9, 20).round(2),
            "site": ["north", "south"] * 10,
            "ill": [0, 1, 1, 0] * 5,
        }
    )


def assert_same(found, frame):
    np.testing.assert_allclose(found.X[["age", "weight"]], frame[["age", "weight"]], rtol=1e-6)
    assert found.y.tolist() == frame["ill"].tolist()
    assert found.schema.names == ["age", "weight", "site"]
    assert found.schema.columns[2].levels == ("north", "south")


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("ending", ["csv", "tsv", "txt", ""])
def test_text_tables_are_read_whatever_their_separator(tmp_path, frame, separator, ending):
    path = tmp_path / f"data.{ending}"
    frame.to_csv(path, sep=separator, index=False)
    assert_same(read(path, "ill"), frame)


@pytest.mark.parametrize("ending", ["parquet", "pq", "PARQUET"])
def test_parquet_is_read(tmp_path, frame, ending):
    path = tmp_path / f"data.{ending}"
    frame.to_parquet(path)
    assert_same(read(path, "ill"), frame)


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path, frame):
    path = tmp_path / "data.csv"
    frame.to_csv(path, index=False, encoding="utf-8-sig")
    assert_same(read(path, "ill"), frame)


@pytest.mark.parametrize("name", ["data.svm", "data.libsvm", "data.svmlight", "data.txt", "data"])
def test_libsvm_is_known_by_its_ending_or_its_first_line(tmp_path, name):
    X = sparse.random(20, 6, density=0.5, random_state=0, dtype=np.float32, format="csr")
    dump_svmlight_file(X, [1, -1] * 10, str(tmp_path / name), zero_based=False)
    found = read(tmp_path / name)
    assert found.y.tolist() == [1, -1] * 10
    assert found.schema is None
    np.testing.assert_allclose(found.X.toarray(), X.toarray()[:, : found.X.shape[1]], rtol=1e-5)


@pytest.mark.parametrize("opening", ["# a comment\n", "1\n", "-1 qid:3 1:0.5\n"])
def test_libsvm_is_known_past_comments_empty_rows_and_query_ids(tmp_path, opening):
    (tmp_path / "data").write_text(opening + "1 1:0.5 2:1\n-1 2:3\n" * 5)
    assert read(tmp_path / "data").schema is None


def test_libsvm_labels_that_are_not_whole_stay_as_they_are(tmp_path):
    (tmp_path / "data.svm").write_text("1.5 1:2\n-0.25 1:3\n")
    assert read(tmp_path / "data.svm").y.tolist() == [1.5, -0.25]


def test_a_clock_time_does_not_make_a_table_libsvm(tmp_path):
    (tmp_path / "data.txt").write_text("when,ill\n12:30,0\n12:45,1\n")
    assert read(tmp_path / "data.txt", "ill").y.tolist() == [0, 1]


def test_libsvm_cannot_be_split_by_a_column(tmp_path):
    (tmp_path / "data.svm").write_text("1 1:2\n")
    with pytest.raises(DataError, match="--by cannot be used"):
        read(tmp_path / "data.svm", by="site")


def test_the_column_to_split_by_is_no_feature(tmp_path, frame):
    frame.to_csv(tmp_path / "data.csv", index=False)
    found = read(tmp_path / "data.csv", "ill", by="site")
    assert found.schema.names == ["age", "weight"]
    assert found.by.tolist() == frame["site"].tolist()


def test_text_columns_are_categories_and_a_note(tmp_path, frame):
    frame.to_csv(tmp_path / "data.csv", index=False)
    assert read(tmp_path / "data.csv", "ill").notes == ["categories: site (2 levels)"]


def test_columns_can_be_left_out(tmp_path, frame):
    frame.to_csv(tmp_path / "data.csv", index=False)
    assert read(tmp_path / "data.csv", "ill", drop=["age", "site"]).schema.names == ["weight"]
    with pytest.raises(DataError, match=r"no column 'agee' \(--drop\)"):
        read(tmp_path / "data.csv", "ill", drop=["agee"])


def test_rows_come_with_their_labels(tmp_path, frame):
    frame.to_csv(tmp_path / "data.csv", index=False)
    X, y, _ = read(tmp_path / "data.csv", "ill").rows(np.array([3, 1]))
    assert X["age"].tolist() == frame["age"].iloc[[3, 1]].tolist()
    assert y.tolist() == frame["ill"].iloc[[3, 1]].tolist()


def test_a_column_of_weights_is_no_feature(tmp_path, frame):
    frame = frame.assign(counts=np.arange(len(frame)) / 2)
    frame.to_csv(tmp_path / "data.csv", index=False)
    data = read(tmp_path / "data.csv", Target.of("ill", None, "counts"))
    assert "counts" not in data.schema.names
    assert data.weight.tolist() == frame["counts"].tolist()
    assert data.rows(np.array([3, 1]))[2].tolist() == [1.5, 0.5]
    frame.to_csv(tmp_path / "other.csv", index=False)
    both = read_several([tmp_path / "data.csv", tmp_path / "other.csv"], Target.of("ill", None, "counts"))
    assert both.weight.tolist() == 2 * frame["counts"].tolist()


def test_weights_of_a_file_that_mean_nothing_are_refused(tmp_path, frame):
    told = {-1.0: f"{len(frame)} below zero", "much": "not numbers", 0.0: "all of them zero", "1,5": 'decimal=","'}
    for weights, said in told.items():
        frame.assign(counts=weights).to_csv(tmp_path / "data.csv", index=False)
        with pytest.raises(DataError, match=f"Column 'counts' of data.csv has sample weights that .*{said}"):
            read(tmp_path / "data.csv", Target.of("ill", None, "counts"))
    with pytest.raises(DataError, match=r"no column 'count' \(--weight\)"):
        read(tmp_path / "data.csv", Target.of("ill", None, "count"))
    with pytest.raises(ParameterError, match="'ill' is also what is learned"):
        Target.of("ill", None, "ill")
    (tmp_path / "data.svm").write_text("1 1:2\n")
    with pytest.raises(DataError, match="--weight cannot be used"):
        read(tmp_path / "data.svm", Target.of("ill", None, "counts"))


def test_a_file_without_labels_is_read_as_it_is(tmp_path, frame):
    frame.to_csv(tmp_path / "data.csv", index=False)
    pd.testing.assert_frame_equal(read_frame(tmp_path / "data.csv"), frame, check_dtype=False)
    (tmp_path / "data.svm").write_text("1 1:2\n")
    with pytest.raises(DataError, match="Give a CSV or Parquet file"):
        read_frame(tmp_path / "data.svm")


def test_missing_values_stay_missing(tmp_path):
    (tmp_path / "data.csv").write_text("a,b,ill\n1,,0\n,2,1\n")
    np.testing.assert_array_equal(read(tmp_path / "data.csv", "ill").X, [[1, np.nan], [np.nan, 2]])


def test_nullable_columns_are_read(tmp_path):
    frame = pd.DataFrame({"a": pd.array([1, None], dtype="Int64"), "ill": pd.array([0, 1], dtype="Int64")})
    frame.to_parquet(tmp_path / "data.parquet")
    found = read(tmp_path / "data.parquet", "ill")
    np.testing.assert_array_equal(found.X, [[1], [np.nan]])
    assert found.y.tolist() == [0, 1]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileError, match=r"There is no file .*nothing\.csv"):
        read(tmp_path / "nothing.csv", "ill")


def test_a_folder_is_not_called_a_missing_file(tmp_path):
    with pytest.raises(FileError, match="is a folder"):
        read(tmp_path, "ill")


RUBBISH = [bytes(range(256)) * 4, b"", b"PAR1"]


@pytest.mark.parametrize(
    ("ending", "content"),
    [(e, c) for e in ("csv", "parquet", "svm", "txt") for c in RUBBISH if (e, c) != ("svm", b"")],
)
def test_rubbish_and_empty_files_are_refused_in_one_sentence(tmp_path, ending, content):
    path = tmp_path / f"data.{ending}"
    path.write_bytes(content)
    with pytest.raises((FileError, DataError)) as refused:
        read(path, "ill")
    assert "\n" not in str(refused.value)
    assert path.name in str(refused.value)


def test_rows_of_different_lengths_are_refused(tmp_path):
    (tmp_path / "data.csv").write_text("a,ill\n1,0\n1,2,3,4\n")
    with pytest.raises(FileError, match="cannot be read"):
        read(tmp_path / "data.csv", "ill")


def test_no_label_column_lists_the_columns(tmp_path, frame):
    frame.to_csv(tmp_path / "data.csv", index=False)
    with pytest.raises(DataError, match=r"--label COLUMN.*age, weight, site, ill"):
        read(tmp_path / "data.csv")


@pytest.mark.parametrize(("options", "what"), [({"label": "il"}, "--label"), ({"label": "ill", "by": "sit"}, "--by")])
def test_a_column_that_is_not_there_is_named_with_its_option(tmp_path, frame, options, what):
    frame.to_csv(tmp_path / "data.csv", index=False)
    with pytest.raises(DataError, match=rf"no column 'i?l?(sit)?' \({what}\).*age, weight"):
        read(tmp_path / "data.csv", **options)


def test_missing_labels_are_counted(tmp_path, frame):
    frame["ill"] = frame["ill"].astype(float)
    frame.loc[[2, 5], "ill"] = np.nan
    frame.to_csv(tmp_path / "data.csv", index=False)
    with pytest.raises(DataError, match="2 rows without a label in column 'ill'"):
        read(tmp_path / "data.csv", "ill")


def test_a_column_of_names_is_refused(tmp_path):
    names = [f"name {i}" for i in range(MOST_LEVELS + 1)]
    pd.DataFrame({"name": names, "ill": 1}).to_csv(tmp_path / "data.csv", index=False)
    with pytest.raises(DataError, match=rf"Column 'name' of data.csv has {MOST_LEVELS + 1} different texts"):
        read(tmp_path / "data.csv", "ill")


def test_a_column_of_lists_is_refused(tmp_path):
    pd.DataFrame({"notes": [[1, 2], [3]], "ill": [0, 1]}).to_parquet(tmp_path / "data.parquet")
    with pytest.raises(DataError, match="'notes'"):
        read(tmp_path / "data.parquet", "ill")


def test_the_bank_data_are_read(shared_data):
    found = read(shared_data("bank-full.csv"), "y")
    assert len(found.y) == 45211
    assert set(found.y) == {"yes", "no"}
    kinds = {column.name: column.kind for column in found.schema.columns}
    assert list(kinds.values()).count("category") == 9
    assert kinds["age"] == "number"


def test_none_is_an_answer_and_na_is_missing(tmp_path):
    (tmp_path / "t.csv").write_text("sugar,y\nNone,0\nhigh,1\n,0\nNA,1\n")
    frame = files.read_frame(tmp_path / "t.csv")
    assert frame["sugar"].isna().tolist() == [False, False, True, True]


def test_two_columns_of_one_name_are_refused(tmp_path):
    (tmp_path / "t.csv").write_text("age,age,y\n1,2,0\n3,4,1\n")
    with pytest.raises(DataError, match=r"several columns named \['age'\]"):
        files.read(tmp_path / "t.csv", "y")


def test_rows_without_a_party_are_asked_about(tmp_path):
    (tmp_path / "t.csv").write_text("age,site,y\n1,a,0\n3,,1\n4,b,1\n")
    with pytest.raises(DataError, match=r"1 rows without a value in column 'site' \(--by\): whose are they"):
        files.read(tmp_path / "t.csv", "y", by="site")


@pytest.mark.parametrize(
    ("name", "content", "advice"),
    [
        ("t.csv.gz", b"\x1f\x8b\x08\x00", "is packed. Unpack it first"),
        ("t.csv", b"\x1f\x8b\x08\x00\x00\xff", "is packed with gzip"),
        ("t.csv", "age,größe\n1,2\n".encode("latin1"), "may be Latin-1.*iconv -f latin1"),
        ("t.csv", "age,y\n1,2\n".encode("utf-16"), "is UTF-16,.*iconv -f UTF-16 "),
        ("t.csv", "age,y\n1,2\n".encode("utf-32"), "is UTF-32.*iconv -f UTF-32 "),
        ("t.csv", "age,y\n1,2\n".encode("utf-16-le"), "is UTF-16LE.*iconv -f UTF-16LE "),
        ("t.csv", "age,größe\n1,2\n".encode("utf-16-be"), "is UTF-16BE.*iconv -f UTF-16BE "),
        ("t.libsvm", "1 1:2\n0 1:3\n".encode("utf-16"), "is UTF-16,"),
        ("t.libsvm", "1 1:2\n0 1:3\n".encode("utf-16-le"), "is UTF-16LE"),
        ("t", "1 1:2\n0 1:3\n".encode("utf-16-le"), "is UTF-16LE"),
        ("t.csv", b"age,y\0\n1,2\n", "has NUL bytes in its first line: it is no text"),
        ("t.csv", b"PK\x03\x04\x14\x00\xff\xfe", "ZIP archive or an Excel workbook"),
    ],
)
def test_packed_and_other_encoded_files_say_what_to_do(tmp_path, name, content, advice):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError, match=advice) as caught:
        files.read(tmp_path / name, "y")
    assert "cannot be read" not in str(caught.value), "one sentence, not two"


@pytest.mark.parametrize("values", [["77,0", "8,5", "77,0"], ["77", "-8,5", ""]])
def test_numbers_with_a_comma_are_refused_before_all_else(tmp_path, values):
    rows = "".join(f"2024-01-0{place + 1};{value};{place % 2}\n" for place, value in enumerate(values))
    (tmp_path / "t.csv").write_text(f"seen;age;y\n{rows}")
    with pytest.raises(DataError, match=r"'age' of t\.csv holds numbers with a comma.*decimal=\",\"\)"):
        files.read(tmp_path / "t.csv", "y")


def test_a_label_of_numbers_with_a_comma_is_refused_and_not_taken_for_classes(tmp_path):
    (tmp_path / "t.csv").write_text("a;y\n1;0,5\n2;1,5\n3;2,5\n")
    with pytest.raises(DataError, match=r"'y' of t\.csv \(the label\) holds numbers with a comma \('0,5'\).*decimal"):
        files.read(tmp_path / "t.csv", "y")


def test_codes_with_a_comma_stay_categories(tmp_path):
    (tmp_path / "t.csv").write_text("code;y\nA1,2;0\n3,4;1\n")
    assert files.read(tmp_path / "t.csv", "y").schema.columns[0].kind == "category"


def test_one_level_is_not_levels(tmp_path):
    (tmp_path / "t.csv").write_text("ward,site,y\na,x,0\na,z,1\n")
    assert files.read(tmp_path / "t.csv", "y").notes == ["categories: ward (1 level), site (2 levels)"]


def test_no_prediction_becomes_a_formula(tmp_path):
    frame = pd.DataFrame({"prediction": ["=1+1", "-2", "fine"], "probability of @x": [-0.5, 0.5, 1.0]})
    files.write_frame(frame, tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text() == "prediction,probability of @x\n'=1+1,-0.5\n'-2,0.5\nfine,1.0\n"
