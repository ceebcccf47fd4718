"""How the hub asks: every reply is of the expected kind, or it is refused with its sender's name."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from simfl import messages as msg
from simfl import wire
from simfl.errors import ProtocolError
from simfl.transport.base import Transport


def ask_all(transport: Transport, question: msg.Request, kind: type[wire.R]) -> dict[str, wire.R]:
    """Ask all parties the same."""
    return ask_each(transport, dict.fromkeys(transport.parties, question), kind)


def ask_each(transport: Transport, questions: Mapping[str, msg.Request], kind: type[wire.R]) -> dict[str, wire.R]:
    """Ask each party its own question; the replies are in the order of the questions, whenever they came."""
    replies = transport.ask_all(questions)
    return {party: wire.expect(kind, replies[party], party) for party in questions}


@contextmanager
def sent_by(party: str) -> Iterator[None]:
    """Name the party whose message is refused."""
    try:
        yield
    except ProtocolError as error:
        raise ProtocolError(f"Party {party!r} sent an invalid message: {str(error).removesuffix('.')}.") from None


def refuse_unless(sound: bool, fact: str) -> None:
    """Refuse a message with this fact about it."""
    if not sound:
        raise ProtocolError(f"{fact}.")


def check_round(reply: Any, number: int) -> None:
    """Refuse a reply to another round's question."""
    refuse_unless(reply.round == number, f"a reply for round {reply.round} where {number} belongs")


def wide_sums(arrays: Mapping[str, msg.WideSums | None], n: int) -> list[list[int]]:
    """The sums of every party that sent any, n wide numbers each."""
    found = []
    for party, array in arrays.items():
        if array is not None:
            with sent_by(party):
                found.append(wire.unpack_wide(array, n))
    return found
