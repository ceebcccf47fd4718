"""Tables, settings and answers as files, for programs that run in an environment of their own.

The scripts `drive_*.py` import this file by its plain name: it needs NumPy and SciPy, nothing else.
"""

import json
import time
from pathlib import Path

import numpy as np
from scipy import sparse


def write_table(path, X, y):
    """A table and its labels, dense or sparse."""
    if sparse.issparse(X):
        X = X.tocsr()
        np.savez(path, data=X.data, indices=X.indices, indptr=X.indptr, shape=X.shape, y=y)
    else:
        np.savez(path, X=X, y=y)


def read_table(path):
    """What `write_table` wrote."""
    with np.load(path, allow_pickle=False) as file:
        kept = dict(file)
    if "X" in kept:
        return kept["X"], kept["y"]
    parts = (kept["data"], kept["indices"].astype(np.int32), kept["indptr"].astype(np.int32))
    return sparse.csr_matrix(parts, shape=tuple(kept["shape"])), kept["y"]


def write_task(folder, parties, test, settings):
    """Everything that a peer needs."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for number, (X, y) in enumerate(parties):
        write_table(folder / f"party-{number}.npz", X, y)
    write_table(folder / "test.npz", *test)
    (folder / "settings.json").write_text(json.dumps(settings | {"parties": len(parties)}))


def read_settings(folder):
    """The settings of a task."""
    return json.loads((Path(folder) / "settings.json").read_text())


def read_parties(folder):
    """The tables of all parties."""
    return [read_table(Path(folder) / f"party-{i}.npz") for i in range(read_settings(folder)["parties"])]


def write_answer(folder, p, **facts):
    """The probabilities on the test rows, and what was counted."""
    np.save(Path(folder) / "probability.npy", np.asarray(p, dtype=np.float64))
    (Path(folder) / "answer.json").write_text(json.dumps(facts))


class Clock:
    """Adds up the wall and CPU time of the blocks it is used around."""

    def __init__(self):
        self.seconds = self.cpu = 0.0

    def __enter__(self):
        self._begun = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_):
        self.seconds += time.perf_counter() - self._begun[0]
        self.cpu += time.process_time() - self._begun[1]
