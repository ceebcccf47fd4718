"""A small server that shows a run while it is going on: on this machine only, and only the page and the record."""

import http.server
from pathlib import Path
from typing import Final

from simfl.errors import FileError
from simfl.report.page import render
from simfl.report.record import FILE, RunRecord

HOSTS: Final = ("localhost", "127.0.0.1")
SECONDS_BETWEEN = 2  # two looks for a record that is gone


def serve(run: Path, port: int) -> http.server.ThreadingHTTPServer:
    """A server of a run's page, ready for `serve_forever`; it waits for a run that has not begun. Port 0: any free."""
    where = run if run.suffix == ".json" and not run.is_dir() else run / FILE
    if where.exists():
        RunRecord.load(where)  # better now than in the browser

    class Pages(_Pages):
        file = where

    try:
        return http.server.ThreadingHTTPServer(("127.0.0.1", port), Pages)
    except OSError as error:
        raise FileError(f"Port {port} cannot be used: {error.strerror}. Give another one with --port.") from None


class _Pages(http.server.BaseHTTPRequestHandler):
    file: Path

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rsplit(":", 1)[0]
        if host not in HOSTS:  # another site's name that was made to point here
            self._send(403, "text/plain", b"Ask for localhost.")
            return
        try:
            status, kind, body = self._found()
        except OSError as error:  # the run was moved or removed; it may come back
            gone = f"There is no run at {self.file} now ({error.strerror or error})."
            status, kind, body = 503, "text/plain", f"{gone} Looking again every {SECONDS_BETWEEN} seconds.".encode()
        self._send(status, kind, body)

    def _found(self) -> tuple[int, str, bytes]:
        """Status, type and content of what was asked for."""
        if self.path == "/":
            version = self._version()  # before the record is read: a change in between is not missed
            return 200, "text/html", render(RunRecord.load(self.file), version=version).encode()
        if self.path == "/version":
            return 200, "text/plain", self._version().encode()
        if self.path == f"/{FILE}":
            return 200, "application/json", self.file.read_bytes()
        return 404, "text/plain", b"There is nothing here."

    def _version(self) -> str:
        return str(self.file.stat().st_mtime_ns)

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if status == 503:
            self.send_header("Refresh", str(SECONDS_BETWEEN))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silence: the terminal shows where to look, and that is enough."""
