"""For the data scientist: try SimFL on one machine, beside training alone and on all rows (demo, simulate)."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from simfl.cli.options import DEFAULT, HELP, Json, Label, Recipe, Seed, check_writable, console
from simfl.errors import DataError, ParameterError
from simfl.params import Objective
from simfl.storage import write_atomically

if TYPE_CHECKING:
    from simfl.arrays import AnyArray
    from simfl.data.files import Dataset
    from simfl.model import Model
    from simfl.simulate.comparison import Comparison, Result
    from simfl.simulate.simulation import Simulation

HOSPITALS = ("north", "east", "south", "west")
DEMO_SPLITS = 5

Trees = Annotated[int, typer.Option(min=1, help=HELP["n_trees"])]
Depth = Annotated[int, typer.Option(min=0, max=1000, help=HELP["max_depth"])]
Rate = Annotated[float, typer.Option(help=HELP["learning_rate"])]
AnyObjective = Annotated[Literal["auto", Objective], typer.Option(help="what is learned; auto: from the labels")]
WithReport = Annotated[bool, typer.Option("--report/--no-report", help="write run.json and report.html")]
DemoModel = Annotated[Path, typer.Option(metavar="MODEL", help="where SimFL's model goes")]
DemoRun = Annotated[Path, typer.Option(metavar="RUN", help="the folder for the report")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="a CSV, Parquet or LIBSVM file")]
Save = Annotated[Path | None, typer.Option("--save", metavar="MODEL", help="write SimFL's model (.ubj or .json)")]
Parties = Annotated[int | None, typer.Option(min=1, metavar="N", help="split the rows into N parties (default 4)")]
Theta = Annotated[
    float | None, typer.Option(metavar="T", help="skew the two classes: this share of one class in one half")
]
By = Annotated[str | None, typer.Option(metavar="COL", help="one party for every value of this column")]
Drop = Annotated[
    list[str] | None, typer.Option(metavar="COL", help="leave this column out (can be given several times)")
]
SimulationRun = Annotated[
    Path | None, typer.Option(metavar="RUN", help="the folder for the report (default: runs/ and the file's name)")
]


def demo(
    trees: Trees = DEFAULT["n_trees"],
    recipe: Recipe = DEFAULT["recipe"],
    seed: Seed = 0,
    save: DemoModel = Path("simfl-demo.ubj"),
    json: Json = None,
    run: DemoRun = Path("runs/demo"),
    report: WithReport = True,
) -> None:
    """Four hospitals with skewed breast cancer data: alone, in turns, with SimFL, and pooled.

    The held-out rows are few, so all is done for five splits; the table shows the means.
    """
    from simfl.simulate import comparison

    outputs = _Outputs(json, save, run if report else None)
    outputs.check()
    params = {"n_trees": trees, "recipe": recipe, "random_state": seed, "objective": "binary:logistic"}
    began, runs = time.time(), []
    with console.status("training") as status:
        for number, played in enumerate(_hospitals(seed), start=1):
            if number == 1:
                console.print("Breast cancer data in four hospitals:")
                for party in played.parties:
                    n, malignant = len(party.rows.y), 1 - party.rows.y.mean()
                    console.print(f"  {party.name:<6} {n:>4} rows, {malignant:.0%} malignant")
            status.update(f"training: split {number} of {DEMO_SPLITS}")
            runs.append((played, comparison.compare(played.parties, played.held_out, params, callbacks=[])))
    results = comparison.mean([compared.results for _, compared in runs])
    title = f"{trees} trees, {recipe} recipe, {len(played.held_out.y)} held-out rows, mean of {DEMO_SPLITS} splits"
    console.print(comparison.table(results, title))
    outputs.write(results, runs[0][1].simfl)
    note = f"This page shows the first of the {DEMO_SPLITS} splits whose means the terminal shows."
    outputs.report(*runs[0], "Breast cancer data in four skewed hospitals", began, [note])


def _hospitals(seed: int) -> Iterator[Simulation]:
    """Scikit-learn's breast cancer data at four hospitals, split again and again."""
    from sklearn.datasets import load_breast_cancer

    from simfl import partition
    from simfl.data.files import Dataset
    from simfl.data.schema import Schema
    from simfl.simulate import simulation

    stored = load_breast_cancer(as_frame=True)
    data = Dataset(stored.data, stored.target.to_numpy(), Schema.propose(stored.data))
    for split in range(seed, seed + DEMO_SPLITS):
        parts = partition.unbalanced(data.y, len(HOSPITALS), theta=0.8, seed=split)
        yield simulation.set_up(data, dict(zip(HOSPITALS, parts, strict=True)), split, stratify=True)


