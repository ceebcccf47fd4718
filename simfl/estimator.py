"""SimFLClassifier and SimFLRegressor: thin wrappers of `simfl.train` for scikit-learn.

`fit` takes one table and `parties`, the label of every row's party; without it all rows are one party's. Parameters
and defaults are those of `simfl.params`: the constructors are made from that page.
"""

from __future__ import annotations

import inspect
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, check_is_fitted, validate_data

from simfl.arrays import AnyArray
from simfl.callbacks import default_callbacks
from simfl.data.arrow import as_arrow
from simfl.data.schema import Schema
from simfl.errors import DataError
from simfl.federation import train
from simfl.model import Model
from simfl.params import defaults, documented, refuse_unknown
from simfl.partition import by_column
from simfl.party import Party, Rows

_DEFAULTS = {name: value for name, value in defaults().items() if name != "objective"}
_ACCEPTED: dict[str, Any] = {"accept_sparse": "csr", "ensure_all_finite": "allow-nan", "dtype": np.float32}


class _SimFLEstimator(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share."""

    model_: Model

    def __init__(self, **params: Any) -> None:
        refuse_unknown(params, tuple(_DEFAULTS))
        for name, value in (_DEFAULTS | params).items():
            setattr(self, name, value)

    # scikit-learn reads the parameters off the constructor's signature.
    __init__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        + [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=v) for n, v in _DEFAULTS.items()]
    )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags

    def _fit(
        self, X: Any, y: AnyArray, parties: Any, sample_weight: Any, objective: str, init_model: Model | None
    ) -> Self:
        # No weights are weights of one, so that a row of weight two gives exactly the model of that row twice.
        weight = _check_sample_weight(sample_weight, X, dtype=np.float32)
        columns = getattr(self, "feature_names_in_", None)
        names = None if columns is None else columns.tolist()
        members = []
        for name, rows in _rows_of_parties(parties, len(y)).items():
            if self.schema_ is None:
                members.append(Party(name, X[rows], y[rows], sample_weight=weight[rows], columns=names))
            else:  # the rows have been read through it
                members.append(Party.of_rows(name, Rows(X[rows], y[rows], weight[rows]), self.schema_))
        callbacks = default_callbacks(self.get_params()["verbose"] or 0)
        params = self.get_params() | {"objective": objective}
        self.model_ = train(members, callbacks=callbacks, init_model=init_model, **params)
        return self

    def _check_fit(self, X: Any, y: Any, **numeric: bool) -> tuple[Any, AnyArray]:
        """Rows and labels as scikit-learn checks them; a frame with categories is read through its schema first."""
        self.schema_ = _schema_of(X)
        rows = X if self.schema_ is None else self.schema_.encode(X, "The table")
        rows, labels = validate_data(self, rows, y, **_ACCEPTED, **numeric)
        if self.schema_ is not None:
            self.feature_names_in_ = np.array(self.schema_.names, dtype=object)
        return rows, labels

    def _checked(self, X: Any) -> Any:
        """The rows to predict. Called before anything that only a fitted estimator has."""
        check_is_fitted(self)
        return X if self.schema_ else validate_data(self, X, reset=False, **_ACCEPTED)


def _schema_of(X: Any) -> Schema | None:
    """The schema of a frame with categories; other tables are scikit-learn's business."""
    frame = None if sparse.issparse(X) else as_arrow(X, "The table")
    plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    if frame is None or all(any(is_kind(field.type) for is_kind in plain) for field in frame.schema):
        return None
    return Schema.propose(frame, "The table")


def _rows_of_parties(parties: Any, n_rows: int) -> dict[str, AnyArray]:
    if parties is None:
        return {"all": np.arange(n_rows)}
    labels = np.asarray(parties)
    if labels.ndim != 1:
        raise DataError(f"parties has {labels.ndim} dimensions. Give one label per row.")
    check_consistent_length(labels, np.empty(n_rows))
    missing = int(pd.isna(np.asarray(parties, dtype=object)).sum())
    if missing:
        raise DataError(f"parties has {missing} missing labels. Say whose every row is.")
    return by_column(labels)


def _as_before(init_model: Model, y: AnyArray) -> tuple[AnyArray, AnyArray]:
    """The classes of an earlier fit, and the labels as places among them."""
    if init_model.labels is None:
        raise DataError("init_model is not the model_ of a fitted SimFLClassifier. Fit one first, or use simfl.train.")
    places = {label: place for place, label in enumerate(init_model.labels.tolist())}
    strange = sorted({str(label) for label in y.tolist() if label not in places})
    if strange:
        raise DataError(f"init_model does not know these classes: {strange}. Fit again without it.")
    return init_model.labels, np.array([places[label] for label in y.tolist()])


@documented(_DEFAULTS)
class SimFLClassifier(ClassifierMixin, _SimFLEstimator):  # type: ignore[misc]
    """A classifier over several parties: binary:logistic for two classes, multi:softprob for more.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> site = np.arange(len(y)) % 3
    >>> SimFLClassifier(n_trees=20, random_state=0).fit(X, y, parties=site).score(X, y) > 0.95
    True
    """

    def fit(
        self, X: Any, y: Any, parties: Any = None, sample_weight: Any = None, init_model: Model | None = None
    ) -> Self:
        """Train; `parties` labels the rows. `init_model`: the `model_` of an earlier fit, to go on from."""
        X, y = self._check_fit(X, y)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if init_model is not None:
            self.classes_, numbers = _as_before(init_model, y)
        if len(self.classes_) < 2:
            raise DataError(f"All labels are of one class ({self.classes_[0]!r}). Two classes at least are needed.")
        objective = "binary:logistic" if len(self.classes_) == 2 else "multi:softprob"
        self._fit(X, numbers, parties, sample_weight, objective, init_model)
        self.model_.labels = self.classes_
        return self

    def predict(self, X: Any) -> AnyArray:
        """The most likely class of every row."""
        numbers = self.predict_proba(X).argmax(axis=1)
        labels: AnyArray = self.classes_[numbers]
        return labels

    def predict_proba(self, X: Any) -> AnyArray:
        """The probability of every class, one column each."""
        table = self._checked(X)
        return self.model_.predict_proba(table)


@documented(_DEFAULTS)
class SimFLRegressor(RegressorMixin, _SimFLEstimator):  # type: ignore[misc]
    """A regressor over several parties: reg:squarederror.

    >>> X = np.arange(40.0).reshape(20, 2)
    >>> SimFLRegressor(n_trees=30, random_state=0).fit(X, X[:, 0]).predict(X[:1]).shape
    (1,)
    """

    def fit(
        self, X: Any, y: Any, parties: Any = None, sample_weight: Any = None, init_model: Model | None = None
    ) -> Self:
        """Train; `parties` labels the rows. `init_model`: the `model_` of an earlier fit, to go on from."""
        X, y = self._check_fit(X, y, y_numeric=True)
        return self._fit(X, y, parties, sample_weight, "reg:squarederror", init_model)

    def predict(self, X: Any) -> AnyArray:
        """The predicted number of every row."""
        table = self._checked(X)
        return self.model_.predict(table)
