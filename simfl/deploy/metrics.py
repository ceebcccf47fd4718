"""Health and figures of a hub or a party over HTTP, for probes and Prometheus. Off unless a port is asked for.

| path | 200 means |
|---|---|
| `/healthz` | this process runs; a party that waits for its hub is healthy, and a restart would not help it |
| `/readyz` | the hub accepts connections; the party is connected to the hub |
| `/metrics` | the figures below, in Prometheus' text format |

A training runs in a process that FLARE starts, so its end writes `figures.json` into the folder of its run, and the
process that an operator started reads it when it is asked. That is why this is the standard library's server and not
Prometheus' client, whose registry belongs to one process. Figures are counts, bytes and seconds per kind of message:
nothing here depends on the values of a row, and no loss is shown.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from simfl.deploy.way import hub_of
from simfl.errors import EngineError, FileError
from simfl.privacy.certificates import expiry_of
from simfl.storage import write_atomically

if TYPE_CHECKING:
    from simfl.transport.base import Traffic

FIGURES = "figures.json"  # in the folder of a run
REFUSALS = "refusals.txt"  # in a kit: a line, with the time, for each
SAVED_EVERY = 1.0  # seconds
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


# --- at the end of a training, in FLARE's process --------------------------------------------------------------------


class Figures(msgspec.Struct, kw_only=True):
    """figures.json: what one end of a training has counted since its last start."""

    trees: int = 0  # at the hub
    present: dict[str, bool] = {}  # at the hub: who takes part now
    hops: dict[str, int] = {}  # per kind of question
    seconds: dict[str, float] = {}  # until the answer was there
    sent: dict[str, int] = {}  # bytes per kind of message
    received: dict[str, int] = {}

    def count(self, traffic: Traffic) -> None:
        """Take the counts of the hub's transport: what it sent and received."""
        self.hops, self.seconds = {}, {}
        for hop in list(traffic.hops):
            self.hops[hop.kind] = self.hops.get(hop.kind, 0) + 1
            self.seconds[hop.kind] = self.seconds.get(hop.kind, 0.0) + hop.seconds
        self.sent = dict(sum(traffic.received.values(), Counter()))  # what reached a party was sent by the hub
        self.received = dict(sum(traffic.sent.values(), Counter()))

    def answered(self, question: str, answer: str, n_in: int, n_out: int, seconds: float) -> None:
        """Count one answer of a party."""
        for table, kind, n in ((self.hops, question, 1), (self.received, question, n_in), (self.sent, answer, n_out)):
            table[kind] = table.get(kind, 0) + n
        self.seconds[question] = self.seconds.get(question, 0.0) + seconds


class FiguresFile:
    """Keeps figures.json up to date, without writing more often than anybody reads."""

    def __init__(self, folder: Path) -> None:
        self.figures, self._path, self._saved = Figures(), folder / FIGURES, 0.0

    @property
    def is_due(self) -> bool:
        """Whether it was last written some time ago."""
        return time.monotonic() - self._saved > SAVED_EVERY

    def save(self, *, now: bool = False) -> None:
        """Write it, unless that was done a moment ago."""
        if now or self.is_due:
            self._saved = time.monotonic()
            with contextlib.suppress(FileError):  # a full disk: whatever needs it says so
                write_atomically(self._path, msgspec.json.encode(self.figures))


def note_refusal(kit: Path) -> None:
    """Write down that this site has refused to take part, or to go on. Why is in its log."""
    with contextlib.suppress(OSError), (kit / REFUSALS).open("a") as file:
        file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')}\n")


