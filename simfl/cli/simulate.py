"""For the data scientist: try SimFL on one machine, beside training alone and on all rows (demo, simulate)."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from simfl.cli.options import (
    DEFAULT,
    HELP,
    Drop,
    Event,
    Json,
    Labels,
    Recipe,
    Seed,
    Weight,
    check_writable,
    console,
    offering_to_drop,
)
from simfl.data.header import Asked, check_columns
from simfl.errors import DataError, ParameterError
from simfl.params import Objective, cores
from simfl.storage import write_atomically

if TYPE_CHECKING:
    from simfl.arrays import AnyArray
    from simfl.callbacks import Callback
    from simfl.data.files import Dataset
    from simfl.model import Model
    from simfl.simulate.comparison import Result
    from simfl.simulate.experiment import Experiment, Outcome
    from simfl.simulate.processes import Spare
    from simfl.simulate.simulation import Simulation

DEMO_SPLITS = 4
MOST_TREES = 300  # that a comparison grows: every method stops by itself

Trees = Annotated[int, typer.Option(min=1, help="boosting rounds at most: validation rows decide when to stop")]
Splits = Annotated[int, typer.Option(min=1, help="splits into training and held-out rows; results are means over them")]
Depth = Annotated[int, typer.Option(min=0, max=1000, help=HELP["max_depth"])]
Rate = Annotated[float, typer.Option(help=HELP["learning_rate"])]
AnyObjective = Annotated[Literal["auto", Objective], typer.Option(help="what is learned; auto: from the labels")]
WithReport = Annotated[bool, typer.Option("--report/--no-report", help="write run.json and report.html")]
DemoModel = Annotated[Path, typer.Option(metavar="MODEL", help="where SimFL's model goes")]
DemoRun = Annotated[Path, typer.Option(metavar="RUN", help="the folder for the report")]
Files = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="a CSV, Parquet or LIBSVM file; several: one for each party")
]
Save = Annotated[Path | None, typer.Option("--save", metavar="MODEL", help="write SimFL's model (.ubj or .json)")]
Parties = Annotated[int | None, typer.Option(min=1, metavar="N", help="split the rows into N parties (default 4)")]
Theta = Annotated[
    float | None, typer.Option(metavar="T", help="skew the two classes: this share of one class in one half")
]
By = Annotated[str | None, typer.Option(metavar="COL", help="one party for every value of this column")]
Epsilon = Annotated[
    float | None,
    typer.Option(metavar="E", help="with --recipe joint: differential privacy of every row; needs --columns"),
]
Columns = Annotated[
    Path | None,
    typer.Option(metavar="STUDY", help="a study.toml whose table of columns declares them and their ranges"),
]
SimulationRun = Annotated[
    Path | None, typer.Option(metavar="RUN", help="the folder for the report (default: runs/ and the file's name)")
]


def demo(
    trees: Trees = MOST_TREES,
    recipe: Recipe = DEFAULT["recipe"],
    seed: Seed = 0,
    splits: Splits = DEMO_SPLITS,
    save: DemoModel = Path("simfl-demo.ubj"),
    json: Json = None,
    run: DemoRun = Path("runs/demo"),
    report: WithReport = True,
) -> None:
    """Four real hospitals with heart disease data: alone, in turns, with SimFL (similar and joint), and pooled.

    Cleveland, Budapest, Zurich and Basel, Long Beach: 920 patients, who come with the package (simfl.datasets.heart).
    Some ten seconds; the first time twenty more, to compile. --splits 20 gives narrower intervals.
    """
    from simfl.simulate.processes import spare_processes

    outputs = _Outputs(json, save, run if report else None)
    params = {"n_trees": trees, "recipe": recipe, "random_state": seed, "n_jobs": 1}
    # Splits take all cores: threads of XGBoost, which starts some whatever it is asked for, would wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Before the heavy imports: the spare processes do the same meanwhile.
    with spare_processes(min(splits, cores()) - 1) as spare:
        _demonstrate(params, splits, outputs, spare)


def _demonstrate(params: dict[str, Any], splits: int, outputs: _Outputs, spare: Spare) -> None:
    from simfl.datasets import LABEL
    from simfl.simulate import experiment

    outputs.check()
    hospitals = experiment.heart(params, splits)
    console.print("Heart disease at four hospitals (UCI Machine Learning Repository, CC BY 4.0):")
    for hospital, rows in hospitals.parts.items():
        X, y, _ = hospitals.data.rows(rows)
        facts = (
            f"{len(y):>4} patients, {y.mean():.0%} with {LABEL}, {X.isna().to_numpy().mean():.0%} of the values missing"
        )
        console.print(f"  {hospital:<12} {facts}", highlight=False)
    _compare("Heart disease at four hospitals", hospitals, outputs, spare=spare)


def simulate(
    files: Files,
    label: Labels = None,
    event: Event = None,
    weight: Weight = None,
    parties: Parties = None,
    theta: Theta = None,
    by: By = None,
    drop: Drop = None,
    recipe: Recipe = DEFAULT["recipe"],
    trees: Trees = MOST_TREES,
    max_depth: Depth = DEFAULT["max_depth"],
    learning_rate: Rate = DEFAULT["learning_rate"],
    objective: AnyObjective = "auto",
    epsilon: Epsilon = None,
    columns: Columns = None,
    seed: Seed = 0,
    splits: Splits = 1,
    json: Json = None,
    save: Save = None,
    run: SimulationRun = None,
    report: WithReport = True,
) -> None:
    """Split a file into parties, or take one file for each. Compare SOLO, TFL, SimFL (also joint) and ALL-IN.

    Example: simfl simulate patients.csv --label outcome --by hospital --json results.json
    """
    one = len(files) == 1
    _check_ways(one, by, theta, parties)
    home = files[0].stem if one else files[0].resolve().parent.name
    outputs = _Outputs(json, save, (run or Path("runs") / home) if report else None)
    for file in files:
        check_columns(file, Asked(tuple(label or ()), event, by, tuple(drop or ()), weight))
    from simfl.data.files import Target, read, read_several  # heavy: a typo above is refused before
    from simfl.data.table import objective_for, why_objective
    from simfl.simulate.experiment import Experiment

    outputs.check()
    target = Target.of(label, event, weight)
    with offering_to_drop():
        data = read(files[0], target, by, drop or ()) if one else read_several(files, target, drop or ())
    notes = list(data.notes)
    if save is not None and data.schema is not None and data.schema.has_categories:
        notes.append("ONNX cannot hold splits of categories. If you need ONNX, turn them into 0/1 columns first")
    for note in notes:
        console.print(f"Note: {note}.")
    params: dict[str, Any] = {"n_trees": trees, "max_depth": max_depth, "learning_rate": learning_rate}
    params |= {"recipe": recipe, "random_state": seed}
    params["objective"] = objective_for(data.y) if objective == "auto" else objective
    if epsilon is not None:
        data, declared = _declared(data, recipe, epsilon, columns)
        params |= declared
    parts = _split(data, parties or 4, theta, seed)
    name = files[0].name if one else home
    console.print(f"{name}: {len(data.y)} rows in {len(parts)} parties, {params['objective']}")
    if objective == "auto":
        console.print(f"  {why_objective(data.y)}", style="dim", highlight=False)
    _compare(f"{name} in {len(parts)} parties", Experiment(data, parts, params, splits), outputs, data.notes)


def _check_ways(one: bool, by: str | None, theta: float | None, parties: int | None) -> None:
    """Refuse two ways to say whose a row is."""
    if by is not None and (theta is not None or parties is not None):
        raise ParameterError("--by goes without --parties and --theta: the column says whose each row is.")
    if not one and (by, theta, parties) != (None, None, None):
        raise ParameterError("Several files go without --by, --parties and --theta: each file is one party.")


def _declared(data: Dataset, recipe: str, epsilon: float, columns: Path | None) -> tuple[Dataset, dict[str, Any]]:
    """The table as a study with epsilon would read it. Its rows and classes stand in for declared ones."""
    from dataclasses import replace

    from simfl.data.table import plain_classes
    from simfl.deploy.study import columns_of

    if recipe != "joint":
        raise ParameterError(
            "--epsilon goes with --recipe joint: there everything that leaves a party is differentially private."
        )
    if columns is None:
        raise ParameterError(
            "--epsilon needs --columns STUDY: nobody may ask where values lie, so a study.toml declares it in "
            "[columns], as in age = { low = 0, high = 120 }. `simfl init` writes one for a table."
        )
    rows = len(data.y)
    declared = {"epsilon": epsilon, "delta": min(1e-5, 0.1 / rows), "rows": rows, "classes": plain_classes(data.y)}
    return replace(data, schema=columns_of(columns)), declared


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
        if data.y.ndim == 2 or len(np.unique(data.y.astype(str))) != 2:
            raise ParameterError("--theta skews two classes, and here are more. Use --by COL, or a balanced split.")
        parts = partition.unbalanced(data.y.astype(str), n, theta, seed)
    else:
        parts = partition.balanced(n_rows, n, seed)
    return {f"party {number + 1}": part for number, part in enumerate(parts)}


def _compare(
    title: str, asked: Experiment, outputs: _Outputs, notes: Sequence[str] = (), spare: Spare | None = None
) -> None:
    """Train every method, show what it is worth to whom, write what was asked for."""
    began = time.time()
    from simfl.callbacks import COMPILING, telling_of_compilation
    from simfl.simulate.experiment import NO_SPARE

    with console.status("starting") as status, telling_of_compilation(partial(console.print, COMPILING, style="dim")):
        outcome = asked.run(
            lambda doing: status.update(f"training: {doing}"),
            lambda played: outputs.recorders(title, played),
            spare or NO_SPARE,
        )
    _show(outcome, asked)
    outputs.write(outcome.measured.results, outcome.compared.simfl)
    if asked.n_splits > 1:
        first = f"Curves, calibration, important columns and traffic are those of the first of {asked.n_splits} splits."
        notes = [first, *notes]
    outputs.report(outcome, title, began, list(notes), spare or NO_SPARE)


def _show(outcome: Outcome, asked: Experiment) -> None:
    """The verdict, then each party's own rows, then all rows."""
    from simfl.report.verdict import verdict
    from simfl.report.words import METRICS, stopping_rule
    from simfl.simulate import tables

    measured, n_trees = outcome.measured, asked.params["n_trees"]
    metric, n_held_out = measured.own[0].metric, len(outcome.played.held_out.y)
    console.print()
    for place, sentence in enumerate(verdict(measured.gains, metric)):
        console.print(sentence, style="bold" if place == 0 else None, markup=False, highlight=False)
    means = f", mean of {asked.n_splits} splits" if asked.n_splits > 1 else ""
    title = f"{METRICS[metric].capitalize()} on each party's own held-out rows, shared models adjusted to it{means}"
    console.print(tables.own_table(measured.own, measured.own_gains(), title))
    console.print(tables.table(measured.results, f"On {n_held_out} held-out rows of all parties{means}"))
    rule = stopping_rule(outcome.compared.settings)
    console.print(f"* the best of its row or column. {rule or ''}", style="dim", highlight=False)
    if outcome.compared.simfl.n_trees == n_trees and asked.params.get("epsilon") is None:
        console.print(f"SimFL was still improving after {n_trees} trees: try --trees {3 * n_trees}.")


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

    def recorders(self, title: str, played: Simulation) -> list[Callback]:
        """Writes the run while it is going on, for `simfl watch`."""
        from simfl.report.record import Recorder

        return [Recorder(self.run, title, played.party_facts(), _command())] if self.run else []

    def report(self, outcome: Outcome, title: str, began: float, notes: list[str], spare: Spare) -> None:
        if self.run is None:
            return
        with console.status("writing the report") as status:

            def tell(doing: str) -> None:
                status.update(f"writing the report: {doing}")

            record = outcome.played.record(outcome.compared, outcome.measured, title=title, began=began, tell=tell)
            msgspec.structs.replace(record, command=_command(), notes=notes).save(self.run)
            tell("the page")
            path = spare.write_page(self.run)
        console.print(f"Report: {path} (open it in a browser)", soft_wrap=True)


def _command() -> str:
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
