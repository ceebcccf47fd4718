"""NVIDIA FLARE as the transport: the same messages, between machines. The only file that imports nvflare.

The hub is FLARE's server, every party a FLARE client, and a training is a FLARE job whose two ends are the classes
`HubEnd` and `SiteEnd`. All connections are opened by the sites, with TLS and a certificate at both ends. A job ships no
code: the kits that `provision` writes let a job name SimFL's own two classes and nothing else.

How a message travels. FLARE formats every argument of a call into a text, so what is large travels as a reply: the
hub's call carries a small question itself, and of a large one only its size; the site then fetches it, piece by piece.
A site that works longer than `BEAT` seconds says so and is asked again, so a long computation and a dead site can be
told apart: who gives no sign of life for `patience` seconds is lost. Every question has a number, so asking again does
no harm.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path
from typing import Any

from simfl.errors import EngineError, PartyLost, ProtocolError, SimFLError
from simfl.messages import Reply, Request
from simfl.transport.base import Hop, Traffic, encode_common
from simfl.wire import decode, encode

try:
    from nvflare.collab import CollabCallError, collab
    from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.signature import SignatureBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner
except ModuleNotFoundError as error:  # pragma: no cover - the tests have it
    raise EngineError(f'NVIDIA FLARE is not installed ({error.name}). Run: pip install "simfl[flare]"') from None

SMALL = 512 * 1024  # a question up to this many bytes travels with the call: fetching it would take longer
PIECE = 8 * 2**20  # the largest single message of anything larger
LARGEST = 4 * 2**30  # no question and no answer may be larger: what a message can make anybody allocate
BEAT = 2.0  # a site that is still at work says so after so many seconds
CALL_TIMEOUT = 8.0  # a call without any reply for so long has failed, and is made again
PROGRESS = "simfl.progress"  # FLARE's application command that the submitter asks for progress with

_BUSY, _DONE, _FAILED, _LARGE = range(4)
_CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
_EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
_HEAD = struct.Struct("<BQ8sQ")  # what follows, its size, the run and the number of the question that it answers


# --- frames ----------------------------------------------------------------------------------------------------------


def stamp(run: str) -> bytes:
    """A run's name in eight bytes."""
    return hashlib.blake2b(run.encode(), digest_size=8).digest()


def close_frame(kind: int, body: bytes, run: bytes, number: int) -> bytes:
    """A reply of a site: what it is, its size, what it answers, and the bytes themselves unless they are fetched."""
    return _HEAD.pack(kind, len(body), run, number) + (b"" if kind == _LARGE else body)


def open_frame(frame: Any, party: str, run: bytes, number: int) -> tuple[int, int, bytes]:
    """Kind, size and bytes of a reply, if it is one, and one to this question of this run."""
    if not isinstance(frame, bytes) or len(frame) < _HEAD.size:
        raise ProtocolError(f"Party {party!r} sent something that is not a reply of SimFL.")
    kind, size, of_run, of_number = _HEAD.unpack_from(frame)
    body = frame[_HEAD.size :]
    if of_run != run:
        raise ProtocolError(f"Party {party!r} sent a reply that belongs to another run. Start its process anew.")
    if of_number != number:
        raise ProtocolError(f"Party {party!r} answered question {of_number} where {number} was asked.")
    if kind > _LARGE or (kind != _LARGE and size != len(body)) or (kind == _LARGE and body):
        raise ProtocolError(f"Party {party!r} sent a reply of {len(body)} bytes that is torn or of no known kind.")
    check_size(size, f"Party {party!r}")
    return kind, size, body


def check_size(size: Any, who: str) -> None:
    """Refuse what is larger than anybody may be made to hold."""
    if not isinstance(size, int) or not 0 <= size <= LARGEST:
        raise ProtocolError(f"{who} announced a message of {size} bytes; no message may exceed {LARGEST}.")


def fetch(piece: Callable[[int], Any], size: int, who: str) -> bytes:
    """All pieces of a large message, one after the other."""
    whole = bytearray()
    while len(whole) < size:
        part = piece(len(whole))
        if not isinstance(part, bytes) or len(part) != min(PIECE, size - len(whole)):
            raise ProtocolError(f"{who} sent a piece of a message that is not as long as it should be.")
        whole += part
    return bytes(whole)


