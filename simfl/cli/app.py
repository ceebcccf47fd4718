"""The command line: thin doors onto the package."""

from __future__ import annotations

import logging
import shlex
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.table import Table
from sklearn.datasets import load_breast_cancer

from simfl import partition
from simfl.arrays import AnyArray
from simfl.audit.audit import audit as run_audit
from simfl.audit.audit import read_study
from simfl.audit.findings import Audit, Ids, Matching
from simfl.callbacks import TreeLines, logger
from simfl.data.files import Dataset, predictions, read, read_frame, write_frame
from simfl.data.schema import Schema
from simfl.data.table import objective_for
from simfl.deploy import study as studies
from simfl.deploy.tables import open_party
from simfl.errors import DataError, FileError, ParameterError, SimFLError
from simfl.model import Model, check_target, load
from simfl.params import Objective, RecipeName, defaults, descriptions
from simfl.party import Party
from simfl.report.record import Recorder, RunRecord
from simfl.simulate import comparison, simulation
from simfl.storage import write_atomically

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
    chosen = objective_for(data.y) if objective == "auto" else objective
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
    from simfl.report import page as reports  # only now: charts take a second to load

    with console.status("writing the report"):
        found = simulation.record_of(stage, compared, title=title, command=_command(), began=began)
        msgspec.structs.replace(found, notes=notes).save(run)
        path = reports.write(run)
    console.print(f"Report: {path} (open it in a browser)", soft_wrap=True)


def _command() -> str:
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run's folder, with its run.json")],
    show: Annotated[bool, typer.Option("--open", help="open it in the browser")] = False,
    audit: Annotated[
        Path | None,
        typer.Option(metavar="JSON", help="put what `simfl audit --json JSON` found into the run and its report"),
    ] = None,
) -> None:
    """Write the report of a run: one HTML page that needs no network.

    Example: simfl report runs/demo --open
    """
    from simfl.report import page as reports

    if audit is not None:
        found = Audit.load(audit).for_report()
        msgspec.structs.replace(RunRecord.load(run), audit=found).save(run)
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
    from simfl.report.watch import serve

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


# --- simfl audit -----------------------------------------------------------------------------------------------------


@app.command()
def audit(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="a study.toml (its parameters, and the table of your party.toml), or a table"
        ),
    ],
    party: Annotated[
        Path | None, typer.Option(metavar="PARTY", help="with a study: your party file; default: party.toml beside it")
    ] = None,
    label: Annotated[str | None, typer.Option(metavar="COL", help="the column to learn (not for LIBSVM)")] = None,
    matching: Annotated[
        Matching | None, typer.Option(help="hash values seen by all, or tokens seen by the hub")
    ] = None,
    ids: Annotated[Ids | None, typer.Option(help="blind matching: ids that last, or new ones for every tree")] = None,
    masked: Annotated[bool, typer.Option("--masked", help="the hub sees no sums")] = False,
    min_group: Annotated[int, typer.Option(min=1, help="least number of foreign rows in a sum")] = 1,
    parties: Annotated[int, typer.Option(min=2, help="how many parties share the rows")] = 2,
    recipe: Recipe = _default["recipe"],
    hashes: Annotated[int | None, typer.Option(min=1, metavar="L", help=_help["n_hashes"])] = None,
    bucket_width: Annotated[float | None, typer.Option(metavar="R", help=_help["bucket_width"])] = None,
    neighbors: Annotated[int | None, typer.Option(min=1, metavar="K", help=_help["n_neighbors"])] = None,
    max_excess: Annotated[
        float | None, typer.Option(metavar="X", help="exit with 1 if an attack beats guessing by more (0.1: 10 points)")
    ] = None,
    advice: Annotated[bool, typer.Option(help="search for n_hashes and bucket_width that keep attacks low")] = True,
    seed: Seed = 0,
    json: Json = None,
    out: Annotated[Path | None, typer.Option(metavar="PAGE.html", help="write a page for people")] = None,
) -> None:
    """Attack what this party would send, on its own rows, before anything is sent.

    With a study its own parameters count.

    Examples: simfl audit study.toml --out audit.html
    simfl audit patients.csv --label outcome --matching shared
    """
    _check_outputs(json, out, model=False)
    chosen: dict[str, Any] = {"matching": matching, "ids": ids, "masked": masked, "min_group": min_group}
    chosen |= {"parties": parties, "recipe": recipe}
    chosen |= {"n_hashes": hashes, "bucket_width": bucket_width, "n_neighbors": neighbors}
    if file.suffix == ".toml":
        _refuse_with_study(context, [*chosen, "hashes", "neighbors", "label"])
        case = _of_study(file, party or file.parent / "party.toml")
    else:
        case = _of_table(file, label, chosen)
    if max_excess is not None:
        case.options["max_excess"] = max_excess
    with console.status("attacking") as status:
        found = run_audit(
            case.X,
            case.y,
            name=case.name,
            advise=advice,
            random_state=seed,
            watch=lambda what: status.update(f"attacking: {what}"),
            **case.options,
        )
    _show_audit(found, json, out)


