"""Cells: the single measurements that a table is made of. Each is saved as soon as it is done and not run again.

A cell is a dictionary of settings; its key also holds what can change its numbers: a digest of our code, or what the
cell itself names (`versions` of a peer, the `behaviour` of a method). Results are kept as JSON lines in `runs/cells/`,
so that an interrupted command goes on where it stopped.
"""

from __future__ import annotations

import functools
import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import xgboost
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import simfl

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "runs" / "cells"
# What can change the numbers of a model, or its bytes. Doors, files and reports cannot.
_ROOMS = ("preprocessing", "training", "joint", "privacy", "party", "hub", "params")
_CORE = (*_ROOMS, "messages.py", "wire.py", "partition.py", "baselines.py")

Cell = dict[str, Any]
Result = dict[str, Any]


@functools.cache
def code() -> str:
    """The versions that a result depends on: SimFL's number, a digest of its core, and XGBoost's number."""
    digest = hashlib.sha256()
    for name in _CORE:
        path = ROOT / "simfl" / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return f"simfl {simfl.__version__}+{digest.hexdigest()[:8]}, xgboost {xgboost.__version__}"


def key(cell: Cell) -> str:
    """One text per cell and version. A cell that says what it depends on does not depend on the text of our code."""
    named = "versions" in cell or "behaviour" in cell
    return json.dumps({"cell": cell, "code": "" if named else code()}, sort_keys=True)


class Store:
    """The results so far, in one file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, Result] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    entry = json.loads(line)
                    self.known[entry["key"]] = entry["result"]
                except (json.JSONDecodeError, KeyError):
                    continue  # the last line of a run that was cut off

    def get(self, cell: Cell) -> Result | None:
        """The result of a cell, where there is one."""
        return self.known.get(key(cell))

    def put(self, cell: Cell, result: Result) -> None:
        """Keep a result; what failed is told but not kept, so that it is tried again."""
        self.known[key(cell)] = result
        if "failed" in result:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps({"key": key(cell), "result": result}) + "\n")


def run(
    cells: Sequence[Cell], work: Callable[[Cell], Result], store: Store, title: str, *, workers: int = 2
) -> list[Result]:
    """The results of all cells, in their order. Runs those that are missing, `workers` at a time, in fresh processes.

    With one worker a cell has the machine for itself: for measurements of time.
    """
    missing = list({key(cell): cell for cell in cells if store.get(cell) is None}.values())
    with _progress() as bar:
        task = bar.add_task(title, total=len(cells), completed=len(cells) - len(missing), now="")
        for cell, result in _finished(missing, work, workers):
            store.put(cell, result)
            failed = f" FAILED: {result['failed']}" if "failed" in result else ""
            bar.update(task, advance=1, now=name(cell) + failed)
            if failed:
                bar.console.print(f"{name(cell)}{failed}", style="red")
        bar.update(task, completed=len(cells), now="")
    return [store.get(cell) or {"failed": "not run"} for cell in cells]


def name(cell: Cell) -> str:
    """A cell in one line."""
    return " ".join(str(value) for value in cell.values())


def _progress() -> Progress:
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
        console=Console(stderr=True),
    )


def _finished(cells: Sequence[Cell], work: Callable[[Cell], Result], workers: int) -> Iterator[tuple[Cell, Result]]:
    if not cells:
        return
    # Threads of several processes on the same cores spin against one another: each gets its share.
    threads = max(len(os.sched_getaffinity(0)) // workers, 1)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_limit, initargs=(threads,)) as pool:
        pending: dict[Future[Result], Cell] = {pool.submit(_guarded, work, cell): cell for cell in cells}
        try:
            while pending:
                done, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    yield pending.pop(future), future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _limit(threads: int) -> None:
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(threads)
    os.environ["SIMFL_BENCHMARK_THREADS"] = str(threads)


def threads() -> int:
    """How many threads a cell may use."""
    return int(os.environ.get("SIMFL_BENCHMARK_THREADS", len(os.sched_getaffinity(0))))


def _guarded(work: Callable[[Cell], Result], cell: Cell) -> Result:
    try:
        return work(cell)
    except Exception as error:  # noqa: BLE001 - a cell that fails is a row of the table, not the end of it
        return {"failed": f"{type(error).__name__}: {error}"[:500]}
