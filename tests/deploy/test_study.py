"""Study files and party files: what they say, and what is refused."""

import numpy as np
import pytest

from simfl.data.schema import Schema
from simfl.deploy.party_file import read_party_file
from simfl.deploy.study import parse_study, read_study, write_examples
from simfl.deploy.tables import open_table
from simfl.errors import DataError, FileError, StudyError

TWO = '[[party]]\nname = "north"\n[[party]]\nname = "south"\n'


def study(text="", parties=TWO):
    return parse_study(f'name = "s"\nlabel = "y"\n{text}\n{parties}')


def test_the_example_is_a_study(tmp_path):
    example = read_study(write_examples(tmp_path)[0])
    assert example.parties == ["north", "south"]
    assert example.columns["ward"] == ["surgery", "medicine", "other"]
    assert example.parties_needed == 2


def test_the_example_of_a_party_is_a_party_file(tmp_path):
    party = read_party_file(write_examples(tmp_path)[1])
    assert party.data == str(tmp_path / "north.csv")
    assert party.kit == str(tmp_path / "kits" / "north")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lable = 1", "'lable'. Did you mean 'label'?"),
        ("[engine]\nhots = 'a'", "'hots' in [engine]. Did you mean 'host'?"),
        ("[parameters]\nn_tree = 5", "Did you mean 'n_trees'?"),
        ("[parameters]\nn_trees = 0", "n_trees=0 is not possible"),
        ("patience = 1", "patience: Expected"),
        ("patience = 'long'", "patience: Expected"),
        ("min_parties = 3", "min_parties is 3, but there are 2 parties"),
        ("on_dropout = 'panic'", "on_dropout: Invalid enum value 'panic'"),
        ("[engine]\nport = 99999", "engine.port: Expected"),
        ("[columns]\nage = 'nubmer'", "[columns] says age = 'nubmer'"),
        ("[columns]\nward = 'category'", "a category's list of different levels"),
        ("[audit]\nmax_exces = 0.1", "'max_exces' in [audit]. Did you mean 'max_excess'?"),
        ("[audit]\nmasked = true", "'masked' in [audit]. Known are: max_excess."),
        ("[audit]\nmax_excess = 2.0", "audit.max_excess: Expected"),
        ("[columns]\ny = 'number'", "the label 'y' is also among the columns"),
        ("[columns]\nward = ['a', 'a']", "[columns] says ward = ['a', 'a']"),
        ("[columns]\nward = ['a']", "at least two different levels"),
        ("data = 'my.csv'", "there is no key 'data'"),
        ("= broken", "is not valid TOML"),
    ],
)
def test_what_is_wrong_is_said(text, said):
    with pytest.raises(StudyError) as refused:
        study(text)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "limit"), [("", None), ("max_excess = 1", 1.0), ("max_excess = {a = 0.1, b = 0}", {"a": 0.1, "b": 0.0})]
)
def test_a_study_limits_all_attacks_or_each_by_name(text, limit):
    assert study(f"[audit]\n{text}").audit.max_excess == limit


@pytest.mark.parametrize("name", ["no rth", "../north", "", "hub", "server", "a" * 64, "nörth"])
def test_a_party_needs_a_name_that_a_site_can_have(name):
    with pytest.raises(StudyError):
        study(parties=f'[[party]]\nname = "{name}"\n')


def test_names_are_given_once():
    with pytest.raises(StudyError, match="several parties are called 'north'"):
        study(parties='[[party]]\nname = "north"\n' * 2)


def test_a_study_without_parties_is_none():
    with pytest.raises(StudyError, match="there is no"):
        study(parties="party = []")


def test_how_many_parties_a_training_needs_to_continue():
    three = TWO + '[[party]]\nname = "west"\n'
    assert study('on_dropout = "stop"', three).parties_needed == 3
    assert study("min_parties = 1", three).parties_needed == 1
    assert study("", three).parties_needed == 2


def test_the_columns_of_a_study_are_a_schema():
    found = study('[columns]\na = "number"\nb = ["x", "z"]\n[parameters]\nn_trees = 7')
    assert found.schema == Schema.from_toml({"a": "number", "b": ["x", "z"]})
    assert found.params().n_trees == 7


def test_a_missing_file_says_how_to_get_one(tmp_path):
    with pytest.raises(FileError, match="simfl init"):
        read_study(tmp_path / "study.toml")


COLUMNS = '[columns]\nage = "number"\nsmoker = "boolean"\nward = ["a", "b"]'


def table(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    return open_table(study(COLUMNS), "north", tmp_path / "t.csv")


def test_a_table_is_read_through_the_study(tmp_path):
    party, notes = table(tmp_path, "ward,y,age,smoker,name\na,0,61,yes,Ann\nb,1,,No,Bob\n,1,50,1,Cid\n")
    assert party.schema == Schema.from_toml({"age": "number", "smoker": "boolean", "ward": ["a", "b"]})
    expected = [[61, 1, 0], [np.nan, 0, 1], [50, 1, np.nan]]
    assert np.array_equal(party.rows.X, np.array(expected, np.float32), equal_nan=True)
    assert party.rows.y.tolist() == [0, 1, 1]
    assert notes == ["columns that the study does not use stay unread: name"]


def test_all_that_does_not_fit_is_in_one_message(tmp_path):
    with pytest.raises(DataError) as refused:
        table(tmp_path, "ward,y,ages,smoker\nc,0,61,perhaps\nb,,3,no\n")
    said = str(refused.value)
    assert "column 'age' is missing (Did you mean 'ages'?)" in said
    assert "'smoker' has 1 values that are not yes or no, as 'perhaps'" in said
    assert "'ward' has categories that the study does not list: ['c']" in said
    assert "1 rows have no label" in said


def test_a_libsvm_file_has_as_many_features_as_the_study_says(tmp_path):
    (tmp_path / "t.svm").write_text("1 1:1 3:2\n0 2:1\n")
    plain = parse_study(f'name = "s"\nfeatures = 5\n{TWO}')
    party, _ = open_table(plain, "north", tmp_path / "t.svm")
    assert party.rows.X.shape == (2, 5)
    with pytest.raises(FileError, match="with 2 features"):
        open_table(parse_study(f'name = "s"\nfeatures = 2\n{TWO}'), "north", tmp_path / "t.svm")