class _Audited(NamedTuple):
    """The rows to attack, as numbers, and the parameters of the training that they are for."""

    X: Any
    y: AnyArray
    name: str
    options: dict[str, Any]


def _refuse_with_study(context: typer.Context, names: list[str]) -> None:
    """A study has its own parameters: an option that would be passed over is refused."""
    given = [n for n in names if getattr(context.get_parameter_source(n), "name", "") == "COMMANDLINE"]
    if given:
        told = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ParameterError(f"{told} cannot be given with a study: its own parameters count. Change the study.")


def _of_table(file: Path, label: str | None, options: dict[str, Any]) -> _Audited:
    data = read(file, label)
    return _Audited(data.expanded, data.y, file.name, options | {"original_features": data.n_features})


def _of_study(study_path: Path, party_path: Path) -> _Audited:
    """The rows of a party as the study reads them, and the study's parameters as they will be used."""
    limits = read_study(study_path)
    if limits.data is not None:
        options = limits.options()
        data = _of_table(study_path.parent / limits.data, limits.label, {})
        return data._replace(options=data.options | options)
    study, member, _ = open_party(study_path, party_path)
    first, second = study.params()
    named = {"matching", "ids", "masked", "min_group", "random_state"}
    options = {name: value for name, value in study.parameters.items() if name not in named}
    options |= {"matching": first.matching, "ids": first.ids, "min_group": second.min_group}
    options |= {"masked": second.masked is not False, "parties": max(len(study.parties), 2)}
    options |= {"original_features": member.rows.X.shape[1], "max_excess": limits.max_excess}
    rows = member.expansion.expand(member.rows.X)
    return _Audited(rows, member.rows.y, f"{member.name} in {study.name}", options)


def _show_audit(found: Audit, json: Path | None, out: Path | None) -> None:
    console.print(found.table())
    for finding in found.findings:
        console.print(f"- {finding.sentence}", highlight=False)
    for advice in found.advice:
        console.print(f"Advice, {advice.title[:1].lower()}{advice.title[1:]}: {advice.sentence}", highlight=False)
    for path, content in ((json, found.to_json), (out, found.html)):
        if path is not None:
            write_atomically(path, content().encode())
            console.print(f"Written: {path}")
    if found.exceeded:
        names = ", ".join(dict.fromkeys(finding.attack for finding in found.exceeded))
        errors.print(f"[bold red]Above the limit:[/] {names}", highlight=False, soft_wrap=True)
        raise typer.Exit(1)


def _check_outputs(json: Path | None, save: Path | None, *, model: bool = True) -> None:
    """Better now than after the training."""
    if save is not None and model:
        check_target(save)
    for path in (json, save):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise FileError(f"{path} cannot be written: its folder does not exist, or it is a folder itself.")


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
        write_atomically(json, msgspec.json.format(msgspec.json.encode({"results": results})) + b"\n")
        console.print(f"Results: {json}")


# --- across machines -------------------------------------------------------------------------------------------------

hub_app = typer.Typer(help="The hub: one process that all parties connect to.", no_args_is_help=True)
party_app = typer.Typer(help="A party: the process beside your data.", no_args_is_help=True)
app.add_typer(hub_app, name="hub")
app.add_typer(party_app, name="party")
StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="the study file, shared by all parties")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="where to")] = Path(),
    table: Annotated[Path | None, typer.Option("--from", help="a CSV or Parquet file whose columns to take")] = None,
    label: Annotated[str | None, typer.Option(help="the column to learn, of that file")] = None,
) -> None:
    """Write an example study.toml and party.toml, with comments. Edit them; then: simfl check."""
    for path in studies.write_examples(folder, table, label):
        console.print(f"Written: {path}")


