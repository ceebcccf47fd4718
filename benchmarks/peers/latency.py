"""Wall time against the latency of the links, from measured work, messages in sequence and bytes.

seconds(latency) = work of the slowest party of every hop + messages in sequence * latency + bytes / bandwidth

All bytes pass the hub's link, so they share its bandwidth. This leaves out what overlaps and what a real network adds:
it says where one way overtakes another, not what a run will take.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.pages import two_digits

BANDWIDTH = 100e6 / 8  # bytes per second at the hub: 100 Mbit/s
LOWEST, HIGHEST = 0.001, 0.2  # seconds, one way


@dataclass(frozen=True)
class Line:
    """Seconds as a straight line over the latency."""

    at_zero: float
    messages: float

    @classmethod
    def of(cls, work: float, messages: float, n_bytes: float, bandwidth: float = BANDWIDTH) -> Line:
        """From what was measured."""
        return cls(work + n_bytes / bandwidth, messages)

    def seconds(self, latency: float) -> float:
        """The wall time at a latency, in seconds, one way.

        >>> Line.of(work=2.0, messages=100, n_bytes=0).seconds(0.05)
        7.0
        """
        return self.at_zero + self.messages * latency


def crossing(ours: Line, theirs: Line) -> float | None:
    """The latency at which two lines meet, if between 1 and 200 ms.

    >>> crossing(Line(10.0, 100), Line(1.0, 1000))
    0.01
    >>> crossing(Line(1.0, 100), Line(2.0, 1000)) is None
    True
    """
    if ours.messages == theirs.messages:
        return None
    at = (ours.at_zero - theirs.at_zero) / (theirs.messages - ours.messages)
    return at if LOWEST <= at <= HIGHEST else None


def told(ours: Line, theirs: Line) -> str:
    """Up to which latency ours is faster, in milliseconds; from which on, where that is the other way round.

    >>> told(Line(10.0, 100), Line(1.0, 1000))
    'from 10'
    >>> told(Line(1.0, 100), Line(2.0, 1000)), told(Line(2.0, 1000), Line(1.0, 100))
    ('200', '0')
    >>> told(Line(1.0, 1000), Line(164.0, 10))
    '160'
    """
    at = crossing(ours, theirs)
    if at is None:
        return f"{1000 * HIGHEST:.0f}" if ours.seconds(LOWEST) < theirs.seconds(LOWEST) else "0"
    side = "from " if ours.seconds(HIGHEST) < theirs.seconds(HIGHEST) else ""
    return f"{side}{two_digits(1000 * at)}"
