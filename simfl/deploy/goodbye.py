"""When the hub goes, whoever is connected to it hears so at once: that it was stopped, or that the connection broke.

FLARE knows both and tells neither. An end of its connections, a cell, that stops says goodbye to its neighbours, and
every cell notices when a connection ends. A goodbye is for neighbours alone, but a hub passes messages on: without what
is done here it would pass on the goodbye of one party to another, which then takes it for the hub's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message

HUB = "server"  # as FLARE calls it
ANSWER = 1.0  # seconds for those who are told


def say_goodbye(cell: Any) -> None:
    """Tell everybody who is connected to this cell that it ends now."""
    core = cell.core_cell
    with contextlib.suppress(Exception):  # whoever is not reached notices that the connection breaks
        core.broadcast_request(
            channel=CellChannel.CELLNET,
            topic=CellChannelTopic.Bye,
            targets=list(core.agents),
            request=Message(),
            timeout=ANSWER,
            optional=True,
        )


def pass_on_no_goodbye(cell: Any) -> None:
    """Have this cell, the hub's, drop a goodbye that is for somebody else: nobody honest sends one."""
    core = cell.core_cell
    own = core.get_fqcn()

    def refuse(message: Any) -> Any:
        said = message.get_header(MessageHeaderKey.CHANNEL), message.get_header(MessageHeaderKey.TOPIC)
        if (
            said == (CellChannel.CELLNET, CellChannelTopic.Bye)
            and message.get_header(MessageHeaderKey.DESTINATION) != own
        ):
            return make_reply(ReturnCode.INVALID_REQUEST)
        return None

    # Beside FLARE's own filter for all messages: one for goodbyes alone would replace it for them.
    core.add_incoming_filter(channel="*", topic="*", cb=refuse)


def is_connected(cell: Any) -> bool:
    """Whether this cell has a connection to the hub, as far as it knows."""
    return HUB in cell.core_cell.agents


def hear_of_hub(cell: Any, gone: Callable[[bool], None]) -> None:
    """Have `gone` called when the hub goes: with True if it said goodbye, with False if the connection broke."""
    core = cell.core_cell
    usual = core.req_reg.find(CellChannel.CELLNET, CellChannelTopic.Bye).cb

    def goodbye(request: Any) -> Any:
        peer = request.get_prop(MessagePropKey.ENDPOINT)
        senders = {request.get_header(key) for key in (MessageHeaderKey.ORIGIN, MessageHeaderKey.FROM_CELL)}
        if peer is None or senders != {peer.name}:
            return make_reply(ReturnCode.INVALID_REQUEST)  # it was passed on
        reply = usual(request)  # first: from now on there is no connection
        if peer.name == HUB:
            gone(True)
        return reply

    def ended(agent: Any) -> None:
        if agent.get_fqcn() == HUB:
            gone(False)

    core.register_request_cb(channel=CellChannel.CELLNET, topic=CellChannelTopic.Bye, cb=goodbye)
    core.set_cell_disconnected_cb(ended)
