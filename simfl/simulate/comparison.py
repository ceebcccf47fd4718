"""SOLO, TFL, SimFL and ALL-IN on the same parties, scored on the same held-out rows."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
from rich.table import Column
from rich.table import Table as RichTable
from scipy import sparse

from simfl import baselines
from simfl import params as parameters
from simfl.callbacks import Callback
from simfl.federation import Preparation, train_and_keep
from simfl.model import Model
from simfl.params import TrainParams, train_params
from simfl.party import Party
from simfl.report.evaluation import HeldOut, scores
from simfl.report.words import amount, model_name, trained_on

METRICS = {"error": "error", "logloss": "log loss", "auc": "AUC", "rmse": "RMSE"}


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
    """The methods side by side: results, models by method and party (None: shared), and SimFL's preparation."""

    results: list[Result]
    models: dict[tuple[str, str | None], Model]
    ready: Preparation
    params: TrainParams

    @property
    def simfl(self) -> Model:
        return self.models["SimFL", None]


def compare(
    parties: Sequence[Party],
    held_out: HeldOut,
    params: dict[str, Any],
    *,
    tell: Callable[[str], None] = lambda model: None,
    callbacks: Sequence[Callback] | None = None,
) -> Comparison:
    """Train every method and score it. `tell` gets the name of what comes next; `callbacks` are SimFL's."""
    splits, classes = baselines.check(parties, params)
    ready: list[Preparation] = []

    def train_simfl() -> Model:
        model, prepared = train_and_keep(parties, callbacks, params)
        ready.append(prepared)
        return model

    trainings: dict[tuple[str, str | None], Callable[[], Model]] = {
        **{("SOLO", p): partial(baselines.xgboost_model, {p: split}, classes, params) for p, split in splits.items()},
        ("TFL", None): partial(baselines.tfl, parties, callbacks=[], **params),
        ("SimFL", None): train_simfl,
        ("ALL-IN", None): partial(baselines.all_in, parties, **params),
    }
    results, models = [], {}
    for (method, party), train in trainings.items():
        tell(model_name(method, party))
        begun = time.perf_counter()
        model = models[method, party] = train()
        seconds = time.perf_counter() - begun
        sent = sum(_size(p.rows.X) for p in parties) if method == "ALL-IN" else model.n_bytes
        results.append(Result(method=method, party=party, seconds=seconds, bytes=sent, **scores(model, held_out)))
    return Comparison(results, models, ready[0], train_params(**parameters.split(params)[1]))


def _size(X: Any) -> int:
    return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes) if sparse.issparse(X) else int(X.nbytes)


def mean(runs: Sequence[Sequence[Result]]) -> list[Result]:
    """The means over several runs of the same methods; bytes are rounded."""
    return [_mean(same) for same in zip(*runs, strict=True)]


def _mean(same: Sequence[Result]) -> Result:
    values = {name: [getattr(result, name) for result in same] for name in METRICS}
    return Result(
        method=same[0].method,
        party=same[0].party,
        seconds=float(np.mean([result.seconds for result in same])),
        bytes=round(float(np.mean([result.bytes for result in same]))),
        **{name: None if None in found else float(np.mean(found)) for name, found in values.items()},
    )


def table(results: Sequence[Result], title: str) -> RichTable:
    """The results as a table for people, the best of each column in bold."""
    metrics = [name for name in METRICS if any(getattr(result, name) is not None for result in results)]
    numbers = [Column(head, justify="right") for head in (*(METRICS[name] for name in metrics), "seconds", "sent")]
    shown = RichTable("method", "rows of", *numbers, title=title, title_justify="left", title_style="bold")
    for result in results:
        cells = [_cell(result, name, results) for name in metrics]
        whose = trained_on(result.method, result.party)
        style = "bold green" if result.method == "SimFL" else None
        shown.add_row(result.method, whose, *cells, f"{result.seconds:.1f}", _sent(result), style=style)
    return shown


def _cell(result: Result, name: str, results: Sequence[Result]) -> str:
    value = getattr(result, name)
    if value is None:
        return "-"
    known = [v for v in (getattr(r, name) for r in results) if v is not None]
    best = value == (max(known) if name == "auc" else min(known))
    text = f"{value:.1%}" if name == "error" else f"{value:.4f}"
    return f"[bold]{text} *[/]" if best else f"{text}  "


def _sent(result: Result) -> str:
    if result.method == "SOLO":
        return "nothing"
    return f"{amount(result.bytes)}{' rows' if result.method == 'ALL-IN' else ''}"
