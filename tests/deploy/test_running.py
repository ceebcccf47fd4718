"""As operators run it: `simfl hub start`, `simfl party start` and `simfl train` in processes of their own.

One federation, in the order of a day: start, train, look, stop, Ctrl-C, kill, a hub that goes and comes back. A step
needs those before it, so the day is one test.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

pytest.importorskip("nvflare")

from simfl.deploy.kits import provision
from simfl.deploy.processes import free_port
from simfl.deploy.status import Place, look
from simfl.deploy.study import digest_of, read_study
from tests.data.tables import write_two_tables
from tests.deploy.waiting import within

PARTIES = ("north", "south")
STUDY = """name = "ward"
label = "y"
patience = 20
[engine]
port = {port}
[columns]
x0 = "number"
x1 = "number"
[parameters]
n_trees = 12
random_state = 0
rematch = 0
validation_fraction = 0.2
[[party]]
name = "north"
[[party]]
name = "south"
"""


class Site:
    """A command in a process of its own; its lines are read from a file."""

    def __init__(self, folder, name, *words):
        self.file = folder / f"{name}.out"
        with self.file.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "simfl", *map(str, words)], cwd=folder, stdout=out, stderr=subprocess.STDOUT
            )

    @property
    def said(self):
        return self.file.read_text()

    def says(self, pattern, seconds=300):
        """Whether it says so in time."""
        within(seconds, lambda: re.search(pattern, self.said) or self.process.poll() is not None)
        assert re.search(pattern, self.said), self.said
        return True

    def family(self):
        process = psutil.Process(self.process.pid)
        return [process, *process.children(recursive=True)]


def end(site, number):
    """Send a signal; the exit status, and which of its processes are left after it."""
    family = site.family()
    os.kill(site.process.pid, number)
    status = site.process.wait(120)
    _, left = psutil.wait_procs(family, timeout=60)
    return status, left


class Day:
    """The folder of a study, and its running sites."""

    def __init__(self, folder):
        self.folder, self.port, self.sites = folder, free_port(), {}
        self.study = folder / "study.toml"
        self.study.write_text(STUDY.format(port=self.port))
        write_two_tables(folder, PARTIES)
        self.kits = provision(read_study(self.study), folder / "kits")
        for party in PARTIES:
            (folder / party).mkdir()
            text = f'name = "{party}"\ndata = "../{party}.csv"\nstudy = "../study.toml"\nkit = "../kits/{party}"\n'
            (folder / party / "party.toml").write_text(text)

    def run(self, name, *words):
        self.sites[name] = Site(self.folder, name, *words)
        return self.sites[name]

    def start_party(self, party, *words):
        return self.run(party, "party", "start", f"{party}/party.toml", *words)

    def ask(self, *words):
        """The output of a command that ends by itself."""
        command = [sys.executable, "-m", "simfl", *map(str, words)]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def day(tmp_path):
    made = Day(tmp_path)
    yield made
    for site in made.sites.values():
        if site.process.poll() is None:
            end(site, signal.SIGKILL)


def a_party_waits_for_the_hub_with_a_word_and_connects(day):
    north = day.start_party("north")
    assert north.says(rf"waiting for the hub at localhost:{day.port}: nothing listens at localhost:{day.port}")
    hub = day.run("hub", "hub", "start", "kits/hub")
    south = day.start_party("south", "--log-format", "json")
    assert hub.says(f"listening on port {day.port}")
    assert north.says(f"connected to the hub at localhost:{day.port}")
    assert south.says('"event":"connected"')
    assert hub.says("north is connected")
    assert hub.says("south is connected")


def a_second_start_on_the_same_kit_is_refused_with_the_pid_of_the_first(day):
    again, first = day.ask("party", "start", "north/party.toml"), day.sites["north"].process
    assert again.returncode == 1
    assert f"is in use already, by the process {first.pid}. Stop that one first: kill {first.pid}" in again.stderr
    assert first.poll() is None


SILENCE = re.compile("no sign of life|has not answered since")  # as a machine with too much to do makes it


def without_silence(said):
    return "\n".join(line for line in said.splitlines() if not SILENCE.search(line))


def a_training_is_told_in_one_line_per_event_without_a_warning(day):
    train = day.run("train", "train", "study.toml")
    assert train.process.wait(300) == 0, train.said
    assert all(day.sites[name].says("the training .* is finished") for name in ("hub", *PARTIES))
    hub, north, south = (day.sites[name].said for name in ("hub", *PARTIES))
    assert digest_of(day.study.read_bytes()) in north
    for said in (train.said, hub, north):
        assert re.search(r"tree 10 of 12, .*s per tree, at most .* left", said)
        assert "finished" in said
        assert not re.search("warning|error", without_silence(said), re.IGNORECASE), said
    events = [json.loads(line) for line in south.splitlines()]
    assert {"approved", "tree", "ended"} <= {event["event"] for event in events}
    assert {event["level"] for event in events if not SILENCE.search(event["text"])} == {"info"}
    for name in ("hub", *PARTIES):
        log = day.kits[name] / "log.txt"
        assert within(
            60, lambda name=name, log=log: log.read_text() == day.sites[name].said
        )  # a line more, a bit later
        words = day.kits[name] / "flare.txt"
        assert not words.exists() or "no app command func" not in words.read_text()


def everybody_sees_who_is_connected_and_what_was_trained(day):
    found = look(Place.at(day.study))
    assert found.hub_reachable
    assert {party.name: party.connected for party in found.parties} == dict.fromkeys(PARTIES, True)
    assert all(party.versions["simfl"] and party.expires > time.time() for party in found.parties)
    assert [(training.stage, training.tree) for training in found.trainings] == [("finished", 12)]
    for where, site in ((day.folder / "north", "north"), (day.kits["hub"], "hub")):
        own = look(Place.at(where))
        assert own.pid == day.sites[site].process.pid
        assert [training.tree for training in own.trainings] == [12]
    assert [party.connected for party in look(Place.at(day.kits["hub"])).parties] == [True, True]


def begin_long_training(day):
    """A training that does not end by itself here."""
    day.study.write_text(STUDY.format(port=day.port).replace("n_trees = 12", "n_trees = 5000"))
    train = day.run("train", "train", "study.toml")
    train.says(r"tree 20 of 5000")
    return train


def a_training_is_stopped_and_says_how_to_continue(day):
    day.sites["train"].file.unlink()
    train = begin_long_training(day)
    (run,) = re.findall(r"the training (\S+); its folder", train.said)
    second = day.ask("train", "study.toml", "--resume")
    assert "is in use already, by the process" in second.stderr
    stopped = day.ask("stop", run)
    assert stopped.returncode == 0, stopped.stderr
    assert re.search(r"stopped, tree \d+ of 5000. To continue: simfl train study.toml --resume", stopped.stdout)
    assert train.process.wait(300) == 130
    assert "`simfl stop` ended it. All finished trees are kept; to continue: simfl train" in train.said
    assert day.sites["north"].says("was interrupted after tree")


def ctrl_c_ends_the_training_and_nothing_else(day):
    day.sites["train"].file.unlink()
    train = day.run("train", "train", "study.toml", "--resume")
    train.says(r"tree \d+0 of 5000")
    assert end(train, signal.SIGINT) == (130, [])
    assert "stopped by Ctrl-C. All finished trees are kept; to continue: simfl train study.toml --resume" in train.said
    assert all(day.sites[name].process.poll() is None for name in ("hub", *PARTIES))


def a_hub_that_is_stopped_says_goodbye_and_its_training_waits_for_it(day):
    day.sites["train"].file.unlink()
    train = day.run("train", "train", "study.toml", "--resume")
    train.says(r"tree \d+0 of 5000")
    assert end(day.sites["hub"], signal.SIGINT) == (130, [])
    gone = rf"the hub at localhost:{day.port} was stopped by its operator; waiting for it"
    assert day.sites["north"].says(gone)
    assert day.sites["south"].says(gone)
    assert train.says("warning: the hub was stopped by its operator; waiting for it, for at most 10 min")
    assert day.sites["north"].says("was interrupted after tree(.|\n)*was interrupted after tree")  # not left waiting
    hub = day.run("hub", "hub", "start", "kits/hub")
    assert day.sites["north"].says(f"connected to the hub at localhost:{day.port} again")
    assert train.says(r"connected to the hub again(.|\n)*tree \d+0 of 5000")
    assert end(hub, signal.SIGKILL) == (-signal.SIGKILL, [])
    assert day.sites["north"].says("is lost: the connection broke; waiting for it")
    assert train.says("warning: .*(connection to the hub broke|hub is lost).*; waiting for it")
    assert end(train, signal.SIGINT) == (130, [])
    day.run("hub", "hub", "start", "kits/hub")
    assert day.sites["north"].says(r"again(.|\n)*connected to the hub at \S+ again")


def a_site_that_waits_is_small(day):
    """Its own process, which only waits for FLARE's, loads neither tables nor trees."""
    for name in ("hub", *PARTIES):
        assert psutil.Process(day.sites[name].process.pid).memory_info().rss < 120 * 2**20


