"""Studies whose rows have weights, with real endpoints: the model, the refusals, a party's rules and its own report."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss
from typer.testing import CliRunner

pytest.importorskip("nvflare")

import simfl
from simfl import baselines
from simfl.cli.app import app
from simfl.deploy import check, folders
from simfl.deploy import run as runs
from simfl.deploy.party_file import Require
from simfl.deploy.study import parse_study, read_study
from simfl.errors import DataError, StudyError
from simfl.party.kept_keys import write_keys
from simfl.privacy.tokens import private_of, secret_of
from simfl.report import assemble
from simfl.report.record import RunRecord
from tests.deploy.one_process import open_federation
from tests.deploy.studies import PARTIES

N_TREES = 12
COLUMNS = [f"x{i}" for i in range(12)]
RECIPES = {"similar": "", "joint": 'recipe = "joint"\nlearning_rate = 0.4\nmin_group = 5\n'}


def opened(folder, monkeypatch, recipe="similar", more="validation_fraction = 0.25\n"):
    """A federation of 240 rows each, whose study names a column of weights."""

    def change(text):
        text = text.replace('label = "y"\n', 'label = "y"\nweight = "w"\n')
        return text.replace("rematch = 10\n", RECIPES[recipe] + more)

    made = open_federation(folder, monkeypatch, N_TREES, 240, change)
    for number, party in enumerate(PARTIES):
        table = pd.read_csv(folder / f"{party}.csv")
        weights = np.random.default_rng(number).choice([0.0, 0.5, 1.0, 3.25], len(table))
        table.assign(w=weights).to_csv(folder / f"{party}.csv", index=False)
    return made


def parties_of(folder, schema, *, weighted=True):
    """The same tables, by Python's own door."""
    tables = {name: pd.read_csv(folder / f"{name}.csv") for name in PARTIES}
    return [
        simfl.Party(name, table[COLUMNS], table["y"], table["w"] if weighted else None, schema=schema)
        for name, table in tables.items()
    ]


def begin_with_keys_of_the_seed(federation, out):
    """What each party would draw for this run follows from the seed, as in one process."""
    study = read_study(federation.study)
    _, order = folders.begin_run(federation.study, study, out, False)
    seed = study.parameters["random_state"]
    for party in PARTIES:
        folder = federation.kits / party / "runs" / order.run
        folder.mkdir(parents=True)
        write_keys(folder, secret_of(seed), private_of(seed, party))


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_model_is_that_of_the_same_weights_in_python_although_a_job_was_lost(recipe, tmp_path, monkeypatch):
    federation = opened(tmp_path, monkeypatch, recipe)
    begin_with_keys_of_the_seed(federation, tmp_path / "run")
    listener = runs.Listener(tree=federation.lose_first_job(at=4))
    folder = runs.run_study(federation.study, out=tmp_path / "run", resume=True, listener=listener)
    assert len(federation.jobs) == 2
    study, found = read_study(federation.study), {}
    for weighted in (True, False):
        parties = parties_of(tmp_path, study.schema, weighted=weighted)
        simfl.train(parties, callbacks=[], **study.parameters).save(tmp_path / "m.ubj", history=False)
        found[weighted] = (tmp_path / "m.ubj").read_bytes()
    assert found[True] == (folder / "model.ubj").read_bytes()
    assert found[True] != found[False]
    assert simfl.load(folder / "model.ubj").feature_names == COLUMNS


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_party_measures_its_gain_by_weight(recipe, tmp_path, monkeypatch):
    federation = opened(tmp_path, monkeypatch, recipe)
    runs.run_study(federation.study, out=tmp_path / "run")
    session = federation.jobs[-1].sites["north"].end.session
    record = RunRecord.load(session.folder)
    trained, aside = session.split.training, session.split.validation.counting
    assert 0 < len(aside.y) < len(session.split.validation.y)  # some weigh nothing
    model = simfl.load(session.folder / "model.ubj")
    home = read_study(federation.study).parameters | {"n_jobs": 1}
    alone = baselines.solo_stopped(session.split, "north", [0, 1], home)
    (gain,) = (gain for gain in record.gains if gain.adjusted and gain.metric == "logloss")
    used = alone, model.adjusted(trained.X, trained.y, trained.weight)
    scores = [log_loss(aside.y, one.predict_proba(aside.X), sample_weight=aside.weight) for one in used]
    assert (gain.alone, gain.together) == pytest.approx(scores, rel=1e-4)
    assert gain.low <= gain.gain <= gain.high
    assert assemble.WEIGHTED in record.notes


