"""Who is connected: what the lasting process of a hub or of a party knows, beside the jobs that FLARE starts from it.

FLARE builds one of the two components here into its own process (`processes.start` names them in the kit's settings).
At the hub it tells who connects, who leaves and who is lost, and answers `simfl status`. At a party it tells how the
connection to the hub is. Both say goodbye when they are stopped, and tell when the process of a training has ended
before the training did.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.fuel.hci.proto import MetaStatusValue, make_meta
from nvflare.fuel.hci.reg import CommandModule, CommandModuleSpec, CommandSpec
from nvflare.private.fed.server.server_cmd_modules import ServerCommandModules

from simfl.callbacks import duration
from simfl.deploy.answers import (
    CONNECTIONS,
    PARTY_FILE,
    READY,
    STALE,
    STATUS,
    Connection,
    HubStatus,
    read_connections,
    versions,
)
from simfl.deploy.course import ENDED, STAGE_FILE, Stage, read_stages
from simfl.deploy.goodbye import hear_of_hub, is_connected, pass_on_no_goodbye, say_goodbye
from simfl.deploy.logs import mark_events, tell
from simfl.deploy.way import hub_of
from simfl.privacy.certificates import expiry_of
from simfl.storage import write_atomically
from simfl.transport.lifetime import READY_FILE, note_left

LOOK = 1.0  # seconds between two looks
_FACTS: Final = "simfl"  # under which a party's facts travel when it registers


class _Lasting(FLComponent):  # type: ignore[misc]
    """Looks at what changes, in a thread of FLARE's own process. In the process of a job it does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.engine: Any = None
        self._jobs: set[str] = set()
        self._trouble = self._told = ""  # what went wrong at the last look, and what was said of it

    def begin(self, fl_ctx: Any, look: Callable[[], None]) -> None:
        """FLARE has started."""
        mark_events()
        self.engine = fl_ctx.get_engine()
        threading.Thread(target=self._keep_looking, args=(look,), daemon=True, name="simfl-connections").start()

    def _keep_looking(self, look: Callable[[], None]) -> None:
        while True:
            self.look_once(look)
            time.sleep(LOOK)

    def look_once(self, look: Callable[[], None]) -> None:
        """Whatever goes wrong is told, once, and looked at again: a full disk, an error of FLARE's."""
        try:
            look()
        except Exception as error:  # noqa: BLE001 - without this thread nobody would hear of anything any more
            fact = f"{type(error).__name__}: {error}"
            # A table of FLARE's that changes while it is read: the next look finds it as it should be.
            passing = isinstance(error, LookupError | RuntimeError) and not self._trouble
            if fact != self._told and not passing:
                tell("trouble", f"cannot look who is connected ({fact}); trying on", level=30)
                self._told = fact
            self._trouble = fact
        else:
            self._trouble = self._told = ""

    def tell_ended(self, running: set[str], runs: Path) -> None:
        """Tell of trainings whose job is gone before they had ended."""
        gone, self._jobs = self._jobs - running, running
        for folder in runs.glob("*") if gone else ():
            with contextlib.suppress(OSError, msgspec.DecodeError):
                stage = msgspec.json.decode((folder / STAGE_FILE).read_bytes(), type=Stage)
                if stage.job in gone and stage.stage not in ENDED:
                    done = f" after tree {stage.tree} of {stage.n_trees}" if stage.tree else ""
                    tell("ended", f"the training {stage.run} was interrupted{done}: all finished trees are kept")
                    interrupted = msgspec.structs.replace(stage, stage="interrupted", changed=time.time())
                    write_atomically(folder / STAGE_FILE, msgspec.json.encode(interrupted))


