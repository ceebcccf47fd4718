"""For the operator: a training between machines, step by step (init, check, join, ..., train, forget)."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape
from rich.table import Table

from simfl.cli.options import console

if TYPE_CHECKING:
    from simfl.deploy.check import Rehearsal
    from simfl.deploy.forget import Traces
    from simfl.deploy.kits import SignedRequests

hub = typer.Typer(help="The hub: one process that all parties connect to.", no_args_is_help=True)
party = typer.Typer(help="A party: the process beside your data.", no_args_is_help=True)
Target = Literal["docker", "systemd", "kubernetes"]
MetricsPort = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="answer /healthz, /readyz and /metrics (Prometheus) on this port"),
]
MetricsHost = Annotated[str, typer.Option(help="the address of that port; 0.0.0.0: for other machines, too")]
StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="the study file, shared by all parties")]
SubmitterKit = Annotated[
    Path | None, typer.Option(metavar="KIT", help="the submitter's kit; default: kits/submitter beside the study")
]
LogFormat = Annotated[Literal["text", "json"], typer.Option(help="lines for people, or for machines")]


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="where to")] = Path(),
    table: Annotated[Path | None, typer.Option("--from", help="a CSV or Parquet file whose columns to take")] = None,
    label: Annotated[str | None, typer.Option(help="the column to learn, of that file")] = None,
    weight: Annotated[str | None, typer.Option(help="its column that says how much each row counts")] = None,
) -> None:
    """Write an example study.toml and party.toml, with comments. Edit them; then: simfl check."""
    from simfl.deploy.study import write_examples

    for path in write_examples(folder, table, label, weight):
        console.print(f"Written: {path}")


def check(
    study: StudyFile = Path("study.toml"),
    party: Annotated[Path, typer.Argument(metavar="PARTY", help="your own party file")] = Path("party.toml"),
) -> None:
    """At a party: does my file fit the study, and what will leave this party? Sends nothing."""
    from simfl.deploy.check import check as check_party

    found = check_party(study, party)
    console.print(f"Digest of the study: {found.digest} (compare it with the others, not over the hub)")
    for reason in found.refusals:
        console.print(f"[bold red]This party would not take part:[/] {escape(reason)}", soft_wrap=True)
    console.print(f"The table fits the study: {found.rows} rows, {found.columns} columns.")
    if found.classes:
        console.print(f"Labels: {', '.join(f'{c} ({n} rows)' for c, n in sorted(found.classes.items()))}")
    if found.weights:
        _say(f"Weights: {found.weights}.")
    if found.epsilon:
        console.print(escape(found.epsilon), highlight=False, soft_wrap=True)
    for note in found.notes:
        console.print(f"Note: {note}.")
    for finding in found.findings:  # with values of the table: they are shown here and sent nowhere
        _say(f"Look at this: {finding}{'' if finding.endswith('?') else '.'}")
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
    shown = Table("protection", "", "", box=None, title="Protections, as the parties of the rehearsal applied them")
    for protection in rehearsed.protections:
        shown.add_row(protection.name, "[green]on[/]" if protection.on else "[red]off[/]", protection.meaning)
    console.print(shown)
    console.print(
        f"The rehearsal: {rehearsed.rows} of your rows in the roles of all parties, {rehearsed.trees} trees, all in "
        "this process. Greeting and Recalled belong to runs between machines."
    )


def join(
    name: Annotated[str, typer.Option(metavar="NAME", help="your name in the study; or hub, or submitter")],
    study: StudyFile = Path("study.toml"),
    out: Annotated[
        Path | None, typer.Option(metavar="KIT", help="your kit; default: kits/NAME beside the study")
    ] = None,
    signed: Annotated[
        Path | None, typer.Option(metavar="FILE", exists=True, dir_okay=False, help="what came back for your request")
    ] = None,
) -> None:
    """At a site: make your own key and a request for a certificate; then, with --signed, complete your kit.

    The key stays in your kit. Send the request, which is no secret, to whoever runs `simfl provision`. Put what comes
    back into the kit with --signed; also later, when it comes again with a new list of revoked certificates.
    """
    from cryptography import x509

    from simfl.deploy import kits
    from simfl.deploy.study import read_study
    from simfl.privacy.certificates import fingerprint
    from simfl.storage import write_atomically

    agreed, kit = read_study(study), out or study.resolve().parent / "kits" / name
    if signed:
        root = kits.accept(agreed, name, kit, signed.read_bytes())
        _say(f"{kit} is complete. Its root, the same for everybody: {fingerprint(root.public_key())}")
    else:
        request = kits.join(agreed, name, kit)
        file = kit / f"{name}.csr"
        write_atomically(file, request)
        _say(f"The key is in {kit} and stays there. Send {file} to whoever runs `simfl provision`.")
        _say(f"Compare over the telephone: {fingerprint(x509.load_pem_x509_csr(request).public_key())}")


def provision(
    study: StudyFile = Path("study.toml"),
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="where to; default: kits beside the study")] = None,
    requests: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            exists=True,
            file_okay=False,
            help="sign the requests in it (NAME.csr); without this, all keys are made here",
        ),
    ] = None,
    renew: Annotated[
        list[str], typer.Option(metavar="NAME", help="a new certificate for this party (or hub, or submitter)")
    ] = [],  # noqa: B006 - typer takes a list
    revoke: Annotated[str | None, typer.Option(metavar="NAME", help="revoke the certificates of this site")] = None,
    target: Annotated[
        Target | None, typer.Option("--for", help="only write the files to run hub and parties there; makes no keys")
    ] = None,
) -> None:
    """Sign the requests that every site made with `simfl join`; you never see their keys.

    Without --requests, all keys are made here and the kits are complete: for trying out, because whoever makes a key
    can use it. Keep the folder .authority to yourself: whoever has it can let anybody in.
    """
    if target:
        _write_files(target, study, out or study.resolve().parent / target)
        return
    from simfl.deploy import kits
    from simfl.deploy.study import read_study

    agreed, folder = read_study(study), out or study.resolve().parent / "kits"
    if revoke:
        told = kits.revoke(agreed, folder, revoke)
        _say(f"{revoke} is revoked. The list of the revoked is now in {', '.join(map(str, told)) or 'no kit here'}.")
    if requests:
        _show_signed(kits.sign_requests(agreed, folder, requests, renew))
    elif renew or not revoke:
        _show_kits(kits.provision(agreed, folder, renew))
    if revoke:
        _say("Every site must get the new list (`simfl join --signed`). To end open connections, start the hub again.")


def _write_files(target: Target, study: Path, folder: Path) -> None:
    from simfl.deploy.targets import write_files

    for path in write_files(target, study, folder):
        _say(f"Written: {path}")


def _show_signed(signed: SignedRequests) -> None:
    from simfl.privacy.certificates import fingerprint

    for path, certificate in signed.written.items():
        _say(f"{path}  to send back; compare over the telephone: {fingerprint(certificate.public_key())}")
    for problem in signed.refused:
        _say(f"Not signed: {problem}")


def _show_kits(kits: dict[str, Path]) -> None:
    users = {"hub": "for the hub's machine", "submitter": "for whoever starts trainings"}
    for name, kit in kits.items():
        _say(f"{kit}  {users.get(name, 'for this party')}")
    _say("All keys were made here: fine for trying out. Otherwise let every site make its own with `simfl join`.")


def _say(text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)


@hub.command("start")
def start_hub(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="the hub's kit")] = Path("kits/hub"),
    log_format: LogFormat = "text",
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "localhost",
) -> None:
    """Run the hub here, until Ctrl-C. It must be reachable at the study's host and port."""
    from simfl.deploy.metrics import Watched, serving
    from simfl.deploy.processes import run_hub

    with serving(Watched(kit, kit / "runs"), metrics_port, metrics_host):
        status = run_hub(kit, log_format)
    raise typer.Exit(status)


