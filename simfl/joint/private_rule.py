"""How a private training is made: how many trees, how deep, how far a step goes. From public numbers alone.

What we found, on validation rows of training data and on generated tables:

- Trees cost no noise. With T trees every sum has sqrt(T) times the noise, and every tree moves the margin by 1 / T.
  What counts is the noise of one release of everything, `unit`, and how far all steps go together. So there are many.
- Newton steps drown in noise: in a small leaf the noise is divided by little. With reg_lambda far above most hessians
  a step is nearly the gradient times a constant. A margin then carries at most `margin_noise` deviations of noise,
  whatever the depth.
- A margin's noise costs half its variance times the hessian. Where one class is rare, hessians are small: steps may
  be longer.
- Depth follows from how many units of noise the hessians of all rows are worth.
- Two looks at the columns, with noise, pay for themselves: counts per cell (which cuts divide the rows evenly) and
  one shallow tree per column (which columns to draw more often).
- A row's budget below the longest gradient makes the hard rows of a rare class leave, and the model is too sure of
  itself. Gradients that are shortened all along (`longest`) leave no row out, and what is saved is less noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simfl.params.private import N_TREES

LOCKSTEP = 10  # trees of one step. Their learning rates add up to one: a step is never longer than Newton's
# A row's gradient and hessian are no longer than this, per tree (of several classes sqrt(2) times that). With 1, at
# epsilon 1: ijcnn1 +.003, SUSY +.003; with .5 AUC is better still, but bank has +.009 and default_credit +.012.
LONGEST = 0.7
HESSIAN_WEIGHT = 0.5  # .25 to 1 are alike: hessians only have to be right within a few units
N_CELLS = 64  # of a declared range, whose rows are counted first; 128: better on ijcnn1, worse on SUSY
N_CUTS = 15  # that are kept per column; 31: SUSY better by .002, ijcnn1 worse by .003
COUNT_SHARE = 0.05  # of a row's budget, for these counts. Evenly spaced cuts: ijcnn1 .163 for .135 at epsilon 1
MOST_STEP = 5.0  # of a leaf, before the learning rate: only a guard
# Deviations of noise in a margin where both classes are equally frequent. With .75 bank's AUC is .002 less; with .4
# ijcnn1 has +.006.
MARGIN_NOISE = 0.55
RARE = 0.35  # how the margin's noise grows when hessians get smaller; .7: ijcnn1 better by .004, bank worse by .004
LEAST_DEPTH, MOST_DEPTH = 2, 10
DEPTH_PER_DOUBLING, DEPTH_AT_ONE = 0.75, -2.5  # depth, by doublings of what all hessians are worth in units of noise
FIRST_SHARE = 0.1  # of a row's budget, for one shallow tree per column. With .03: ijcnn1 .177 for .165 at epsilon 1


@dataclass(frozen=True)
class PrivateSettings:
    """What the rule chooses."""

    depth: int
    n_trees: int
    lockstep: int
    learning_rate: float
    reg_lambda: float
    row_budget: float  # of the squared length of a row's vectors, per tree; what comes before the trees is part of it
    longest: float  # a row's vector in a tree, before its weight
    hessian_weight: float
    n_cells: int  # that a declared range is divided into
    n_cuts: int  # that are kept per column (`refined_cuts.py`)
    most_step: float  # of a leaf, before the learning rate
    count_scale: float  # what a row adds to its cell of each column, when cells are counted
    first_scale: float  # of a row's vectors where every column has a tree of its own (`column_weights.py`)


def private_rule(
    multiplier: float, shared: float, n_rows: int, n_columns: int, shares: Sequence[float]
) -> PrivateSettings:
    """`multiplier`: of the noise that one release needs, for epsilon and delta (`privacy.guarantee.multiplier`).

    `shared`: the deviation of the total noise in units of what a party needs alone, sqrt(m / (m - colluding)).
    `shares`: of the classes, as declared; equal ones if nobody knows them.

    >>> rule = private_rule(multiplier=3.73, shared=2.0, n_rows=37_492, n_columns=22, shares=(0.9, 0.1))
    >>> rule.depth, rule.learning_rate, round(rule.reg_lambda)
    (4, 0.1, 432)
    """
    longest = LONGEST * (1.0 if len(shares) == 2 else math.sqrt(2.0))  # over several classes gradients are longer
    budget = longest**2 / (1.0 - COUNT_SHARE - FIRST_SHARE)
    unit = math.sqrt(budget) * multiplier * shared
    hessian = sum(p * (1.0 - p) for p in shares) / len(shares)
    margin_noise = MARGIN_NOISE * (0.25 / hessian) ** RARE
    return PrivateSettings(
        depth=_depth(n_rows * hessian / unit),
        n_trees=N_TREES,
        lockstep=LOCKSTEP,
        learning_rate=1.0 / LOCKSTEP,
        reg_lambda=N_TREES / LOCKSTEP * unit / margin_noise,
        row_budget=budget,
        longest=longest,
        hessian_weight=HESSIAN_WEIGHT,
        n_cells=N_CELLS,
        n_cuts=N_CUTS,
        most_step=MOST_STEP,
        count_scale=math.sqrt(COUNT_SHARE * budget * N_TREES / n_columns),
        first_scale=math.sqrt(FIRST_SHARE * budget * N_TREES / (n_columns * _longest_at_start(shares))),
    )


def _depth(n_units: float) -> int:
    """`n_units`: what the hessians of all rows are worth in units of noise."""
    depth = round(DEPTH_PER_DOUBLING * math.log2(max(n_units, 1.0)) + DEPTH_AT_ONE)
    return min(max(depth, LEAST_DEPTH), MOST_DEPTH)


def _longest_at_start(shares: Sequence[float]) -> float:
    """The squared length of the longest vector before the first tree: that of a row of the rarest class."""
    rarest = min(shares)
    hessians = [p * (1.0 - p) for p in shares]
    if len(shares) == 2:
        return (1.0 - rarest) ** 2 + (HESSIAN_WEIGHT * hessians[0]) ** 2
    gradients = (1.0 - rarest) ** 2 + math.fsum(p * p for p in shares) - rarest**2
    return gradients + HESSIAN_WEIGHT**2 * math.fsum(h * h for h in hessians)
