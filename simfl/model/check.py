"""Model files are checked before XGBoost sees them: it trusts them, and a hostile file ends the process.

A file is read by our own readers (`json`, `ubjson.py`) into the structs below, which list every field that a model of
SimFL has. What passes the checks is written again, and XGBoost opens only that: how its own reader takes a repeated
key, an odd number or an unknown field does not matter.

What is checked is what XGBoost relies on: every tree is a tree, every index lies within what it points into, every
length fits its neighbours. What a model predicts cannot be checked here.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from simfl.arrays import AnyArray, Floats, Ints, Longs, Mask
from simfl.data.schema import Schema
from simfl.params import Objective as ObjectiveName
from simfl.training import ubjson
from simfl.training.losses import is_multi, labels_of, loss_named

DEEPEST = 2000  # levels of a tree: XGBoost walks trees by recursion
NO_PARENT = 2147483647  # of the first node
_START = re.compile(r"\[?-?\d{1,20}(\.\d{1,20})?(E[+-]?\d{1,3})?(,-?\d{1,20}(\.\d{1,20})?(E[+-]?\d{1,3})?)*\]?", re.I)

Number = Annotated[str, Meta(pattern=r"\A[0-9]{1,9}\Z")]  # XGBoost writes parameters as text
Real = Annotated[str, Meta(pattern=r"\A[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?\Z")]  # not negative
OneReal = Annotated[str, Meta(pattern=r"\A\[[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?\]\Z")]
Place = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Octets: TypeAlias = npt.NDArray[np.uint8]
Characters: TypeAlias = npt.NDArray[np.int8]


class ModelError(ValueError):
    """What is wrong with a model."""


class _Part(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of the document."""


class TreeParam(_Part):
    """The size of a tree."""

    num_deleted: Literal["0"]
    num_feature: Number
    num_nodes: Number
    size_leaf_vector: Literal["0", "1"]


class StoredTree(_Part):
    """A tree: one number per node in every array, but for the categories."""

    id: Place
    tree_param: TreeParam
    left_children: Ints  # -1 at a leaf
    right_children: Ints
    parents: Ints
    split_indices: Ints  # the feature
    split_conditions: Floats  # the threshold; at a leaf its value
    default_left: Octets
    split_type: Octets  # 1: by category
    base_weights: Floats
    loss_changes: Floats
    sum_hessian: Floats
    categories: Ints  # those that go right, of all such nodes
    categories_nodes: Ints  # where they belong
    categories_segments: Longs
    categories_sizes: Longs


_PER_NODE = StoredTree.__struct_fields__[2:12]


class Levels(_Part):
    """The names of a column's levels, one after the other."""

    offsets: Ints
    values: Characters


class Cats(_Part):
    """The levels of all columns. Empty where the model does not know them."""

    enc: list[Levels]
    feature_segments: Ints
    sorted_idx: Ints


class GbtreeModelParam(_Part):
    """The number of trees."""

    num_parallel_tree: Number
    num_trees: Number


class Trees(_Part):
    """All trees."""

    gbtree_model_param: GbtreeModelParam
    iteration_indptr: list[Place]  # where each round begins
    tree_info: list[Place]  # the output of each tree
    trees: list[StoredTree]
    cats: Cats | None = None


class GradientBooster(_Part):
    """Neither dart nor gblinear: SimFL writes neither."""

    name: Literal["gbtree"]
    model: Trees


class LearnerModelParam(_Part):
    """Start values and sizes."""

    base_score: Annotated[str, Meta(max_length=100_000)]
    boost_from_average: Literal["0", "1"]
    num_class: Number
    num_feature: Number
    num_target: Literal["1"]


# What an objective's parameters are called, which objectives have them, and what they are.
_PARAMETERS: dict[str, tuple[tuple[ObjectiveName, ...], dict[str, Any]]] = {
    "reg_loss_param": (("binary:logistic", "reg:squarederror", "reg:gamma"), {"scale_pos_weight": Real}),
    "softmax_multiclass_param": (("multi:softprob",), {"num_class": Number}),
    "quantile_loss_param": (("reg:quantileerror",), {"quantile_alpha": OneReal}),
    "pseudo_huber_param": (("reg:pseudohubererror",), {"huber_slope": Real}),
    "poisson_regression_param": (("count:poisson",), {"max_delta_step": Real}),
    "tweedie_regression_param": (("reg:tweedie",), {"tweedie_variance_power": Real}),
    "aft_loss_param": (
        ("survival:aft",),
        {"aft_loss_distribution": Literal["normal", "logistic", "extreme"], "aft_loss_distribution_scale": Real},
    ),
}
_sections = {name: msgspec.defstruct(name, [*own.items()], bases=(_Part,)) for name, (_, own) in _PARAMETERS.items()}
Objective: Any = msgspec.defstruct(
    "Objective",
    [("name", ObjectiveName), *((name, own | None, None) for name, own in _sections.items())],
    bases=(_Part,),
)


