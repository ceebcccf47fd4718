"""SimFLClassifier, SimFLRegressor and SimFLSurvival: thin wrappers of `simfl.train` for scikit-learn.

`fit` takes one table and `parties`, the label of every row's party or the name of the column that has them; without it
all rows are one party's. Parameters and defaults are those of `simfl.params`; `objective=None` is what fits the labels.
"""

import inspect
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, check_is_fitted, validate_data

from simfl.arrays import AnyArray
from simfl.data.arrow import as_arrow
from simfl.data.schema import Schema
from simfl.data.table import as_labels, as_table, class_numbers, one_per_row
from simfl.errors import DataError, ParameterError
from simfl.federation import train
from simfl.model import Model
from simfl.params import NAMES, Matching, Objective, RecipeName, defaults, documented, refuse_unknown
from simfl.partition import by_column
from simfl.party import Party, Rows
from simfl.training.losses import LOSSES, Labels, is_multi, labels_of
from simfl.training.losses.concordance import concordance

_DEFAULTS = defaults() | {"objective": None}
_ESTIMATORS = {"classes": "SimFLClassifier", "numbers": "SimFLRegressor", "bounds": "SimFLSurvival"}  # by labels
_ACCEPTED: dict[str, Any] = {"accept_sparse": "csr", "ensure_all_finite": "allow-nan", "dtype": np.float32}


@dataclass(frozen=True)
class _Given:
    """What `fit` takes beside rows and labels."""

    parties: Any = None
    sample_weight: Any = None
    init_model: Model | None = None
    eval_set: Any = None


def _listed(init: Any) -> Any:
    """A constructor as scikit-learn reads it: with the parameters that there are, and no door for others."""
    signature = inspect.signature(init)
    shown = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    init.__signature__ = signature.replace(parameters=shown)
    return init


