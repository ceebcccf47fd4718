"""The joint recipe with epsilon: everything that leaves a party because of its rows is differentially private."""

from __future__ import annotations

import math
from typing import Annotated, Final

from msgspec import Meta

from simfl.errors import ParameterError
from simfl.params.joint import JointParams
from simfl.params.tree import Count, Positive, Trees

PRIVATE_OBJECTIVES: Final = ("binary:logistic", "multi:softprob")  # bounded gradients, and a start without labels
RULED: Final = ("learning_rate", "max_depth", "reg_lambda")  # chosen by a rule, from the rows and epsilon
N_TREES: Final = 600  # 300 are within .002 of log loss; 100 make steps too long

_DRAWN: Final = "with epsilon trees are drawn at random, and nothing of the data decides about their splits"
_SILENT: Final = "with epsilon no metrics are sent"
# What has no meaning with epsilon, and why. Other values than the defaults are refused.
NOT_PRIVATE: Final[dict[str, str]] = {
    **dict.fromkeys(("early_stopping_rounds", "eval_metric"), _SILENT),
    "validation_fraction": f"{_SILENT}, and rows set aside would depend on each other. Give parties rows of their own",
    "subsample": "with epsilon every row counts in every tree",
    "scale_pos_weight": "with epsilon every row counts as one",
    "max_delta_step": "with epsilon a rule bounds the steps",
} | dict.fromkeys(
    (
        *("min_child_weight", "gamma", "reg_alpha", "colsample_bytree", "max_bin", "monotone_constraints"),
        *("interaction_constraints", "min_group"),
    ),
    _DRAWN,
)


class PrivateParams(JointParams, frozen=True, kw_only=True, tag="private"):
    """Ranges, rows and classes are declared; trees are drawn; only noisy sums per leaf are sent."""

    n_trees: Trees = N_TREES
    epsilon: Annotated[
        Annotated[float, Meta(gt=0, le=1e6)],
        "joint: differential privacy of every row, for everything that its party sends; trees are drawn at random, "
        "ranges, rows and classes are declared, and only noisy sums per leaf are sent; None: no guarantee",
    ]
    delta: Annotated[
        float, Meta(gt=0, lt=1), "with epsilon: the probability that the guarantee fails, well below one over the rows"
    ] = 1e-5
    colluding: Annotated[
        Count | None,
        "with epsilon: how many other parties may join the hub and put together what they see; fewer need less noise, "
        "and with 0 the other parties are trusted; None: all others, so that no party has to trust another",
    ] = None
    rows: Annotated[
        Positive | None,
        "with epsilon: about how many rows all parties have together, as declared: nobody counts them, and the rule "
        "for the depth of trees and their steps reads it",
    ] = None
    classes: Annotated[
        list[bool | int | float | str] | None,
        "with epsilon: the classes of the labels, as declared, in the order of `predict_proba`; None: 0 and 1",
    ] = None
    max_rows_per_person: Annotated[
        Positive | None,
        "with epsilon: protect persons instead of rows; rows of a person beyond these are left out at its party, which "
        "names the person of each row; None: every row is a person",
    ] = None

    # Not given: which of these parameters were not, so that the rule chooses them.
    by_rule: tuple[str, ...] = RULED

    @property
    def recipe(self) -> str:
        """The recipe that these parameters are of."""
        return "joint"


def declared_classes(params: PrivateParams) -> list[bool | int | float | str]:
    """The classes of a study with epsilon."""
    return [0, 1] if params.classes is None else params.classes


def check_declared(params: PrivateParams) -> None:
    """With epsilon nobody asks the parties for facts about their tables: they are declared."""
    if params.objective not in PRIVATE_OBJECTIVES:
        raise ParameterError(
            f"epsilon is not available with {params.objective}: it needs gradients with a bound and a start value "
            f"that no label decides. Use {' or '.join(PRIVATE_OBJECTIVES)}."
        )
    if params.max_depth == 0:
        raise ParameterError("max_depth=0 is not available: with epsilon trees are drawn, and need a last level.")
    if params.rows is None:
        raise ParameterError(
            "epsilon needs the number of rows, because nobody may count them: set rows to about as many as all parties "
            "have together."
        )
    if params.delta * params.rows >= 1:  # whoever publishes one row of n, drawn at random, has a delta of 1 / n
        enough = 10.0 ** math.floor(math.log10(1 / params.rows) - 1)
        raise ParameterError(
            f"delta={params.delta:g} is too large for rows={params.rows}: it must be well below one over the rows. Set "
            f"delta = {enough:g}, or lower."
        )
    if params.objective.startswith("multi:") and params.classes is None:
        raise ParameterError("epsilon needs the classes, because nobody may ask for them: set classes = [...].")
    n = len(declared_classes(params))
    if n < 2 or (params.objective == "binary:logistic" and n != 2) or n != len(set(declared_classes(params))):
        raise ParameterError(
            f"classes={params.classes!r} is not possible: give two different ones, or more with softprob."
        )