class Learner(_Part):
    """The model itself."""

    attributes: dict[str, str]
    feature_names: list[str]
    feature_types: list[Literal["q", "c"]]
    gradient_booster: GradientBooster
    learner_model_param: LearnerModelParam
    objective: Objective


class Document(_Part):
    """A model, as XGBoost stores it."""

    learner: Learner
    version: Annotated[list[Place], Meta(min_length=3, max_length=3)]


# msgspec works out a type when it is first used, and two threads that do so at once crash the process: here it is known
# from the import on.
msgspec.msgpack.Decoder(Document, dec_hook=lambda kind, found: found)


def read(data: bytes) -> dict[str, Any]:
    """The content of a file, in either format, not yet checked. Raises ValueError if it has neither format."""
    try:
        found = ubjson.decode(data) if data[:2] == b"{L" else json.loads(data)
    except RecursionError:
        raise ModelError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ModelError("it is not an object")
    return found


def attribute(content: dict[str, Any], name: str) -> str | None:
    """The text that the model carries under this name. Raises ValueError if it is no model at all."""
    learner = content.get("learner")
    if not isinstance(learner, dict) or "gradient_booster" not in learner:
        raise ModelError("it has no learner")
    attributes = learner.get("attributes")
    found = attributes.get(name) if isinstance(attributes, dict) else None
    return found if isinstance(found, str) else None


def sound(content: dict[str, Any], n_classes: int | None, schema: Schema | None) -> bytes:
    """The model, written again for XGBoost, if it is sound. Raises `ModelError` with what is wrong."""
    try:
        document = msgspec.convert(content, Document, dec_hook=_array)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise ModelError(str(error)) from None
    _check_sizes(document.learner, n_classes, schema)
    _check_start(document.learner)
    _check_rounds(document.learner)
    n_features = int(document.learner.learner_model_param.num_feature)
    n_levels = schema.n_levels if schema else np.zeros(n_features, dtype=np.int32)
    is_category = np.array([kind == "c" for kind in document.learner.feature_types], dtype=bool)
    _refuse_unless(not n_levels.any() or np.array_equal(is_category, n_levels > 0), "kinds of columns not its own")
    model = document.learner.gradient_booster.model
    if model.cats is not None:
        _check_cats(model.cats, n_levels)
    for number, tree in enumerate(model.trees):
        try:
            _check_nodes(tree, n_features)
            _check_structure(tree)
            _check_categories(tree, n_levels)
            _check_kinds(tree, is_category)
        except ModelError as error:
            raise ModelError(f"tree {number}: {error}") from None
    return _written(document)


def _written(document: Document) -> bytes:
    try:
        return ubjson.encode(document)
    except UnicodeEncodeError:  # JSON can hold half a character
        raise ModelError("a text that is not Unicode") from None


def _refuse_unless(fits: Any, fact: str) -> None:
    if not fits:
        raise ModelError(fact)


def _array(kind: Any, value: Any) -> AnyArray:
    """The numbers of a field in the field's type: an array from UBJSON, a list from JSON."""
    dtype = np.dtype(kind.__args__[1].__args__[0])
    if isinstance(value, np.ndarray):
        if value.dtype != dtype:
            raise ValueError(f"numbers of type {value.dtype} where {dtype} belongs")
        return value
    types = {int} if dtype.kind in "iu" else {int, float}
    if not isinstance(value, list) or not set(map(type, value)) <= types:
        raise ValueError("not a list of numbers")
    numbers = np.array(value, dtype=np.int64 if dtype.kind in "iu" else np.float64)
    limits = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
    if not ((numbers >= limits.min) & (numbers <= limits.max)).all():
        raise ValueError(f"numbers beyond {dtype}")
    return numbers.astype(dtype)


