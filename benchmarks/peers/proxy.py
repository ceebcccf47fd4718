"""A relay on this machine that counts the bytes and the gRPC calls that pass it. Standard library only.

gRPC speaks HTTP/2: after a fixed opening the client sends frames, and every call begins with one HEADERS frame.
"""

import asyncio
import threading

_OPENING = 24  # "PRI * HTTP/2.0..." in bytes
_HEADERS = 1


class CallCounter:
    """Counts the calls in what a client sends, in whatever pieces it arrives.

    >>> counter = CallCounter()
    >>> frame = (2).to_bytes(3, "big") + bytes([1, 4]) + (1).to_bytes(4, "big") + b"xx"
    >>> for byte in bytes(24) + frame + frame:
    ...     counter.feed(bytes([byte]))
    >>> counter.calls
    2
    """

    def __init__(self):
        self.calls = 0
        self._skip = _OPENING
        self._head = b""

    def feed(self, data):
        """Take the next bytes."""
        at = 0
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
                continue
            step = min(9 - len(self._head), len(data) - at)
            self._head += data[at : at + step]
            at += step
            if len(self._head) == 9:
                self._skip = int.from_bytes(self._head[:3], "big")
                self.calls += self._head[3] == _HEADERS
                self._head = b""


class Proxy:
    """Relays connections from `port` to a target port in a thread of its own."""

    def __init__(self, target):
        self.target, self.up, self.down = target, 0, 0
        self.counters = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()
        self._ready.wait()

    def _serve(self):
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._relay, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()

    async def _relay(self, reader, writer):
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self.target)
        counter = CallCounter()
        self.counters.append(counter)
        await asyncio.gather(self._copy(reader, their_writer, counter), self._copy(their_reader, writer, None))

    async def _copy(self, reader, writer, counter):
        try:
            while data := await reader.read(1 << 18):
                if counter:
                    counter.feed(data)
                    self.up += len(data)
                else:
                    self.down += len(data)
                writer.write(data)
                await writer.drain()
        except (ConnectionError, OSError):
            pass
        finally:
            writer.close()

    @property
    def calls(self):
        """The most calls of one client: each waits for the one before."""
        return max((counter.calls for counter in self.counters), default=0)