# --- at whoever asks -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Watched:
    """A site: its kit, and the folder with its runs."""

    kit: Path
    runs: Path

    @property
    def is_hub(self) -> bool:
        """Whether it is the hub's."""
        return (self.kit / "startup" / "fed_server.json").exists()

    def engine(self) -> Any:
        """FLARE's process, which this process started; None if there is none."""
        import psutil

        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if "simfl.deploy.program" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                    return child
        return None

    def is_ready(self) -> bool:
        """Whether a training could begin, as far as this site is concerned."""
        import psutil

        engine, (_, port) = self.engine(), hub_of(self.kit)
        if engine is None:
            return False
        if self.is_hub:
            with contextlib.suppress(OSError), socket.create_connection(("localhost", port), 2.0):
                return True
            return False
        with contextlib.suppress(psutil.Error):
            return any(c.raddr and c.raddr.port == port and c.status == "ESTABLISHED" for c in engine.net_connections())
        return False

    def text(self) -> str:
        """All figures, in Prometheus' text format."""
        site = "hub" if self.is_hub else self.kit.name
        lines = [
            *_family(
                "simfl_info", "gauge", "The installed version.", [({"version": version("simfl"), "site": site}, 1)]
            ),
            *_family("simfl_up", "gauge", "Whether the engine's process runs.", [({}, int(self.engine() is not None))]),
            *_family("simfl_ready", "gauge", "As /readyz.", [({}, int(self.is_ready()))]),
            *_family("simfl_refusals_total", "counter", "Studies or answers refused here.", [({}, self._refusals())]),
            *_family("simfl_certificate_expires", "gauge", "When, in seconds since 1970.", [({}, expiry_of(self.kit))]),
        ]
        return "\n".join([*lines, *self._of_run(), ""])

    def _refusals(self) -> int:
        try:
            return len((self.kit / REFUSALS).read_text().splitlines())
        except OSError:
            return 0

    def _of_run(self) -> list[str]:
        """The figures of the training that was at work last."""
        latest = max(self.runs.glob(f"*/{FIGURES}"), key=lambda path: path.stat().st_mtime, default=None)
        if latest is None:
            return []
        try:
            found = msgspec.json.decode(latest.read_bytes(), type=Figures)
        except (OSError, msgspec.DecodeError):
            return []
        run = {"run": latest.parent.name}
        both = [({**run, "direction": "sent", "kind": k}, n) for k, n in found.sent.items()]
        both += [({**run, "direction": "received", "kind": k}, n) for k, n in found.received.items()]
        present = [({**run, "party": party}, int(there)) for party, there in found.present.items()]
        lines = _family("simfl_bytes_total", "counter", "Bytes per kind of message.", both)
        if self.is_hub:
            lines += _family("simfl_trees_total", "counter", "Finished trees.", [(run, found.trees)])
            lines += _family("simfl_party_present", "gauge", "Whether a party takes part now.", present)
        lines += _family("simfl_hop_seconds", "summary", "Seconds from question to answer.", [])
        for kind, n in found.hops.items():
            labels = _labels({**run, "kind": kind})
            lines += [
                f"simfl_hop_seconds_sum{labels} {found.seconds[kind]:.6f}",
                f"simfl_hop_seconds_count{labels} {n}",
            ]
        return lines


def _family(name: str, kind: str, meaning: str, samples: Sequence[tuple[dict[str, str], float]]) -> list[str]:
    """One metric with its samples."""
    head = [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
    return [*head, *(f"{name}{_labels(labels)} {value}" for labels, value in samples)]


def _labels(labels: dict[str, str]) -> str:
    r"""Labels, quoted.

    >>> _labels({"kind": "Grow"})
    '{kind="Grow"}'
    """
    quoted = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in labels.items())
    return f"{{{','.join(quoted)}}}" if labels else ""


@contextlib.contextmanager
def serving(site: Watched, port: int | None, host: str = "localhost") -> Iterator[None]:
    """Answer `/healthz`, `/readyz` and `/metrics` until the end of the block. Without a port, do nothing."""
    if port is None:
        yield
        return
    try:
        server = ThreadingHTTPServer((host, port), _handler(site))
    except OSError as error:
        raise EngineError(f"--metrics-port {port} cannot be used at {host}: {error.strerror}. Give another.") from None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True, name="simfl-metrics").start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _handler(site: Watched) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version, timeout = "simfl", "", 10

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._reply(HTTPStatus.OK, site.text())
            elif self.path in ("/healthz", "/readyz"):
                good = self.path == "/healthz" or site.is_ready()
                self._reply(*((HTTPStatus.OK, "yes\n") if good else (HTTPStatus.SERVICE_UNAVAILABLE, "no\n")))
            else:
                self._reply(HTTPStatus.NOT_FOUND, "Known are /healthz, /readyz and /metrics.\n")

        def _reply(self, status: HTTPStatus, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", _TEXT)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as it is called
            """Probes are no news."""

    return Handler
