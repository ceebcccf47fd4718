"""A small server that shows a run while it goes on: on localhost only, and nothing but the page and the record."""

from __future__ import annotations

import http.server
from pathlib import Path
from typing import Final

from simfl.errors import FileError
from simfl.report import page as report
from simfl.report.record import FILE, RunRecord

HOSTS: Final = ("localhost", "127.0.0.1")


def serve(folder: Path, port: int) -> http.server.ThreadingHTTPServer:
    """A server of a run's page, ready for `serve_forever`. Port 0: any free one."""
    RunRecord.load(folder)  # better now than in the browser

    class Pages(_Pages):
        run = folder

    try:
        return http.server.ThreadingHTTPServer(("127.0.0.1", port), Pages)
    except OSError as error:
        raise FileError(f"Port {port} cannot be used: {error.strerror}. Give another one with --port.") from None


class _Pages(http.server.BaseHTTPRequestHandler):
    run: Path

    def do_GET(self) -> None:
        """Answer a browser."""
        host = self.headers.get("Host", "").rsplit(":", 1)[0]
        if host not in HOSTS:  # another site's name that was made to point here
            self._send(403, "text/plain", b"Ask for localhost.")
        elif self.path == "/":
            self._send(200, "text/html", report.render(RunRecord.load(self.run), live=True).encode())
        elif self.path == "/version":
            self._send(200, "text/plain", str((self.run / FILE).stat().st_mtime_ns).encode())
        elif self.path == f"/{FILE}":
            self._send(200, "application/json", (self.run / FILE).read_bytes())
        else:
            self._send(404, "text/plain", b"There is nothing here.")

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silence: the terminal shows where to look, and that is enough."""
