"""The trials: every attack, tried on a scenario and counted beside guessing.

A trial takes the scenario and the setting and returns findings. What it counts is a function of its own (`invert`,
`map_tokens`, ...) where the search for advice counts the same with other hash functions.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from simfl.arrays import Doubles, Ints, Longs, Mask
from simfl.audit import attacks
from simfl.audit.attributes import Attribute, decide_categories, explained, share_right
from simfl.audit.findings import Counted, Finding, Role, Setting, finding
from simfl.audit.scenario import VICTIM, HashedRows, Scenario
from simfl.audit.views import CodesView, PointersView, Prior, TokensView
from simfl.training.traversal import leaf_numbers
from simfl.training.trees import Tree

MOST_MAPPED = 600  # rows whose tokens the hub compares pair by pair
REHEARSED = 300  # rows of the attacker on which an attack is rehearsed
MOST_ASKED = 500  # rows of which each attribute in turn is the unknown one
MOST_COLUMNS = 1500  # beyond, nothing is searched attribute by attribute: it would take hours
ATTRIBUTES = "{success} of the attributes of a row right (numbers: within half a standard deviation)"
LABELS_RIGHT = "labels right"
HUB_AND_PARTIES: list[Role] = ["hub", "builder", "other party"]

Trial = Callable[[Scenario, Setting], list[Finding]]


def trials_of(setting: Setting) -> list[Trial]:
    """What there is to attack in a setting with similar rows."""
    always: list[Trial] = [rows_from_trees, values_from_trees]
    if setting.matching == "shared":
        leaves = [rows_from_leaves] if setting.rematch else []
        return [rows_from_codes, members_from_codes, attribute_from_codes, *leaves, labels_from_sums, *always]
    sums = [] if setting.masked else [labels_from_sums]
    return [rows_from_tokens, rows_from_pointers, labels_of_known_people, *sums, *always]


def _everybody(setting: Setting) -> list[Role]:
    """Who has the trees."""
    if setting.matching is not None:
        return [*HUB_AND_PARTIES, "outsider"]
    return ["other party", "submitter", "outsider"]


def _counted(scenario: Scenario, estimate: Doubles, rows: Longs) -> Counted:
    """How right an estimate of some of the victim's rows is. Guessing: the mean of the attacker's rows."""
    truth = scenario.truth[rows]
    success, guess = (share_right(found, truth, scenario.attributes) for found in (estimate, np.zeros_like(truth)))
    return Counted(success, guess, {"r2": explained(estimate, truth, scenario.prior.varies)})


def rows_from_codes(scenario: Scenario, setting: Setting) -> list[Finding]:
    """Invert the hashing: everybody who sees the tables can."""
    counted = invert(scenario, scenario.hashed, scenario.sample)
    sentence = f"Whoever sees the hash values gets {ATTRIBUTES}; without them, {{guess}}."
    return [finding("rows_from_codes", HUB_AND_PARTIES, counted, sentence)]


def invert(scenario: Scenario, hashed: HashedRows, rows: Longs, n_rehearsed: int = REHEARSED) -> Counted:
    """The inversion that does best in a rehearsal on the attacker's own rows."""
    half = np.random.default_rng([scenario.seed, 28]).permutation(len(hashed.attacker))
    known, asked = half[: len(half) // 2], half[len(half) // 2 :][:n_rehearsed]
    kinds = ["gaussian", "lookalikes", "refined"]
    if len(scenario.attributes) > MOST_COLUMNS or all(a.categories is None for a in scenario.attributes):
        kinds.remove("refined")  # for numbers alone it is slow and no better
    tried = {kind: _inverted(scenario, hashed, known, kind, hashed.attacker[asked]) for kind in kinds}
    truth = scenario.prior.rows[asked]
    best = max(kinds, key=lambda kind: float(share_right(tried[kind], truth, scenario.attributes).mean()))
    everything = np.arange(len(hashed.attacker))
    counted = _counted(scenario, _inverted(scenario, hashed, everything, best, hashed.victim[rows]), rows)
    return counted._replace(details=counted.details | {kind: float(kind == best) for kind in kinds})


def _inverted(scenario: Scenario, hashed: HashedRows, known: Longs, kind: str, codes: Ints) -> Doubles:
    """The rows behind codes: by conditioning, by the most similar of the known rows, or by searching on from both."""
    view, prior = CodesView(codes, hashed.hashing), replace(scenario.prior, rows=scenario.prior.rows[known])
    if kind == "gaussian":
        return attacks.rows_from_codes(view, prior)
    near = attacks.rows_like(hashed.attacker[known], codes, scenario.seed, scenario.stage_1.n_jobs)
    mean: Doubles = prior.rows[near].mean(axis=1)
    if kind == "lookalikes":
        return mean
    starts = [(mean + attacks.rows_from_codes(view, prior)) / 2, mean, *(prior.rows[near[:, i]] for i in range(3))]
    return attacks.refined_rows(view, prior, starts, scenario.attributes)


def members_from_codes(scenario: Scenario, setting: Setting) -> list[Finding]:
    """Look for known people's codes in the table."""
    counted = recognise(scenario, scenario.hashed, scenario.sample)
    sentence = (
        "Given a person's record, the hash values show with {success} accuracy whether it is in the table (guessing: "
        f"{{guess}}); there are {counted.details['codes_per_row']:.3f} different codes per different row."
    )
    return [finding("members_from_codes", HUB_AND_PARTIES, counted, sentence, "right answers")]


def recognise(scenario: Scenario, hashed: HashedRows, rows: Longs) -> Counted:
    """As many members as strangers are asked about; a stranger is a row of the attacker that the victim has not."""
    both = np.vstack([scenario.dense[scenario.victim], scenario.dense[scenario.attacker]])
    _, number = np.unique(both, axis=0, return_inverse=True)
    victim, attacker = number[: len(scenario.victim)], number[len(scenario.victim) :]
    strangers = np.flatnonzero(~np.isin(attacker, victim))
    n = min(len(strangers), len(rows))
    outside = attacks.members_from_codes(hashed.victim, hashed.attacker[strangers[:n]])
    inside = attacks.members_from_codes(hashed.victim, hashed.victim[rows[:n]])
    distinct = len(np.unique(hashed.victim, axis=0)) / len(np.unique(victim))
    # One entry per pair of a member and a stranger, so that resampling keeps the two in balance.
    success = (inside.astype(np.float64) + ~outside) / 2
    details = {"codes_per_row": distinct, "false_alarms": float(outside.mean()) if n else 0.0}
    return Counted(success, np.full(n, 0.5), details)


def attribute_from_codes(scenario: Scenario, setting: Setting) -> list[Finding]:
    """Everything about a person is known but one attribute: find that one."""
    if scenario.X.shape[1] > MOST_COLUMNS:
        return []
    counted = complete(scenario, scenario.hashed, scenario.sample[:MOST_ASKED])
    sentence = (
        "Whoever knows everything about a person but one attribute, and sees the hash values, gets that attribute "
        "right in {success} of all cases; from the other attributes alone, in {guess}."
    )
    return [finding("attribute_from_codes", HUB_AND_PARTIES, counted, sentence)]


def complete(scenario: Scenario, hashed: HashedRows, rows: Longs) -> Counted:
    """Each attribute of these rows in turn is the unknown one."""
    view, truth = CodesView(hashed.victim[rows], hashed.hashing), scenario.truth[rows]
    known = attacks.precision(scenario.prior)
    marks = [_one_attribute(scenario.prior, view, truth, known, attribute) for attribute in scenario.attributes]
    success, guess = (np.mean([pair[i] for pair in marks], axis=0) for i in (0, 1))
    largest = max(float(a.mean() - b.mean()) for a, b in marks)
    return Counted(success, guess, {"attributes": float(len(marks)), "largest_excess_of_one": largest})


def _one_attribute(prior: Prior, view: CodesView, truth: Doubles, known: Doubles, attribute: Attribute) -> list[Mask]:
    """Per row: right with the codes, right without."""
    columns, categories = attribute.columns, attribute.categories
    if categories is None:
        found = attacks.number_from_codes(view, prior, truth, int(columns[0]), known)
        guesses = [estimate[:, None] for estimate in found]
    else:
        guesses = [categories[n] for n in attacks.category_from_codes(view, prior, truth, columns, categories, known)]
    return [attribute.is_right(guess, truth[:, columns]) for guess in guesses]


def rows_from_leaves(scenario: Scenario, setting: Setting) -> list[Finding]:
    """A rematch sends the leaves that rows fall into, in place of hash values."""
    trees = scenario.trees()[-setting.n_hashes :]
    own, victim = (
        np.stack([leaf_numbers(tree, scenario.X[rows]) for tree in trees], axis=1)
        for rows in (scenario.attacker, scenario.victim[scenario.sample])
    )
    estimate = attacks.rows_from_leaves(own, victim, scenario.prior, scenario.seed, scenario.stage_1.n_jobs)
    sentence = f"The leaves that are sent to find similar rows again give {ATTRIBUTES}; guessing, {{guess}}."
    return [finding("rows_from_leaves", HUB_AND_PARTIES, _counted(scenario, estimate, scenario.sample), sentence)]


def rows_from_tokens(scenario: Scenario, setting: Setting) -> list[Finding]:
    """The hub of blind matching: once knowing means and deviations only, once with a sample of the population."""
    prior = scenario.prior
    noise = np.random.default_rng([scenario.seed, 24]).standard_normal(prior.rows.shape) * prior.varies
    hubs: list[tuple[Role, Prior, str]] = [
        ("hub", replace(prior, rows=noise), "knows the features' means and deviations"),
        ("hub with a sample", prior, "has a sample of the same population"),
    ]
    found = []
    for role, known, knows in hubs:
        counted = map_tokens(scenario, scenario.hashed, scenario.sample[:MOST_MAPPED], known)
        sentence = f"A hub that {knows} gets, from equal tokens alone, {ATTRIBUTES}; without them, {{guess}}."
        found.append(finding("rows_from_tokens", [role], counted, sentence))
    return found


def map_tokens(scenario: Scenario, hashed: HashedRows, rows: Longs, prior: Prior) -> Counted:
    """The hub lays a map of the tokens over what it knows."""
    scaled = hashed.hashing.directions * scenario.prior.deviation
    step = float(np.sqrt((scaled**2).mean() / max(scenario.prior.varies.mean(), 1e-12)))  # of one deviation
    rng = np.random.default_rng([scenario.seed, 25])
    view, order = TokensView.of(hashed.victim[rows], hashed.hashing.width / max(step, 1e-12), rng)
    return _counted(scenario, attacks.rows_from_tokens(view, prior, seed=scenario.seed), rows[order])


def rows_from_pointers(scenario: Scenario, setting: Setting) -> list[Finding]:
    """Average the attacker's rows that point at a foreign row."""
    counted = follow_pointers(scenario, scenario.hashed)
    sentence = (
        f"From ids, by averaging its own rows that point at a foreign row, a party gets {ATTRIBUTES}; guessing, "
        "{guess}."
    )
    return [finding("rows_from_pointers", ["other party"], counted, sentence)]


def follow_pointers(scenario: Scenario, hashed: HashedRows) -> Counted:
    """The averages, trusted as far as they prove right between two halves of the attacker's rows."""
    half = np.random.default_rng([scenario.seed, 26]).permutation(len(hashed.attacker))
    first, second = half[: len(half) // 2], half[len(half) // 2 :]
    rehearsal = _pointed_at(scenario, hashed.attacker[first], hashed.attacker[second], scenario.prior.rows[first])
    doubt = attacks.rehearsed_doubt(rehearsal, scenario.prior.rows[second])
    found = _pointed_at(scenario, hashed.attacker, hashed.victim, scenario.prior.rows)
    counted = _counted(scenario, attacks.shrunk(found, doubt), np.arange(len(hashed.victim)))
    return counted._replace(details=counted.details | {"pointed_at": float((found.counts > 0).mean())})


def _pointed_at(scenario: Scenario, own: Ints, foreign: Ints, rows: Doubles) -> attacks.PointedAt:
    k = min(scenario.stage_1.n_neighbors or 1, len(foreign))
    view = PointersView.of(own, foreign, k, seed=scenario.seed, n_jobs=scenario.stage_1.n_jobs)
    return attacks.centres(view, rows)


def labels_from_sums(scenario: Scenario, setting: Setting) -> list[Finding]:
    """Whoever knows which rows are in a sum reads their labels off it.

    With codes, that is everybody who sees the sums, and rows can be estimated too. The hub of blind matching, if sums
    are not masked, knows only which tokens are in a sum: the labels are those of rows without a name or a face.
    """
    sums, groups = scenario.sums(setting.min_group)
    there, victim = groups >= 0, slice(0, len(scenario.victim))
    if setting.matching == "shared":
        roles: list[Role] = ["builder"] if setting.masked else ["hub", "builder"]
        belief, guessing = scenario.believed(_rows_of_others(scenario)), "a model of the attacker's own rows"
        guess = scenario.labels_right(scenario.believed(scenario.X[scenario.victim]))
    else:
        roles = ["hub"]
        belief, guessing = scenario.prior_labels(len(groups)), "the most common label"
        guess = scenario.labels_right(belief[victim])
    found = belief.copy()
    found[there] = attacks.labels_from_sums(sums, groups[there], belief[there])
    success = scenario.labels_right(found[victim])
    is_alone = np.bincount(groups[there], minlength=len(scenario.attacker)) == 1
    is_pure = sums.is_pure() if scenario.loss.classifies else is_alone
    alone, pure = (float((which[groups[victim]] & there[victim]).mean()) for which in (is_alone, is_pure))
    sentence = (
        "Whoever sees the first round's sums and knows which rows are in which gets {success} of the labels right "
        f"(alone in their sum: {alone:.0%} of rows; in sums of one label: {pure:.0%}); {guessing}: {{guess}}."
    )
    counted = Counted(success, guess, {"alone": alone, "pure": pure})
    return [finding("labels_from_sums", roles, counted, sentence, LABELS_RIGHT)]


def _rows_of_others(scenario: Scenario) -> Doubles:
    """The rows of all other parties, as far as their codes reveal them; on the scale of the table."""
    rows = attacks.rows_from_codes(CodesView(scenario.hashed.others, scenario.hashed.hashing), scenario.prior)
    return decide_categories(rows, scenario.attributes) * scenario.prior.deviation + scenario.prior.mean


def labels_of_known_people(scenario: Scenario, setting: Setting) -> list[Finding]:
    """Blind matching: the builder knows a person's features, not which of its rows the gradient went to."""
    sums, _ = scenario.sums(setting.min_group)
    candidates = scenario.similar(scenario.hashed.victim, scenario.seed + 1)  # another seed: ties and draws are unknown
    belief = scenario.believed(scenario.X[scenario.victim])
    success = scenario.labels_right(attacks.labels_of_known_people(sums, candidates, belief))
    sentence = (
        "A builder that knows all features of a person gets the label right in {success} of all cases with the sums "
        "onto its own rows; with a model of its own rows alone, in {guess}."
    )
    counted = Counted(success, scenario.labels_right(belief), {})
    return [finding("labels_of_known_people", ["builder"], counted, sentence, LABELS_RIGHT)]


def rows_from_trees(scenario: Scenario, setting: Setting) -> list[Finding]:
    """The victim's first tree as a list of boxes: how well does that describe its rows?"""
    tree, truth = scenario.trees(VICTIM)[0], scenario.truth
    typical, share = attacks.rows_from_tree(tree, scenario.X[scenario.attacker], scenario.prior)
    leaf = leaf_numbers(tree, scenario.X[scenario.victim])
    counts = np.bincount(leaf, minlength=tree.n_leaves)
    guess, known = (share_right(e, truth, scenario.attributes) for e in (np.zeros_like(truth), typical[leaf]))
    # Without counts the attacker puts as many rows into a leaf as its own let it expect, and guesses the rest.
    placed = np.minimum(share * len(leaf) / np.maximum(counts, 1), 1.0)[leaf]
    details = {"leaves": float(tree.n_leaves), "with_node_statistics": float(known.mean())}
    details |= _counts_read(scenario, tree)
    whose = "victim's " if setting.matching else ""
    sentence = (
        f"Whoever sees the {whose}first tree gets {ATTRIBUTES}; guessing, {{guess}}; with the row "
        f"counts that XGBoost keeps of nodes it would be {details['with_node_statistics']:.1%}."
    )
    if "counts_read" in details:
        sentence += f" The leaf values alone give away the counts of {details['counts_read']:.0%} of its leaves."
    counted = Counted(placed * known + (1 - placed) * guess, guess, details)
    return [finding("rows_from_trees", _everybody(setting), counted, sentence)]


def _counts_read(scenario: Scenario, tree: Tree) -> dict[str, float]:
    """The share of leaves whose number of rows, over all parties, can be read off their value."""
    params, loss = scenario.stage_2, scenario.loss
    exact = params.leaf_values == "global" and not params.reg_alpha and not params.max_delta_step
    counts_once = params.scale_pos_weight == 1 and scenario.weight is None
    if not scenario.two_classes or not counts_once or not exact:
        return {}
    counts = np.bincount(leaf_numbers(tree, scenario.X), minlength=tree.n_leaves)
    (p,) = loss.predicted(loss.margin(scenario.start)).tolist()
    found = attacks.counts_from_leaf_values(
        tree.value[tree.leaves], p, params.learning_rate, params.reg_lambda, len(scenario.y)
    )
    return {"counts_read": float((found == counts).mean())}


def values_from_trees(scenario: Scenario, setting: Setting) -> list[Finding]:
    """Thresholds that are exact values of the victim's rows. Yes/no columns reveal nothing that way."""
    trees = scenario.trees(VICTIM)
    rows, own = (scenario.dense[part].astype(np.float32) for part in (scenario.victim, scenario.attacker))
    columns, hit = attacks.revealed_values(trees, rows)
    numbers = np.isin(columns, [a.columns[0] for a in scenario.attributes if a.categories is None])
    if not numbers.any():
        return []
    columns, success = columns[numbers], hit[numbers].astype(np.float64)
    chance = {c: float(np.isin(np.unique(own[:, c]), rows[:, c]).mean()) for c in np.unique(columns).tolist()}
    guess = np.array([chance[c] for c in columns.tolist()])
    whose = "victim's " if setting.matching else ""
    sentence = (
        f"Of the different thresholds in the {whose}{len(trees)} trees, {{success}} are exact values of the victim's "
        "rows; of the attacker's own values in these columns, {guess} are."
    )
    measure = "thresholds that are exact values"
    return [finding("values_from_trees", _everybody(setting), Counted(success, guess, {}), sentence, measure)]
