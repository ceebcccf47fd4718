"""The joint recipe beside ALL-IN on the same rows and cores: loss, time and bytes per tree.

    python -m benchmarks.joint_speed million|growth|midsize [--rows N] [--trees N] [--repeats N] [--json OUT]

million   HIGGS-like rows, and rows whose label hangs on strong interactions: ten parties, depth 8, 200 trees
growth    seconds and bytes per tree from 62,500 rows to a million
midsize   a9a, ten parties, 200 trees of depth 6

After every batch of joint trees ALL-IN grows as many. So both have the machine as it is at the same time, and every
batch gives a ratio: shown are the median and the quartiles. Where other work disturbs, processor time counts most.
Threads that wait must not count then, so XGBoost's sleep while they wait (OMP_WAIT_POLICY). Both have all cores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xgboost as xgb
from rich.console import Console
from sklearn.metrics import log_loss

import simfl
from benchmarks import speed
from benchmarks.data import load
from benchmarks.repeats import quartiles
from simfl.callbacks import Callback, TreeRecord
from simfl.params import cores

N_PARTIES = speed.N_PARTIES
FUNCTIONS = ("HIGGS-like", "interactions")
SIZES = (62_500, 125_000, 250_000, 500_000, 1_000_000)


class Pair(NamedTuple):
    """Seconds of one batch: joint and ALL-IN, by the clock and of the processor."""

    joint: float
    all_in: float
    joint_cpu: float
    all_in_cpu: float


class Beside(Callback):
    """Grows a tree of ALL-IN for every tree of the joint recipe, and takes the time of both."""

    def __init__(self, booster: xgb.Booster, pooled: xgb.DMatrix) -> None:
        self.booster, self.pooled = booster, pooled
        self.pairs: list[Pair] = []
        self._last = self._now()

    def before_training(self, parties: Sequence[str], params: Any) -> None:
        self._last = self._now()

    def after_tree(self, record: TreeRecord) -> None:
        """The first call after a batch has the time of the whole batch; the others of the same batch next to none."""
        reached = self._now()
        self.booster.update(self.pooled, record.round)
        done = self._now()
        self.pairs.append(
            Pair(reached[0] - self._last[0], done[0] - reached[0], reached[1] - self._last[1], done[1] - reached[1])
        )
        self._last = done

    def _now(self) -> tuple[float, float]:
        return time.perf_counter(), time.process_time()


def batches(pairs: list[Pair], lockstep: int) -> np.ndarray:
    """The seconds of whole batches. The first ones, with 1, 1, 2, 4 trees, are left out, and a smaller last one."""
    whole = np.array(pairs)[: len(pairs) // lockstep * lockstep]
    summed: np.ndarray = whole.reshape(-1, lockstep, 4).sum(axis=1)
    return summed[1:] if len(summed) > 1 else summed


def interactions(n: int, d: int = 28, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The label hangs on products of two and three columns, hardly on one alone."""
    terms = np.random.default_rng(1)
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d), dtype=np.float32)
    score = np.zeros(n, np.float32)
    for k in range(12):
        term = np.ones(n, np.float32)
        for j in terms.choice(d, 2 + k % 2, replace=False):
            term *= np.tanh(2 * (X[:, j] - np.float32(terms.normal(0, 0.5))))
        score += term
    score += np.float32(0.5) * rng.standard_normal(n, dtype=np.float32)
    return X, (score > 0).astype(np.int64)


