"""What the hub's lasting process tells of the parties, as FLARE lists them."""

import json
import logging
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.event_type import EventType

from simfl.callbacks import logger
from simfl.deploy.answers import CONNECTIONS
from simfl.deploy.connections import HubConnections
from simfl.deploy.logs import Listening
from simfl.transport.lifetime import who_left


def client(name, heard):
    return SimpleNamespace(name=name, last_connect_time=heard, token=f"{name} {heard}", get_site_config=dict)


@pytest.fixture
def hub(tmp_path):
    """A hub with two parties, which runs a job; what it tells is in `told`."""
    made = HubConnections()
    made.kit, made.told = tmp_path, []
    now = time.time()
    made.clients = [client("north", now), client("south", now)]
    made.engine = SimpleNamespace(get_clients=lambda: list(made.clients), run_processes={"job": {}})
    (tmp_path / "job").mkdir()
    handler = Listening(lambda event: made.told.append(event.text))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    made.look()
    yield made
    logger.removeHandler(handler)


def quits(hub, name):
    hub.clients = [one for one in hub.clients if one.name != name]
    hub.handle_event(EventType.CLIENT_QUIT, None)


def kept(hub):
    return {party["name"]: party for party in json.loads((hub.kit / CONNECTIONS).read_bytes())}


def test_a_party_that_says_goodbye_has_left_and_its_training_learns_it(hub):
    quits(hub, "north")
    hub.look()
    assert hub.told[-1] == "north has left (stopped by its operator)"
    assert (kept(hub)["north"]["connected"], kept(hub)["north"]["left"]) == (False, True)
    assert kept(hub)["south"]["connected"]
    assert who_left(hub.kit / "job") == {"north"}


def test_it_is_back_when_it_is_listed_again(hub):
    quits(hub, "north")
    hub.clients.append(client("north", time.time()))
    hub.look()
    assert hub.told[-1].startswith("north is back")
    assert (kept(hub)["north"]["connected"], kept(hub)["north"]["left"]) == (True, False)


def test_a_party_that_falls_silent_is_lost_and_has_not_left(hub):
    hub.clients = [client("north", time.time() - 100), client("south", time.time())]
    hub.look()
    assert hub.told[-1].startswith("north is lost: no sign of life")
    assert not kept(hub)["north"]["left"]
    assert who_left(hub.kit / "job") == set()
