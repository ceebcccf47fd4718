"""How fast both stages are at the paper's size, through the public doors.

    python -m benchmarks.speed midsize|prepare|growth|training|both|growing|bins|sparse|profile ... [--json OUT]

midsize   a9a in ten parties, 200 trees: stage 2 against `xgb.train` on all rows, and the growing of the trees in it
prepare   stage 1 of SUSY- and HIGGS-shaped rows, ten parties: seconds, bytes, peak memory, beside the paper's Table 4
growth    the same from 50,000 to 800,000 rows: the measured exponent
training  stage 2 against `xgb.train` on all rows pooled, and against one party alone plus the others' passes down the
          trees: seconds per tree in one run, as ratios, and bytes per tree
both      stage 1 and some trees of stage 2 of 10,000,000 rows in one process: seconds, peak memory
growing   one tree of a builder, ten levels, by histograms and by XGBoost on the same cut points, on one thread
bins      256 bins and 64, as large parties have: log loss on new rows, seconds per tree
sparse    both stages on 70,000 x 20,000 words: seconds, peak memory
profile   where the time of a tree goes

The machine is shared, so ratios within one run count, not seconds: both sides run in turn, `--repeats` times. Every
measurement runs in a process of its own, so that peak memory is its own too.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xgboost as xgb
from rich.console import Console
from rich.table import Table
from scipy import sparse
from sklearn.metrics import log_loss

import simfl
from benchmarks import accuracy, fixed
from benchmarks.data import load
from benchmarks.repeats import in_turn, quartiles, with_quartiles
from simfl.params import TRAIN_NAMES, builder_bins, first_stage, train_params
from simfl.party import Party
from simfl.training.histograms import HistogramGrower, histogrammed
from simfl.training.traversal import Walker, walker
from simfl.training.trees import Grower, from_booster

SHAPES = {"SUSY-like": 18, "HIGGS-like": 28}
PAPER_SECONDS = {"SUSY-like": 963, "HIGGS-like": 996}
N_PARTIES = 10
DEPTH = 8
SHORT = {"max_candidates": 2000}  # a shorter search, where only stage 2 is measured


def rows(shape: str, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Correlated, partly skewed features, and a label that depends on some of them."""
    d = SHAPES[shape]
    rng = np.random.default_rng(seed)
    mixing = (np.eye(d) + 0.35 * np.random.default_rng(1).normal(size=(d, d))).astype(np.float32)
    X = rng.standard_normal((n, d), dtype=np.float32) @ mixing
    X[:, ::3] = np.exp(0.4 * X[:, ::3])
    score = X[:, 0] - X[:, 1] * X[:, 2] + 0.7 * X[:, 3] ** 2 + rng.standard_normal(n, dtype=np.float32)
    return X, (score > np.median(score)).astype(np.int64)


def parties(X: np.ndarray, y: np.ndarray) -> list[Party]:
    """Ten parties of equal size; slices, so that no row is copied."""
    cuts = np.linspace(0, len(y), N_PARTIES + 1).astype(int)
    return [Party(f"party {i}", X[a:b], y[a:b]) for i, (a, b) in enumerate(pairwise(cuts))]


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def prepare(shape: str, n: int, **options: Any) -> dict[str, Any]:
    """Stage 1 once."""
    few = {} if options.get("max_candidates") == 0 else {"max_candidates": 100}
    fixed.prepare(parties(*rows(shape, 2000)), random_state=0, **options | few)  # compiles what is going to run
    members = parties(*rows(shape, n))
    before = peak_bytes()
    ready = fixed.prepare(members, random_state=0, **options)
    about = ready.about
    data = sum(p.rows.X.nbytes for p in members)
    sent = ready.transport.traffic.total
    return {
        "shape": shape,
        "rows": n,
        "options": options,
        "seconds": about.seconds,
        "paper_seconds": PAPER_SECONDS[shape],
        "data_bytes": data,
        "extra_peak_over_data": (peak_bytes() - before) / data,
        "bytes": sent,
        "bytes_over_paper": sent / (8 * N_PARTIES * n * about.n_hashes),
    }


