import json
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer

from simfl.audit import finished
from simfl.audit.scenario import Scenario
from simfl.audit.together import Together
from simfl.report.record import RunRecord


@pytest.fixture
def run(simfl_command, tmp_path):
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    X.iloc[:, :6].assign(ill=1 - y, ward=["a", "b", "c"] * 189 + ["a", "b"]).to_csv(tmp_path / "t.csv", index=False)
    return partial(simfl_command, "audit")


def test_an_audit_prints_writes_and_passes_without_limits(run, capsys, tmp_path):
    assert run("t.csv", "--label", "ill", "--matching", "shared", "--json", "a.json", "--out", "a.html") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Whoever sees the hash values" in out
    assert "Advice" in out
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["name"] == "t.csv"
    assert found["setting"]["n_hashes"] == 6  # seven columns before the text became three: L < d counts those
    assert found["findings"][0]["attack"] == "rows_from_codes"
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")


def test_columns_can_be_left_out_and_the_verdict_comes_first(run, capsys, tmp_path):
    assert run("t.csv", "--label", "ill", "--drop", "ward", "--no-advice", "--json", "a.json") == 0
    found, out = json.loads((tmp_path / "a.json").read_text()), capsys.readouterr().out
    assert found["n_features"] == 6
    assert "attacks surely do better than guessing" in out.strip().splitlines()[0]
    (note,) = found["notes"]
    assert f"Note: {note}" in " ".join(out.split())


@pytest.mark.parametrize(("limit", "code"), [(0.05, 1), (1, 0)])
def test_the_exit_status_says_whether_the_limits_hold(run, capsys, limit, code):
    words = ("t.csv", "--label", "ill", "--matching", "blind", "--hashes", 3, "--no-advice", "--max-excess", limit)
    assert run(*words) == code
    assert ("Above the limit: " in capsys.readouterr().err) == bool(code)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("none.csv", "--label", "ill"), "There is no file"),
        (("t.csv",), "--label"),
        (("none.toml",), "cannot be read"),
        (("empty.toml",), "missing required field"),
        (("t.csv", "--label", "ill", "--hashes", 7), "L < d"),
        (("t.csv", "--label", "ill", "--out", "nowhere/a.html"), "cannot be written"),
    ],
)
def test_errors_are_sentences(run, capsys, tmp_path, words, says):
    (tmp_path / "empty.toml").write_text("[audit]\n")
    assert run(*words) == 1
    assert says in " ".join(capsys.readouterr().err.split())


@pytest.fixture
def study(run):
    """A study of three wards, with a party.toml beside it; gives the function that writes it with some limits."""
    columns = Path("t.csv").read_text().split("\n", 1)[0].split(",")[:-2]
    text = 'name = "wards"\nlabel = "ill"\n[columns]\nward = ["a", "b", "c"]\n'
    text += "".join(f'"{name}" = "number"\n' for name in columns)
    text += "[parameters]\nmin_group = 5\nn_hashes = 4\nn_trees = 10\n"
    text += "".join(f'[[party]]\nname = "{name}"\n' for name in ("north", "south", "west"))
    Path("party.toml").write_text('name = "north"\ndata = "t.csv"\n')

    def write(limits, recipe="similar"):
        own = text if recipe == "similar" else text.replace("n_hashes = 4", f'recipe = "{recipe}"')
        Path("study.toml").write_text(f"{own}[audit]\n{limits}\n")

    return write


def test_a_study_is_audited_with_its_parameters_and_the_partys_own_table(run, study):
    study("max_excess = 0.99")
    assert run("study.toml", "--no-advice", "--json", "a.json") == 0
    found = json.loads(Path("a.json").read_text())
    assert found["name"] == "north in wards"
    wanted = {"matching": "blind", "masked": True, "min_group": 5, "parties": 3, "n_hashes": 4}
    assert {name: found["setting"][name] for name in wanted} == wanted
    assert set(found["limits"].values()) == {0.99}


def test_a_study_may_limit_single_attacks_and_the_command_line_goes_before_it(run, study):
    study("max_excess = {values_from_trees = 0.0, labels_of_known_people = 1.0}")
    assert run("study.toml", "--no-advice", "--json", "a.json") == 1
    found = json.loads(Path("a.json").read_text())
    assert found["limits"] == {"values_from_trees": 0.0, "labels_of_known_people": 1.0}
    assert found["exceeded"] == ["values_from_trees"]
    assert run("study.toml", "--no-advice", "--max-excess", 1) == 0


def test_what_the_study_says_cannot_be_given_beside_it(run, study, capsys):
    study("")
    assert run("study.toml", "--matching", "shared", "--hashes", 3) == 1
    assert "--matching, --hashes cannot be given with a study" in capsys.readouterr().err


