"""XGBoost's own JSON of a model: our trees written into it, and read back from it.

The document keeps no statistics of the builder's rows. XGBoost opens it like any model that it trained itself.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import xgboost as xgb

from simfl.arrays import AnyArray, Doubles, Floats
from simfl.data.schema import Column, Schema
from simfl.params import SETTINGS
from simfl.training import ubjson
from simfl.training.losses import Loss, loss_named
from simfl.training.trees import LEAF, Tree, all_trees

_NO_PARENT = 2147483647
TRACE = 1e-6  # of a row

Document = dict[str, Any]


@dataclass(frozen=True)
class WarmStart:
    """A finished model that a training continues from."""

    objective: str
    classes: list[Any] | None
    base_score: Doubles  # one per output
    rounds: list[list[Tree]]
    schema: Schema | None
    settings: dict[str, float | str]  # of the objective

    @property
    def learned(self) -> dict[str, Any]:
        """The objective with its settings, in XGBoost's words."""
        return {"objective": self.objective, **self.settings}


def to_document(booster: xgb.Booster) -> Document:
    """The document of a booster."""
    document: Document = json.loads(booster.save_raw("json"))
    return document


def to_booster(document: Document) -> xgb.Booster:
    """The booster of a document."""
    return _loaded(json.dumps(document).encode())


def to_config(booster: xgb.Booster) -> Document:
    """What a booster has beside its trees: the same keys as in its document."""
    config: Document = json.loads(booster.save_config())
    return config


def objective_of(document: Document) -> str:
    """The objective, in XGBoost's words."""
    return str(document["learner"]["objective"]["name"])


def settings_of(section: Document) -> dict[str, float | str]:
    """The settings of an objective, from the part of a document that is about it.

    >>> settings_of({"name": "survival:aft", "aft_loss_param": {"aft_loss_distribution_scale": "2"}})
    {'aft_loss_distribution_scale': 2.0}
    """
    stored = [part.items() for part in section.values() if isinstance(part, dict)]
    wanted = SETTINGS.get(str(section["name"]), {})
    return {name: _value(text) for part in stored for name, text in part if name in wanted}


def _value(text: str) -> float | str:
    try:
        return float(text.strip("[]"))
    except ValueError:
        return text


def loss_in(section: Document) -> Loss:
    """The objective of a model, from the part of its document that is about it."""
    return loss_named(str(section["name"]), settings_of(section))


def start_of(document: Document) -> Doubles:
    """The start value of every output (base_score)."""
    stored = document["learner"]["learner_model_param"]
    start = np.array(json.loads(stored["base_score"]), dtype=np.float64).reshape(-1)
    return np.broadcast_to(start, (max(1, int(stored["num_class"])),))


def set_start(document: Document, base_score: Iterable[float]) -> None:
    """Give the model other start values. Changes the document."""
    text = f"[{','.join(repr(float(np.float32(score))) for score in base_score)}]"
    document["learner"]["learner_model_param"]["base_score"] = text


def with_start(booster: xgb.Booster, base_score: Iterable[float]) -> xgb.Booster:
    """The same booster with other start values."""
    document = ubjson.decode(bytes(booster.save_raw("ubj")))
    set_start(document, base_score)
    return _loaded(ubjson.encode(document))


def with_covers(booster: xgb.Booster, leaves: AnyArray, weight: Floats | None = None) -> xgb.Booster:
    """The same booster, whose nodes have the number (or weight) of the rows that reach them.

    `leaves`: per row and tree the leaf. XGBoost keeps sums of hessians in that place (`sum_hessian`), and SHAP takes
    them for shares of the rows: with numbers of rows its base value is their mean score.
    """
    document = ubjson.decode(bytes(booster.save_raw("ubj")))
    for number, tree in enumerate(document["learner"]["gradient_booster"]["model"]["trees"]):
        tree["sum_hessian"] = _covers(tree["left_children"], tree["right_children"], leaves[:, number], weight)
    return _loaded(ubjson.encode(document))


def _covers(left: AnyArray, right: AnyArray, leaves: AnyArray, weight: Floats | None = None) -> Floats:
    """The number of rows at every node of a tree, or their weight.

    A node that no row reaches keeps a trace of a row for each of its leaves: SHAP divides by it.

    >>> _covers(np.array([1, -1, 3, -1, -1]), np.array([2, -1, 4, -1, -1]), np.array([1, 3, 4, 4])).round(3)
    array([4., 1., 3., 1., 2.], dtype=float32)
    """
    trace = TRACE if weight is None else TRACE * float(weight.mean(dtype=np.float64))
    cover = (np.bincount(leaves, weight, minlength=len(left)) + np.where(left < 0, trace, 0.0)).tolist()
    first, second = left.tolist(), right.tolist()
    for node in reversed(range(len(cover))):  # our trees, and XGBoost's, number children after their parent
        if first[node] >= 0:
            cover[node] = cover[first[node]] + cover[second[node]]
    return np.array(cover, dtype=np.float32)


