"""A federation of real processes on this machine: a hub and N parties with certificates, FLARE between them, measured.

    python -m benchmarks.processes --parties 5 20 50                      how it grows with the parties
    python -m benchmarks.processes --parties 4 --slower 10                one party ten times as slow (its thread)
    python -m benchmarks.processes --parties 4 --delay 15 --trees 2       ... that takes 15 seconds for each answer
    python -m benchmarks.processes --parties 10 --rows 100000 --columns 28 --trees 24
    python -m benchmarks.processes --draw                                 the page again, from the JSON

With `--keep` docs/results/processes.json and .md have the figures, in place of older ones of the same setting.

Processor time is counted between the first and the last tree that the submitter sees, so it has no start and no stage
1 in it. Memory is the peak of resident memory, libraries that processes share included; "own" leaves those out. All
processes end with the program, or when `--limit` seconds are over.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil

from benchmarks import many
from benchmarks.pages import RESULTS, Page, stamp, state
from simfl import messages as msg
from simfl.deploy import job as jobs
from simfl.deploy import run as runs
from simfl.deploy.answers import read_connections
from simfl.deploy.endpoints import CLASSES, PartyEndpoint
from simfl.deploy.processes import LocalProcesses, stop
from simfl.deploy.study import read_study
from simfl.errors import SimFLError
from simfl.report.record import RunRecord

SLOWER, DELAY = "BENCHMARK_SLOWER", "BENCHMARK_DELAY"  # environment variables of the slow party
SLOW = "p0"  # its name
NAME = "benchmarks.processes"  # of this module, for FLARE
OF_TREES = ("SumOntoRows", "Grow", "SumPerLeaf", "Add", "Read")  # what parties are asked for every tree
SETTING = ("recipe", "parties", "rows", "columns", "slower", "delay")  # what a figure is of
COMMAND, PARTIES = "python -m benchmarks.processes", [5, 20, 50]
DEFAULTS: dict[str, float] = {"rows": 1000, "columns": 12, "trees": 24, "slower": 1.0, "delay": 0.0}
ROOT = Path(__file__).parents[1]
AT_ONCE = 10  # parties that are started together
HEAD = [
    *("recipe", "parties", "trees", "s per tree", "ms per hop", "slow hop, ms", "hub's job, ms"),
    *("hub's relay, ms", "party, ms", "kB per tree", "hub, MB", "party, MB", "s to the first tree", "load"),
]


class SlowParty(PartyEndpoint):
    """A party that takes longer to answer. For this benchmark only: a kit allows it because the benchmark adds it."""

    def answer(self, message: msg.Request) -> msg.Reply:
        """Answer, late."""
        begun = time.thread_time()
        reply = super().answer(message)
        longer = (float(os.environ.get(SLOWER, 1)) - 1) * (time.thread_time() - begun)
        time.sleep(longer + float(os.environ.get(DELAY, 0)))
        return reply


@dataclass(frozen=True)
class Setting:
    """What is trained, and among how many."""

    parties: int
    recipe: str
    rows: int
    columns: int
    trees: int
    slower: float = 1.0
    delay: float = 0.0

    @property
    def names(self) -> list[str]:
        return [f"p{i}" for i in range(self.parties)]

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Tables and studies, with paths (for the processes) and without (for the training)."""
        rng, members = np.random.default_rng(0), ""
        for name in self.names:
            X = rng.normal(size=(self.rows, self.columns)).astype(np.float32)
            y = (X[:, 0] + X[:, 1] * X[:, 2] + 0.5 * rng.normal(size=self.rows) > 0).astype(np.int8)
            table = pd.DataFrame({f"x{i}": X[:, i] for i in range(self.columns)} | {"y": y})
            table.to_parquet(folder / f"{name}.parquet")
            members += f'[[party]]\nname = "{name}"\ndata = "{name}.parquet"\n'
        columns = "".join(f'x{i} = "number"\n' for i in range(self.columns))
        rematch = "rematch = 0\n" if self.recipe == "similar" else ""
        text = (
            f'name = "processes"\nlabel = "y"\npatience = 900\non_dropout = "stop"\n[columns]\n{columns}[parameters]\n'
            f'recipe = "{self.recipe}"\nn_trees = {self.trees}\nrandom_state = 0\n{rematch}{members}'
        )
        local, shared = folder / "study.toml", folder / "shared.toml"
        local.write_text(text)
        shared.write_text("\n".join(line for line in text.split("\n") if "data =" not in line))
        return local, shared