def spoil(folder, party, weights):
    """Other weights in the first rows of a party's table."""
    table = pd.read_csv(folder / f"{party}.csv").astype({"w": object})
    table.loc[: len(weights) - 1, "w"] = weights
    table.to_csv(folder / f"{party}.csv", index=False)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([None, None, 1], "2 missing (fill it in, or leave the row out)"),
        ([-17.5, 1], "1 below zero (correct it, or leave the row out)"),
        (["inf"], "1 infinite"),
        (["3e13", "4e13"], "2 above 1e+12 (divide the weights of all parties by the same number)"),
        ([0] * 240, "all of them zero"),
        ([1e-30] * 240, "all of them below 1e-12"),
        ([None, -17.5], "1 missing (fill it in, or leave the row out), 1 below zero"),
        (["heavy", "light"], "column 'w' has 2 values that are not numbers"),
    ],
)
def test_weights_that_mean_nothing_are_refused_with_their_number_and_no_value(weights, said, tmp_path, monkeypatch):
    federation = opened(tmp_path, monkeypatch)
    spoil(tmp_path, "south", weights)
    with pytest.raises(StudyError) as refused:
        runs.run_study(federation.study, out=tmp_path / "run")
    text = str(refused.value)
    used = "" if said.startswith("column") else "the weight column 'w' has sample weights that cannot be used: "
    assert f"- south: {used}{said}" in text
    assert "17.5" not in text
    assert "heavy" not in text
    with pytest.raises(DataError, match="'w'"):
        check.check(federation.study, federation.kits / "south" / "party.toml")


def test_a_check_of_a_table_with_commas_says_how_to_write_its_numbers(tmp_path, monkeypatch):
    federation = opened(tmp_path, monkeypatch)
    spoil(tmp_path, "south", ["17,5", "2,25"])
    with pytest.raises(
        DataError, match=r"'w' has 2 values that are not numbers: numbers with a comma \('17,5'\)\. Write"
    ):
        check.check(federation.study, federation.kits / "south" / "party.toml")


def test_columns_that_nobody_declared_may_have_weights_beside_them(tmp_path, monkeypatch):
    federation = opened(tmp_path, monkeypatch)
    text = federation.study.read_text()
    federation.study.write_text(text[: text.index("[columns]")] + text[text.index("[parameters]") :])
    folder = runs.run_study(federation.study, out=tmp_path / "run")
    assert simfl.load(folder / "model.ubj").feature_names == COLUMNS
    session = federation.jobs[-1].sites["north"].end.session
    assert 0 < session.split.training.total_weight != len(session.split.training.y)
    spoil(tmp_path, "south", [-17.5, None])
    with pytest.raises(StudyError) as refused:
        runs.run_study(federation.study, out=tmp_path / "refused")
    said = "- south: its table has sample weights that cannot be used: 1 missing (fill it in, or leave the row out), 1"
    assert said in str(refused.value)
    assert "17.5" not in str(refused.value)


def test_a_table_without_the_column_is_refused(tmp_path, monkeypatch):
    federation = opened(tmp_path, monkeypatch)
    table = pd.read_csv(tmp_path / "south.csv").rename(columns={"w": "W"})
    table.to_csv(tmp_path / "south.csv", index=False)
    with pytest.raises(StudyError, match="south: the weight column 'w' is missing"):
        runs.run_study(federation.study, out=tmp_path / "run")


