"""Pages from what was measured before: the CSV files beside them, in place of a store of cells.

So words, colours and the order of a page can change, and no figure of it does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import cells
from benchmarks.pages import read_csv

LISTS = ("error", "logloss", "auc")  # one value per model: several for SOLO
Row = dict[str, Any]


class Kept(cells.Store):
    """The results of a page's CSV. A cell that is not in it has failed: nothing is measured."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.with_suffix(".none"))
        self.rows = read_csv(path)

    def get(self, cell: cells.Cell) -> cells.Result:
        """The rows of a cell, as its result."""
        # Pooled training is one cell whatever the parties; the CSV has it with each table.
        free = ("behaviour", "table") + (("partition", "parties") if cell.get("method") == "ALL-IN" else ())
        told = {name: value for name, value in cell.items() if name not in free}
        found = [row for row in self.rows if all(row.get(name, value) == value for name, value in told.items())]
        if not found:
            return {"failed": "not in the CSV"}
        if "tree" in found[0]:
            return {"trees": found}
        if "model" not in found[0]:
            return found[0]
        models = {row["model"]: row for row in found}  # of pooled training the same row several times
        return {name: [row[name] for row in models.values() if name in row] for name in LISTS}
