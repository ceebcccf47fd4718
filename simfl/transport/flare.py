"""NVIDIA FLARE as the transport: the same messages, between machines.

The hub is FLARE's server, every party is a FLARE client (a site), and a training is a FLARE job with two ends: the
classes `HubEnd` and `SiteEnd`. All connections are opened by the sites, with TLS and a certificate at both ends.

How a message travels. A small question and a small answer are plain messages (`plain.py`). Large data travels as the
replies of calls, in pieces, because FLARE formats every argument of a call as text: of a large question the hub sends
only the size and the site fetches the rest, and so does the hub with a large answer. A site that needs longer than
`BEAT` seconds says so and is asked again. In this way a long computation and a dead site can be told apart: a site
without a sign of life for `patience` seconds is lost, and one that said goodbye has left. Every question has a number,
so asking again does no harm.
"""

import hashlib
import logging
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from concurrent.futures import wait as wait_for
from functools import partial
from pathlib import Path
from typing import Any

from simfl.errors import EngineError, PartyLeft, PartyLost, ProtocolError, SimFLError, TrainingStopped
from simfl.messages import Reply, Request
from simfl.transport.base import Traffic, encode_common
from simfl.transport.lifetime import PROGRESS, READY_FILE, exit_with_parent, who_left
from simfl.transport.sweeping import sweep_with_one_thread
from simfl.wire import decode, encode

try:
    from nvflare.collab import CollabCallError, collab
    from nvflare.fuel.f3.streaming.byte_receiver import RxTask

    from simfl.transport.plain import MOST, answer_plainly, plain_sites
except ModuleNotFoundError as error:
    raise EngineError(f'NVIDIA FLARE is not installed ({error.name}). Run: pip install "simfl[flare]"') from None

logger = logging.getLogger("simfl")
PIECE = 8 * 2**20  # the largest single message of anything larger
LARGEST = 4 * 2**30  # no question and no answer may be larger: this bounds what a message can make anybody allocate
BEAT = 2.0  # a site that is still working says so after this many seconds
CALL_TIMEOUT = 8.0  # seconds after which a call without any reply has failed and is repeated
PAUSE = 0.2  # seconds before that
LOOK = 0.5  # seconds after which the hub looks whether a party that has not answered has left
PERSIST = 60.0  # seconds for which a site tries again to fetch a piece of a question: several calls
SLOW = 10.0  # seconds after which a party that has not answered is named to whoever waits

MOST_SAID = 3000  # characters of what a site says went wrong

_BUSY, _DONE, _FAILED, _LARGE = range(4)
_HEAD = struct.Struct("<BQ8sQ")  # kind, size of the body, tag of the run, number of the question
Outbox = dict[tuple[str, int], bytes]  # questions that are under way, by site and number


# --- frames ----------------------------------------------------------------------------------------------------------


def run_tag(run: str) -> bytes:
    """A run's name in eight bytes."""
    return hashlib.blake2b(run.encode(), digest_size=8).digest()


def pack_frame(kind: int, body: bytes, run: bytes, number: int) -> bytes:
    """A site's reply: a head, then the body unless the hub is to fetch it in pieces."""
    return _HEAD.pack(kind, len(body), run, number) + (b"" if kind == _LARGE else body)


def unpack_frame(frame: Any, party: str, run: bytes, number: int) -> tuple[int, int, bytes]:
    """Kind, size and body of a site's reply. Refuses anything but a reply to this question of this run."""
    if not isinstance(frame, bytes) or len(frame) < _HEAD.size:
        raise ProtocolError(f"Party {party!r} sent something that is not a reply of SimFL.")
    kind, size, its_run, its_number = _HEAD.unpack_from(frame)
    body = frame[_HEAD.size :]
    if its_run != run:
        raise ProtocolError(f"Party {party!r} sent a reply that belongs to another run. Restart its process.")
    if its_number != number:
        raise ProtocolError(f"Party {party!r} answered question {its_number} where {number} was asked.")
    if kind > _LARGE or (kind != _LARGE and size != len(body)) or (kind == _LARGE and body):
        raise ProtocolError(f"Party {party!r} sent a reply of {len(body)} bytes that is torn or of no known kind.")
    check_size(size, f"Party {party!r}")
    return kind, size, body


