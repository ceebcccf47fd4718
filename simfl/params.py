"""Every parameter, with its default, its range and its meaning: their one home.

`simfl.train`, the estimators, the study file and the command line all read this page; the text beside a type is the
meaning. `None` means "as the recipe says", or a value found from the data, as the text says. Parameters that XGBoost
also has carry XGBoost's names and meanings.
"""

import math
import os
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from simfl.errors import ParameterError, UnknownParameterError, did_you_mean

RecipeName = Literal["default", "similar", "paper", "joint"]
Matching = Literal["blind", "shared"]
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
Share = Annotated[float, Meta(gt=0, le=1)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Epsilon = Annotated[float, Meta(gt=0, le=1e6)]
MAX_HASHES: Final = 255  # a count of equal hash values must fit one byte
BINS: Final = 256  # per feature, as in XGBoost
MOST_CUTS: Final = 254  # of one column with the joint recipe: a bin must fit one byte, beside missing values
BUILDER_BINS: Final = 128  # of a builder's features with the similar recipe: see `builder_bins`
COARSE_BINS: Final = 64
MANY_ROWS: Final = 50_000  # per party: with more, most of the time of a deep tree goes into the histograms of its nodes
MAX_WEIGHT: Final = 1e12  # of a row; beyond that sums lose the digits that tell rows apart, and no split pays
MIN_WEIGHT: Final = 1e-12  # of a party's heaviest row: below that no split pays, either
MAX_LABEL: Final = 1e18  # of a regression: larger squares would leave float32


class PrepareParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Stage 1: what decides which rows of different parties resemble each other."""

    recipe: Annotated[
        RecipeName,
        "how trees are grown: from similar rows (default, similar), as in the paper, for reproduction, or by all "
        "parties at once from exact sums (joint)",
    ] = "default"
    n_hashes: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_HASHES)] | None,
        "hash functions (the paper's L); None: min(40, features - 1 - known_features)",
    ] = None
    bucket_width: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        "width of a hash bucket (the paper's r); None: the recipe's (half the root mean square row norm, or 4)",
    ] = None
    hash_law: Annotated[
        Literal["gaussian", "cauchy"], "law of the hash directions: 2-stable (L2 distance) or 1-stable (L1)"
    ] = "gaussian"
    scale: Annotated[
        Literal["standard", "none"] | None,
        "put the features on a common scale before hashing (global mean and deviation); None: the recipe's",
    ] = None
    n_neighbors: Annotated[
        Count | None,
        "similar rows kept per row and other party; 0: none, so that parties only take turns (TFL); None: the recipe's",
    ] = None
    max_candidates: Annotated[
        Count | None,
        "compare a row with n rows of each other party, drawn again for every block of rows, so that the search grows "
        "with the rows and not with their square; 0: with all; None: the recipe's",
    ] = None
    known_features: Annotated[
        Count | None,
        "features that an attacker may already know of a row, or that follow from others (14 columns that were one-hot "
        "encoded into 123: 109): n_hashes must be below features - known; None: accept any n_hashes, also where "
        "Theorem 1 of the paper does not hold",
    ] = 0
    matching: Annotated[
        Matching | None,
        "who finds the similar rows: the hub, from keyed names that mean nothing to it, or every party, from the hash "
        "values of all (the paper's way); None: the recipe's",
    ] = None
    masked: Annotated[
        bool | None,
        "hide every party's sums (of features, labels, gradients, metrics) under masks, so that only their total over "
        "all parties can be seen; changes no bit of the model; None: between machines yes, in one process no",
    ] = None
    validation_fraction: Annotated[
        float, Meta(ge=0, lt=1), "share of its rows that each party sets aside to measure the metric on"
    ] = 0.0
    epsilon: Annotated[
        Epsilon | None,
        "joint: differential privacy of every row, for everything that its party sends; trees are drawn at random, "
        "ranges, rows and classes are declared, and only noisy sums per leaf are sent, no metrics; None: no noise",
    ] = None
    random_state: Annotated[Seed | None, "seed of everything random; None: a new one each time"] = None
    n_jobs: Annotated[int | None, "threads for all parties of this process together; None: all cores"] = None


class TrainParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Stage 2: what decides how trees are grown from the gradients."""

    recipe: RecipeName = "default"
    objective: Annotated[Objective, "what is learned, in XGBoost's words"] = "binary:logistic"
    scale_pos_weight: Annotated[
        Annotated[float, Meta(gt=0, le=1e6)] | None,
        "two classes: a row of the second class counts this many times; None: 1",
    ] = None
    quantile_alpha: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        "reg:quantileerror: the share of labels that lies below what is predicted, as 0.9; one model for each",
    ] = None
    label_spread: Annotated[
        Annotated[float, Meta(gt=0, le=1e18)] | None,
        "reg:absoluteerror, reg:quantileerror: about how far labels lie from their mean, the unit of a step; None: "
        "from sums over the labels of all parties",
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
    eval_metric: Annotated[
        str | list[str] | None,
        "metrics to record beside the objective's own; early stopping watches the last one; auc (two classes) is found "
        "from counts in bins; None: the objective's own",
    ] = None
    n_trees: Annotated[Positive, "boosting rounds (a multiclass round grows one tree per class)"] = 100
    learning_rate: Annotated[float, Meta(gt=0, le=1e6), "step size of every tree"] = 0.1
    max_depth: Annotated[int, Meta(ge=0, le=1000), "deepest level of a tree (but see extra_depth); 0: no limit"] = 6
    min_child_weight: Annotated[float, Meta(ge=0), "least sum of hessians in a child"] = 1.0
    gamma: Annotated[float, Meta(ge=0), "least gain of a split"] = 0.0
    reg_lambda: Annotated[float, Meta(ge=0), "L2 penalty on leaf values"] = 1.0
    reg_alpha: Annotated[float, Meta(ge=0), "L1 penalty on leaf values"] = 0.0
    max_delta_step: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        "largest leaf value before shrinkage; 0: no limit; None: 0, but 0.7 with count:poisson, as in XGBoost",
    ] = None
    subsample: Annotated[
        Share | None,
        "share of its rows the builder uses for a tree; None: all, but half of them where two parties train with the "
        "similar recipe; with the joint recipe every party leaves out rows of its own, None: half of them where all "
        "parties together have 200,000 rows or more",
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
    leaf_values: Annotated[
        Literal["global", "builder"] | None,
        "from the exact sums of all parties, or from the builder's weighted gradients; None: the recipe's",
    ] = None
    extra_depth: Annotated[
        Annotated[int, Meta(ge=0, le=20)] | None,
        "levels that a tree is grown beyond max_depth before the sums of all parties prune it back to at most "
        "2**max_depth leaves; 0: no pruning; None: the recipe's",
    ] = None
    rematch: Annotated[
        Count | None,
        "find the similar rows again, by the leaves they fall into, after n trees and then each time the number of "
        "trees has doubled; 0: never; None: the recipe's",
    ] = None
    min_group: Annotated[
        Positive | None,
        "least number of its own rows that a party adds onto one row of a builder; smaller groups are joined with the "
        "nearest others, and a party with fewer rows adds nothing; 1: no groups are joined. With the joint recipe: "
        "least number of rows of all parties behind every sum, by noisy counts. Sample weights count: beside a heavy "
        "row, light ones are less than a row; None: the recipe's (joint 30, else 1)",
    ] = None
    epsilon: Epsilon | None = None
    delta: Annotated[
        float, Meta(gt=0, lt=1), "with epsilon: the probability that the guarantee fails, well below one over the rows"
    ] = 1e-5
    colluding: Annotated[
        Count | None,
        "joint with epsilon: how many other parties may join the hub and put together what they see; fewer need less "
        "noise, and with 0 the other parties are trusted; None: all others, so that no party has to trust another",
    ] = None
    rows: Annotated[
        Positive | None,
        "joint with epsilon: about how many rows all parties have together, as declared: nobody counts them, and the "
        "rule for the number and depth of trees reads it",
    ] = None
    classes: Annotated[
        list[bool | int | float | str] | None,
        "joint with epsilon: the classes of the labels, as declared, in the order of `predict_proba`; None: 0 and 1",
    ] = None
    max_rows_per_person: Annotated[
        Positive | None,
        "joint with epsilon: protect persons instead of rows; rows of a person beyond these are left out at its party, "
        "which names the person of each row; None: every row is a person",
    ] = None
    count_epsilon: Annotated[
        Annotated[float, Meta(ge=1e-3, le=1e6)] | None,
        "joint: noise on the counts that decide which sums are asked for, as the epsilon of one count; None: the "
        "recipe's",
    ] = None
    early_stopping_rounds: Annotated[
        Positive | None, "stop when the validation metric has not improved for n trees"
    ] = None
    masked: bool | None = None
    random_state: Seed | None = None
    n_jobs: int | None = None
    verbose: Annotated[
        Count | None,
        "0: silence; 1: a progress bar; 2: a line per tree to the logger 'simfl'; None: a bar at a terminal",
    ] = None


# What an objective reads beside its name, with XGBoost's defaults. Other objectives refuse it.
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "binary:logistic": {"scale_pos_weight": 1.0},
    "reg:quantileerror": {"quantile_alpha": None},
    "count:poisson": {"max_delta_step": 0.7},
    "reg:tweedie": {"tweedie_variance_power": 1.5},
    "survival:aft": {"aft_loss_distribution": "normal", "aft_loss_distribution_scale": 1.0},
}
SPREAD: Final = ("reg:absoluteerror", "reg:quantileerror")  # these read label_spread
PRIVATE_OBJECTIVES: Final = ("binary:logistic", "multi:softprob")  # start without labels

