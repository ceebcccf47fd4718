"""SOLO, TFL, SimFL, SimFL with trees grown together, and ALL-IN on the same parties and held-out rows.

Every method stops by the same rule (`baselines.STOPPING`): on validation rows, which are training rows set aside.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from scipy import sparse

from simfl import baselines
from simfl.callbacks import Callback, default_callbacks
from simfl.federation import Preparation, train, train_and_keep
from simfl.model import Model
from simfl.params import Params, of_recipe, settings, train_params, without_noise
from simfl.party import Party
from simfl.report.evaluation import HeldOut, scores
from simfl.report.words import JOINT, model_name


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One method's scores. `party` is None where all parties share the model."""

    method: str
    party: str | None
    seconds: float
    bytes: int
    rounds: float  # that it kept; over several splits the mean
    error: float | None
    logloss: float | None
    auc: float | None
    rmse: float | None = None
    other: dict[str, float | None] = {}  # by metric, of other objectives

    @property
    def scores(self) -> dict[str, float]:
        """By metric: those that are known."""
        known = {name: getattr(self, name) for name in ("logloss", "error", "auc", "rmse")} | self.other
        return {name: value for name, value in known.items() if value is not None}


@dataclass(frozen=True)
class Comparison:
    """The methods side by side: results, models by method and party (None: shared), and SimFL's preparation."""

    results: list[Result]
    models: dict[tuple[str, str | None], Model]
    ready: Preparation
    params: Params

    @property
    def settings(self) -> dict[str, Any]:
        """All parameters of both stages."""
        return settings(self.ready.about.params) | settings(self.params)

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
    others = _without_noise(params)
    params = params if params.get("epsilon") else others  # with noise no metrics are sent: it cannot stop by them
    splits, classes = baselines.check(parties, others)
    ready: list[Preparation] = []

    def train_simfl() -> Model:
        shown = default_callbacks() if callbacks is None else callbacks
        model, prepared = train_and_keep(parties, shown, params)
        ready.append(prepared)
        return model

    joint = _joint_params(params)
    trainings: dict[tuple[str, str | None], Callable[[], Model]] = {
        **{("SOLO", p): partial(baselines.xgboost_model, {p: split}, classes, others) for p, split in splits.items()},
        ("TFL", None): partial(baselines.tfl, parties, callbacks=[], **others),
        ("SimFL", None): train_simfl,
        **({(JOINT, None): partial(train, parties, callbacks=[], **joint)} if joint else {}),
        ("ALL-IN", None): partial(baselines.all_in, parties, **others),
    }
    results, models = [], {}
    for (method, party), training in trainings.items():
        tell(model_name(method, party))
        begun = time.perf_counter()
        model = models[method, party] = training()
        seconds, held_out = time.perf_counter() - begun, held_out.read_by(model)
        sent = sum(_size(p.rows.X) for p in parties) if method == "ALL-IN" else model.n_bytes
        known: dict[str, Any] = {"seconds": seconds, "bytes": sent, "rounds": model.n_trees}
        results.append(Result(method=method, party=party, **known, **_by_field(scores(model, held_out))))
    return Comparison(results, models, ready[0], train_params(**params))


def _by_field(found: dict[str, float | None]) -> dict[str, Any]:
    """The scores as the fields of a `Result`."""
    other = {name: value for name, value in found.items() if name not in Result.__struct_fields__}
    of_classes = dict.fromkeys(("error", "logloss", "auc"))
    return of_classes | {name: value for name, value in found.items() if name not in other} | {"other": other}


def _without_noise(params: dict[str, Any]) -> dict[str, Any]:
    """What the methods beside SimFL are trained with: they stop by validation rows, and have no noise."""
    return baselines.STOPPING | without_noise(params)


def _joint_params(params: dict[str, Any]) -> dict[str, Any] | None:
    """The same training with trees grown together; None where that is SimFL's own recipe, or does not apply."""
    if params.get("recipe") == "joint":
        return None
    return of_recipe("joint", {name: value for name, value in params.items() if name != "eval_metric"})


def _size(X: Any) -> int:
    return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes) if sparse.issparse(X) else int(X.nbytes)