def rows(function: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    return interactions(n) if function == "interactions" else speed.rows(function, n)


def side_by_side(
    train: tuple[Any, np.ndarray], test: tuple[Any, np.ndarray] | None, depth: int, n_trees: int, **options: Any
) -> dict[str, Any]:
    """Grow both, batch by batch. `test`: rows for their losses."""
    (X, y), threads = train, cores()
    plain = {"objective": "binary:logistic", "max_depth": depth, "learning_rate": 0.1, "nthread": threads}
    pooled = xgb.QuantileDMatrix(X, y, nthread=threads)
    ready = simfl.prepare(speed.parties(X, y), recipe="joint", random_state=0)
    beside = Beside(xgb.Booster(plain, [pooled]), pooled)
    before = os.getloadavg()[0]
    model = simfl.train(ready, callbacks=[beside], n_trees=n_trees, max_depth=depth, **options)
    seconds = batches(beside.pairs, _batch_size(model)) / _batch_size(model)
    joint, all_in, joint_cpu, all_in_cpu = np.median(seconds, axis=0).tolist()
    sent = sum(record.bytes for record in model.history) / len(model.history)
    found: dict[str, Any] = {
        "rows": len(y),
        "trees": n_trees,
        "depth": depth,
        "options": options,
        "seconds_per_tree": {"joint": joint, "all_in": all_in},
        "cpu_seconds_per_tree": {"joint": joint_cpu, "all_in": all_in_cpu},
        "over_all_in": quartiles(seconds[:, 0] / seconds[:, 1]),
        "cpu_over_all_in": quartiles(seconds[:, 2] / seconds[:, 3]),
        "bytes_per_tree": sent,
        "bytes_over_paper": sent / (8 * (len(y) + (2**depth - 1) * (N_PARTIES - 1))),
        "load": [before, os.getloadavg()[0]],
    }
    if test is not None:
        pooled_loss = log_loss(test[1], beside.booster.predict(xgb.DMatrix(test[0])))
        found["logloss"] = {
            "joint": float(log_loss(test[1], model.predict_proba(test[0]))),
            "all_in": float(pooled_loss),
        }
    return found


def _batch_size(model: simfl.Model) -> int:
    """Trees that were grown together have the same seconds in the history, those of the batch divided by its trees."""
    return max(Counter(record.seconds for record in model.history).values())


def compile_first() -> None:
    """What is going to run, on a few rows."""
    side_by_side(speed.rows("HIGGS-like", 4000), None, 4, 16)


def million(function: str, n: int, n_trees: int) -> dict[str, Any]:
    """Loss on a fifth as many new rows, time and bytes."""
    compile_first()
    X, y = rows(function, n + n // 5)
    return {"function": function} | side_by_side((X[:n], y[:n]), (X[n:], y[n:]), speed.DEPTH, n_trees)


def growth(n: int, n_trees: int) -> dict[str, Any]:
    """The same of one size, without losses."""
    compile_first()
    return {"function": "HIGGS-like"} | side_by_side(rows("HIGGS-like", n), None, speed.DEPTH, n_trees)


def midsize(n_trees: int) -> dict[str, Any]:
    """a9a, its rows dealt out as in the other measurements of this size."""
    X, y = load("a9a")
    order = np.concatenate(simfl.partition.unbalanced(y, N_PARTIES, theta=0.8))
    side_by_side((X[:4000], y[:4000]), None, 4, 16)  # compiles
    return {"function": "a9a"} | side_by_side((X[order], y[order]), None, 6, n_trees)


def exponent(results: list[dict[str, Any]], what: str) -> float:
    """The slope of a quantity against rows, both as logarithms.

    >>> exponent([{"rows": 100, "bytes": 10.0}, {"rows": 400, "bytes": 20.0}], "bytes")
    0.5
    """
    values = [r[what]["joint"] if isinstance(r[what], dict) else r[what] for r in results]
    slope = np.polyfit([math.log(r["rows"]) for r in results], np.log(values), 1)[0]
    return round(float(slope), 6)


WORK: dict[str, Callable[[argparse.Namespace], list[dict[str, Any]]]] = {
    "million": lambda given: [speed.apart(million, f, given.rows, given.trees or 200) for f in FUNCTIONS],
    "growth": lambda given: [speed.apart(growth, n, given.trees or 40) for n in SIZES if n <= given.rows],
    "midsize": lambda given: [speed.apart(midsize, given.trees or 200) for _ in range(given.repeats)],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(WORK))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--trees", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read by the processes that measure
    results = WORK[given.what](given)
    Console(width=160).print(speed.table(results, given.what))
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
