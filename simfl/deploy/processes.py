"""Processes: start and stop a hub or a party from its kit, one at a time or all of a study on this machine.

A process that runs for months, and only waits for another, loads neither FLARE nor a table nor a tree.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

from simfl.data.sources import locate
from simfl.deploy.answers import PARTY_FILE
from simfl.deploy.kits import check_kit, provision
from simfl.deploy.logs import FLARE_LOG, LOG, Format, Log, Reader
from simfl.deploy.party_file import read_party_file
from simfl.deploy.way import await_hub, hub_of
from simfl.errors import EngineError, FileError, StudyError
from simfl.privacy.certificates import expiry_of
from simfl.storage import owned, require_private, write_atomically

if TYPE_CHECKING:
    from simfl.deploy.study import Study, StudyParty

Commands = Mapping[str, Sequence[str]]
# What FLARE builds into its process, by name: this process does not load it.
COMPONENTS = {
    "server": "simfl.deploy.connections.HubConnections",
    "client": "simfl.deploy.connections.PartyConnections",
}
DAY = 86400.0
MOST_PARTIES = 10_000  # that may connect
WARN_DAYS = 30  # before a certificate expires
GOODBYE = 10.0  # seconds that a party has to say goodbye to the hub, and the hub to all
KILLED = 5.0  # seconds after which a process that was killed is not waited for any more
LOOK = 0.2  # seconds between two looks at a process
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # what asks a process to end
FREE_PORTS = random.SystemRandom().sample(range(20_000, 32_000), 1000)  # below what systems use by themselves


def run_hub(kit: Path, log_format: Format = "text") -> int:
    """Be the hub, in the foreground."""
    if not (kit / "startup" / "fed_server.json").exists():
        raise FileError(f"{kit} is not a hub's kit. `simfl join study.toml --name hub` makes one.")
    kit = kit.resolve()
    check_kit(kit)
    with _foreground(kit, "hub", log_format) as log:
        _check_port(hub_of(kit)[1])
        return _run(kit, {}, log)


def run_party(party_path: Path, log_format: Format = "text") -> int:
    """Be a party, in the foreground: wait for the hub, then run until the end."""
    own = read_party_file(party_path)
    if own.kit is None or not (Path(own.kit) / "startup" / "fed_client.json").exists():
        raise FileError(f"{party_path} names no kit of a party (kit = {own.kit!r}). `simfl join` makes one.")
    if own.secret is not None:
        require_private(party_path, party_path)
    kit = Path(own.kit).resolve()
    check_kit(kit)
    with _foreground(kit, own.name, log_format) as log:
        await_hub(kit, log.tell)
        return _run(kit, {PARTY_FILE: str(party_path.resolve())}, log)


class _Asked(BaseException):
    """Somebody asked this process to end, with this signal."""


def _end(number: int, frame: object) -> None:
    raise _Asked(number)


def _ends_already(number: int, frame: object) -> None:
    """Asked twice: once is enough."""


@contextlib.contextmanager
def _on_signals(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have the signals that ask to end handled like this. One that is ignored stays so, as after `nohup`."""
    before = {number: signal.getsignal(number) for number in ENDS}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, handle)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _foreground(kit: Path, site: str, log_format: Format) -> Iterator[Log]:
    """The log of a site that this process runs alone, until it is asked to end."""
    with owned(kit), contextlib.closing(Log(kit, site, sys.stdout, log_format)) as log:
        try:
            with _on_signals(_end):
                logs = f"{kit / LOG}, {kit / FLARE_LOG}"
                log.tell("started", f"SimFL {version('simfl')}, process {os.getpid()}; logs: {logs}")
                yield log
        except _Asked as asked:
            by_hand = asked.args[0] == signal.SIGINT
            with _on_signals(_ends_already):
                log.tell("ended", "stopped by Ctrl-C" if by_hand else "stopped")
            raise SystemExit(130 if by_hand else 143) from None


