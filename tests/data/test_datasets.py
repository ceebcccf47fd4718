"""The four hospitals that come with the package."""

import subprocess
import sys
import zipfile
from pathlib import Path

import simfl

ROOT = Path(__file__).parents[2]


def test_the_four_hospitals_are_those_of_the_source():
    tables = simfl.datasets.heart()
    assert {name: (len(t), int(t["disease"].sum())) for name, t in tables.items()} == {
        "cleveland": (303, 139),
        "budapest": (294, 106),
        "zurich-basel": (123, 115),
        "long-beach": (200, 149),
    }
    assert len({tuple(table.columns) for table in tables.values()}) == 1
    assert all(
        (table[["chol", "trestbps"]].min() > 0).all() for table in tables.values() if table["chol"].notna().any()
    )
    assert tables["zurich-basel"]["chol"].isna().all()


def test_a_table_is_nobody_elses():
    first = simfl.datasets.heart()
    first["cleveland"].loc[:, "age"] = 0
    assert simfl.datasets.heart()["cleveland"]["age"].min() > 0


def test_the_tables_agree_with_the_published_ones(shared_data):
    import pandas as pd

    named = {"cleveland": "cleveland", "budapest": "hungarian", "zurich-basel": "switzerland", "long-beach": "va"}
    for name, table in simfl.datasets.heart().items():
        source = pd.read_csv(shared_data("published/heart") / f"{named[name]}.csv")
        zeros = source[["chol", "trestbps"]] == 0
        source[["chol", "trestbps"]] = source[["chol", "trestbps"]].mask(zeros)
        source["disease"] = (source.pop("num") > 0).astype(int)
        pd.testing.assert_frame_equal(table, source, check_dtype=False)


def test_the_wheel_has_the_tables_with_source_and_licence(tmp_path):
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        names = [n.removeprefix("simfl/datasets/heart/") for n in files.namelist() if "datasets/heart/" in n]
        text = files.read("simfl/datasets/heart/README.md").decode()
    assert sorted(names) == ["README.md", "budapest.csv", "cleveland.csv", "long-beach.csv", "zurich-basel.csv"]
    assert "CC BY 4.0" in text
    assert "https://doi.org/10.24432/C52P4X" in text
