"""What a hub and a party need: the peak of memory and the disk of a run, by rows, of real processes.

python -m benchmarks.sizing --json docs/results/sizing.json      writes docs/operate/sizing.md's table, too
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil

from simfl.deploy.run import run_study

PAGE = Path(__file__).parents[1] / "docs" / "operate" / "sizing.md"
COLUMNS = 20
HEAD = "| recipe | rows per party | hub, memory | party, memory | hub, disk | party, disk | bytes per tree |"


class Peaks(threading.Thread):
    """Watches the processes that this one starts: the largest memory that hub and parties had, jobs included."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most: Counter[str] = Counter()
        self.over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self.over.wait(0.1):
            for process in psutil.Process().children():
                self._look(process)

    def _look(self, process: psutil.Process) -> None:
        try:
            words = process.cmdline()
            role = {"server": "hub", "client": "party"}.get(words[words.index("simfl.deploy.program") + 1])
            below = process.children(recursive=True)
            size = sum(one.memory_info().rss for one in (process, *below))
        except (psutil.Error, ValueError, IndexError):
            return
        if role is not None:
            self.most[role] = max(self.most[role], size)


def measure(rows: int, recipe: str, trees: int, parties: int = 2) -> dict[str, Any]:
    """One training among real processes."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as made:
        folder, members = Path(made), ""
        for name in [f"p{i}" for i in range(parties)]:
            X = rng.normal(size=(rows, COLUMNS)).astype(np.float32)
            table = pd.DataFrame({f"x{i}": X[:, i] for i in range(COLUMNS)})
            table["y"] = (X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=rows) > 0).astype(np.int8)
            table.to_parquet(folder / f"{name}.parquet")
            members += f'[[party]]\nname = "{name}"\ndata = "{name}.parquet"\n'
        columns = "".join(f'x{i} = "number"\n' for i in range(COLUMNS))
        (folder / "study.toml").write_text(
            f'name = "sizing"\nlabel = "y"\npatience = 600\n[columns]\n{columns}[parameters]\nrecipe = "{recipe}"\n'
            f"n_trees = {trees}\nrandom_state = 0\n{members}"
        )
        peaks = Peaks()
        out = run_study(folder / "study.toml", local=True)
        peaks.over.set()
        history = json.loads((out / "history.json").read_bytes())
        total = sum(record["bytes"] for record in history["trees"])
        disk = {role: _disk(out / "federation" / kit) for role, kit in (("hub", "hub"), ("party", "p0"))}
    return {
        "recipe": recipe,
        "rows": rows,
        "trees": trees,
        "memory": dict(peaks.most),
        "disk": disk,
        "bytes_per_tree": total // max(len(history["trees"]), 1),
    }


def _disk(kit: Path) -> int:
    """Bytes that a run has left in a kit, without the kit itself."""
    own = ("startup", "local")
    return sum(p.stat().st_size for p in kit.rglob("*") if p.is_file() and p.relative_to(kit).parts[0] not in own)


def table(found: list[dict[str, Any]]) -> str:
    """As the page has it."""
    lines = [HEAD, "|---|---:|---:|---:|---:|---:|---:|"]
    for one in found:
        sizes = [one["memory"]["hub"], one["memory"]["party"], one["disk"]["hub"], one["disk"]["party"]]
        cells = [one["recipe"], f"{one['rows']:,}", *map(_size, sizes), _size(one["bytes_per_tree"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _size(n: float) -> str:
    return f"{n / 1e6:,.0f} MB" if n >= 1e7 else f"{n / 1e6:.1f} MB" if n >= 1e5 else f"{n / 1e3:.0f} kB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--trees", type=int, default=10)
    parser.add_argument("--recipes", nargs="+", default=["similar", "joint"])
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args()
    found = []
    for recipe in options.recipes:
        for rows in options.rows:
            begun = time.perf_counter()
            found.append(measure(rows, recipe, options.trees))
            print(f"{recipe}, {rows} rows: {time.perf_counter() - begun:.0f} s", flush=True)
    print(table(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
        text = PAGE.read_text()
        PAGE.write_text(re.sub(rf"{re.escape(HEAD)}\n(\|.*\n)+", f"{table(found)}\n", text))


if __name__ == "__main__":
    main()