def simulate(
    file: File,
    label: Label = None,
    parties: Parties = None,
    theta: Theta = None,
    by: By = None,
    drop: Drop = None,
    recipe: Recipe = DEFAULT["recipe"],
    trees: Trees = DEFAULT["n_trees"],
    max_depth: Depth = DEFAULT["max_depth"],
    learning_rate: Rate = DEFAULT["learning_rate"],
    objective: AnyObjective = "auto",
    seed: Seed = 0,
    json: Json = None,
    save: Save = None,
    run: SimulationRun = None,
    report: WithReport = True,
) -> None:
    """Split a file into parties and compare SOLO, TFL, SimFL and ALL-IN on held-out rows.

    Example: simfl simulate patients.csv --label outcome --by hospital --json results.json
    """
    from simfl.data.files import read
    from simfl.data.table import objective_for

    if by is not None and (theta is not None or parties is not None):
        raise ParameterError("--by goes without --parties and --theta: the column says whose each row is.")
    outputs = _Outputs(json, save, (run or Path("runs") / file.stem) if report else None)
    outputs.check()
    data = read(file, label, by, drop or ())
    for note in data.notes:
        console.print(f"Note: {note}.")
    params: dict[str, Any] = {"n_trees": trees, "max_depth": max_depth, "learning_rate": learning_rate}
    params |= {"recipe": recipe, "random_state": seed}
    params["objective"] = objective_for(data.y) if objective == "auto" else objective
    _compare(file.name, data, _split(data, parties or 4, theta, seed), params, outputs)


def _split(data: Dataset, n: int, theta: float | None, seed: int) -> dict[str, AnyArray]:
    """The rows of each party, by its name."""
    import numpy as np

    from simfl import partition

    n_rows = len(data.y)
    if n_rows < 8:
        raise DataError(f"{n_rows} rows are too few: they are split into parties, and each holds out a quarter.")
    if data.by is not None:
        return partition.by_column(data.by)
    if theta is not None:
        if len(np.unique(data.y.astype(str))) != 2:
            raise ParameterError("--theta skews two classes, and here are more. Use --by COL, or a balanced split.")
        parts = partition.unbalanced(data.y.astype(str), n, theta, seed)
    else:
        parts = partition.balanced(n_rows, n, seed)
    return {f"party {number + 1}": part for number, part in enumerate(parts)}


def _compare(name: str, data: Dataset, parts: dict[str, AnyArray], params: dict[str, Any], outputs: _Outputs) -> None:
    """Train every method, show the scores, write what was asked for."""
    from simfl.report.record import Recorder
    from simfl.simulate import comparison, simulation

    began = time.time()
    stratify = params["objective"] != "reg:squarederror"
    played = simulation.set_up(data, parts, params["random_state"], stratify=stratify)
    n_rows, n_held_out = sum(len(p.rows.y) for p in played.parties), len(played.held_out.y)
    title = f"{name} in {len(parts)} parties"
    console.print(f"{name}: {n_rows} rows in {len(parts)} parties, {n_held_out} held out, {params['objective']}")
    callbacks = [Recorder(outputs.run, title, played.party_facts(), _command())] if outputs.run else []
    with console.status("starting") as status:

        def tell(model: str) -> None:
            status.update(f"training: {model}")

        compared = comparison.compare(played.parties, played.held_out, params, tell=tell, callbacks=callbacks)
    words = f"{params['n_trees']} trees, {params['recipe']} recipe, scores on {n_held_out} held-out rows"
    console.print(comparison.table(compared.results, words))
    outputs.write(compared.results, compared.simfl)
    outputs.report(played, compared, title, began, data.notes)


@dataclass(frozen=True)
class _Outputs:
    """The files to write; None: not this one."""

    json: Path | None  # the results
    save: Path | None  # SimFL's model
    run: Path | None  # the folder of run.json and report.html

    def check(self) -> None:
        """Refuse what cannot be written before the training starts."""
        from simfl.model import check_target

        if self.save is not None:
            check_target(self.save)
        check_writable(self.json, self.save)

    def write(self, results: list[Result], model: Model) -> None:
        if self.save is not None:
            model.save(self.save)
            console.print(f"SimFL's model: {self.save} (opens with xgboost.Booster().load_model, or simfl.load)")
        if self.json is not None:
            write_atomically(self.json, msgspec.json.format(msgspec.json.encode({"results": results})) + b"\n")
            console.print(f"Results: {self.json}")

    def report(self, played: Simulation, compared: Comparison, title: str, began: float, notes: list[str]) -> None:
        if self.run is None:
            return
        from simfl.report import page

        with console.status("writing the report"):
            record = played.record(compared, title=title, command=_command(), began=began)
            msgspec.structs.replace(record, notes=notes).save(self.run)
            path = page.write(self.run)
        console.print(f"Report: {path} (open it in a browser)", soft_wrap=True)


def _command() -> str:
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
