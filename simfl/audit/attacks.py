"""The attacks: pure functions from what a role sees (`views.py`) and its own rows to estimates of a victim's rows.

All estimates are on the attacker's scale: 0 is the mean of its rows, 1 their deviation. An attack that has to weigh
what it sees learns the weight in a rehearsal on the attacker's own rows, as a real attacker would. No attack sees what
it guesses; only the trials (`trials.py`) compare the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import linalg, sparse, special

from simfl.arrays import AnyArray, Doubles, Floats, Ints, Longs, Mask
from simfl.audit.attributes import Attribute, decide_categories
from simfl.audit.views import CodesView, Hashing, PointersView, Prior, RowSumsView, TokensView
from simfl.preprocessing.similarity import most_similar
from simfl.training.traversal import leaf_numbers
from simfl.training.trees import LEAF, Tree

RIDGE = 1e-3  # added to the prior's variances: few rows must not make a covariance certain
ROWS_AT_ONCE = 512
SWEEPS = 4  # over all attributes
RARITY = 1e-3  # weight of how rare a value is: small beside any misfit
CLOSEST = 10  # rows of the attacker that stand for a victim's row
TRIED = 24  # values that are tried for an unknown number
REHEARSALS = 3  # of the hub, with hash functions of its own
FITTING_ROUNDS = 30
PRECISION = 2e-6  # of a leaf value: float32


# --- from hash values ------------------------------------------------------------------------------------------------


def rows_from_codes(view: CodesView, prior: Prior) -> Doubles:
    """Inversion of the hashing: the mean of a Gaussian prior, given the bucket that each projection lies in.

    Every bucket is turned into a measurement of its projection (the mean and variance that the bucket leaves of the
    prior's own belief); all measurements together give the row by Gaussian conditioning. Narrow buckets give the
    projections themselves, wide ones nothing. Needs no d by d matrix.
    """
    hashing, Z = view.hashing.on(prior), prior.rows
    A = hashing.directions
    spread = Z @ A.T  # the projections of the attacker's own rows
    cross = Z.T @ (spread - spread.mean(axis=0)) / len(Z) + RIDGE * A.T  # covariance of row and projections
    own = np.atleast_2d(np.cov(spread.T, bias=True)) + RIDGE * A @ A.T
    variance = np.maximum(np.diag(own), 1e-12)
    low = view.values * hashing.width - hashing.offsets
    mean, left = truncated_moments(low, low + hashing.width, np.sqrt(variance))
    left = np.minimum(left, variance * (1 - 1e-9))
    noise = 1 / (1 / left - 1 / variance)  # of a measurement that would turn the belief N(0, variance) into this
    at = mean / left * noise
    out = np.empty((len(at), Z.shape[1]))
    for start in range(0, len(at), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        noisy = own + noise[part, :, None] * np.eye(len(variance))
        out[part] = np.linalg.solve(noisy, at[part, :, None])[:, :, 0] @ cross.T
    return out


def refined_rows(view: CodesView, prior: Prior, starts: Sequence[Doubles], attributes: Sequence[Attribute]) -> Doubles:
    """Search for the row that fits all its buckets: one attribute after the other is set to what fits best.

    Goes further than the Gaussian estimate where rows are made of categories. Of several starts
    the one that ends with the least misfit is kept; among values that fit, the most common wins.
    """
    hashing = view.hashing.on(prior)
    low = view.values * hashing.width - hashing.offsets
    options = [(a, *options_of(a, prior)) for a in attributes]
    best, least = np.zeros_like(starts[0]), np.full(len(low), np.inf)
    for start in starts:
        rows = decide_categories(start, attributes)
        for _ in range(SWEEPS):
            for attribute, values, rarity in options:
                misfit = _misfits(rows, attribute, values, hashing, low) + rarity
                rows[:, attribute.columns] = values[misfit.argmin(axis=1)]
                left = misfit.min(axis=1)
        better = left < least
        best[better], least[better] = rows[better], left[better]
    return best


def options_of(attribute: Attribute, prior: Prior) -> tuple[Doubles, Doubles]:
    """The values to try, and how rare each is: minus the log of its share, small beside any misfit."""
    own = prior.rows[:, attribute.columns]
    if attribute.categories is None:
        values = np.unique(np.quantile(own[:, 0], np.linspace(0.01, 0.99, TRIED)))[:, None]
        return values, np.zeros(len(values))
    share = np.bincount(attribute.chosen(own), minlength=len(attribute.categories)) / len(own)
    return attribute.categories, -RARITY * np.log(np.maximum(share, 1e-6))


def _misfits(rows: Doubles, attribute: Attribute, values: Doubles, hashing: Hashing, low: Doubles) -> Doubles:
    """Per row and value: how far the projections would lie outside their buckets, in bucket widths squared."""
    A = hashing.directions[:, attribute.columns]
    rest = rows @ hashing.directions.T - rows[:, attribute.columns] @ A.T - low
    misfits = np.empty((len(rows), len(values)))
    for number, value in enumerate(values):
        at = (rest + A @ value) / hashing.width  # from 0 to 1: inside
        outside = np.maximum(np.maximum(-at, at - 1), 0.0)
        misfits[:, number] = (outside**2).sum(axis=1)
    return misfits


def rows_like(own: Ints, codes: Ints, seed: int = 0, n_jobs: int | None = None) -> Longs:
    """The attacker's own rows with the most equal hash values (or leaves)."""
    near, _ = most_similar(codes, own, k=min(CLOSEST, len(own)), seed=seed, n_jobs=n_jobs)
    return near.astype(np.int64)


def truncated_moments(low: Doubles, high: Doubles, deviation: Doubles) -> tuple[Doubles, Doubles]:
    """Mean and variance of N(0, deviation^2) between two bounds, safe far out in the tails.

    >>> m, v = truncated_moments(np.array([0.0]), np.array([np.inf]), np.array([1.0]))
    >>> m.round(3), v.round(3)
    (array([0.798]), array([0.363]))
    """
    # Flip what lies above the mean below it: there the tail is not 1 minus something close to 1.
    flip = low + high > 0
    a, b = np.where(flip, -high, low) / deviation, np.where(flip, -low, high) / deviation
    log_mass = special.log_ndtr(b) + np.log1p(-np.exp(np.minimum(special.log_ndtr(a) - special.log_ndtr(b), -1e-15)))
    at_a, at_b = (np.exp(-0.5 * x**2 - 0.5 * np.log(2 * np.pi) - log_mass) for x in (a, b))
    mean = at_a - at_b
    edges = np.where(np.isinf(a), 0.0, a) * at_a - np.where(np.isinf(b), 0.0, b) * at_b
    variance = 1 + edges - mean**2
    width = b - a
    # In a very narrow or remote bucket the differences above cancel out: there the law is flat, or falls off at once.
    lost = ~np.isfinite(mean) | ~np.isfinite(variance) | (width < 1e-3) | (mean < a) | (mean > b) | (variance <= 0)
    mean = np.where(lost, np.where(np.isfinite(a), (a + b) / 2, b), mean)
    variance = np.where(lost, np.minimum(width, 1.0) ** 2 / 12, variance)
    return np.where(flip, -mean, mean) * deviation, np.maximum(variance, 1e-12) * deviation**2


def members_from_codes(table: Ints, known: Ints) -> Mask:
    """Which of these people are in the victim's table: those whose code is."""
    _, number = np.unique(np.vstack([table, known]), axis=0, return_inverse=True)
    return np.isin(number[len(table) :], number[: len(table)])


def precision(prior: Prior) -> Doubles:
    """The inverse covariance of the attacker's rows: what all other attributes of a row say about one."""
    covariance = prior.rows.T @ prior.rows / len(prior.rows) + RIDGE * np.eye(prior.rows.shape[1])
    return np.asarray(np.linalg.inv(covariance), dtype=np.float64)


def number_from_codes(view: CodesView, prior: Prior, rows: Doubles, column: int, known: Doubles) -> tuple[Doubles, ...]:
    """One unknown number, all else known: the interval that all buckets leave, seen through the prior.

    The column of `rows` itself is not read. Returns the estimate with the codes and the one without.
    """
    hashing = view.hashing.on(prior)
    weights, own = known[column].copy(), known[column, column]
    weights[column] = 0.0
    expected = -(rows @ weights) / own  # given all other columns
    a = hashing.directions[:, column]
    rest = rows @ hashing.directions.T - np.outer(rows[:, column], a)
    low = view.values * hashing.width - hashing.offsets - rest
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = np.stack([low / a, (low + hashing.width) / a])
    ends = ends[:, :, a != 0]
    lower, upper = ends.min(axis=0).max(axis=1, initial=-np.inf), ends.max(axis=0).min(axis=1, initial=np.inf)
    lower, upper = np.minimum(lower, upper), np.maximum(lower, upper)  # rounding can cross the ends of a point
    mean, _ = truncated_moments(lower - expected, upper - expected, np.full(len(rows), own**-0.5))
    return expected + mean, expected


def category_from_codes(
    view: CodesView, prior: Prior, rows: Doubles, columns: Longs, categories: Doubles, known: Doubles
) -> tuple[Longs, Longs]:
    """One unknown category, all else known: the number of the likeliest whose code fits, and of the likeliest."""
    hashing = view.hashing.on(prior)
    likely = log_odds(rows, columns, categories, known)
    A = hashing.directions[:, columns]
    rest = rows @ hashing.directions.T - rows[:, columns] @ A.T
    wrong = np.empty(likely.shape)
    for number, category in enumerate(categories):
        codes = np.floor((rest + A @ category + hashing.offsets) / hashing.width)
        wrong[:, number] = (codes != view.values).sum(axis=1)
    fits = wrong == wrong.min(axis=1, keepdims=True)
    return np.where(fits, likely, -np.inf).argmax(axis=1), likely.argmax(axis=1)


def log_odds(rows: Doubles, columns: Longs, settings: Doubles, known: Doubles) -> Doubles:
    """Up to a constant per row: the log probability of each setting of some columns, given all others."""
    others = rows.copy()
    others[:, columns] = 0.0
    own = 0.5 * np.einsum("si,ij,sj->s", settings, known[np.ix_(columns, columns)], settings)
    return np.asarray(-(others @ known[:, columns] @ settings.T) - own)


# --- from tokens: the hub of blind matching --------------------------------------------------------------------------


def collision_distance(agreement: Doubles, width: float) -> Doubles:
    """The distance at which two rows have this share of equal hash values (Gaussian directions)."""
    ratio = np.geomspace(1e-3, 1e3, 4000)  # distance / width
    t = 1 / ratio
    chance = 1 - 2 * special.ndtr(-t) - 2 / (np.sqrt(2 * np.pi) * t) * (1 - np.exp(-(t**2) / 2))
    return np.interp(agreement, chance[::-1], ratio[::-1]) * width


def token_map(view: TokensView, n_axes: int) -> Doubles:
    """A map of the rows from equal tokens alone: classical scaling of the distances that they reveal."""
    n, n_hashes = view.values.shape
    agreement = np.zeros((n, n))
    for column in view.values.T:
        agreement += column[:, None] == column[None, :]
    agreement /= n_hashes
    floor = max(float(np.quantile(agreement, 0.25)), 1 / (4 * n_hashes))  # beyond it, outliers would make up the map
    squared = collision_distance(np.clip(agreement, floor, 1.0), view.width) ** 2
    np.fill_diagonal(squared, 0.0)
    axes = np.zeros((n, n_axes))
    if np.unique(squared).size <= 2:  # all rows equally far apart: there is no map, and LAPACK would make one up
        return axes
    centred = squared - squared.mean(axis=0) - squared.mean(axis=1)[:, None] + squared.mean()
    values, vectors = linalg.eigh(-0.5 * centred, subset_by_index=[n - n_axes, n - 1])
    # LAPACK may find fewer axes where many eigenvalues are equal.
    axes[:, : len(values)] = (vectors * np.sqrt(np.maximum(values, 0.0)))[:, ::-1]
    return axes


def rows_from_tokens(view: TokensView, prior: Prior, seed: int = 0) -> Doubles:
    """The hub lays its map of the tokens over what it knows of the population.

    The axes of the map are matched with the principal axes of background rows, their signs by skewness. How far each
    axis can be trusted comes from rehearsals with the hub's own hash functions.
    """
    background = prior.rows
    n_axes = min(8, background.shape[1], len(view.values) - 1)
    values, vectors = np.linalg.eigh(background.T @ background / len(background))
    principal = vectors[:, np.argsort(values)[::-1][:n_axes]]
    sought = background @ principal
    trust, rng, n_hashes = np.zeros(n_axes), np.random.default_rng([seed, 11]), view.values.shape[1]
    for _ in range(REHEARSALS):
        some = rng.permutation(len(background))[: len(view.values)]
        directions = rng.standard_normal((n_hashes, background.shape[1])) * np.sqrt(prior.varies)
        hashing = Hashing(directions, view.width * rng.random((n_hashes,)), view.width)
        found = _oriented(token_map(TokensView(hashing.codes(background[some]), view.width), n_axes), sought)
        trust += (found * sought[some]).mean(axis=0) / np.maximum((found**2).mean(axis=0), 1e-12)
    trust = np.clip(trust / REHEARSALS, 0.0, 1.0)
    return np.asarray((_oriented(token_map(view, n_axes), sought) * trust) @ principal.T)


def _oriented(axes: Doubles, like: Doubles) -> Doubles:
    """The axes with the deviations and the signs of skewness that the others have."""
    scaled = axes / np.maximum(axes.std(axis=0), 1e-12) * like.std(axis=0)
    sign = np.sign((scaled**3).mean(axis=0) * ((like - like.mean(axis=0)) ** 3).mean(axis=0))
    return np.asarray(scaled * np.where(sign == 0, 1.0, sign))


# --- from neighbour ids ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PointedAt:
    """Per foreign row: the mean of the attacker's rows that point at it, and how many they are."""

    means: Doubles
    counts: Doubles


def centres(view: PointersView, own: Doubles) -> PointedAt:
    """The mean of the own rows that point at each foreign row; the overall mean if none does."""
    n, k = view.ids.shape
    pointing = sparse.csr_matrix((np.ones(n * k), (view.ids.ravel(), np.repeat(np.arange(n), k))), (view.n_rows, n))
    counts = np.asarray(pointing.sum(axis=1)).ravel()
    return PointedAt(np.asarray((pointing @ own) / np.maximum(counts, 1.0)[:, None]), counts)


def shrunk(found: PointedAt, doubt: float) -> Doubles:
    """The means drawn towards the overall mean: one of n rows is trusted as far as n / (n + `doubt`)."""
    return found.means * (found.counts / np.maximum(found.counts + doubt, 1e-12))[:, None]


def rehearsed_doubt(found: PointedAt, truth: Doubles) -> float:
    """The doubt with the least squared error on rows that the attacker knows."""
    options = np.concatenate([[0.0], np.geomspace(0.05, 100, 40)])
    return float(min(options, key=lambda doubt: ((shrunk(found, doubt) - truth) ** 2).mean()))


# --- from the leaves that rows fall into (a rematch) -----------------------------------------------------------------


def rows_from_leaves(own: Ints, leaves: Ints, prior: Prior, seed: int = 0, n_jobs: int | None = None) -> Doubles:
    """The mean of the own rows that fall into the most equal leaves, trusted as far as it proves right on own rows."""
    half = np.random.default_rng([seed, 12]).permutation(len(own))
    known, rehearsed = half[: len(half) // 2], half[len(half) // 2 :]
    near = rows_like(own[known], own[rehearsed], seed, n_jobs)
    guess, truth = prior.rows[known][near].mean(axis=1), prior.rows[rehearsed]
    trust = float(np.clip((guess * truth).sum() / max((guess**2).sum(), 1e-12), 0.0, 1.0))
    return np.asarray(trust * prior.rows[rows_like(own, leaves, seed, n_jobs)].mean(axis=1))


# --- from sums -------------------------------------------------------------------------------------------------------


def labels_from_sums(view: RowSumsView, groups: Ints, belief: Doubles) -> Doubles:
    """The labels of rows whose sum is known: `belief` is changed until it adds up to the sums.

    A row that is alone in its sum, or among rows of the same label, has no secret left. For the others the shares of
    the classes in the sum are spread over its members as `belief` (a probability per class, or a number) says: by
    proportional fitting for classes, by a common shift for numbers.
    """
    members, totals = np.bincount(groups, minlength=len(view.gradients)), view.label_totals()
    if view.weighted:  # nobody knows which of the rows in a sum is heavy
        totals = totals * (members / np.where(view.members() > 0, view.members(), 1))[:, None]
    if not view.loss.classifies:
        gap = (totals[:, 0] - np.bincount(groups, belief[:, 0], len(totals))) / np.maximum(members, 1)
        return belief + gap[groups, None]
    totals = np.maximum(totals, 0.0) if view.weighted else np.rint(totals)
    p = np.clip(belief, 1e-6, None)
    for _ in range(FITTING_ROUNDS):
        sums = np.stack([np.bincount(groups, column, len(totals)) for column in p.T], axis=1)
        p = p * (totals / np.maximum(sums, 1e-300))[groups]
        p = p / np.maximum(p.sum(axis=1, keepdims=True), 1e-300)
    return p


def labels_of_known_people(view: RowSumsView, candidates: Ints, own_guess: Doubles) -> Doubles:
    """The labels of people whose features are known, but not in which of some sums they are.

    `candidates` are the builder's rows that a person's gradient may have gone to. A sum without members is ruled
    out; the shares of the others are averaged and used where they are more certain than the attacker's own model.
    """
    members, totals = view.members(), view.label_totals()
    possible = (members[candidates] > 0)[:, :, None]
    shares = totals[candidates] / np.where(possible, members[candidates][:, :, None], 1)
    count = possible.sum(axis=1)
    mean = np.where(count > 0, (shares * possible).sum(axis=1) / np.maximum(count, 1), own_guess)
    if not view.loss.classifies:
        return (mean + own_guess) / 2
    surer = mean.max(axis=1) > own_guess.max(axis=1)
    return np.where(surer[:, None], np.clip(mean, 0, 1), own_guess)


# --- from trees ------------------------------------------------------------------------------------------------------


def rows_from_tree(tree: Tree, X: AnyArray, prior: Prior) -> tuple[Doubles, Doubles]:
    """Per leaf: a typical row of its box, and the share of the population that the attacker expects there.

    The attacker's own rows in the leaf are averaged; in an empty leaf, the middle of the box stands in for the
    features that the path to the leaf asks about, the mean for all others.
    """
    leaf = leaf_numbers(tree, X)
    counts = np.bincount(leaf, minlength=tree.n_leaves)
    means = np.stack([np.bincount(leaf, weights=c, minlength=tree.n_leaves) for c in prior.rows.T], axis=1)
    typical = np.where(counts[:, None] > 0, means / np.maximum(counts, 1)[:, None], _box_middles(tree, prior))
    return typical, (counts + 0.5) / (counts + 0.5).sum()


def _box_middles(tree: Tree, prior: Prior) -> Doubles:
    deviation = np.where(prior.deviation > 0, prior.deviation, np.inf)
    low, high = (np.tile(bound, (len(tree.feature), 1)) for bound in (prior.rows.min(axis=0), prior.rows.max(axis=0)))
    asked = np.zeros_like(low, dtype=bool)
    for node in np.flatnonzero(tree.feature != LEAF):
        column = tree.feature[node]
        at = (tree.threshold[node] - prior.mean[column]) / deviation[column]
        for child in (tree.left[node], tree.left[node] + 1):
            low[child], high[child], asked[child] = low[node], high[node], asked[node]
            asked[child, column] = True
        high[tree.left[node], column] = min(high[node, column], at)
        low[tree.left[node] + 1, column] = max(low[node, column], at)
    return np.asarray(np.where(asked, (low + high) / 2, 0.0)[tree.leaves])


def counts_from_leaf_values(values: Floats, base: float, learning_rate: float, reg_lambda: float, most: int) -> Longs:
    """The number of rows in each leaf of a classifier's first tree, from the leaf's value; 0 where it is not clear.

    All rows start with the same probability p, so a leaf with n rows, n1 of them positive, has the value
    rate * (n1 - n p) / (n p (1 - p) + lambda). Only one pair of whole numbers may come as close as float32 allows.
    """
    n = np.arange(1, most + 1, dtype=np.float64)
    hessian = n * base * (1 - base) + reg_lambda
    found = np.zeros(len(values), dtype=np.int64)
    for leaf, value in enumerate(values.astype(np.float64)):
        ones = np.rint(value / learning_rate * hessian + n * base)
        error = np.abs(learning_rate * (ones - n * base) / hessian - value)
        fits = (ones >= 0) & (ones <= n) & (error <= PRECISION * max(abs(value), 1e-3))
        if fits.sum() == 1:
            found[leaf] = int(n[fits][0])
    return found


def revealed_values(trees: Sequence[Tree], X: AnyArray) -> tuple[Longs, Mask]:
    """Per different split of the trees: its column, and whether its threshold is a value of these rows."""
    asked = {split for tree in trees for split in zip(tree.feature.tolist(), tree.threshold.tolist(), strict=True)}
    splits = sorted((f, t) for f, t in asked if f != LEAF)
    hit = [bool((X[:, f] == np.float32(t)).any()) for f, t in splits]
    return np.array([f for f, _ in splits], dtype=np.int64), np.array(hit, dtype=bool)