class HubConnections(_Lasting):
    """At the hub."""

    def __init__(self) -> None:
        super().__init__()
        self.kit = Path.cwd()
        self.since = time.time()
        self.parties: dict[str, Connection] = {}
        self._tokens: dict[str, str] = {}
        self._lock = threading.Lock()
        ServerCommandModules.register_cmd_module(_Commands(self))

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        if event_type == EventType.SYSTEM_START:
            self.kit = Path(fl_ctx.get_engine().get_workspace().get_root_dir())
            self.parties = {party.name: party for party in read_connections(self.kit, alive=False)}
            self.begin(fl_ctx, self.look)
            pass_on_no_goodbye(self.engine.get_cell())
            signal.signal(signal.SIGTERM, self._close)
            tell("listening", f"listening on port {hub_of(self.kit)[1]}")
        elif event_type == EventType.CLIENT_QUIT:
            with self._lock:
                self._see_off()

    def _close(self, number: int, frame: object) -> None:
        """Say goodbye to parties and submitters, and end. Whoever asks for it kills this process if that takes long."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # asked twice: once is enough
        say_goodbye(self.engine.get_cell())
        os._exit(0)

    def look(self) -> None:
        """Tell who has come, gone, or come back."""
        with self._lock:
            self._look()

    def _look(self) -> None:
        now, before = time.time(), dict(self.parties)
        for client in self.engine.get_clients():
            self._see(client, now)
        for name, party in self.parties.items():
            if party.connected and now - party.heard > STALE:
                self.parties[name] = msgspec.structs.replace(party, connected=False, since=now)
                tell("lost", f"{name} is lost: no sign of life for {duration(now - party.heard)}", level=30)
        if {n: (p.connected, p.since) for n, p in before.items()} != {
            n: (p.connected, p.since) for n, p in self.parties.items()
        }:
            self._keep()
        self.tell_ended(set(self.engine.run_processes), self.kit / "runs")

    def _see(self, client: Any, now: float) -> None:
        """A party that FLARE lists. It lists those that are lost for a while, too."""
        name, heard = str(client.name), float(client.last_connect_time)
        known = self.parties.get(name, Connection(name=name))
        facts = (client.get_site_config() or {}).get(_FACTS)
        if isinstance(facts, dict):
            with contextlib.suppress(msgspec.ValidationError):
                said = msgspec.convert({"name": name, **facts}, Connection)
                known = msgspec.structs.replace(known, versions=said.versions, expires=said.expires)
        if now - heard <= STALE and (not known.connected or self._tokens.get(name) != client.token):
            word = "is back" if known.since else "is connected"
            self._tokens[name] = client.token
            known = msgspec.structs.replace(known, connected=True, left=False, since=now)
            present = [p for p in self.parties.values() if p.connected and p.name != name]
            tell("connected", f"{name} {word} ({_software(known)}); connected now: {len(present) + 1}")
        self.parties[name] = msgspec.structs.replace(known, heard=heard)

    def _see_off(self) -> None:
        """Somebody has said goodbye: FLARE, which has checked who, lists it no longer. No training waits for it."""
        present = {str(client.name) for client in self.engine.get_clients()}
        for name, party in self.parties.items():
            if party.connected and name not in present:
                self.parties[name] = msgspec.structs.replace(party, connected=False, left=True, since=time.time())
                tell("left", f"{name} has left (stopped by its operator)")
                for job in list(self.engine.run_processes):
                    with contextlib.suppress(OSError):  # FLARE has just removed its folder
                        note_left(self.kit / job, name)
        self._keep()

    def _keep(self) -> None:
        write_atomically(self.kit / CONNECTIONS, msgspec.json.encode(list(self.parties.values())))

    def status(self) -> HubStatus:
        """All that `simfl status` shows."""
        return HubStatus(
            time=time.time(),
            since=self.since,
            versions=versions(),
            expires=expiry_of(self.kit),
            parties=list(self.parties.values()),
            trainings=read_stages(self.kit / "runs")[:100],
        )


def _software(party: Connection) -> str:
    return f"SimFL {party.versions['simfl']}" if "simfl" in party.versions else "version unknown"


class _Commands(CommandModule):  # type: ignore[misc]
    """The submitter's two questions to the hub's own process. FLARE has checked who asks."""

    def __init__(self, hub: HubConnections) -> None:
        super().__init__()
        self.hub = hub

    def get_spec(self) -> Any:
        """What FLARE shall offer."""
        specs = [
            CommandSpec(name=STATUS, description="status", usage=STATUS, handler_func=self.tell_status, visible=True),
            CommandSpec(
                name=READY, description="ready", usage=f"{READY} JOB", handler_func=self.is_ready, visible=True
            ),
        ]
        return CommandModuleSpec(name="simfl", cmd_specs=specs)

    def tell_status(self, conn: Any, args: list[str]) -> None:
        """Everything that is known here."""
        conn.append_dict(msgspec.to_builtins(self.hub.status()), meta=make_meta(MetaStatusValue.OK))

    def is_ready(self, conn: Any, args: list[str]) -> None:
        """Whether there is a process for a job, and whether it answers questions yet: else FLARE would log errors."""
        job = Path(args[1]).name if len(args) == 2 else ""
        ready = bool(job) and (self.hub.kit / job / READY_FILE).exists()
        found = {"ready": ready, "runs": job in getattr(self.hub.engine, "run_processes", ())}
        conn.append_dict(found, meta=make_meta(MetaStatusValue.OK))


class PartyConnections(_Lasting):
    """At a party."""

    def __init__(self) -> None:
        super().__init__()
        self.hub = "the hub"
        self._site: Any = None
        self._asked = self._heard = 0.0  # by a clock that nobody sets: when the hub was asked, and when it answered
        self._lost_at: float | None = None
        self._hub_stopped = False  # it said so, and what it ran has ended with it
        self._lock = threading.Lock()

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        if event_type == EventType.BEFORE_CLIENT_REGISTER:
            mark_events()
            config = fl_ctx.get_prop(FLContextKey.CLIENT_CONFIG)
            kit = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
            facts = {"versions": versions(), "expires": expiry_of(kit)}
            config["site_config"] = {_FACTS: facts}  # FLARE sends it along
        elif event_type == EventType.AFTER_CLIENT_REGISTER:
            self.hub = f"the hub at {fl_ctx.get_prop(FLContextKey.SERVER_CONFIG)[0]['service']['target']}"
            self._heard, self._site = time.monotonic(), fl_ctx.get_prop(FLContextKey.SITE_OBJ)
            signal.signal(signal.SIGTERM, self._leave)
            hear_of_hub(self._site.cell, self.hub_gone)
            tell("connected", f"connected to {self.hub}")
        elif event_type == EventType.SYSTEM_START:
            self.begin(fl_ctx, self.look)
        elif event_type == EventType.BEFORE_CLIENT_HEARTBEAT:
            self._asked = time.monotonic()
        elif event_type == EventType.AFTER_CLIENT_HEARTBEAT:
            self._note_answer(time.monotonic())

    def _note_answer(self, now: float) -> None:
        """The hub has answered, unless there is no connection or FLARE gave up waiting: it says the same of these."""
        if is_connected(self._site.cell) and now - self._asked < STALE:
            self._heard = now

    def _leave(self, number: int, frame: object) -> None:
        """Say goodbye to the hub, and end. Whoever asks for it kills this process if that takes too long."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # asked twice: once is enough
        if self._lost_at is None:
            with contextlib.suppress(Exception):  # the hub may be gone all the same
                self._site.logout_client(self._site.engine.new_context())
        os._exit(0)

    def hub_gone(self, goodbye: bool) -> None:
        """The hub was stopped (it said goodbye), or the connection to it broke."""
        self._hub_stopped |= goodbye
        self._lose("was stopped by its operator" if goodbye else "is lost: the connection broke")

    def _lose(self, fact: str) -> None:
        with self._lock:
            if self._lost_at is None:
                self._lost_at = time.monotonic()
                tell("lost", f"{self.hub} {fact}; waiting for it", level=30)

    def _end_jobs(self) -> None:
        """They would wait for a hub that does not know them. One that cannot be ended now is tried again."""
        failed = []
        for job in self.engine.get_all_job_ids():
            try:
                self.engine.abort_app(job, heartbeat_cleanup=True)
            except Exception as error:  # noqa: BLE001 - FLARE raises many kinds, and there are other jobs
                failed.append(f"{job}: {error}")
        if failed:
            raise OSError(f"cannot end {'; '.join(failed)}")
        self._hub_stopped = False

    def look(self) -> None:
        """Tell when the hub is silent, and when it answers again."""
        if self._lost_at is not None and self._heard > self._lost_at:
            self._lost_at, self._hub_stopped = None, False
            tell("connected", f"connected to {self.hub} again")
        elif (silent := time.monotonic() - self._heard) > STALE:
            since = datetime.fromtimestamp(time.time() - silent, UTC).astimezone().strftime("%H:%M:%S")
            self._lose(f"has not answered since {since}")
        if self._hub_stopped:
            self._end_jobs()
        home = Path(os.environ.get(PARTY_FILE, "party.toml")).parent
        self.tell_ended(set(self.engine.get_all_job_ids()), home / "runs")
