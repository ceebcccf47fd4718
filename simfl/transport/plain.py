"""A question and its answer as two plain messages of FLARE's: one there, one back.

A call of FLARE's is two streams. Each has a message and an acknowledgement, and threads that write, read, wait and
repeat: that was most of what FLARE cost per tree. A plain message takes the same connections, with the same TLS, and
the hub's own process checks its sender in the same way. It is not repeated when it is lost: `flare.py` asks again, and
then by a call, which also gets through where a link needs longer for a message than a question may take.
"""

import struct
from collections.abc import Callable
from typing import Any

from nvflare.collab import CollabCallError
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message

MOST = 2**20  # bytes of a question or an answer: as large as a piece of FLARE's own streams
CHANNEL, TOPIC = "simfl", "ask"
_HEAD = struct.Struct("<8sQQ")  # tag of the run, number of the question, its size
_BYTES = (bytes, bytearray, memoryview)

Answer = Callable[[bytes, int, int, bytes], bytes]  # run, number, size and data of a question -> frame


class PlainSite:
    """A site as the hub sees it: it is asked by a plain message, and called for all else."""

    def __init__(self, cell: Any, address: str, proxy: Any, aborted: Callable[[], bool]) -> None:
        self.cell, self.address, self.proxy = cell, address, proxy
        self.aborted = aborted  # whether FLARE has ended the job: a call then raises what FLARE waits for
        self.missed = 0  # the question that a plain message did not bring an answer to

    def __call__(self, timeout: float) -> Any:
        """What can be asked of the site, within these seconds."""
        return _Within(self, timeout)

    def ask(self, timeout: float, run: bytes, number: int, size: int, data: bytes) -> Any:
        """The site's frame in reply to a question."""
        if number == self.missed or self.aborted():
            return self.proxy(timeout=timeout).ask(run, number, size, data)
        message = Message(payload=_HEAD.pack(run, number, size) + data)
        reply = self.cell.send_request(CHANNEL, TOPIC, self.address, message, timeout=timeout, optional=True)
        code = reply.get_header(MessageHeaderKey.RETURN_CODE)
        if code != ReturnCode.OK:
            self.missed = number
            raise CollabCallError(self.address, TOPIC, code)
        frame = reply.payload  # what is not of bytes is refused as any other reply that is none
        return bytes(frame) if isinstance(frame, _BYTES) else frame


class _Within:
    """A site and the seconds that it has to answer."""

    def __init__(self, site: PlainSite, timeout: float) -> None:
        self._site, self._timeout = site, timeout

    def ask(self, run: bytes, number: int, size: int, data: bytes) -> Any:
        return self._site.ask(self._timeout, run, number, size, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._site.proxy(timeout=self._timeout), name)


def plain_sites(engine: Any, job: str, context: Any) -> dict[str, Any]:
    """The sites of a job by name, at the hub. One that FLARE does not list any more keeps its proxy."""
    cell = engine.get_cell().core_cell
    listed = {client.name: FQCN.join([client.get_fqcn(), job]) for client in engine.get_clients()}
    sites: dict[str, Any] = {site.name: site for site in context.clients}
    return sites | {n: PlainSite(cell, listed[n], sites[n], context.is_aborted) for n in sites if n in listed}


def answer_plainly(engine: Any, job: str, answer: Answer) -> None:
    """Have a site answer plain questions of the hub's end of this job, and of nobody else."""
    hub = FQCN.join([FQCN.ROOT_SERVER, job])

    def reply(message: Any) -> Any:
        question = message.payload
        if message.get_header(MessageHeaderKey.ORIGIN) != hub:
            return make_reply(ReturnCode.INVALID_REQUEST, "Only the hub may ask.")
        if not isinstance(question, _BYTES) or len(question) < _HEAD.size:
            return make_reply(ReturnCode.INVALID_REQUEST, "This is not a question of SimFL.")
        run, number, size = _HEAD.unpack_from(question)
        return make_reply(ReturnCode.OK, body=answer(run, number, size, bytes(memoryview(question)[_HEAD.size :])))

    engine.get_cell().core_cell.register_request_cb(CHANNEL, TOPIC, reply)
