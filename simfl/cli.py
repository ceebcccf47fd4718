"""The command line: thin doors onto the package."""

from __future__ import annotations

import logging
import shlex
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from sklearn.datasets import load_breast_cancer

from simfl import comparison, partition, simulation
from simfl.arrays import AnyArray
from simfl.callbacks import logger
from simfl.errors import DataError, FileError, ParameterError, SimFLError
from simfl.files import Dataset, predictions, read, read_frame, write_frame
from simfl.model import Model, check_target, load, write_whole
from simfl.params import Objective, RecipeName, defaults, descriptions
from simfl.party import Party
from simfl.record import Recorder
from simfl.schema import Schema

app = typer.Typer(
    help="Gradient-boosted trees across organisations that cannot pool their rows.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
console = Console()
errors = Console(stderr=True)
HOSPITALS = ("north", "east", "south", "west")
DEMO_SPLITS = 5
_default, _help = defaults(), descriptions()

AnyObjective = Literal["auto", Objective]
Recipe = Annotated[RecipeName, typer.Option(help=_help["recipe"])]
Trees = Annotated[int, typer.Option(min=1, help=_help["n_trees"])]
Depth = Annotated[int, typer.Option(min=0, max=1000, help=_help["max_depth"])]
Rate = Annotated[float, typer.Option(help=_help["learning_rate"])]
Seed = Annotated[
    int, typer.Option(min=0, help="seed of the split into parties, of the held-out rows and of the training")
]
Json = Annotated[Path | None, typer.Option("--json", metavar="OUT", help="write the results as JSON too")]
WithReport = Annotated[bool, typer.Option("--report/--no-report", help="write run.json and report.html")]
Save = Annotated[Path | None, typer.Option("--save", metavar="MODEL", help="write SimFL's model (.ubj or .json)")]


def _version(wanted: bool) -> None:
    if wanted:
        console.print(version("simfl"))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="show the version")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="show what the logger 'simfl' tells")] = False,
) -> None:
    """Gradient-boosted trees across organisations that cannot pool their rows."""
    if verbose:
        logger.addHandler(RichHandler(console=errors, show_path=False))
        logger.setLevel(logging.INFO)


@app.command()
def demo(
    trees: Trees = _default["n_trees"],
    recipe: Recipe = _default["recipe"],
    seed: Seed = 0,
    save: Annotated[Path, typer.Option(metavar="MODEL", help="where SimFL's model goes")] = Path("simfl-demo.ubj"),
    json: Json = None,
    run: Annotated[Path, typer.Option(metavar="RUN", help="the folder for the report")] = Path("runs/demo"),
    report: WithReport = True,
) -> None:
    """Four hospitals with skewed breast cancer data: alone, in turns, with SimFL, and pooled.

    The held-out rows are few, so all is done for five splits; the table shows the means.
    """
    _check_outputs(json, save)
    stored = load_breast_cancer(as_frame=True)
    data = Dataset(stored.data, stored.target.to_numpy(), Schema.propose(stored.data))
    params = {"n_trees": trees, "recipe": recipe, "random_state": seed, "objective": "binary:logistic"}
    began, runs = time.time(), []
    with console.status("training") as status:
        for number in range(DEMO_SPLITS):
            parts = partition.unbalanced(data.y, len(HOSPITALS), theta=0.8, seed=seed + number)
            stage = simulation.set_up(data, dict(zip(HOSPITALS, parts, strict=True)), seed + number, stratify=True)
            if number == 0:
                _introduce(stage.parties)
            status.update(f"training: split {number + 1} of {DEMO_SPLITS}")
            runs.append((stage, simulation.play(stage, params, callbacks=[])))
    results = comparison.mean([compared.results for _, compared in runs])
    n_held_out = len(stage.held_out.y)
    title = f"{trees} trees, {recipe} recipe, {n_held_out} held-out rows, mean of {DEMO_SPLITS} splits"
    console.print(comparison.table(results, title))
    _write(results, runs[0][1].simfl, json, save)
    if report:
        note = f"This page shows the first of the {DEMO_SPLITS} splits whose means the terminal shows."
        _report(*runs[0], run, "Breast cancer data in four skewed hospitals", began, [note])


def _introduce(parties: list[Party]) -> None:
    console.print("Breast cancer data in four hospitals:")
    for party in parties:
        console.print(f"  {party.name:<6} {len(party.rows.y):>4} rows, {1 - party.rows.y.mean():.0%} malignant")