# --- the hub's end ---------------------------------------------------------------------------------------------------


class FlareTransport:
    """Carries messages to the sites of a running job."""

    deployed = True

    def __init__(
        self, sites: Mapping[str, Any], outbox: dict[tuple[str, int], bytes], patience: float, run: str
    ) -> None:
        self.sites = dict(sites)
        self.run = stamp(run)
        self.parties = list(sites)
        self.traffic = Traffic()
        self.patience = patience
        self._outbox = outbox
        self._number = 0
        self._lock = threading.Lock()
        self._probes: dict[str, Future[bool]] = {}
        self._pool = ThreadPoolExecutor(2 * len(sites) + 1, thread_name_prefix="simfl-ask")

    def ask_all(self, messages: Mapping[str, Request]) -> dict[str, Reply]:
        """Ask several sites at once. All answers are awaited, also when one of the sites is lost."""
        common = encode_common(messages)
        asked = {p: self._pool.submit(self._carry, p, m, common or encode(m)) for p, m in messages.items()}
        replies, lost = {}, {}
        for party, future in asked.items():
            try:
                replies[party] = future.result()
            except PartyLost as error:
                lost[party] = error
        if lost:
            raise PartyLost(list(lost), f"no sign of life for {self.patience:g} seconds.")
        return replies

    def returned(self) -> list[str]:
        """Sites that were lost and answer again. Asks in the background, so that the others need not wait."""
        missing = [site for site in self.sites if site not in self.parties]
        found = [site for site in missing if self._probes.get(site) and self._probes[site].done()]
        back = [site for site in found if self._probes.pop(site).result()]
        for site in missing:
            if site not in self._probes:
                self._probes[site] = self._pool.submit(self._answers, site)
        return back

    def close(self) -> None:
        """Let the threads go."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _answers(self, site: str) -> bool:
        try:
            return bool(self.sites[site](timeout=CALL_TIMEOUT).alive())
        except CollabCallError:
            time.sleep(BEAT)
            return False

    def _carry(self, party: str, message: Request, data: bytes) -> Reply:
        with self._lock:
            self._number += 1
            number = self._number
        self._outbox[party, number] = data
        begun = time.perf_counter()
        try:
            answer = self._exchange(party, number, data)
        finally:
            del self._outbox[party, number]
        try:
            reply: Reply = decode(answer)  # type: ignore[assignment]
        except ProtocolError as error:
            raise ProtocolError(f"Party {party!r}: {error}") from None
        with self._lock:
            self.traffic.count(party, message, len(data), reply, len(answer))
            self.traffic.hops.append(Hop(party, type(message).__name__, begun, time.perf_counter() - begun))
        return reply

    def _exchange(self, party: str, number: int, data: bytes) -> bytes:
        """Ask until the answer is there, the site says what is wrong, or it has been silent for too long."""
        site = self.sites[party]
        along = data if len(data) <= SMALL else b""
        heard = time.monotonic()
        while True:
            try:
                frame = site(timeout=CALL_TIMEOUT).ask(self.run, number, len(data), along)
                kind, size, body = open_frame(frame, party, self.run, number)
                if kind == _DONE:
                    return body
                if kind == _LARGE:
                    return fetch(lambda at: site(timeout=CALL_TIMEOUT).more(number, at), size, f"Party {party!r}")
                if kind == _FAILED:
                    raise SimFLError(body.decode(errors="replace"))
                heard = time.monotonic()
            except CollabCallError as error:
                if time.monotonic() - heard > self.patience:
                    raise PartyLost([party], str(error)) from None
                time.sleep(0.2)


class HubEnd(ABC):
    """The hub's end of a job. Subclasses say what is to be done with the transport (`conduct`)."""

    def __init__(self) -> None:
        self._outbox: dict[tuple[str, int], bytes] = {}

    @collab.main  # type: ignore[untyped-decorator]
    def main(self) -> None:
        """What the server runs."""
        _leave_with_parent()
        context = collab.context
        fl = collab.get_app_prop("__fl_context__")
        fl.get_engine().register_app_command(PROGRESS, lambda topic, data, fl_ctx: self.progress(data))
        sites = {site.name: site for site in context.clients}
        transport = FlareTransport(sites, self._outbox, self.patience, self.run)
        try:
            self.conduct(transport, Path(context.workspace.get_root_dir()))
        finally:
            transport.close()

    @collab.publish  # type: ignore[untyped-decorator]
    def piece(self, number: int, start: int, context: Any) -> bytes:
        """A piece of the question with this number, for the site that it was asked."""
        return self._outbox[context.caller, number][start : start + PIECE]

    patience: float = 60.0
    run: str = ""  # the training's name

    @abstractmethod
    def conduct(self, transport: FlareTransport, folder: Path) -> None:
        """Hold the training. `folder` is the kit's."""

    @abstractmethod
    def progress(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What the submitter wants to know."""


class SiteEnd(ABC):
    """A party's end of a job. Subclasses answer messages (`answer`)."""

    def __init__(self) -> None:
        self._number = 0
        self._run: bytes | None = None  # that this job serves
        self._work: Future[bytes] | None = None
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="simfl-party")

    @collab.init  # type: ignore[untyped-decorator]
    def begin(self) -> None:
        """The job starts at this site."""
        _leave_with_parent()
        self._hub = collab.server
        self.open(collab.site_name, Path(collab.context.workspace.get_root_dir()))

    @collab.publish  # type: ignore[untyped-decorator]
    def alive(self) -> bool:
        """A sign of life."""
        return True

    @collab.publish  # type: ignore[untyped-decorator]
    def ask(self, run: bytes, number: int, size: int, data: bytes, context: Any) -> bytes:
        """Answer a question of the hub, or say that the answer takes longer."""

        def reply(kind: int, body: bytes) -> bytes:
            return close_frame(kind, body, self._run or run, number)

        if context.caller != "server":
            return reply(_FAILED, b"Only the hub may ask.")
        with self._lock:
            self._run = self._run or run
            if run != self._run:
                return reply(_FAILED, b"This job serves another run.")
            if number > self._number:
                self._number = number
                self._work = self._pool.submit(self._answer, number, size, data)
            work = self._work
        if number != self._number or work is None:
            return reply(_FAILED, f"Question {number} came after {self._number}.".encode())
        try:
            answer = work.result(BEAT)
        except NotYet:
            return reply(_BUSY, b"")
        except SimFLError as error:
            return reply(_FAILED, str(error).encode())
        except Exception as error:  # noqa: BLE001 - the hub must hear of it, whatever it is
            return reply(_FAILED, f"{type(error).__name__}: {error}".encode())
        return reply(_DONE if len(answer) <= PIECE else _LARGE, answer)

    @collab.publish  # type: ignore[untyped-decorator]
    def more(self, number: int, start: int, context: Any) -> bytes:
        """A piece of a large answer."""
        if context.caller != "server" or number != self._number or self._work is None:
            return b""
        return self._work.result()[start : start + PIECE]

    def _answer(self, number: int, size: int, data: bytes) -> bytes:
        check_size(size, "The hub")
        if size != len(data):
            hub = self._hub(timeout=600.0)
            data = fetch(lambda start: hub.piece(number, start), size, "The hub")
        question: Request = decode(data)  # type: ignore[assignment]
        reply = self.answer(question)
        answer = encode(reply)
        self.answered(question, size, reply, len(answer))
        return answer

    @abstractmethod
    def open(self, name: str, folder: Path) -> None:
        """The job starts. `name` is what the certificate says, `folder` the kit's."""

    @abstractmethod
    def answer(self, message: Request) -> Reply:
        """Answer a message."""

    @abstractmethod
    def answered(self, question: Request, bytes_in: int, answer: Reply, bytes_out: int) -> None:
        """An answer is on its way."""