_SIMILAR: Final[dict[str, Any]] = {
    "scale": "standard",
    "n_neighbors": 5,
    "max_candidates": 10_000,
    "matching": "blind",
} | {"leaf_values": "global", "extra_depth": 2, "rematch": 50, "min_group": 1}
RECIPES: Final[dict[str, dict[str, Any]]] = {  # stage 1 | stage 2
    "default": _SIMILAR,
    "similar": _SIMILAR,
    "paper": {"scale": "none", "n_neighbors": 1, "max_candidates": 0, "matching": "shared", "bucket_width": 4.0}
    | {"leaf_values": "builder", "extra_depth": 0, "rematch": 0, "min_group": 1},
    "joint": {"n_neighbors": 0}
    | {"leaf_values": "global", "extra_depth": 2, "rematch": 0, "min_group": 30, "count_epsilon": 0.1},
}
SIMILAR: Final = ("default", "similar")  # two names of one recipe
HALVED_FROM: Final = (
    200_000  # rows of all parties: from here on half of them do for a joint tree, in two thirds the time
)
PRIVATE_TREES: Final = 600  # joint with epsilon, where n_trees is the default: see `joint/private_rule.py`
PRIVATE_ONLY: Final = ("colluding", "rows", "classes", "max_rows_per_person")  # of the joint recipe with epsilon
JOINT_ONLY: Final = ("count_epsilon", *PRIVATE_ONLY)
# What the joint recipe has no use for, and why. Other values than these are refused.
_NO_SEARCH: Final = "no similar rows are looked for"
NOT_JOINT: Final[dict[str, tuple[Any, str]]] = {
    "n_hashes": (None, _NO_SEARCH),
    "bucket_width": (None, _NO_SEARCH),
    "hash_law": ("gaussian", _NO_SEARCH),
    "scale": (None, _NO_SEARCH),
    "n_neighbors": (0, _NO_SEARCH),
    "max_candidates": (None, _NO_SEARCH),
    "known_features": (0, _NO_SEARCH),
    "matching": (None, _NO_SEARCH),
    "rematch": (0, _NO_SEARCH),
    "leaf_values": ("global", "leaf values come from the sums of all parties"),
}
# What the joint recipe has no use for with epsilon, and why. Other values than the defaults are refused.
_DRAWN: Final = "with epsilon trees are drawn at random, and nothing of the data decides about their splits"
_SILENT: Final = "with epsilon no metrics are sent"
NOT_PRIVATE: Final[dict[str, str]] = {
    "early_stopping_rounds": _SILENT,
    "validation_fraction": f"{_SILENT}, and rows set aside would depend on each other. Give parties rows of their own",
    "subsample": "with epsilon every row counts in every tree",
} | dict.fromkeys(
    (
        *("min_child_weight", "gamma", "reg_alpha", "colsample_bytree", "max_bin", "monotone_constraints"),
        *("interaction_constraints", "extra_depth", "min_group", "count_epsilon"),
    ),
    _DRAWN,
)

