"""A lower bound on epsilon, measured in one run (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846).

Canaries are rows of which each was in the training or not, by the toss of a coin. Whoever guesses too many of these
coins from the model has shown that its epsilon is larger than was promised. The bound holds with 95 % confidence: a
mechanism that keeps its promise is accused in at most one of twenty audits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
from scipy import sparse, stats

from simfl.arrays import AnyArray, Doubles, Mask
from simfl.audit.membership import label_confidence
from simfl.audit.timberstrike import Equations, Forest, forest_of
from simfl.errors import ParameterError
from simfl.federation import train
from simfl.model import Model
from simfl.party import Party
from simfl.training import schedule
from simfl.training.losses import loss_named

CONFIDENCE = 0.95
GUESSED = (1.0, 0.5, 0.2, 0.05)  # shares of the canaries that are guessed, the clearest; each costs some confidence
MOST_EPSILON = 50.0
# How many trees share their gradients: what is tried. Batches are equal with epsilon, else they grow at first.
BATCHES: list[Callable[[], Iterable[int]]] = [
    *(partial(repeat, size) for size in (1, 2, 4, 5, 8, 10, 16, 20, 32)),
    *(partial(schedule.batches, size) for size in (4, 8)),
]
LAMBDAS = np.concatenate([[0.0], np.geomspace(0.1, 1e4, 51)])  # ten steps per power of ten, 1 among them
UNFILTERED = 0.6  # of the trees, the first: a recipe with epsilon may leave rows out of later ones


@dataclass(frozen=True)
class Bound:
    """What one run shows: with this confidence epsilon is at least this large."""

    epsilon: float
    guesses: int
    right: int
    canaries: int
    delta: float
    confidence: float = CONFIDENCE


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """How likely this many right guesses are, at most, under (epsilon, delta): Theorem 5.2 of the paper.

    Without delta a guess is right with probability e^eps / (1 + e^eps) at best; 10 of 10 at epsilon 0:

    >>> p_value(10, 10, 10, 0.0, 0.0) == 2**-10
    True
    """
    chance = 1 / (1 + np.exp(-epsilon))
    tail = stats.binom.sf(right - 1, guesses, chance)
    if delta == 0:
        return float(tail)
    below = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, chance))
    worst = float((below / np.arange(1, right + 1)).max(initial=0.0))
    return float(min(tail + 2 * canaries * delta * worst, 1.0))


def epsilon_of_guesses(canaries: int, guesses: int, right: int, delta: float, error: float) -> float:
    """The largest epsilon under which this many right guesses are too unlikely to be believed; 0 if none."""
    low, high = 0.0, MOST_EPSILON
    if p_value(canaries, guesses, right, low, delta) > error:
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(canaries, guesses, right, middle, delta) <= error else (low, middle)
    return low


def epsilon_lower_bound(scores: Doubles, members: Mask, delta: float, confidence: float = CONFIDENCE) -> Bound:
    """The bound from scores (large: looks like a member) and who was one.

    The canaries with the highest scores are guessed to be members, those with the lowest strangers, as many of each.
    How many to guess is tried in four ways, and each gets a fourth of the error that is allowed.
    """
    if len(scores) != len(members) or len(scores) < 2:
        raise ParameterError(
            f"{len(scores)} scores and {len(members)} coins: give one of each for two canaries or more."
        )
    order = np.argsort(scores, kind="stable")
    bounds = []
    for share in GUESSED:
        each = max(int(share * len(scores)) // 2, 1)
        right = int((~members[order[:each]]).sum() + members[order[-each:]].sum())
        epsilon = epsilon_of_guesses(len(scores), 2 * each, right, delta, (1 - confidence) / len(GUESSED))
        bounds.append(Bound(epsilon, 2 * each, right, len(scores), delta, confidence))
    return max(bounds, key=lambda bound: bound.epsilon)


@dataclass(frozen=True)
class Canaries:
    """Rows that no real one resembles, with random labels, and the coins that decide which are in the training."""

    X: Doubles
    y: AnyArray
    members: Mask

    @classmethod
    def draw(cls, X: AnyArray, n: int, seed: int) -> Canaries:
        """Corners of the table: in each column the lowest or the highest value. There a row is nearly alone."""
        rng = np.random.default_rng([seed, 34])
        low, high = np.nanmin(X, axis=0), np.nanmax(X, axis=0)
        corners = np.where(rng.random((n, X.shape[1])) < 0.5, low, high)
        return cls(corners.astype(np.float64), rng.integers(0, 2, n), rng.random(n) < 0.5)

    def confidence(self, model: Model) -> Doubles:
        """How confident a model is of each canary's label."""
        return label_confidence(model.margins(self.X.astype(np.float32)), self.y, loss_named("binary:logistic"))