def _loaded(data: bytes) -> xgb.Booster:
    booster = xgb.Booster()
    booster.load_model(bytearray(data))
    return booster


def read(booster: xgb.Booster, classes: list[Any] | None, schema: Schema | None) -> WarmStart:
    """What a training needs to continue from a booster with these classes and columns."""
    document, trees = to_document(booster), all_trees(booster)
    bounds = document["learner"]["gradient_booster"]["model"]["iteration_indptr"]
    rounds = [trees[a:b] for a, b in pairwise(bounds)]
    settings = settings_of(document["learner"]["objective"])
    return WarmStart(objective_of(document), classes, start_of(document), rounds, schema, settings)


def write(
    rounds: Sequence[Sequence[Tree]], base_score: Doubles, learned: Mapping[str, Any], schema: Schema
) -> Document:
    """XGBoost's own document of an empty model, with our trees put in."""
    outputs = len(base_score)
    document = _empty_model(learned, schema, outputs)
    set_start(document, base_score)
    model = document["learner"]["gradient_booster"]["model"]
    trees = [tree for trees in rounds for tree in trees]
    model["trees"] = [_xgboost_tree(tree, number, len(schema.columns)) for number, tree in enumerate(trees)]
    model["tree_info"] = [number % outputs for number in range(len(trees))]
    model["iteration_indptr"] = [*range(0, len(trees) + 1, outputs)]
    model["gbtree_model_param"]["num_trees"] = str(len(trees))
    return document


def _empty_model(learned: Mapping[str, Any], schema: Schema, n_outputs: int) -> Document:
    """A model of XGBoost's own whose trees do not matter. It knows the levels, so that it reads frames by itself."""
    params: dict[str, Any] = {**learned, "base_score": 0.5, "nthread": 1, "max_depth": 1}
    if n_outputs > 1:
        params["num_class"] = n_outputs
    row: Any = np.zeros((1, len(schema.columns)), dtype=np.float32)
    if schema.has_categories:
        row = pd.DataFrame({column.name: _one_value(column) for column in schema.columns})
    one = np.ones(1)  # a label that every objective accepts
    rows = xgb.DMatrix(row, label=one, label_lower_bound=one, label_upper_bound=one, enable_categorical=True)
    # XGBoost stores the levels with the first tree.
    return to_document(xgb.train(params, rows, num_boost_round=int(schema.has_categories)))


def _one_value(column: Column) -> Any:
    if column.kind != "category":
        return np.zeros(1, dtype=np.float32)
    return pd.Categorical.from_codes([0], categories=pd.Index(column.levels, dtype=object))


def _xgboost_tree(tree: Tree, number: int, n_features: int) -> dict[str, Any]:
    n = len(tree.feature)
    inner = tree.feature != LEAF
    parents = np.full(n, _NO_PARENT)
    parents[tree.left[inner]] = parents[tree.left[inner] + 1] = np.flatnonzero(inner)
    # XGBoost's statistics of a node would reveal how many rows reach it. In their place is the number of leaves below:
    # enough for XGBoost's SHAP values to be defined, and known from the structure alone.
    leaves = np.where(inner, 0, 1)
    for node in np.flatnonzero(inner)[::-1]:
        leaves[node] = leaves[tree.left[node]] + leaves[tree.left[node] + 1]
    sizes = {"num_deleted": "0", "num_feature": str(n_features), "num_nodes": str(n), "size_leaf_vector": "1"}
    return {
        "id": number,
        "tree_param": sizes,
        "left_children": tree.left.tolist(),
        "right_children": np.where(inner, tree.left + 1, LEAF).tolist(),
        "parents": parents.tolist(),
        "split_indices": np.where(inner, tree.feature, 0).tolist(),
        "split_conditions": np.where(inner, tree.threshold, tree.value).astype(np.float64).tolist(),
        "default_left": tree.default_left.astype(int).tolist(),
        **_categories(tree),
        "base_weights": [0.0] * n,
        "loss_changes": [0.0] * n,
        "sum_hessian": leaves.astype(np.float64).tolist(),
    }


def _categories(tree: Tree) -> dict[str, list[int]]:
    """The splits by levels as XGBoost keeps them: per split the list of levels that go right."""
    level_set = np.full(len(tree.feature), -1) if tree.level_set is None else tree.level_set
    nodes = np.flatnonzero(level_set >= 0)
    sets = [] if tree.goes_right is None else [np.flatnonzero(tree.goes_right[s]).tolist() for s in level_set[nodes]]
    sizes = [len(levels) for levels in sets]
    return {
        "split_type": (level_set >= 0).astype(int).tolist(),
        "categories": [level for levels in sets for level in levels],
        "categories_nodes": nodes.tolist(),
        "categories_segments": np.cumsum([0, *sizes])[:-1].tolist(),
        "categories_sizes": sizes,
    }
