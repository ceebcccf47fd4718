"""The audit: what would leave a party is attacked for real, on the party's own rows, before anything is sent.

The rows are split at random into an attacker, a victim and further parties (`scenario.py`). The attacker knows its own
rows, the protocol and what its role would see of the victim (`views.py`). Each attack (`attacks.py`) is tried on the
victim (`trials.py`); its success stands beside what the same attacker gets by guessing, without the message. An audit
shows leaks, but cannot prove that there are none: another attack may find what these do not.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from simfl import params as parameters
from simfl.audit import finished
from simfl.audit.advice import advise
from simfl.audit.columns import laid_out, on_columns
from simfl.audit.coverage import differences, not_tried, why_not
from simfl.audit.findings import TITLES, Audit, Finding, Setting
from simfl.audit.joint import TRIALS as JOINT_TRIALS
from simfl.audit.private import NOT_REPEATED, canaries_from_values
from simfl.audit.roles import seen_by
from simfl.audit.scenario import Scenario
from simfl.audit.together import Together
from simfl.audit.trials import Trial, trials_of
from simfl.data.schema import Schema
from simfl.errors import ParameterError
from simfl.params import Matching
from simfl.party import Party


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to audit, and against which limits."""

    name: str = "table"
    matching: Matching | None = None  # None: the recipe's
    masked: bool = False  # the hub sees no sums
    min_group: int | None = None  # None: the recipe's
    parties: int = 2  # that share the rows
    by_column: int | None = None  # joint recipe: they differ in this column (its number); None: divided at random
    max_excess: float | Mapping[str, float] | None = None  # accepted distance from guessing: of all attacks, or by name
    advise: bool = True
    attacks: Collection[str] | None = None  # names; None: all that apply
    attack_model: bool = False  # also attack the finished model, which takes minutes: `finished.py`
    random_state: int = 0
    params: Mapping[str, Any] = field(default_factory=dict)  # of `simfl.train`: n_hashes, bucket_width, recipe, ...


def audit(
    X: Any,
    y: Any,
    *,
    sample_weight: Any = None,
    schema: Schema | None = None,
    tell: Callable[[str], None] = lambda attack: None,
    **options: Any,
) -> Audit:
    """Attack what this party would send.

    The options are those of `Options`; all others are parameters of `simfl.train`. `schema` is what a study declares of
    the columns. `tell` is called with each attack's title before it begins.

    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> worst = audit(X, y, matching="shared", advise=False).findings[0]
    >>> worst.title, worst.success > 0.9, worst.guess < 0.5
    ('Rows, from hash values', True, True)
    """
    names = {f.name for f in fields(Options)} - {"params"}
    chosen = {name: options.pop(name) for name in names & options.keys()}
    asked = Options(**chosen, params=options)
    return run(Party(asked.name, X, y, sample_weight, schema=schema), asked, tell)


def run(party: Party, options: Options, tell: Callable[[str], None]) -> Audit:
    """Try every attack that applies, then search for advice."""
    limits = _limits(options.max_excess)
    _check_names(options.attacks or ())
    options = replace(options, params=_on_columns(options.params, party.schema))
    scenario, setting = _opened(party, options)
    chosen = [t for t in _trials(scenario, setting) if options.attacks is None or t.__name__ in options.attacks]
    trials: dict[str, Callable[[], list[Finding]]] = {t.__name__: partial(t, scenario, setting) for t in chosen}
    trials |= _of_model(scenario, options)
    notes = differences(scenario, options.params, of_model=any(name in finished.TRIALS for name in trials))
    findings: list[Finding] = []
    for name, trial in trials.items():
        if why := why_not(name, scenario):
            notes.append(not_tried(name, why))
        else:
            tell(TITLES[name])
            findings += trial()
    searched = options.advise and setting.matching is not None  # hashes and buckets are all that it knows of
    if searched:
        tell("advice")
    return Audit(
        name=options.name,
        n_rows=scenario.n_rows,
        n_features=scenario.X.shape[1],
        n_attacker=len(scenario.attacker),
        n_victim=len(scenario.victim),
        setting=setting,
        findings=findings,
        advice=advise(scenario, setting, limits) if searched else [],
        limits=limits,
        sees=seen_by(setting),
        not_run=[TITLES[name] for name in finished.TRIALS if name not in trials],
        notes=notes,
    )


def _on_columns(params: Mapping[str, Any], schema: Schema | None) -> dict[str, Any]:
    """The parameters for the columns that are audited: of a category's, all but one follow from the others."""
    found, known = on_columns(params, schema), params.get("known_features", 0)
    if schema is not None and schema.has_categories and known is not None and params.get("recipe") != "joint":
        found["known_features"] = known + sum(n - 1 for n in schema.n_levels.tolist() if n)
    return found


