"""The model: a plain XGBoost booster, and how it came about.

`Model.save` writes a file that XGBoost opens by itself. The classes of the labels and the history travel in the
booster's attributes, so that `simfl.load` brings back all of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import xgboost as xgb

from simfl import html
from simfl.arrays import AnyArray, Doubles, Floats
from simfl.callbacks import TreeRecord
from simfl.data.schema import Schema, xgboost_types
from simfl.data.table import as_table, as_targets, as_weights, one_per_row
from simfl.errors import DataError, FileError
from simfl.model import check, home, xgboost_document
from simfl.model.xgboost_document import (
    WarmStart,
    loss_in,
    start_of,
    to_booster,
    to_config,
    with_start,
)
from simfl.params import cores
from simfl.storage import write_atomically
from simfl.training.losses import Loss, at_home
from simfl.training.trees import Tree, threads_for

ATTRIBUTE = "simfl"


class About(msgspec.Struct, kw_only=True):
    """What is stored in the model beside its trees."""

    classes: list[bool | int | float | str] | None
    history: list[TreeRecord]
    traffic: dict[str, dict[str, dict[str, int]]]
    schema: Schema | None = None
    epsilon: float | None = None  # of the sums that parties sent, if they added noise
    delta: float | None = None
    guarantee: str | None = None  # what these two promise, and what they do not cover
    gain: list[float] | None = None  # per feature, where the sums of all parties were known


_about = msgspec.json.Decoder(About)  # from the import on: threads that first work out a type at once crash


class Model:
    """A trained model.

    Attributes
    ----------
    booster : the XGBoost booster
    classes : the class labels in the order of `predict_proba`'s columns; None for regression
    history : one record per boosting round: builder, metrics, bytes, seconds
    traffic : bytes per party, way ("sent", "received") and kind of message
    schema : the columns, their kinds and levels, where the parties' tables had names
    epsilon, delta : the differential privacy of what parties sent; None without noise
    guarantee : what they promise, to whom, and what they do not cover, in a sentence to quote; None without noise
    """

    def __init__(self, booster: xgb.Booster, about: About) -> None:
        self.booster, self._about = booster, about
        self.booster.set_attr(**{ATTRIBUTE: msgspec.json.encode(about).decode()})
        self.classes = None if about.classes is None else np.array(about.classes)
        self.history, self.traffic, self.schema = about.history, about.traffic, about.schema
        self.epsilon, self.delta, self.guarantee = about.epsilon, about.delta, about.guarantee
        self.labels: AnyArray | None = None  # of a scikit-learn estimator, whose model knows their places only

    def __repr__(self) -> str:
        return f"Model({', '.join(f'{value} {name}'.strip() for name, value in self._facts())})"

    def _repr_html_(self) -> str:
        return html.facts("Model", [(name or "objective", value) for name, value in self._facts()])

    def _facts(self) -> list[tuple[str, object]]:
        """What it learned, how large it is, and what it cost."""
        objective = json.loads(self.booster.save_config())["learner"]["objective"]["name"]
        facts: list[tuple[str, object]] = [("", objective), ("rounds", self.n_trees)]
        facts.append(("features", self.booster.num_features()))
        if self.classes is not None:
            facts.append(("classes", len(self.classes)))
        if self.traffic:
            facts += [("parties", len(self.traffic)), ("bytes sent", f"{self.n_bytes:,}")]
        return [*facts, ("epsilon", self.epsilon)] if self.epsilon is not None else facts

    @property
    def n_trees(self) -> int:
        """The number of boosting rounds."""
        return self.booster.num_boosted_rounds()

    @property
    def n_bytes(self) -> int:
        """All bytes that were sent for it, both ways."""
        return sum(n for party in self.traffic.values() for way in party.values() for n in way.values())

    @property
    def gain(self) -> dict[str, float] | None:
        """What the splits of each feature gained for all parties together; None where only the builder knew.

        XGBoost's own importance by gain is not defined for these models: single nodes keep no statistics.
        """
        return None if self._about.gain is None else dict(zip(_names(self.booster), self._about.gain, strict=True))

    @property
    def feature_names(self) -> list[str] | None:
        """The names of the columns, where the parties' tables had them."""
        return list(self.booster.feature_names) if self.booster.feature_names else None

    def predict(self, X: Any) -> AnyArray:
        """The most likely class of every row, the number for regression, or the time for survival."""
        if self.classes is None:
            return self._raw(X)
        labels: AnyArray = self.classes[self.predict_proba(X).argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> AnyArray:
        """The probability of every class, one column each."""
        if self.classes is None:
            raise DataError("A model of numbers or times has no class probabilities. Use predict.")
        p = self._raw(X)
        return np.column_stack([1 - p, p]) if p.ndim == 1 else p

    def margins(self, X: Any) -> AnyArray:
        """XGBoost's untransformed scores."""
        return self._raw(X, output_margin=True)

    def _raw(self, X: Any, *, output_margin: bool = False) -> AnyArray:
        scores: AnyArray = self.booster.predict(self.matrix(X), output_margin=output_margin)
        return scores

    def matrix(self, X: Any) -> xgb.DMatrix:
        """The rows as XGBoost's own matrix, checked against the columns that the model was trained with.

        Other columns, and another order, do no harm; a level that was never seen counts as missing, with a warning.
        An XGBoost matrix is taken as it is.
        """
        if isinstance(X, xgb.DMatrix):
            return X
        table, found = as_table(X, "The table to predict", self.schema)
        if found is not None and self.schema is None and found.has_categories:
            raise DataError("The table to predict has text columns, and the model was trained on numbers only.")
        if table.shape[1] != self.booster.num_features():
            raise DataError(f"The table has {table.shape[1]} columns, the model {self.booster.num_features()}.")
        columns = {"feature_names": self.feature_names, **xgboost_types(self.schema)}
        return xgb.DMatrix(table, nthread=threads_for(table, cores()), **columns)

    def adjusted(self, X: Any, y: Any, sample_weight: Any = None) -> Model:
        """The same trees with a start value that fits these rows: a party's own share of outcomes, or its own mean.

        Where an outcome is more common at one party than at the others, the shared model is off by about a constant
        there. One number per output, found from the party's own rows, corrects it; nothing leaves the party for that.
        """
        new = self.loss.margin(start_of(to_config(self.booster))) + self.shift(self.margins(X), y, sample_weight)
        # What a party found in its own rows without noise is covered by no guarantee.
        about = msgspec.structs.replace(self._about, epsilon=None, delta=None, guarantee=None)
        return Model(with_start(self.booster, self.loss.base_score(new)), about)

    def continued(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        how: home.How = "auto",
        n_trees: int = 100,
        learning_rate: float = 0.05,
        max_depth: int = 3,
        reg_lambda: float = 1.0,
        random_state: int = 0,
    ) -> Model:
        """The model, continued on a party's own rows: for a party that differs in kind from the others.

        First its start value is `adjusted`. Then it gets more trees (`how="trees"`), or its leaves get steps
        (`"leaves"`; the model stays as large as it is), or what is better (`"auto"`). Cross-validation on these rows
        says how many of at most `n_trees` rounds help; it may be none. Nothing leaves the party. The result holds what
        these rows teach and no promise of differential privacy: keep it at home.
        """
        matrix, start = self.matrix(X), self._warm_start
        base = self.adjusted(matrix, y, sample_weight)
        rows = self._home(X, y, sample_weight, base.margins(matrix))
        plan = home.Continuation(
            start.learned, at_home(self.loss, rows.y), self.schema, n_trees, learning_rate, max_depth, reg_lambda,
            random_state,
        )  # fmt: skip
        ways: dict[str, home.Learn] = {"trees": plan.new_trees, "leaves": plan.leaf_steps(start.rounds[:n_trees])}
        way, correction = plan.chosen(rows, ways if how == "auto" else {how: ways[how]})
        rounds = home.corrected(start.rounds, way, correction)
        begin = start_of(to_config(base.booster))
        return build(rounds, begin, start.learned, self.booster.num_features(), base._about)

    @cached_property
    def _warm_start(self) -> WarmStart:
        """The trees, read once: each of several parties may continue the same model."""
        return warm_start(self)

    def _home(self, X: Any, y: Any, weight: Any, margins: AnyArray) -> home.Home:
        """A party's own rows with their labels, weights and scores."""
        who = "The table"
        table, _ = as_table(X, who, self.schema)
        numbers = self.targets(y, table.shape[0])
        margin = np.asarray(margins, dtype=np.float32).reshape(len(numbers), -1)
        return home.Home(table, numbers, as_weights(weight, table.shape[0], who), margin)

    def with_covers(self, X: Any, sample_weight: Any = None) -> Model:
        """The same model, whose nodes know how many of these rows reach them: for SHAP and importance by cover.

        The parties release no number of rows per node, so a shared model has made-up ones (the number of leaves
        below). With the covers of a party's own rows, SHAP's base value is the mean score of these rows (by their
        weight). The result tells how many of them fall where: keep it at home.
        """
        matrix = self.matrix(X)
        leaves = self.booster.predict(matrix, pred_leaf=True).reshape(matrix.num_row(), -1).astype(np.int64)
        weight = as_weights(sample_weight, len(leaves), "The table")
        return Model(xgboost_document.with_covers(self.booster, leaves, weight), self._about)

    def shift(self, margins: AnyArray, y: Any, sample_weight: Any = None) -> Doubles:
        """What `adjusted` adds to the margins of every output, from the margins of a party's rows and their labels."""
        margin = np.asarray(margins, dtype=np.float32).reshape(len(np.asarray(y)), -1)
        n = len(margin)
        return self.loss.best_shift(margin, self.targets(y, n), as_weights(sample_weight, n, "The table"))

    def targets(self, y: Any, n_rows: int) -> Floats:
        """Labels as the numbers that XGBoost learns."""
        classes = None if self.classes is None else self.classes.tolist()
        return as_targets(one_per_row(y, n_rows, "The table"), self.loss, classes, "The table")

    @cached_property
    def loss(self) -> Loss:
        """The objective, with its settings."""
        return loss_in(json.loads(self.booster.save_config())["learner"]["objective"])

    def save(self, path: str | os.PathLike[str], *, history: bool = True) -> None:
        """Write the model; the ending .json or .ubj decides the format, as in XGBoost.

        `history=False` leaves out who built which tree, the metrics and the traffic, for a model that goes to others.
        """
        target = check_target(path)
        booster = self.booster
        if not history:
            about = msgspec.structs.replace(self._about, history=[], traffic={})
            booster = Model(booster.copy(), about).booster
        write_atomically(target, bytes(booster.save_raw(target.suffix[1:])))


def predictions(model: Model, frame: pd.DataFrame) -> pd.DataFrame:
    """The prediction of every row and, for classes, the probability of each."""
    found = {"prediction": model.predict(frame)}
    if model.classes is not None:
        p = model.predict_proba(frame)
        found |= {f"probability of {label}": p[:, place] for place, label in enumerate(model.classes.tolist())}
    return pd.DataFrame(found)


def load(path: str | os.PathLike[str]) -> Model:
    """Open a model that `Model.save` wrote.

    >>> load("nowhere.ubj")
    Traceback (most recent call last):
        ...
    simfl.errors.FileError: The model nowhere.ubj cannot be read: No such file or directory.
    """
    source = Path(path)
    if source.is_dir():
        how = f"simfl.Preparation.load({str(path)!r}, parties)"
        raise FileError(f"{source} is a folder. Open a preparation with {how}.")
    try:
        data = source.read_bytes()
    except OSError as error:
        raise FileError(f"The model {source} cannot be read: {error.strerror}.") from None
    return from_bytes(data, str(source))


def from_bytes(data: bytes, source: str) -> Model:
    """The model in a file's bytes, which XGBoost sees only if it is sound. `source`: where they are from."""
    try:
        content = check.read(data)
        text = check.attribute(content, ATTRIBUTE)
    except ValueError as error:
        raise FileError(f"{source} is not an XGBoost model, or only a part of one: {error}.") from None
    try:
        about = _about.decode(text or "")
    except (msgspec.DecodeError, RecursionError):
        raise FileError(f"{source} was not written by SimFL. Open it with xgboost.Booster().load_model.") from None
    return Model(_checked(source, content, about), about)


def _checked(source: str, content: dict[str, Any], about: About) -> xgb.Booster:
    """The booster of a file's content, which XGBoost sees only if it is sound."""
    booster = xgb.Booster()
    try:
        n_classes = None if about.classes is None else len(about.classes)
        booster.load_model(bytearray(check.sound(content, n_classes, about.schema)))
        if about.gain is not None and len(about.gain) != booster.num_features():
            raise check.ModelError(f"gains of {len(about.gain)} features where it has {booster.num_features()}")
    except (xgb.core.XGBoostError, check.ModelError) as error:
        raise FileError(
            f"The model {source} is not sound and was not opened: {str(error).strip()}. Get it again from its source."
        ) from None
    return booster


def check_target(path: str | os.PathLike[str]) -> Path:
    """Where a model is to go, if its ending is one that XGBoost knows."""
    target = Path(path)
    if target.suffix not in (".ubj", ".json"):
        how = " For ONNX: save it, then `simfl export`." if target.suffix == ".onnx" else ""
        raise FileError(f"A model's file must end in .ubj or .json, not {target.name!r}.{how}")
    return target


def with_account(model: Model, history: list[TreeRecord], traffic: dict[str, dict[str, dict[str, int]]]) -> Model:
    """The same model with this account of how it came about."""
    return Model(model.booster, msgspec.structs.replace(model._about, history=history, traffic=traffic))


# --- from trees and boosters to a model ------------------------------------------------------------------------------


def build(
    rounds: Sequence[Sequence[Tree]], base_score: Doubles, learned: Mapping[str, Any], n_features: int, about: About
) -> Model:
    """A model of these trees. `learned`: the objective with its settings, in XGBoost's words."""
    schema = about.schema
    columns = schema or Schema.of_numbers(map(str, range(n_features)))
    booster = to_booster(xgboost_document.write(rounds, base_score, learned, columns))
    booster.feature_names = schema.names if schema else None
    booster.feature_types = schema.feature_types if schema and schema.has_categories else None
    return Model(booster, about)


def from_booster(
    booster: xgb.Booster, classes: list[Any] | None, history: list[TreeRecord], schema: Schema | None = None
) -> Model:
    """A model of a booster that XGBoost trained by itself."""
    scores: dict[str, Any] = booster.get_score(importance_type="total_gain")
    gain = [float(scores.get(name, 0.0)) for name in _names(booster)]
    return Model(booster, About(classes=classes, history=history, traffic={}, schema=schema, gain=gain))


def _names(booster: xgb.Booster) -> Sequence[str]:
    return booster.feature_names or [f"f{i}" for i in range(booster.num_features())]


def warm_start(model: Model) -> WarmStart:
    """What a training needs to continue from a model: its objective, classes, start value, trees and schema."""
    classes = None if model.classes is None else model.classes.tolist()
    return xgboost_document.read(model.booster, classes, model.schema)
