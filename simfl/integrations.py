"""Trainings in MLflow, models in ONNX. Each needs an extra."""

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import xgboost as xgb

from simfl.callbacks import Callback, TreeRecord
from simfl.errors import DataError, FileError, MissingExtraError
from simfl.model import Model
from simfl.model.xgboost_document import objective_of, set_start, start_of, to_booster, to_document
from simfl.params import Params, settings
from simfl.storage import write_atomically

IN_ONNX = ("binary:logistic", "multi:softprob", "reg:squarederror")  # others lose their transformation on the way
OPSET = 15  # of ONNX: read by every runtime of the last years


def _import(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtraError(f'This needs {module.split(".")[0]}: pip install "simfl[{extra}]"') from None


class MLflow(Callback):
    """Logs parameters and metrics to MLflow: to the run that is active, or to a new one. Needs `simfl[mlflow]`."""

    def __init__(self, run_name: str | None = None) -> None:
        self.run_name = run_name
        self._mlflow = _import("mlflow", "mlflow")

    def before_training(self, parties: Sequence[str], params: Params) -> None:
        self.own = self._mlflow.active_run() is None
        if self.own:
            self._mlflow.start_run(run_name=self.run_name)
        self._mlflow.log_params({"parties": ", ".join(parties)} | settings(params))

    def after_tree(self, record: TreeRecord) -> None:
        told = {f"{where}_{name}": v for where in ("train", "validation") for name, v in getattr(record, where).items()}
        told |= {"traffic_bytes": float(record.bytes), "time_seconds": record.seconds}
        self._mlflow.log_metrics(told, step=record.round)

    def after_training(self, history: Sequence[TreeRecord]) -> None:
        if self.own:
            self._mlflow.end_run()


def _start_in_leaves(model: Model) -> xgb.Booster:
    """The same model with its start value in the leaves of the first trees: converters disagree on start values."""
    document = to_document(model.booster)
    learner, loss = document["learner"], model.loss
    margin = loss.margin(start_of(document))
    trees = learner["gradient_booster"]["model"]["trees"]
    for tree, start in zip(trees, margin, strict=False):
        for node, left in enumerate(tree["left_children"]):
            if left < 0:
                tree["split_conditions"][node] += float(start)
    for tree in trees:  # whole numbers there make onnxmltools take the model for a regression
        tree["sum_hessian"] = [number + 0.5 for number in tree["sum_hessian"]]
    set_start(document, loss.base_score(np.zeros(len(margin))))
    learner["feature_names"] = learner["feature_types"] = []  # the converter wants f0, f1, ...
    return to_booster(document)


def to_onnx(model: Model, path: str | os.PathLike[str]) -> Path:
    """Write the model for ONNX runtimes: one input `X` of float32 rows. Needs `simfl[onnx]`.

    The outputs are the place of the class among `model.classes` and the probabilities of all, or a regression's number.
    ONNX has no splits by the levels of a category, so models with such splits are refused.
    """
    target = Path(path)
    if target.suffix != ".onnx":
        raise FileError(f"An ONNX file must end in .onnx, not {target.name!r}.")
    if model.schema is not None and model.schema.has_categories:
        names = [column.name for column in model.schema.columns if column.kind == "category"]
        raise DataError(
            f"ONNX cannot hold splits of categories ({', '.join(names[:6])}). Turn them into 0/1 columns before the "
            "training, or use the model file with XGBoost itself."
        )
    objective = objective_of(to_document(model.booster))
    if objective not in IN_ONNX:
        raise DataError(
            f"The converter to ONNX knows {', '.join(IN_ONNX)}, and the model was trained with {objective}. Use the "
            "model file with XGBoost itself."
        )
    convert = _import("onnxmltools", "onnx").convert_xgboost
    floats = _import("onnxmltools.convert.common.data_types", "onnx").FloatTensorType
    booster = _start_in_leaves(model)
    shape = floats([None, booster.num_features()])
    write_atomically(target, convert(booster, initial_types=[("X", shape)], target_opset=OPSET).SerializeToString())
    return target