def check_size(size: Any, who: str) -> None:
    """Refuse a message that is too large to hold."""
    if not isinstance(size, int) or not 0 <= size <= LARGEST:
        raise ProtocolError(f"{who} announced a message of {size} bytes; no message may exceed {LARGEST}.")


def said_by(party: str, body: bytes) -> str:
    """What a site says went wrong: with its name, which it does not choose itself, and with nothing but text.

    >>> said_by("south", b"no rows." + bytes([27]) + b"[2J")
    "Party 'south': no rows. [2J"
    >>> said_by("south", b"Party 'south' is well. Party 'north' is not.")
    "Party 'south': Party 'south' is well. Party 'north' is not."
    """
    said = body[: 4 * MOST_SAID].decode(errors="replace")[:MOST_SAID]  # a letter has four bytes at most
    text = "".join(letter if letter.isprintable() else " " for letter in said)
    of_itself = text.startswith(f"Party {party!r}") and text.count("Party ") == 1
    return text if of_itself else f"Party {party!r}: {text}"


def fetch(piece: Callable[[int], Any], size: int, who: str) -> bytes:
    """A large message, piece by piece. `piece(start)` gets the one that begins at this byte."""
    whole = bytearray()
    while len(whole) < size:
        part = piece(len(whole))
        if not isinstance(part, bytes) or len(part) != min(PIECE, size - len(whole)):
            raise ProtocolError(f"{who} sent a piece of a message that is not as long as it should be.")
        whole += part
    return bytes(whole)


# --- the transport and the two ends of a job -------------------------------------------------------------------------


