"""The record of a training between machines: what the hub knows of it, and what a party adds from its own rows.

The hub has no rows, so its record has no gains. Each party measures its own gain on the rows that it set aside, and
nobody else is told.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import xgboost as xgb

from simfl import baselines
from simfl.data.schema import xgboost_types
from simfl.deploy.study import Study
from simfl.hub import Training
from simfl.hub.journal import Answered, Journal, missed_trees
from simfl.messages import Greeting
from simfl.model import Model
from simfl.params import guarded_columns
from simfl.party import Party
from simfl.privacy.observed import protections
from simfl.report import evaluation, record
from simfl.report.evaluation import HeldOut
from simfl.report.record import Member, RunRecord
from simfl.transport.base import Traffic


def of_hub(
    training: Training,
    model: Model,
    traffic: Traffic,
    journal: Journal,
    study: Study,
    greetings: Mapping[str, Greeting],
    begun: float,
    *,
    before: Mapping[str, int],
    started_anew: bool,
) -> RunRecord:
    """All that the hub knows.

    `begun`: when the hub was started, by the clock of `time.perf_counter`. `before`: what the messages of stage 1
    showed, if that was before this start.
    """
    prepared = training.prepared
    seconds = prepared.seconds + sum(r.seconds for r in training.history)
    missed = missed_trees(journal.entries)
    sizes = zip(prepared.parties, prepared.n_rows, prepared.n_validation_rows, strict=True)
    return RunRecord(
        title=study.name,
        status="finished",
        started=datetime.fromtimestamp(time.time() - seconds, UTC).isoformat(timespec="seconds"),
        seconds=seconds,
        objective=training.params.objective,
        n_trees=model.n_trees,
        parties=[
            Member(name=name, n_rows=n, n_held_out=aside, dropped=_missed(missed.get(name, [])))
            for name, n, aside in sizes
        ],
        metric=evaluation.main_metric(model),
        history=training.history,
        similarity=record.similarity(prepared, {}),
        traffic=traffic.since(None),
        timeline=record.timeline(traffic.hops, begun),
        protections=protections(
            traffic.observed() + Counter(before), guarded_columns(prepared.params, prepared.n_features)
        ),
        importance=evaluation.importance(model, None),
        settings=record.settings(prepared.params, training.params),
        versions=record.versions() | {f"at {party}": _installed(reply) for party, reply in greetings.items()},
        notes=[NO_GAINS, *[STARTED_ANEW] * started_anew],
    )


def _missed(trees: Sequence[int]) -> str | None:
    """Which trees a party had no part in, in words."""
    if not trees:
        return None
    return f"had no part in {len(trees)} trees, from number {trees[0] + 1} to {trees[-1] + 1}"


def _installed(reply: Greeting) -> str:
    return ", ".join(f"{name} {number}" for name, number in reply.versions.items())


NO_GAINS = "The hub has no rows: what each party gains over being alone is in the report at that party."
STARTED_ANEW = "The hub was started anew during this training: traffic and time line begin with its last start."


def for_party(known: RunRecord, party: str) -> RunRecord:
    """What a party may be told of it: of the others, no more than it knows already."""
    alike = known.similarity
    if alike is not None:
        own = {name: value for name, value in alike.equal_hashes.items() if name == party}
        uses = {name: value for name, value in alike.most_uses.items() if name == party}
        alike = msgspec.structs.replace(alike, equal_hashes=own, most_uses=uses)
    return msgspec.structs.replace(
        known,
        similarity=alike,
        traffic={name: value for name, value in known.traffic.items() if name == party},
        timeline=[hop for hop in known.timeline if hop.party == party],
        versions={n: v for n, v in known.versions.items() if not n.startswith("at ") or n == f"at {party}"},
    )


def of_party(known: RunRecord, party: Party, model: Model, study: Study, journal: Journal | None) -> RunRecord:
    """The same with what a party can tell: what it has really sent, and its own gain over being alone."""
    changes: dict[str, Any] = {"title": f"{known.title}, as {party.name} sees it"}
    answered = list(journal.of(Answered)) if journal else []
    if answered:
        guarded = guarded_columns(study.params()[0], party.rows.X.shape[1])
        changes["protections"] = protections(Counter(fact for entry in answered for fact in entry.shows), guarded)
        changes["traffic"] = {party.name: _traffic(answered)}
        changes["timeline"] = []
    aside = party.validation_rows
    if aside is None or not len(aside.y):
        note = "No rows were set aside here (validation_fraction), so that the gain over being alone was not measured."
        return msgspec.structs.replace(known, **changes, notes=[note, *(n for n in known.notes if n != NO_GAINS)])
    changes["notes"] = [note for note in known.notes if note != NO_GAINS]
    return msgspec.structs.replace(known, **changes | _measured(party, model, study))


def _traffic(answered: Sequence[Answered]) -> dict[str, dict[str, int]]:
    received: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    for entry in answered:
        received[entry.question] += entry.bytes_in
        sent[entry.answer] += entry.bytes_out
    return {"received": dict(received), "sent": dict(sent)}


def _measured(party: Party, model: Model, study: Study) -> dict[str, Any]:
    """The party's own model against the shared one, on the rows that it set aside."""
    aside = party.validation_rows
    if aside is None:
        return {}
    classes = None if model.classes is None else model.classes.tolist()
    alone = baselines.xgboost_model([party], classes, study.parameters | {"n_jobs": party.n_jobs})
    names = {"feature_names": model.feature_names, "nthread": party.n_jobs, **xgboost_types(model.schema)}
    X, own_X = (xgb.DMatrix(rows.X, **names) for rows in (aside, party.training_rows))
    held_out = HeldOut(X, aside.y, np.full(len(aside.y), party.name))
    own = {party.name: (own_X, party.training_rows.y)}
    found = [("SimFL", None, model), ("SOLO", party.name, alone)]
    return {
        "gains": [g for g in evaluation.gains({party.name: alone}, model, held_out, own) if g.rows == party.name],
        "curves": [c for name, whose, m in found for c in evaluation.curves(name, whose, m, held_out, [party.name])],
        "roc": [p for name, whose, m in found for p in evaluation.roc(name, whose, m, held_out)],
        "calibration": [p for name, whose, m in found for p in evaluation.calibration(name, whose, m, held_out)],
        "importance": evaluation.importance(model, X),
    }
