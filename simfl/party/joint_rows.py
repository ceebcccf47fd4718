"""A party's rows as the joint machine takes them, and the machine's trees as a model."""

from typing import Any

import msgspec
import numpy as np

from simfl import messages as msg
from simfl import model as models
from simfl import wire
from simfl.arrays import Doubles
from simfl.callbacks import EVERYBODY, TreeRecord
from simfl.data.schema import Schema
from simfl.data.table import as_targets
from simfl.errors import ProtocolError
from simfl.joint.machine import Labelled, Machine, Mine, Plan
from simfl.joint.private import PrivateMachine
from simfl.joint.shared import Shared
from simfl.params import BINS, PrivateParams, is_private
from simfl.party.party import Rows, Split
from simfl.party.private_rows import budget, check_size, settings
from simfl.privacy.guarantee import guarantee
from simfl.training.losses import check_start, in_xgboost, is_multi, loss_of


def machine_of(
    start: msg.StartTogether, split: Split, private: bytes, threads: int, shared: Shared | None
) -> Machine:
    """A party's part in a training that starts."""
    aside = split.validation
    mine = Mine(
        _labelled(_counting(split.training), start, split),
        None if aside is None else _labelled(_counting(aside), start, split),
        private,
        threads,
        shared,
    )
    return Machine(_plan(start, split, start.params.max_bin or BINS), mine)


def private_machine_of(
    start: msg.StartTogether, params: PrivateParams, split: Split, threads: int, shared: Shared | None
) -> PrivateMachine:
    """The same with epsilon: rows set aside have no part in it."""
    n = len(start.parties)
    chosen = settings(params, n, split.n_features)
    plan = _plan(start, split, chosen.n_cells)
    check_size(chosen, split.n_features, plan.n_outputs)
    mine = Mine(_labelled(split.training, start, split), None, b"", threads, shared)
    return PrivateMachine(plan, mine, chosen, budget(params, n))


def _plan(start: msg.StartTogether, split: Split, max_bin: int) -> Plan:
    n_outputs = len(start.classes or ()) if is_multi(start.params.objective) and start.classes is not None else 1
    return Plan(
        params=start.params,
        n_levels=split.schema.n_levels if split.schema else np.zeros(split.n_features, np.int32),
        n_outputs=n_outputs,
        parties=tuple(start.parties),
        base_score=_start_value(start, n_outputs),
        earlier=_earlier(start, split, n_outputs),
        cuts_only=start.cuts_only,
        declared=split.schema.declared_cuts(max_bin) if split.schema else None,
    )


def _counting(rows: Rows) -> Rows:
    """Those that count: with rows of weight zero, a sum over `min_group` rows could be that of one."""
    found = rows.counting
    return found if len(found.y) else rows


def _labelled(rows: Rows, start: msg.StartTogether, split: Split) -> Labelled:
    if start.cuts_only:  # before anybody knows what the labels mean
        return Labelled(rows.X, np.zeros(len(rows.y), np.float32))
    return Labelled(rows.X, as_targets(rows.y, loss_of(start.params), start.classes, split.who), rows.weight)


def _start_value(start: msg.StartTogether, n_outputs: int) -> Doubles | None:
    """That of an earlier model, or as given; None: it follows from the labels of all parties."""
    if start.base_score:
        return np.array(start.base_score)
    given, loss = start.params.base_score, loss_of(start.params)
    if given is None:
        return None if loss.classifies or loss.n_sums else loss.start([], 0.0)
    check_start(start.params)
    return np.full(n_outputs, given)


def _earlier(start: msg.StartTogether, split: Split, n_outputs: int) -> list[list[Any]]:
    """The rounds of the model that a training continues from."""
    trees = [wire.tree_of(tree, split.n_features) for tree in start.warm_start]
    return [trees[first : first + n_outputs] for first in range(0, len(trees), n_outputs)]


def model_of(machine: Machine | PrivateMachine, start: msg.StartTogether, split: Split) -> models.Model:
    """The model of the trees so far, cut back to the best round where early stopping watched."""
    base_score = machine.base_score
    if base_score is None or not machine.rounds:
        raise ProtocolError(f"{split.who} was asked for a model before there was a tree.")
    end, params = None if machine.best_round is None else machine.best_round + 1, start.params
    about = models.About(
        classes=start.classes,
        history=_history(machine),
        traffic={},
        schema=_as_read(split.schema),
        gain=np.sum(machine.gains[:end], axis=0).tolist() if machine.gains else None,
        epsilon=params.epsilon,
        delta=params.delta if is_private(params) else None,
        guarantee=guarantee(params, len(start.parties)),
    )
    rounds = [*machine.plan.earlier, *machine.rounds[:end]]
    return models.build(rounds, base_score, in_xgboost(start.params), split.n_features, about)


def _as_read(schema: Schema | None) -> Schema | None:
    """A schema as a message brings it: however it was made, it is then written in the same bytes."""
    return None if schema is None else msgspec.json.decode(msgspec.json.encode(schema), type=Schema)


def _history(machine: Machine | PrivateMachine) -> list[TreeRecord]:
    """The metrics of every round. Bytes and seconds are known at the hub."""
    return [
        TreeRecord(round=n, builder=EVERYBODY, train=train, validation=validation, bytes=0, seconds=0.0)
        for n, (train, validation) in enumerate(machine.metrics())
    ]
