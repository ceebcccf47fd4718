"""One table played as several parties: who has which rows, what is held out, and the record of the run.

Every party holds out a quarter of its own rows, so that its gain can be measured on rows like its own. All held-out
rows together are what the methods are compared on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace
from sklearn.model_selection import train_test_split

from simfl.arrays import AnyArray, Floats
from simfl.data.files import Dataset
from simfl.errors import DataError
from simfl.model import Model
from simfl.party import Party
from simfl.report import evaluation
from simfl.report.assemble import FinishedTraining
from simfl.report.evaluation import HeldOut, Staged
from simfl.report.record import Curve, Gain, PartyFacts, RunRecord, Score, time_of
from simfl.simulate.comparison import Comparison, Result
from simfl.simulate.splits import mean_gains, mean_results, mean_scores

TEST_SHARE = 0.25


@dataclass(frozen=True)
class Measured:
    """Scores on everybody's held-out rows and on each party's own, and gains over being alone."""

    results: list[Result]
    own: list[Score]
    gains: list[Gain]
    n_splits: int = 1

    @classmethod
    def over(cls, splits: Sequence[Measured]) -> Measured:
        """The means over several splits."""
        return cls(
            mean_results([split.results for split in splits]),
            mean_scores([split.own for split in splits]),
            mean_gains([split.gains for split in splits], TEST_SHARE),
            len(splits),
        )

    def own_gains(self) -> list[Gain]:
        """Every party's gain in the main metric on its own rows, with the model adjusted to it."""
        return [gain for gain in self.gains if gain.adjusted and gain.metric == self.own[0].metric]


@dataclass(frozen=True)
class Simulation:
    """The parties with their training rows, and the rows that are held out."""

    parties: list[Party]
    held_out: HeldOut
    own_rows: dict[str, tuple[Any, AnyArray, Floats | None]]  # what each party trains on, as it was read

    def party_facts(self) -> list[PartyFacts]:
        """The parties as the record lists them."""
        return [
            PartyFacts(name=p.name, n_rows=len(p.rows.y), n_held_out=int(self.held_out.of(p.name).sum()))
            for p in self.parties
        ]

    def measured(self, found: Comparison, tell: Callable[[str], None] = lambda doing: None) -> Measured:
        """What every method is worth: to each party on its own held-out rows, and on everybody's.

        `tell` gets what comes next.
        """
        held_out, own = self._read_by(found.simfl)
        alone = {party: m for (method, party), m in found.models.items() if method == "SOLO" and party is not None}
        gains = evaluation.gains(alone, found.simfl, held_out, own)
        at_home = {}
        for name, rows in self.own_rows.items():
            tell(f"SimFL, continued at {name}")
            at_home[name] = found.simfl.continued(*rows)
        gains += evaluation.continued_gains(alone, at_home, held_out)
        return Measured(found.results, evaluation.own_scores(found.models, held_out, own), gains)

    def record(
        self,
        found: Comparison,
        measured: Measured,
        *,
        title: str,
        began: float,
        tell: Callable[[str], None] = lambda doing: None,
    ) -> RunRecord:
        """Everything that is known after the methods were compared. `began` is a time of `time.time`.

        What was measured can be over several splits, of which this is one. `tell` gets what comes next.
        """
        model, ready = found.simfl, found.ready
        known = FinishedTraining(title, ready.about, found.params, model, ready.transport.traffic).record()
        held_out, own = self._read_by(model)
        tell("learning curves")
        curves = _curves(found.models, held_out, own)
        tell("important columns")
        return replace(
            known,
            importance=evaluation.importance(model, held_out.X, held_out.weight),
            started=time_of(began),
            seconds=time.time() - began,
            parties=self.party_facts(),
            n_splits=measured.n_splits,
            gains=measured.gains,
            scores=[*(score for result in measured.results for score in _scores(result)), *measured.own],
            curves=curves,
            roc=evaluation.roc(found.models, held_out),
            calibration=evaluation.calibration(found.models, held_out),
        )

    def _read_by(self, model: Model) -> tuple[HeldOut, evaluation.OwnRows]:
        """The rows as XGBoost's matrices, read once for all models."""
        own = {name: (model.matrix(X), *more) for name, (X, *more) in self.own_rows.items()}
        return self.held_out.read_by(model), own


def _curves(models: evaluation.Models, held_out: HeldOut, own: evaluation.OwnRows) -> list[Curve]:
    """Every model on everybody's held-out rows; on a party's own its model, and the shared ones adjusted to it."""
    found = []
    for (method, party), model in models.items():
        staged = Staged.of(model, held_out)
        found += staged.curves(method, party, [party, None] if party else [None])
        if method in ("SimFL", "ALL-IN"):
            for name, rows in own.items():
                found += staged.own_curve(method, name, rows)
    return found


def set_up(data: Dataset, parts: Mapping[str, AnyArray], seed: int, *, stratify: bool) -> Simulation:
    """Give every party its rows, less the quarter that it holds out."""
    parties, aside, owners, own = [], [], [], {}
    for name, rows in parts.items():
        if len(rows) < 4:
            raise DataError(f"Party {name!r} has {len(rows)} rows: too few to hold out a quarter of them.")
        train, test = _hold_out(data.y, rows, seed, stratify=stratify)
        test = _counting(test, data.weight, name)
        own[name] = data.rows(train)
        parties.append(Party(name, *own[name], schema=data.schema))
        aside.append(test)
        owners += [name] * len(test)
    X, y, weight = data.rows(np.concatenate(aside))
    return Simulation(parties, HeldOut(X, y, np.array(owners), weight), own)


def _counting(rows: AnyArray, weight: Floats | None, name: str) -> AnyArray:
    """The rows that count: nothing can be measured on those of weight zero."""
    found = rows if weight is None else rows[weight[rows] > 0]
    if not len(found):
        raise DataError(f"Party {name!r} holds out rows of weight zero only: nothing can be measured on them.")
    return found


def _hold_out(y: AnyArray, rows: AnyArray, seed: int, *, stratify: bool) -> tuple[AnyArray, AnyArray]:
    classes = y[rows].astype(str) if stratify else None
    if classes is not None:
        _, counts = np.unique(classes, return_counts=True)
        classes = classes if counts.min() >= 4 and len(counts) <= len(rows) * TEST_SHARE else None
    train, test = train_test_split(rows, test_size=TEST_SHARE, random_state=seed, stratify=classes)
    return np.sort(train), np.sort(test)


def _scores(result: Result) -> list[Score]:
    return [
        Score(method=result.method, party=result.party, rows=None, metric=metric, value=value)
        for metric, value in result.scores.items()
    ]
