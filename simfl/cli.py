"""The command line: thin doors onto the library."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from simfl import comparison, partition
from simfl.arrays import AnyArray
from simfl.callbacks import TreeLines
from simfl.data import objective_for
from simfl.errors import DataError, FileError, ParameterError, SimFLError
from simfl.files import Dataset, read
from simfl.model import Model, check_target, write_whole
from simfl.params import Objective, RecipeName, defaults, descriptions
from simfl.party import Party
from simfl.privacy.audit import audit as run_audit
from simfl.privacy.audit import read_study
from simfl.privacy.findings import Audit, Ids, Matching

app = typer.Typer(
    help="Gradient-boosted trees across organisations that cannot pool their rows.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
console = Console()
errors = Console(stderr=True)
HOSPITALS = ("north", "east", "south", "west")
TEST_SHARE = 0.25
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
) -> None:
    """Gradient-boosted trees across organisations that cannot pool their rows."""


@app.command()
def demo(
    trees: Trees = _default["n_trees"],
    recipe: Recipe = _default["recipe"],
    seed: Seed = 0,
    save: Annotated[Path, typer.Option(metavar="MODEL", help="where SimFL's model goes")] = Path("simfl-demo.ubj"),
    json: Json = None,
) -> None:
    """Four hospitals with skewed breast cancer data: alone, in turns, with SimFL, and pooled.

    The held-out rows are few, so all is done for five splits; the table shows the means.
    """
    _check_outputs(json, save)
    stored = load_breast_cancer()
    data = Dataset(stored.data, stored.target, stored.feature_names.tolist(), None, [], stored.data.shape[1])
    params = {"n_trees": trees, "recipe": recipe, "random_state": seed, "objective": "binary:logistic"}
    runs = []
    with console.status("training") as status:
        for number in range(DEMO_SPLITS):
            rows, held_out = _hold_out(data, seed + number, stratify=True)
            parts = partition.unbalanced(data.y[rows], len(HOSPITALS), theta=0.8, seed=seed + number)
            parties = _parties(data, rows, dict(zip(HOSPITALS, parts, strict=True)))
            if number == 0:
                _introduce(parties)
            status.update(f"training: split {number + 1} of {DEMO_SPLITS}")
            runs.append(comparison.compare(parties, data.X[held_out], data.y[held_out], params, callbacks=[]))
    results = comparison.mean([results for results, _ in runs])
    title = f"{trees} trees, {recipe} recipe, {len(held_out)} held-out rows, mean of {DEMO_SPLITS} splits"
    console.print(comparison.table(results, title))
    _write(results, runs[0][1], json, save)


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
    recipe: Recipe = _default["recipe"],
    trees: Trees = _default["n_trees"],
    max_depth: Depth = _default["max_depth"],
    learning_rate: Rate = _default["learning_rate"],
    objective: Annotated[AnyObjective, typer.Option(help="what is learned; auto: from the labels")] = "auto",
    seed: Seed = 0,
    json: Json = None,
    save: Save = None,
) -> None:
    """Split a file into parties and compare SOLO, TFL, SimFL and ALL-IN on held-out rows.

    Example: simfl simulate patients.csv --label outcome --by hospital --json results.json
    """
    if by is not None and (theta is not None or parties is not None):
        raise ParameterError("--by goes without --parties and --theta: the column says whose each row is.")
    _check_outputs(json, save)
    data = read(file, label, by)
    for note in data.notes:
        console.print(f"Note: {note}.")
    chosen = objective_for(data.y) if objective == "auto" else objective
    rows, held_out = _hold_out(data, seed, stratify=chosen != "reg:squarederror")
    members = _parties(data, rows, _split(data, rows, parties or 4, theta, seed))
    console.print(f"{file.name}: {len(rows)} rows in {len(members)} parties, {len(held_out)} held out, {chosen}")
    params = {
        "n_trees": trees,
        "recipe": recipe,
        "max_depth": max_depth,
        "learning_rate": learning_rate,
        "random_state": seed,
        "objective": chosen,
        "original_features": data.n_original,
    }
    _run(members, data, held_out, params, json, save)


# --- simfl audit -----------------------------------------------------------------------------------------------------


@app.command()
def audit(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="a CSV, Parquet or LIBSVM file, or a study file (.toml) with [audit]")
    ],
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

    Example: simfl audit patients.csv --label outcome --matching shared --out audit.html
    """
    _check_outputs(json, out, model=False)
    chosen: dict[str, Any] = {"matching": matching, "ids": ids, "masked": masked, "min_group": min_group}
    chosen |= {"parties": parties, "max_excess": max_excess, "recipe": recipe}
    chosen |= {"n_hashes": hashes, "bucket_width": bucket_width, "n_neighbors": neighbors}
    if file.suffix == ".toml":
        study = read_study(file)
        if study.data is None:
            raise FileError(f'The [audit] table of {file} names no data. Add: data = "table.csv".')
        label, chosen = label or study.label, study.options()
        file = file.parent / study.data
    data = read(file, label)
    chosen.setdefault("original_features", data.n_original)
    with console.status("attacking") as status:
        found = run_audit(
            data.X,
            data.y,
            name=file.name,
            advise=advice,
            random_state=seed,
            watch=lambda what: status.update(f"attacking: {what}"),
            **chosen,
        )
    _show_audit(found, json, out)


def _show_audit(found: Audit, json: Path | None, out: Path | None) -> None:
    console.print(found.table())
    for finding in found.findings:
        console.print(f"- {finding.sentence}", highlight=False)
    for advice in found.advice:
        console.print(f"Advice, {advice.title[:1].lower()}{advice.title[1:]}: {advice.sentence}", highlight=False)
    for path, content in ((json, found.to_json), (out, found.html)):
        if path is not None:
            write_whole(path, content().encode())
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


