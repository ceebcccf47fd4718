"""Processes: start and stop a hub or a party from its kit, one at a time or all of a study on this machine."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from simfl.deploy.endpoints import PARTY_FILE
from simfl.deploy.kits import check_kit, provision
from simfl.deploy.study import Engine, Study, StudyParty, read_party_file
from simfl.errors import EngineError, FileError, StudyError
from simfl.privacy.tokens import secret_of
from simfl.storage import require_private, write_atomically

Commands = Mapping[str, Sequence[str]]


def run_hub(kit: Path) -> int:
    """Be the hub, in the foreground."""
    if not (kit / "startup" / "fed_server.json").exists():
        raise FileError(f"{kit} is not a hub's kit. `simfl join study.toml --name hub` makes one.")
    return _foreground(kit, {})


def run_party(party_path: Path) -> int:
    """Be a party, in the foreground."""
    own = read_party_file(party_path)
    if own.kit is None or not (Path(own.kit) / "startup" / "fed_client.json").exists():
        raise FileError(f"{party_path} names no kit of a party (kit = {own.kit!r}). `simfl join` makes one.")
    if own.secret is not None:
        require_private(party_path, party_path)
    return _foreground(Path(own.kit), {PARTY_FILE: str(party_path.resolve())})


def _foreground(kit: Path, environment: Mapping[str, str]) -> int:
    process = start(kit, environment)
    try:
        return process.wait()
    except KeyboardInterrupt:
        return 130
    finally:
        stop([process])


def start(
    kit: Path, environment: Mapping[str, str], log: Path | None = None, within: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start the server or the client that a kit is made for. Its process ends when this one does.

    `within` is a command to run it with, such as `ip netns exec NAME`.
    """
    kit = kit.resolve()
    check_kit(kit)
    is_hub = (kit / "startup" / "fed_server.json").exists()
    side = "server" if is_hub else "client"
    settings = ["secure_train=true", "org=simfl", "config_folder=config"]
    if is_hub:
        _keep_within(kit)
    else:
        config = json.loads((kit / "startup" / "fed_client.json").read_text())
        settings.append(f"uid={config['client']['fqsn']}")
    program = [sys.executable, "-m", "simfl.deploy.program", side]
    command = [*within, *program, "-m", str(kit), "-s", f"fed_{side}.json", "--set", *settings]
    # A client that died cannot report how its part ended: do not wait a quarter of an hour for it.
    own = {"NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "10"}
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("ab")) if log else None
        return subprocess.Popen(  # noqa: S603 - our own interpreter, FLARE's own program
            command,
            env={**os.environ, **own, **environment},
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            umask=0o077,  # journals, logs and jobs are for the owner alone
            start_new_session=True,  # Ctrl-C reaches this process, which then ends that one
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )


def _keep_within(kit: Path) -> None:
    """Have the hub store its jobs inside its kit, wherever the kit is now."""
    file = kit / "local" / "resources.json"
    resources = json.loads(file.read_text())
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(kit / "store" / "snapshots")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(kit / "store" / "jobs")
    file.write_text(json.dumps(resources, indent=2))


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def stop(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """End processes and everything that they started."""
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        process.kill()
        process.wait()


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
        self.engine = Engine(host=host, port=free_port())
        self.study = msgspec.structs.replace(study, engine=self.engine)
        self.folder, self.within = folder, dict(within or {})
        self.approved = approved or folder.parent / "study.toml"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.kits = provision(self.study, folder)
        for party in study.party:
            write_atomically(self.kits[party.name] / "party.toml", self._party_file(party, at).encode(), private=True)

    def _party_file(self, party: StudyParty, at: Path) -> str:
        data = msgspec.json.encode(str(at / str(party.data))).decode()  # quoted as TOML does
        threads = max((os.cpu_count() or 1) // len(self.study.party), 1)
        seed = self.study.parameters.get("random_state")  # as in one process, the secret follows from a given seed
        secret = "" if seed is None else f'secret = "{secret_of(seed).hex()}"\n'
        # Whoever tries a study out on one machine approves it, whatever its rules.
        approved = f"study = {msgspec.json.encode(str(self.approved.resolve())).decode()}\n"
        anything = '[require]\nmasked = false\nmin_parties = 1\nmatching = "any"\n'
        return f'name = "{party.name}"\ndata = {data}\nkit = "."\nn_jobs = {threads}\n{secret}{approved}{anything}'

    def __enter__(self) -> LocalProcesses:
        self.start("hub")
        self.await_hub()
        for party in self.study.parties:
            self.start(party)
        return self

    def __exit__(self, *_: object) -> None:
        stop(self.processes.values())

    def await_hub(self, seconds: float = 60.0) -> None:
        """Wait until the hub listens."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.processes["hub"].poll() is None:
            with contextlib.suppress(OSError), socket.create_connection((self.engine.host, self.engine.port), 1.0):
                return
            time.sleep(0.1)
        stop(self.processes.values())  # a block that was not entered is not left either
        raise EngineError(f"The hub did not start. Its log: {self.folder / 'hub.log'}")

    def check(self) -> None:
        """Raise if one of the processes has ended."""
        ended = [name for name, process in self.processes.items() if process.poll() is not None]
        if ended:
            raise EngineError(f"The process of {', '.join(ended)} has ended. Its log: {self.folder / ended[0]}.log")

    def start(self, name: str) -> None:
        """Start the hub or a party; also again."""
        kit = self.kits[name]
        environment = {} if name == "hub" else {PARTY_FILE: str(kit / "party.toml")}
        log = self.folder / f"{name}.log"
        self.processes[name] = start(kit, environment, log, self.within.get(name, ()))


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port
