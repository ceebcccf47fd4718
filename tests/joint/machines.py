"""Machines of all parties in one process, and exact ones: every cut is asked about, nothing is rounded or merged."""

from functools import partial

import numpy as np
import xgboost as xgb

from simfl.joint import candidates
from simfl.joint.cuts import Cuts
from simfl.joint.growing import Following, Growing, Own
from simfl.joint.machine import Labelled, Machine, Mine, Plan
from simfl.joint.setting import WORD_BITS, Setting
from simfl.training.losses import loss_named
from simfl.training.traversal import walker
from simfl.training.trees import all_trees, xgboost_params
from tests.wire import settled

EXACT = {"min_group": 1, "extra_depth": 0}
joint = partial(settled, recipe="joint")


def total_of(machines):
    """What the hub adds up."""
    parts = zip(*(machine.contribution() for machine in machines), strict=True)
    return [np.sum(part, axis=0, dtype=part[0].dtype) for part in parts]


def step(machines, words=None):
    """One step of all. Returns what was decided. `words`: the seed of every batch, in place of the parties' own."""
    reader, total = machines[0].reader, total_of(machines)
    if words is not None and machines[0].step.endswith("start"):
        total[0] = np.asarray(words, np.uint64)
    decision = machines[reader or 0].read(total)
    for machine in machines:
        machine.apply(machine.read(total) if reader is None else decision)
    return decision


def run(machines, words=None):
    """All steps to the end."""
    while not machines[0].finished:
        step(machines, words)
    return machines[0]


def until(machines, words):
    """Steps until one whose name has these words begins."""
    while words not in machines[0].step:
        assert not machines[0].finished, f"there was no step {words!r}"
        step(machines)


# --- tables ----------------------------------------------------------------------------------------------------------


def table(n, d, seed=0, missing=0.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    X[rng.random(X.shape) < missing] = np.nan
    return X


def labels(X, objective="binary:logistic", seed=0):
    """Labels that depend on the first columns, and on which values are missing."""
    known = np.where(np.isnan(X), 0.7, X)
    f = known[:, 0] + np.sin(2 * known[:, 1]) * known[:, 2] + np.random.default_rng(seed).normal(0, 0.5, len(X))
    if objective == "multi:softprob":
        return np.digitize(f, [-0.7, 0.7]).astype(np.float32)
    return (f > 0.2).astype(np.float32) if objective == "binary:logistic" else f.astype(np.float32)


def shares(n, n_parties, seed=0):
    """The numbers of each party's rows."""
    return np.array_split(np.random.default_rng(seed).permutation(n), n_parties)


# --- whole machines --------------------------------------------------------------------------------------------------


def plan(n_columns, n_parties=1, *, levels=None, **params):
    """What the parties know before the first step."""
    warm = {name: params.pop(name) for name in ("base_score", "earlier") if name in params}
    chosen = joint(**{"max_depth": 4, "n_trees": 4} | params)
    outputs = 3 if chosen.objective == "multi:softprob" else 1
    known = np.zeros(n_columns, np.int32) if levels is None else np.asarray(levels, np.int32)
    return Plan(chosen, known, outputs, tuple(f"party {i}" for i in range(n_parties)), **warm)


def machines(the_plan, rows, validation=None):
    """The parties' machines. `rows`: per party X and y, or X, y and weights."""
    return [
        Machine(the_plan, Mine(Labelled(*own), validation if i == 0 else None, the_plan.parties[i].encode()))
        for i, own in enumerate(rows)
    ]


def divided(X, y, n_parties, weight=None, seed=0):
    """Rows of all parties."""
    own = shares(X.shape[0], n_parties, seed)
    return [(X[i], y[i]) if weight is None else (X[i], y[i], weight[i]) for i in own]


# --- exact growing on given cut points -------------------------------------------------------------------------------


def cut_points(X, n_points=15, levels=None):
    """Quantiles of each column."""
    n_levels = np.zeros(X.shape[1], np.int32) if levels is None else np.asarray(levels, np.int32)
    shares_of_rows = np.arange(1, n_points + 1) / (n_points + 1)
    points = [
        np.empty(0, np.float32)
        if n_levels[j]
        else np.unique(np.nanquantile(X[:, j], shares_of_rows).astype(np.float32))
        for j in range(X.shape[1])
    ]
    return Cuts(tuple(points), n_levels, np.isnan(X).any(axis=0))


class ExactSetting(Setting):
    """Fine gradients, new ones for every tree, and as many nodes as there are."""

    lockstep, most_nodes = 1, 1000

    @property
    def bits(self):
        return WORD_BITS - self.n_rows.bit_length()


def exact_growing(cuts, params, rows, base_score):
    """A machine per party that grows trees on these cut points; every cut is asked about."""
    return growing_on(cuts, params, rows, base_score, ExactSetting, draw=candidates.all_cuts)


def growing_on(cuts, params, rows, base_score, kind=Setting, **given):
    """A machine per party that grows trees on these cut points."""
    loss = loss_named(params.objective)
    setting = kind(
        params=params,
        cuts=cuts,
        n_outputs=len(base_score),
        n_rows=sum(len(y) for _, y, *_ in rows),
        parties=tuple(f"party {i}" for i in range(len(rows))),
        most_hessian=loss.bounds(np.zeros((1, 1), np.float32), np.zeros(1, np.float32))[1],
        **given,
    )
    start = np.asarray(loss.margin(np.asarray(base_score)), np.float32)
    out = []
    for i, (X, y, *weight) in enumerate(rows):
        walk = walker(X, by_level=bool(cuts.levels.any()))
        own = Following(walk, y, weight[0] if weight else None, np.tile(start, (len(y), 1)))
        out.append(Growing(setting, Own(X, own, None, f"secret {i}".encode())))
    return out


# --- XGBoost on the same cut points ----------------------------------------------------------------------------------


def as_bins(X, cuts):
    """Values as the numbers of their bins; levels and missing values stay."""
    out = np.array(X, np.float32)
    for j, points in enumerate(cuts.points):
        if not cuts.levels[j]:
            out[:, j] = np.where(np.isnan(X[:, j]), np.nan, np.searchsorted(points, X[:, j], side="right"))
    return out


def xgboost_trees(cuts, params, X, y, base_score, weight=None):
    """XGBoost's own trees on the bins."""
    kinds = ["c" if levels else "q" for levels in cuts.levels]
    options = {"feature_types": kinds, "enable_categorical": True, "max_bin": 512, "nthread": 1}
    rows = xgb.QuantileDMatrix(as_bins(X, cuts), y, weight=weight, **options)
    settings = xgboost_params(params, 0, 1) | {"objective": params.objective, "max_bin": 512, "max_cat_to_onehot": 1}
    n_outputs = len(base_score)
    settings |= {"num_class": n_outputs, "base_score": list(base_score)} if n_outputs > 1 else {}
    settings |= {"base_score": float(base_score[0])} if n_outputs == 1 else {}
    booster = xgb.train(settings, rows, params.n_trees)
    return all_trees(booster)


def leaf_of_rows(tree, X):
    """The number of each row's leaf among all nodes."""
    return tree.leaves[walker(X, by_level=True).leaf_numbers(tree)]
