import bz2
import lzma

import numpy as np
import pytest

from benchmarks import data


@pytest.mark.parametrize(("suffix", "opened"), [("", open), (".bz2", bz2.open), (".xz", lzma.open)])
def test_a_file_of_libsvm_is_read_packed_or_not_and_cut_to_the_papers_rows(tmp_path, suffix, opened):
    path = tmp_path / f"SUSY{suffix}"
    with opened(path, "wb") as file:
        file.write(b"+1 1:0.5 3:2\n-1 2:1\n+1 1:7\n")
    X, y = data.read_libsvm(path, data.LibsvmFile(("SUSY",), 2, 4))
    assert np.array_equal(X, [[0.5, 0, 2, 0], [0, 1, 0, 0]])
    assert y.tolist() == [1, 0]


def test_half_a_file_is_refused(tmp_path):
    (tmp_path / "a9a").write_bytes(b"+1 1:1\n")
    with pytest.raises(SystemExit, match="1 rows and 1 columns, 32561 and 123 were expected"):
        data.read_libsvm(tmp_path / "a9a", data.LIBSVM["a9a"])


def test_libsvms_own_file_goes_before_a_sample_and_the_remark_says_which(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMFL_DATA", str(tmp_path))
    assert "SAMPLE" in data.source("SUSY").remark
    assert "STAND-IN" in data.source("real-sim").remark
    (tmp_path / "SUSY.xz").write_bytes(b"")
    assert data.source("SUSY").files == (tmp_path / "SUSY.xz",)
    assert data.source("SUSY").remark.endswith("as in the paper")


def test_data_that_is_not_there_is_told_with_the_variable_to_set(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMFL_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match=r"real-sim is not at .*SIMFL_DATA"):
        data.load("real-sim")
