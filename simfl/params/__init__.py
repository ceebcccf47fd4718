"""Every parameter, with its default, its range and its meaning: their one home.

`tree` has what every recipe reads, in XGBoost's own words. Each recipe has a struct of its own on top of it: `similar`
(with the paper's), `joint`, and `private` (joint with epsilon). `simfl.train`, the estimators, the study file and the
command line all read these modules. `None` means "as the recipe says", or a value found from the data.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, TypeGuard, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from simfl.errors import ParameterError, UnknownParameterError, did_you_mean
from simfl.params.joint import HALVED_FROM, MOST_CUTS, JointParams
from simfl.params.private import NOT_PRIVATE, RULED, PrivateParams, check_declared, declared_classes
from simfl.params.similar import (
    BUILDER_BINS,
    COARSE_BINS,
    MAX_HASHES,
    Matching,
    PaperParams,
    SearchParams,
    SimilarParams,
    builder_bins,
    guarded_columns,
    search_of,
)
from simfl.params.tree import BINS, MAX_LABEL, MAX_WEIGHT, MIN_WEIGHT, SETTINGS, SPREAD, Objective, TreeParams

__all__ = [
    "BINS",
    "BUILDER_BINS",
    "COARSE_BINS",
    "HALVED_FROM",
    "MAX_HASHES",
    "MAX_LABEL",
    "MAX_WEIGHT",
    "MIN_WEIGHT",
    "MOST_CUTS",
    "NAMES",
    "PREPARE_NAMES",
    "RECIPES",
    "SETTINGS",
    "SPREAD",
    "TRAIN_NAMES",
    "JointParams",
    "Matching",
    "Objective",
    "PaperParams",
    "Params",
    "PrivateParams",
    "RecipeName",
    "SearchParams",
    "SimilarParams",
    "TreeParams",
    "builder_bins",
    "cores",
    "declared_classes",
    "defaults",
    "descriptions",
    "documented",
    "first_stage",
    "given",
    "guarded_columns",
    "is_private",
    "of_recipe",
    "prepare_params",
    "refuse_unknown",
    "search_of",
    "train_params",
    "with_numbers",
    "without_noise",
]

RecipeName = Literal["similar", "paper", "joint"]
Params = SimilarParams | PaperParams | JointParams | PrivateParams  # as messages carry them: the tag is the recipe
RECIPES: Final[dict[str, type[TreeParams]]] = {"similar": SimilarParams, "paper": PaperParams, "joint": JointParams}
_STRUCTS: Final[tuple[type[TreeParams], ...]] = (*RECIPES.values(), PrivateParams)
RECIPE: Final = "similar"  # unless another one is named
_SETTLED: Final = (
    "leaf_values",
    "extra_depth",
    "label_spread",
    "by_rule",
)  # by the recipe or a training: nobody gives them

# What stage 1 reads: `simfl.prepare` takes it, and a training of what was prepared cannot change it.
STAGE_1: Final = (
    *("n_hashes", "bucket_width", "hash_law", "n_neighbors", "known_features", "matching"),
    "validation_fraction",
)
PREPARE_NAMES: Final = ("recipe", *STAGE_1, "epsilon", "masked", "random_state", "n_jobs")


def _names() -> tuple[str, ...]:
    """Of all parameters: XGBoost's first, then what each recipe adds."""
    orders = (struct.__struct_fields__ for struct in (TreeParams, SimilarParams, PaperParams, PrivateParams))
    return tuple(dict.fromkeys(["recipe", *(name for order in orders for name in order if name not in _SETTLED)]))


NAMES: Final = _names()
TRAIN_NAMES: Final = tuple(name for name in NAMES if name not in STAGE_1)

ALIASES: Final = {  # what users of XGBoost and scikit-learn may type
    "n_estimators": "n_trees",
    "num_boost_round": "n_trees",
    "eta": "learning_rate",
    "lambda": "reg_lambda",
    "alpha": "reg_alpha",
    "min_split_loss": "gamma",
    "num_round": "n_trees",
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
    "verbose": "simfl.train and the estimators take it; between machines, --log-format.",
    "verbosity": "simfl.train and the estimators take verbose.",
}