class _SimFLEstimator(BaseEstimator):  # type: ignore[misc]
    """What all estimators share."""

    model_: Model

    @_listed
    def __init__(
        self,
        *,
        recipe: RecipeName = "similar",
        objective: Objective | None = None,
        scale_pos_weight: float | None = None,
        quantile_alpha: float | None = None,
        tweedie_variance_power: float | None = None,
        aft_loss_distribution: Literal["normal", "logistic", "extreme"] | None = None,
        aft_loss_distribution_scale: float | None = None,
        n_trees: int | None = None,
        learning_rate: float | None = None,
        max_depth: int | None = None,
        min_child_weight: float = 1.0,
        gamma: float = 0.0,
        reg_lambda: float | None = None,
        reg_alpha: float = 0.0,
        max_delta_step: float | None = None,
        subsample: float | None = None,
        colsample_bytree: float = 1.0,
        max_bin: int | None = None,
        monotone_constraints: dict[str, Literal[-1, 0, 1]] | list[Literal[-1, 0, 1]] | None = None,
        interaction_constraints: list[list[str | int]] | None = None,
        base_score: float | None = None,
        eval_metric: str | list[str] | None = None,
        early_stopping_rounds: int | None = None,
        validation_fraction: float = 0.0,
        min_group: int | None = None,
        masked: bool | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        n_hashes: int | None = None,
        bucket_width: float | None = None,
        hash_law: Literal["gaussian", "cauchy"] = "gaussian",
        n_neighbors: int | None = None,
        known_features: int | None = 0,
        matching: Matching | None = None,
        rematch: int = 50,
        epsilon: float | None = None,
        delta: float = 1e-05,
        colluding: int | None = None,
        rows: int | None = None,
        classes: list[bool | int | float | str] | None = None,
        max_rows_per_person: int | None = None,
        verbose: bool | int | None = None,
        **unknown: Any,
    ) -> None:
        own = {name: value for name, value in locals().items() if name in (*NAMES, "verbose")}
        refuse_unknown(unknown, NAMES)
        self.__dict__.update(own)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags

    def _params(self) -> dict[str, Any]:
        """Every parameter, also where a subclass lists fewer."""
        return {name: getattr(self, name) for name in (*NAMES, "verbose")}

    def _fit(self, X: Any, y: AnyArray, given: _Given, **decided: Any) -> Self:
        # No weights are weights of one, so that a row of weight two gives exactly the model of that row twice.
        weight = _check_sample_weight(given.sample_weight, X, dtype=np.float32)
        columns = getattr(self, "feature_names_in_", None)
        names = None if columns is None else columns.tolist()
        members = []
        for name, rows in _rows_of_parties(given.parties, len(y)).items():
            if self.schema_ is None:
                members.append(Party(name, X[rows], y[rows], sample_weight=weight[rows], columns=names))
            else:  # the rows have been read through it
                own = Rows(X[rows], y[rows], weight[rows])
                members.append(Party.of_rows(name, own, self.schema_, declared=self._declared))
        if given.eval_set is not None:
            self._watch(members[0], given.eval_set)
        params = self._params() | decided
        params["verbose"] = params["verbose"] or 0
        self.model_ = train(members, init_model=given.init_model, **params)
        return self

    def _split_off(self, X: Any, parties: Any) -> tuple[Any, Any]:
        """The features and the label of every row's party. A text names the column of the table that has them."""
        self.party_name_ = parties if isinstance(parties, str) else None
        if self.party_name_ is None:
            return X, parties
        if parties not in _names_of(X):
            raise DataError(
                f"parties={parties!r} is one text, and the table has no column of that name. Give the name of a "
                "column, or one label per row, as in parties=table['site']."
            )
        return _without(X, parties), X[parties]

    def _check_fit(self, X: Any, y: Any, schema: Schema | None, **numeric: bool) -> tuple[Any, AnyArray]:
        """Rows and labels as scikit-learn checks them; a frame with categories is read through its schema first."""
        rows, labels = validate_data(self, self._read(X, schema), y, **_ACCEPTED, **numeric)
        return self._named(rows), labels

    def _read(self, X: Any, schema: Schema | None) -> Any:
        self.schema_, self._declared = schema or _schema_of(X), schema is not None
        return X if self.schema_ is None else as_table(X, "The table", self.schema_)[0]

    def _named(self, rows: Any) -> Any:
        if self.schema_ is not None:
            self.feature_names_in_ = np.array(self.schema_.names, dtype=object)
        return rows

    def _watch(self, member: Party, eval_set: Any) -> None:
        """Rows to watch, held by one party: the metric is over all parties, so that it does not matter by which."""
        pairs = list(eval_set) if isinstance(eval_set, list | tuple) else []
        if len(pairs) != 1 or not isinstance(pairs[0], list | tuple) or len(pairs[0]) != 2:
            raise DataError("eval_set is a list of one pair: eval_set=[(X, y)]. SimFL watches one set of rows.")
        if self._params()["validation_fraction"]:
            raise DataError("eval_set goes without validation_fraction: both say which rows are watched. Give one.")
        X, y = _without(pairs[0][0], self.party_name_), pairs[0][1]
        rows = (
            as_table(X, "eval_set", self.schema_)[0]
            if self.schema_
            else validate_data(self, X, reset=False, **_ACCEPTED)
        )
        member.validation = Rows(rows, as_labels(self._numbers(y), rows.shape[0], "eval_set"))

    def _objective_or(self, usual: Objective) -> Objective:
        """The objective as given, if it is one of this estimator."""
        given: Objective | None = self._params()["objective"]
        objective = usual if given is None else given
        _refuse_other_labels(objective, labels_of(usual))
        return objective

    def _numbers(self, y: Any) -> Any:
        """Labels as the training knows them."""
        return y

    @property
    def feature_importances_(self) -> AnyArray:
        """Per feature the share of all gain, over all parties; where only builders knew it, of all splits."""
        check_is_fitted(self)
        found = self.model_.gain
        if found is None:
            splits: dict[str, Any] = self.model_.booster.get_score(importance_type="weight")
            names = self.model_.feature_names or [f"f{i}" for i in range(self.n_features_in_)]
            found = {name: splits.get(name, 0.0) for name in names}
        values = np.maximum(np.array(list(found.values()), dtype=np.float64), 0.0)
        shares: AnyArray = values / (values.sum() or 1.0)
        return shares

    @property
    def evals_result_(self) -> dict[str, dict[str, list[float]]]:
        """The metrics after every round, on training rows ("train") and, where rows are watched, "validation_0"."""
        check_is_fitted(self)
        history = self.model_.history
        kinds = {"train": [r.train for r in history], "validation_0": [r.validation for r in history]}
        return {
            k: {m: [r[m] for r in rounds] for m in rounds[0]} for k, rounds in kinds.items() if rounds and rounds[0]
        }

    @property
    def best_iteration(self) -> int:
        """The round that early stopping kept, counted from 0, as XGBoost counts it."""
        check_is_fitted(self)
        if self._params()["early_stopping_rounds"] is None:
            raise AttributeError("best_iteration is known only with early_stopping_rounds.")
        return self.model_.n_trees - 1

    @property
    def best_score(self) -> float:
        """The first metric of that round on the watched rows."""
        return next(iter(self.evals_result_["validation_0"].values()))[self.best_iteration]

    def _checked(self, X: Any) -> Any:
        """The rows to predict. Called before anything that only a fitted estimator has."""
        check_is_fitted(self)
        X = _without(X, self.party_name_)
        return X if self.schema_ else validate_data(self, X, reset=False, **_ACCEPTED)


