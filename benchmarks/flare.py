"""What FLARE costs: the same training in one process and through provisioned processes with mutual TLS.

python -m benchmarks.flare overhead            three parties, a9a, 500 trees: milliseconds per tree on top
python -m benchmarks.flare overhead --recipe joint   the same for trees grown together
python -m benchmarks.flare rows --rows 1000000   a synthetic federation of this many rows, through FLARE

Both trainings give every party one thread, so that they differ in the transport and not in the work. In one process the
parties answer one after the other; between processes they answer at the same time, on all cores.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import dump_svmlight_file

import simfl
from benchmarks import data
from benchmarks.repeats import quartiles, with_quartiles
from simfl.deploy.run import Listener, run_study
from simfl.deploy.study import read_study
from simfl.deploy.tables import open_table
from simfl.report.record import RunRecord
from simfl.transport import flare

PARTIES = ("north", "south", "west")


def overhead(trees: int, recipe: str, repeats: int) -> dict[str, Any]:
    """Milliseconds per tree on top of the same training in one process: both in turn, the median and its quartiles."""
    X, y = data.load("a9a")
    parts = np.array_split(np.random.default_rng(0).permutation(len(y)), len(PARTIES))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        members = ""
        for name, rows in zip(PARTIES, parts, strict=True):
            dump_svmlight_file(X[rows], y[rows], str(folder / f"{name}.svm"), zero_based=False)
            members += f'[[party]]\nname = "{name}"\ndata = "{name}.svm"\n'
        study = folder / "study.toml"
        study.write_text(
            f'name = "a9a"\nfeatures = {X.shape[1]}\n[parameters]\nrecipe = "{recipe}"\n'
            f"n_trees = {trees}\nrandom_state = 0\n{members}"
        )
        pairs = [(_in_one_process(study), _through_flare(study)) for _ in range(repeats)]
        folder = pairs[-1][1][1]
        same = all((run / "model.ubj").read_bytes() == model for (_, model), (_, run) in pairs)
        hops = _hops(folder)
    alone, through = (float(np.median([pair[side][0] for pair in pairs])) for side in (0, 1))
    print(f"{trees} trees: {alone:.2f} s in one process (one thread), {through:.2f} s through FLARE")
    added = quartiles([1000 * (there[0] - here[0]) / trees for here, there in pairs])
    told = f"identical models: {same}; load {os.getloadavg()[0]:.1f}"
    print(f"overhead: {with_quartiles(added, 1)} ms per tree; {told}")
    for kind, (number, seconds) in hops.items():
        print(f"{kind}: {number} messages, {1000 * seconds:.1f} ms each (median)")
    found = {"trees": trees, "recipe": recipe, "one_process": alone, "flare": through, "overhead_ms": added}
    return found | {"identical": same, "hops": hops, "load": os.getloadavg()[0]}


def _hops(folder: Path) -> dict[str, tuple[int, float]]:
    """Per kind of message: how many there were, and the median of their seconds, there and back."""
    found: dict[str, list[float]] = {}
    for exchange in RunRecord.load(folder).timeline:
        found.setdefault(exchange.kind, []).append(exchange.seconds)
    return {kind: (len(seconds), float(np.median(seconds))) for kind, seconds in found.items()}


def _in_one_process(study_path: Path) -> tuple[float, bytes]:
    """Seconds of stage 2, and the model."""
    study = read_study(study_path)
    parties = [open_table(study, m.name, study_path.parent / str(m.data))[0] for m in study.party]
    model = simfl.train(parties, callbacks=[], n_jobs=1, **study.parameters)
    target = study_path.parent / "alone.ubj"
    model.save(target, history=False)
    return sum(record.seconds for record in model.history), target.read_bytes()


def _through_flare(study_path: Path) -> tuple[float, Path]:
    """Seconds of stage 2, and the run folder."""
    folder = run_study(study_path, local=True, listener=Listener(tell=print))
    history = json.loads((folder / "history.json").read_bytes())
    return sum(record["seconds"] for record in history["trees"]), folder


def rows(n: int, trees: int) -> dict[str, Any]:
    """A federation of n rows in all."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        members = ""
        for name in PARTIES:
            X = rng.normal(size=(n // len(PARTIES), 18)).astype(np.float32)
            y = (X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=len(X)) > 0).astype(np.int8)
            table = {f"x{i}": X[:, i] for i in range(18)} | {"y": y}
            _write_parquet(folder / f"{name}.parquet", table)
            members += f'[[party]]\nname = "{name}"\ndata = "{name}.parquet"\n'
        columns = "".join(f'x{i} = "number"\n' for i in range(18))
        study = folder / "study.toml"
        study.write_text(
            f'name = "rows"\nlabel = "y"\npatience = 300\n[columns]\n{columns}[parameters]\nn_trees = {trees}\n'
            f"random_state = 0\n{members}"
        )
        begun = time.perf_counter()
        _, out = _through_flare(study)
        seconds = time.perf_counter() - begun
        history = json.loads((out / "history.json").read_bytes())
    total = sum(b for party in history["traffic"].values() for way in party.values() for b in way.values())
    per_tree = [record["seconds"] for record in history["trees"]]
    print(f"{sum(history['rows'].values())} rows, {trees} trees: {seconds:.0f} s in all, start and stage 1 included")
    print(f"{np.median(per_tree):.2f} s per tree (median), {total / 1e6:.0f} MB between hub and parties")
    print(f"largest single message of the engine: at most {flare.PIECE} bytes; larger ones go in pieces")
    return {"rows": sum(history["rows"].values()), "trees": trees, "seconds": seconds, "bytes": total}


def _write_parquet(path: Path, table: dict[str, np.ndarray]) -> None:
    import pandas as pd

    pd.DataFrame(table).to_parquet(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["overhead", "rows"])
    parser.add_argument("--trees", type=int)
    parser.add_argument("--recipe", choices=["similar", "joint"], default="similar")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args()
    if options.what == "overhead":
        found = overhead(options.trees or 500, options.recipe, options.repeats)
    else:
        found = rows(options.rows, options.trees or 20)
    if options.json:
        options.json.write_text(json.dumps([found], indent=1) + "\n")


if __name__ == "__main__":
    main()
