import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
import xgboost as xgb
from sklearn.datasets import dump_svmlight_file, load_breast_cancer, load_diabetes, load_iris

import simfl
from simfl import cli
from simfl.errors import FileError
from simfl.report.words import JOINT

SIMFL = Path(sys.executable).with_name("simfl")
FIELDS = {"method", "party", "error", "logloss", "auc", "seconds", "bytes"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with one table in every form."""
    folder = tmp_path_factory.mktemp("data")
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    frame = X.iloc[:120, :5].assign(site=["north", "south", "west"] * 40, ill=1 - y[:120])
    frame.to_csv(folder / "data.csv", index=False)
    frame.to_csv(folder / "semicolon.csv", index=False, sep=";")
    frame.to_csv(folder / "tab.tsv", index=False, sep="\t")
    frame.to_parquet(folder / "data.parquet")
    dump_svmlight_file(X.iloc[:120, :5], y[:120], str(folder / "data.svm"))
    load_iris(as_frame=True).frame.to_csv(folder / "iris.csv", index=False)
    load_diabetes(as_frame=True).frame.to_csv(folder / "diabetes.csv", index=False)
    frame.assign(ill=frame["ill"].astype(float).where(frame.index != 3)).to_csv(folder / "hole.csv", index=False)
    frame.assign(ill=1).to_csv(folder / "one.csv", index=False)
    frame.assign(ill=np.where(frame.index == 0, "rare", frame["ill"].astype(str))).to_csv(
        folder / "rare.csv", index=False
    )
    frame.rename(columns={"site": "[/site]"}).to_csv(folder / "markup.csv", index=False)
    frame.head(5).to_csv(folder / "few.csv", index=False)
    (folder / "rubbish.csv").write_bytes(bytes(range(256)))
    (folder / "empty.csv").write_bytes(b"")
    return folder


@pytest.fixture
def run(simfl_command):
    """Without reports, unless a folder for the run is named."""

    def call(*words):
        return simfl_command(*words, *("--no-report",) * (words[0] in ("demo", "simulate") and "--run" not in words))

    return call


def installed(*words, cwd):
    done = subprocess.run([SIMFL, *map(str, words)], capture_output=True, text=True, cwd=cwd, env=os.environ)
    return done.returncode, done.stdout, done.stderr


def results(path):
    found = json.loads(path.read_text())
    assert list(found) == ["results"]
    assert all(set(r) >= FIELDS for r in found["results"])
    return found["results"]


def test_the_installed_demo_writes_model_and_results(tmp_path):
    code, out, err = installed("demo", "--trees", 3, "--json", "r.json", cwd=tmp_path)
    assert (code, err) == (0, "")
    assert all(word in out for word in ("long-beach", "SOLO", "TFL", "SimFL", "ALL-IN", "simfl-demo.ubj", "r.json"))
    assert [r["method"] for r in results(tmp_path / "r.json")] == ["SOLO"] * 4 + [
        "TFL",
        "SimFL",
        "SimFL joint",
        "ALL-IN",
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.json", "runs", "simfl-demo.ubj"]
    assert sorted(p.name for p in (tmp_path / "runs" / "demo").iterdir()) == ["report.html", "run.json"]
    plain = xgb.Booster(model_file=tmp_path / "simfl-demo.ubj")
    X = simfl.datasets.heart()["budapest"].drop(columns="disease")
    ours = simfl.load(tmp_path / "simfl-demo.ubj")
    np.testing.assert_array_equal(plain.predict(xgb.DMatrix(X)), ours.predict_proba(X)[:, 1])


def test_the_demo_is_the_same_each_time(run, tmp_path):
    for name in ("a", "b"):
        words = ("--trees", 2, "--splits", 2, "--json", f"{name}.json", "--save", f"{name}.ubj")
        assert run("demo", *words) == 0
    first, second = ([r["logloss"] for r in results(tmp_path / f"{n}.json")] for n in "ab")
    assert first == second


@pytest.mark.parametrize("name", ["data.csv", "semicolon.csv", "tab.tsv", "data.parquet"])
def test_simulate_reads_every_table(run, folder, tmp_path, name):
    assert run("simulate", folder / name, "--label", "ill", "--trees", 2, "--json", "r.json") == 0
    assert [r["party"] for r in results(tmp_path / "r.json")][:5] == ["party 1", "party 2", "party 3", "party 4", None]


def test_simulate_reads_libsvm_without_a_label_column(run, folder, tmp_path):
    assert run("simulate", folder / "data.svm", "--trees", 2, "--parties", 2, "--json", "r.json") == 0
    assert len(results(tmp_path / "r.json")) == 6


def test_simulate_takes_one_file_for_each_party(run, folder, tmp_path, capsys):
    whole = pd.read_csv(folder / "data.csv")
    for site, rows in whole.groupby("site"):
        rows.drop(columns="site").to_csv(tmp_path / f"{site}.csv", index=False)
    names = [tmp_path / f"{site}.csv" for site in ("north", "south", "west")]
    assert run("simulate", *names, "--label", "ill", "--trees", 2, "--json", "several.json") == 0
    assert (
        run("simulate", folder / "data.csv", "--label", "ill", "--by", "site", "--trees", 2, "--json", "by.json") == 0
    )
    several, by = ([(r["party"], r["rounds"]) for r in results(tmp_path / n)] for n in ("several.json", "by.json"))
    assert several == by
    assert run("simulate", *names, "--label", "ill", "--parties", 2) == 1
    assert "each file is one party" in capsys.readouterr().err
    whole.rename(columns={"site": "place"}).to_csv(tmp_path / "west.csv", index=False)
    assert run("simulate", *names, "--label", "ill") == 1
    assert "do not have the same columns" in " ".join(capsys.readouterr().err.split())


def test_simulate_splits_by_a_column(run, folder, tmp_path):
    assert run("simulate", folder / "data.csv", "--label", "ill", "--by", "site", "--trees", 2, "--json", "r.json") == 0
    assert [r["party"] for r in results(tmp_path / "r.json")][:3] == ["north", "south", "west"]


def test_simulate_takes_a_column_of_weights(run, folder, tmp_path, capsys):
    whole = pd.read_csv(folder / "data.csv")
    whole.assign(counts=np.arange(120) % 4).to_csv(tmp_path / "weighted.csv", index=False)
    words = ("--label", "ill", "--trees", 5, "--weight", "counts")
    assert run("simulate", "weighted.csv", *words, "--by", "site", "--json", "by.json", "--save", "m.ubj") == 0
    assert "rows count by their weight" in capsys.readouterr().out
    assert "counts" not in simfl.load("m.ubj").feature_names
    for site, rows in pd.read_csv("weighted.csv").groupby("site"):
        rows.drop(columns="site").to_csv(f"{site}.csv", index=False)
    names = [f"{site}.csv" for site in ("north", "south", "west")]
    assert run("simulate", *names, *words, "--json", "several.json") == 0
    several, by = ([(r["party"], r["logloss"]) for r in results(tmp_path / n)] for n in ("several.json", "by.json"))
    assert several == by
    assert run("simulate", "weighted.csv", *words[:-1], "count") == 1
    assert "has no column 'count' (--weight)" in " ".join(capsys.readouterr().err.split())


def test_simulate_skews_by_theta(run, folder, tmp_path):
    words = ["--label", "ill", "--theta", 0.9, "--parties", 2, "--trees", 2, "--json", "r.json"]
    assert run("simulate", folder / "data.csv", *words) == 0
    assert len(results(tmp_path / "r.json")) == 6


def test_the_recipe_changes_the_model(run, folder, tmp_path):
    for recipe in ("similar", "paper"):
        words = ["--label", "ill", "--recipe", recipe, "--trees", 3, "--json", f"{recipe}.json"]
        assert run("simulate", folder / "data.csv", *words) == 0
    similar, paper = (results(tmp_path / f"{r}.json") for r in ("similar", "paper"))
    assert [r["logloss"] for r in similar if r["method"] == "SimFL"] != [
        r["logloss"] for r in paper if r["method"] == "SimFL"
    ]


def test_simulate_finds_out_that_labels_are_classes(run, folder, tmp_path, capsys):
    assert run("simulate", folder / "iris.csv", "--label", "target", "--trees", 2, "--json", "r.json") == 0
    assert "multi:softprob" in capsys.readouterr().out
    assert all(r["auc"] > 0.5 for r in results(tmp_path / "r.json") if r["method"] != JOINT)  # few rows for its guard


def test_simulate_finds_out_that_labels_are_numbers(run, folder, tmp_path, capsys):
    words = ["--label", "target", "--trees", 2, "--json", "r.json", "--save", "m.json"]
    assert run("simulate", folder / "diabetes.csv", *words) == 0
    assert "reg:squarederror" in capsys.readouterr().out
    assert all(r["error"] is None and r["rmse"] > 0 for r in results(tmp_path / "r.json"))
    assert simfl.load(tmp_path / "m.json").classes is None


WRONG = {
    "no file": (["nothing.csv", "--label", "ill"], "nothing.csv"),
    "a folder": ([".", "--label", "ill"], "."),
    "rubbish": (["rubbish.csv", "--label", "ill"], "rubbish.csv"),
    "empty": (["empty.csv", "--label", "ill"], "empty.csv"),
    "no label": (["data.csv"], "--label COLUMN"),
    "wrong label": (["data.csv", "--label", "il"], "'il' (--label)"),
    "wrong by": (["data.csv", "--label", "ill", "--by", "sit"], "'sit' (--by)"),
    "missing label": (["hole.csv", "--label", "ill"], "1 rows without a label"),
    "one class": (["one.csv", "--label", "ill"], "one class"),
    "few rows": (["few.csv", "--label", "ill"], "5 rows are too few"),
    "by and theta": (["data.csv", "--label", "ill", "--by", "site", "--theta", "0.8"], "--by goes without"),
    "theta": (["data.csv", "--label", "ill", "--theta", "1.5"], "theta=1.5"),
    "theta of three": (["iris.csv", "--label", "target", "--theta", "0.8"], "--by"),
    "odd parties": (["data.csv", "--label", "ill", "--theta", "0.8", "--parties", "3"], "even"),
    "many parties": (["data.csv", "--label", "ill", "--parties", "999"], "999"),
    "text as number": (["data.csv", "--label", "site", "--objective", "reg:squarederror"], "not numbers"),
    "three as two": (["iris.csv", "--label", "target", "--objective", "binary:logistic"], "two classes"),
    "by in libsvm": (["data.svm", "--by", "site"], "--by cannot be used"),
    "model's ending": (["data.csv", "--label", "ill", "--trees", "1", "--save", "m.txt"], ".ubj or .json"),
    "results' folder": (["data.csv", "--label", "ill", "--trees", "1", "--json", "no/r.json"], "no/r.json"),
    "brackets": (["markup.csv", "--label", "il"], "[/site]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_error_is_one_sentence_and_nothing_is_written(run, folder, tmp_path, capsys, case):
    (name, *words), fact = WRONG[case]
    writes = [w for w in ("--json", "--save") if w not in words]
    target = [x for w in writes for x in (w, {"--json": "r.json", "--save": "m.ubj"}[w])]
    assert run("simulate", folder / name, *words, *target) == 1
    err = capsys.readouterr().err
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert fact in err
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_output_is_refused_before_the_training(run, folder, capsys):
    assert run("simulate", folder / "data.csv", "--label", "ill", "--trees", 1, "--save", "m.txt") == 1
    assert "SimFL" not in capsys.readouterr().out


def test_a_class_that_is_only_held_out_is_no_crash(run, folder):
    assert run("simulate", folder / "rare.csv", "--label", "ill", "--trees", 1, "--seed", 6) == 0


def test_the_installed_command_ends_with_a_code_and_one_line_for_an_error(folder):
    code, out, err = installed("simulate", "nothing.csv", "--label", "ill", cwd=folder)
    assert (code, out) == (1, "")
    assert err.startswith("Error: There is no file nothing.csv. Check the name and the folder")
    assert err.count("\n") == 1


FEW_ROWS = (
    "Warning: 72 rows to train on are few for recipe='joint': no sum is over fewer than 30 rows (min_group), "
    "so hardly any tree can be split. Try recipe='similar'.\n"
)


@pytest.mark.parametrize("recipe", ["similar", "joint"])  # beside similar, joint is shown for comparison
def test_the_installed_command_shows_a_warning_as_one_line_and_once(folder, tmp_path, recipe):
    words = ("--label", "ill", "--by", "site", "--trees", 2, "--splits", 3, "--recipe", recipe, "--run", tmp_path)
    code, _, err = installed("simulate", folder / "data.csv", *words, cwd=tmp_path)
    assert code == 0
    assert err == FEW_ROWS


def test_levels_that_a_model_does_not_know_are_one_line_too(folder, tmp_path):
    frame = pd.read_csv(folder / "data.csv")
    frame.to_csv(tmp_path / "known.csv", index=False)
    frame.assign(site="[elsewhere]").to_csv(tmp_path / "new.csv", index=False)
    words = ("--label", "ill", "--parties", 2, "--trees", 2, "--no-report", "--save", "m.ubj")
    assert installed("simulate", "known.csv", *words, cwd=tmp_path)[0] == 0
    code, out, err = installed("predict", "m.ubj", "new.csv", cwd=tmp_path)
    assert (code, out.count("\n")) == (0, 121)
    assert err == (
        "Warning: Column 'site' of the table to predict has levels that the schema does not know: ['[elsewhere]']. "
        "They count as missing.\n"
    )


def test_other_libraries_warnings_and_those_turned_into_errors_stay_as_they_are(folder, tmp_path):
    code = "import warnings, sys; from simfl.cli import app, main\n"
    code += "@app.command()\ndef hint(): warnings.warn('old', FutureWarning)\nsys.argv = ['simfl', 'hint']; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "FutureWarning: old" in done.stderr
    words = ("simulate", folder / "data.csv", "--label", "ill", "--by", "site", "--trees", "1", "--no-report")
    options = ("-W", "error::UserWarning:simfl.simulate.comparison")
    done = subprocess.run(
        [sys.executable, *options, "-m", "simfl", *words], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    assert "simfl.errors.FewRowsWarning: " in done.stderr


@pytest.mark.parametrize(
    "words", [["simulate"], ["simulate", "data.csv", "--recipe", "papre"], ["demos"], ["demo", "--tree", "3"]]
)
def test_wrong_usage_is_explained(simfl_command, capfd, words):
    assert simfl_command(*words) == 2
    assert "Usage: " in capfd.readouterr().err


def test_a_seed_below_zero_is_a_wrong_call(folder, run, capfd):
    assert run("simulate", folder / "data.csv", "--label", "ill", "--seed", "-1") == 2
    assert "--seed" in capfd.readouterr().err


def test_too_few_trees_are_a_wrong_call(folder, run, capfd):
    assert run("simulate", folder / "data.csv", "--label", "ill", "--trees", "0") == 2
    assert "--trees" in capfd.readouterr().err


def python_m(*words, **more):
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True, **more).stdout


def test_the_module_is_the_command():
    assert python_m("-m", "simfl", "--version").strip() == simfl.__version__


HEAVY = ["numpy", "pandas", "scipy", "sklearn", "xgboost", "numba", "pyarrow"]
HEAVY += ["altair", "vl_convert", "jinja2", "nvflare", "cryptography"]
LOADED = """
import json, sys
from simfl.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["simfl", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
print("loaded:", *(name for name in %r if name in sys.modules))
"""


def loaded(heavy, *calls, **more):
    """The heavy modules that calls of the command, one after the other in one process, have loaded."""
    return python_m("-c", LOADED % heavy, json.dumps(calls), **more).splitlines()[-1].split()[1:]


def commands(group, *path):
    """Every command and group below a group, as the words that call it."""
    for name, command in group.commands.items():
        yield (*path, name)
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)


COMMANDS = list(commands(typer.main.get_command(cli.app)))


def test_the_command_line_starts_without_anything_heavy():
    assert loaded(HEAVY, ["--help"], ["--version"], *([*words, "--help"] for words in COMMANDS)) == []


def test_the_package_is_imported_without_anything_heavy():
    code = "import sys, simfl; print([name for name in %r if name in sys.modules], simfl.errors.DataError.__name__)"
    assert python_m("-c", code % HEAVY).strip() == "[] DataError"


def test_a_simulation_ends_with_a_report_that_can_be_made_again(run, folder, capsys):
    words = ("--label", "ill", "--by", "site", "--trees", 3, "--run", "runs/x", "--save", "m.ubj")
    assert run("simulate", folder / "data.csv", *words) == 0
    assert "Report: runs/x/report.html" in capsys.readouterr().out
    written = Path("runs/x/report.html").read_text()
    record = json.loads(Path("runs/x/run.json").read_text())
    assert record["status"] == "finished"
    assert record["n_trees"] == len(record["history"]) == 3
    assert [p["name"] for p in record["parties"]] == ["north", "south", "west"]
    assert record["traffic"] == simfl.load("m.ubj").traffic
    Path("runs/x/report.html").unlink()
    assert run("report", "runs/x") == 0
    assert Path("runs/x/report.html").read_text() == written


def test_a_report_of_nothing_is_refused(run, capsys):
    assert run("report", "runs/nowhere") == 1
    assert "There is no run at runs/nowhere" in capsys.readouterr().err


def test_the_rows_of_a_file_are_predicted(run, folder, capsys):
    words = ("--label", "ill", "--parties", 2, "--trees", 3, "--save", "m.ubj")
    assert run("simulate", folder / "data.csv", *words) == 0
    capsys.readouterr()
    assert run("predict", "m.ubj", folder / "data.csv") == 0
    printed = pd.read_csv(io.StringIO(capsys.readouterr().out))
    model = simfl.load("m.ubj")
    frame = pd.read_csv(folder / "data.csv")
    assert printed["prediction"].tolist() == model.predict(frame).tolist()
    np.testing.assert_allclose(printed["probability of 1"], model.predict_proba(frame)[:, 1], rtol=1e-6)
    assert run("predict", "m.ubj", folder / "data.parquet", "--out", "p.parquet") == 0
    pd.testing.assert_frame_equal(pd.read_parquet("p.parquet"), printed, check_dtype=False)
    assert run("predict", "m.ubj", folder / "iris.csv") == 1
    assert "lacks columns" in capsys.readouterr().err
    assert run("predict", "m.ubj", folder / "data.csv", "--out", "p.txt") == 1
    assert run("export", "m.ubj", "m.onnx") == 1
    assert "categories (site)" in capsys.readouterr().err


def test_what_cannot_be_used_can_be_dropped_as_it_says(run, tmp_path, capsys):
    rows = range(120)
    table = pd.DataFrame(
        {"the id": [f"P{i}" for i in rows], "age": rows, "seen": "2024-01-02", "ward": ["a", "b"] * 60}
    )
    table.assign(ill=[0, 1] * 60).to_csv(tmp_path / "t.csv", index=False)
    assert run("simulate", tmp_path / "t.csv", "--label", "ill") == 1
    assert "To leave out what cannot be used: --drop 'the id' --drop seen" in capsys.readouterr().err.replace("\n", " ")
    words = ("--drop", "the id", "--drop", "seen", "--trees", "2", "--save", tmp_path / "m.ubj")
    assert run("simulate", tmp_path / "t.csv", "--label", "ill", *words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.index("If you need ONNX, turn them into 0/1 columns") < said.index("120 rows"), "before the training"


def test_export_refuses_before_it_loads_the_model(run, tmp_path, capsys):
    assert run("export", tmp_path / "none.ubj", tmp_path / "nowhere" / "m.onnx") == 1
    assert "cannot be written" in capsys.readouterr().err
    assert run("simulate", tmp_path / "none.csv", "--label", "y", "--save", "m.onnx") == 1
    with pytest.raises(FileError, match="simfl export"):
        simfl.model.check_target("m.onnx")


def test_simulate_with_epsilon_takes_declared_columns(run, tmp_path, capsys):
    pytest.importorskip("dp_accounting")
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.normal(50, 10, 600), "ward": rng.choice(["a", "b"], 600)})
    table.assign(ill=np.where(table.ward == "a", "yes", "no")).to_csv(tmp_path / "t.csv", index=False)
    private = ("simulate", "t.csv", "--label", "ill", "--parties", 2, "--trees", 20, "--epsilon", 8)
    assert run(*private) == 1
    assert "--epsilon goes with --recipe joint" in " ".join(capsys.readouterr().err.split())
    assert run(*private, "--recipe", "joint") == 1
    assert "--epsilon needs --columns STUDY" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "study.toml").write_text('[columns]\nage = "number"\nward = ["a", "b"]\n')
    assert run(*private, "--recipe", "joint", "--columns", "study.toml") == 1
    assert "age = { low = ..., high = ... }" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "study.toml").write_text('[columns]\nage = { low = 0, high = 110 }\nward = ["a", "b"]\n')
    words = ("--recipe", "joint", "--columns", "study.toml", "--json", "r.json", "--save", "m.ubj")
    assert run(*private, *words) == 0
    assert "still improving" not in capsys.readouterr().out
    assert "adding or removing any one row" in simfl.load(tmp_path / "m.ubj").guarantee
    assert [r["method"] for r in results(tmp_path / "r.json")] == ["SOLO", "SOLO", "TFL", "SimFL", "ALL-IN"]