@dataclass
class Watch:
    """Processor time and memory of the processes, by role."""

    local: LocalProcesses
    peaks: Counter[str] = field(default_factory=Counter)
    over: threading.Event = field(default_factory=threading.Event)

    def each_second(self) -> None:
        while not self.over.wait(1.0):
            for name in list(self.local.processes):
                whole = name if name == "hub" else "party"
                found = self._memory(name)
                for kind, size in (("resident", found[0]), ("own", found[1])):
                    self.peaks[f"{whole} {kind}"] = max(self.peaks[f"{whole} {kind}"], size)

    def _memory(self, name: str) -> tuple[int, int]:
        resident = own = 0
        for process in self.family(name):
            try:
                found = process.memory_full_info()
            except psutil.Error:
                continue
            resident, own = resident + found.rss, own + found.uss
        return resident, own

    def family(self, name: str) -> list[psutil.Process]:
        """The process that relays, and those that it has started for the training."""
        try:
            first = psutil.Process(self.local.processes[name].pid)
            return [first, *first.children(recursive=True)]
        except psutil.Error:
            return []

    def processor_time(self) -> Counter[str]:
        """Seconds so far."""
        found: Counter[str] = Counter()
        for name in list(self.local.processes):
            for place, process in enumerate(self.family(name)):
                try:
                    spent = sum(process.cpu_times()[:2])
                except psutil.Error:
                    continue
                found["party" if name != "hub" else "job" if place else "relay"] += spent
        return found


def federation(setting: Setting, study: Path, shared: Path) -> LocalProcesses:
    """Hub and parties with their kits; nothing runs yet."""
    slow = ["env", f"{SLOWER}={setting.slower}", f"{DELAY}={setting.delay}"]
    local = LocalProcesses(read_study(study), study.parent, study.parent / "kits", within={SLOW: slow}, approved=shared)
    for name in setting.names:  # a party may change its own kit
        file = local.kits[name] / "local" / "resources.json"
        content = json.loads(file.read_text())
        content["class_allow_list"].append(f"{NAME}.{SlowParty.__name__}")
        file.write_text(json.dumps(content))
    return local


def start_all(local: LocalProcesses, until: float) -> None:
    """Start the hub, then the parties, some at a time, and wait until all are connected."""
    local.start("hub")
    local.await_hub()
    names = local.study.parties
    for first in range(0, len(names), AT_ONCE):
        for name in names[first : first + AT_ONCE]:
            local.start(name)
        while (
            sum(party.connected for party in read_connections(local.kits["hub"], alive=True)) < len(local.processes) - 1
        ):
            local.check()
            if time.monotonic() > until:
                raise SystemExit("the parties did not connect in time")
            time.sleep(0.5)


def measure(setting: Setting, limit: float, *, aloud: bool = False) -> dict[str, Any]:
    """One training."""
    with tempfile.TemporaryDirectory() as made:
        study, shared = setting.write(Path(made))
        local = federation(setting, study, shared)
        watch, begun = Watch(local), time.monotonic()
        guard = threading.Timer(limit, lambda: stop(local.processes.values()))  # the training then fails
        guard.daemon = True
        guard.start()
        threading.Thread(target=watch.each_second, daemon=True).start()
        try:
            start_all(local, begun + limit)
            started = time.monotonic()
            return _train(setting, local, watch, started, shared, aloud) | {"start": started - begun}
        finally:
            guard.cancel()
            watch.over.set()
            stop(local.processes.values())