# --- kits ------------------------------------------------------------------------------------------------------------

ROOT_DAYS = 3650  # how long the project's own root is valid; a site's certificate is valid for 360 days
SUBMITTER = "submitter@simfl.org"  # FLARE wants an address; nothing is ever sent to it


def provision(
    folder: Path,
    *,
    project: str,
    host: str,
    port: int,
    sites: Sequence[str],
    classes: Sequence[str],
    renew: Sequence[str] = (),
) -> dict[str, Path]:
    """Write the kits: the hub's, the submitter's and one per site; returns their folders.

    Each holds a private key and a certificate that the project's own root signed. Run again with more sites, the old
    certificates stay, but those of `renew`. `classes` are the only ones that a job may name; a job that brings code is
    refused.
    """
    names = {"hub": host, "submitter": SUBMITTER} | {site: site for site in sites}
    _forget(folder / ".authority" / project / "state" / "cert.json", [names.get(name, name) for name in renew])
    plan = Project(name=project, description="SimFL")
    plan.set_server(host, "simfl", {"fed_learn_port": port, "admin_port": port})
    for site in sites:
        plan.add_client(site, "simfl", {})
    plan.add_admin(SUBMITTER, "simfl", {"role": "lead"})
    builders = [
        WorkspaceBuilder(),
        StaticFileBuilder(config_folder="config", scheme="tcp"),
        CertBuilder(3650),
        SignatureBuilder(),
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        made = Provisioner(str(folder / ".authority"), builders).provision(plan)
    latest = made.get_result_location()
    if not latest or not Path(latest).exists():
        raise EngineError(f"The kits could not be written to {folder}.")
    kits = {}
    for name, made_as in names.items():
        kits[name] = folder / name
        _restrict(Path(latest) / made_as, classes, is_hub=name == "hub")
        kits[name].mkdir(parents=True, exist_ok=True)
        for part in ("startup", "local"):
            shutil.rmtree(kits[name] / part, ignore_errors=True)
            shutil.copytree(Path(latest) / made_as / part, kits[name] / part)
        (kits[name] / "transfer").mkdir(exist_ok=True)
        kits[name].chmod(0o700)
    shutil.rmtree(latest)
    return kits


def _forget(state: Path, names: Sequence[str]) -> None:
    """Have new keys and certificates made for these names."""
    if names and state.exists():
        known = json.loads(state.read_text())
        missing = [name for name in names if name not in known]
        if missing:
            raise EngineError(f"There is no certificate of {', '.join(missing)} to renew.")
        state.write_text(json.dumps({key: value for key, value in known.items() if key not in names}))


def _restrict(kit: Path, classes: Sequence[str], *, is_hub: bool) -> None:
    """Close what FLARE leaves open: no code may come with a job, and everything is kept inside the kit's folder."""
    local = kit / "local"
    resources_file = local / "resources.json.default"
    if not (local / "authorization.json.default").exists():  # the submitter's kit runs nothing
        return
    resources = json.loads(resources_file.read_text())
    resources["class_allow_list"] = [*classes, _CONTROLLER, _EXECUTOR]
    resources["allow_log_streaming"] = False
    if is_hub:
        for component in resources["components"]:
            if component["id"] == "job_scheduler":
                component["args"] |= {"min_schedule_interval": 1.0, "max_schedule_interval": 5.0}
    (local / "resources.json").write_text(json.dumps(resources, indent=2))
    authorization = json.loads((local / "authorization.json.default").read_text())
    nothing = dict.fromkeys(("byoc", "shell_commands", "clone_job", "operate"), "none")
    authorization["permissions"] = {
        "lead": dict.fromkeys(("submit_job", "manage_job", "download_job", "view", "app_command"), "any") | nothing
    }
    (local / "authorization.json").write_text(json.dumps(authorization, indent=2))
    log = json.loads((local / "log_config.json.default").read_text())
    log["loggers"]["root"]["level"] = "WARNING"  # a line per message would be most of the work
    (local / "log_config.json").write_text(json.dumps(log, indent=2))


# --- processes -------------------------------------------------------------------------------------------------------


def _keep_within(kit: Path) -> None:
    """Have the hub store its jobs inside its kit, wherever that lies now."""
    file = kit / "local" / "resources.json"
    resources = json.loads(file.read_text())
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(kit / "store" / "snapshots")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(kit / "store" / "jobs")
    file.write_text(json.dumps(resources, indent=2))


def start(
    kit: Path, environment: Mapping[str, str], log: Path | None = None, within: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Be the server or the client that a kit is made for, in a process of its own. It ends when this one does.

    `within` is a command to run it with, as `ip netns exec NAME`.
    """
    kit = kit.resolve()
    is_hub = (kit / "startup" / "fed_server.json").exists()
    side = "server" if is_hub else "client"
    settings = ["secure_train=true", "org=simfl", "config_folder=config"]
    if is_hub:
        _keep_within(kit)
    else:
        config = json.loads((kit / "startup" / "fed_client.json").read_text())
        settings.append(f"uid={config['client']['fqsn']}")
    program = f"nvflare.private.fed.app.{side}.{side}_train"
    command = [*within, sys.executable, "-m", program, "-m", str(kit), "-s", f"fed_{side}.json", "--set", *settings]
    # A client that died cannot report how its part ended: do not wait a quarter of an hour for it.
    own = {"NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "10"}
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("ab")) if log else None
        return subprocess.Popen(  # noqa: S603 - our own interpreter, FLARE's own program
            command,
            env={**os.environ, **own, **environment},
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            start_new_session=True,  # Ctrl-C goes to us, and we end it
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _leave_with_parent() -> None:
    """End this process when the one that started it is gone, even if nobody has buried it."""
    parent = os.getppid()

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=wait, daemon=True, name="simfl-parent").start()


# --- the submitter ---------------------------------------------------------------------------------------------------


def write_job(
    folder: Path, name: str, hub: dict[str, Any], site: dict[str, Any], sites: Sequence[str], least: int
) -> Path:
    """A job's folder: two installed classes by name, with their arguments, and no code."""
    calls = {"collab_obj_ids": [], "max_inbound_call_threads": 2 * len(sites) + 8, "sync_task_timeout": 120}
    controller = {"server_obj_id": "hub", **calls}
    executor = {"client_obj_id": "site", "collab_obj_ids": [], "max_inbound_call_threads": 8}
    plan = {"app_server": ["server"], "app_site": list(sites)}
    server = {
        "format_version": 2,
        "workflows": [{"id": "controller", "path": _CONTROLLER, "args": controller}],
        "components": [{"id": "hub", **hub}],
    }
    client = {
        "format_version": 2,
        "executors": [{"tasks": ["*"], "executor": {"path": _EXECUTOR, "args": executor}}],
        "components": [{"id": "site", **site}],
    }
    meta = {"name": name, "resource_spec": {}, "min_clients": least, "deploy_map": plan}
    files = {
        "meta.json": meta,
        "app_server/config/config_fed_server.json": server,
        "app_site/config/config_fed_client.json": client,
    }
    for path, content in files.items():
        target = folder / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(content, indent=2))
    return folder / name


class Submitter:
    """The one who starts trainings: submits jobs and asks the hub how they fare."""

    def __init__(self, kit: Path, timeout: float = 30.0) -> None:
        self.kit = kit
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                self.session: Session = new_secure_session(SUBMITTER, str(kit), timeout=timeout)
        except Exception as error:  # noqa: BLE001 - FLARE raises many kinds
            raise EngineError(f"The hub cannot be reached with the kit {kit}: {error}.") from None

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(Exception):
            self.session.close()

    def heard(self) -> dict[str, float]:
        """The sites that the hub knows, with the time when it heard of each last."""
        known = self._do(self.session.get_connected_client_list)
        return {client.name: float(client.last_connect_time) for client in known}

    def submit(self, folder: Path) -> str:
        """Start the job that `write_job` wrote; returns its id."""
        job: str = self._do(self.session.submit_job, str(folder))
        return job

    def status(self, job: str) -> str:
        """FLARE's word for how the job is."""
        return str(self._do(self.session.get_job_status, job))

    def progress(self, job: str, question: dict[str, Any]) -> dict[str, Any] | None:
        """What the hub tells about a running training; None while it is not running."""
        try:
            answer: dict[str, Any] = self.session.do_app_command(job, PROGRESS, question)
        except Exception:  # noqa: BLE001 - not yet, or not any more: the status tells
            return None
        return answer

    def abort(self, job: str) -> None:
        """End a job now."""
        with contextlib.suppress(Exception):
            self.session.abort_job(job)

    def _do(self, command: Callable[..., Any], *args: Any) -> Any:
        try:
            return command(*args)
        except Exception as error:  # noqa: BLE001 - FLARE raises many kinds
            raise EngineError(f"The hub refused, or the connection broke: {error}.") from None
