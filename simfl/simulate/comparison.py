"""SOLO, TFL, SimFL and ALL-IN on the same parties, scored on the same held-out rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
from rich.table import Table as RichTable
from scipy import sparse
from sklearn.metrics import roc_auc_score

from simfl import baselines
from simfl.arrays import AnyArray
from simfl.callbacks import Callback
from simfl.federation import Preparation, train_and_keep
from simfl.model import Model
from simfl.params import TrainParams, split, train_params
from simfl.party import Party


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One method's scores. `party` is None where all parties share the model."""

    method: str
    party: str | None
    error: float | None
    logloss: float | None
    auc: float | None
    seconds: float
    bytes: int
    rmse: float | None = None


@dataclass(frozen=True)
class Comparison:
    """The scores, the models by method and party (None: shared), and SimFL's preparation."""

    results: list[Result]
    models: dict[tuple[str, str | None], Model]
    ready: Preparation
    begun: float  # when SimFL began, by the clock of the hops
    training: TrainParams

    @property
    def simfl(self) -> Model:
        """SimFL's model."""
        return self.models["SimFL", None]


def compare(
    parties: Sequence[Party],
    X: Any,
    y: AnyArray,
    params: dict[str, Any],
    *,
    watch: Callable[[str], None] = lambda method: None,
    callbacks: Sequence[Callback] | None = None,
) -> Comparison:
    """Train every method and score it. `watch` is told what comes next; `callbacks` are SimFL's."""
    results = []
    models: dict[tuple[str, str | None], Model] = {}
    members, classes = baselines.check(parties, params)
    for party in members:
        watch(f"SOLO {party.name}")
        model, seconds = _timed(partial(baselines.xgboost_model, [party], classes, params))
        models["SOLO", party.name] = model
        results.append(_result("SOLO", party.name, model, X, y, seconds, 0))
    watch("TFL")
    model, seconds = _timed(lambda: baselines.tfl(parties, callbacks=[], **params))
    models["TFL", None] = model
    results.append(_result("TFL", None, model, X, y, seconds, model.n_bytes))
    watch("SimFL")
    begun = time.perf_counter()
    models["SimFL", None], ready = train_and_keep(parties, callbacks, params)
    ended = time.perf_counter()
    simfl = models["SimFL", None]
    results.append(_result("SimFL", None, simfl, X, y, ended - begun, simfl.n_bytes))
    watch("ALL-IN")
    model, seconds = _timed(lambda: baselines.all_in(parties, **params))
    models["ALL-IN", None] = model
    results.append(_result("ALL-IN", None, model, X, y, seconds, sum(_size(p.rows.X) for p in parties)))
    return Comparison(results, models, ready, begun, train_params(**split(params)[1]))


def mean(runs: Sequence[Sequence[Result]]) -> list[Result]:
    """The means over several runs of the same methods; bytes are rounded."""
    averaged = []
    for same in zip(*runs, strict=True):
        values = {name: [getattr(result, name) for result in same] for name in ("error", "logloss", "auc", "rmse")}
        averaged.append(
            Result(
                method=same[0].method,
                party=same[0].party,
                seconds=float(np.mean([result.seconds for result in same])),
                bytes=round(float(np.mean([result.bytes for result in same]))),
                **{name: None if None in found else float(np.mean(found)) for name, found in values.items()},
            )
        )
    return averaged


def _timed(work: Callable[[], Model]) -> tuple[Model, float]:
    begun = time.perf_counter()
    model = work()
    return model, time.perf_counter() - begun


def _result(method: str, party: str | None, model: Model, X: Any, y: AnyArray, seconds: float, n_bytes: int) -> Result:
    return Result(method=method, party=party, seconds=seconds, bytes=n_bytes, **scores(model, X, y))


def scores(model: Model, X: Any, y: AnyArray) -> dict[str, float | None]:
    """Error, log loss and AUC of a classifier, or the root mean square error of a regressor."""
    if model.classes is None:
        rmse = float(np.sqrt(np.mean((model.predict(X) - y.astype(np.float64)) ** 2)))
        return {"error": None, "logloss": None, "auc": None, "rmse": rmse}
    p = np.clip(model.predict_proba(X).astype(np.float64), 1e-15, 1.0)
    places = {label: place for place, label in enumerate(model.classes.tolist())}
    number = np.array([places.get(label, -1) for label in y.tolist()])
    # A label that no party has is always missed: it gets the smallest probability.
    given = np.where(number >= 0, p[np.arange(len(number)), number], 1e-15)
    return {
        "error": float(np.mean(p.argmax(axis=1) != number)),
        "logloss": float(-np.log(given).mean()),
        "auc": _auc(number, p),
    }


def _auc(number: AnyArray, p: AnyArray) -> float | None:
    if number.min() < 0 or len(np.unique(number)) != p.shape[1]:
        return None  # not defined where the held-out rows lack a class
    if p.shape[1] == 2:
        return float(roc_auc_score(number, p[:, 1]))
    return float(roc_auc_score(number, p / p.sum(axis=1, keepdims=True), multi_class="ovr"))


def _size(X: Any) -> int:
    return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes) if sparse.issparse(X) else int(X.nbytes)


def table(results: Sequence[Result], title: str) -> RichTable:
    """The results as a table for people, the best of each column in bold."""
    shown = RichTable(title=title, title_justify="left", title_style="bold")
    shown.add_column("method")
    shown.add_column("rows of")
    columns = [("error", "error"), ("logloss", "log loss"), ("auc", "AUC"), ("rmse", "RMSE")]
    columns = [(f, head) for f, head in columns if any(getattr(r, f) is not None for r in results)]
    for head in [head for _, head in columns] + ["seconds", "sent"]:
        shown.add_column(head, justify="right")
    for result in results:
        cells = [_cell(result, name, results) for name, _ in columns]
        whose = result.party or ("all, pooled" if result.method == "ALL-IN" else "all parties")
        style = "bold green" if result.method == "SimFL" else None
        shown.add_row(result.method, whose, *cells, f"{result.seconds:.1f}", _bytes(result), style=style)
    return shown


def _cell(result: Result, name: str, results: Sequence[Result]) -> str:
    value = getattr(result, name)
    if value is None:
        return "-"
    known = [v for v in (getattr(r, name) for r in results) if v is not None]
    best = value == (max(known) if name == "auc" else min(known))
    text = f"{value:.1%}" if name == "error" else f"{value:.4f}"
    return f"[bold]{text} *[/]" if best else f"{text}  "


def _bytes(result: Result) -> str:
    if result.method == "SOLO":
        return "nothing"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if result.bytes >= size:
            return f"{result.bytes / size:.1f} {unit}{' rows' if result.method == 'ALL-IN' else ''}"
    return f"{result.bytes} B"
