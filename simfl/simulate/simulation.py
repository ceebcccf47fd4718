"""One table played as several parties: who has which rows, what is held out, and the record of how it went.

Every party holds out a quarter of its own rows, so that its gain can be told on rows like its own; all held-out rows
together are what the methods are compared on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split

from simfl.arrays import AnyArray
from simfl.callbacks import Callback
from simfl.data.files import Dataset
from simfl.errors import DataError
from simfl.federation import Preparation
from simfl.params import guarded_columns
from simfl.party import Party
from simfl.privacy.observed import protections
from simfl.report import evaluation, record
from simfl.report.evaluation import HeldOut
from simfl.report.record import Curve, Member, RunRecord, Score, Similarity
from simfl.simulate.comparison import Comparison, compare

TEST_SHARE = 0.25


@dataclass(frozen=True)
class Stage:
    """The parties with their training rows, and the rows that are held out."""

    parties: list[Party]
    held_out: HeldOut
    own_rows: dict[str, tuple[Any, AnyArray]]  # what each party trains on, as it was read


def set_up(data: Dataset, parts: Mapping[str, AnyArray], seed: int, *, stratify: bool) -> Stage:
    """Give every party its rows, less the quarter that it holds out."""
    parties, aside, owners, own = [], [], [], {}
    for name, rows in parts.items():
        if len(rows) < 4:
            raise DataError(f"Party {name!r} has {len(rows)} rows: too few to hold out a quarter of them.")
        train, test = _hold_out(data.y, rows, seed, stratify=stratify)
        own[name] = data.rows(train)
        parties.append(Party(name, *own[name], schema=data.schema))
        aside.append(test)
        owners += [name] * len(test)
    X, y = data.rows(np.concatenate(aside))
    return Stage(parties, HeldOut(X, y, np.array(owners)), own)


def _hold_out(y: AnyArray, rows: AnyArray, seed: int, *, stratify: bool) -> tuple[AnyArray, AnyArray]:
    _, counts = np.unique(y[rows].astype(str), return_counts=True)
    classes = y[rows].astype(str) if stratify and counts.min() >= 4 and len(counts) <= len(rows) * TEST_SHARE else None
    train, test = train_test_split(rows, test_size=TEST_SHARE, random_state=seed, stratify=classes)
    return np.sort(train), np.sort(test)


def play(
    stage: Stage,
    params: dict[str, Any],
    *,
    watch: Callable[[str], None] = lambda method: None,
    callbacks: Sequence[Callback] | None = None,
) -> Comparison:
    """SOLO, TFL, SimFL and ALL-IN on the same rows."""
    return compare(stage.parties, stage.held_out.X, stage.held_out.y, params, watch=watch, callbacks=callbacks)


# --- the record ------------------------------------------------------------------------------------------------------


def record_of(stage: Stage, compared: Comparison, *, title: str, command: str | None, began: float) -> RunRecord:
    """Everything that is known of a simulation. `began` is a time of `time.time`."""
    model, ready, held_out = compared.simfl, compared.ready, stage.held_out
    alone = {party: m for (method, party), m in compared.models.items() if method == "SOLO" and party is not None}
    names: list[str | None] = [party.name for party in stage.parties]
    training = compared.training
    return RunRecord(
        title=title,
        command=command,
        status="finished",
        started=datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds"),
        seconds=time.time() - began,
        objective=training.objective,
        n_trees=model.n_trees,
        metric=evaluation.main_metric(model),
        parties=members(stage),
        gains=evaluation.gains(alone, model, held_out, stage.own_rows),
        scores=_scores(compared, held_out, names),
        history=model.history,
        curves=_curves(stage, compared),
        roc=[p for (method, party), m in compared.models.items() for p in evaluation.roc(method, party, m, held_out)],
        calibration=[
            p
            for (method, party), m in compared.models.items()
            for p in evaluation.calibration(method, party, m, held_out)
        ],
        similarity=similarity(ready),
        traffic=model.traffic,
        timeline=record.timeline(ready.transport.traffic.hops, compared.begun),
        protections=protections(
            ready.transport.traffic.observed(), guarded_columns(ready.about.params, ready.about.n_features)
        ),
        importance=evaluation.importance(model, held_out.X),
        settings=record.settings(ready.about.params, training),
        versions=record.versions(),
    )


def _curves(stage: Stage, compared: Comparison) -> list[Curve]:
    """Every model on everybody's held-out rows; on a party's own its model, and the shared ones adjusted to it."""
    found = []
    for (method, party), model in compared.models.items():
        found += evaluation.curves(method, party, model, stage.held_out, [party, None] if party else [None])
        if method in ("SimFL", "ALL-IN"):
            for name, own in stage.own_rows.items():
                found += evaluation.curves(method, None, model.adjusted(*own), stage.held_out, [name])
    return found


def members(stage: Stage) -> list[Member]:
    """The parties as the record lists them."""
    held_out = stage.held_out
    return [
        Member(name=party.name, n_rows=len(party.rows.y), n_held_out=int(held_out.of(party.name).sum()))
        for party in stage.parties
    ]


def _scores(compared: Comparison, held_out: HeldOut, names: Sequence[str | None]) -> list[Score]:
    found = []
    for result in compared.results:
        for metric in ("logloss", "error", "auc", "rmse"):
            value = getattr(result, metric)
            if value is not None:
                found.append(Score(method=result.method, party=result.party, rows=None, metric=metric, value=value))
    return found


def similarity(ready: Preparation) -> Similarity | None:
    """How alike the similar rows are; here all rows are in one place, so it also knows how often each was found."""
    counts: dict[str, AnyArray] = {}
    for party in ready.parties:
        for other, found in party.found_by().items():
            counts[other] = counts[other] + found if other in counts else found
    uses = {party: np.bincount(np.frexp(n.astype(np.float64))[1]).tolist() for party, n in counts.items()}
    return record.similarity(ready.about, uses)