def _hold_out(data: Dataset, seed: int, *, stratify: bool) -> tuple[AnyArray, AnyArray]:
    n = len(data.y)
    if n < 8:
        raise DataError(f"{n} rows are too few: a quarter is held out and the rest is split into parties.")
    _, counts = np.unique(data.y.astype(str), return_counts=True)
    labels = data.y.astype(str) if stratify and counts.min() >= 2 and len(counts) <= n * TEST_SHARE else None
    rows, held_out = train_test_split(np.arange(n), test_size=TEST_SHARE, random_state=seed, stratify=labels)
    return np.sort(rows), np.sort(held_out)


def _split(data: Dataset, rows: AnyArray, n: int, theta: float | None, seed: int) -> dict[str, AnyArray]:
    if data.by is not None:
        return partition.by_column(data.by[rows])
    if theta is not None:
        if len(np.unique(data.y[rows].astype(str))) != 2:
            raise ParameterError("--theta skews two classes, and here are more. Use --by COL, or a balanced split.")
        parts = partition.unbalanced(data.y[rows].astype(str), n, theta, seed)
    else:
        parts = partition.balanced(len(rows), n, seed)
    return {f"party {number + 1}": part for number, part in enumerate(parts)}


def _parties(data: Dataset, rows: AnyArray, parts: dict[str, AnyArray]) -> list[Party]:
    return [Party(name, data.X[rows[part]], data.y[rows[part]], columns=data.columns) for name, part in parts.items()]


def _run(
    parties: list[Party],
    data: Dataset,
    held_out: AnyArray,
    params: dict[str, Any],
    json: Path | None,
    save: Path | None,
) -> None:
    with console.status("starting") as status:
        results, model = comparison.compare(
            parties,
            data.X[held_out],
            data.y[held_out],
            params,
            watch=lambda method: status.update(f"training: {method}"),
            callbacks=[],
        )
    title = f"{params['n_trees']} trees, {params['recipe']} recipe, scores on {len(held_out)} held-out rows"
    console.print(comparison.table(results, title))
    _write(results, model, json, save)


def _write(results: list[comparison.Result], model: Model, json: Path | None, save: Path | None) -> None:
    if save is not None:
        model.save(save)
        console.print(f"SimFL's model: {save} (opens with xgboost.Booster().load_model, or simfl.load)")
    if json is not None:
        write_whole(json, msgspec.json.format(msgspec.json.encode({"results": results})) + b"\n")
        console.print(f"Results: {json}")


# --- across machines -------------------------------------------------------------------------------------------------

hub_app = typer.Typer(help="The hub: one process that all parties connect to.", no_args_is_help=True)
party_app = typer.Typer(help="A party: the process beside your data.", no_args_is_help=True)
app.add_typer(hub_app, name="hub")
app.add_typer(party_app, name="party")
StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="the study file, shared by all parties")]


def _consortium() -> Any:
    """What needs NVIDIA FLARE is loaded only when it is used."""
    from simfl import consortium

    return consortium


@app.command()
def init(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="where to")] = Path()) -> None:
    """Write an example study.toml and party.toml, with comments. Edit them; then: simfl check."""
    for path in _consortium().init(folder):
        console.print(f"Written: {path}")


@app.command()
def check(
    study: StudyFile = Path("study.toml"),
    party: Annotated[Path, typer.Argument(metavar="PARTY", help="your own party file")] = Path("party.toml"),
) -> None:
    """At a party: does my file fit the study, and what will leave this house? Sends nothing."""
    found = _consortium().check(study, party)
    console.print(f"The table fits the study: {found.rows} rows, {found.columns} columns after encoding.")
    if found.classes:
        console.print(f"Labels: {', '.join(f'{c} ({n} rows)' for c, n in sorted(found.classes.items()))}")
    for note in found.notes:
        console.print(f"Note: {note}.")
    console.print("What will leave, by kind of message (simfl/messages.py has every field):")
    for kind, told in found.leaves:
        console.print(f"  {kind:<15} {told}", highlight=False)


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
    kits = _consortium().provision(study, out or study.resolve().parent / "kits", tuple(renew))
    for name, kit in kits.items():
        whose = {"hub": "for the hub's machine", "submitter": "for whoever starts trainings"}.get(
            name, "for this party"
        )
        console.print(f"{kit}  {whose}", highlight=False, soft_wrap=True)


@hub_app.command("start")
def hub_start(kit: Annotated[Path, typer.Argument(metavar="KIT", help="the hub's kit")] = Path("kits/hub")) -> None:
    """Run the hub here, until Ctrl-C. It must be reachable at the study's host and port."""
    console.print(f"The hub runs from {kit}; its log is {kit / 'log.txt'}. Ctrl-C stops it.", soft_wrap=True)
    raise typer.Exit(_consortium().run_hub(kit))


@party_app.command("start")
def party_start(
    party: Annotated[Path, typer.Argument(metavar="PARTY", help="your party file")] = Path("party.toml"),
) -> None:
    """Run a party here, until Ctrl-C. It connects to the hub and waits for trainings."""
    console.print(f"The party of {party} runs. Ctrl-C stops it.", soft_wrap=True)
    raise typer.Exit(_consortium().run_party(party))


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
    consortium = _consortium()
    logging.disable(logging.CRITICAL)  # FLARE logs to the terminal; hub and parties have their log files
    n_trees = consortium.read_study(study).params()[1].n_trees
    shown = TreeLines(console, n_trees)
    progress = consortium.Progress(tell=shown.tell, tree=shown.tree)
    folder = consortium.train(study, kit=kit, out=out, resume=resume, local=local_processes, progress=progress)
    console.print(f"The model: {folder / 'model.ubj'}", soft_wrap=True)


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
