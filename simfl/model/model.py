"""The model: a plain XGBoost booster, and how it came about.

`Model.save` writes a file that XGBoost opens by itself. The classes of the labels and the history travel in the
booster's attributes, so that `simfl.load` brings back all of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import xgboost as xgb

from simfl.arrays import AnyArray, Doubles, Floats
from simfl.callbacks import TreeRecord
from simfl.data.schema import Schema, xgboost_types
from simfl.data.table import as_labels, as_table, as_targets
from simfl.errors import DataError, FileError
from simfl.model import xgboost_document
from simfl.model.xgboost_document import WarmStart, objective_of, set_start, start_of, to_booster, to_document
from simfl.storage import write_atomically
from simfl.training.losses import LOSSES, Loss
from simfl.training.trees import Tree

ATTRIBUTE = "simfl"


class About(msgspec.Struct, kw_only=True):
    """What is stored in the model beside its trees."""

    classes: list[bool | int | float | str] | None
    history: list[TreeRecord]
    traffic: dict[str, dict[str, dict[str, int]]]
    schema: Schema | None = None
    epsilon: float | None = None  # of the sums that parties sent, if they added noise
    delta: float | None = None
    gain: list[float] | None = None  # per feature, where the sums of all parties were known


class Model:
    """A trained model.

    Attributes
    ----------
    booster : the XGBoost booster
    classes : the class labels in the order of `predict_proba`'s columns; None for regression
    history : one record per boosting round: builder, metrics, bytes, seconds
    traffic : bytes per party, way ("sent", "received") and kind of message
    schema : the columns, their kinds and levels, where the parties' tables had names
    epsilon, delta : the differential privacy of the sums that parties sent; None without noise
    """

    def __init__(self, booster: xgb.Booster, about: About) -> None:
        self.booster, self._about = booster, about
        self.booster.set_attr(**{ATTRIBUTE: msgspec.json.encode(about).decode()})
        self.classes = None if about.classes is None else np.array(about.classes)
        self.history, self.traffic, self.schema = about.history, about.traffic, about.schema
        self.epsilon, self.delta = about.epsilon, about.delta
        self.labels: AnyArray | None = None  # of a scikit-learn estimator, whose model knows their places only

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
        """The most likely class of every row, or the number for regression."""
        if self.classes is None:
            return self._raw(X)
        labels: AnyArray = self.classes[self.predict_proba(X).argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> AnyArray:
        """The probability of every class, one column each."""
        if self.classes is None:
            raise DataError("A regression model has no class probabilities. Use predict.")
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
        return xgb.DMatrix(table, feature_names=self.feature_names, **xgboost_types(self.schema))

    def adjusted(self, X: Any, y: Any) -> Model:
        """The same trees with a start value that fits these rows: a party's own share of outcomes, or its own mean.

        Where an outcome is more common at one party than at the others, the shared model is off by about a constant
        there. One number per output, found from the party's own rows, corrects it; nothing leaves the party for that.
        """
        margin = np.asarray(self.margins(X), dtype=np.float32).reshape(len(np.asarray(y)), -1)
        labels = as_labels(y, len(margin), "The table")
        numbers = as_targets(labels, None if self.classes is None else self.classes.tolist(), "The table")
        document = to_document(self.booster)
        objective = objective_of(document)
        new = LOSSES[objective].margin(start_of(document)) + _shift(LOSSES[objective], margin, numbers)
        set_start(document, 1 / (1 + np.exp(-new)) if objective == "binary:logistic" else new)
        return Model(to_booster(document), self._about)

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


def _shift(loss: Loss, margin: Floats, y: Floats) -> Doubles:
    """What to add to the margins of every output so that the gradients of these rows add up to nothing.

    Newton's method; one row's worth of doubt keeps the shift finite where a class does not occur.
    """
    shift = np.zeros(margin.shape[1])
    for _ in range(50):
        g, h = loss.gradients(margin + shift.astype(np.float32), y, None)
        shift -= (g.sum(axis=0, dtype=np.float64) + shift) / (h.sum(axis=0, dtype=np.float64) + 1)
    return shift


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
    booster = xgb.Booster()
    try:
        if not data.startswith(b"{") or not data.endswith(b"}"):  # an empty or cut off file would end the process
            raise ValueError
        booster.load_model(bytearray(data))
    except (xgb.core.XGBoostError, ValueError):
        raise FileError(f"{source} is not an XGBoost model, or only a part of one.") from None
    try:
        about = msgspec.json.decode(booster.attr(ATTRIBUTE) or "", type=About)
    except msgspec.DecodeError:
        raise FileError(f"{source} was not written by SimFL. Open it with xgboost.Booster().load_model.") from None
    return Model(booster, about)


def check_target(path: str | os.PathLike[str]) -> Path:
    """Where a model is to go, if its ending is one that XGBoost knows."""
    target = Path(path)
    if target.suffix not in (".ubj", ".json"):
        raise FileError(f"A model's file must end in .ubj or .json, not {target.name!r}.")
    return target


# --- from trees and boosters to a model ------------------------------------------------------------------------------


def build(
    rounds: Sequence[Sequence[Tree]], base_score: Doubles, objective: str, n_features: int, about: About
) -> Model:
    """A model of these trees."""
    schema = about.schema
    columns = schema or Schema.of_numbers(map(str, range(n_features)))
    booster = to_booster(xgboost_document.write(rounds, base_score, objective, columns))
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
