"""Chaos: kill -9 the hub, parties or all of it at random moments of a training; the model must come out the same.

python -m benchmarks.chaos --kills 20 --trees 100 --page docs/results/chaos.md
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

import simfl
from benchmarks.pages import Page
from simfl.deploy.course import read_stage
from simfl.deploy.study import read_study
from simfl.deploy.tables import open_table

PARTIES = ("north", "south", "west")
ROWS = 30_000  # of each party
TARGETS = ("hub", "hub's job", "party", "party's job", "everything")


def write_study(folder: Path, trees: int, rows: int, **keys: object) -> Path:
    """A study of three parties with synthetic tables; rematches at 10, 20, 40 and 80 trees."""
    rng = np.random.default_rng(0)
    members = ""
    for name in PARTIES:
        X = rng.normal(size=(rows, 12)).round(4)
        y = (X[:, 0] + X[:, 1] * X[:, 2] + 0.5 * rng.normal(size=rows) > 0).astype(int)
        table = np.column_stack([X, y])
        header = ",".join([*(f"x{i}" for i in range(12)), "y"])
        np.savetxt(folder / f"{name}.csv", table, delimiter=",", header=header, comments="", fmt="%g")
        members += f'[[party]]\nname = "{name}"\ndata = "{name}.csv"\n'
    settings = {"patience": 15, "on_dropout": '"stop"'} | keys
    text = 'name = "chaos"\nlabel = "y"\n' + "".join(f"{key} = {value}\n" for key, value in settings.items())
    text += "[columns]\n" + "".join(f'x{i} = "number"\n' for i in range(12))
    text += f"[parameters]\nn_trees = {trees}\nmax_depth = 6\nrandom_state = 5\nrematch = 10\n{members}"
    path = folder / "study.toml"
    path.write_text(text)
    return path


def in_one_process(study_path: Path) -> bytes:
    """The same training without any network: the model's bytes."""
    study = read_study(study_path)
    parties = [open_table(study, party.name, study_path.parent / str(party.data))[0] for party in study.party]
    model = simfl.train(parties, callbacks=[], **study.parameters)
    target = study_path.parent / "reference.ubj"
    model.save(target, history=False)
    return target.read_bytes()


def for_each(processes: Iterable[psutil.Process], act: Callable[[psutil.Process], object]) -> None:
    """Do this to all that still live."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            act(process)


class Kill(NamedTuple):
    """What was killed, and when."""

    seconds: float
    what: str
    tree: int  # the last that was seen
    start: int  # of `simfl train`: it is started again where it was killed or gave up


class Training:
    """`simfl train --local-processes` as a process, and what it started."""

    def __init__(self, study: Path, out: Path, *, resume: bool) -> None:
        arguments = ["train", str(study), "--local-processes", "--out", str(out), *["--resume"] * resume]
        self.out, self.last = out, ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "simfl", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._slow_down, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.last = line.rstrip()

    def _slow_down(self) -> None:
        """Suspend a party's job again and again: a training that lasts, so that every kill finds it at work."""
        while self.process.poll() is None:
            jobs: list[psutil.Process] = []
            with contextlib.suppress(psutil.NoSuchProcess):
                jobs = self.targets("party's job")[:1]
            for_each(jobs, psutil.Process.suspend)
            time.sleep(0.5)
            for_each(jobs, psutil.Process.resume)
            time.sleep(0.05)

    @property
    def tree(self) -> int:
        """The last tree that the submitter's folder tells of."""
        stage = read_stage(self.out)
        return stage.tree if stage else 0

    def wait_for_a_moment(self, dice: random.Random, tree: float) -> bool:
        """Some time after this tree, or now and then before it. False: it has ended by itself."""
        give_up = time.monotonic() + (20 * dice.random() if dice.random() < 0.25 else 3600)
        while self.process.poll() is None and self.tree < tree and time.monotonic() < give_up:
            time.sleep(0.05)
        time.sleep(0.5 * dice.random())
        return self.process.poll() is None

    def targets(self, kind: str) -> list[psutil.Process]:
        """The processes of this kind."""
        if kind == "everything":
            return [*self._below(psutil.Process(self.process.pid)), psutil.Process(self.process.pid)]
        program = ["simfl.deploy.program", "server" if kind.startswith("hub") else "client"]
        wanted = [p for p in psutil.Process(self.process.pid).children() if p.cmdline()[2:4] == program]
        if kind.endswith("job"):
            return [child for kit in wanted for child in self._below(kit)]
        return wanted

    @staticmethod
    def _below(process: psutil.Process) -> list[psutil.Process]:
        return process.children(recursive=True)

    def kill(self, kind: str, dice: random.Random) -> bool:
        """Kill one of a kind, or everything."""
        try:
            found = self.targets(kind)
        except psutil.NoSuchProcess:
            return False
        chosen = found if kind == "everything" else [dice.choice(found)] if found else []
        for process in chosen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return bool(chosen)


