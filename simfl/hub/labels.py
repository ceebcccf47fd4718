"""What is learned: the classes of all parties and the start value, from sums that may be masked."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from simfl import messages as msg
from simfl.arrays import Doubles
from simfl.errors import DataError
from simfl.hub.asking import ask_all, refuse_unless, sent_by, small_sums, small_total
from simfl.hub.handshake import MaskSteps
from simfl.params import MAX_WEIGHT, Params
from simfl.training.losses import Loss, check_start, is_multi, loss_of, settings_of, with_spread
from simfl.transport.base import Transport


class Labels(NamedTuple):
    """The classes of all parties (None for regression), the start value of every output, and the labels' spread."""

    classes: list[Any] | None
    base_score: Doubles
    spread: float | None = None


def agree_on_labels(transport: Transport, params: Params, masks: MaskSteps, n_rows: Mapping[str, int]) -> Labels:
    """Ask for classes and label sums. Refuses labels that do not fit together, and impossible sums."""
    replies = ask_all(transport, msg.DescribeLabels(objective=params.objective), msg.Classes)
    classes, loss = check_labels(replies, params), loss_of(params)
    n = (loss.n_sums if classes is None else len(classes)) + 1
    if n == 1:  # the start value does not depend on the labels
        return Labels(classes, _base_score([], 0.0, classes, params))
    question = msg.SumLabels(
        objective=params.objective, settings=settings_of(params), classes=classes, mask=masks.next()
    )
    sums = {party: reply.sums for party, reply in ask_all(transport, question, msg.LabelSums).items()}
    for party, found in small_sums(sums, n).items() if not masks.on else ():
        with sent_by(party):
            refuse_unless(_possible(found, loss, n_rows[party]), f"label sums of {found} for {n_rows[party]} rows")
    *each, weight = total = small_total(sums, n, masked=masks.on)
    if not _possible(total, loss, sum(n_rows[party] for party in sums)):
        raise DataError(
            f"The label sums over all parties are not possible: {each} of a weight of {weight:g}. "
            "Have every party check its labels and weights."
        )
    spread = with_spread(params, each, weight).label_spread
    return Labels(classes, _base_score(each, weight, classes, params), spread)


def _possible(sums: Sequence[float], loss: Loss, n_rows: int) -> bool:
    """Whether this many rows can have such label sums; the last of them is the weight of all rows."""
    *each, weight = sums
    return 0 < weight <= MAX_WEIGHT * n_rows and loss.possible(each, weight)


def check_labels(replies: Mapping[str, msg.Classes], params: Params) -> list[Any] | None:
    """The classes of all parties, None for regression; refuses labels that do not fit together."""
    for party, reply in replies.items():
        with sent_by(party):
            refuse_unless((reply.classes is not None) == loss_of(params).classifies, "labels of another kind")
    return _merge_classes(replies, params.objective) if loss_of(params).classifies else None


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
    if not is_multi(objective) and len(classes) > 2:
        raise DataError(
            f"{objective} needs two classes, the parties together have {len(classes)}: {facts}. "
            "Use objective='multi:softprob' for classes or 'reg:squarederror' for numbers, or correct the labels."
        )
    return classes


def _base_score(sums: Sequence[float], weight: float, classes: list[Any] | None, params: Params) -> Doubles:
    """The start value from the label mean over all parties (or as given)."""
    loss = loss_of(params)
    if params.base_score is None:
        return loss.start(sums, weight)
    check_start(params)
    return np.full(len(classes) if loss.is_multi and classes else 1, params.base_score)