ALIASES: Final = {  # what users of XGBoost and scikit-learn may type
    "n_estimators": "n_trees",
    "num_boost_round": "n_trees",
    "eta": "learning_rate",
    "lambda": "reg_lambda",
    "alpha": "reg_alpha",
    "min_split_loss": "gamma",
    "seed": "random_state",
    "nthread": "n_jobs",
}
_OF_ROWS: Final = (
    'Weights belong to the rows: Party(..., sample_weight=...); in a study, the key weight = "column" beside label; '
    "on the command line, --weight COLUMN."
)
_ELSEWHERE: Final = {  # what is given at another place
    **dict.fromkeys(("sample_weight", "sample_weights", "weight", "weights"), _OF_ROWS),
    "init_model": "simfl.train takes it, in one process; between machines a training begins from nothing.",
}

PREPARE_NAMES: Final = PrepareParams.__struct_fields__
TRAIN_NAMES: Final = TrainParams.__struct_fields__
NAMES: Final = tuple(dict.fromkeys(PREPARE_NAMES + TRAIN_NAMES))


def defaults() -> dict[str, Any]:
    """Every parameter with its default."""
    return {f.name: f.default for s in (PrepareParams, TrainParams) for f in msgspec.structs.fields(s)}


def descriptions() -> dict[str, str]:
    """Every parameter with its meaning, for help texts."""
    hints = get_type_hints(TrainParams, include_extras=True) | get_type_hints(PrepareParams, include_extras=True)
    return {name: getattr(hint, "__metadata__", ("",))[-1] for name, hint in hints.items()}