@party.command("start")
def start_party(
    party: Annotated[Path, typer.Argument(metavar="PARTY", help="your party file")] = Path("party.toml"),
    log_format: LogFormat = "text",
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "localhost",
) -> None:
    """Run a party here, until Ctrl-C. It waits for the hub, connects to it, and waits for trainings."""
    from simfl.deploy.metrics import Watched, serving
    from simfl.deploy.party_file import read_party_file
    from simfl.deploy.processes import run_party

    kit = Path(read_party_file(party).kit or "kit")
    with serving(Watched(kit, party.resolve().parent / "runs"), metrics_port, metrics_host):
        status = run_party(party, log_format)
    raise typer.Exit(status)


def train(
    study: StudyFile = Path("study.toml"),
    local_processes: Annotated[
        bool, typer.Option("--local-processes", help="start a hub and all parties on this machine, to try it out")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="resume the study's last training")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="the run folder; default: runs/<study>-<time>")
    ] = None,
    kit: SubmitterKit = None,
    log_format: LogFormat = "text",
) -> None:
    """Train a study over all parties that are connected to the hub. The model goes to everybody.

    Killed, cut off or switched off: run it again with --resume, nothing is lost.
    """
    from simfl.deploy.run import Listener, run_study
    from simfl.report import page

    listener = Listener(terminal=sys.stdout, log_format=log_format)
    folder = run_study(study, kit=kit, out=out, resume=resume, local=local_processes, listener=listener)
    if log_format == "text":
        _say(f"Report: {page.write(folder)} (open it in a browser)")
        _say("Every party finds its own gain in its own run folder: simfl report runs/RUN, beside its party.toml")


def forget(
    run: Annotated[str, typer.Argument(metavar="RUN", help="the name of a run, or of its folder in runs/")],
    where: Annotated[
        Path, typer.Argument(metavar="WHERE", help="your party.toml, the hub's kit, or the folder of the study")
    ] = Path(),
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would be removed")] = False,
) -> None:
    """Remove what a run left here (model, journal, keys, row numbers, jobs), and write down that it was removed.

    The ledger stays. So do logs, copies and backups.
    """
    from simfl.deploy import forget as forgetting

    home = forgetting.Home.at(where)
    found = forgetting.find(home, run)
    _show_traces(found)
    if dry_run:
        _say("Nothing was removed (--dry-run).")
        return
    if not yes:
        typer.confirm(f"Remove the run {found.run} at {home.root}? This cannot be undone", abort=True)
    forgetting.forget(home, found.run)
    _say(f"Removed: {len(found.files)} files. Written down in {home.root / forgetting.RECORD}, with their digests.")


def _show_traces(found: Traces) -> None:
    for folder in found.folders:
        inside = Counter(path.relative_to(folder).parts[0] for path in found.files if path.is_relative_to(folder))
        names = [name if not (folder / name).is_dir() else f"{name}/ ({n} files)" for name, n in inside.items()]
        _say(f"{folder}: {', '.join(names) or 'no files'}")
    for path in found.kept:
        _say(f"Stays: {path}, the ledger. What was spent stays spent.")
    if not found.finished:
        _say("This run is not finished. It cannot be resumed when it is forgotten.")