class FlareTransport:
    """Carries messages to the sites of a running job."""

    deployed = True

    def __init__(
        self,
        sites: Mapping[str, Any],
        outbox: Outbox,
        patience: float,
        run: str,
        left: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self.left = left  # who has said goodbye
        self.sites, self.parties = dict(sites), list(sites)
        self.run, self.patience = run_tag(run), patience
        self.traffic = Traffic()
        self._outbox = outbox
        self._number = 0
        self._lock = threading.Lock()
        self._probes: dict[str, Future[bool]] = {}
        self._asked: dict[str, float] = {}  # since when parties have not answered
        self._stopped = ""  # why nobody is asked any more
        self._pool = ThreadPoolExecutor(2 * len(sites) + 1, thread_name_prefix="simfl-ask")

    def ask_all(self, messages: Mapping[str, Request]) -> dict[str, Reply]:
        """Ask several sites at once. Waits for all answers, even when a site is lost or refuses: none works unseen."""
        if self._stopped:
            raise TrainingStopped(self._stopped)
        common = encode_common(messages)
        asked = {p: self._pool.submit(self._carry, p, m, common or encode(m)) for p, m in messages.items()}
        replies, lost, refused = {}, {}, list[SimFLError]()
        for party, future in asked.items():
            try:
                replies[party] = self._reply(party, future)
            except PartyLost as loss:
                lost[party] = loss
            except SimFLError as error:
                refused.append(error)
        if refused:
            raise min(refused, key=lambda error: isinstance(error, TrainingStopped))  # why comes first
        if lost and all(isinstance(loss, PartyLeft) for loss in lost.values()):
            raise PartyLeft(list(lost))
        if lost:
            raise PartyLost(list(lost), f"no sign of life for {self.patience:g} seconds.")
        return replies

    def _reply(self, party: str, answer: Future[Reply]) -> Reply:
        """Wait for an answer, unless the party leaves."""
        while wait_for([answer], LOOK).not_done:
            if party in self.left():
                raise PartyLeft([party])
        return answer.result()

    def returned(self) -> list[str]:
        """Sites that were lost and answer again. Asks in the background, so that the others do not wait.

        One that has left is not asked: it comes back with a new job.
        """
        gone = {*self.parties, *self.left()}
        missing = [site for site in self.sites if site not in gone]
        found = [site for site in missing if self._probes.get(site) and self._probes[site].done()]
        back = [site for site in found if self._probes.pop(site).result()]
        for site in missing:
            if site not in self._probes:
                self._probes[site] = self._pool.submit(self._answers, site)
        return back

    def waiting(self) -> list[str]:
        """Parties that were asked some time ago and have not answered yet."""
        now = time.monotonic()
        return [party for party, since in list(self._asked.items()) if now - since > SLOW]

    def stop(self, why: str) -> None:
        """Ask nobody any more: whoever wants to is told why."""
        self._stopped = why

    def close(self) -> None:
        """Shut the thread pool down."""
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
        begun, self._asked[party] = time.perf_counter(), time.monotonic()
        try:
            answer = self._exchange(party, number, data)
        finally:
            del self._outbox[party, number]
            self._asked.pop(party, None)
        try:
            reply: Reply = decode(answer)  # type: ignore[assignment]
        except ProtocolError as error:
            raise ProtocolError(f"Party {party!r}: {error}") from None
        with self._lock:
            self.traffic.count(party, message, len(data), reply, len(answer), begun)
        return reply

    def _exchange(self, party: str, number: int, data: bytes) -> bytes:
        """Ask until the site answers or says what is wrong."""
        along = data if len(data) <= MOST else b""
        while True:
            asked = time.monotonic()
            frame = self._ask(party, number, len(data), along)
            kind, size, body = unpack_frame(frame, party, self.run, number)
            if kind == _DONE:
                return body
            if kind == _LARGE:
                return fetch(partial(self._more, party, number), size, f"Party {party!r}")
            if kind == _FAILED:
                logger.error("%s", text := said_by(party, body))  # at once: others may be at work for long
                raise SimFLError(text)
            if time.monotonic() - asked < BEAT / 2:
                time.sleep(PAUSE)  # it says too often that it is busy
            along = b""  # the site has the question

    def _ask(self, party: str, number: int, size: int, along: bytes) -> Any:
        return self._insist(party, lambda site: site.ask(self.run, number, size, along))

    def _more(self, party: str, number: int, start: int) -> Any:
        return self._insist(party, lambda site: site.more(number, start))

    def _insist(self, party: str, call: Callable[[Any], Any]) -> Any:
        """What a site replies. It is called again and again, until it has been silent for too long."""
        since = time.monotonic()
        while True:
            if self._stopped:
                raise TrainingStopped(self._stopped)
            try:
                return call(self.sites[party](timeout=CALL_TIMEOUT))
            except CollabCallError as error:
                if party in self.left():
                    raise PartyLeft([party]) from None
                if time.monotonic() - since > self.patience:
                    raise PartyLost([party], str(error)) from None
                time.sleep(PAUSE)


class HubEnd(ABC):
    """The hub's end of a job. Subclasses run the training (`conduct`) and answer the submitter (`progress`)."""

    patience: float = 60.0
    run: str = ""  # the name of the training
    job: str = ""  # FLARE's number of the job

    def __init__(self) -> None:
        self._outbox: Outbox = {}

    @collab.main  # type: ignore[untyped-decorator]
    def main(self) -> None:
        """Run the hub's part of the job. FLARE calls this at the server."""
        self.enter_process()
        context = collab.context
        fl, folder = collab.get_app_prop("__fl_context__"), Path(context.workspace.get_root_dir())
        fl.get_engine().register_app_command(PROGRESS, lambda topic, data, fl_ctx: self.progress(data))
        self.job = fl.get_job_id()
        ready = folder / self.job / READY_FILE
        ready.touch()
        sites = plain_sites(fl.get_engine(), self.job, context)
        left = partial(who_left, folder / self.job)
        transport = FlareTransport(sites, self._outbox, self.patience, self.run, left)
        try:
            self.conduct(transport, folder)
        finally:
            ready.unlink(missing_ok=True)
            transport.close()

    def enter_process(self) -> None:
        """The process is FLARE's, and for this job alone."""
        exit_with_parent()
        sweep_with_one_thread(RxTask)

    @collab.publish  # type: ignore[untyped-decorator]
    def piece(self, number: int, start: int, context: Any) -> bytes:
        """A piece of the question with this number. A site gets only the questions that it was asked."""
        return self._outbox[context.caller, number][start : start + PIECE]

    @abstractmethod
    def conduct(self, transport: FlareTransport, folder: Path) -> None:
        """Run the training. `folder` is the kit's."""

    @abstractmethod
    def progress(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Answer the submitter, in JSON."""


class SiteEnd(ABC):
    """A party's end of a job. Subclasses answer messages (`answer`)."""

    name: str = ""
    job: str = ""  # FLARE's number of the job

    def __init__(self) -> None:
        self._number = 0
        self._run: bytes | None = None  # the run that this job serves
        self._work: Future[bytes] | None = None
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="simfl-party")

    @collab.init  # type: ignore[untyped-decorator]
    def begin(self) -> None:
        """The job starts at this site."""
        self.enter_process()
        self._hub = collab.server
        fl = collab.get_app_prop("__fl_context__")
        self.job = fl.get_job_id()
        self.name = collab.site_name
        self.open(self.name, Path(collab.context.workspace.get_root_dir()))
        answer_plainly(fl.get_engine(), self.job, partial(self.reply, MOST))

    def enter_process(self) -> None:
        """The process is FLARE's, and for this job alone."""
        exit_with_parent()

    @collab.final  # type: ignore[untyped-decorator]
    def finish(self) -> None:
        """The job ends at this site. FLARE would warn of a thread that is left."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    @collab.publish  # type: ignore[untyped-decorator]
    def alive(self) -> bool:
        """A sign of life."""
        return True

    @collab.publish  # type: ignore[untyped-decorator]
    def ask(self, run: bytes, number: int, size: int, data: bytes, context: Any) -> bytes:
        """Answer a question of the hub that comes by a call."""
        if context.caller != "server":
            return pack_frame(_FAILED, b"only the hub may ask.", self._run or run, number)
        return self.reply(PIECE, run, number, size, data)

    def reply(self, most: int, run: bytes, number: int, size: int, data: bytes) -> bytes:
        """Answer a question of the hub, or say that the answer takes longer. Asked again, the answer is the same.

        An answer of more than `most` bytes is fetched in pieces.
        """

        def frame(kind: int, body: bytes) -> bytes:
            return pack_frame(kind, body, self._run or run, number)

        with self._lock:
            self._run = self._run or run
            if run != self._run:
                return frame(_FAILED, b"this job serves another run. Restart the training.")
            if number > self._number:
                self._work = self._pool.submit(self._answer, number, size, data)
                self._number = number
            work = self._work
        if number != self._number or work is None:
            return frame(_FAILED, f"question {number} came after {self._number}. Resume the training.".encode())
        try:
            answer = work.result(BEAT)
        except NotYet:
            return frame(_BUSY, b"")
        except SimFLError as error:
            logger.error("A question of the hub was refused: %s", error)
            return frame(_FAILED, error.public.encode())
        except Exception:  # whatever it is, the hub must hear of it, but not what a library said of this party's rows
            logger.exception("A question of the hub could not be answered.")
            return frame(_FAILED, SimFLError().public.encode())
        return frame(_DONE if len(answer) <= most else _LARGE, answer)

    @collab.publish  # type: ignore[untyped-decorator]
    def more(self, number: int, start: int, context: Any) -> bytes:
        """A piece of a large answer."""
        work = self._work
        if context.caller != "server" or number != self._number or work is None or not work.done() or work.exception():
            return b""  # what went wrong is said by `ask`, without a library's words
        return work.result()[start : start + PIECE]

    def _answer(self, number: int, size: int, data: bytes) -> bytes:
        check_size(size, "The hub")
        if size != len(data):
            data = fetch(partial(self._piece, number), size, "The hub")
        question: Request = decode(data)  # type: ignore[assignment]
        reply = self.answer(question)
        answer = encode(reply)
        self.answered(question, size, reply, len(answer))
        return answer

    def _piece(self, number: int, start: int) -> Any:
        """A piece of a question. It is asked for again where a connection broke, unless a newer question came."""
        since = time.monotonic()
        while True:
            try:
                return self._hub(timeout=CALL_TIMEOUT).piece(number, start)
            except CollabCallError:
                if number < self._number or time.monotonic() - since > PERSIST:
                    raise
                time.sleep(PAUSE)

    @abstractmethod
    def open(self, name: str, folder: Path) -> None:
        """The job starts. `name` is the one in the certificate, `folder` is the kit's."""

    @abstractmethod
    def answer(self, message: Request) -> Reply:
        """Answer a message."""

    @abstractmethod
    def answered(self, question: Request, bytes_in: int, answer: Reply, bytes_out: int) -> None:
        """Called after each answer, before it leaves."""
