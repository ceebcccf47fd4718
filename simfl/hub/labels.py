"""What is learned: the classes of all parties and the start value, from sums that may be masked."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from simfl import messages as msg
from simfl.arrays import Doubles
from simfl.errors import DataError, ParameterError
from simfl.hub.asking import ask_all, refuse_unless, sent_by, wide_sums
from simfl.hub.handshake import MaskSteps
from simfl.params import MAX_LABEL, MAX_WEIGHT, TrainParams
from simfl.privacy.exact import from_wide, wide_total
from simfl.training.losses import LOSSES
from simfl.transport.base import Transport


class Labels(NamedTuple):
    """The classes of all parties (None for regression), and the start value of every output."""

    classes: list[Any] | None
    base_score: Doubles


def agree_on_labels(transport: Transport, params: TrainParams, masks: MaskSteps, n_rows: Mapping[str, int]) -> Labels:
    """Ask for classes and label sums. Refuses labels that do not fit together, and sums that cannot be."""
    replies = ask_all(transport, msg.DescribeLabels(objective=params.objective), msg.Classes)
    classes = check_labels(replies, params)
    if params.epsilon is not None:  # sums of labels would tell about labels, without noise
        n = max(len(classes or []) if params.objective == "multi:softprob" else 1, 2)
        return Labels(classes, _base_score([1.0] * n, n, classes, params))
    question = msg.SumLabels(classes=classes, mask=masks.next())
    sums = {party: reply.sums for party, reply in ask_all(transport, question, msg.LabelSums).items()}
    wide = wide_sums(sums, (1 if classes is None else len(classes)) + 1)
    if not masks.on:
        for party, own in zip(sums, wide, strict=True):
            with sent_by(party):
                found = from_wide(own)
                refuse_unless(
                    _possible(found, classes, n_rows[party]), f"label sums of {found} for {n_rows[party]} rows"
                )
    *each, weight = total = wide_total(wide)
    if not _possible(total, classes, sum(n_rows[party] for party in sums)):
        raise DataError(f"The label sums over all parties are not possible: {each} of a weight of {weight:g}.")
    return Labels(classes, _base_score(each, weight, classes, params))


def _possible(sums: Sequence[float], classes: list[Any] | None, n_rows: int) -> bool:
    """Whether this many rows can have such label sums; the last of them is the weight of all rows."""
    *each, weight = sums
    if not 0 < weight <= MAX_WEIGHT * n_rows:
        return False
    if classes is None:
        return abs(each[0]) <= MAX_LABEL * weight
    return min(each) >= 0 and math.isclose(sum(each), weight, rel_tol=1e-6)


def check_labels(replies: Mapping[str, msg.Classes], params: TrainParams) -> list[Any] | None:
    """The classes of all parties, None for regression; refuses labels that do not fit together."""
    for party, reply in replies.items():
        with sent_by(party):
            refuse_unless((reply.classes is not None) == LOSSES[params.objective].classifies, "labels of another kind")
    return _merge_classes(replies, params.objective) if LOSSES[params.objective].classifies else None


def _merge_classes(replies: Mapping[str, msg.Classes], objective: str) -> list[Any]:
    found = {party: reply.classes or [] for party, reply in replies.items()}
    kinds = {party: {"text" if isinstance(c, str) else "numbers" for c in own} for party, own in found.items()}
    if len(set.union(*kinds.values())) > 1:
        facts = ", ".join(f"{party!r} {own[:3]}" for party, own in found.items())
        raise DataError(f"Some parties have text as labels, others numbers: {facts}. Give all the same labels.")
    classes = sorted(set().union(*found.values()))
    facts = ", ".join(f"{party!r} {own[:6]}" for party, own in found.items())
    if len(classes) < 2:
        raise DataError(f"All labels of all parties are of one class ({classes[0]!r}). There is nothing to learn.")
    if objective == "binary:logistic" and len(classes) > 2:
        raise DataError(
            f"binary:logistic needs two classes, the parties together have {len(classes)}: {facts}. "
            "Use objective='multi:softprob' for classes or 'reg:squarederror' for numbers, or correct the labels."
        )
    return classes


def _base_score(sums: Sequence[float], weight: float, classes: list[Any] | None, params: TrainParams) -> Doubles:
    """The start value from the label mean over all parties (or as given)."""
    if params.base_score is None:
        return LOSSES[params.objective].start(sums, weight)
    start = np.float32(params.base_score)
    if params.objective == "binary:logistic" and not 0 < start < 1:
        raise ParameterError(f"base_score={params.base_score} is not possible: it must be a probability.")
    if not np.isfinite(start):
        raise ParameterError(f"base_score={params.base_score} is not possible: it does not fit float32.")
    return np.full(len(classes) if params.objective == "multi:softprob" and classes else 1, params.base_score)
