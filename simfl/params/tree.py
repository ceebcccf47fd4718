"""What every recipe reads: XGBoost's own words, with XGBoost's meanings, and a few of ours.

The text beside a type is the meaning. It fills the docstrings, the help of the command line and the reference.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

Objective = Literal[
    "binary:logistic",
    "multi:softprob",
    "reg:squarederror",
    "reg:absoluteerror",
    "reg:quantileerror",
    "reg:pseudohubererror",
    "count:poisson",
    "reg:gamma",
    "reg:tweedie",
    "survival:aft",
]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Trees = Annotated[int, Meta(ge=1, le=1_000_000)]
Share = Annotated[float, Meta(gt=0, le=1)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]

_BY_RULE: Final = "with epsilon by a rule"
BINS: Final = 256  # per feature, as in XGBoost
MAX_WEIGHT: Final = 1e12  # of a row; beyond that sums lose the digits that tell rows apart, and no split pays
MIN_WEIGHT: Final = 1e-12  # of a party's heaviest row: below that no split pays, either
MAX_LABEL: Final = 1e18  # of a regression: larger squares would leave float32

# What an objective reads beside its name, with XGBoost's defaults. Other objectives refuse it.
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "binary:logistic": {"scale_pos_weight": 1.0},
    "reg:quantileerror": {"quantile_alpha": None},
    "count:poisson": {"max_delta_step": 0.7},
    "reg:tweedie": {"tweedie_variance_power": 1.5},
    "survival:aft": {"aft_loss_distribution": "normal", "aft_loss_distribution_scale": 1.0},
}
SPREAD: Final = ("reg:absoluteerror", "reg:quantileerror")  # these read label_spread


class TreeParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="recipe"):
    """The parameters that all recipes have. A recipe's own struct stands on this one; its name is the tag."""

    objective: Annotated[Objective, "what is learned, in XGBoost's words"] = "binary:logistic"
    scale_pos_weight: Annotated[
        Annotated[float, Meta(gt=0, le=1e6)] | None,
        "two classes: a row of the second class counts this many times; None: 1",
    ] = None
    quantile_alpha: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        "reg:quantileerror: the share of labels that lies below what is predicted, as 0.9; one model for each",
    ] = None
    tweedie_variance_power: Annotated[
        Annotated[float, Meta(gt=1, lt=2)] | None,
        "reg:tweedie: the variance grows with this power of the mean; near 1 as counts, near 2 as sizes; None: 1.5",
    ] = None
    aft_loss_distribution: Annotated[
        Literal["normal", "logistic", "extreme"] | None,
        "survival:aft: the law of the logarithm of times, around what is predicted; None: normal",
    ] = None
    aft_loss_distribution_scale: Annotated[
        Annotated[float, Meta(gt=0, le=1e6)] | None, "survival:aft: how wide that law is; None: 1"
    ] = None
    n_trees: Annotated[
        Trees, "boosting rounds (a multiclass round grows one tree per class); None: 100, with epsilon 600"
    ] = 100
    learning_rate: Annotated[float, Meta(gt=0, le=1e6), f"step size of every tree; None: 0.1, {_BY_RULE}"] = 0.1
    max_depth: Annotated[int, Meta(ge=0, le=1000), f"deepest level of a tree; 0: no limit; None: 6, {_BY_RULE}"] = 6
    min_child_weight: Annotated[float, Meta(ge=0), "least sum of hessians in a child"] = 1.0
    gamma: Annotated[float, Meta(ge=0), "least gain of a split"] = 0.0
    reg_lambda: Annotated[float, Meta(ge=0), f"L2 penalty on leaf values; None: 1, {_BY_RULE}"] = 1.0
    reg_alpha: Annotated[float, Meta(ge=0), "L1 penalty on leaf values"] = 0.0
    max_delta_step: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        "largest leaf value before shrinkage; 0: no limit; None: 0, but 0.7 with count:poisson, as in XGBoost",
    ] = None
    subsample: Annotated[
        Share | None,
        "share of its rows that a party uses for a tree; None: all, but half of them where two parties train with the "
        "similar recipe, or where all parties of a joint one have 200,000 rows or more together",
    ] = None
    colsample_bytree: Annotated[Share, "share of the features used by a tree"] = 1.0
    max_bin: Annotated[
        Annotated[int, Meta(ge=2, le=2**16)] | None,
        "bins per feature; None: 256, but with the similar recipe 128, and 64 where the parties have more than 50,000 "
        "rows on average: every builder has bins of its own, so coarse ones cost little; joint: 255 at most are used",
    ] = None
    monotone_constraints: Annotated[
        dict[str, Literal[-1, 0, 1]] | list[Literal[-1, 0, 1]] | None,
        "per column: 1, the prediction may only rise with it; -1, only fall. By name, or a list for all columns",
    ] = None
    interaction_constraints: Annotated[
        list[list[str | int]] | None,
        "groups of columns (names or numbers) that may be used together on one path down a tree",
    ] = None
    base_score: Annotated[
        float | None, "start value, as a probability or a number; None: from the label mean of all parties"
    ] = None
    eval_metric: Annotated[
        str | list[str] | None,
        "metrics to record beside the objective's own; early stopping watches the last one; auc (two classes) is found "
        "from counts in bins; None: the objective's own",
    ] = None
    early_stopping_rounds: Annotated[
        Positive | None, "stop when the validation metric has not improved for n trees"
    ] = None
    validation_fraction: Annotated[
        float, Meta(ge=0, lt=1), "share of its rows that each party sets aside to measure the metric on"
    ] = 0.0
    min_group: Annotated[
        Positive,
        "similar, paper: least number of its own rows that a party adds onto one row of a builder; smaller groups are "
        "joined with the nearest others, and a party with fewer rows adds nothing. Joint: least number of rows of all "
        "parties behind every sum, by noisy counts. Sample weights count: beside a heavy row, light ones are less than "
        "a row; None: joint 30, else 1 (no groups are joined)",
    ] = 1
    masked: Annotated[
        bool | None,
        "hide every party's sums (of features, labels, gradients, metrics) under masks, so that only their total over "
        "all parties can be seen; changes no bit of the model; None: between machines yes, in one process no",
    ] = None
    random_state: Annotated[
        Seed | None, "seed of everything random but the noise of epsilon; None: a new one each time"
    ] = None
    n_jobs: Annotated[
        Annotated[int, Meta(ge=-1, le=10_000)] | None,
        "threads for all parties of this process together; None or -1: all cores",
    ] = None

    # Not given: the recipe's, or found by a training.
    leaf_values: Literal["global", "builder"] = "global"  # from the exact sums of all parties, or the builder's own
    extra_depth: Count = 2  # levels beyond max_depth, before the sums of all parties prune a tree back
    label_spread: float | None = None  # how far labels lie from their mean, as the unit of a step

    @property
    def recipe(self) -> str:
        """The recipe that these parameters are of."""
        return str(self.__struct_config__.tag)

    # Stand-ins for parameters that some recipes lack.

    @property
    def n_neighbors(self) -> int:
        """How many similar rows are kept: none."""
        return 0

    @property
    def epsilon(self) -> float | None:
        """The guarantee of differential privacy: none."""
        return None