@app.command()
def check(
    study: StudyFile = Path("study.toml"),
    party: Annotated[Path, typer.Argument(metavar="PARTY", help="your own party file")] = Path("party.toml"),
) -> None:
    """At a party: does my file fit the study, and what will leave this house? Sends nothing."""
    from simfl.deploy import check as checking

    found = checking.check(study, party)
    console.print(f"The table fits the study: {found.rows} rows, {found.columns} columns.")
    if found.classes:
        console.print(f"Labels: {', '.join(f'{c} ({n} rows)' for c, n in sorted(found.classes.items()))}")
    for note in found.notes:
        console.print(f"Note: {note}.")
    shown = found.rehearsed
    leaves = Table("message", "what it tells", title="What can leave (simfl/messages.py has every field)", box=None)
    if shown:
        leaves.add_column("rehearsed", justify="right")
    for kind, told in found.leaves:
        sent = [f"{shown.sent[kind]:,} B" if kind in shown.sent else "not sent"] if shown else []
        leaves.add_row(kind, told, *sent)
    console.print(leaves)
    if shown is None:
        console.print("There are too few rows (or parties) to rehearse the study on your own rows.")
        return
    protections = Table("protection", "", "", box=None, title="Protections, as the messages of the rehearsal show them")
    for protection in shown.protections:
        protections.add_row(protection.name, "[green]on[/]" if protection.on else "[red]off[/]", protection.meaning)
    console.print(protections)
    console.print(
        f"The rehearsal: {shown.rows} of your rows in the roles of all parties, {shown.trees} trees, all in this "
        "process. Greeting, Settled, Recalled, Replayed and Taken belong to runs between machines."
    )


@app.command()
def provision(
    study: StudyFile = Path("study.toml"),
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="where to; default: kits beside the study")] = None,
    renew: Annotated[
        list[str], typer.Option(metavar="NAME", help="make a new key and certificate for this party (or hub)")
    ] = [],  # noqa: B006 - typer takes a list
) -> None:
    """Write the kits: a private key and a certificate for the hub, the submitter and every party.

    Run it again after adding a party to the study: the others' kits stay valid. Keep the folder .authority to yourself:
    whoever has it can let anybody in.
    """
    from simfl.deploy import kits as flare_kits

    kits = flare_kits.provision(studies.read_study(study), out or study.resolve().parent / "kits", tuple(renew))
    for name, kit in kits.items():
        whose = {"hub": "for the hub's machine", "submitter": "for whoever starts trainings"}.get(
            name, "for this party"
        )
        console.print(f"{kit}  {whose}", highlight=False, soft_wrap=True)


@hub_app.command("start")
def hub_start(kit: Annotated[Path, typer.Argument(metavar="KIT", help="the hub's kit")] = Path("kits/hub")) -> None:
    """Run the hub here, until Ctrl-C. It must be reachable at the study's host and port."""
    console.print(f"The hub runs from {kit}; its log is {kit / 'log.txt'}. Ctrl-C stops it.", soft_wrap=True)
    from simfl.deploy import processes

    raise typer.Exit(processes.run_hub(kit))


@party_app.command("start")
def party_start(
    party: Annotated[Path, typer.Argument(metavar="PARTY", help="your party file")] = Path("party.toml"),
) -> None:
    """Run a party here, until Ctrl-C. It connects to the hub and waits for trainings."""
    console.print(f"The party of {party} runs. Ctrl-C stops it.", soft_wrap=True)
    from simfl.deploy import processes

    raise typer.Exit(processes.run_party(party))


@app.command()
def train(
    study: StudyFile = Path("study.toml"),
    local_processes: Annotated[
        bool, typer.Option("--local-processes", help="start a hub and all parties on this machine, to try it out")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the study's last training")] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="the run folder; default: runs/<study>-<time>"),
    ] = None,
    kit: Annotated[
        Path | None, typer.Option(metavar="KIT", help="the submitter's kit; default: kits/submitter beside the study")
    ] = None,
) -> None:
    """Train a study over all parties that are connected to the hub. The model goes to everybody.

    Killed, cut off or switched off: run it again with --resume, nothing is lost.
    """
    from simfl.deploy import run as runs

    logging.disable(logging.CRITICAL)  # FLARE logs to the terminal; hub and parties have their log files
    n_trees = studies.read_study(study).params()[1].n_trees
    shown = TreeLines(console, n_trees)
    listener = runs.Listener(tell=shown.tell, tree=shown.tree)
    folder = runs.run_study(study, kit=kit, out=out, resume=resume, local=local_processes, listener=listener)
    console.print(f"The model: {folder / 'model.ubj'}", soft_wrap=True)
    from simfl.report import page as reports

    console.print(f"Report: {reports.write(folder)} (open it in a browser)", soft_wrap=True)
    console.print("Every party finds its own gain in its own run folder: simfl report runs/RUN, beside its party.toml")


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
