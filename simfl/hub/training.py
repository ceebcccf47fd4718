"""Stage 2 at the hub: the loop of a training.

The paper has no hub: its parties reduce among themselves. A star needs no links between parties. What a round does is
in `round.py`. A training survives the loss of parties as long as enough of them are present: it then continues from its
journal with those who are.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec
import numpy as np

from simfl import wire
from simfl.callbacks import Callback, TreeRecord, logger
from simfl.errors import DataError, ParameterError, PartyLost, PrivacyWarning
from simfl.hub.handshake import agree_on_masks
from simfl.hub.journal import Began, Entry, Passed, open_journal
from simfl.hub.labels import Labels, agree_on_labels
from simfl.hub.preparation import Prepared
from simfl.hub.presence import Recovery, welcome_back
from simfl.hub.round import Plan, Rounds, Turn
from simfl.hub.state import Events, State
from simfl.messages import VERSION
from simfl.model.xgboost_document import WarmStart
from simfl.params import Params, SimilarParams, builder_bins, settings, with_numbers
from simfl.privacy.guard import about_two_parties
from simfl.training.losses import settings_of
from simfl.training.schedule import builder_of
from simfl.training.trees import Tree
from simfl.transport.base import Transport


@dataclass(frozen=True)
class Training:
    """What a training leaves behind: the trees and how they came about."""

    prepared: Prepared
    params: Params
    labels: Labels
    rounds: list[list[Tree]]
    history: list[TreeRecord]
    gains: list[Any]
    missed: dict[str, list[int]]  # per party: the rounds that it had no part in
    warm_start: WarmStart | None = None


def train(
    transport: Transport,
    prepared: Prepared,
    params: Params,
    *,
    callbacks: Sequence[Callback] = (),
    recovery: Recovery[Entry] | None = None,
    warm_start: WarmStart | None = None,
) -> Training:
    """Stage 2: grow the trees, one after the other, from nothing or from an earlier model."""
    recovery = recovery or Recovery(open_journal())
    return _Trainer(transport, prepared, _fitted(params, prepared), recovery, warm_start).run(callbacks)


class _Trainer:
    """One training."""

    def __init__(
        self,
        transport: Transport,
        prepared: Prepared,
        params: Params,
        recovery: Recovery[Entry],
        warm_start: WarmStart | None,
    ) -> None:
        self.transport, self.prepared, self.params = transport, prepared, params
        self.recovery, self.warm_start = recovery, warm_start
        self.seed = prepared.seed if params.random_state is None else params.random_state

    def run(self, callbacks: Sequence[Callback]) -> Training:
        """From the first tree (or the first that the journal does not have) to the last."""
        n_trees, parties = self.params.n_trees, self.prepared.parties
        logger.info("training begins: %d trees over %d parties, %s", n_trees, len(parties), self.params.objective)
        _advise(self.transport, self.params)
        state = State(self.prepared.n_features)
        events = Events(self.recovery.journal, state, callbacks, self.transport.traffic)
        plan = self._begin(events)
        for callback in callbacks:
            callback.before_training(parties, self.params)
        try:
            while not self._grow_with_those_present(plan, events):
                pass
        finally:
            for callback in callbacks:
                callback.after_training(state.history)
        return self._finished(plan, state)

    def _begin(self, events: Events) -> Plan:
        """Classes and start value, from the labels or from the journal of a training that already began."""
        began = events.state.began
        if began is None or set(self.transport.parties) == set(self.prepared.parties):
            masks = agree_on_masks(self.transport, self.params)
            labels = agree_on_labels(self.transport, self.params, masks, self.prepared.rows)
            if self.warm_start is not None:
                check_warm_start(self.warm_start, self.prepared, self.params, labels.classes)
                labels = Labels(self.warm_start.classes, self.warm_start.base_score, labels.spread)
            self.params = msgspec.structs.replace(self.params, label_spread=labels.spread)
            now = Began(
                params=self.params,
                seed=self.seed,
                classes=labels.classes,
                base_score=labels.base_score.tolist(),
                protocol=VERSION,
            )
            if began is None:
                events.record(now)
        else:  # labels are compared when all are back
            labels = Labels(began.classes, np.array(began.base_score))
            self.params = msgspec.structs.replace(self.params, label_spread=began.params.label_spread)
            now = msgspec.structs.replace(began, params=self.params, seed=self.seed)
        if began is not None and began != now:
            raise DataError(
                f"This training began with other {_differences(began, now)}: its journal does not fit any more. "
                "Start a new training, without --resume."
            )
        trees = [wire.adopted(tree) for trees in (self.warm_start.rounds if self.warm_start else []) for tree in trees]
        return Plan(self.prepared, self.params, self.seed, labels, trees)

    def _grow_with_those_present(self, plan: Plan, events: Events) -> bool:
        """Grow until the end, or until a party is lost or comes back. True: it is finished."""
        rounds, turn = Rounds(self.transport, plan, events), None
        try:
            rounds.start()
            rounds.replay(events.journal.entries)
            for turn in self._turns(events.state):
                # After a loss those who are left go first: a party answers no round again over other parties.
                if not events.state.has_passed and welcome_back(self.transport, self.prepared.parties):
                    return False
                rounds.rematch_if_due(turn)
                rounds.play(turn)
            rounds.finish()
        except PartyLost as lost:
            self.recovery.leave_out(lost, self.transport)
            if turn is not None and turn.round == events.state.next_turn:  # not repeated with fewer parties
                events.record(Passed(turn=turn.round))
            return False
        return True

    def _turns(self, state: State) -> Iterator[Turn]:
        """Whose turn it is, until all trees are grown or the training is stopped."""
        for place in count(state.next_turn):
            if len(state.rounds) >= self.params.n_trees or state.stopped:
                return
            builder = builder_of(place, self.prepared.parties)
            if builder in self.transport.parties:  # else the next in turn
                yield Turn(place, builder)

    def _finished(self, plan: Plan, state: State) -> Training:
        """The trees, cut back to the best round where early stopping watched."""
        end = None if state.best_round is None else state.best_round + 1
        return Training(
            self.prepared,
            self.params,
            plan.labels,
            state.rounds[:end],
            state.history,
            state.gains[:end],
            state.missed,
            self.warm_start,
        )


# --- before the first round ------------------------------------------------------------------------------------------


def _fitted(params: Params, prepared: Prepared) -> Params:
    """The parameters, checked against the tables, and what they leave open, by the number of parties and rows."""
    params = checked_for(prepared, params)
    n_parties = len(prepared.parties)
    settled: dict[str, Any] = {}
    if n_parties == 1:  # one party's own leaf values are the exact ones already
        settled |= {"leaf_values": "builder", "extra_depth": 0}
    if isinstance(params, SimilarParams) and not prepared.has_similar_rows:  # none to be found again
        settled["rematch"] = 0
    if params.subsample is None:
        halved = n_parties == 2 and prepared.has_similar_rows and isinstance(params, SimilarParams)
        settled["subsample"] = 0.5 if halved else 1.0
    if params.max_bin is None:
        settled["max_bin"] = builder_bins(params, n_parties, sum(prepared.n_rows))
    return msgspec.structs.replace(params, **settled)


def checked_for(prepared: Prepared, params: Params) -> Params:
    """The parameters with columns by number, if they fit these tables."""
    if params.early_stopping_rounds and not any(prepared.n_validation_rows):
        raise ParameterError(
            "early_stopping_rounds needs validation rows, and no party has any. "
            "Set validation_fraction=0.2, or give parties validation=(X, y)."
        )
    params = with_numbers(params, prepared.schema.names if prepared.schema else None, prepared.n_features)
    columns = prepared.schema.columns if prepared.schema else ()
    wrong = [c.name for c, s in zip(columns, params.monotone_constraints or [], strict=False) if s and c.levels]
    if wrong:
        raise ParameterError(f"monotone_constraints cannot bind categories: {wrong} have no order.")
    return params


def check_warm_start(start: WarmStart, prepared: Prepared, params: Params, classes: list[Any] | None) -> None:
    """Refuse a model that this training cannot continue from."""
    if start.objective != params.objective:
        raise ParameterError(f"init_model was trained with {start.objective!r}, not {params.objective!r}.")
    for name, value in settings_of(params).items():
        before = start.settings.get(name)
        same = value == before if isinstance(value, str) else np.float32(value) == np.float32(before or 0.0)
        if not same:
            raise ParameterError(f"init_model was trained with {name}={before!r}, not {value!r}.")
    if start.schema != prepared.schema:
        raise DataError(
            "The parties do not have the columns and levels of init_model. Give every party schema=model.schema."
        )
    strange = [c for c in classes or [] if c not in (start.classes or [])]
    if strange:
        raise DataError(f"init_model does not know these classes: {strange}.")


def _differences(before: Began, now: Began) -> str:
    """What differs between two beginnings, in words."""
    own = settings(now.params)
    names = [name for name, value in settings(before.params).items() if value != own.get(name)]
    changed = [f"parameters ({', '.join(names)})"] if names else []
    changed += ["seed"] if before.seed != now.seed else []
    of_labels = [(began.classes, began.base_score, began.params.label_spread) for began in (before, now)]
    changed += ["labels"] if of_labels[0] != of_labels[1] else []
    return " and ".join(changed) or "another version of the protocol"


def _advise(transport: Transport, params: Params) -> None:
    """Warn two parties of what their sums reveal. In one process all rows are in one place anyway."""
    advice = about_two_parties(transport.parties, params.min_group)
    if advice and (params.masked or transport.deployed):
        warnings.warn(advice, PrivacyWarning, stacklevel=4)