def _train(
    setting: Setting, local: LocalProcesses, watch: Watch, started: float, shared: Path, aloud: bool
) -> dict[str, Any]:
    seen: list[tuple[int, float, Counter[str]]] = []

    def tree(record: Any, connected: list[str]) -> None:
        seen.append((record.round, time.monotonic(), watch.processor_time()))

    own_polls, runs.POLL = runs.POLL, 0.1
    jobs.CLASSES = (CLASSES[0], f"{NAME}.{SlowParty.__name__}")
    try:
        listener = runs.Listener(tell=print if aloud else lambda text: None, tree=tree)
        out = runs.run_study(shared, kit=local.kits["submitter"], out=shared.parent / "run", listener=listener)
    finally:
        runs.POLL, jobs.CLASSES = own_polls, CLASSES
    history = json.loads((out / "history.json").read_bytes())["trees"]
    spent, trees = Counter(seen[-1][2]), seen[-1][0] - seen[0][0]
    spent.subtract(seen[0][2])
    hops = _hops(RunRecord.load(out))
    return {
        **{name: getattr(setting, name) for name in SETTING},
        "trees": len(history),
        "seconds_per_tree": (seen[-1][1] - seen[0][1]) / trees,
        "before_first_tree": seen[0][1] - started,
        "processor": {role: seconds / trees for role, seconds in spent.items()},
        "hops": hops,
        "bytes_per_tree": statistics.mean(record["bytes"] for record in history),
        "peaks": dict(watch.peaks),
        "load": os.getloadavg()[0],
        "measured": stamp([state()]),
    }


def _hops(record: RunRecord) -> dict[str, dict[str, float]]:
    """Per kind of message of the trees: how many, and the median and the 95th of a hundred seconds there and back."""
    found = defaultdict(list)
    for exchange in record.timeline:
        found[exchange.kind].append(exchange.seconds)
    return {
        kind: {"number": len(all_), "median": float(np.median(all_)), "slow": float(np.quantile(all_, 0.95))}
        for kind, all_ in found.items()
    }


def row(found: dict[str, Any]) -> list[str]:
    """As the page has it."""
    per_tree = [hop for kind, hop in found["hops"].items() if kind in OF_TREES]
    hop, slow = statistics.mean(h["median"] for h in per_tree), max(h["slow"] for h in per_tree)
    spent, peaks = found["processor"], found["peaks"]
    return [
        *(found["recipe"], str(found["parties"]), str(found["trees"])),
        *(f"{found['seconds_per_tree']:.2f}", f"{1000 * hop:.0f}", f"{1000 * slow:.0f}"),
        *(f"{1000 * seconds:.0f}" for seconds in (spent["job"], spent["relay"], spent["party"] / found["parties"])),
        f"{found['bytes_per_tree'] / 1000:.0f}",
        *(f"{peaks[f'{role} resident'] / 1e6:.0f}" for role in ("hub", "party")),
        f"{found['before_first_tree']:.0f}",
        f"{found['load']:.1f}",
    ]


