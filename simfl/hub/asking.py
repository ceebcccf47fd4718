"""How the hub asks: every reply is of the expected kind, or it is refused with its sender's name."""

import math
from collections.abc import Mapping
from typing import Any

from simfl import messages as msg
from simfl import wire
from simfl.errors import ProtocolError
from simfl.privacy.exact import WIDEST, wide_total
from simfl.transport.base import Transport


def ask_all(transport: Transport, question: msg.Request, kind: type[wire.R]) -> dict[str, wire.R]:
    """Ask all parties the same."""
    return ask_each(transport, dict.fromkeys(transport.parties, question), kind)


def ask_each(transport: Transport, questions: Mapping[str, msg.Request], kind: type[wire.R]) -> dict[str, wire.R]:
    """Ask each party its own question; the replies are in the order of the questions, whenever they came."""
    replies = transport.ask_all(questions)
    return {party: wire.expect(kind, replies[party], party) for party in questions}


class sent_by:  # noqa: N801 - read as `with sent_by(party)`, some sixty times per tree: a generator would cost more
    """Name the party whose message is refused."""

    def __init__(self, party: str) -> None:
        self.party = party

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ProtocolError):
            fact = str(error).removesuffix(".")
            raise ProtocolError(f"Party {self.party!r} sent an invalid message: {fact}.") from None


def refuse_unless(sound: bool, fact: str) -> None:
    """Refuse a message with this fact about it."""
    if not sound:
        raise ProtocolError(f"{fact}.")


def check_round(reply: Any, number: int) -> None:
    """Refuse a reply to another round's question."""
    refuse_unless(reply.round == number, f"a reply for round {reply.round} where {number} belongs")


def small_sums(arrays: Mapping[str, msg.SmallSums], n: int) -> dict[str, list[float]]:
    """The sums of every party, n numbers each."""
    found = {}
    for party, array in arrays.items():
        with sent_by(party):
            found[party] = wire.unpack(array, "f8", (n,)).tolist()
            refuse_unless(max(found[party]) < WIDEST and min(found[party]) > -WIDEST, "sums beyond all bounds")
    return found


def small_total(arrays: Mapping[str, msg.SmallSums], n: int, *, masked: bool) -> list[float]:
    """Their sum over the parties, correctly rounded. Masked, it is all that can be known."""
    if not masked:
        return [math.fsum(column) for column in zip(*small_sums(arrays, n).values(), strict=True)]
    found = []
    for party, array in arrays.items():
        with sent_by(party):
            found.append(wire.unpack_wide(array, n))
    return wide_total(found)
