"""Every parameter, with its default, its range and its meaning: their one home.

`simfl.train`, the estimators, the study file and the command line all read this page; the text beside a type is the
meaning. `None` means "as the recipe says", or a value found from the data, as the text says. Parameters that XGBoost
also has carry XGBoost's names and meanings.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from simfl.errors import ParameterError, UnknownParameterError, did_you_mean

RecipeName = Literal["default", "paper"]
Matching = Literal["blind", "shared"]
Ids = Literal["linked", "fresh"]
Objective = Literal["binary:logistic", "multi:softprob", "reg:squarederror"]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(gt=0, le=1)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
MAX_HASHES: Final = 255  # a count of equal hash values must fit one byte
BINS: Final = 256  # per feature, as in XGBoost


class PrepareParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Stage 1: what decides which rows of different parties resemble each other."""

    recipe: Annotated[RecipeName, "a set of parameters: our stronger one, or the paper's, for reproduction"] = "default"
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
        Count, "features that an attacker may already know of a row: n_hashes must be below features - known"
    ] = 0
    original_features: Annotated[
        Positive | None,
        "the number of columns before they were one-hot encoded, which is what n_hashes must stay below",
    ] = None
    allow_unsafe_hashes: Annotated[bool, "accept n_hashes that break the condition L < d of the paper's Theorem 1"] = (
        False
    )
    matching: Annotated[
        Matching | None,
        "who finds the similar rows: the hub, from keyed names that mean nothing to it, or every party, from the hash "
        "values of all (the paper's way); None: the recipe's",
    ] = None
    ids: Annotated[
        Ids,
        "a party knows which foreign rows its own resemble by ids that last, or by ids that the hub draws again for "
        "every tree, so that they cannot be linked (more traffic; needs matching='blind')",
    ] = "linked"
    masked: Annotated[
        bool | None,
        "hide every party's sums (of features, labels, gradients, metrics) under masks, so that only their total over "
        "all parties can be seen; changes no bit of the model; None: between machines yes, in one process no",
    ] = None
    validation_fraction: Annotated[
        float, Meta(ge=0, lt=1), "share of its rows that each party sets aside to measure the metric on"
    ] = 0.0
    random_state: Annotated[Seed | None, "seed of everything random; None: a new one each time"] = None
    n_jobs: Annotated[int | None, "threads for all parties of this process together; None: all cores"] = None


class TrainParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Stage 2: what decides how trees are grown from the gradients."""

    recipe: RecipeName = "default"
    objective: Annotated[Objective, "what is learned, in XGBoost's words"] = "binary:logistic"
    n_trees: Annotated[Positive, "boosting rounds (a multiclass round grows one tree per class)"] = 100
    learning_rate: Annotated[float, Meta(gt=0, le=1e6), "step size of every tree"] = 0.1
    max_depth: Annotated[int, Meta(ge=0, le=1000), "deepest level of a tree (but see extra_depth); 0: no limit"] = 6
    max_leaves: Annotated[Count, "most leaves of a tree; 0: no limit"] = 0
    grow_policy: Annotated[Literal["depthwise", "lossguide"], "split level by level, or where the loss falls most"] = (
        "depthwise"
    )
    min_child_weight: Annotated[float, Meta(ge=0), "least sum of hessians in a child"] = 1.0
    gamma: Annotated[float, Meta(ge=0), "least gain of a split"] = 0.0
    reg_lambda: Annotated[float, Meta(ge=0), "L2 penalty on leaf values"] = 1.0
    reg_alpha: Annotated[float, Meta(ge=0), "L1 penalty on leaf values"] = 0.0
    max_delta_step: Annotated[float, Meta(ge=0), "largest leaf value before shrinkage; 0: no limit"] = 0.0
    subsample: Annotated[
        Share | None,
        "share of its rows the builder uses for a tree; None: all, but half of them where two parties train with the "
        "default recipe",
    ] = None
    colsample_bytree: Annotated[Share, "share of the features used by a tree"] = 1.0
    colsample_bylevel: Annotated[Share, "share of the features used by a level"] = 1.0
    colsample_bynode: Annotated[Share, "share of the features used by a node"] = 1.0
    max_bin: Annotated[
        Annotated[int, Meta(ge=2, le=2**16)] | None,
        "bins per feature; None: 256, but 64 where several parties with more than 50,000 rows on average train with "
        "the default recipe: their bins differ anyway, so coarse ones cost little and halve the time",
    ] = None
    max_cat_to_onehot: Annotated[
        Positive, "a category of fewer levels splits off one level at a time, one of more splits into two sets"
    ] = 4
    max_cat_threshold: Annotated[Positive, "most levels in the smaller set of such a split"] = 64
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
        "levels that the builder grows beyond max_depth before the sums of all parties prune the tree back to at most "
        "2**max_depth leaves; 0: no pruning; None: the recipe's",
    ] = None
    rematch: Annotated[
        Count | None,
        "find the similar rows again, by the leaves they fall into, after n trees and then each time the number of "
        "trees has doubled; 0: never; None: the recipe's",
    ] = None
    min_group: Annotated[
        Positive,
        "least number of its own rows that a party adds onto one row of a builder; smaller groups are joined with the "
        "nearest others, and a party with fewer rows adds nothing; 1: no groups are joined",
    ] = 1
    cuts: Annotated[
        Literal["own", "shared"],
        "thresholds are values of the builder's rows, as in XGBoost, or come from a public grid of max_bin points per "
        "feature, around the common mean",
    ] = "own"
    epsilon: Annotated[
        Annotated[float, Meta(gt=0, le=1e6)] | None,
        "differential privacy of every row for the sums of gradients that its party sends in a training: each party "
        "adds noise to them, and no metrics or label sums are sent; None: no noise",
    ] = None
    delta: Annotated[
        float, Meta(gt=0, lt=1), "with epsilon: the probability that the guarantee fails, well below one over the rows"
    ] = 1e-5
    turns: Annotated[
        Literal["round_robin", "proportional", "all"],
        "who builds the next tree: each in turn, by number of rows, or all at once (a tree from each per round)",
    ] = "round_robin"
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


RECIPES: Final[dict[str, dict[str, Any]]] = {  # stage 1 | stage 2
    "default": {"scale": "standard", "n_neighbors": 5, "max_candidates": 10_000, "matching": "blind"}
    | {"leaf_values": "global", "extra_depth": 2, "rematch": 50},
    "paper": {"scale": "none", "n_neighbors": 1, "max_candidates": 0, "matching": "shared", "bucket_width": 4.0}
    | {"leaf_values": "builder", "extra_depth": 0, "rematch": 0},
}

ALIASES: Final = {  # what users of XGBoost and scikit-learn may type
    "n_estimators": "n_trees",
    "num_boost_round": "n_trees",
    "eta": "learning_rate",
    "lambda": "reg_lambda",
    "alpha": "reg_alpha",
    "min_split_loss": "gamma",
    "seed": "random_state",
    "nthread": "n_jobs",
    "num_leaves": "max_leaves",
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
    return (params.original_features or n_features) - (params.known_features or 0)


def prepare_params(**given: Any) -> PrepareParams:
    """The checked parameters of stage 1, with the recipe's values filled in."""
    checked: PrepareParams = _checked(PrepareParams, given)
    if checked.ids == "fresh" and checked.matching != "blind":
        raise ParameterError("ids='fresh' needs a hub that knows the similar rows: use it with matching='blind'.")
    return checked


def train_params(**given: Any) -> TrainParams:
    """The checked parameters of stage 2, with the recipe's values filled in."""
    checked: TrainParams = _checked(TrainParams, given)
    if checked.leaf_values == "builder" and checked.extra_depth:
        if given.get("extra_depth"):
            raise ParameterError("extra_depth prunes with the sums of all parties: it needs leaf_values='global'.")
        checked = msgspec.structs.replace(checked, extra_depth=0)
    return checked


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
        raise UnknownParameterError(f"There is no parameter {name!r}. {hint}")


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


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


F = TypeVar("F", bound=Callable[..., Any] | type)


def documented(names: Iterable[str]) -> Callable[[F], F]:
    """Append the parameters, with their meanings and defaults, to a docstring."""

    def add(target: F) -> F:
        meaning, default = descriptions(), defaults()
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
    recipe = {k: v for k, v in RECIPES[params.recipe].items() if getattr(params, k, 0) is None}
    return msgspec.structs.replace(params, **recipe)


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
