"""Puts the record of a finished training together, from what the hub knows and what a party adds from its own rows.

The hub has no rows, so its record has no gains. Each party measures its own gain on the rows that it set aside, and
sends it to nobody.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import xgboost as xgb
from msgspec.structs import replace

from simfl import baselines
from simfl.callbacks import TreeRecord
from simfl.data.schema import xgboost_types
from simfl.federation import account
from simfl.hub import Prepared
from simfl.messages import Greeting
from simfl.model import Model
from simfl.params import Params, guarded_columns, settings, train_params
from simfl.party import Rows, Session
from simfl.party.journal import Answered
from simfl.privacy.guarantee import guarantee
from simfl.privacy.observed import protections
from simfl.report import evaluation
from simfl.report.evaluation import HeldOut, Staged
from simfl.report.record import Exchange, PartyFacts, RunRecord, Similarity, time_of, versions
from simfl.training.losses import labels_of, loss_of
from simfl.transport.base import Hop, Traffic

MOST_EXCHANGES = 5000  # of a timeline: a record stays small
NO_GAINS = "The hub has no rows: what each party gains over being alone is in the report at that party."
RESTARTED = "The hub was restarted during this training: traffic is counted from its last start."
ALONE = "Alone: this party's own model, with as many rounds as a fifth of its training rows found best."
STOPPED_HERE = "The shared model stopped by the rows that its gain is measured on, which flatters it a little."
WEIGHTED = "Rows count by their weight, those that measure as those that train."
NOTHING_ASIDE = "No rows were set aside here (validation_fraction), so the gain over being alone was not measured."
NOT_TOLD = "Bytes, seconds and absent parties of the others are not known here: they stand as none. Ask the hub why."


@dataclass(frozen=True)
class FinishedTraining:
    """What the hub has in hand after a training: every record begins with it."""

    title: str
    prepared: Prepared
    params: Params
    model: Model | None  # None: the hub does not get to see it
    traffic: Traffic
    history: Sequence[TreeRecord] = ()  # where there is no model

    @property
    def rounds(self) -> list[TreeRecord]:
        """What is known of every round."""
        return self.model.history if self.model else list(self.history)

    def record(self) -> RunRecord:
        """All that is known without rows."""
        prepared, history = self.prepared, self.rounds
        seconds = prepared.seconds + sum(r.seconds for r in history)
        sizes = zip(prepared.parties, prepared.n_rows, prepared.n_validation_rows, strict=True)
        return RunRecord(
            title=self.title,
            status="finished",
            started=time_of(time.time() - seconds),
            seconds=seconds,
            objective=self.params.objective,
            n_trees=self.model.n_trees if self.model else len(history),
            parties=[PartyFacts(name=name, n_rows=n, n_held_out=aside) for name, n, aside in sizes],
            metric=_headline(self.params),
            history=history,
            similarity=_similarity(prepared),
            traffic=self.traffic.since(None),
            timeline=_timeline(self.traffic.hops),
            protections=protections(self.traffic.observed(), guarded_columns(prepared.params, prepared.n_features)),
            guarantee=guarantee(self.params, len(prepared.parties)),
            importance=evaluation.importance(self.model, None) if self.model else [],
            settings=settings(self.params),
            versions=versions(),
        )


def _headline(params: Params) -> str:
    """The metric that the report speaks of."""
    return "logloss" if labels_of(params.objective) == "classes" else loss_of(params).metrics[0]


def completed(known: RunRecord, model: Model, *, vouched: bool = False) -> RunRecord:
    """The record of a hub that did not get to see the model, with what only the model's owners know.

    `vouched`: the model is this party's own, or signed by one; what the hub says of its trees does not count then.
    """
    if not model.history or (not vouched and any(record.train for record in known.history)):
        return known
    history, told = account(model.history, known.history), len(known.history)
    said = [f"The hub's record ends after {told} of {len(history)} rounds. {NOT_TOLD}"] if told < len(history) else []
    importance, notes = evaluation.importance(model, None), [*known.notes, *said]
    return replace(known, n_trees=model.n_trees, history=history, importance=importance, notes=notes)


def completed_history(data: bytes, model: Model, *, vouched: bool = False) -> bytes:
    """The same for history.json."""
    history = msgspec.json.decode(data)
    rounds = msgspec.convert(history["trees"], list[TreeRecord])
    if model.history and (vouched or not any(record.train for record in rounds)):
        history["trees"] = account(model.history, rounds)
    return msgspec.json.format(msgspec.json.encode(history))


def _similarity(prepared: Prepared) -> Similarity | None:
    """What stage 1 found, as far as it may be shown: averages and counts."""
    if not prepared.equal_hashes:
        return None
    return Similarity(
        n_hashes=prepared.n_hashes,
        bucket_width=prepared.bucket_width,
        n_neighbors=prepared.params.n_neighbors or 0,
        equal_hashes=prepared.equal_hashes,
        most_uses=prepared.most_uses,
    )


def _timeline(hops: Sequence[Hop]) -> list[Exchange]:
    """Who did what when, in seconds since the first question."""
    begun = min((hop.begun for hop in hops), default=0.0)
    return [
        Exchange(party=h.party, kind=h.kind, begin=round(h.begun - begun, 4), seconds=round(h.seconds, 4))
        for h in hops[:MOST_EXCHANGES]
    ]


def at_hub(
    training: FinishedTraining,
    missed: Mapping[str, Sequence[int]],
    greetings: Mapping[str, Greeting],
    *,
    restarted: bool,
) -> RunRecord:
    """The record that the hub keeps. `missed`: the trees that a party had no part in."""
    known = training.record()
    parties = [replace(party, dropped=_missed(missed.get(party.name, []))) for party in known.parties]
    installed = {
        f"at {party}": ", ".join(f"{name} {number}" for name, number in greeting.versions.items())
        for party, greeting in greetings.items()
    }
    notes = [NO_GAINS, *[RESTARTED] * restarted]
    return replace(known, parties=parties, versions=known.versions | installed, notes=notes)


def _missed(trees: Sequence[int]) -> str | None:
    return f"had no part in {len(trees)} trees, from number {trees[0] + 1} to {trees[-1] + 1}" if trees else None


def for_party(known: RunRecord, party: str) -> RunRecord:
    """The part of the hub's record that this party may see: of the others, no more than it knows already."""
    alike = known.similarity
    if alike is not None:
        alike = replace(alike, equal_hashes=_only(party, alike.equal_hashes), most_uses=_only(party, alike.most_uses))
    return replace(
        known,
        similarity=alike,
        traffic=_only(party, known.traffic),
        timeline=[exchange for exchange in known.timeline if exchange.party == party],
        versions={n: v for n, v in known.versions.items() if not n.startswith("at ") or n == f"at {party}"},
    )