def same_setting(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether both measure the same."""
    return all(a[name] == b[name] for name in (*SETTING, "trees"))


def keep(found: dict[str, Any], path: Path = RESULTS / "processes.json") -> None:
    """Put it among the figures, in place of an older one; the page follows."""
    known = json.loads(path.read_text()) if path.exists() else []
    every = [*(other for other in known if not same_setting(other, found)), found]
    every.sort(key=lambda r: (r["slower"], r["delay"], r["rows"], r["recipe"] != "similar", r["parties"]))
    path.write_text(json.dumps(every, indent=1) + "\n")
    write_page(every, path.with_suffix(".md"))


def write_page(every: list[dict[str, Any]], path: Path) -> None:
    """The tables: one for each way in which the parties were kept busy, with when and with what below it."""
    page = Page("A federation of processes", COMMAND, measured="as said below each table")
    page.say(
        "A hub and parties as processes of their own on one machine, each with its certificate, NVIDIA FLARE between "
        "them. Milliseconds are processor time per tree, but for a hop (a question there and its answer back): its are "
        "of the clock, the median, and the slowest of 20. kB are of all parties together. Memory is the peak of all "
        "processes of a site."
    )
    kinds = dict.fromkeys((r["rows"], r["columns"], r["slower"], r["delay"]) for r in every)
    for kind in kinds:
        rows, columns, slower, delay = kind
        rows_of = [r for r in every if (r["rows"], r["columns"], r["slower"], r["delay"]) == kind]
        slow = f", one party computes {slower:g} times as long" if slower != 1 else ""
        slow += f", one party takes {delay:g} seconds for each answer" if delay else ""
        counts = {r["parties"] for r in rows_of}
        whole = f": {rows * min(counts):,} rows" if len(counts) == 1 else ""
        page.head(f"Parties of {rows:,} rows with {columns} columns{whole}{slow}")
        page.table(HEAD, map(row, rows_of))
        page.bullets(dict.fromkeys(f"{_who(rows_of, r['measured'])}: {r['measured']}." for r in rows_of))
        page.say(f"To measure it again: {', '.join(dict.fromkeys(f'`{command_of(r)}`' for r in rows_of))}.")
    page.write(path)


def command_of(found: dict[str, Any]) -> str:
    """What to type for a row of the page; what is left out is the default."""
    told = {name: found[name] for name in ("rows", "columns", "trees", "slower", "delay")}
    given = [f"--{name} {value}" for name, value in told.items() if value != DEFAULTS[name]]
    one = "" if found["parties"] in PARTIES else f" --parties {found['parties']}"
    return " ".join([f"{COMMAND}{one} --recipes {found['recipe']}", *given, "--keep"])


def _who(rows: list[dict[str, Any]], measured: str) -> str:
    """Which rows of a table were measured then."""
    if len({r["measured"] for r in rows}) == 1:
        return "Measured"
    return ", ".join(f"{r['recipe']} with {r['parties']}" for r in rows if r["measured"] == measured)


def arguments() -> argparse.ArgumentParser:
    """What can be asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parties", type=int, nargs="+", default=PARTIES)
    parser.add_argument("--recipes", nargs="+", default=["similar", "joint"])
    for name in ("rows", "columns", "trees"):
        parser.add_argument(f"--{name}", type=int, default=DEFAULTS[name])
    for name, meaning in (
        ("slower", "computes this many times as long"),
        ("delay", "takes so long for each answer, s"),
    ):
        parser.add_argument(f"--{name}", type=float, default=DEFAULTS[name], help=f"{SLOW} {meaning}")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds after which a training is given up")
    parser.add_argument("--keep", action="store_true", help="write the figures to docs/results/")
    parser.add_argument("--draw", action="store_true", help="measure nothing: the page again, from the JSON")
    return parser


def main() -> None:
    given = arguments().parse_args()
    if given.draw:
        write_page(json.loads((RESULTS / "processes.json").read_text()), RESULTS / "processes.md")
        return
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}  # the slow party is a class of this module
    print(f"| {' | '.join(HEAD)} |\n|---|{'---:|' * (len(HEAD) - 1)}", flush=True)
    for recipe in given.recipes:
        many.measure(2, recipe, 2)  # compiles: else every party would
        for n in given.parties:
            setting = Setting(n, recipe, given.rows, given.columns, given.trees, given.slower, given.delay)
            try:
                found = measure(setting, given.limit, aloud=given.delay > 0)
            except SimFLError as error:
                print(f"{recipe}, {n} parties: {error}", flush=True)
                continue
            print(f"| {' | '.join(row(found))} |", flush=True)
            if given.keep:
                keep(found)


if __name__ == "__main__":
    main()
