"""Whether a model is the one that was trained: a party compares what it is given with the trees that it adopted itself.

A party knows every tree as its builder grew it, with a value per leaf. The model's trees may be pruned: where all
leaves below a node have one value, the node may be a leaf. With these trees the party writes the whole model again, and
all of it must be the same. Two things a party does not know: at which of the last rounds early stopping found the
model best, and the gains of the columns, which come from all parties' sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from simfl.arrays import AnyArray
from simfl.data.schema import Schema
from simfl.errors import ProtocolError
from simfl.model.model import ATTRIBUTE, About, Model, build, warm_start
from simfl.model.xgboost_document import Document, WarmStart, to_document
from simfl.params import Params
from simfl.training.losses import in_xgboost, loss_of
from simfl.training.trees import LEAF, Tree

GrownTree = tuple[Tree, AnyArray]  # as it was grown, and the value of each leaf


@dataclass(frozen=True)
class Adopted:
    """What a party knows of the model: how the training began, and the trees of every round."""

    params: Params
    classes: list[bool | int | float | str] | None
    base_margin: list[float]
    schema: Schema | None
    n_features: int
    rounds: list[list[GrownTree]]


def check_same(received: Model, adopted: Adopted, who: str) -> None:
    """Refuse a model that is not made of the trees that this party adopted."""
    difference = _difference(received, adopted)
    if difference:
        raise ProtocolError(
            f"{who} was given a model that is not the one it trained: {difference}. It is not kept. "
            "Compare the models of the other parties, and ask whoever runs the hub."
        )


def _difference(received: Model, adopted: Adopted) -> str | None:
    """What is different, in words."""
    found = warm_start(received)
    for name, differs in _beginnings(received, found, adopted).items():
        if differs:
            return f"its {name} differs"
    known, n = adopted.rounds, len(found.rounds)
    cut = adopted.params.early_stopping_rounds or 0
    for number, (tree, grown) in enumerate(zip(_flat(found.rounds), _flat(known), strict=False), 1):
        if not is_pruned(tree, *grown):
            return f"tree {number} differs from the one that was adopted"
    if not len(known) - cut <= n <= len(known):
        return f"it has the trees of {n} rounds, and {len(known)} were adopted"
    if _content(received) != _content(_rebuilt(received, found, adopted)):
        return "its trees are the same, but not how they are put together"
    return None


def _beginnings(received: Model, found: WarmStart, adopted: Adopted) -> dict[str, bool]:
    """What a model has beside its trees, and whether it is different."""
    start = loss_of(adopted.params).margin(found.base_score).astype(np.float32)
    width = received.booster.num_features()
    return {
        "objective": found.objective != adopted.params.objective,
        "list of classes": found.classes != adopted.classes,
        "list of columns": found.schema != adopted.schema or width != adopted.n_features,
        "base score": not np.array_equal(start, np.array(adopted.base_margin, dtype=np.float32)),
    }


def _rebuilt(received: Model, found: WarmStart, adopted: Adopted) -> Model:
    """The model as this party writes it, from trees that it has recognised."""
    about = About(
        classes=adopted.classes,
        history=[],
        traffic={},
        schema=adopted.schema,
        gain=None if received.gain is None else list(received.gain.values()),
    )
    return build(found.rounds, found.base_score, in_xgboost(adopted.params), adopted.n_features, about)


def _content(model: Model) -> tuple[Document, About]:
    """All that a model file holds."""
    document = to_document(model.booster)
    about: str = document["learner"]["attributes"].pop(ATTRIBUTE)
    return document, msgspec.json.decode(about, type=About)


def is_pruned(tree: Tree, grown: Tree, values: AnyArray) -> bool:
    """Whether `tree` is `grown` with these leaf values, but for splits that made no difference."""
    common = _common_values(grown, values)
    pairs = [(0, 0)]
    for node, before in pairs:  # the list grows while it is read
        if tree.feature[node] == LEAF:
            if tree.value[node] != common[before]:
                return False
        elif _split(tree, node) != _split(grown, before):
            return False
        else:
            left, left_before = int(tree.left[node]), int(grown.left[before])
            pairs += [(left, left_before), (left + 1, left_before + 1)]
    return True


def _common_values(grown: Tree, values: AnyArray) -> AnyArray:
    """Per node the value that all leaves below have; NaN, which equals nothing, where they differ."""
    common = np.full(len(grown.feature), np.nan, dtype=np.float32)
    common[grown.leaves] = values
    for node in np.flatnonzero(grown.feature != LEAF)[::-1]:
        one, other = common[grown.left[node]], common[grown.left[node] + 1]
        common[node] = one if one == other else np.nan
    return common


def _split(tree: Tree, node: int) -> tuple[object, ...]:
    """How a node splits: by a threshold, or by the levels that go right. Different from every split at a leaf."""
    number = -1 if tree.level_set is None else int(tree.level_set[node])
    by: object = tree.threshold[node]
    if tree.goes_right is not None and number >= 0:
        by = tuple(np.flatnonzero(tree.goes_right[number]).tolist())
    return int(tree.feature[node]), by, bool(tree.default_left[node])


def _flat(rounds: Sequence[Sequence[object]]) -> list:  # type: ignore[type-arg]
    return [tree for trees in rounds for tree in trees]
