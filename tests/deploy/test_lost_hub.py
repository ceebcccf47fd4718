"""A submitter that loses its hub, or only the line to it: with real endpoints, FLARE's network left out."""

from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from nvflare.fuel.flare_api.api_spec import NoConnection
from nvflare.fuel.hci.client.api_status import APIStatus

from simfl.deploy import run as runs
from simfl.deploy import status, submitter
from simfl.deploy.submitter import HubLost
from simfl.errors import EngineError
from simfl.report.record import RunRecord
from tests.deploy.one_process import open_federation
from tests.deploy.studies import in_one_process


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """A study for three parties, and the federation that trains it in this process."""
    made = open_federation(tmp_path, monkeypatch, 12, 120)
    yield made
    for job in made.jobs:
        job.end()


class Line:
    """The submitter's line to the hub, which breaks in given rounds. What happens at the hub then is up to a test."""

    def __init__(self, federation, monkeypatch, rounds, at_hub=lambda: None):
        self.rounds, self.at_hub, self.lines = list(rounds), at_hub, []
        monkeypatch.setattr(federation, "close", lambda: None)  # the end of a session ends no job
        for module in (runs, submitter):
            monkeypatch.setattr(module, "try_way", lambda kit: None)
        monkeypatch.setattr("simfl.deploy.goodbye.hear_of_hub", lambda cell, gone: self.lines.append(gone))

    def tree(self, record, connected):
        if self.rounds and record.round >= self.rounds[0]:
            self.rounds.pop(0)
            self.at_hub()
            self.lines[-1](False)


def test_a_line_that_breaks_leaves_the_job_alone_and_it_is_followed_on(federation, tmp_path, monkeypatch):
    said, seen = [], []
    line = Line(federation, monkeypatch, [3, 3, 3, 3, 3, 7])

    def tree(record, connected):
        seen.append(record.round)
        line.tree(record, connected)

    folder = runs.run_study(federation.study, out=tmp_path / "run", listener=runs.Listener(said.append, tree))
    assert len(federation.jobs) == 1
    assert said.count("the hub still runs this training: following it") == 6
    assert sorted(set(seen)) == list(range(12))
    assert (folder / "model.ubj").read_bytes() == in_one_process(tmp_path / "study.toml")


def test_a_resume_follows_the_job_that_a_submitter_left_behind(federation, tmp_path, monkeypatch):
    line = Line(federation, monkeypatch, [4])
    monkeypatch.setattr(runs, "WAIT_FOR_HUB", 0.0)
    with pytest.raises(EngineError, match="did not come back"):
        runs.run_study(federation.study, out=tmp_path / "run", listener=runs.Listener(tree=line.tree))
    assert federation.jobs[0].thread.is_alive()
    folder = runs.run_study(federation.study, out=tmp_path / "run", resume=True)
    assert len(federation.jobs) == 1
    assert [record.round for record in RunRecord.load(folder).history] == list(range(12))


def test_a_hub_that_dies_with_its_job_gets_a_new_one(federation, tmp_path, monkeypatch):
    line = Line(federation, monkeypatch, [2, 5, 8], lambda: federation.jobs[-1].end())
    folder = runs.run_study(federation.study, out=tmp_path / "run", listener=runs.Listener(tree=line.tree))
    assert len(federation.jobs) == 4
    assert (folder / "model.ubj").read_bytes() == in_one_process(tmp_path / "study.toml")


def test_a_hub_that_dies_again_and_again_without_a_new_tree_is_given_up(federation, tmp_path, monkeypatch):
    line = Line(federation, monkeypatch, [])

    def die(job, topic, question):
        federation.jobs[-1].end()
        line.lines[-1](False)
        raise RuntimeError("the job is not running")

    monkeypatch.setattr(federation, "do_app_command", die)
    broke = (
        r"lost 4 times in a row \(the connection to the hub broke\)\. All finished trees are kept: look at .*--resume"
    )
    with pytest.raises(EngineError, match=broke):
        runs.run_study(federation.study, out=tmp_path / "run")
    assert len(federation.jobs) == 4


def no_connection(*args):
    raise NoConnection("cannot connect to server: ERROR_SERVER_CONNECTION")


@pytest.mark.parametrize(
    ("command", "cut"),
    [
        ("get_connected_client_list", no_connection),
        ("do_command", lambda *args: {"status": APIStatus.ERROR_INACTIVE_SESSION, "details": "try later"}),
    ],
)
def test_a_line_that_was_cut_and_is_whole_again_ends_no_training(federation, tmp_path, monkeypatch, command, cut):
    """Nobody noticed its end: FLARE only waited in vain, and then the hub can be reached as before."""
    Line(federation, monkeypatch, [])
    usual, said = getattr(federation, command), []

    def once(*args):
        monkeypatch.setattr(federation, command, usual)
        return cut(*args)

    monkeypatch.setattr(federation, command, once)
    runs.run_study(federation.study, out=tmp_path / "run", listener=runs.Listener(said.append))
    waits = "the hub did not answer in time, or has forgotten this session; waiting for it, for at most 10 min"
    assert waits in said
    assert "connected to the hub again" in said


def test_status_and_stop_say_in_a_sentence_that_the_hub_went_and_what_to_do(federation, monkeypatch):
    line = Line(federation, monkeypatch, [])

    def goes(command):
        line.lines[-1](True)
        raise NoConnection

    monkeypatch.setattr(federation, "do_command", goes)
    monkeypatch.setattr(status, "try_way", lambda kit: None)
    kit = federation.kits / "submitter"
    monkeypatch.setattr(status, "hub_of", lambda kit: ("localhost", 1))
    said = r"^The hub was stopped by its operator\. Start it \(simfl hub start\), then ask again\.$"
    with pytest.raises(EngineError, match=said):
        status.stop_training(kit, "run")
    with pytest.raises(EngineError, match=said):
        status.look(status.Place("submitter", "submitter", kit, kit / "runs"))


def waiting(check=lambda: None):
    """A training that has lost its hub, and what it says."""
    said = []
    listener = runs.Listener(tell=said.append)
    return SimpleNamespace(listener=listener, check=check, again="simfl train study.toml --resume"), said


def test_a_hub_that_does_not_come_back_is_given_up_with_the_command_that_continues(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "WAIT_FOR_HUB", 0.0)
    lost, said = waiting()
    with pytest.raises(
        EngineError, match=r"did not come back .*\(the connection to the hub broke\).*train study.toml --r"
    ):
        runs._reconnect(tmp_path, lost, HubLost("the connection to the hub broke"))
    assert "the connection to the hub broke; waiting for it" in said[0]


def test_nobody_waits_for_a_hub_of_this_machine_that_has_ended(tmp_path):
    def ended():
        raise EngineError("The process of hub has ended.")

    with pytest.raises(EngineError, match="has ended"):
        runs._reconnect(tmp_path, waiting(ended)[0], HubLost("the connection to the hub broke"))