def _defaults_of(struct: type[TreeParams]) -> dict[str, Any]:
    return {field.name: field.default for field in msgspec.structs.fields(struct) if not field.required}


def defaults() -> dict[str, Any]:
    """Every parameter with its default: None where recipes differ in it, or a rule decides with epsilon."""
    found: dict[str, Any] = dict.fromkeys(NAMES)
    for name in NAMES:
        values = [own[name] for struct in _STRUCTS if name in (own := _defaults_of(struct))] or [None]
        same = values.count(values[0]) == len(values) and name not in RULED
        found[name] = values[0] if same else None
    return found | {"recipe": RECIPE}


def descriptions() -> dict[str, str]:
    """Every parameter with its meaning, for help texts."""
    structs = (PrivateParams, SimilarParams, TreeParams)  # the texts are those of the plainest
    hints = {name: hint for struct in structs for name, hint in get_type_hints(struct, include_extras=True).items()}
    told = {name: getattr(hints[name], "__metadata__", ("",))[-1] for name in NAMES if name != "recipe"}
    return {"recipe": _RECIPE_IN_WORDS} | told


_RECIPE_IN_WORDS: Final = (
    "how trees are grown: by one party after the other, with gradients of similar rows of the others (similar), as in "
    "the paper, for reproduction (paper), or by all parties at once from exact sums (joint)"
)


# --- from what was given to what is trained with ---------------------------------------------------------------------


def prepare_params(**given: Any) -> Params:
    """The checked parameters of stage 1."""
    refuse_unknown(given, PREPARE_NAMES)
    return _checked(given)


def train_params(**given: Any) -> Params:
    """The checked parameters of a training."""
    refuse_unknown(given, NAMES)
    checked = _with_settings(_checked(given))
    if is_private(checked):
        check_declared(checked)
    if checked.recipe == "joint" and "auc" in _listed(checked.eval_metric):
        raise ParameterError(
            "eval_metric='auc' is not available with recipe='joint': it needs counts of few rows, which no party sends "
            "there. Measure it on your own rows."
        )
    return checked


def given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters among a call's arguments that say something else than the default (of a recipe: anything)."""
    usual = defaults() | {"recipe": None}
    return {
        name: value
        for name, value in arguments.items()
        if name in usual and not (type(value) is type(usual[name]) and value == usual[name])
    }