def guarded_columns(params: PrepareParams, n_features: int) -> int:
    """The number of columns that no attacker is assumed to know: there must be fewer hash values."""
    return n_features - (params.known_features or 0)


def prepare_params(**given: Any) -> PrepareParams:
    """The checked parameters of stage 1, with the recipe's values filled in."""
    checked: PrepareParams = _checked(PrepareParams, given)
    return checked


def train_params(**given: Any) -> TrainParams:
    """The checked parameters of stage 2, with the recipe's values filled in."""
    checked: TrainParams = _with_settings(_checked(TrainParams, given))
    if is_private(checked) and checked.scale_pos_weight not in (None, 1.0):
        raise ParameterError("epsilon counts a row as one: scale_pos_weight is not available with it.")
    if is_private(checked) and checked.objective not in PRIVATE_OBJECTIVES:
        raise ParameterError(
            f"epsilon is not available with {checked.objective}: it needs gradients with a bound and a start value "
            f"that no label decides. Use {' or '.join(PRIVATE_OBJECTIVES)}."
        )
    if is_private(checked):
        _check_declared(checked)
        by_rule = checked.n_trees == defaults()["n_trees"]
        return msgspec.structs.replace(checked, n_trees=PRIVATE_TREES) if by_rule else checked
    if checked.leaf_values == "builder" and checked.extra_depth:
        if given.get("extra_depth"):
            raise ParameterError("extra_depth prunes with the sums of all parties: it needs leaf_values='global'.")
        checked = msgspec.structs.replace(checked, extra_depth=0)
    return checked