def _only(party: str, by_party: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in by_party.items() if name == party}


def as_sent(known: RunRecord, session: Session, parameters: dict[str, Any], answered: Sequence[Answered]) -> RunRecord:
    """The hub's record, with what the party's own journal says of protections and bytes in the place of its word.

    `parameters` are those of the study; `answered` is what the party's journal says it has sent.
    """
    notes = [note for note in known.notes if note != NO_GAINS]
    record = replace(known, title=f"{known.title}, as {session.name} sees it", notes=notes)
    if not answered:
        return record
    guarded = guarded_columns(train_params(**parameters), session.split.n_features)
    shown = Counter(fact for entry in answered for fact in entry.shows)
    traffic = {session.name: _traffic(answered)}
    return replace(record, protections=protections(shown, guarded), traffic=traffic, timeline=[])


def with_own_gain(known: RunRecord, session: Session, model: Model, parameters: dict[str, Any]) -> RunRecord:
    """The record with the party's own gain over being alone, where it set rows aside."""
    record, notes, aside = known, known.notes, session.split.validation and session.split.validation.counting
    if aside is None or not len(aside.y):
        return replace(record, notes=[NOTHING_ASIDE, *notes])
    if aside.weight is not None:
        notes = [WEIGHTED, *notes]
    classes = None if model.classes is None else model.classes.tolist()
    at_home = parameters | {"n_jobs": session.n_jobs}
    alone = baselines.solo_stopped(session.split, session.name, classes, at_home)
    if known.settings.get("early_stopping_rounds"):
        notes = [STOPPED_HERE, *notes]
    record = replace(record, notes=[ALONE, *notes])
    return _with_gains(record, session, aside, {("SimFL", None): model, ("SOLO", session.name): alone})


def _traffic(answered: Sequence[Answered]) -> dict[str, dict[str, int]]:
    received, sent = Counter[str](), Counter[str]()
    for entry in answered:
        received[entry.question] += entry.bytes_in
        sent[entry.answer] += entry.bytes_out
    return {"received": dict(received), "sent": dict(sent)}


def _with_gains(record: RunRecord, session: Session, aside: Rows, models: evaluation.Models) -> RunRecord:
    """The party's own model against the shared one, on the rows that the party set aside."""
    name, trained, shared = session.name, session.split.training, models["SimFL", None]
    columns = {"feature_names": shared.feature_names, "nthread": session.n_jobs, **xgboost_types(shared.schema)}
    X, own_X = (xgb.DMatrix(rows.X, **columns) for rows in (aside, trained))
    held_out, own = HeldOut(X, aside.y, np.full(len(aside.y), name), aside.weight), (own_X, trained.y, trained.weight)
    gains = evaluation.gains({name: models["SOLO", name]}, shared, held_out, {name: own})
    return replace(
        record,
        gains=[gain for gain in gains if gain.rows == name],
        curves=[
            *Staged.of(shared, held_out).own_curve("SimFL", name, own),
            *Staged.of(models["SOLO", name], held_out).curves("SOLO", name, [name]),
        ],
        roc=evaluation.roc(models, held_out),
        calibration=evaluation.calibration(models, held_out),
        importance=evaluation.importance(shared, X, aside.weight),
    )