def _refuse_other_labels(objective: Any, wanted: Labels) -> None:
    """Refuse the objective of another estimator. Words that do not exist are refused by the training."""
    found = labels_of(objective) if isinstance(objective, str) and objective in LOSSES else wanted
    if found != wanted:
        raise ParameterError(
            f"objective={objective!r} is not one of {_ESTIMATORS[wanted]}: its labels are {found}, not {wanted}. "
            f"Use {_ESTIMATORS[found]}."
        )


def _schema_of(X: Any) -> Schema | None:
    """The schema of a frame with categories; other tables are scikit-learn's business."""
    frame = None if sparse.issparse(X) else as_arrow(X, "The table")
    plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    if frame is None or all(any(is_kind(field.type) for is_kind in plain) for field in frame.schema):
        return None
    return Schema.propose(frame, "The table")


def _names_of(X: Any) -> list[Any]:
    """The names of a data frame's columns; what is no frame has none."""
    if hasattr(X, "iloc"):  # pandas, whose attributes may be columns
        return list(X.columns)
    found = getattr(X, "column_names", None) or getattr(X, "columns", ())  # Arrow's columns are values
    return list(found or ())


def _without(X: Any, name: str | None) -> Any:
    """A data frame without this column, if it has it."""
    names = _names_of(X)
    if name is None or name not in names:
        return X
    others = [other for other in names if other != name]
    return X[others] if hasattr(X, "iloc") else X.select(others)


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


def _places(y: AnyArray, declared: list[Any]) -> AnyArray:
    """The labels as places among declared classes."""
    try:
        return class_numbers(y, declared, "The table").astype(int)
    except DataError as error:
        raise DataError(f"{error} Declare them all: classes=[...].") from None


@documented(_DEFAULTS)
class SimFLClassifier(ClassifierMixin, _SimFLEstimator):  # type: ignore[misc]
    """A classifier over several parties. `objective=None`: binary:logistic for two classes, multi:softprob for more.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> site = np.arange(len(y)) % 3
    >>> SimFLClassifier(n_trees=20, random_state=0).fit(X, y, parties=site).score(X, y) > 0.95
    True
    """

    def fit(
        self,
        X: Any,
        y: Any,
        parties: Any = None,
        sample_weight: Any = None,
        init_model: Model | None = None,
        schema: Schema | None = None,
        eval_set: Any = None,
    ) -> Self:
        """Train; `parties` labels the rows, or names a column. `init_model`: the `model_` to continue from.

        `eval_set=[(X, y)]`: rows to watch, for early stopping. `schema`: the columns as they are declared
        (`simfl.data.schema`); joint with epsilon needs it.
        """
        X, parties = self._split_off(X, parties)
        X, y = self._check_fit(X, y, schema)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if init_model is not None:
            self.classes_, numbers = _as_before(init_model, y)
        elif declared := self._declared_classes():
            self.classes_, numbers = np.array(declared), _places(y, declared)
        if len(self.classes_) < 2:
            raise DataError(f"All labels are of one class ({self.classes_[0]!r}). Two classes at least are needed.")
        objective = self._objective_for(len(self.classes_))
        classes = list(range(len(self.classes_))) if self._declared_classes() else None
        given = _Given(parties, sample_weight, init_model, eval_set)
        self._fit(X, numbers, given, objective=objective, classes=classes)
        self.model_.labels = self.classes_
        return self

    def _objective_for(self, n_classes: int) -> str:
        """The objective as given, or what fits this number of classes."""
        given = self._params()["objective"]
        _refuse_other_labels(given, "classes")
        if n_classes > 2 and given in LOSSES and not is_multi(given):
            raise ParameterError(
                f"objective={given!r} knows two classes, and there are {n_classes}. Use multi:softprob, or leave "
                "objective out."
            )
        return given or ("binary:logistic" if n_classes == 2 else "multi:softprob")

    def _numbers(self, y: Any) -> Any:
        return class_numbers(one_per_row(y, len(y), "eval_set"), self.classes_.tolist(), "eval_set").astype(int)

    def _declared_classes(self) -> list[Any] | None:
        """With joint and epsilon no label decides which classes there are: they are declared, or 0 and 1."""
        given = self._params()
        private = given["recipe"] == "joint" and given["epsilon"] is not None
        return given["classes"] if given["classes"] is not None else [0, 1] if private else None

    def predict(self, X: Any) -> AnyArray:
        """The most likely class of every row."""
        numbers = self.predict_proba(X).argmax(axis=1)
        labels: AnyArray = self.classes_[numbers]
        return labels

    def predict_proba(self, X: Any) -> AnyArray:
        """The probability of every class, one column each."""
        rows = self._checked(X)
        return self.model_.predict_proba(rows)