def test_check_shows_the_column_and_what_is_worth_a_look(tmp_path, monkeypatch):
    federation = opened(tmp_path, monkeypatch)
    file = federation.kits / "north" / "party.toml"
    found = check.check(federation.study, file)
    table = pd.read_csv(tmp_path / "north.csv")
    assert found.columns == len(COLUMNS)
    assert found.weights == f"column 'w', from 0 to 3.25, {table['w'].sum():g} in all"
    assert found.notes == []
    assert found.rehearsed is not None
    table.assign(w=np.where(table.index == 0, 1000, 1)).to_csv(tmp_path / "north.csv", index=False)
    shown = " ".join(CliRunner().invoke(app, ["check", str(federation.study), str(file)]).output.split())
    assert "Weights: column 'w', from 1 to 1000, 1239 in all." in shown
    assert "Look at this: one row has 81% of all weight" in shown


def test_a_partys_rules_hold_for_the_weights_too(tmp_path, monkeypatch):
    federation = opened(tmp_path, monkeypatch)
    study = read_study(federation.study)
    said = Require(columns=COLUMNS, masked=False, matching="any", min_parties=1).broken_by(study)
    assert said == ["it requires columns = [...], and the study also uses ['w']"]
    allowed = Require(columns=[*COLUMNS, "w"], labels=["y"], masked=False, matching="any", min_parties=1)
    assert allowed.broken_by(study) == []
    file = federation.kits / "north" / "party.toml"
    file.write_text(f"{file.read_text()}\ncolumns = {COLUMNS}\n")
    with pytest.raises(StudyError, match=r"north: it requires columns = .*also uses \['w'\]"):
        runs.run_study(federation.study, out=tmp_path / "run")


def test_trees_grown_together_with_epsilon_take_weights(tmp_path, monkeypatch):
    pytest.importorskip("dp_accounting")
    federation = opened(tmp_path, monkeypatch, "joint", "epsilon = 4.0\nrows = 700\n")
    text = federation.study.read_text().replace('= "number"', "= { low = -3, high = 3 }").replace("min_group = 5\n", "")
    federation.study.write_text(text)
    folder = runs.run_study(federation.study, out=tmp_path / "run")
    assert simfl.load(folder / "model.ubj").epsilon == 4.0
    mine = federation.jobs[-1].sites["north"].end.session.together.machine.mine
    np.testing.assert_array_equal(mine.rows.weight, pd.read_csv(tmp_path / "north.csv")["w"].to_numpy(np.float32))
    spoil(tmp_path, "south", [-1.0])
    with pytest.raises(StudyError) as refused:
        runs.run_study(federation.study, out=tmp_path / "refused")
    assert str(refused.value).endswith("- south: its table cannot be used (its own log says why)")


TWO = '[[party]]\nname = "north"\n[[party]]\nname = "south"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('weight = "y"', "'y' is also what is learned"),
        ('weight = "w"\n[columns]\nw = "number"', "the weight 'w' is also among the columns"),
        ('weight = "w"\nfeatures = 5', "LIBSVM files (features = ...) have no names of columns"),
        ("weight = 3", "weight: Expected"),
        ('wieght = "w"', "there is no key 'wieght'. Did you mean 'weight'?"),
        ('[parameters]\nsample_weight = "w"', 'in a study, the key weight = "column" beside label'),
        ('[parameters]\nweight = "w"', 'in a study, the key weight = "column" beside label'),
    ],
)
def test_what_is_wrong_in_a_study_is_said_once(text, said):
    with pytest.raises(StudyError) as refused:
        parse_study(f'name = "s"\nlabel = "y"\n{text}\n{TWO}')
    assert str(refused.value).count(said) == 1


def test_weights_need_a_label():
    with pytest.raises(StudyError, match="there is no label"):
        parse_study(f'name = "s"\nweight = "w"\n{TWO}')
