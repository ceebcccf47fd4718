"""`simfl check`: does a party's table fit the study, and what will leave the party? Nothing is sent anywhere.

A rehearsal plays the study with parties made of this party's own rows, and looks at the messages.
"""

import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from scipy import sparse

from simfl import hub
from simfl import messages as msg
from simfl.arrays import AnyArray
from simfl.data.quality import look_at, look_at_weights
from simfl.deploy.party_file import PartyFile, read_bytes, read_party_file
from simfl.deploy.study import Study, approved_study, digest_of, ledger_of
from simfl.deploy.tables import open_party
from simfl.errors import SimFLError
from simfl.params import SimilarParams, guarded_columns
from simfl.party import Party, Session
from simfl.privacy import boxes
from simfl.privacy.guarantee import guarantee
from simfl.privacy.ledger import event_of
from simfl.privacy.observed import Protection, protections
from simfl.training.losses import labels_of
from simfl.transport.local import LocalTransport

REHEARSED_ROWS, REHEARSED_TREES = 2000, 4


@dataclass(frozen=True)
class Rehearsal:
    """A short training among parties made of this party's rows: the protections that they applied, and bytes."""

    rows: int
    trees: int
    protections: list[Protection]
    sent: dict[str, int]  # bytes that left the first of them, by kind of message


@dataclass(frozen=True)
class Checked:
    """What `check` found: the table's size, notes, what can leave the party, and the rehearsal."""

    digest: str  # of the study file, for people to compare
    refusals: list[str]  # why this party would not take part in it; empty: it would
    rows: int
    columns: int
    classes: dict[str, int]
    weights: str  # of the rows, in words: for this party's eyes only; empty: all count alike
    notes: list[str]
    findings: list[str]  # what is worth a look in the table, with values: for this party's eyes only
    leaves: list[tuple[str, str]]
    rehearsed: Rehearsal | None  # None: too few rows
    epsilon: str  # what the study would spend, and what is left


def check(study_path: Path, party_path: Path) -> Checked:
    """Check a party file and its table against the study."""
    study, party, notes = open_party(study_path, party_path)
    classes = Counter(map(str, party.rows.y.tolist())) if _classifies(study) else {}
    rows, columns = party.rows.X.shape
    sent, own = read_bytes(study_path), read_party_file(party_path)
    return Checked(
        digest_of(sent),
        refusals(own, sent),
        rows,
        columns,
        dict(classes),
        _weights(study, party),
        notes,
        findings(study, party),
        what_leaves(),
        rehearse(study, party),
        spending(study, own),
    )


def findings(study: Study, party: Party) -> list[str]:
    """What is worth a look in the table; nothing of a file whose columns have no names."""
    if party.schema is None or sparse.issparse(party.rows.X):
        return []
    of_weights = [] if party.rows.weight is None else look_at_weights(party.rows.weight)
    return [*look_at(party.rows.X, party.rows.y, party.schema, classes=_classifies(study)), *of_weights]


def refusals(own: PartyFile, sent: bytes) -> list[str]:
    """Why a party would not take part in this study."""
    try:
        event = event_of(approved_study(own, sent).params())
        if event:
            ledger_of(own).check("", digest_of(sent), event)  # as a new run
    except SimFLError as error:
        return [str(error)]
    return []


def spending(study: Study, own: PartyFile) -> str:
    """What the study would spend of this table's privacy, what is left, and what it promises; empty without epsilon."""
    event, ledger = event_of(study.params()), ledger_of(own)
    if event is None:
        return ""
    total, delta = ledger.limit.epsilon, ledger.limit.delta
    entries = ledger.entries()
    text = f"The study would spend epsilon {ledger.epsilon_of([event]):.4g} (delta {delta:g}). "
    text += f"Spent so far: {ledger.spent():.4g} in {len(entries)} runs ({own.ledger}). "
    if total is None:
        text += (
            "No limit is set, and every run spends as much again: epsilon_total in [require] of party.toml sets one."
        )
    else:
        text += f"Of epsilon_total = {total:g}, one more study may have up to {ledger.left():.4g}."
    return f"{text}\nWhat it promises: {guarantee(study.params(), len(study.parties))}"


def what_leaves() -> list[tuple[str, str]]:
    """Every kind of reply and what it contains, from `messages.py`."""
    return [(kind.__name__, (kind.__doc__ or "").split("\n")[0].split(": ", 1)[-1]) for kind in msg.Reply.__args__]


def rehearse(study: Study, party: Party) -> Rehearsal | None:
    """Play the study with parties made of this party's rows, masked as between machines."""
    params = study.params()
    drawn = _draw_rows(party.rows.y, classes=_classifies(study))
    n = len(study.parties)
    if n < 2 or len(drawn) < 10 * n:
        return None
    parties = [party.part(name, np.sort(drawn[place::n])) for place, name in enumerate(study.parties)]
    transport = LocalTransport([Session(one) for one in parties])
    masked, trees = params.masked is not False, min(params.n_trees, REHEARSED_TREES)
    params = msgspec.structs.replace(params, masked=masked, n_trees=trees, random_state=params.random_state or 0)
    if isinstance(params, SimilarParams):
        params = msgspec.structs.replace(params, rematch=min(params.rematch, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the protections below say the same
        prepared = hub.prepare(transport, params)
        if params.recipe == "joint":
            receiver = msg.SignedKey(key=boxes.public_half(boxes.new_key())) if masked else None
            hub.train_together(transport, prepared, params, hub.JointOrder(receiver))
        else:
            hub.train(transport, prepared, params)
    sent = dict(transport.traffic.sent[study.parties[0]])
    guarded = guarded_columns(params, party.rows.X.shape[1])
    return Rehearsal(len(drawn), trees, protections(transport.traffic.observed(), guarded), sent)


def _weights(study: Study, party: Party) -> str:
    """Which column says how much a row counts, and what is in it."""
    weight = party.rows.weight
    if weight is None:
        return ""
    return f"column {study.weight!r}, from {weight.min():g} to {weight.max():g}, {party.rows.total_weight:g} in all"


def _classifies(study: Study) -> bool:
    return labels_of(study.params().objective) == "classes"


def _draw_rows(y: AnyArray, *, classes: bool) -> AnyArray:
    """Rows to rehearse with: all classes in turn; none where there is only one class."""
    order = np.random.default_rng(0).permutation(len(y))
    if not classes:
        return order[:REHEARSED_ROWS]
    labels = y[order].astype(str)
    found = np.unique(labels)
    if len(found) < 2:
        return order[:0]
    place = np.empty(len(order))
    for label in found:
        rows = np.flatnonzero(labels == label)
        place[rows] = np.arange(len(rows)) / len(rows)  # each class is spread over all places
    return order[np.argsort(place, kind="stable")][:REHEARSED_ROWS]