def weights_of(monkeypatch):
    """The weights of the scenarios that are opened, as they are opened."""
    seen = []
    for kind in (Scenario, Together):
        prepared = kind._prepare
        monkeypatch.setattr(kind, "_prepare", lambda self, g, p=prepared: (seen.append(self.weight), p(self, g))[1])
    return seen


@pytest.mark.parametrize("recipe", ["similar", "joint"])
def test_an_audit_attacks_rows_that_count_by_their_weight(run, study, recipe, capsys, monkeypatch):
    table = pd.read_csv("t.csv")
    table.assign(counts=1 + np.arange(len(table)) % 3).to_csv("t.csv", index=False)
    seen = weights_of(monkeypatch)
    words = ("t.csv", "--label", "ill", "--drop", "ward", "--no-advice", "--recipe", recipe)
    assert run(*words, "--weight", "counts", "--json", "a.json") == 0
    assert json.loads(Path("a.json").read_text())["n_features"] == 6
    study("", recipe=recipe)
    Path("study.toml").write_text(f'weight = "counts"\n{Path("study.toml").read_text()}')
    assert run("study.toml", "--no-advice", "--dpia", "d.html", "--json", "s.json") == 0
    assert [np.unique(weight).tolist() for weight in seen] == [[1, 2, 3]] * 2
    assert "their weight in the column counts" in Path("d.html").read_text()
    assert run("study.toml", "--weight", "counts") == 1
    assert "--weight cannot be given with a study" in capsys.readouterr().err


def test_what_an_audit_found_goes_into_the_report(run, simfl_command, tmp_path):
    assert run("t.csv", "--label", "ill", "--hashes", 3, "--no-advice", "--max-excess", 1, "--json", "a.json") == 0
    assert simfl_command("simulate", "t.csv", "--label", "ill", "--trees", 2, "--run", "run") == 0
    assert simfl_command("report", "run", "--audit", "a.json") == 0
    kept = RunRecord.load("run").audit
    assert [a.meaning for a in kept] == [f["sentence"] for f in json.loads(Path("a.json").read_text())["findings"]]
    assert all(a.passed for a in kept)
    assert kept[0].meaning.split(";")[0] in Path("run/report.html").read_text()


def test_trees_grown_together_are_audited_from_a_table(run, capsys, tmp_path):
    assert (
        run("t.csv", "--label", "ill", "--recipe", "joint", "--parties", 3, "--json", "a.json", "--out", "a.html") == 0
    )
    out = " ".join(capsys.readouterr().out.split())
    assert "Who sees what" in out
    assert "sizes of vectors" in out
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["setting"]["min_group"] == 30
    assert {f["attack"] for f in found["findings"]} >= {"rows_from_totals", "members_from_totals"}


def test_trees_grown_together_are_audited_from_a_study(run, study):
    study("max_excess = {rows_from_totals = 1.0}")
    text = Path("study.toml").read_text()
    Path("study.toml").write_text(text.replace("min_group = 5\nn_hashes = 4\n", 'recipe = "joint"\n'))
    assert run("study.toml", "--json", "a.json") == 0
    found = json.loads(Path("a.json").read_text())
    assert (found["setting"]["recipe"], found["setting"]["parties"]) == ("joint", 3)
    assert found["sees"]["hub"] == "sizes of vectors, and who takes part"


def test_a_study_may_bind_columns_declare_ranges_and_stop_early(run, study):
    """Names of the study's columns mean the audited ones, of which a category has several."""
    study("")
    bound = 'recipe = "joint"\nvalidation_fraction = 0.2\nearly_stopping_rounds = 2\n'
    bound += 'monotone_constraints = { "mean radius" = 1 }\n'
    bound += 'interaction_constraints = [["mean radius", "ward"], ["mean area"]]\n'
    text = Path("study.toml").read_text().replace("min_group = 5\nn_hashes = 4\n", bound)
    Path("study.toml").write_text(text.replace('"mean radius" = "number"', '"mean radius" = { low = 5, high = 30 }'))
    assert run("study.toml", "--json", "a.json") == 0
    found = json.loads(Path("a.json").read_text())
    assert found["n_features"] == 9
    assert "Over 10 trees" in found["findings"][0]["sentence"]
    assert found["notes"] == []


def test_the_finished_model_is_attacked_only_when_asked(run, capsys, tmp_path, monkeypatch):
    def brief(people):
        return finished.members_from_answers(people, n_shadows=2)

    monkeypatch.setattr(finished, "TRIALS", {"members_from_answers": brief})
    assert run("t.csv", "--label", "ill", "--no-advice") == 0
    assert "Not run, as it takes minutes (--attack-model): Who is in the model" in " ".join(
        capsys.readouterr().out.split()
    )
    assert run("t.csv", "--label", "ill", "--no-advice", "--attack-model", "--json", "a.json") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Not run" not in out
    assert "2 shadow models of XGBoost" in out
    assert "members_from_answers" in Path("a.json").read_text()
