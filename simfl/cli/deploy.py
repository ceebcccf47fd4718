"""For the operator: a training between machines, step by step (init, check, provision, hub, party, train)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from simfl.cli.options import console

if TYPE_CHECKING:
    from simfl.callbacks import TreeRecord
    from simfl.deploy.check import Rehearsal

hub = typer.Typer(help="The hub: one process that all parties connect to.", no_args_is_help=True)
party = typer.Typer(help="A party: the process beside your data.", no_args_is_help=True)
StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="the study file, shared by all parties")]


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="where to")] = Path(),
    table: Annotated[Path | None, typer.Option("--from", help="a CSV or Parquet file whose columns to take")] = None,
    label: Annotated[str | None, typer.Option(help="the column to learn, of that file")] = None,
) -> None:
    """Write an example study.toml and party.toml, with comments. Edit them; then: simfl check."""
    from simfl.deploy.study import write_examples

    for path in write_examples(folder, table, label):
        console.print(f"Written: {path}")


def check(
    study: StudyFile = Path("study.toml"),
    party: Annotated[Path, typer.Argument(metavar="PARTY", help="your own party file")] = Path("party.toml"),
) -> None:
    """At a party: does my file fit the study, and what will leave this party? Sends nothing."""
    from simfl.deploy.check import check as check_party

    found = check_party(study, party)
    console.print(f"Digest of the study: {found.digest} (compare it with the others, not over the hub)")
    for reason in found.approved:
        console.print(f"[bold red]This party would not take part:[/] {escape(reason)}", soft_wrap=True)
    console.print(f"The table fits the study: {found.rows} rows, {found.columns} columns.")
    if found.classes:
        console.print(f"Labels: {', '.join(f'{c} ({n} rows)' for c, n in sorted(found.classes.items()))}")
    for note in found.notes:
        console.print(f"Note: {note}.")
    console.print(_leaves(found.leaves, found.rehearsed))
    if found.rehearsed is None:
        console.print("There are too few rows (or parties) to rehearse the study on your own rows.")
    else:
        _show_rehearsal(found.rehearsed)


def _leaves(leaves: list[tuple[str, str]], rehearsed: Rehearsal | None) -> Table:
    """Every message that can leave the party, with the bytes it had in the rehearsal."""
    shown = Table("message", "what it says", title="What can leave (simfl/messages.py has every field)", box=None)
    if rehearsed:
        shown.add_column("rehearsed", justify="right")
    for kind, meaning in leaves:
        sent = [f"{rehearsed.sent[kind]:,} B" if kind in rehearsed.sent else "not sent"] if rehearsed else []
        shown.add_row(kind, meaning, *sent)
    return shown


def _show_rehearsal(rehearsed: Rehearsal) -> None:
    shown = Table("protection", "", "", box=None, title="Protections, as the messages of the rehearsal show them")
    for protection in rehearsed.protections:
        shown.add_row(protection.name, "[green]on[/]" if protection.on else "[red]off[/]", protection.meaning)
    console.print(shown)
    console.print(
        f"The rehearsal: {rehearsed.rows} of your rows in the roles of all parties, {rehearsed.trees} trees, all in "
        "this process. Greeting and Recalled belong to runs between machines."
    )


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
    from simfl.deploy.kits import provision as write_kits
    from simfl.deploy.study import read_study

    users = {"hub": "for the hub's machine", "submitter": "for whoever starts trainings"}
    for name, kit in write_kits(read_study(study), out or study.resolve().parent / "kits", renew).items():
        console.print(f"{kit}  {users.get(name, 'for this party')}", highlight=False, soft_wrap=True)


@hub.command("start")
def start_hub(kit: Annotated[Path, typer.Argument(metavar="KIT", help="the hub's kit")] = Path("kits/hub")) -> None:
    """Run the hub here, until Ctrl-C. It must be reachable at the study's host and port."""
    from simfl.deploy.processes import run_hub

    console.print(f"The hub runs from {kit}; its log is {kit / 'log.txt'}. Ctrl-C stops it.", soft_wrap=True)
    raise typer.Exit(run_hub(kit))


@party.command("start")
def start_party(
    party: Annotated[Path, typer.Argument(metavar="PARTY", help="your party file")] = Path("party.toml"),
) -> None:
    """Run a party here, until Ctrl-C. It connects to the hub and waits for trainings."""
    from simfl.deploy.processes import run_party

    console.print(f"The party of {party} runs. Ctrl-C stops it.", soft_wrap=True)
    raise typer.Exit(run_party(party))


def train(
    study: StudyFile = Path("study.toml"),
    local_processes: Annotated[
        bool, typer.Option("--local-processes", help="start a hub and all parties on this machine, to try it out")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="resume the study's last training")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="the run folder; default: runs/<study>-<time>")
    ] = None,
    kit: Annotated[
        Path | None, typer.Option(metavar="KIT", help="the submitter's kit; default: kits/submitter beside the study")
    ] = None,
) -> None:
    """Train a study over all parties that are connected to the hub. The model goes to everybody.

    Killed, cut off or switched off: run it again with --resume, nothing is lost.
    """
    from simfl.deploy.run import Listener, run_study
    from simfl.deploy.study import read_study
    from simfl.report import page

    logging.disable(logging.CRITICAL)  # FLARE logs to the terminal; hub and parties have their log files
    lines = _Lines(read_study(study).params()[1].n_trees)
    listener = Listener(tell=lines.tell, tree=lines.tree)
    folder = run_study(study, kit=kit, out=out, resume=resume, local=local_processes, listener=listener)
    console.print(f"The model: {folder / 'model.ubj'}", soft_wrap=True)
    console.print(f"Report: {page.write(folder)} (open it in a browser)", soft_wrap=True)
    console.print("Every party finds its own gain in its own run folder: simfl report runs/RUN, beside its party.toml")


@dataclass(frozen=True)
class _Lines:
    """The progress of a training: a line per tree with builder, metric, seconds, bytes and who is connected."""

    n_trees: int

    def tell(self, text: str) -> None:
        """Something other than a tree."""
        console.print(f"{text[:1].upper()}{text[1:]}.", highlight=False, soft_wrap=True)

    def tree(self, record: TreeRecord, connected: Sequence[str]) -> None:
        """A tree is finished."""
        name, value = next(iter((record.validation or record.train).items()))
        absent = f"  absent: {', '.join(record.absent)}" if record.absent else ""
        console.print(
            f"tree {record.round + 1:>4} of {self.n_trees}  {name} {value:.4f}  {record.seconds:6.2f} s  "
            f"{record.bytes / 1000:8.1f} kB  built by {record.builder}  connected: {', '.join(connected)}{absent}",
            highlight=False,
            soft_wrap=True,
        )
