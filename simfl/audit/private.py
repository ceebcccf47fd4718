"""The audit of a training in which everything that leaves has noise (joint with epsilon): its promise is put to a test.

The other attacks on trees grown together need exact sums, which are not sent then. What is left to attack are the noisy
leaf values, of which everybody has all. The attacker is the one that differential privacy assumes: it knows every row
but the canaries, and guesses for each whether it took part (`lower_bound.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simfl.arrays import AnyArray
from simfl.audit.findings import Counted, Finding, Role, Setting, finding
from simfl.audit.lower_bound import Canaries, epsilon_lower_bound, scores_of_one_run
from simfl.audit.scenario import Scenario
from simfl.data.schema import Column, Schema
from simfl.errors import ParameterError
from simfl.params import is_private

CANARIES = 1000
EVERYBODY: list[Role] = ["other party", "submitter", "outsider"]  # who has the model has all that leaves, but masks
NOT_REPEATED = ("classes", "max_rows_per_person", "random_state")  # labels are numbers here, and rows have no persons


def ranges_of(X: AnyArray) -> Schema:
    """What a study would declare of this table. Nothing leaves an audit, so it may look."""
    low, high = np.nanmin(X, axis=0).tolist(), np.nanmax(X, axis=0).tolist()
    ends = enumerate(zip(low, high, strict=True))
    return Schema(tuple(Column(name=f"column {j}", low=a, high=max(b, a + 1.0)) for j, (a, b) in ends))


def declared_of(X: AnyArray, schema: Schema | None) -> Schema:
    """What the study declares of the columns or, where it does not declare all of them, what it would."""
    complete = schema is not None and all(points is not None for points in schema.declared_cuts(2))
    return schema if schema is not None and complete else ranges_of(X)


def canaries_from_values(scenario: Scenario, setting: Setting) -> list[Finding]:
    """Coins of canaries, from the leaf values of one training. Only of two classes: canaries have one or the other."""
    X, y = scenario.dense, scenario.y.astype(int)
    given: dict[str, Any] = {k: v for k, v in scenario.given.items() if k not in NOT_REPEATED}
    drawn = Canaries.draw(X, min(CANARIES, len(y)), setting.seed)
    schema = declared_of(X, scenario.schema)
    run: dict[str, Any] = {"parties": setting.parties, "random_state": setting.seed, "schema": schema}
    scores = scores_of_one_run(X, y, drawn, **run, **given | {"masked": True})
    promised = scenario.stage_2
    if not is_private(promised):
        raise ParameterError("Without epsilon nothing is promised, and there is nothing to test.")
    shown = epsilon_lower_bound(scores, drawn.members, promised.delta).epsilon
    right = ((scores > np.median(scores)) == drawn.members).astype(np.float64)
    details = {"epsilon at least": shown, "epsilon promised": promised.epsilon}
    sentence = (
        "Who knows all other rows tells for {success} of the canaries (guessing: {guess}) whether they took part. With "
        f"95 % confidence this shows an epsilon of at least {shown:.2f}; promised is {promised.epsilon:g}."
    )
    counted = Counted(right, np.full(len(right), 0.5), details)
    return [finding("canaries_from_values", EVERYBODY, counted, sentence, measure="coins guessed")]