def _check_sizes(learner: Learner, n_classes: int | None, schema: Schema | None) -> None:
    """The numbers of features and classes, as the model, its objective and what SimFL stored with it have them."""
    stored, objective = learner.learner_model_param, learner.objective
    n_features, n_outputs = int(stored.num_feature), int(stored.num_class)
    _refuse_unless(1 <= n_features <= 2**24, f"{n_features} features")
    for names in (learner.feature_names, learner.feature_types, schema.columns if schema else []):
        _refuse_unless(len(names) in (0, n_features), f"{len(names)} columns where it has {n_features} features")
    several = is_multi(objective.name)
    expected = n_classes if several else 0
    _refuse_unless(n_outputs == expected, f"num_class is {n_outputs}, and its labels have {n_classes} classes")
    _refuse_unless(
        (n_classes is not None) == (labels_of(objective.name) == "classes"), f"labels not of {objective.name}"
    )
    _refuse_unless(several or (n_classes or 1) <= 2, f"{n_classes} classes for one output")
    given = [name for name in objective.__struct_fields__[1:] if getattr(objective, name) is not None]
    wanted = [name for name, (objectives, _) in _PARAMETERS.items() if objective.name in objectives]
    _refuse_unless(given == wanted, f"parameters not of {objective.name}")
    if objective.softmax_multiclass_param is not None:
        _refuse_unless(int(objective.softmax_multiclass_param.num_class) == n_outputs, "two numbers of classes")


def _check_start(learner: Learner) -> None:
    """One start value per output, or one for all, that the objective can begin with."""
    text, n_outputs = learner.learner_model_param.base_score, max(int(learner.learner_model_param.num_class), 1)
    _refuse_unless(_START.fullmatch(text), f"base_score is {text[:40]!r}")
    start = np.array([float(number) for number in text.strip("[]").split(",")])
    _refuse_unless(len(start) in (1, n_outputs), f"{len(start)} start values for {n_outputs} outputs")
    _refuse_unless((np.abs(start) <= np.finfo(np.float32).max).all(), f"base_score is {text[:40]!r}")
    wrong = loss_named(learner.objective.name).wrong_start(float(start[0]))
    _refuse_unless(wrong is None, f"base_score is {text[:40]!r}, and {wrong}")


def _check_rounds(learner: Learner) -> None:
    """Every tree belongs to a round and to an output."""
    model, n_outputs = learner.gradient_booster.model, max(int(learner.learner_model_param.num_class), 1)
    n, param = len(model.trees), model.gbtree_model_param
    _refuse_unless(int(param.num_trees) == n, f"{n} trees where {param.num_trees} are announced")
    _refuse_unless(param.num_parallel_tree == "1", f"{param.num_parallel_tree} trees at once")
    _refuse_unless(len(model.tree_info) == n, f"outputs of {len(model.tree_info)} trees where it has {n}")
    _refuse_unless(max(model.tree_info, default=0) < n_outputs, f"a tree of output {max(model.tree_info, default=0)}")
    whole = n % n_outputs == 0 and model.iteration_indptr == [*range(0, n + 1, n_outputs)]
    _refuse_unless(whole, f"the bounds of its rounds are not those of {n} trees for {n_outputs} outputs")


def _check_cats(cats: Cats, n_levels: Ints) -> None:
    """Every column has as many levels as the schema says, and their order is an order."""
    if not cats.enc and not len(cats.feature_segments) and not len(cats.sorted_idx):
        return
    _refuse_unless(len(cats.enc) == len(n_levels), f"levels of {len(cats.enc)} columns, not {len(n_levels)}")
    for number, (own, n) in enumerate(zip(cats.enc, n_levels.tolist(), strict=True)):
        _refuse_unless(_has_levels(own, n), f"the names of the levels of column {number} do not fit its {n} levels")
    ends = np.cumsum(n_levels)
    _refuse_unless(np.array_equal(cats.feature_segments, [0, *ends]), "the levels of its columns do not fit together")
    _refuse_unless(len(cats.sorted_idx) == ends[-1], f"an order of {len(cats.sorted_idx)} levels, not {ends[-1]}")
    for own_order, n in zip(np.split(cats.sorted_idx, ends[:-1]), n_levels, strict=True):
        _refuse_unless(np.array_equal(np.sort(own_order), np.arange(n)), "the order of its levels is not an order")