def _with_settings(params: TrainParams) -> TrainParams:
    """The parameters with the objective's own settings filled in; refuses those of other objectives."""
    own, of_trees = SETTINGS.get(params.objective, {}), {"max_delta_step": 0.0}  # every objective has the latter
    for objective, settings in SETTINGS.items():
        wrong = [name for name in settings if name not in {**own, **of_trees} and getattr(params, name) is not None]
        if wrong:
            raise ParameterError(f"{wrong[0]} is a parameter of {objective} only, and here is {params.objective}.")
    if params.label_spread is not None and params.objective not in SPREAD:
        raise ParameterError(f"label_spread is a parameter of {' and '.join(SPREAD)} only.")
    if params.objective == "reg:quantileerror" and params.quantile_alpha is None:
        raise ParameterError("reg:quantileerror needs quantile_alpha: the share of labels below what is predicted.")
    if params.recipe == "joint" and "auc" in (params.eval_metric or ()):
        raise ParameterError(
            "eval_metric='auc' is not available with recipe='joint': it needs counts of few rows, which no party sends "
            "there. Measure it on your own rows."
        )
    given = {name: default for name, default in {**of_trees, **own}.items() if getattr(params, name) is None}
    return msgspec.structs.replace(params, **given)


def is_private(params: PrepareParams | TrainParams) -> bool:
    """Whether everything that leaves a party is differentially private."""
    return params.epsilon is not None


def _check_declared(params: TrainParams) -> None:
    """With epsilon nobody asks the parties for facts about their tables: they are declared."""
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
    if params.objective == "multi:softprob" and params.classes is None:
        raise ParameterError("epsilon needs the classes, because nobody may ask for them: set classes = [...].")
    n = 2 if params.classes is None else len(params.classes)
    if n < 2 or (params.objective == "binary:logistic" and n != 2) or (n != len(set(params.classes or [0, 1]))):
        raise ParameterError(
            f"classes={params.classes!r} is not possible: give two different ones, or more with softprob."
        )


def declared_classes(params: TrainParams) -> list[bool | int | float | str]:
    """The classes of a study with epsilon."""
    return [0, 1] if params.classes is None else params.classes


