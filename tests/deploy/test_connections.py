"""What the lasting processes tell: the hub's of the parties, as FLARE lists them, and a party's of the hub."""

import json
import logging
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.event_type import EventType

from simfl.callbacks import logger
from simfl.deploy.answers import CONNECTIONS, STALE
from simfl.deploy.connections import HubConnections, PartyConnections
from simfl.deploy.logs import Listening
from simfl.errors import FileError
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


@pytest.fixture
def party():
    """A party that is connected to its hub and runs a job; what it tells is in `told`."""
    made = PartyConnections()
    made.told, made.ended, made.jobs = [], [], ["job"]
    made.agents = {"server": None}
    made.hub, made._heard = "the hub at h:1", time.monotonic()
    made._site = SimpleNamespace(cell=SimpleNamespace(core_cell=SimpleNamespace(agents=made.agents)))
    made.engine = SimpleNamespace(
        get_all_job_ids=lambda: list(made.jobs), abort_app=lambda job, heartbeat_cleanup: made.ended.append(job)
    )
    handler = Listening(lambda event: made.told.append(event.text))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield made
    logger.removeHandler(handler)


def beat(party, took=0.0):
    """FLARE asks the hub for a sign of life, and says afterwards that it has."""
    party.handle_event(EventType.BEFORE_CLIENT_HEARTBEAT, None)
    party._asked -= took
    party.handle_event(EventType.AFTER_CLIENT_HEARTBEAT, None)


def test_a_party_tells_at_once_that_the_hub_was_stopped_and_ends_what_belonged_to_it(party):
    party.agents.clear()
    party.hub_gone(True)
    assert party.told == ["the hub at h:1 was stopped by its operator; waiting for it"]
    party.look()
    party.look()
    assert party.ended == ["job"]
    assert len(party.told) == 1


def test_a_connection_that_broke_ends_nothing(party):
    party.hub_gone(False)
    party.look()
    assert party.told == ["the hub at h:1 is lost: the connection broke; waiting for it"]
    assert party.ended == []


def test_the_hub_is_back_when_it_has_answered_over_a_connection(party):
    party.agents.clear()
    party.hub_gone(True)
    beat(party)  # FLARE says the same of a question that found no connection
    party.look()
    assert len(party.told) == 1
    party.agents["server"] = None
    beat(party)
    party.look()
    assert party.told[1:] == ["connected to the hub at h:1 again"]


def test_a_question_that_nobody_answered_is_no_sign_of_life(party):
    party._heard -= 2 * STALE
    beat(party, took=STALE + 5)
    party.look()
    assert "the hub at h:1 has not answered since" in party.told[0]


def test_a_clock_that_is_set_is_no_silence_and_no_sign_of_life(party, monkeypatch):
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600.0)
    party.look()
    assert party.told == []
    party._heard -= 2 * STALE
    monkeypatch.setattr(time, "time", lambda: now - 3600.0)
    party.look()
    assert len(party.told) == 1
    beat(party)
    party.look()
    assert party.told[1:] == ["connected to the hub at h:1 again"]


def test_a_job_that_cannot_be_ended_keeps_no_other_alive_and_is_tried_again(party):
    ended, stuck = party.engine.abort_app, ["stuck"]
    party.jobs = ["stuck", "job"]

    def abort(job, heartbeat_cleanup):
        if job in stuck:
            raise ConnectionError("no answer")
        ended(job, heartbeat_cleanup)

    party.engine.abort_app = abort
    party.hub_gone(True)
    party.look_once(party.look)
    party.look_once(party.look)
    assert party.ended == ["job", "job"]
    assert party.told[1:] == ["cannot look who is connected (OSError: cannot end stuck: no answer); trying on"]
    stuck.clear()
    party.look_once(party.look)
    party.look_once(party.look)
    assert party.ended[2:] == ["stuck", "job"]


def test_a_hub_whose_disk_is_full_says_so_once_and_looks_on(hub, monkeypatch):
    def full(*args):
        raise FileError("connections.json cannot be written: No space left on device.")

    monkeypatch.setattr("simfl.deploy.connections.write_atomically", full)
    before = len(hub.told)
    for age in (100, 0, 100):
        hub.clients = [client("north", time.time() - age), client("south", time.time())]
        hub.look_once(hub.look)
    said = [text for text in hub.told[before:] if "No space left" in text]
    assert said == [
        "cannot look who is connected (FileError: connections.json cannot be written: No space left on device.); "
        "trying on"
    ]
    assert [text.split(":")[0].split(" (")[0] for text in hub.told[before:] if text.startswith("north")] == [
        "north is lost",
        "north is back",
        "north is lost",
    ]
