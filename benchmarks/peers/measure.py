"""One cell of the comparison: one method on the same parties, in its own environment where it is a peer."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xgboost

import simfl
from benchmarks import cells
from benchmarks.data import split
from benchmarks.paper import training
from benchmarks.peers import exchange
from benchmarks.peers.environments import FEDTREE, FLOWER, PLUGIN, Environment
from benchmarks.wire import watched
from simfl.params import TRAIN_NAMES, first_stage

TASKS = cells.ROOT / "runs" / "peers"
SCRIPTS = Path(__file__).parent
DEFAULT, JOINT, PAPER = "SimFL, similar", "SimFL, joint", "SimFL, paper's recipe"
SOLO, ALL_IN = "XGBoost alone (SOLO, best party)", "XGBoost on all rows (ALL-IN)"
PLUGIN_NAME, CYCLIC, BAGGING, DIVIDED, FEDTREE_NAME = (
    "XGBoost federated plugin",
    "Flower FedXgbCyclic",
    "Flower FedXgbBagging",
    "Flower FedXgbBagging, step / parties",
    "FedTree",
)
OURS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    JOINT: {"recipe": "joint"},
    PAPER: {"recipe": "paper"},
}
PEERS: dict[str, tuple[Environment, str, str]] = {
    PLUGIN_NAME: (PLUGIN, "drive_plugin.py", "plugin"),
    CYCLIC: (FLOWER, "drive_flower.py", "cyclic"),
    BAGGING: (FLOWER, "drive_flower.py", "bagging"),
    DIVIDED: (FLOWER, "drive_flower.py", "bagging-divided"),
    FEDTREE_NAME: (FEDTREE, "drive_fedtree.py", "fedtree"),
}
METHODS = (ALL_IN, PLUGIN_NAME, *OURS, CYCLIC, BAGGING, DIVIDED, FEDTREE_NAME, SOLO)
FEDTREE_BINS = 255


def cell(method: str, data: str, parties: int, run: int, trees: int) -> cells.Cell:
    """The settings of one cell. A peer's numbers depend on its own version, not on ours."""
    found: cells.Cell = {"method": method, "data": data, "partition": "theta 0.8", "parties": parties, "run": run}
    found |= {"trees": trees, "max_depth": 8, "learning_rate": 0.1}
    if method in PEERS:
        environment, script, _ = PEERS[method]
        return found | {"versions": environment.version, "script": script}
    return found | ({"versions": f"xgboost {xgboost.__version__}"} if method in (SOLO, ALL_IN) else {})


def measure(cell: cells.Cell, limit: float = 600) -> cells.Result:
    """Train and score. A peer may take `limit` seconds."""
    X, y = training._data(cell["data"])
    _, held_out = split(y, cell["run"])
    test = X[held_out], y[held_out]
    parties = training.members(cell, X, y)
    if cell["method"] in PEERS:
        p, facts = _peer(cell, parties, test, limit)
    elif cell["method"] in OURS:
        p, facts = _ours(cell, parties, test[0])
    else:
        p, facts = _alone(cell, parties, test)
    return training.scores(test[1], p) | facts | {"rows": sum(len(party.rows.y) for party in parties)}


def _settings(cell: cells.Cell) -> dict[str, Any]:
    return {"n_trees": cell["trees"], "max_depth": cell["max_depth"], "learning_rate": cell["learning_rate"]}


def _alone(cell: cells.Cell, parties: list[simfl.Party], test: tuple[Any, np.ndarray]) -> tuple[np.ndarray, Any]:
    call = simfl.baselines.solo if cell["method"] == SOLO else simfl.baselines.all_in
    models, seconds = _timed(lambda: call(parties, random_state=0, n_jobs=cells.threads(), **_settings(cell)))
    found = [models] if isinstance(models, simfl.Model) else list(models.values())
    p = min((m.predict_proba(test[0])[:, 1] for m in found), key=lambda p: training.scores(test[1], p)["logloss"])
    losses = [training.scores(test[1], m.predict_proba(test[0])[:, 1])["logloss"] for m in found]
    facts = {"seconds": seconds, "critical_seconds": None, "bytes": 0, "messages": 0, "trees": cell["trees"]}
    return p, facts | {"mean_logloss": float(np.mean(losses))}


def _ours(cell: cells.Cell, parties: list[simfl.Party], X: Any) -> tuple[np.ndarray, Any]:
    """Twice: for the seconds with all cores, and party by party for messages, bytes and the slowest of every hop."""
    options = OURS[cell["method"]] | _settings(cell) | {"random_state": cell["run"], "callbacks": []}
    rematch = {} if "recipe" in options else {"rematch": len(parties)}
    few = {"n_trees": len(parties) + 1, "n_jobs": cells.threads()} | rematch  # on all rows: few rows need less code
    simfl.train(parties, **options | few)  # compiles, once per machine: not counted
    model, seconds = _timed(lambda: simfl.train(parties, n_jobs=cells.threads(), **options))
    second = {name: value for name, value in options.items() if name in TRAIN_NAMES and name != "random_state"}
    with watched() as stage_1:
        ready = simfl.prepare(parties, n_jobs=1, **first_stage(options))
    with watched() as stage_2:
        simfl.train(ready, callbacks=[], n_jobs=1, **second)
    return model.predict_proba(X)[:, 1], {
        "seconds": seconds,
        "critical_seconds": stage_1.critical_seconds + stage_2.critical_seconds,
        "bytes": stage_1.bytes + stage_2.bytes,
        "messages": stage_1.messages + stage_2.messages,
        "prepare_bytes": stage_1.bytes,
        "prepare_messages": stage_1.messages,
        "trees": len(model.booster.get_dump()),
    }


def _peer(
    cell: cells.Cell, parties: list[simfl.Party], test: tuple[Any, np.ndarray], limit: float
) -> tuple[np.ndarray, Any]:
    environment, script, kind = PEERS[cell["method"]]
    folder = TASKS / f"{cell['data']}-{cell['parties']}-{cell['run']}-{kind}"
    shutil.rmtree(folder, ignore_errors=True)
    settings = {
        "trees": cell["trees"],
        "learning_rate": cell["learning_rate"],
        "xgboost": {"objective": "binary:logistic", "max_depth": cell["max_depth"], "tree_method": "hist"},
        "fedtree_bins": FEDTREE_BINS,
    }
    exchange.write_task(folder, [(p.rows.X, p.rows.y) for p in parties], test, settings)
    try:
        answer = _answer(environment, [SCRIPTS / script, folder, kind], limit, folder)
        return np.load(folder / "probability.npy"), answer
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answer(environment: Environment, arguments: list[Any], limit: float, folder: Path) -> dict[str, Any]:
    """Run a script in an environment. What it says last is the message if it fails."""
    command = [str(environment.python), *map(str, arguments)]
    try:
        done = subprocess.run(
            command, env=environment.spelled(), capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"not finished after {limit:.0f} seconds") from None
    if done.returncode == -signal.SIGKILL:
        taken = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        raise MemoryError(f"killed by the system when it had taken {taken:.0f} GB of memory")
    if done.returncode or not (folder / "answer.json").exists():
        said = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise RuntimeError(f"ended with {done.returncode}: {said[-1]}")
    answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    return answer


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begun
