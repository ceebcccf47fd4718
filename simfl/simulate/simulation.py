"""One table played as several parties: who has which rows, what is held out, and the record of the run.

Every party holds out a quarter of its own rows, so that its gain can be measured on rows like its own. All held-out
rows together are what the methods are compared on.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace
from sklearn.model_selection import train_test_split

from simfl.arrays import AnyArray
from simfl.data.files import Dataset
from simfl.errors import DataError
from simfl.federation import Preparation
from simfl.party import Party
from simfl.report import evaluation
from simfl.report.assemble import FinishedTraining
from simfl.report.evaluation import HeldOut
from simfl.report.record import Curve, PartyFacts, RunRecord, Score, time_of
from simfl.simulate.comparison import Comparison, Result

TEST_SHARE = 0.25


@dataclass(frozen=True)
class Simulation:
    """The parties with their training rows, and the rows that are held out."""

    parties: list[Party]
    held_out: HeldOut
    own_rows: dict[str, tuple[Any, AnyArray]]  # what each party trains on, as it was read

    def party_facts(self) -> list[PartyFacts]:
        """The parties as the record lists them."""
        return [
            PartyFacts(name=p.name, n_rows=len(p.rows.y), n_held_out=int(self.held_out.of(p.name).sum()))
            for p in self.parties
        ]

    def record(self, found: Comparison, *, title: str, command: str | None, began: float) -> RunRecord:
        """Everything that is known after the methods were compared. `began` is a time of `time.time`."""
        model, ready = found.simfl, found.ready
        known = FinishedTraining(title, ready.about, found.params, model, ready.transport.traffic).record()
        alone = {party: m for (method, party), m in found.models.items() if method == "SOLO" and party is not None}
        return replace(
            known,
            command=command,
            started=time_of(began),
            seconds=time.time() - began,
            parties=self.party_facts(),
            gains=evaluation.gains(alone, model, self.held_out, self.own_rows),
            scores=[score for result in found.results for score in _scores(result)],
            curves=self._curves(found.models),
            roc=evaluation.roc(found.models, self.held_out),
            calibration=evaluation.calibration(found.models, self.held_out),
            similarity=known.similarity and replace(known.similarity, uses=_uses(ready)),
            importance=evaluation.importance(model, self.held_out.X),
        )

    def _curves(self, models: evaluation.Models) -> list[Curve]:
        """Every model on everybody's held-out rows; on a party's own its model, and the shared ones adjusted to it."""
        found = []
        for (method, party), model in models.items():
            found += evaluation.curves(method, party, model, self.held_out, [party, None] if party else [None])
            if method in ("SimFL", "ALL-IN"):
                for name, own in self.own_rows.items():
                    found += evaluation.curves(method, None, model.adjusted(*own), self.held_out, [name])
        return found


def set_up(data: Dataset, parts: Mapping[str, AnyArray], seed: int, *, stratify: bool) -> Simulation:
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
    return Simulation(parties, HeldOut(X, y, np.array(owners)), own)


def _hold_out(y: AnyArray, rows: AnyArray, seed: int, *, stratify: bool) -> tuple[AnyArray, AnyArray]:
    _, counts = np.unique(y[rows].astype(str), return_counts=True)
    classes = y[rows].astype(str) if stratify and counts.min() >= 4 and len(counts) <= len(rows) * TEST_SHARE else None
    train, test = train_test_split(rows, test_size=TEST_SHARE, random_state=seed, stratify=classes)
    return np.sort(train), np.sort(test)


def _scores(result: Result) -> list[Score]:
    return [
        Score(method=result.method, party=result.party, rows=None, metric=metric, value=value)
        for metric in ("logloss", "error", "auc", "rmse")
        if (value := getattr(result, metric)) is not None
    ]


def _uses(ready: Preparation) -> dict[str, list[int]]:
    """How many rows were found 0, 1, 2-3, 4-7, ... times. Only a simulation knows: it has all rows in one place."""
    counts: dict[str, AnyArray] = {}
    for session in ready.sessions:
        for other, found in session.similar.uses().items():
            counts[other] = counts.get(other, 0) + found
    return {party: np.bincount(np.frexp(n.astype(np.float64))[1]).tolist() for party, n in counts.items()}