def first_stage(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of stage 1 among these."""
    return {name: value for name, value in given.items() if name in PREPARE_NAMES}


def of_recipe(recipe: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a comparison gives another recipe: those of the parameters that it reads, and that mean the same to it."""
    own = RECIPES[recipe].__struct_fields__
    return {name: value for name, value in given.items() if name in own and name != "min_group"} | {"recipe": recipe}


def without_noise(given: Mapping[str, Any]) -> dict[str, Any]:
    """The same training without a guarantee, to compare with."""
    noise = {*PrivateParams.__struct_fields__} - {*JointParams.__struct_fields__}
    return {name: value for name, value in given.items() if name not in noise}


def is_private(params: TreeParams) -> TypeGuard[PrivateParams]:
    """Whether everything that leaves a party is differentially private."""
    return isinstance(params, PrivateParams)


def _checked(given: Mapping[str, Any]) -> Params:
    """Values of the right kind, in the struct of their recipe."""
    values = {name: _plain(value) for name, value in given.items()}
    recipe = values.pop("recipe", RECIPE)
    if recipe not in tuple(RECIPES):
        raise ParameterError(f"recipe={recipe!r} is not possible: it must be one of {_quoted(RECIPES)}.")
    private = recipe == "joint" and values.get("epsilon") is not None
    struct = PrivateParams if private else RECIPES[recipe]
    usual = defaults()
    own = {}
    for name, value in values.items():
        if name not in struct.__struct_fields__:
            if value is not None:
                raise ParameterError(_of_others(name, recipe))
        elif value is not None or usual[name] is not None:
            _check_value(struct, name, value)
            if private and name in NOT_PRIVATE and value != usual[name]:
                raise ParameterError(f"{name}={value!r} is not available: {NOT_PRIVATE[name]}.")
            own[name] = value
    if own.get("n_jobs") in (-1, 0):
        del own["n_jobs"]
    if private:
        own["by_rule"] = tuple(name for name in RULED if name not in own)
    checked: Params = msgspec.convert(own, type=struct)  # type: ignore[assignment]
    return checked


def _check_value(struct: type[TreeParams], name: str, value: Any) -> None:
    needed = {"epsilon": 1.0} if struct is PrivateParams else {}
    try:
        msgspec.convert({**needed, name: value}, struct)
    except (msgspec.ValidationError, OverflowError) as error:
        fact = str(error).split(" - at ")[0].replace("`", "")
        reason = _choices(struct, name) or fact[:1].lower() + fact[1:]
        raise ParameterError(f"{name}={value!r} is not possible: {reason}.") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ParameterError(f"{name}={value!r} is not possible: it must be finite.")


def _of_others(name: str, recipe: str) -> str:
    """Why a recipe refuses a parameter that it does not have."""
    if name in PrivateParams.__struct_fields__:
        if recipe == "joint":
            return f"{name} is a parameter of recipe='joint' with epsilon only. Leave it out, or set epsilon."
        owner, more = ("recipe='joint'", "") if name == "epsilon" else ("recipe='joint' with epsilon", " and epsilon")
        return (
            f"{name} is a parameter of {owner} only: there everything that leaves a party is differentially private. "
            f"Set recipe='joint'{more}, or leave {name} out."
        )
    owners = " and ".join(f"recipe={own!r}" for own, struct in RECIPES.items() if name in struct.__struct_fields__)
    return f"{name} is a parameter of {owners} only, not of recipe={recipe!r}. Leave it out, or set that recipe."


def _with_settings(params: Params) -> Params:
    """The parameters with the objective's own settings filled in; refuses those of other objectives."""
    own, of_trees = SETTINGS.get(params.objective, {}), {"max_delta_step": 0.0}  # every objective has the latter
    for objective, settings in SETTINGS.items():
        wrong = [name for name in settings if name not in {**own, **of_trees} and getattr(params, name) is not None]
        if wrong:
            raise ParameterError(f"{wrong[0]} applies only to objective={objective!r}, not {params.objective!r}.")
    if params.objective == "reg:quantileerror" and params.quantile_alpha is None:
        raise ParameterError("reg:quantileerror needs quantile_alpha: the share of labels below what is predicted.")
    given = {name: default for name, default in {**of_trees, **own}.items() if getattr(params, name) is None}
    return msgspec.structs.replace(params, **given)


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


T = TypeVar("T", bound=TreeParams)


def with_numbers(params: T, names: list[str] | None, n_features: int) -> T:
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
    """Append the parameters, with their meanings and defaults (from `names` if it is a dict), to a docstring."""

    def add(target: F) -> F:
        meaning, default = descriptions(), defaults() | (names if isinstance(names, dict) else {})
        lines = [f"    {name} (default {default[name]!r}): {meaning[name]}" for name in names]
        head = f"{target.__doc__ or ''}\n    Parameters of SimFL\n    -------------------\n"
        target.__doc__ = head + "\n".join(lines)
        return target

    return add


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays, as grids and frames hand them out, become Python's; a generator gives a seed."""
    import numpy as np  # only here: the command line reads this page before it needs NumPy

    if isinstance(value, np.random.RandomState):
        return int(value.randint(2**31 - 1))
    if isinstance(value, np.random.Generator):
        return int(value.integers(2**31 - 1))
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _listed(words: str | list[str] | None) -> list[str]:
    return [words] if isinstance(words, str) else words or []


def _choices(struct: Any, name: str) -> str:
    """What a parameter with a few possible words can be."""
    hint = get_type_hints(struct)[name]
    found = [word for part in (hint, *get_args(hint)) if get_origin(part) is Literal for word in get_args(part)]
    return f"it must be one of {_quoted(found)}" if found else ""


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(map(repr, words))
