"""Hostile model files. XGBoost would end the process on some of them: they are opened in another one.

The other process opens a file, predicts, explains and dumps; a signal ends it, and that fails the test.
"""

import base64
import copy
import json
import subprocess
import sys
from functools import cache
from typing import get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_iris

import simfl
from simfl.errors import FileError
from simfl.model import check
from simfl.training import ubjson

WORKER = """
import base64, sys, tempfile, warnings
import numpy as np, xgboost as xgb
import simfl
warnings.simplefilter("ignore")
with tempfile.NamedTemporaryFile() as file:
    for line in sys.stdin:
        file.seek(0), file.truncate(), file.write(base64.b64decode(line)), file.flush()
        try:
            booster = simfl.load(file.name).booster
            names, types = booster.feature_names, booster.feature_types
            table = np.zeros((2, booster.num_features()), dtype=np.float32)
            rows = xgb.DMatrix(table, feature_names=names, feature_types=types)
            booster.predict(rows), booster.predict(rows, pred_contribs=True), booster.get_dump(with_stats=True)
            print("opened", flush=True)
        except simfl.SimFLError as error:
            print("refused:", str(error).replace(chr(10), " "), flush=True)
"""


class Opener:
    """Opens files in another process."""

    def __init__(self):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", WORKER], stdin=pipe, stdout=pipe, text=True)

    def __call__(self, data):
        """What became of a file; fails where the process ended."""
        self.process.stdin.write(base64.b64encode(data).decode() + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the process ended with {self.process.wait()}"
        return answer


@pytest.fixture(scope="module")
def opener():
    found = Opener()
    yield found
    found.process.stdin.close()
    found.process.wait()


@cache
def model(kind="levels"):
    rng = np.random.default_rng(0)
    X, y = load_iris(return_X_y=True)
    objective = "binary:logistic"
    if kind == "levels":
        X = pd.DataFrame({"age": rng.normal(50, 10, 200), "ward": rng.choice(list("abcdef"), 200)})
        y = ((X.age > 50) ^ X.ward.isin(["a", "c"])).to_numpy().astype(int)
    elif kind == "classes":
        objective = "multi:softprob"
    else:
        y, objective = X[:, 3], "reg:squarederror"
    parts = [np.arange(len(y))[n::2] for n in range(2)]
    take = X.iloc if kind == "levels" else X
    parties = [simfl.Party(f"p{n}", take[rows], y[rows]) for n, rows in enumerate(parts)]
    return simfl.train(parties, objective=objective, n_trees=3, max_depth=3, random_state=0, callbacks=[])


def document(kind="levels"):
    return json.loads(model(kind).booster.save_raw("json"))


def number_type(kind):
    """Of an array's annotation; None of another. From Python 3.12 on NumPy's NDArray can be an alias with a name."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is np.ndarray:
        return np.dtype(get_args(arguments[1])[0])
    return np.dtype(arguments[0]) if getattr(origin, "__name__", "") == "NDArray" else None


TYPES = {
    name: number_type(kind)
    for part in (check.StoredTree, check.Cats, check.Levels)
    for name, kind in get_type_hints(part).items()
    if number_type(kind) is not None
}


def typed(value, name=None):
    """The lists of a JSON document as UBJSON has them."""
    if isinstance(value, dict):
        return {key: typed(own, key) for key, own in value.items()}
    if isinstance(value, list):
        return np.array(value, dtype=TYPES[name]) if name in TYPES else [typed(own) for own in value]
    return value


def as_json(content):
    return json.dumps(content).encode()


def as_ubj(content):
    return ubjson.encode(typed(content))


@pytest.mark.parametrize("kind", ["levels", "classes", "numbers"])
@pytest.mark.parametrize("written", [as_json, as_ubj])
def test_a_sound_model_opens_to_the_last_bit(tmp_path, kind, written):
    (tmp_path / "m.ubj").write_bytes(written(document(kind)))
    again = simfl.load(tmp_path / "m.ubj")
    assert again.booster.save_raw("ubj") == model(kind).booster.save_raw("ubj")


@pytest.mark.parametrize("ending", ["ubj", "json"])
def test_our_writer_and_xgboosts_agree(ending):
    raw = bytes(model().booster.save_raw(ending))
    booster = xgb.Booster()
    booster.load_model(bytearray(check.sound(check.read(raw), 2, model().schema)))
    assert bytes(booster.save_raw(ending)) == raw


@pytest.mark.parametrize("ending", ["ubj", "json"])
def test_a_model_without_trees_opens(tmp_path, ending):
    content = document("numbers")
    trees = content["learner"]["gradient_booster"]["model"]
    trees |= {"trees": [], "tree_info": [], "iteration_indptr": [0]}
    trees["gbtree_model_param"]["num_trees"] = "0"
    (tmp_path / "m.ubj").write_bytes(as_ubj(content) if ending == "ubj" else as_json(content))
    assert simfl.load(tmp_path / "m.ubj").n_trees == 0


# --- one thing wrong -------------------------------------------------------------------------------------------------


def in_tree(name, place, value):
    def change(content):
        content["learner"]["gradient_booster"]["model"]["trees"][1][name][place] = value

    return change


def at(*path, value):
    def change(content):
        *before, last = path
        for key in before:
            content = content[key]
        content[last] = value

    return change


def at_forest(*path, value):
    return at("learner", "gradient_booster", "model", *path, value=value)


def of_tree(*path, value):
    return at_forest("trees", 1, *path, value=value)


def longer(name):
    def change(content):
        content["learner"]["gradient_booster"]["model"]["trees"][1][name].append(0)

    return change


def two_parents(content):
    tree = content["learner"]["gradient_booster"]["model"]["trees"][1]
    tree["right_children"][0] = tree["left_children"][0]


def chain(content):
    """A tree that is far deeper than any stack: every right child splits again."""
    n = 100_001
    node = np.arange(n)
    left = np.where((node % 2 == 0) & (node < n - 1), node + 1, -1)
    parents = np.where(node % 2 == 1, node - 1, node - 2)
    parents[0] = check.NO_PARENT
    empty = {f"categories{end}": [] for end in ("", "_nodes", "_segments", "_sizes")}
    names = ["split_indices", "split_conditions", "default_left", "split_type", "base_weights", "loss_changes"]
    content["learner"]["gradient_booster"]["model"]["trees"][1] |= {
        **{name: [0] * n for name in names},
        **empty,
        "sum_hessian": [1] * n,
        "left_children": left.tolist(),
        "right_children": np.where(left < 0, -1, left + 1).tolist(),
        "parents": parents.tolist(),
    }
    content["learner"]["gradient_booster"]["model"]["trees"][1]["tree_param"]["num_nodes"] = str(n)


PARAM = ("learner", "learner_model_param")
HOSTILE = {
    "a node that is its own child": (in_tree("left_children", 0, 0), "tree 1: children"),
    "a child that does not exist": (in_tree("left_children", 0, 10**9), "tree 1: children"),
    "a negative child": (in_tree("right_children", 0, -7), "tree 1: children"),
    "a node with one child": (in_tree("right_children", -1, 3), "tree 1: nodes with one child"),
    "a cycle": (in_tree("left_children", 1, 0), "tree 1: children"),
    "a node with two parents": (two_parents, "tree 1: nodes that no path leads to, or with two parents"),
    "nodes that no path leads to": (in_tree("left_children", 0, -1), "tree 1: n"),
    "another parent": (in_tree("parents", 2, 1), "tree 1: parents"),
    "a parent that does not exist": (in_tree("parents", 1, 10**9), "tree 1: parents"),
    "a first node with a parent": (in_tree("parents", 0, 0), "tree 1: parents"),
    "a tree of 50,000 levels": (chain, "more than 2000 levels"),
    "a feature that does not exist": (in_tree("split_indices", 0, 10**8), "features beyond its 2"),
    "a negative feature": (in_tree("split_indices", 0, -1), "features beyond its 2"),
    "a flag": (in_tree("default_left", 0, 9), "flags"),
    "a leaf by category": (in_tree("split_type", -1, 1), "leaves that split by category"),
    "more values than nodes": (longer("split_conditions"), "split_conditions for"),
    "more statistics than nodes": (longer("sum_hessian"), "sum_hessian for"),
    "another number of nodes": (of_tree("tree_param", "num_nodes", value="2000000"), "nodes, not 2000000"),
    "deleted nodes": (of_tree("tree_param", "num_deleted", value="3"), "num_deleted"),
    "leaf vectors": (of_tree("tree_param", "size_leaf_vector", value="1000000"), "size_leaf_vector"),
    "a tree of other features": (of_tree("tree_param", "num_feature", value="99"), "99 features"),
    "a category that does not exist": (in_tree("categories", 0, 10**9), "categories that its column does not have"),
    "a negative category": (in_tree("categories", 0, -1), "categories that its column does not have"),
    "categories beyond their list": (in_tree("categories_sizes", 0, 10**12), "lists of categories"),
    "sizes that add up only modulo 2 ** 64": (in_tree("categories_sizes", 0, 2**63 - 1), "lists of categories"),
    "categories before their list": (in_tree("categories_segments", 0, -4), "lists of categories"),
    "categories of other nodes": (in_tree("categories_nodes", 0, 10**6), "categories of other nodes"),
    "names of levels beyond the text": (
        at_forest("cats", "enc", 1, "offsets", 3, value=10**6),
        "names of the levels",
    ),
    "fewer names of levels": (at_forest("cats", "enc", 1, value={"offsets": [], "values": []}), "names of the levels"),
    "levels of other columns": (at_forest("cats", "feature_segments", 1, value=5), "do not fit together"),
    "an order of levels": (at_forest("cats", "sorted_idx", 0, value=10**8), "not an order"),
    "an output that does not exist": (at_forest("tree_info", 0, value=10**6), "a tree of output 1000000"),
    "outputs of fewer trees": (at_forest("tree_info", value=[]), "outputs of 0 trees"),
    "rounds beyond the trees": (at_forest("iteration_indptr", 1, value=10**6), "bounds of its rounds"),
    "no rounds": (at_forest("iteration_indptr", value=[]), "bounds of its rounds"),
    "another number of trees": (at_forest("gbtree_model_param", "num_trees", value="999"), "3 trees where 999"),
    "trees at once": (at_forest("gbtree_model_param", "num_parallel_tree", value="0"), "0 trees at once"),
    "a start value of NaN": (at(*PARAM, "base_score", value="[nan]"), "base_score is '\\[nan\\]'"),
    "a start value that is not a probability": (at(*PARAM, "base_score", value="[7E0]"), "it must be a probability"),
    "a start value beyond float32": (at(*PARAM, "base_score", value="[1E300]"), "base_score"),
    "many start values": (at(*PARAM, "base_score", value="[5E-1,5E-1,5E-1]"), "3 start values"),
    "far too many classes": (at(*PARAM, "num_class", value="900000000"), "num_class is 900000000"),
    "far too many features": (at(*PARAM, "num_feature", value="999999999"), "999999999 features"),
    "several targets": (at(*PARAM, "num_target", value="1000000"), "num_target"),
    "a parameter that is no number": (at(*PARAM, "num_class", value="-1"), "num_class"),
    "dart": (at("learner", "gradient_booster", "name", value="dart"), "dart"),
    "gblinear": (at("learner", "gradient_booster", value={"name": "gblinear", "model": {}}), "gblinear|model"),
    "another objective": (at("learner", "objective", "name", value="rank:ndcg"), "rank:ndcg"),
    "the parameters of another objective": (
        at("learner", "objective", value={"name": "binary:logistic", "softmax_multiclass_param": {"num_class": "2"}}),
        "parameters not of binary:logistic",
    ),
    "a field that nobody knows": (at("learner", "config", value="x"), "config"),
    "names of other columns": (at("learner", "feature_names", value=["a"] * 5), "5 columns"),
    "texts for numbers": (of_tree("id", value="x"), "id"),
    "a number that is called a category": (at("learner", "feature_types", 0, value="c"), "kinds of columns"),
    "no kinds of columns": (at("learner", "feature_types", value=[]), "kinds of columns"),
}


@pytest.mark.parametrize("written", [as_json, as_ubj])
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_model_is_refused_with_what_is_wrong(opener, tmp_path, what, written):
    change, fact = HOSTILE[what]
    content = document()
    change(content)
    data = written(content)
    answer = opener(data)  # first where a crash does no harm
    assert "is not sound and was not opened" in answer, answer
    (tmp_path / "m.ubj").write_bytes(data)
    with pytest.raises(FileError, match=fact):
        simfl.load(tmp_path / "m.ubj")


NUMBERS = {"a number that is no integer": 1.5, "a text": "1", "far too large": 10**400, "a list": [1]}


@pytest.mark.parametrize("what", NUMBERS)
def test_a_json_array_has_only_numbers_of_its_type(opener, what):
    content = document()
    in_tree("left_children", 0, NUMBERS[what])(content)
    assert "is not sound" in opener(as_json(content))


def test_a_value_of_nan_is_refused(opener):
    content = document()
    in_tree("split_conditions", 0, float("nan"))(content)
    assert "split_conditions" in opener(as_json(content))
    assert "split_conditions that are not finite" in opener(as_ubj(content))


def test_half_a_character_is_refused(opener):
    content = document()
    content["learner"]["feature_names"][0] = "\ud800"
    assert "not Unicode" in opener(as_json(content))


def test_of_a_repeated_key_xgboost_sees_what_was_checked(opener):
    data, bad = as_json(document()), copy.deepcopy(document())
    in_tree("left_children", 0, 0)(bad)
    learner = b'"learner": '
    twice = data.replace(learner, learner + json.dumps(bad["learner"]).encode() + b", " + learner, 1)
    assert opener(twice) == "opened\n"  # the last one counts, and only that is written for XGBoost


DEEP = {
    "json lists": b'{"learner":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "json objects": b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    "ubjson objects": (b"{L" + bytes(7) + b"\x01a") * 50_000 + b"}" * 50_000,
    "ubjson lists": b"{L" + bytes(7) + b"\x01a" + (b"[#L" + bytes(7) + b"\x01") * 50_000 + b"}",
    "a long text": b"{L" + bytes(7) + b"\x01aSL" + b"\x7f" + b"\xff" * 7 + b"}",
    "a negative size": b"{L" + bytes(7) + b"\x01aSL" + b"\xff" * 8 + b"}",
    "a long array": b"{L" + bytes(7) + b"\x01a[$l#L" + bytes(3) + b"\x7f" + bytes(4) + b"}",
    "a long list": b"{L" + bytes(7) + b"\x01a[#L" + bytes(3) + b"\x7f" + bytes(4) + b"}",
    "an array without a type": b"{L" + bytes(7) + b"\x01a[$Z#L" + bytes(3) + b"\x7f" + bytes(4) + b"}",
    "an end too early": b"{L",
}


@pytest.mark.parametrize("what", DEEP)
def test_files_that_would_exhaust_their_reader_are_refused(opener, what):
    assert "is not an XGBoost model" in opener(DEEP[what])


def test_the_attribute_of_ours_can_be_hostile_too(opener):
    content = document()
    content["learner"]["attributes"]["simfl"] = "[" * 100_000
    assert "not written by SimFL" in opener(as_json(content))
    about = json.loads(document()["learner"]["attributes"]["simfl"])
    content["learner"]["attributes"]["simfl"] = json.dumps(about | {"gain": [1.0] * 9})
    assert "gains of 9 features" in opener(as_json(content))
    content["learner"]["attributes"]["simfl"] = json.dumps(about | {"classes": ["a", "b", "c"]})
    assert "3 classes for one output" in opener(as_json(content))


# --- anything wrong --------------------------------------------------------------------------------------------------

many = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=150)


@many
@given(st.data())
def test_changed_and_cut_files_never_end_the_process(opener, data):
    kind = data.draw(st.sampled_from(["levels", "classes", "numbers"]))
    raw = bytearray(model(kind).booster.save_raw(data.draw(st.sampled_from(["ubj", "json"]))))
    trees = raw.index(b"trees")  # most of a small file is its history
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(trees, len(raw) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.one_of(st.just(len(raw)), st.integers(0, len(raw))))
    opener(bytes(raw[:end]))


odd = st.one_of(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-3, 12),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from([None, True, [], {}, [0], "0", "1", "-1", "99999999999"]),
)


@many
@given(st.data())
def test_replaced_fields_never_end_the_process(opener, data):
    content = document(data.draw(st.sampled_from(["levels", "classes", "numbers"])))
    part = content["learner"]
    while True:  # walk down to some place
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        key = data.draw(st.sampled_from([k for k in keys if k != "attributes"]))
        deeper = isinstance(part[key], dict | list) and len(part[key])
        if not deeper or data.draw(st.integers(0, 9)) == 0:
            break
        part = part[key]
    if data.draw(st.booleans()):
        part[key] = data.draw(odd)
    else:
        del part[key]
    opener(as_json(content))


def test_a_party_keeps_no_hostile_model_that_the_hub_hands_out(tmp_path):
    from types import SimpleNamespace

    from simfl import messages as msg
    from simfl.deploy.endpoints import PartyEndpoint

    end = PartyEndpoint()
    end.name, end.kit, end.folder = "north", tmp_path / "kit", tmp_path
    end.session = SimpleNamespace(adopted=object())
    with pytest.raises(FileError, match="not an XGBoost model"):
        end.answer(msg.TakeModel(model=b"{L" + bytes(40), history=b"{}", record=b"{}"))
    assert list(tmp_path.iterdir()) == []
