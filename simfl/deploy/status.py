"""`simfl status`, `simfl runs` and `simfl stop`: what is going on, seen from a study, a party or the hub's machine.

The submitter asks the hub, which knows who is connected and which trainings it has. A party and the hub's machine have
no kit that may ask: they see their own process, their own trainings, and whether the hub can be reached.

Nothing here loads a table or a tree.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from simfl.deploy.answers import Connection, Question, Status, read_connections, versions
from simfl.deploy.course import Stage, read_stages
from simfl.deploy.party_file import read_party_file
from simfl.deploy.submitter import HubLost, Submitter
from simfl.deploy.way import NotYet, hub_of, try_way
from simfl.errors import EngineError, FileError
from simfl.privacy.certificates import expiry_of
from simfl.storage import PID, is_used

STOP_WITHIN = 90.0  # seconds for a training to stop by itself


@dataclass(frozen=True)
class Place:
    """From where somebody looks: a study with the submitter's kit, a party, or the hub's machine."""

    role: Literal["submitter", "party", "hub"]
    name: str
    kit: Path
    runs: Path

    @classmethod
    def at(cls, where: Path, kit: Path | None = None) -> Place:
        """Of a study file, a party file, a hub's kit, or a folder with one of them."""
        for path in (where, where / "study.toml", where / "party.toml"):
            if path.is_file() and (found := cls._of_file(path, kit)):
                return found
        if (where / "startup" / "fed_server.json").exists():
            return cls("hub", "hub", where.resolve(), where.resolve() / "runs")
        raise FileError(
            f"At {where} there is neither a study with the submitter's kit, nor a party.toml, nor the hub's kit. Name "
            "one of them, or the kit with --kit."
        )

    @classmethod
    def _of_file(cls, path: Path, kit: Path | None) -> Place | None:
        home = path.resolve().parent
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FileError(f"{path} cannot be read: {error}.") from None
        if "party" in found:
            given = (kit or home / "kits" / "submitter").resolve()
            known = (given / "startup" / "fed_admin.json").exists()
            return cls("submitter", "submitter", given, home / "runs") if known else None
        name, own = found.get("name"), found.get("kit")
        if not isinstance(name, str) or not isinstance(own, str):
            read_party_file(path)  # says what is wrong
            return None
        return cls("party", name, (home / own).resolve(), home / "runs")


class SiteReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `simfl status` shows; times in seconds since 1970."""

    role: str
    name: str
    kit: str
    versions: dict[str, str]
    certificate_expires: float
    hub: str  # host:port
    hub_reachable: bool
    obstacle: str = ""  # what is in the way to the hub
    hub_since: float = 0.0
    hub_versions: dict[str, str] = {}
    hub_certificate_expires: float = 0.0
    hub_clock_ahead: float = 0.0  # seconds
    pid: int | None = None  # of this site's process, if it runs
    parties: list[Connection] = []
    trainings: list[Stage] = []


def look(place: Place) -> SiteReport:
    """Look from this place."""
    host, port = hub_of(place.kit)
    report = SiteReport(
        role=place.role,
        name=place.name,
        kit=str(place.kit),
        versions=versions(),
        certificate_expires=expiry_of(place.kit),
        hub=f"{host}:{port}",
        hub_reachable=place.role == "hub",
        pid=pid_of(place.kit),
        trainings=read_stages(place.runs),
    )
    if place.role == "hub":
        alive = report.pid is not None
        return msgspec.structs.replace(
            report, hub_reachable=alive, parties=read_connections(place.kit, alive=alive), obstacle="" if alive else OFF
        )
    try:
        try_way(place.kit)
    except (NotYet, EngineError) as obstacle:
        return msgspec.structs.replace(report, obstacle=str(obstacle))
    report = msgspec.structs.replace(report, hub_reachable=True)
    return _asked(place, report) if place.role == "submitter" else report


OFF = "the hub does not run here. Start it: simfl hub start"


def _asked(place: Place, report: SiteReport) -> SiteReport:
    """With what the hub itself knows."""
    begun = time.time()
    with _session(place.kit) as submitter:
        begun = time.time()
        known = submitter.hub()
    ahead = known.time - (begun + time.time()) / 2
    return msgspec.structs.replace(
        report,
        hub_since=known.since,
        hub_versions=known.versions,
        hub_certificate_expires=known.expires,
        hub_clock_ahead=round(ahead, 1),
        parties=known.parties,
        trainings=known.trainings,
    )


@contextmanager
def _session(kit: Path) -> Iterator[Submitter]:
    """With the hub. One that goes in between is told with what to do."""
    with closing(Submitter(kit)) as submitter:
        try:
            yield submitter
        except HubLost as loss:
            fact = str(loss).rstrip(".")
            raise EngineError(f"{fact[0].upper()}{fact[1:]}. Start it (simfl hub start), then ask again.") from None


def pid_of(kit: Path) -> int | None:
    """The process that runs from this kit."""
    try:
        return int((kit / PID).read_text()) if is_used(kit) else None
    except (OSError, ValueError):
        return None


def stop_training(kit: Path, run: str) -> Stage:
    """Stop a training at the hub; returns where it stood."""
    with _session(kit) as submitter:
        found = _running(submitter, run)
        until = time.monotonic() + STOP_WITHIN
        while time.monotonic() < until:
            if submitter.ready(found.job):
                status = submitter.ask(found.job, Question(stop=True))
                if isinstance(status, Status) and status.stage in ("stopped", "failed", "done"):
                    break
            stage = next((s for s in submitter.hub().trainings if s.run == found.run), found)
            if stage.ended:
                return stage
            time.sleep(0.5)
        else:
            submitter.abort(found.job)
        return next((s for s in submitter.hub().trainings if s.run == found.run), found)


def _running(submitter: Submitter, run: str) -> Stage:
    """The training of this name, or of the run folder of this name."""
    running = [stage for stage in submitter.hub().trainings if not stage.ended]
    name = Path(run).name
    found = [stage for stage in running if stage.run == name or stage.run.rpartition("-")[0] == name]
    if len(found) != 1:
        others = ", ".join(stage.run for stage in running) or "none"
        raise EngineError(f"No training {run!r} is running at the hub. Running: {others}.")
    return found[0]