def both(shape: str, n: int, n_trees: int, **options: Any) -> dict[str, Any]:
    """Both stages once, in one process: seconds and peak memory. The first trees, which bin the rows, count as well."""
    few = {"max_candidates": 100} if "max_candidates" in options else {}
    small = parties(*rows(shape, min(n, 20_000)))
    fixed.train(small, callbacks=[], n_trees=N_PARTIES, random_state=0, **options | few)  # compiles
    members = parties(*rows(shape, n))
    before, data = peak_bytes(), sum(p.rows.X.nbytes for p in members)
    with fixed.changed(options) as params:
        later = {name: value for name, value in params.items() if name in TRAIN_NAMES}
        ready, prepared = _timed(lambda: simfl.prepare(members, random_state=0, **first_stage(params)))
        prepared_peak = peak_bytes() - before
        model, trained = _timed(lambda: simfl.train(ready, callbacks=[], n_trees=n_trees, max_depth=DEPTH, **later))
    return {
        "shape": shape,
        "rows": n,
        "trees": n_trees,
        "options": options,
        "data_bytes": data,
        "prepare_seconds": prepared,
        "train_seconds": trained,
        "seconds_per_tree": statistics.median(r.seconds for r in model.history),
        "bytes_per_tree": statistics.fmean(r.bytes for r in model.history),
        "extra_peak_over_data": {"prepare": prepared_peak / data, "train": (peak_bytes() - before) / data},
        "peak_bytes": peak_bytes(),
    }


def training(shape: str, n: int, n_trees: int, repeats: int, **options: Any) -> dict[str, Any]:
    """Stage 2 and `xgb.train` on all rows in turn."""
    X, y = rows(shape, n)
    settings: dict[str, Any] = {"max_depth": DEPTH, "n_trees": n_trees}
    members = parties(X, y)
    ready = fixed.prepare(members, random_state=0, **SHORT)
    pooled = xgb.QuantileDMatrix(X, y)
    alone = xgb.QuantileDMatrix(members[0].rows.X, members[0].rows.y)
    threads = multiprocessing.cpu_count()
    plain = {"objective": "binary:logistic", "max_depth": DEPTH, "learning_rate": 0.1, "nthread": threads}
    fixed.train(ready, callbacks=[], **settings | {"n_trees": N_PARTIES}, **options)  # bins, compilation
    deep = plain | {"max_depth": DEPTH + 2, "min_child_weight": 0}  # what a builder of the similar recipe grows
    walkers = [walker(member.rows.X) for member in members[1:]]
    grown = xgb.train(deep, alone, n_trees)
    turns, made = in_turn(
        {
            "simfl": lambda: fixed.train(ready, callbacks=[], **settings, **options),
            "all_in": lambda: xgb.train(plain, pooled, n_trees),
            "solo": lambda: xgb.train(plain, alone, n_trees),
            "solo_deep": lambda: xgb.train(deep, alone, n_trees),
            "passes": partial(_pass_all, walkers, grown, threads),
        },
        repeats,
    )
    bytes_per_tree = statistics.fmean(r.bytes for r in made["simfl"].history)
    return {
        "shape": shape,
        "rows": n,
        "trees": n_trees,
        "options": options,
        "seconds_per_tree": turns.medians(1 / n_trees),
        "over_all_in": turns.over("simfl", "all_in"),
        "over_solo": turns.over("simfl", "solo"),
        "over_solo_and_passes": turns.over("simfl", "solo", "passes"),
        "over_deep_solo_and_passes": turns.over("simfl", "solo_deep", "passes"),
        "bytes_per_tree": bytes_per_tree,
        "bytes_over_paper": bytes_per_tree / (8 * (n + (2**DEPTH - 1) * (N_PARTIES - 1))),
    }


def _pass_all(walkers: list[Walker], booster: xgb.Booster, threads: int) -> None:
    """Send the rows of the other parties down every tree."""
    trees = [from_booster(booster[i : i + 1]) for i in range(booster.num_boosted_rounds())]
    with ThreadPoolExecutor(threads) as pool:
        for tree in trees:
            asked = [pool.submit(rows.leaf_numbers, tree) for rows in walkers]
            wait(asked)


def midsize(n_trees: int = 200, repeats: int = 3, **options: Any) -> dict[str, Any]:
    """Stage 2 on a9a with ten parties, and `xgb.train` on all rows, in turn."""
    X, y = load("a9a")
    parts = simfl.partition.unbalanced(y, N_PARTIES, theta=0.8)
    ready = simfl.prepare([Party(f"party {i}", X[p], y[p]) for i, p in enumerate(parts)], random_state=0)
    fixed.train(ready, callbacks=[], n_trees=60, **options)  # bins, compilation, up to a rematch
    pooled = xgb.QuantileDMatrix(X, y)
    plain = {"objective": "binary:logistic", "max_depth": 6, "learning_rate": 0.1}
    growing: list[float] = []  # of every turn

    def ours() -> None:
        spent: dict[str, float] = {}
        with _growth_watched(spent):
            fixed.train(ready, callbacks=[], n_trees=n_trees, max_depth=6, **options)
        growing.append(spent["growing"])

    turns, _ = in_turn({"simfl": ours, "all_in": lambda: xgb.train(plain, pooled, n_trees)}, repeats)
    turns.seconds["builders_grow"] = growing
    return {
        "options": options,
        "prepare": ready.about.seconds,
        **turns.medians(),
        "over_all_in": turns.over("simfl", "all_in"),
        "growing_over_all_in": turns.over("builders_grow", "all_in"),
    }


