"""What an operator reads: one line per event, in plain words, at the terminal and in a log.txt that rotates.

Everything that the logger "simfl" is told is an event. FLARE runs the two ends of a training in processes of its own,
which share one output: there an event is a line with a mark, and every other line is FLARE's. Whoever started the
process reads that output and keeps the two apart: events go to the terminal and to log.txt, the others to flare.txt.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Literal

import msgspec

from simfl.callbacks import logger
from simfl.errors import PrivacyWarning, tell_warnings

LOG, FLARE_LOG = "log.txt", "flare.txt"
LARGEST, KEPT = 5 * 2**20, 5  # bytes of a log, and how many older ones are kept
LONGEST = 3000  # characters of an event: a line that is written at once is never mixed with another process's
_MARK = "\x1esimfl "

Format = Literal["text", "json"]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened: a word for machines, and a sentence for people."""

    time: float
    level: str
    event: str
    text: str


def event_of(record: logging.LogRecord) -> Event:
    """The event that was told to the logger; its word comes as `extra={"event": ...}`."""
    level = record.levelname.lower()
    word = getattr(record, "event", level if record.levelno >= logging.WARNING else "note")
    return Event(time=record.created, level=level, event=word, text=" ".join(record.getMessage().split())[:LONGEST])


def tell(event: str, text: str, *, level: int = logging.INFO) -> None:
    """Tell an event to whoever listens to the logger."""
    logger.log(level, "%s", text, extra={"event": event})


# --- in a process of FLARE's -----------------------------------------------------------------------------------------


class _Marked(logging.Handler):
    """Writes events as marked lines to this process's output."""

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{_MARK}{msgspec.json.encode(event_of(record)).decode()}\n"
        try:
            os.write(1, line.encode())  # at once: several processes share this output
            if record.exc_info:  # a traceback is for FLARE's file: it may hold more than a log should
                self.format(record)
                os.write(1, f"{record.exc_text}\n".encode())
        except OSError:
            self.handleError(record)


def _warned(text: str, kind: type[Warning]) -> None:
    """Every party has approved what its study reveals: that is worth a line, and no alarm."""
    if issubclass(kind, PrivacyWarning):
        tell("privacy", text)
    else:
        logger.warning("%s", text)


def mark_events() -> None:
    """Have this process write the events of the logger "simfl" to its output, for `Reader`."""
    if not any(isinstance(handler, _Marked) for handler in logger.handlers):
        logger.addHandler(_Marked())
        tell_warnings(_warned)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # else FLARE would write each a second time


# --- at whoever started it -------------------------------------------------------------------------------------------


class Log:
    """The log of one site: events as lines of a file and, unless `terminal` is None, of a terminal."""

    def __init__(self, folder: Path, site: str, terminal: IO[str] | None = None, log_format: Format = "text") -> None:
        self.site, self.terminal, self.log_format = site, terminal, log_format
        self._file = _rotating(folder / LOG)

    def __call__(self, event: Event) -> None:
        """Write an event down."""
        line = as_json(event, self.site) if self.log_format == "json" else as_text(event, self.site)
        write_line(self._file, line)
        if self.terminal is not None:
            self.terminal.write(f"{line}\n")
            self.terminal.flush()

    def tell(self, event: str, text: str, level: str = "info") -> None:
        """Write down what this process itself has to say."""
        self(Event(time=time.time(), level=level, event=event, text=text))

    def close(self) -> None:
        """No more events follow."""
        self._file.close()


def as_text(event: Event, site: str) -> str:
    """An event as a line for people.

    >>> as_text(Event(time=0, level="warning", event="lost", text="south is lost"), "hub")[19:]
    '  hub  warning: south is lost'
    """
    when = datetime.fromtimestamp(event.time).strftime("%Y-%m-%d %H:%M:%S")
    level = "" if event.level == "info" else f"{event.level}: "
    return f"{when}  {site}  {level}{event.text}"


def as_json(event: Event, site: str) -> str:
    """An event as a line for machines.

    >>> as_json(Event(time=0, level="info", event="connected", text="connected"), "north")
    '{"time":"1970-01-01T00:00:00Z","level":"info","site":"north","event":"connected","text":"connected"}'
    """
    when = datetime.fromtimestamp(event.time, UTC)
    known = {"time": when, "level": event.level, "site": site, "event": event.event, "text": event.text}
    return msgspec.json.encode(known).decode()


class Reader(threading.Thread):
    """Reads the output of a process of FLARE's, and keeps events and FLARE's own lines apart."""

    def __init__(self, output: IO[bytes], folder: Path, take: Callable[[Event], None]) -> None:
        super().__init__(daemon=True, name="simfl-log")
        self._output, self._take, self._rest = output, take, _rotating(folder / FLARE_LOG)
        self.start()

    def run(self) -> None:
        """Read until the process, and all that it started, have closed their output."""
        with self._output:
            for line in self._output:
                self._sort(line.decode(errors="replace").rstrip("\n"))
        self._rest.close()

    def _sort(self, line: str) -> None:
        rest, mark, event = line.partition(_MARK)
        if rest or not mark:  # a mark amid a line: another process had not finished its own
            write_line(self._rest, rest)
        if mark:
            try:
                self._take(msgspec.json.decode(event, type=Event))
            except msgspec.DecodeError:
                write_line(self._rest, event)


class Listening(logging.Handler):
    """Passes the events of this process's own logger on: what the submitter's side of a training tells."""

    def __init__(self, take: Callable[[Event], None]) -> None:
        super().__init__(logging.INFO)
        self._take = take

    def emit(self, record: logging.LogRecord) -> None:
        self._take(event_of(record))


def keep_flare_apart(folder: Path) -> None:
    """Have what libraries log in this process written to flare.txt in this folder, and not to the terminal."""
    handler = _rotating(folder / FLARE_LOG)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


def _rotating(path: Path) -> RotatingFileHandler:
    handler = _Private(path, maxBytes=LARGEST, backupCount=KEPT, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(message)s"))
    return handler


class _Private(RotatingFileHandler):
    """A rotating file that only its owner can read."""

    def _open(self) -> IO[str]:  # type: ignore[override]
        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=_open_private)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """A full disk must not end a training."""
        sys.stderr.write(f"{self.baseFilename} cannot be written: {sys.exc_info()[1]}\n")


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def write_line(file: RotatingFileHandler, line: str) -> None:
    """Add a line to a rotating file."""
    file.handle(logging.LogRecord("simfl", logging.INFO, "", 0, line, None, None))
