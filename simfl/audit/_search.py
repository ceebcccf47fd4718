# mypy: allow-untyped-defs, allow-untyped-calls
"""Kernels of the search for rows that explain a forest: a row down all trees, and the annealing itself."""

import numpy as np
from numba import njit

LEAF = -1
NEW_LABEL, NEW_ROW, ONE_VALUE = 0.05, 0.15, 0.9  # shares of the proposals, added up; the rest mixes two rows


@njit(nogil=True, cache=True)
def walk(x, forest, leaves):
    """The leaf of one row in every tree."""
    start, left, feature, number, default_left, _ = forest
    for t in range(len(start)):
        node = start[t]
        while feature[node] != LEAF:
            value = x[feature[node]]
            goes_left = default_left[node] if np.isnan(value) else value < number[node]
            node = left[node] if goes_left else left[node] + 1
        leaves[t] = node


@njit(nogil=True, cache=True)
def gradients(leaves, label, base, forest, g, h):
    """Gradient and hessian of one row before every tree. Trees of one batch have the same."""
    number, before = forest[3], forest[5]
    margin, counted = base, 0
    for t in range(len(leaves)):
        while counted < before[t]:
            margin += number[leaves[counted]]
            counted += 1
        p = 1 / (1 + np.exp(-margin))
        g[t], h[t] = p - label, p * (1 - p)


@njit(nogil=True, cache=True)
def add_sums(X, y, base, forest, G, H):
    """Per node: the sums over the rows that end there."""
    n_trees = len(forest[0])
    leaves, g, h = np.empty(n_trees, np.int64), np.empty(n_trees), np.empty(n_trees)
    for i in range(len(X)):
        walk(X[i], forest, leaves)
        gradients(leaves, y[i], base, forest, g, h)
        for t in range(n_trees):
            G[leaves[t]] += g[t]
            H[leaves[t]] += h[t]


@njit(nogil=True, cache=True)
def trace(X, y, base, forest):
    """Per row and tree: the leaf, and the gradient and hessian before that tree."""
    n, n_trees = len(X), len(forest[0])
    leaf, g, h = np.empty((n, n_trees), np.int64), np.empty((n, n_trees)), np.empty((n, n_trees))
    for i in range(n):
        walk(X[i], forest, leaf[i])
        gradients(leaf[i], y[i], base, forest, g[i], h[i])
    return leaf, g, h


@njit(nogil=True, cache=True)
def propose(X, y, i, pool, x):
    """A changed copy of row i in x; returns its label."""
    x[:] = X[i]
    kind, other = np.random.random(), pool[np.random.randint(len(pool))]
    if kind < NEW_LABEL:
        return 1 - y[i]
    if kind < NEW_ROW:
        x[:] = other
    elif kind < ONE_VALUE:
        column = np.random.randint(len(x))
        x[column] = other[column]
    else:
        for column in range(len(x)):
            if np.random.random() < 0.5:
                x[column] = other[column]
    return y[i]


@njit(nogil=True, cache=True)
def step(leaf, g, h, sign, equations, error):
    """Add one row to the errors of the equations (or take it off); returns how much their squares grow."""
    asked, slope, asked_h = equations
    grown = 0.0
    for t in range(len(leaf)):
        k = leaf[t]
        for which in range(2):
            part = asked[k] * (g[t] + slope[k] * h[t]) if which == 0 else asked_h[k] * h[t]
            grown += part * (2 * sign * error[which, k] + part)
            error[which, k] += sign * part
    return grown


@njit(nogil=True, cache=True)
def anneal(X, y, pool, forest, base, equations, error, schedule, seed):
    """Change one row after the other where it lessens the errors, or at random while it is hot.

    `error`: per equation and node what the rows are to add up to, with a minus sign. X and y are changed in place.
    """
    np.random.seed(seed)
    n_steps, hot, cold = schedule
    n, n_trees = len(X), len(forest[0])
    leaf, g, h = trace(X, y, base, forest)
    for i in range(n):
        step(leaf[i], g[i], h[i], 1.0, equations, error)
    x, new, new_g, new_h = np.empty_like(X[0]), np.empty_like(leaf[0]), np.empty(n_trees), np.empty(n_trees)
    for at in range(n_steps):
        i = np.random.randint(n)
        label = propose(X, y, i, pool, x)
        walk(x, forest, new)
        gradients(new, label, base, forest, new_g, new_h)
        grown = step(leaf[i], g[i], h[i], -1.0, equations, error) + step(new, new_g, new_h, 1.0, equations, error)
        if grown <= 0 or np.random.random() < np.exp(-grown / (hot * (cold / hot) ** (at / n_steps))):
            X[i], y[i], leaf[i], g[i], h[i] = x, label, new, new_g, new_h
        else:
            step(new, new_g, new_h, -1.0, equations, error)
            step(leaf[i], g[i], h[i], 1.0, equations, error)
