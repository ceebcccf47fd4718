"""A study of three parties with made-up tables, its model without a network, and a party that is made slow."""

import contextlib
import threading
import time

import numpy as np
import pandas as pd
import psutil

import simfl
from simfl.deploy.study import read_study
from simfl.deploy.tables import open_table

PARTIES = ("north", "south", "west")
COLUMNS = [f"x{i}" for i in range(12)]


def write_study(folder, trees, rows, **keys):
    """The tables, and a study with their paths; rematches at 10, 20, 40 and 80 trees."""
    rng = np.random.default_rng(0)
    for name in PARTIES:
        table = pd.DataFrame(rng.normal(size=(rows, 12)).round(4), columns=COLUMNS)
        score = table["x0"] + table["x1"] * table["x2"] + 0.5 * rng.normal(size=rows)
        table.assign(y=(score > 0).astype(int)).to_csv(folder / f"{name}.csv", index=False)
    head = {"name": '"three-wards"', "label": '"y"', "patience": 15, "on_dropout": '"stop"'} | keys
    lines = [f"{key} = {value}" for key, value in head.items()]
    lines += ["[columns]", *(f'{name} = "number"' for name in COLUMNS)]
    lines += ["[parameters]", f"n_trees = {trees}", "max_depth = 6", "random_state = 5", "rematch = 10"]
    for name in PARTIES:
        lines += ["[[party]]", f'name = "{name}"', f'data = "{name}.csv"']
    path = folder / "study.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def without_paths(text):
    """A study as it is shared between machines."""
    return "\n".join(line for line in text.split("\n") if not line.startswith("data ="))


def in_one_process(study_path):
    """The same training without any network: the model's bytes."""
    study = read_study(study_path)
    parties = [open_table(study, party.name, study_path.parent / str(party.data))[0] for party in study.party]
    target = study_path.parent / "reference.ubj"
    simfl.train(parties, callbacks=[], **study.parameters).save(target, history=False)
    return target.read_bytes()


def slow_down(local, party, until):
    """Suspend a party's job again and again, in the background, after every tree: a training that lasts.

    In between it gets its turn, however busy the machine is: else it would be taken for dead. The hub's journal tells
    when a tree is there: a party's own is written in blocks.
    """

    def grown():
        return sum(journal.stat().st_size for journal in local.kits["hub"].glob("runs/*/journal"))

    def for_each(jobs, act):
        for job in jobs:
            with contextlib.suppress(psutil.NoSuchProcess):
                act(job)

    def work():
        while not until():
            try:
                jobs = psutil.Process(local.processes[party].pid).children(recursive=True)
            except psutil.NoSuchProcess:
                return  # the federation has ended
            for_each(jobs, psutil.Process.suspend)
            time.sleep(1.0)
            before, give_up = grown(), time.monotonic() + 5.0
            for_each(jobs, psutil.Process.resume)
            while grown() == before and time.monotonic() < give_up:
                time.sleep(0.01)

    threading.Thread(target=work, daemon=True).start()