def _run(kit: Path, environment: Mapping[str, str], log: Log) -> int:
    """Run FLARE's process until this one is asked to end; by itself it does not.

    A signal is only noted here: an exception in the midst of `Popen.wait` can leave its lock taken, and whoever waits
    for the process then waits for ever.
    """
    asked: list[int] = []
    with _on_signals(lambda number, frame: asked.append(number)):
        process, warned = start(kit, environment, log), -math.inf
        try:
            while not asked:
                if time.monotonic() - warned > DAY:
                    warned = time.monotonic()
                    warn_of_expiry(kit, log)
                if (status := process.poll()) is not None:
                    words = f"Its own words: {kit / FLARE_LOG}"
                    log.tell("ended", f"the process has ended by itself ({status}). {words}", "error")
                    return status or 1
                time.sleep(LOOK)
        finally:
            stop([process], GOODBYE)
    raise _Asked(asked[0])


def warn_of_expiry(kit: Path, log: Log) -> None:
    """Say in time that the certificate of a kit expires."""
    days = (expiry_of(kit) - time.time()) / DAY
    if days < WARN_DAYS:
        renew = "`simfl join` writes its request again, `simfl provision ... --renew` signs it"
        log.tell("certificate", f"the certificate of {kit} expires in {max(days, 0):.0f} days: {renew}", "warning")


