"""Hub and parties with their real endpoints, transport and submitter, in this process: all but FLARE's network.

`Federation.session` takes the place of FLARE's session. A job runs in a thread; its sites are called directly. The hub
does not run ahead of the submitter: what a test does after a tree happens before the next one.
"""

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
from nvflare.collab import CollabCallError

from simfl.deploy import run as runs
from simfl.deploy.answers import READY, HubStatus
from simfl.deploy.course import read_stages
from simfl.deploy.endpoints import HubEndpoint, PartyEndpoint
from simfl.privacy.certificates import SUBMITTER
from simfl.privacy.tokens import secret_of
from simfl.storage import write_atomically
from simfl.transport.flare import FlareTransport
from tests.deploy.studies import PARTIES, without_paths, write_study
from tests.privacy.authority import Project

PATIENCE = 0.3


class Site:
    """A party's endpoint, as FLARE shows it to the hub."""

    def __init__(self, end, name, hub):
        self.end, self.name, self.dead = end, name, False
        end._hub = lambda timeout: SimpleNamespace(
            piece=lambda number, start: hub.piece(number, start, SimpleNamespace(caller=name))
        )

    def __call__(self, timeout):
        if self.dead:
            raise CollabCallError(self.name, "ask", RuntimeError("its process has ended"))
        return self

    def ask(self, *question):
        return self.end.ask(*question, SimpleNamespace(caller="server"))

    def more(self, number, start):
        return self.end.more(number, start, SimpleNamespace(caller="server"))

    def alive(self):
        return True


class InStep(HubEndpoint):
    """The hub, which after each tree waits until the submitter has taken it, or the job ends."""

    wanted = 0  # the tree that the submitter waits for

    def progress(self, asked):
        self.wanted = max(self.wanted, asked["since"])
        return super().progress(asked)

    def after_tree(self, record):
        super().after_tree(record)
        while self.wanted <= record.round and not self.collected.is_set():
            time.sleep(0.002)


class Job:
    """A running job."""

    def __init__(self, config, kits, number):
        self.hub = InStep(**config["components"][0]["args"])
        self.hub.job = number
        self.sites = {}
        for party in self.hub.study.parties:
            end = PartyEndpoint()
            end.open(party, kits / party)
            self.sites[party] = Site(end, party, self.hub)
        self.transport = FlareTransport(self.sites, self.hub._outbox, PATIENCE, self.hub.run)
        self.thread = threading.Thread(target=self.hub.conduct, args=(self.transport, kits / "hub"), daemon=True)
        self.thread.start()

    def end(self):
        for site in self.sites.values():
            site.dead = True
        self.hub.collected.set()
        self.thread.join()
        self.transport.close()
        for site in self.sites.values():
            site.end.holding.close()
            if site.end.journal:
                site.end.journal.close()


def open_federation(folder, monkeypatch, n_trees, n_rows, change=lambda text: text):
    """Three parties, their tables and a study (its text changed), and the federation that trains it in this process."""
    study = write_study(folder, n_trees, n_rows)
    made = Federation(folder, {party: folder / f"{party}.csv" for party in PARTIES}, seed=5)
    made.study = folder / "shared.toml"
    made.study.write_text(change(without_paths(study.read_text())))
    monkeypatch.setattr("nvflare.fuel.flare_api.flare_api.new_secure_session", made.session)
    monkeypatch.setattr(runs, "POLL", 0.01)
    monkeypatch.setattr(runs, "SETTLE", 0.0)
    return made


class Cell:
    """An end of FLARE's connections, as far as somebody hears of the hub through it. Here the hub never goes."""

    def __init__(self):
        self.core_cell = self.req_reg = self
        self.cb = None

    def find(self, channel, topic):
        return self

    def register_request_cb(self, channel, topic, cb):
        self.cb = cb

    def set_cell_disconnected_cb(self, cb):
        self.ended = cb


class Federation:
    """Kits with certificates, and the jobs that were submitted. It is a FLARE session, as far as SimFL uses one."""

    def __init__(self, folder, data, seed):
        self.kits, self.jobs, self.parties = folder / "kits", [], list(data)
        self.away = set()  # parties whose process has ended
        secret = secret_of(seed).hex()  # as in one process
        project = Project()
        for party, table in data.items():
            (self.kits / party).mkdir(parents=True)
            own = {"name": party, "data": str(table), "secret": secret, "study": str(folder / "shared.toml")}
            lines = [f'{key} = "{value}"' for key, value in own.items()]
            text = "\n".join(
                [
                    *lines,
                    "n_jobs = 1",
                    "[require]",
                    "signed = false",
                    "masked = false",
                    'matching = "any"',
                    "min_parties = 1",
                ]
            )
            (self.kits / party / "party.toml").write_text(text)
            project.write_kit(party, self.kits / party / "startup")
        startup = self.kits / "submitter" / "startup"
        project.write_kit(SUBMITTER, startup, role="submitter")
        write_atomically(startup / "fed_admin.json", b"", private=True)

    def kill(self, party):
        self.away.add(party)
        self.jobs[-1].sites[party].dead = True

    # What a study's listener calls after each tree.

    def lose_first_job(self, at):
        """End the first job in this round."""

        def after_tree(record, connected):
            if record.round == at and len(self.jobs) == 1:
                self.jobs[0].end()

        return after_tree

    def lose(self, party, at, *, until_missed=False):
        """Kill a party's process in this round (of the first job); perhaps it is back when it was missed."""

        def after_tree(record, connected):
            if record.round == at and len(self.jobs) == 1:
                self.kill(party)
            if until_missed and record.absent:
                self.away.clear()

        return after_tree

    def session(self, name, kit, timeout):
        self.api = SimpleNamespace(get_cell=Cell)
        self.transfer = Path(kit) / "transfer"
        return self

    def submit_job(self, folder):
        config = self.transfer / folder / "app_server" / "config" / "config_fed_server.json"  # as FLARE: absolute wins
        number = str(len(self.jobs))
        self.jobs.append(Job(json.loads(config.read_text()), self.kits, number))
        return number

    def do_app_command(self, job, topic, question):
        if not self.jobs[int(job)].thread.is_alive():
            raise RuntimeError("the job is not running")
        return json.loads(json.dumps(self.jobs[int(job)].hub.progress(question)))

    def do_command(self, command):
        """The hub's end of a job answers from the start."""
        if command.startswith(READY):
            known = {"ready": True, "runs": self.runs(command.split()[1])}
        else:
            stages = read_stages(self.kits / "hub" / "runs")
            known = msgspec.to_builtins(HubStatus(time=0.0, since=0.0, versions={}, expires=0.0, trainings=stages))
        return {"data": [{"type": "dict", "data": known}]}

    def runs(self, job):
        return int(job) < len(self.jobs) and self.jobs[int(job)].thread.is_alive()

    def get_job_status(self, job):
        return "RUNNING" if self.runs(job) else "FINISHED:EXECUTION_EXCEPTION"

    def get_connected_client_list(self):
        heard = {party: 0.0 if party in self.away else time.time() + 1 for party in self.parties}
        return [SimpleNamespace(name=party, last_connect_time=at) for party, at in heard.items()]

    def abort_job(self, job):
        self.jobs[int(job)].end()

    def close(self):
        for job in self.jobs:
            job.end()
