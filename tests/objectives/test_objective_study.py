"""Studies that learn times and counts, between real endpoints: tables in files, rules, signed trees, reports."""

import numpy as np
import pytest

pytest.importorskip("nvflare")

import simfl
from simfl.deploy import check
from simfl.deploy import run as runs
from simfl.deploy.study import read_study
from simfl.report.record import RunRecord
from tests.deploy.one_process import open_federation
from tests.deploy.studies import PARTIES
from tests.objectives.objective_tables import as_frame, labels, times

N_TREES = 10
RECIPES = {"similar": "", "joint": 'recipe = "joint"\nlearning_rate = 0.4\nmin_group = 5\n'}


def opened(folder, monkeypatch, recipe, label, parameters, table):
    """A federation whose tables and study learn something else."""

    def change(text):
        text = text.replace('label = "y"\n', label).replace("[parameters]", f"[parameters]\n{parameters}")
        text = text.replace("\n".join(f'x{i} = "number"' for i in range(5, 12)) + "\n", "")
        return text.replace("rematch = 10\n", RECIPES[recipe] + "validation_fraction = 0.25\n")

    made = open_federation(folder, monkeypatch, N_TREES, 30, change)
    for number, party in enumerate(PARTIES):
        table(number).to_csv(folder / f"{party}.csv", index=False)
    return made


def patients(number):
    X, y = times(200, seed=number)
    return as_frame(X, np.column_stack([y[:, 0], np.isfinite(y[:, 1])]), ["days", "died"])


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_study_of_times(recipe, tmp_path, monkeypatch):
    parameters = 'objective = "survival:aft"\naft_loss_distribution = "logistic"\n'
    label = 'label = "days"\nevent = "died"\n'
    federation = opened(tmp_path, monkeypatch, recipe, label, parameters, patients)
    folder = runs.run_study(federation.study, out=tmp_path / "run")
    model = simfl.load(folder / "model.ubj")
    assert model.n_trees == N_TREES
    found = [path.read_bytes() for party in PARTIES for path in (federation.kits / party).glob("runs/*/model.ubj")]
    assert found == [(folder / "model.ubj").read_bytes()] * 3
    record = RunRecord.load(next((federation.kits / "north").glob("runs/*")))
    assert record.metric == "aft-nloglik"
    assert {gain.metric for gain in record.gains} == {"aft-nloglik"}
    assert record.history[-1].validation["aft-nloglik"] < record.history[0].validation["aft-nloglik"]
    checked = check.check(federation.study, federation.kits / "north" / "party.toml")
    assert checked.classes == {}
    assert checked.rehearsed is not None
    assert read_study(federation.study).target.columns == ("days", "died")


def counts(number):
    return as_frame(*labels("count:poisson", 200, seed=number), ["visits"])


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_study_of_counts(recipe, tmp_path, monkeypatch):
    federation = opened(tmp_path, monkeypatch, recipe, 'label = "visits"\n', 'objective = "count:poisson"\n', counts)
    folder = runs.run_study(federation.study, out=tmp_path / "run")
    model = simfl.load(folder / "model.ubj")
    found = [path.read_bytes() for party in PARTIES for path in (federation.kits / party).glob("runs/*/model.ubj")]
    assert found == [(folder / "model.ubj").read_bytes()] * 3
    X, y = labels("count:poisson", 200)
    assert model.predict(X).mean() == pytest.approx(y.mean(), rel=0.3)
    record = RunRecord.load(next((federation.kits / "north").glob("runs/*")))
    assert {gain.metric for gain in record.gains} == {record.metric} == {"poisson-nloglik"}