def chaos(folder: Path, kills: int, trees: int, seed: int, targets=TARGETS, rows=ROWS, tell=print) -> dict[str, Any]:
    """Train with this number of kills; returns what came out."""
    study = write_study(folder, trees, rows)
    wanted = in_one_process(study)
    dice, kills_done, starts, begun = random.Random(seed), list[Kill](), 0, time.perf_counter()
    out = folder / "run"
    while True:
        training = Training(study, out, resume=(out / "order.json").exists())
        starts += 1
        while (done := len(kills_done)) < kills:
            if not training.wait_for_a_moment(dice, trees * (done + dice.random()) / (kills + 1)):
                break
            kind = targets[done % len(targets)]
            tree = training.tree
            if training.kill(kind, dice):
                kills_done.append(Kill(time.perf_counter() - begun, kind, tree, starts))
                tell(f"{kills_done[-1].seconds:6.1f} s  kill {len(kills_done)}: {kind}, last seen at tree {tree}")
        training.process.wait()
        tell(f"{time.perf_counter() - begun:6.1f} s  ended with {training.process.returncode}. {training.last}")
        if training.process.returncode == 0:
            break
        if starts > 3 * kills + 3:
            raise SystemExit("it never came to an end")
    models = [out / "model.ubj", *out.glob("federation/*/runs/*/model.ubj")]
    left = [str(p) for p in out.glob("**/.*") if p.is_file() and "__nvfl" not in p.name and ".authority" not in p.parts]
    return {
        "kills": kills_done,
        "starts": starts,
        "seconds": time.perf_counter() - begun,
        "models": len(models),
        "identical": all(path.read_bytes() == wanted for path in models),
        "left": left,
    }


def write_page(result: dict[str, Any], options: argparse.Namespace) -> None:
    """What came out, and every kill."""
    kills: list[Kill] = result["kills"]
    command = f"python -m benchmarks.chaos --kills {options.kills} --trees {options.trees} --page {options.page}"
    page = Page("Killed, and the same model", command)
    page.say(
        f"`simfl train --local-processes` with a hub and three parties of {ROWS:,} rows as processes on one machine, "
        f"{options.trees} trees, seed {options.seed}; a party was suspended again and again, so that a tree takes at "
        f"least half a second. Processes were killed with -9 at random moments, {len(kills)} times. `simfl train "
        "--resume` was given again where the submitter itself was killed, or ended because a party or the hub did not "
        "come back: "
        f"{result['starts']} starts, {result['seconds'] / 60:.0f} minutes."
    )
    page.say(
        f"**All {result['models']} models (the submitter's, the hub's and each party's) are, byte for byte, that of "
        "the same training in one process without any kill. No partial file is left.** If it were otherwise, the "
        "command would fail and write no page."
    )
    page.table(
        ["killed", "kills", "first at tree", "last at tree"],
        [
            [kind, len(found), min(kill.tree for kill in found), max(kill.tree for kill in found)]
            for kind in TARGETS
            if (found := [kill for kill in kills if kill.what == kind])
        ],
    )
    page.head("Every kill")
    page.table(
        ["kill", "what", "second", "last tree seen", "start of the submitter"],
        [[n, kill.what, f"{kill.seconds:.0f}", kill.tree, kill.start] for n, kill in enumerate(kills, 1)],
    )
    page.write(options.page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--page", type=Path, help="write what came out to this file")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as made:
        result = chaos(options.folder or Path(made), options.kills, options.trees, options.seed)
    for name, value in result.items():
        print(f"{name}: {len(value) if name == 'kills' else value}")
    if not result["identical"] or result["left"] or len(result["kills"]) < options.kills:
        raise SystemExit("chaos won")
    if options.page:
        write_page(result, options)


if __name__ == "__main__":
    main()