@documented(_DEFAULTS)
class SimFLRegressor(RegressorMixin, _SimFLEstimator):  # type: ignore[misc]
    """A regressor over several parties. `objective` is any whose labels are numbers (docs/howto/objectives.md).

    >>> X = np.arange(40.0).reshape(20, 2)
    >>> SimFLRegressor(n_trees=30, random_state=0).fit(X, X[:, 0]).predict(X[:1]).shape
    (1,)
    """

    def fit(
        self,
        X: Any,
        y: Any,
        parties: Any = None,
        sample_weight: Any = None,
        init_model: Model | None = None,
        schema: Schema | None = None,
        eval_set: Any = None,
    ) -> Self:
        """Train; `parties` labels the rows, or names a column. `init_model`: the `model_` to continue from.

        `eval_set=[(X, y)]`: rows to watch, for early stopping. `schema`: the columns as they are declared
        (`simfl.data.schema`).
        """
        objective = self._objective_or("reg:squarederror")
        X, parties = self._split_off(X, parties)
        X, y = self._check_fit(X, y, schema, y_numeric=True)
        return self._fit(X, y, _Given(parties, sample_weight, init_model, eval_set), objective=objective)

    def predict(self, X: Any) -> AnyArray:
        """The predicted number of every row."""
        rows = self._checked(X)
        return self.model_.predict(rows)


@documented(_DEFAULTS)
class SimFLSurvival(_SimFLEstimator):
    """How long it takes until something happens, over several parties: survival:aft.

    `y` has two columns, the lower and the upper bound of every row's time (`simfl.survival_bounds` makes them from
    times and events), or is a structured array of an event and a time, as scikit-survival has it.

    >>> X = np.arange(40.0).reshape(20, 2)
    >>> y = np.column_stack([X[:, 0] + 1, np.where(X[:, 0] > 30, np.inf, X[:, 0] + 1)])
    >>> SimFLSurvival(n_trees=50, random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    def fit(
        self,
        X: Any,
        y: Any,
        parties: Any = None,
        sample_weight: Any = None,
        init_model: Model | None = None,
        schema: Schema | None = None,
        eval_set: Any = None,
    ) -> Self:
        """Train; `parties` labels the rows, or names a column. `init_model`: the `model_` to continue from.

        `eval_set=[(X, y)]`: rows to watch, for early stopping. `schema`: the columns as they are declared
        (`simfl.data.schema`).
        """
        X, parties = self._split_off(X, parties)
        rows = self._read(X, schema)
        rows = self._named(validate_data(self, rows, **_ACCEPTED))
        bounds = as_labels(y, rows.shape[0], "The table")
        given = _Given(parties, sample_weight, init_model, eval_set)
        return self._fit(rows, bounds, given, objective=self._objective_or("survival:aft"))

    def predict(self, X: Any) -> AnyArray:
        """The time of every row: the middle one under the normal and the logistic law."""
        rows = self._checked(X)
        return self.model_.predict(rows)

    def score(self, X: Any, y: Any) -> float:
        """Harrell's concordance: the share of pairs in the right order. NaN where no order is known."""
        predicted = self.predict(X)
        found = concordance(predicted, as_labels(y, len(predicted), "The table"))
        return float("nan") if found is None else found