def _opened(party: Party, options: Options) -> tuple[Scenario, Setting]:
    """Who has which rows, and what is attacked."""
    params, y, (X, schema) = dict(options.params), party.rows.y, laid_out(party)
    known: dict[str, Any] = {"weight": party.rows.weight, "schema": schema}
    if params.get("recipe") == "joint":
        if options.matching:
            raise ParameterError("matching is not available with recipe='joint': nothing is matched.")
        private = params.get("epsilon") is not None
        params["min_group"] = None if private else options.min_group  # noise stands in for groups
        known["by_column"] = options.by_column
        together = Together(X, y, options.parties, options.random_state, params, **known)
        return together, _joint_setting(together, options)
    if options.by_column is not None:
        raise ParameterError("by_column is an option of recipe='joint' only. Leave it out, or set that recipe.")
    matching = _matching(options)
    known["leaves"] = matching == "shared"
    scenario = Scenario(X, y, options.parties, options.random_state, params, **known)
    return scenario, _setting(scenario, options, matching)


def _trials(scenario: Scenario, setting: Setting) -> list[Trial]:
    """The attacks on what leaves: noisy sums are attacked together, all others one by one."""
    if setting.epsilon is not None:
        return [canaries_from_values]
    return JOINT_TRIALS if isinstance(scenario, Together) else [*trials_of(setting)]


def _of_model(scenario: Scenario, options: Options) -> dict[str, Callable[[], list[Finding]]]:
    """The attacks on the finished model that were asked for, all of them or by name. It is trained as they begin."""
    asked = finished.TRIALS if options.attack_model else ()
    wanted = [name for name in finished.TRIALS if name in (asked if options.attacks is None else options.attacks)]
    if not wanted:
        return {}
    private = parameters.is_private(scenario.stage_2)
    left_out = {"objective", *(NOT_REPEATED if private else ())}
    given = {name: value for name, value in options.params.items() if name not in left_out}
    if options.min_group and options.min_group > 1 and not private:
        given["min_group"] = options.min_group
    given |= {"masked": True, "classes": scenario.classes} if private else {}  # shares of the noise need masks
    people = finished.People.of(
        scenario.dense,
        scenario.y,
        objective=scenario.objective,
        parties=options.parties,
        seed=options.random_state,
        given=given,
        schema=scenario.schema,
    )
    return {name: partial(finished.TRIALS[name], people) for name in wanted}


def _limits(max_excess: float | Mapping[str, float] | None) -> dict[str, float]:
    if max_excess is None:
        return {}
    limits = dict(max_excess) if isinstance(max_excess, Mapping) else dict.fromkeys(TITLES, max_excess)
    _check_names(limits)
    for attack, limit in limits.items():
        if not isinstance(limit, int | float) or isinstance(limit, bool) or not 0 <= limit <= 1:
            raise ParameterError(f"max_excess={limit!r} ({attack}) is not possible: it must be from 0 to 1.")
    return limits


def _check_names(attacks: Iterable[str]) -> None:
    for attack in attacks:
        if attack not in TITLES:
            raise ParameterError(f"There is no attack {attack!r}. The attacks are: {', '.join(TITLES)}.")


def _matching(options: Options) -> Matching:
    """The given one or the recipe's. Refuses values that SimFL refuses."""
    recipe = {name: value for name, value in options.params.items() if name == "recipe"}
    parameters.train_params(min_group=options.min_group)
    return parameters.search_of(parameters.prepare_params(matching=options.matching, **recipe)).matching


def _setting(scenario: Scenario, options: Options, matching: Matching) -> Setting:
    """What is attacked: the options, and what stage 1 made of the parameters."""
    stage_1 = scenario.stage_1
    return Setting(
        matching=matching,
        masked=options.masked,
        min_group=options.min_group or 1,
        parties=options.parties,
        recipe=stage_1.recipe,
        objective=scenario.objective,
        n_hashes=scenario.hashed.n_hashes,
        bucket_width=scenario.hashed.hashing.width,
        n_neighbors=stage_1.n_neighbors,
        rematch=parameters.search_of(scenario.stage_2).rematch,
        seed=options.random_state,
    )


def _joint_setting(scenario: Together, options: Options) -> Setting:
    """What is attacked, where trees are grown together."""
    params = scenario.stage_2
    return Setting(
        matching=None,
        masked=True,
        min_group=params.min_group,
        parties=options.parties,
        recipe=params.recipe,
        objective=scenario.objective,
        n_hashes=0,
        bucket_width=0.0,
        n_neighbors=0,
        rematch=0,
        seed=options.random_state,
        epsilon=params.epsilon,
    )