def coins_from_leaf_values(model: Model, X: AnyArray, y: AnyArray, canaries: Canaries) -> Doubles:
    """Per canary how much it looks like a member, to somebody who knows all other rows: DP's own attacker.

    Every leaf is an equation: value (H + lambda) = -rate G. Known rows are taken off; what is left is linear in the
    coins. They are estimated together, all coins being even before, and the noise as large as makes the rest likeliest.
    """
    forest, rate, reg_lambda = _fitted(model, X, y, canaries)
    equations = Equations.of_values(forest, rate, reg_lambda).without(*forest.sums(X, y))
    leaf, g, h = forest.trace(canaries.X, canaries.y)
    part = equations.asked[leaf] * (g + equations.slope[leaf] * h)
    of_canary = np.broadcast_to(np.arange(len(leaf))[:, None], leaf.shape)
    shape = len(equations.target), len(leaf)
    inside = sparse.coo_matrix((part.ravel(), (leaf.ravel(), of_canary.ravel())), shape=shape).toarray()
    used = _early(forest) & (np.abs(inside).sum(axis=1) > 0)
    return _even_before(inside[used], equations.target[used])


def _fitted(model: Model, X: AnyArray, y: AnyArray, canaries: Canaries) -> tuple[Forest, float, float]:
    """Batches, rate and lambda that explain the values best, the canaries counted half: nobody has to tell."""
    tried = []
    for way, batches in enumerate(BATCHES):
        forest = forest_of(model, batches())
        known, half = forest.sums(X, y), forest.sums(canaries.X, canaries.y)
        leaf = (forest.feature < 0) & _early(forest)
        G, H = ((a + b / 2)[leaf] for a, b in zip(known, half, strict=True))
        value = forest.number[leaf].astype(np.float64)
        coarse = min(_misfit(value, G, H, at) for at in LAMBDAS.tolist())
        fine = min(_misfit(value, G, H, at) for at in (coarse[2] * np.geomspace(0.8, 1.25, 201)).tolist())
        tried.append((*fine, way))
    _, rate, reg_lambda, way = min(tried)
    return forest_of(model, BATCHES[way]()), rate, reg_lambda


def _misfit(value: Doubles, G: Doubles, H: Doubles, reg_lambda: float) -> tuple[float, float, float]:
    """How far values are from -rate G / (H + lambda), with the best rate; that rate; and lambda."""
    steps = -G / (H + reg_lambda + 1e-9)
    rate = max(float(value @ steps) / max(float(steps @ steps), 1e-12), 1e-6)
    return float(((value - rate * steps) ** 2).sum()), rate, float(reg_lambda)


def _early(forest: Forest) -> Mask:
    """The nodes of trees that no row is left out of."""
    return np.asarray(forest.tree_of_node < UNFILTERED * len(forest.start))


def _even_before(inside: Doubles, target: Doubles) -> Doubles:
    """The mean of coins, minus a half, given inside @ coins = target + noise; the noise by maximum likelihood."""
    left = target - inside.sum(axis=1) / 2
    U, size, V = np.linalg.svd(inside, full_matrices=False)
    seen, rest = U.T @ left, max(float(left @ left), 1e-12)
    outside = max(rest - float(seen @ seen), 0.0)
    n_outside = len(left) - len(size)

    def unlikely(noise: float) -> float:
        variance = size**2 / 4 + noise
        return float((np.log(variance) + seen**2 / variance).sum() + n_outside * np.log(noise) + outside / noise)

    tried: list[float] = (rest / len(left) * 4.0 ** np.arange(1, -20, -1)).tolist()
    noise = min(tried, key=unlikely)
    return np.asarray(V.T @ (size / 4 / (size**2 / 4 + noise) * seen))


def audit_epsilon(
    X: AnyArray,
    y: AnyArray,
    *,
    canaries: int = 1000,
    parties: int = 2,
    random_state: int = 0,
    schema: Any = None,
    **params: Any,
) -> Bound:
    """Train once with canaries among the rows of the parties; the bound that the model's answers show.

    `schema` declares the columns, where the recipe needs that; `params` are those of `simfl.train`. Labels are 0 and 1.
    """
    drawn = Canaries.draw(X, canaries, random_state)
    scores = scores_of_one_run(X, y, drawn, parties=parties, random_state=random_state, schema=schema, **params)
    return epsilon_lower_bound(scores, drawn.members, float(params.get("delta", 1e-5)))


def scores_of_one_run(
    X: AnyArray, y: AnyArray, drawn: Canaries, *, parties: int, random_state: int, schema: Any, **params: Any
) -> Doubles:
    """How much each canary looks like a member, after one training in which some of them were."""
    rng = np.random.default_rng([random_state, 35])
    rows = np.vstack([X, drawn.X[drawn.members]])
    labels = np.concatenate([y, drawn.y[drawn.members]])
    parts = np.array_split(rng.permutation(len(labels)), parties)
    given = [Party(f"party {i}", rows[part], labels[part], schema=schema) for i, part in enumerate(parts)]
    model = train(given, random_state=random_state, callbacks=[], **params)
    return coins_from_leaf_values(model, X, y, drawn)
