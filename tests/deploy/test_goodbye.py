"""Who may say goodbye for the hub: nobody else. Real ends of FLARE's connections: a hub and two parties."""

import socket
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.stats_pool import StatsPoolManager

from simfl.deploy.goodbye import HUB, hear_of_hub, is_connected, pass_on_no_goodbye, say_goodbye
from tests.deploy.waiting import LONG, within

ANSWER = 1.0


@pytest.fixture
def cells(monkeypatch):
    """The hub, the party north, which listens to `heard`, and the party evil."""
    monkeypatch.setattr(StatsPoolManager, "pools", {})  # FLARE allows a name once in a process
    with socket.socket() as free:
        free.bind(("localhost", 0))
        url = f"tcp://localhost:{free.getsockname()[1]}"
    with ExitStack() as stack:
        made = SimpleNamespace(heard=[])
        for name in (HUB, "north", "evil"):
            monkeypatch.setattr(CoreCell, "ALL_CELLS", {})  # as in processes of their own: over the network
            core = CoreCell(name, url, False, {})
            core.start()
            stack.callback(core.stop)
            setattr(made, name, SimpleNamespace(core_cell=core))
        monkeypatch.setattr(CoreCell, "ALL_CELLS", {})
        hear_of_hub(made.north, lambda goodbye: made.heard.append((goodbye, is_connected(made.north))))
        assert within(LONG, lambda: is_connected(made.north) and is_connected(made.evil))
        yield made


def forge(cells):
    """Evil sends north a goodbye through the hub. Returns what came back."""
    return cells.evil.core_cell.send_request(
        CellChannel.CELLNET, CellChannelTopic.Bye, "north", Message(), timeout=ANSWER
    ).get_header(MessageHeaderKey.RETURN_CODE)


def test_the_hub_says_goodbye_and_the_connection_is_no_longer_taken_for_one(cells):
    pass_on_no_goodbye(cells.server)
    say_goodbye(cells.server)
    assert cells.heard == [(True, False)]


def test_a_party_does_not_believe_a_goodbye_that_the_hub_has_passed_on(cells):
    assert forge(cells) == ReturnCode.INVALID_REQUEST
    assert cells.heard == []
    assert is_connected(cells.north)


@pytest.mark.parametrize("origin", ["evil", HUB])
def test_the_hub_passes_on_no_goodbye_whoever_it_says_to_be_from(cells, origin):
    arrived = []
    cells.north.core_cell.add_incoming_filter("*", "*", lambda message: arrived.append(message.headers))
    cells.evil.core_cell.my_info.fqcn = origin
    pass_on_no_goodbye(cells.server)
    assert forge(cells) == ReturnCode.TIMEOUT
    assert (arrived, cells.heard) == ([], [])
    assert is_connected(cells.north)


def test_other_messages_pass_as_before(cells):
    pass_on_no_goodbye(cells.server)
    cells.north.core_cell.register_request_cb("simfl", "hello", lambda request: Message(payload=b"good day"))
    reply = cells.evil.core_cell.send_request("simfl", "hello", "north", Message(), timeout=LONG)
    assert reply.payload == b"good day"


def test_a_party_that_says_goodbye_to_the_hub_is_heard(cells):
    pass_on_no_goodbye(cells.server)
    say_goodbye(cells.north)
    assert "north" not in cells.server.core_cell.agents
    assert "evil" in cells.server.core_cell.agents