@app.command()
def simulate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a CSV, Parquet or LIBSVM file")],
    label: Annotated[str | None, typer.Option(metavar="COL", help="the column to learn (not for LIBSVM)")] = None,
    parties: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="split the rows into so many parties (default 4)")
    ] = None,
    theta: Annotated[
        float | None, typer.Option(metavar="T", help="skew the two classes: this share of one class in one half")
    ] = None,
    by: Annotated[str | None, typer.Option(metavar="COL", help="one party for every value of this column")] = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="COL", help="leave this column out (can be given several times)")
    ] = None,
    recipe: Recipe = _default["recipe"],
    trees: Trees = _default["n_trees"],
    max_depth: Depth = _default["max_depth"],
    learning_rate: Rate = _default["learning_rate"],
    objective: Annotated[AnyObjective, typer.Option(help="what is learned; auto: from the labels")] = "auto",
    seed: Seed = 0,
    json: Json = None,
    save: Save = None,
    run: Annotated[
        Path | None, typer.Option(metavar="RUN", help="the folder for the report (default: runs/ and the file's name)")
    ] = None,
    report: WithReport = True,
) -> None:
    """Split a file into parties and compare SOLO, TFL, SimFL and ALL-IN on held-out rows.

    Example: simfl simulate patients.csv --label outcome --by hospital --json results.json
    """
    if by is not None and (theta is not None or parties is not None):
        raise ParameterError("--by goes without --parties and --theta: the column says whose each row is.")
    _check_outputs(json, save)
    data = read(file, label, by, drop or ())
    for note in data.notes:
        console.print(f"Note: {note}.")
    chosen = _objective(data.y) if objective == "auto" else objective
    began = time.time()
    stage = simulation.set_up(
        data, _split(data, parties or 4, theta, seed), seed, stratify=chosen != "reg:squarederror"
    )
    n_rows, n_held_out = sum(len(p.rows.y) for p in stage.parties), len(stage.held_out.y)
    console.print(f"{file.name}: {n_rows} rows in {len(stage.parties)} parties, {n_held_out} held out, {chosen}")
    params = {
        "n_trees": trees,
        "recipe": recipe,
        "max_depth": max_depth,
        "learning_rate": learning_rate,
        "random_state": seed,
        "objective": chosen,
    }
    home, title = run or Path("runs") / file.stem, f"{file.name} in {len(stage.parties)} parties"
    callbacks = [Recorder(home, title, simulation.members(stage), _command())] if report else []
    with console.status("starting") as status:
        compared = simulation.play(
            stage, params, watch=lambda method: status.update(f"training: {method}"), callbacks=callbacks
        )
    words = f"{params['n_trees']} trees, {params['recipe']} recipe, scores on {n_held_out} held-out rows"
    console.print(comparison.table(compared.results, words))
    _write(compared.results, compared.simfl, json, save)
    if report:
        _report(stage, compared, home, title, began, data.notes)


def _report(
    stage: simulation.Stage, compared: comparison.Comparison, run: Path, title: str, began: float, notes: list[str]
) -> None:
    from simfl import report as reports  # only now: charts take a second to load

    with console.status("writing the report"):
        found = simulation.record(stage, compared, title=title, command=_command(), began=began)
        msgspec.structs.replace(found, notes=notes).save(run)
        path = reports.write(run)
    console.print(f"Report: {path} (open it in a browser)", soft_wrap=True)


def _command() -> str:
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run's folder, with its run.json")],
    show: Annotated[bool, typer.Option("--open", help="open it in the browser")] = False,
) -> None:
    """Write the report of a run: one HTML page that needs no network.

    Example: simfl report runs/demo --open
    """
    from simfl import report as reports

    path = reports.write(run)
    console.print(f"Report: {path}", soft_wrap=True)
    if show:
        typer.launch(path.resolve().as_uri())


@app.command()
def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run's folder, with its run.json")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="where to listen; 0: any free port")] = 8765,
    show: Annotated[bool, typer.Option("--open", help="open it in the browser")] = False,
) -> None:
    """Show a run in the browser while it goes on. Listens on this machine only; Ctrl-C ends it."""
    from simfl.watch import serve

    with serve(run, port) as server:
        address = f"http://localhost:{server.server_address[1]}/"
        console.print(f"Watching {run} at {address}", soft_wrap=True)
        if show:
            typer.launch(address)
        server.serve_forever()


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="a model that SimFL has saved")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a CSV or Parquet file with the model's columns")],
    out: Annotated[
        Path | None, typer.Option(metavar="OUT", help="a CSV or Parquet file for the predictions; else the terminal")
    ] = None,
) -> None:
    """Predict the rows of a file: the prediction and, for classes, the probability of each.

    Example: simfl predict model.ubj patients.csv --out predictions.csv
    """
    found = predictions(load(model), read_frame(file))
    if out is None:
        typer.echo(found.to_csv(index=False), nl=False)
        return
    write_frame(found, out)
    console.print(f"{len(found)} predictions: {out}", soft_wrap=True)


@app.command()
def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="a model that SimFL has saved")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="the file to write, ending in .onnx")],
) -> None:
    """Write a model for ONNX runtimes. Needs simfl[onnx]."""
    from simfl.integrations import to_onnx

    to_onnx(load(model), out)
    console.print(f"ONNX: {out}", soft_wrap=True)


def _check_outputs(json: Path | None, save: Path | None) -> None:
    """Better now than after the training."""
    if save is not None:
        check_target(save)
    for path in (json, save):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise FileError(f"{path} cannot be written: its folder does not exist, or it is a folder itself.")


def _objective(y: AnyArray) -> str:
    """Two values: binary; text or few whole numbers: classes; anything else: a number."""
    n_values = len(np.unique(y.astype(str)))
    if n_values <= 2:
        return "binary:logistic"
    is_text = y.dtype.kind not in "iuf"
    return "multi:softprob" if is_text or (n_values <= 50 and np.all(y == np.round(y))) else "reg:squarederror"


def _split(data: Dataset, n: int, theta: float | None, seed: int) -> dict[str, AnyArray]:
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


def _write(results: list[comparison.Result], model: Model, json: Path | None, save: Path | None) -> None:
    if save is not None:
        model.save(save)
        console.print(f"SimFL's model: {save} (opens with xgboost.Booster().load_model, or simfl.load)")
    if json is not None:
        write_whole(json, msgspec.json.format(msgspec.json.encode({"results": results})) + b"\n")
        console.print(f"Results: {json}")


def main() -> None:
    """Run the command line; an error is a sentence, not a traceback."""
    try:
        app()
    except SimFLError as error:
        errors.print(f"[bold red]Error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        errors.print("Stopped.")
        sys.exit(130)