def _has_levels(own: Levels, n: int) -> bool:
    """Whether these are the names of n levels: where each begins, and where the last one ends."""
    if n == 0:
        return len(own.offsets) == len(own.values) == 0
    ends = len(own.offsets) == n + 1 and own.offsets[0] == 0 and own.offsets[-1] == len(own.values)
    return bool(ends and (np.diff(own.offsets) >= 0).all())


def _check_nodes(tree: StoredTree, n_features: int) -> None:
    """One number per node in every array, each within its range."""
    n, features = len(tree.left_children), tree.split_indices
    _refuse_unless(n >= 1 and int(tree.tree_param.num_nodes) == n, f"{n} nodes, not {tree.tree_param.num_nodes}")
    _refuse_unless(int(tree.tree_param.num_feature) == n_features, f"{tree.tree_param.num_feature} features")
    for name in _PER_NODE:
        own = getattr(tree, name)
        _refuse_unless(len(own) == n, f"{len(own)} {name} for {n} nodes")
        _refuse_unless(own.dtype.kind != "f" or np.isfinite(own).all(), f"{name} that are not finite")
    _refuse_unless(features.min() >= 0 and features.max() < n_features, f"features beyond its {n_features}")
    _refuse_unless(max(tree.default_left.max(), tree.split_type.max()) <= 1, "flags that are neither 0 nor 1")


def _check_structure(tree: StoredTree) -> None:
    """Children come after their parent: so nothing is its own ancestor, and every node can be reached."""
    n, is_leaf = len(tree.left_children), tree.left_children == -1
    owners = np.flatnonzero(~is_leaf)
    children = np.concatenate([tree.left_children[owners], tree.right_children[owners]])
    parents = np.concatenate([owners, owners])
    _refuse_unless(((children > parents) & (children < n)).all(), "children that are not nodes after their parent")
    counts = np.bincount(children, minlength=n)
    _refuse_unless((counts[1:] == 1).all(), "nodes that no path leads to, or with two parents")
    _refuse_unless((tree.right_children[is_leaf] == -1).all(), "nodes with one child")
    known = tree.parents[0] == NO_PARENT and (tree.parents[children] == parents).all()
    _refuse_unless(known, "parents that do not have these children")
    _refuse_unless(not tree.split_type[is_leaf].any(), "leaves that split by category")
    _refuse_unless(_depth(tree) <= DEEPEST, f"more than {DEEPEST} levels")


def _depth(tree: StoredTree) -> int:
    """The number of levels below the first, counted no further than needed."""
    level, depth = np.zeros(1, dtype=np.int32), 0
    while depth <= DEEPEST:
        inner = level[tree.left_children[level] != -1]
        if not len(inner):
            break
        level, depth = np.concatenate([tree.left_children[inner], tree.right_children[inner]]), depth + 1
    return depth


def _check_kinds(tree: StoredTree, is_category: Mask) -> None:
    """XGBoost does not write down a tree that splits a category as a number, or the reverse."""
    if len(is_category):
        inner = tree.left_children >= 0
        kinds = is_category[tree.split_indices[inner]]
        _refuse_unless((kinds == (tree.split_type[inner] == 1)).all(), "splits of another kind than their columns")


def _check_categories(tree: StoredTree, n_levels: Ints) -> None:
    """Every split by category has its list, one after the other, of levels that its column has."""
    nodes, sizes = tree.categories_nodes, tree.categories_sizes
    _refuse_unless(np.array_equal(nodes, np.flatnonzero(tree.split_type)), "categories of other nodes")
    if not len(nodes) and not len(sizes) + len(tree.categories_segments) + len(tree.categories):
        return
    n, fact = len(tree.categories), "lists of categories that do not follow each other"
    _refuse_unless(len(sizes) == len(nodes) and ((sizes >= 1) & (sizes <= n)).all(), fact)
    _refuse_unless(sizes.sum() == n and np.array_equal(tree.categories_segments, np.cumsum(sizes) - sizes), fact)
    most = np.repeat(n_levels[tree.split_indices[nodes]], sizes)
    within = (tree.categories >= 0) & (tree.categories < most)
    _refuse_unless(within.all(), "categories that its column does not have")
