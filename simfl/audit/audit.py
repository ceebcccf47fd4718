"""The audit: what would leave a party is attacked for real, on the party's own rows, before anything is sent.

The rows are split at random into an attacker, a victim and further parties (`case.py`). The attacker knows its own
rows, the protocol and what its role would see of the victim (`views.py`); the attacks are in `attacks.py`. Each success
stands beside what the same attacker gets by guessing, without the message. What no attack here finds may still be
found by another: an audit shows leaks, it cannot prove that there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from simfl import params as parameters
from simfl.arrays import AnyArray, Doubles, Ints, Longs
from simfl.audit import attacks, views
from simfl.audit.findings import TITLES, Advice, Audit, Finding, Ids, Matching, Role, Setting, finding
from simfl.audit.scenario import VICTIM, Case, Hashed
from simfl.audit.views import Codes, Pointers, Prior, Tokens
from simfl.errors import FileError, ParameterError
from simfl.privacy.guard import default_hashes
from simfl.training.traversal import leaf_numbers
from simfl.training.trees import Tree

MOST_MAPPED = 600  # rows whose tokens the hub compares pair by pair
REHEARSED = 300  # own rows on which an attack is tried out first
MOST_ASKED = 500  # rows of which each attribute in turn is the unknown one
MOST_COLUMNS = 1500  # beyond, no search attribute by attribute, nor what all others say about one: it would take hours
FRESH_TREES = 50  # over which fresh ids may be linked again
ADVISED_ROWS = 150  # the search for advice counts on fewer rows,
ADVISED_DRAWS = 2  # but with several draws of the hash functions
DEFAULT_LIMIT = 0.1
ATTRIBUTES = "attributes of a row right (numbers: within half a standard deviation)"
MEASURE = "attributes right"
HUB_AND_PARTIES: list[Role] = ["hub", "builder", "other party"]
EVERYBODY: list[Role] = [*HUB_AND_PARTIES, "outsider"]

Option = TypeVar("Option")
Counted = tuple[Doubles, Doubles, dict[str, float]]  # per row: success, success of guessing; more figures
Attack = Callable[[Case, Setting], list[Finding]]


def audit(
    X: Any,
    y: Any,
    *,
    name: str = "table",
    matching: Matching | None = None,
    ids: Ids | None = None,
    masked: bool = False,
    min_group: int = 1,
    parties: int = 2,
    max_excess: float | Mapping[str, float] | None = None,
    advise: bool = True,
    attacks: Collection[str] | None = None,
    random_state: int = 0,
    watch: Callable[[str], None] = lambda attack: None,
    **params: Any,
) -> Audit:
    """Attack what this party would send.

    `matching`, `ids`, `masked` and `min_group` say how rows are matched and sums protected; `parties` how many parties
    share the rows. `max_excess` is the distance from guessing that is accepted, for all attacks or for each by name.
    `attacks` names some of the attacks (all, if not given). `params` are those of `simfl.train` (n_hashes,
    bucket_width, recipe, ...). `watch` is told what comes next.

    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> worst = audit(X, y, matching="shared", advise=False).findings[0]
    >>> worst.title, worst.success > 0.9, worst.guess < 0.5
    ('Rows, from hash values', True, True)
    """
    limits = _limits(max_excess)
    _known(attacks or ())
    if min_group < 1:
        raise ParameterError(f"min_group={min_group} is not possible: a sum has at least one member.")
    known = parameters.defaults()
    recipe = parameters.RECIPES.get(params.get("recipe", known["recipe"]), {})
    matching = _word("matching", matching or recipe.get("matching", "shared"), ("shared", "blind"))
    ids = _word("ids", ids or known["ids"], ("linked", "fresh"))
    case = Case(X, y, parties, random_state, params, leaves=matching == "shared")
    setting = _setting(case, matching=matching, ids=ids, masked=masked, min_group=min_group)
    findings = []
    for attack in attacks_on(setting):
        if attacks is None or attack.__name__ in attacks:
            watch(TITLES[attack.__name__])
            findings += attack(case, setting)
    if advise:
        watch("advice")
    return Audit(
        name=name,
        n_rows=case.n_rows,
        n_features=case.X.shape[1],
        n_attacker=len(case.attacker),
        n_victim=len(case.victim),
        setting=setting,
        findings=findings,
        advice=_advice(case, setting, limits) if advise else [],
        limits=limits,
    )


def _setting(case: Case, **chosen: Any) -> Setting:
    """What is attacked: what was chosen, and what stage 1 made of the rest."""
    return Setting(
        **chosen,
        parties=len(case.members),
        recipe=case.settled.recipe,
        objective=case.objective,
        n_hashes=case.hashed.n_hashes,
        bucket_width=case.hashed.hashing.width,
        n_neighbors=case.settled.n_neighbors or 0,
        scale=case.settled.scale or "none",
        rematch=case.later.rematch or 0,
        seed=case.seed,
    )


def _word(name: str, value: Any, known: tuple[str, ...]) -> Any:
    if value not in known:
        raise ParameterError(f"{name}={value!r} is not possible: it must be one of {', '.join(map(repr, known))}.")
    return value


def _known(attacks: Iterable[str]) -> None:
    for attack in attacks:
        if attack not in TITLES:
            raise ParameterError(f"There is no attack {attack!r}. The attacks are: {', '.join(TITLES)}.")


def _limits(max_excess: float | Mapping[str, float] | None) -> dict[str, float]:
    if max_excess is None:
        return {}
    limits = dict(max_excess) if isinstance(max_excess, Mapping) else dict.fromkeys(TITLES, max_excess)
    _known(limits)
    for attack, limit in limits.items():
        if not isinstance(limit, int | float) or isinstance(limit, bool) or not 0 <= limit <= 1:
            raise ParameterError(f"max_excess={limit!r} ({attack}) is not possible: it must be from 0 to 1.")
    return limits


# --- study files -----------------------------------------------------------------------------------------------------


class StudyAudit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The [audit] table of a study file."""

    data: str | None = None  # a table beside the study file; else that of party.toml
    label: str | None = None
    matching: Matching | None = None
    ids: Ids | None = None
    masked: bool = False
    min_group: int = 1
    parties: int = 2
    max_excess: float | dict[str, float] | None = None
    params: dict[str, Any] = {}  # of simfl.train

    def options(self) -> dict[str, Any]:
        """What `audit` is to be called with."""
        names = ("matching", "ids", "masked", "min_group", "parties", "max_excess")
        return {name: getattr(self, name) for name in names} | self.params