def _check_port(port: int) -> None:
    """Refuse to start a hub where somebody else listens: FLARE would try for ever."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise EngineError(
                f"The hub cannot listen on port {port}: {error.strerror}. Another process does (`ss -ltnp` shows "
                "which); end it, or set another port in [engine] of the study."
            ) from None


def start(
    kit: Path, environment: Mapping[str, str], log: Log | None = None, within: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start the server or the client that a kit is made for. Its process ends when this one does.

    Its events go to `log` (default: log.txt in the kit), FLARE's own lines to flare.txt in the kit. `within` is a
    command to run it with, such as `ip netns exec NAME`.
    """
    kit = kit.resolve()
    check_kit(kit)
    is_hub = (kit / "startup" / "fed_server.json").exists()
    side = "server" if is_hub else "client"
    _settle(kit, side)
    settings = ["secure_train=true", "org=simfl", "config_folder=config"]
    if not is_hub:
        config = json.loads((kit / "startup" / "fed_client.json").read_text())
        settings.append(f"uid={config['client']['fqsn']}")
    program = [sys.executable, "-m", "simfl.deploy.program", side]
    command = [*within, *program, "-m", str(kit), "-s", f"fed_{side}.json", "--set", *settings]
    # A client that died cannot report how its part ended: do not wait a quarter of an hour for it.
    own = {"NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "10"}
    process = subprocess.Popen(  # noqa: S603 - our own interpreter, FLARE's own program
        command,
        env={**os.environ, **own, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        umask=0o077,  # journals, logs and jobs are for the owner alone
        start_new_session=True,  # Ctrl-C reaches this process, which then ends that one
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )
    if process.stdout is not None:
        Reader(process.stdout, kit, log or Log(kit, kit.name))
    return process


def _settle(kit: Path, side: str) -> None:
    """Write into FLARE's settings what depends on this machine: folders, our component, and one output for all logs."""
    file = kit / "local" / "resources.json"
    resources = json.loads(file.read_text())
    own = {"id": "simfl", "path": COMPONENTS[side], "args": {}}
    kept = [part for part in resources["components"] if part["id"] not in ("simfl", "site_log_streamer")]
    resources["components"] = [*kept, own]
    if side == "server":
        _keep_within(kit, resources)
        _let_in_all(kit / "startup" / "fed_server.json")
    write_atomically(file, json.dumps(resources, indent=2).encode(), private=True)
    logs = kit / "local" / "log_config.json"
    config = json.loads(logs.read_text())
    config["handlers"] = {"consoleHandler": config["handlers"]["consoleHandler"] | {"formatter": "baseFormatter"}}
    config["loggers"]["root"]["handlers"] = list(config["handlers"])
    write_atomically(logs, json.dumps(config, indent=2).encode(), private=True)


def _let_in_all(file: Path) -> None:
    """FLARE lets in a hundred parties and refuses the next, unless it is told otherwise."""
    config = json.loads(file.read_text())
    config["servers"][0]["max_num_clients"] = MOST_PARTIES
    write_atomically(file, json.dumps(config, indent=2).encode(), private=True)


def _keep_within(kit: Path, resources: dict[str, Any]) -> None:
    """Have the hub store its jobs inside its kit, wherever the kit is now."""
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(kit / "store" / "snapshots")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(kit / "store" / "jobs")


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def stop(processes: Iterable[subprocess.Popen[bytes]], goodbye: float = 0.0) -> None:
    """End processes and everything that they started. Each may take `goodbye` seconds to say goodbye."""
    import psutil

    started = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            started += psutil.Process(process.pid).children(recursive=True)
        if goodbye:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(goodbye)
        process.kill()  # before its children, so that it starts no others
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILLED)
    for child in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(started, timeout=KILLED)


class LocalProcesses:
    """A provisioned hub and all parties of a study, as processes on this machine. They end with the block.

    `at` is the folder that the study's paths are relative to; kits and logs go into `folder`. `within` has, per name, a
    command to run the process with. `approved`: the study file that the parties approve; default: the one beside.
    """

    def __init__(
        self,
        study: Study,
        at: Path,
        folder: Path,
        host: str = "localhost",
        within: Commands | None = None,
        approved: Path | None = None,
    ) -> None:
        missing = [party.name for party in study.party if not party.data]
        if missing:
            raise StudyError(f'--local-processes needs data = "..." in the [[party]] of {", ".join(missing)}.')
        from simfl.deploy.study import Engine

        self.engine = Engine(host=host, port=free_port())
        self.study = msgspec.structs.replace(study, engine=self.engine)
        self.folder, self.within = folder, dict(within or {})
        self.approved = approved or folder.parent / "study.toml"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.kits = provision(self.study, folder)
        for party in study.party:
            write_atomically(self.kits[party.name] / "party.toml", self._party_file(party, at).encode(), private=True)

    def _party_file(self, party: StudyParty, at: Path) -> str:
        data = msgspec.json.encode(locate(str(party.data), at)).decode()  # quoted as TOML does
        from simfl.privacy.tokens import secret_of

        threads = max((os.cpu_count() or 1) // len(self.study.party), 1)
        seed = self.study.parameters.get("random_state")  # as in one process, the secret follows from a given seed
        secret = "" if seed is None else f'secret = "{secret_of(seed).hex()}"\n'
        # Whoever tries a study out on one machine approves it, whatever its rules.
        approved = f"study = {msgspec.json.encode(str(self.approved.resolve())).decode()}\n"
        anything = '[require]\nmasked = false\nmin_parties = 1\nmatching = "any"\n'
        return f'name = "{party.name}"\ndata = {data}\nkit = "."\nn_jobs = {threads}\n{secret}{approved}{anything}'

    def give_keys(self, run: str) -> None:
        """What each party would draw for this run follows from a given seed, too: the model is that of one process."""
        seed = self.study.parameters.get("random_state")
        if seed is None:
            return
        from simfl.party.kept_keys import write_keys
        from simfl.privacy.tokens import private_of, secret_of

        for party in self.study.parties:
            folder = self.kits[party] / "runs" / run
            folder.mkdir(parents=True, exist_ok=True)
            write_keys(folder, secret_of(seed), private_of(seed, party))

    def __enter__(self) -> LocalProcesses:
        self.start("hub")
        self.await_hub()
        for party in self.study.parties:
            self.start(party)
        return self

    def __exit__(self, *_: object) -> None:
        stop(self.processes.values())

    def await_hub(self, seconds: float = 180.0) -> None:
        """Wait until the hub listens."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.processes["hub"].poll() is None:
            with contextlib.suppress(OSError), socket.create_connection((self.engine.host, self.engine.port), 1.0):
                return
            time.sleep(0.1)
        stop(self.processes.values())  # a block that was not entered is not left either
        raise EngineError(f"The hub did not start. Its own words: {self.kits['hub'] / FLARE_LOG}")

    def check(self) -> None:
        """Raise if one of the processes has ended."""
        ended = [name for name, process in self.processes.items() if process.poll() is not None]
        if ended:
            words = self.kits[ended[0]] / FLARE_LOG
            raise EngineError(f"The process of {', '.join(ended)} has ended. Its own words: {words}")

    def start(self, name: str) -> None:
        """Start the hub or a party; also again."""
        kit = self.kits[name]
        environment = {} if name == "hub" else {PARTY_FILE: str(kit / "party.toml")}
        self.processes[name] = start(kit, environment, within=self.within.get(name, ()))


def free_port() -> int:
    """A port that nobody uses now, and that will be free a while later.

    One that the system chooses would be of the range from which it serves every connection that somebody opens.
    """
    while True:
        port = FREE_PORTS.pop() if FREE_PORTS else 0
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return int(probe.getsockname()[1])
