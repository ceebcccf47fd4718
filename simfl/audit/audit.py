"""The audit: what would leave a party is attacked for real, on the party's own rows, before anything is sent.

The rows are split at random into an attacker, a victim and further parties (`scenario.py`). The attacker knows its own
rows, the protocol and what its role would see of the victim (`views.py`). Each attack (`attacks.py`) is tried on the
victim (`trials.py`); its success stands beside what the same attacker gets by guessing, without the message. An audit
shows leaks, but cannot prove that there are none: another attack may find what these do not.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from simfl import params as parameters
from simfl.audit import finished
from simfl.audit.advice import advise
from simfl.audit.findings import TITLES, Audit, Finding, Setting
from simfl.audit.joint import TRIALS as JOINT_TRIALS
from simfl.audit.private import NOT_REPEATED, canaries_from_values
from simfl.audit.roles import seen_by
from simfl.audit.scenario import Scenario
from simfl.audit.together import Together
from simfl.audit.trials import Trial, trials_of
from simfl.errors import ParameterError
from simfl.params import Ids, Matching


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to audit, and against which limits."""

    name: str = "table"
    matching: Matching | None = None  # None: the recipe's
    ids: Ids = "linked"
    masked: bool = False  # the hub sees no sums
    min_group: int | None = None  # None: the recipe's
    parties: int = 2  # that share the rows
    by_column: int | None = None  # joint recipe: they differ in this column (its number); None: divided at random
    max_excess: float | Mapping[str, float] | None = None  # accepted distance from guessing: of all attacks, or by name
    advise: bool = True
    attacks: Collection[str] | None = None  # names; None: all that apply
    attack_model: bool = False  # also attack the finished model, which takes minutes: `finished.py`
    random_state: int = 0
    notes: Sequence[str] = ()  # what a reader of the findings must know
    params: Mapping[str, Any] = field(default_factory=dict)  # of `simfl.train`: n_hashes, bucket_width, recipe, ...


def audit(X: Any, y: Any, *, tell: Callable[[str], None] = lambda attack: None, **options: Any) -> Audit:
    """Attack what this party would send.

    The options are those of `Options`; all others are parameters of `simfl.train`. `tell` is called with each attack's
    title before it begins.

    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> worst = audit(X, y, matching="shared", advise=False).findings[0]
    >>> worst.title, worst.success > 0.9, worst.guess < 0.5
    ('Rows, from hash values', True, True)
    """
    names = {f.name for f in fields(Options)} - {"params"}
    chosen = {name: options.pop(name) for name in names & options.keys()}
    return run(X, y, Options(**chosen, params=options), tell)


def run(X: Any, y: Any, options: Options, tell: Callable[[str], None]) -> Audit:
    """Try every attack that applies, then search for advice."""
    limits = _limits(options.max_excess)
    _check_names(options.attacks or ())
    scenario, setting = _opened(X, y, options)
    findings = []
    for trial in _trials(scenario, setting):
        if options.attacks is None or trial.__name__ in options.attacks:
            tell(TITLES[trial.__name__])
            findings += trial(scenario, setting)
    findings += _attack_model(scenario, options, tell)
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
        not_run=[TITLES[name] for name in finished.TRIALS if name not in _of_model(options)],
        notes=[*options.notes],
    )


def _opened(X: Any, y: Any, options: Options) -> tuple[Scenario, Setting]:
    """Who has which rows, and what is attacked."""
    params = dict(options.params)
    if params.get("recipe") == "joint":
        if options.matching or options.ids != "linked":
            raise ParameterError("matching and ids are not available with recipe='joint': nothing is matched.")
        private = params.get("epsilon") is not None
        params["min_group"] = None if private else options.min_group  # noise stands in for groups
        together = Together(X, y, options.parties, options.random_state, params, options.by_column)
        return together, _joint_setting(together, options)
    if options.by_column is not None:
        raise ParameterError("by_column is an option of recipe='joint' only. Leave it out, or set that recipe.")
    matching = _matching(options)
    scenario = Scenario(X, y, options.parties, options.random_state, params, leaves=matching == "shared")
    return scenario, _setting(scenario, options, matching)


def _trials(scenario: Scenario, setting: Setting) -> list[Trial]:
    """The attacks on what leaves: noisy sums are attacked together, all others one by one."""
    if setting.epsilon is not None:
        return [canaries_from_values]
    return JOINT_TRIALS if isinstance(scenario, Together) else [*trials_of(setting)]


def _of_model(options: Options) -> list[str]:
    """The attacks on the finished model that were asked for: all of them, or by name."""
    return [
        name
        for name in finished.TRIALS
        if (options.attack_model if options.attacks is None else name in options.attacks)
    ]


def _attack_model(scenario: Scenario, options: Options, tell: Callable[[str], None]) -> list[Finding]:
    """Train as the options say, and attack what comes out."""
    wanted = _of_model(options)
    if not wanted:
        return []
    left_out = {"objective", *(parameters.NOT_JOINT if options.params.get("recipe") == "joint" else ())}
    private = parameters.is_private(scenario.stage_2)
    left_out |= {*NOT_REPEATED} if private else set()
    given = {name: value for name, value in options.params.items() if name not in left_out}
    if options.min_group and options.min_group > 1 and not private:
        given["min_group"] = options.min_group
    given |= {"masked": True} if private else {}  # shares of the noise need masks
    rows, seed = (scenario.dense, scenario.y), options.random_state
    people = finished.People.of(*rows, objective=scenario.objective, parties=options.parties, seed=seed, given=given)
    findings = []
    for name in wanted:
        tell(TITLES[name])
        findings += finished.TRIALS[name](people)
    return findings


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
    parameters.prepare_params(matching="blind", ids=options.ids)
    parameters.train_params(min_group=options.min_group)
    return parameters.prepare_params(matching=options.matching, **recipe).matching or "shared"


def _setting(scenario: Scenario, options: Options, matching: Matching) -> Setting:
    """What is attacked: the options, and what stage 1 made of the parameters."""
    stage_1 = scenario.stage_1
    return Setting(
        matching=matching,
        ids=options.ids,
        masked=options.masked,
        min_group=options.min_group or 1,
        parties=options.parties,
        recipe=stage_1.recipe,
        objective=scenario.objective,
        n_hashes=scenario.hashed.n_hashes,
        bucket_width=scenario.hashed.hashing.width,
        n_neighbors=stage_1.n_neighbors or 0,
        scale=stage_1.scale or "none",
        rematch=scenario.stage_2.rematch or 0,
        seed=options.random_state,
    )


def _joint_setting(scenario: Together, options: Options) -> Setting:
    """What is attacked, where trees are grown together."""
    params = scenario.stage_2
    return Setting(
        matching=None,
        ids="linked",
        masked=True,
        min_group=params.min_group or 1,
        parties=options.parties,
        recipe=params.recipe,
        objective=scenario.objective,
        n_hashes=0,
        bucket_width=0.0,
        n_neighbors=0,
        scale="none",
        rematch=0,
        seed=options.random_state,
        readers=params.readers,
        hub_sees=params.hub_sees,
        epsilon=params.epsilon,
    )