class _Study(msgspec.Struct, frozen=True):
    audit: StudyAudit = StudyAudit()


def read_study(path: Path) -> StudyAudit:
    """The [audit] table; the rest of a study file belongs to others."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=_Study).audit
    except OSError as error:
        raise FileError(f"The study {path} cannot be read: {error.strerror}.") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise FileError(f"The [audit] table of the study {path} cannot be used: {error}.") from None


# --- the attacks, one by one -----------------------------------------------------------------------------------------


def attacks_on(setting: Setting) -> list[Attack]:
    """What there is to attack in a setting."""
    if setting.matching == "shared":
        found: list[Attack] = [rows_from_codes, members_from_codes, attribute_from_codes]
        found += [rows_from_leaves] if setting.rematch else []
        found += [labels_from_sums]
    else:
        found = [rows_from_tokens, rows_from_pointers, labels_of_known_people]
        found += [] if setting.masked else [labels_from_sums]
    return [*found, rows_from_trees, values_from_trees]


def rows_from_codes(case: Case, setting: Setting) -> list[Finding]:
    """Invert the hashing: everybody who sees the tables can."""
    success, guess, details = _invert(case, case.hashed, case.sample)
    sentence = f"Whoever sees the hash values gets {{success}} of the {ATTRIBUTES}; without them, {{guess}}."
    return [finding("rows_from_codes", HUB_AND_PARTIES, MEASURE, success, guess, sentence, **details)]


def _invert(case: Case, hashed: Hashed, rows: Longs, n_rehearsed: int = REHEARSED) -> Counted:
    """The attack that does best in a rehearsal on the attacker's own rows."""
    half = np.random.default_rng([case.seed, 28]).permutation(len(hashed.own))
    known, asked = half[: len(half) // 2], half[len(half) // 2 :][:n_rehearsed]
    less = Prior(case.prior.mean, case.prior.deviation, case.prior.rows[known])
    truth, kinds = case.prior.rows[asked], ["gaussian", "lookalikes", "refined"]
    if len(case.attributes) > MOST_COLUMNS or all(a.settings is None for a in case.attributes):
        kinds.remove("refined")  # for numbers alone it is slow and no better
    tried = {
        kind: case.right(_estimate(case, kind, hashed.hashing, hashed.own[known], less, hashed.own[asked]), truth)
        for kind in kinds
    }
    best = max(kinds, key=lambda kind: float(tried[kind].mean()))
    estimate = _estimate(case, best, hashed.hashing, hashed.own, case.prior, hashed.victim[rows])
    success, guess, details = _counted(case, estimate, rows)
    return success, guess, details | {kind: float(kind == best) for kind in kinds}


def _estimate(case: Case, kind: str, hashing: views.Hashing, own: Ints, prior: Prior, codes: Ints) -> Doubles:
    """The rows behind codes: by conditioning, by rows of one's own that are alike, or by searching on from both."""
    view = Codes(codes, hashing)
    if kind == "gaussian":
        return attacks.rows_from_codes(view, prior)
    near = attacks.rows_like(own, codes, case.seed, case.settled.n_jobs)
    mean: Doubles = prior.rows[near].mean(axis=1)
    if kind == "lookalikes":
        return mean
    starts = [(mean + attacks.rows_from_codes(view, prior)) / 2, mean, *(prior.rows[near[:, i]] for i in range(3))]
    return attacks.refined_rows(view, prior, starts, case.attributes)


def _counted(case: Case, estimate: Doubles, rows: Longs) -> Counted:
    truth = case.truth[rows]
    guess = case.right(np.zeros_like(truth), truth)
    return case.right(estimate, truth), guess, {"r2": case.explained(estimate, truth)}


def members_from_codes(case: Case, setting: Setting) -> list[Finding]:
    """Look for known people's codes in the table."""
    success, guess, details = _membership(case, case.hashed, case.sample)
    sentence = (
        "Given a person's record, a look at the hash values tells with {success} accuracy whether it is in the table "
        f"(guessing: {{guess}}); there are {details['codes_per_row']:.3f} different codes per different row."
    )
    return [finding("members_from_codes", HUB_AND_PARTIES, "right answers", success, guess, sentence, **details)]


def _membership(case: Case, hashed: Hashed, rows: Longs) -> Counted:
    """As many members as strangers are asked about; a stranger is a row of the attacker that the victim has not."""
    both = np.vstack([case.dense[case.victim], case.dense[case.attacker]])
    _, number = np.unique(both, axis=0, return_inverse=True)
    mine, theirs = number[: len(case.victim)], number[len(case.victim) :]
    strangers = np.flatnonzero(~np.isin(theirs, mine))
    n = min(len(strangers), len(rows))
    outside = attacks.members_from_codes(hashed.victim, hashed.own[strangers[:n]])
    inside = attacks.members_from_codes(hashed.victim, hashed.victim[rows[:n]])
    distinct = len(np.unique(hashed.victim, axis=0)) / len(np.unique(mine))
    # One entry per pair of a member and a stranger, so that resampling keeps the two in balance.
    success = (inside.astype(np.float64) + ~outside) / 2
    details = {"codes_per_row": distinct, "false_alarms": float(outside.mean()) if n else 0.0}
    return success, np.full(n, 0.5), details


def attribute_from_codes(case: Case, setting: Setting) -> list[Finding]:
    """All of a person known but one attribute: find that one."""
    if case.X.shape[1] > MOST_COLUMNS:
        return []
    success, guess, details = _attribute(case, case.hashed, case.sample[:MOST_ASKED])
    sentence = (
        "Who knows all of a person but one attribute and sees the hash values gets that attribute right in {success} "
        "of all cases; from the other attributes alone, in {guess}."
    )
    return [finding("attribute_from_codes", HUB_AND_PARTIES, MEASURE, success, guess, sentence, **details)]


def _attribute(case: Case, hashed: Hashed, rows: Longs) -> Counted:
    view, truth, known = Codes(hashed.victim[rows], hashed.hashing), case.truth[rows], attacks.Precision.of(case.prior)
    marks = [_one_attribute(case, view, truth, known, attribute) for attribute in case.attributes]
    success, guess = (np.mean([pair[i] for pair in marks], axis=0) for i in (0, 1))
    largest = max(float(a.mean() - b.mean()) for a, b in marks)
    return success, guess, {"attributes": float(len(marks)), "largest_excess_of_one": largest}


def _one_attribute(
    case: Case, view: Codes, truth: Doubles, known: attacks.Precision, attribute: attacks.Attribute
) -> tuple[AnyArray, AnyArray]:
    """Per row: right with the codes, right without."""
    columns, settings = attribute.columns, attribute.settings
    if settings is None:
        found = attacks.number_from_codes(view, case.prior, truth, int(columns[0]), known)
        guesses = [estimate[:, None] for estimate in found]
    else:
        guesses = [settings[p] for p in attacks.setting_from_codes(view, case.prior, truth, columns, settings, known)]
    marks = [attribute.right(guess, truth[:, columns]) for guess in guesses]
    return marks[0], marks[1]


def rows_from_leaves(case: Case, setting: Setting) -> list[Finding]:
    """A rematch sends the leaves that rows fall into, in place of hash values."""
    trees = case.trees()[-setting.n_hashes :]
    own, victim = (
        np.stack([leaf_numbers(tree, case.X[rows]) for tree in trees], axis=1)
        for rows in (case.attacker, case.victim[case.sample])
    )
    estimate = attacks.rows_from_leaves(own, victim, case.prior, case.seed, case.settled.n_jobs)
    success, guess, details = _counted(case, estimate, case.sample)
    sentence = (
        f"The leaves that are sent to find similar rows anew give {{success}} of the {ATTRIBUTES}; guessing, {{guess}}."
    )
    return [finding("rows_from_leaves", HUB_AND_PARTIES, MEASURE, success, guess, sentence, **details)]


def rows_from_tokens(case: Case, setting: Setting) -> list[Finding]:
    """The hub of blind matching: once knowing means and deviations only, once with a sample of the population."""
    rows = case.sample[:MOST_MAPPED]
    noise = np.random.default_rng([case.seed, 24]).standard_normal(case.prior.rows.shape) * case.prior.varies
    knowing: list[tuple[Role, Prior, str]] = [
        ("hub", Prior(case.prior.mean, case.prior.deviation, noise), "knows the features' means and deviations"),
        ("hub with a sample", case.prior, "has a sample of the same population"),
    ]
    found = []
    for role, prior, knows in knowing:
        success, guess, details = _map_tokens(case, case.hashed, rows, prior)
        sentence = (
            f"A hub that {knows} gets, from equal tokens alone, {{success}} of the {ATTRIBUTES}; without them, "
            "{guess}."
        )
        found.append(finding("rows_from_tokens", [role], MEASURE, success, guess, sentence, **details))
    return found


def _map_tokens(case: Case, hashed: Hashed, rows: Longs, prior: Prior) -> Counted:
    scaled = hashed.hashing.directions * case.prior.deviation
    length = float(np.sqrt((scaled**2).mean() / max(case.prior.varies.mean(), 1e-12)))  # of a step of one deviation
    rng = np.random.default_rng([case.seed, 25])
    view, order = Tokens.of(hashed.victim[rows], hashed.hashing.width / max(length, 1e-12), rng)
    return _counted(case, attacks.rows_from_tokens(view, prior, seed=case.seed), rows[order])


def rows_from_pointers(case: Case, setting: Setting) -> list[Finding]:
    """Average one's own rows that point at a foreign row."""
    success, guess, details = _point(case, setting.ids, case.hashed)
    ids = "ids that last" if setting.ids == "linked" else "ids that change with every tree"
    sentence = (
        f"From {ids}, by averaging its own rows that point at a foreign row, a party gets {{success}} of the "
        f"{ATTRIBUTES}; guessing, {{guess}}."
    )
    return [finding("rows_from_pointers", ["other party"], MEASURE, success, guess, sentence, **details)]


def _point(case: Case, ids: Ids, hashed: Hashed) -> Counted:
    half = np.random.default_rng([case.seed, 26]).permutation(len(hashed.own))
    mine, others = half[: len(half) // 2], half[len(half) // 2 :]
    rehearsal, places = _pointers(case, hashed.own[mine], hashed.own[others], ids)
    known = case.prior.rows[others][places[0]]
    tried = []
    for locate in [attacks.centres, attacks.relinked_centres] if ids == "fresh" else [attacks.centres]:
        found = locate(rehearsal, case.prior.rows[mine])
        shrinkage = attacks.Shrinkage.rehearse(found, known)
        tried.append((case.explained(shrinkage.apply(found), known), locate, shrinkage))
    _, locate, shrinkage = max(tried, key=lambda attempt: attempt[0])
    view, places = _pointers(case, hashed.own, hashed.victim, ids)
    found = locate(view, case.prior.rows)
    success, guess, details = _counted(case, shrinkage.apply(found), places[0])
    more = {"pointed_at": float((found.counts > 0).mean()), "linked_again": float(locate is attacks.relinked_centres)}
    return success, guess, details | more


def _pointers(case: Case, own: Ints, foreign: Ints, ids: Ids) -> tuple[Pointers, list[Longs]]:
    k = min(case.settled.n_neighbors or 1, len(foreign))
    return views.pointers(
        own, foreign, k, case.seed, fresh=ids == "fresh", n_trees=FRESH_TREES, n_jobs=case.settled.n_jobs
    )


def labels_from_sums(case: Case, setting: Setting) -> list[Finding]:
    """Who knows which rows are in a sum reads their labels off it.

    With codes, that is everybody who sees the sums, and rows can be estimated too. The hub of blind matching, if sums
    are not masked, knows only which tokens are in a sum: the labels are those of rows without a name or a face.
    """
    sums, groups = case.sums(setting.min_group)
    mine = slice(0, len(case.victim))
    if setting.matching == "shared":
        rows = attacks.rows_from_codes(Codes(case.hashed.others, case.hashed.hashing), case.prior)
        belief = case.believed(attacks.settled(rows, case.attributes) * case.prior.deviation + case.prior.mean)
        roles: list[Role] = ["builder"] if setting.masked else ["hub", "builder"]
        guess, guessing = case.labels_right(case.believed(case.X[case.victim])), "a model of the attacker's own rows"
    else:
        belief, roles = case.prior_labels(len(groups)), ["hub"]
        guess, guessing = case.labels_right(belief[mine]), "the most common label"
    success = case.labels_right(attacks.labels_from_sums(sums, groups, belief)[mine])
    alone = float((sums.members()[groups[mine]] == 1).mean())
    pure = float(sums.is_pure()[groups[mine]].mean())
    sentence = (
        "Who sees the first round's sums and knows which rows are in which gets {success} of the labels right "
        f"(alone in their sum: {alone:.0%} of rows; in sums of one label: {pure:.0%}); {guessing}: {{guess}}."
    )
    return [finding("labels_from_sums", roles, "labels right", success, guess, sentence, alone=alone, pure=pure)]


def labels_of_known_people(case: Case, setting: Setting) -> list[Finding]:
    """Blind matching: the builder knows a person's features, not which of its rows the gradient went to."""
    sums, _ = case.sums(setting.min_group)
    candidates = case.similar(case.hashed.victim, case.seed + 1)  # another seed: ties and draws are not known
    belief = case.believed(case.X[case.victim])
    success = case.labels_right(attacks.labels_of_known_people(sums, candidates, belief))
    sentence = (
        "A builder that knows all features of a person gets the label right in {success} of all cases with the sums "
        "onto its own rows; with a model of its own rows alone, in {guess}."
    )
    roles: list[Role] = ["builder"]
    guess = case.labels_right(belief)
    return [finding("labels_of_known_people", roles, "labels right", success, guess, sentence)]


def rows_from_trees(case: Case, setting: Setting) -> list[Finding]:
    """The victim's first tree as a list of boxes: how well does that describe its rows?"""
    tree = case.trees(VICTIM)[0]
    typical, share = attacks.rows_from_tree(tree, case.X[case.attacker], case.prior)
    leaf = leaf_numbers(tree, case.X[case.victim])
    counts = np.bincount(leaf, minlength=tree.n_leaves)
    guess, known = case.right(np.zeros_like(case.truth), case.truth), case.right(typical[leaf], case.truth)
    # Without counts the attacker puts as many rows into a leaf as its own let it expect; the rest it has elsewhere.
    placed = np.minimum(share * len(leaf) / np.maximum(counts, 1), 1.0)[leaf]
    success = placed * known + (1 - placed) * guess
    details = {"leaves": float(tree.n_leaves), "with_node_statistics": float(known.mean())} | _counts_read(case, tree)
    sentence = (
        f"Who sees the victim's first tree gets {{success}} of the {ATTRIBUTES}; guessing, {{guess}}; with the row "
        f"counts that XGBoost keeps of nodes it would be {details['with_node_statistics']:.1%}."
    )
    if "counts_read" in details:
        sentence += f" The leaf values alone give away the counts of {details['counts_read']:.0%} of its leaves."
    return [finding("rows_from_trees", EVERYBODY, MEASURE, success, guess, sentence, **details)]


def _counts_read(case: Case, tree: Tree) -> dict[str, float]:
    """The share of leaves whose number of rows, over all parties, can be read off their value."""
    params = case.later
    exact = params.leaf_values == "global" and not params.reg_alpha and not params.max_delta_step
    if case.objective != "binary:logistic" or not exact or params.turns == "all":
        return {}
    counts = np.bincount(leaf_numbers(tree, case.X), minlength=tree.n_leaves)
    found = attacks.counts_from_leaf_values(
        tree.value[tree.leaves], float(case.start[0]), params.learning_rate, params.reg_lambda, len(case.y)
    )
    return {"counts_read": float((found == counts).mean())}


def values_from_trees(case: Case, setting: Setting) -> list[Finding]:
    """Thresholds that are exact values of the victim's rows. Yes/no columns have nothing to tell that way."""
    trees = case.trees(VICTIM)
    rows, own = (case.dense[part].astype(np.float32) for part in (case.victim, case.attacker))
    columns, hit = attacks.revealed_values(trees, rows)
    telling = np.isin(columns, [a.columns[0] for a in case.attributes if a.settings is None])
    if not telling.any():
        return []
    columns, success = columns[telling], hit[telling].astype(np.float64)
    chance = {c: float(np.isin(np.unique(own[:, c]), rows[:, c]).mean()) for c in np.unique(columns).tolist()}
    guess = np.array([chance[c] for c in columns.tolist()])
    sentence = (
        f"Of the different thresholds in the victim's {len(trees)} trees, {{success}} are exact values of its rows; of "
        "the attacker's own values in these columns, {guess} are."
    )
    return [finding("values_from_trees", EVERYBODY, "thresholds that are exact values", success, guess, sentence)]


# --- advice ----------------------------------------------------------------------------------------------------------

WIDTHS = tuple(2.0 ** (step / 2) for step in range(-4, 17))  # times the chosen bucket_width


def _advice(case: Case, setting: Setting, limits: Mapping[str, float]) -> list[Advice]:
    """For each attack on the hashing: the most hashes and the narrowest buckets that keep it within its limit."""
    rows = case.sample[:ADVISED_ROWS]
    measures: dict[str, Callable[[Hashed], Counted]] = {}
    if setting.matching == "shared":
        measures["rows_from_codes"] = lambda hashed: _invert(case, hashed, rows, ADVISED_ROWS)
        measures["members_from_codes"] = lambda hashed: _membership(case, hashed, rows)
        if case.X.shape[1] <= MOST_COLUMNS:
            measures["attribute_from_codes"] = lambda hashed: _attribute(case, hashed, rows)
    else:
        measures["rows_from_tokens"] = lambda hashed: _map_tokens(case, hashed, rows, case.prior)
        measures["rows_from_pointers"] = lambda hashed: _point(case, setting.ids, hashed)
    return [_advise(case, attack, limits.get(attack, DEFAULT_LIMIT), count) for attack, count in measures.items()]


def _advise(case: Case, attack: str, limit: float, count: Callable[[Hashed], Counted]) -> Advice:
    n, width = case.hashed.n_hashes, case.hashed.hashing.width

    def within(n_hashes: int, bucket_width: float) -> bool:
        # Several draws: one set of directions and offsets can be lucky.
        counted = [count(case.hash(n_hashes, bucket_width, draw)) for draw in range(ADVISED_DRAWS)]
        return float(np.mean([(success - guess).mean() for success, guess, _ in counted])) <= limit

    most = max(n, default_hashes(case.n_features))
    fewer = first_within(list(range(most, 0, -1)), lambda count: within(count, width))
    wider = first_within([width * times for times in WIDTHS], lambda each: within(n, each))
    told = [
        f"at most {fewer} hashes with buckets of {width:.3g}" if fewer else f"no number of hashes does at {width:.3g}",
        f"buckets of at least {wider:.3g} with {n} hashes" if wider else "no bucket width that was tried does",
    ]
    return Advice(
        attack=attack,
        title=TITLES[attack],
        max_excess=limit,
        n_hashes=fewer,
        bucket_width=wider,
        sentence=f"To keep it within {100 * limit:.0f} points of guessing: {told[0]}; or {told[1]}.",
    )


def first_within(options: list[Option], holds: Callable[[Option], bool]) -> Option | None:
    """The first option that holds, where all after it hold too; None if not even the last does. By bisection.

    >>> first_within([5, 4, 3, 2, 1], lambda n: n * n < 10)
    3
    """
    if not holds(options[-1]):
        return None
    low, high = 0, len(options) - 1  # options[high] holds
    while low < high:
        middle = (low + high) // 2
        if holds(options[middle]):
            high = middle
        else:
            low = middle + 1
    return options[high]
