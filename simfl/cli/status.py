"""For the operator: what is going on, and how to stop it (status, runs, stop)."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from simfl.cli.options import console

if TYPE_CHECKING:
    from simfl.deploy.course import Stage
    from simfl.deploy.status import SiteReport

Where = Annotated[
    Path, typer.Argument(metavar="WHERE", help="a study file, your party.toml, the hub's kit, or the folder of one")
]
Kit = Annotated[
    Path | None, typer.Option(metavar="KIT", help="the submitter's kit; default: kits/submitter beside the study")
]
AsJson = Annotated[bool, typer.Option("--json", help="for machines")]


def status(where: Where = Path(), kit: Kit = None, as_json: AsJson = False) -> None:
    """Is the hub reachable, who is connected, which trainings run? Exit status 1 if the hub cannot be reached."""
    import msgspec

    from simfl.deploy.status import Place, look

    found = look(Place.at(where, kit))
    if as_json:
        _plain(msgspec.json.encode(found).decode())
    else:
        _show_site(found)
        if found.parties or (found.hub_reachable and found.role == "submitter"):
            console.print(_parties(found))
        console.print(_trainings(found.trainings[:10]))
    if not found.hub_reachable:
        raise typer.Exit(1)


def runs(where: Where = Path(), kit: Kit = None, as_json: AsJson = False) -> None:
    """All trainings of this place, the last one first. Asks nobody."""
    import msgspec

    from simfl.deploy.course import read_stages
    from simfl.deploy.status import Place

    found = read_stages(Place.at(where, kit).runs)
    if as_json:
        _plain(msgspec.json.encode(found).decode())
    else:
        console.print(_trainings(found))


def stop(
    run: Annotated[str, typer.Argument(metavar="RUN", help="the name of a running training, as in `simfl status`")],
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="the study file")] = Path("study.toml"),
    kit: Kit = None,
) -> None:
    """Stop a training. All finished trees are kept: `simfl train --resume` continues it."""
    from simfl.deploy.status import stop_training
    from simfl.deploy.submitter import submitter_kit

    stage = stop_training(submitter_kit(study, kit), run)
    _plain(f"{stage.run}: {_course(stage)}. To continue: simfl train {study} --resume")


def _show_site(found: SiteReport) -> None:
    _plain(
        f"{found.name} ({found.kit}), SimFL {found.versions['simfl']}; "
        f"certificate until {_day(found.certificate_expires)}"
    )
    if found.role != "submitter":
        _plain(f"Its process is {found.pid}." if found.pid else f"No process runs from {found.kit}.")
    if not found.hub_reachable:
        _plain(f"The hub at {found.hub} cannot be reached: {found.obstacle}")
        return
    since = f", since {_when(found.hub_since)}" if found.hub_since else ""
    software = f", SimFL {found.hub_versions['simfl']}" if found.hub_versions else ""
    expiry = f"; certificate until {_day(found.hub_certificate_expires)}" if found.hub_certificate_expires else ""
    _plain(f"The hub at {found.hub} can be reached{since}{software}{expiry}.")
    if abs(found.hub_clock_ahead) > 5:
        _plain(f"The clocks differ: the hub's is {found.hub_clock_ahead:+.0f} seconds from this machine's.")


def _parties(found: SiteReport) -> Table:
    shown = Table("party", "", "since", "SimFL", "certificate until", box=None)
    for party in found.parties:
        state = "[green]connected[/]" if party.connected else "left" if party.left else "[red]lost[/]"
        software = party.versions.get("simfl", "?")
        shown.add_row(party.name, state, _when(party.since), software, _day(party.expires))
    return shown


def _trainings(stages: list[Stage]) -> Table:
    shown = Table("training", "began", "state", box=None)
    for stage in stages:
        shown.add_row(stage.run, _when(stage.begun), _course(stage))
    if not stages:
        shown.add_row("none", "", "")
    return shown


def _course(stage: Stage) -> str:
    from simfl.callbacks import duration

    trees = f", tree {stage.tree} of {stage.n_trees}" if stage.tree else ""
    if stage.ended:
        return f"{stage.stage}{trees}"
    left = stage.seconds_per_tree * (stage.n_trees - stage.tree)
    return f"{stage.stage}{trees}" + (f", at most {duration(left)} left" if left else "")


def _when(seconds: float) -> str:
    """The time, with its day unless it is today."""
    moment = datetime.fromtimestamp(seconds)
    today = moment.date() == datetime.now().date()
    return f"{moment:%H:%M:%S}" if today else f"{moment:%Y-%m-%d %H:%M}"


def _day(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d}" if seconds else "?"


def _plain(text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False)