def nothing_is_left_of_a_site_after_ctrl_c_kill_or_termination(day):
    day.sites["train"].file.unlink()
    train = day.run("train", "train", "study.toml", "--resume")
    train.says(r"tree \d+0 of 5000")
    assert end(day.sites["north"], signal.SIGINT) == (130, [])
    assert "stopped by Ctrl-C" in day.sites["north"].said
    assert day.sites["hub"].says(r"north has left \(stopped by its operator\)")
    assert "north is lost" not in day.sites["hub"].said
    assert re.search("north +left ", day.ask("status").stdout)
    assert train.process.wait(300) == 1
    assert "north has left (stopped by its operator)" in train.said
    assert end(day.sites["south"], signal.SIGTERM) == (143, [])
    assert end(day.sites["hub"], signal.SIGKILL) == (-signal.SIGKILL, [])
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", day.port))  # nobody listens any more
    off = day.ask("status")
    assert off.returncode == 1
    assert f"The hub at localhost:{day.port} cannot be reached: nothing listens" in off.stdout


def ctrl_c_ends_a_party_that_waits(day):
    north = day.start_party("north")
    north.says("waiting for the hub at .*(.|\n)*waiting for the hub at")
    assert end(north, signal.SIGINT) == (130, [])


def a_hub_whose_port_is_taken_says_so(day):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of before may linger
        other.bind(("", day.port))
        other.listen()
        refused = day.ask("hub", "start")
    assert refused.returncode == 1
    assert f"The hub cannot listen on port {day.port}" in refused.stderr


def test_the_day_of_an_operator(day):
    a_party_waits_for_the_hub_with_a_word_and_connects(day)
    a_second_start_on_the_same_kit_is_refused_with_the_pid_of_the_first(day)
    a_training_is_told_in_one_line_per_event_without_a_warning(day)
    everybody_sees_who_is_connected_and_what_was_trained(day)
    a_training_is_stopped_and_says_how_to_continue(day)
    ctrl_c_ends_the_training_and_nothing_else(day)
    a_site_that_waits_is_small(day)
    a_hub_that_is_stopped_says_goodbye_and_its_training_waits_for_it(day)
    nothing_is_left_of_a_site_after_ctrl_c_kill_or_termination(day)
    ctrl_c_ends_a_party_that_waits(day)
    a_hub_whose_port_is_taken_says_so(day)