def split(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sort the given parameters by stage; those of both stages go to both."""
    refuse_unknown(given, NAMES)
    first, second = ({k: v for k, v in given.items() if k in names} for names in (PREPARE_NAMES, TRAIN_NAMES))
    return first, second


def refuse_unknown(given: Iterable[str], known: tuple[str, ...]) -> None:
    """Raise for a parameter that does not exist (here), and suggest the one that was meant."""
    for name in given:
        if name in known:
            continue
        if name in NAMES:
            stage = "simfl.prepare (stage 1)" if name in PREPARE_NAMES else "simfl.train (stage 2)"
            raise ParameterError(f"{name!r} belongs to {stage}: give it there.")
        hint = f"Did you mean {ALIASES[name]!r}?" if name in ALIASES else did_you_mean(name, sorted(known))
        raise UnknownParameterError(f"There is no parameter {name!r}. {_ELSEWHERE.get(name, hint)}")


def with_numbers(params: TrainParams, names: list[str] | None, n_features: int) -> TrainParams:
    """The parameters with constraints on columns given by their numbers; refuses columns that do not exist."""
    known = {name: number for number, name in enumerate(names or [])}

    def number(column: str | int, parameter: str) -> int:
        place = known.get(column, -1) if isinstance(column, str) else column
        if not 0 <= place < n_features:
            raise ParameterError(f"{parameter} names the column {column!r}. The columns are {names or n_features}.")
        return place

    signs, groups = params.monotone_constraints, params.interaction_constraints
    if isinstance(signs, dict):
        given = {number(column, "monotone_constraints"): sign for column, sign in signs.items()}
        signs = [given.get(column, 0) for column in range(n_features)]
    elif signs is not None and len(signs) != n_features:
        raise ParameterError(f"monotone_constraints has {len(signs)} entries for {n_features} columns.")
    if groups is not None:
        groups = [[number(column, "interaction_constraints") for column in group] for group in groups]
    return msgspec.structs.replace(params, monotone_constraints=signs, interaction_constraints=groups)


def builder_bins(params: TrainParams, n_parties: int, n_rows: int) -> int:
    """How many bins a builder's features get where `max_bin` leaves it open.

    The search for the best split costs by nodes times bins. Every party has cut points of its own, so that the trees
    together see as many as one party's fine bins (docs/recipes.md).
    """
    if n_parties == 1 or params.recipe not in SIMILAR:
        return BINS
    return COARSE_BINS if n_rows > MANY_ROWS * n_parties else BUILDER_BINS


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


F = TypeVar("F", bound=Callable[..., Any] | type)


def documented(names: Iterable[str]) -> Callable[[F], F]:
    """Append the parameters, with their meanings and defaults (or those of `names`), to a docstring."""

    def add(target: F) -> F:
        meaning, default = descriptions(), defaults() | (names if isinstance(names, dict) else {})
        lines = [f"    {name} (default {default[name]!r}): {meaning[name]}" for name in names]
        head = f"{target.__doc__ or ''}\n    Parameters of SimFL\n    -------------------\n"
        target.__doc__ = head + "\n".join(lines)
        return target

    return add


def _checked(struct: Any, given: dict[str, Any]) -> Any:
    refuse_unknown(given, struct.__struct_fields__)
    values = {name: _plain(value) for name, value in given.items()}
    for name, value in values.items():
        try:
            msgspec.convert({name: value}, struct)
        except (msgspec.ValidationError, OverflowError) as error:
            fact = str(error).split(" - at ")[0].replace("`", "")
            reason = _choices(struct, name) or fact[:1].lower() + fact[1:]
            raise ParameterError(f"{name}={value!r} is not possible: {reason}.") from None
        if isinstance(value, float) and not math.isfinite(value):
            raise ParameterError(f"{name}={value!r} is not possible: it must be finite.")
    params = msgspec.convert(values, struct)
    _refuse_not_private(params)
    recipe = {k: v for k, v in RECIPES[params.recipe].items() if getattr(params, k, 0) is None}
    params = msgspec.structs.replace(params, **recipe)
    _refuse_other_recipes(params)
    return params


def _refuse_other_recipes(params: Any) -> None:
    """Refuse what the recipe would not read."""
    is_joint = params.recipe == "joint"
    for name in params.__struct_fields__:
        value = getattr(params, name)
        if not is_joint and name in JOINT_ONLY and value is not None:
            raise ParameterError(f"{name} is a parameter of recipe='joint' only. Leave it out, or set that recipe.")
        if is_joint and name in NOT_JOINT and value != NOT_JOINT[name][0]:
            raise ParameterError(f"{name}={value!r} is not available with recipe='joint': {NOT_JOINT[name][1]}.")


def _refuse_not_private(params: Any) -> None:
    """Refuse epsilon without the joint recipe, and what has no meaning with it, or only with it."""
    if is_private(params) and params.recipe != "joint":
        raise ParameterError(
            "epsilon is a parameter of recipe='joint': there everything that leaves a party is differentially private. "
            "Set recipe='joint', or leave epsilon out."
        )
    for field in msgspec.structs.fields(params):
        value = getattr(params, field.name)
        if is_private(params) and field.name in NOT_PRIVATE and value != field.default:
            raise ParameterError(f"{field.name}={value!r} is not available: {NOT_PRIVATE[field.name]}.")
        if not is_private(params) and field.name in PRIVATE_ONLY and value is not None:
            raise ParameterError(f"{field.name} is a parameter of recipe='joint' with epsilon only. Leave it out.")


def _plain(value: Any) -> Any:
    """NumPy's numbers, as grids and frames hand them out, become Python's; a random generator gives a seed."""
    import numpy as np  # only here: the command line reads this page before it needs NumPy

    if isinstance(value, np.random.RandomState):
        return int(value.randint(2**31 - 1))
    if isinstance(value, np.random.Generator):
        return int(value.integers(2**31 - 1))
    return value.item() if isinstance(value, np.generic) else value


def _choices(struct: Any, name: str) -> str:
    """What a parameter with a few possible words can be."""

    def words(hint: Any) -> list[str]:
        if get_origin(hint) is Literal:
            return [repr(word) for word in get_args(hint)]
        return [word for part in get_args(hint) if not isinstance(part, str) for word in words(part)]

    found = words(get_type_hints(struct, include_extras=True)[name])
    return f"it must be one of {', '.join(found)}" if found else ""