def growing(n: int, repeats: int) -> dict[str, Any]:
    """A builder's tree of n HIGGS-like rows by histograms and by XGBoost, in turn: processor seconds, one thread."""
    X, y = rows("HIGGS-like", n)
    params = train_params(max_depth=DEPTH, max_bin=builder_bins(train_params(), N_PARTIES, N_PARTIES * n))
    g, h = (0.5 - y).astype(np.float32), np.full(n, 0.25, np.float32)
    cut = xgb.QuantileDMatrix(X, max_bin=params.max_bin, nthread=1)
    binned = histogrammed(X, cut)
    if binned is None:
        raise ValueError(f"{n} rows are grown by XGBoost")
    growers = {"own": HistogramGrower(binned, params), "xgboost": Grower(cut, params, threads=1)}
    works = {name: partial(grower.grow, g, h, seed=0) for name, grower in growers.items()}
    in_turn(works, 1)  # compiles
    turns, trees = in_turn(works, repeats, time.process_time)
    return {
        "rows": n,
        "bins": params.max_bin,
        "leaves": {name: tree.n_leaves for name, tree in trees.items()},
        **turns.medians(),
        "over_xgboost": turns.over("own", "xgboost"),
    }


def bins(shape: str, n: int, n_trees: int, repeats: int) -> dict[str, Any]:
    """Stage 2 with fine and with coarse bins, in turn: log loss on a fifth as many new rows, seconds per tree."""
    X, y = rows(shape, n + n // 5)
    ready = fixed.prepare(parties(X[:n], y[:n]), random_state=0, **SHORT)
    works = {}
    for name in ("256", "64"):
        options: dict[str, Any] = {"callbacks": [], "max_depth": DEPTH, "max_bin": int(name), "rematch": 0}
        simfl.train(ready, n_trees=N_PARTIES, **options)  # bins, compilation
        works[name] = partial(simfl.train, ready, n_trees=n_trees, **options)
    turns, models = in_turn(works, repeats)
    found: dict[str, Any] = {"shape": shape, "rows": n, "trees": n_trees}
    for name, model in models.items():
        found[f"{name}_logloss"] = float(log_loss(y[n:], model.predict_proba(X[n:])))
        found[f"{name}_seconds_per_tree"] = turns.median(name) / n_trees
    return found | {"64_over_256": turns.over("64", "256")}


def words(n: int, n_trees: int, n_features: int = 20_000) -> dict[str, Any]:
    """Both stages on sparse rows: 70 words of each row, frequent ones more often; ten of them tell the label."""
    rng = np.random.default_rng(0)
    columns = (n_features * rng.random((n, 70)) ** 3).astype(np.int32)
    data = np.ones(columns.size, dtype=np.float32)
    X = sparse.csr_matrix((data, columns.ravel(), np.arange(0, columns.size + 1, 70)), shape=(n, n_features))
    X.sum_duplicates()
    score = X[:, 100:110].sum(axis=1).A1 - X[:, 110:120].sum(axis=1).A1 + rng.normal(0, 0.5, n)
    y = (score > 0).astype(np.int64)
    small = parties(X[:2000], y[:2000])
    simfl.train(small, callbacks=[], n_trees=N_PARTIES, random_state=0)  # compiles
    members = parties(X, y)
    before = peak_bytes()
    ready, prepared = _timed(lambda: simfl.prepare(members, random_state=0))
    _, trained = _timed(lambda: simfl.train(ready, callbacks=[], n_trees=n_trees))
    return {
        "rows": n,
        "columns": n_features,
        "trees": n_trees,
        "prepare": prepared,
        "train": trained,
        "extra_peak_bytes": peak_bytes() - before,
        "dense_bytes": 4 * n * n_features,
    }


def profile(shape: str, n: int, n_trees: int) -> dict[str, Any]:
    """Seconds per tree in each kind of question, as the parties spend them, and the rest at the hub."""
    ready = fixed.prepare(parties(*rows(shape, n)), random_state=0, **SHORT)
    simfl.train(ready, callbacks=[], n_trees=N_PARTIES, max_depth=DEPTH, rematch=0)
    spent: dict[str, float] = {}
    for member in ready.sessions:
        member.handle = _watched(member.handle, spent)  # type: ignore[method-assign]
    with _growth_watched(spent):
        _, seconds = _timed(lambda: simfl.train(ready, callbacks=[], n_trees=n_trees, max_depth=DEPTH, rematch=0))
    kinds = {kind: value / n_trees for kind, value in sorted(spent.items(), key=lambda item: -item[1])}
    return {"shape": shape, "rows": n, "wall_seconds_per_tree": seconds / n_trees, "thread_seconds_per_tree": kinds}


def _watched(work: Callable[..., Any], spent: dict[str, float], kind: str = "") -> Callable[..., Any]:
    """The same function; the seconds spent in it are added up under a kind, or under its message's."""

    def watched(*args: Any, **named: Any) -> Any:
        begun = time.perf_counter()
        result = work(*args, **named)
        name = kind or type(args[0]).__name__
        spent[name] = spent.get(name, 0.0) + time.perf_counter() - begun
        return result

    return watched


@contextmanager
def _growth_watched(spent: dict[str, float]) -> Iterator[None]:
    """Add up what it takes to grow the builders' trees, with XGBoost or without."""
    kept = [(kind, kind.grow) for kind in (Grower, HistogramGrower)]
    for kind, grow in kept:
        kind.grow = _watched(grow, spent, "growing")  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for kind, grow in kept:
            kind.grow = grow  # type: ignore[attr-defined]


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begun


def apart(work: Callable[..., dict[str, Any]], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Run in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(work, args, kwargs)


def exponents(results: list[dict[str, Any]]) -> list[float]:
    """The slope of log seconds against log rows in every turn: the median and its quartiles.

    >>> exponents([{"rows": 100, "turns": [1.0, 2.0]}, {"rows": 400, "turns": [4.0, 4.0]}])
    [0.75, 0.625, 0.875]
    """
    x = [math.log(r["rows"]) for r in results]
    turns = zip(*(r["turns"] if "turns" in r else [r["seconds"]] for r in results), strict=True)
    return quartiles([round(float(np.polyfit(x, np.log(seconds), 1)[0]), 6) for seconds in turns])


def table(results: list[dict[str, Any]], title: str) -> Table:
    shown = Table(title=title, title_justify="left")
    for name in results[0]:
        shown.add_column(name, overflow="fold")
    for result in results:
        shown.add_row(*(_readable(value) for value in result.values()))
    return shown


def _readable(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{name} {_readable(v)}" for name, v in value.items())
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _growth(given: argparse.Namespace, more: dict[str, Any]) -> list[dict[str, Any]]:
    """All sizes in turn, so that a busy minute of the machine does not bend the line."""
    sizes = [50_000 * 2**i for i in range(5) if 50_000 * 2**i <= given.rows]
    kinds = [(shape, n) for shape in given.shapes for n in sizes]
    turns = [[apart(prepare, *kind, **more) for kind in kinds] for _ in range(given.repeats)]
    results = [_together(same) for same in zip(*turns, strict=True)]
    for shape in given.shapes:
        slope = exponents([r for r in results if r["shape"] == shape])
        Console().print(f"{shape}: seconds grow with rows to the power {with_quartiles(slope)}")
    return results


def _together(same: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several measurements of the same: the median of the seconds, and all of them."""
    seconds = [result["seconds"] for result in same]
    return same[0] | {"seconds": statistics.median(seconds), "turns": seconds}


MILLION = 1_000_000
BUILDERS = (3_000, 20_000, 100_000, 400_000)  # rows of one party
LIGHTER: tuple[dict[str, Any], ...] = ({}, {"rematch": 0}, {"rematch": 0, "extra_depth": 0})
# what it does with the arguments and changed parameters; how many rows and trees unless given
WORK: dict[str, tuple[Callable[[argparse.Namespace, dict[str, Any]], list[dict[str, Any]]], int, int]] = {
    "midsize": (lambda given, more: [apart(midsize, given.trees, given.repeats, **m, **more) for m in LIGHTER], 0, 200),
    "prepare": (lambda given, more: [apart(prepare, s, given.rows, **more) for s in given.shapes], MILLION, 0),
    "growth": (_growth, MILLION, 0),
    "training": (
        lambda given, more: [apart(training, s, given.rows, given.trees, given.repeats, **more) for s in given.shapes],
        MILLION,
        40,
    ),
    "both": (
        lambda given, more: [apart(both, s, given.rows, given.trees, **more) for s in given.shapes],
        10 * MILLION,
        20,
    ),
    "growing": (
        lambda given, more: [apart(growing, n, 3 * given.repeats) for n in BUILDERS if n <= given.rows],
        MILLION,
        0,
    ),
    "bins": (
        lambda given, more: [apart(bins, s, given.rows, given.trees, given.repeats) for s in given.shapes],
        600_000,
        60,
    ),
    "sparse": (lambda given, more: [apart(words, given.rows, given.trees)], 70_000, 20),
    "profile": (lambda given, more: [apart(profile, s, given.rows, given.trees) for s in given.shapes], MILLION, 20),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(WORK))
    parser.add_argument("--rows", type=int)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--trees", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="change parameters, or fixed parts")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    work, n_rows, n_trees = WORK[given.what]
    given.rows, given.trees = given.rows or n_rows, given.trees or n_trees
    results = work(given, accuracy.parsed(given.set))
    Console(width=160).print(table(results, given.what))
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
