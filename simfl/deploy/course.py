"""The course of a training at one site: told as events, and kept in the folder of the run for `simfl status`.

The hub, every party and the submitter keep the same small file, `stage.json`: which stage, which tree, since when, at
what pace. A site that was killed cannot say so: its file still names a stage under way, and nobody uses its folder.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from simfl.callbacks import EVERYBODY, TreeRecord, duration
from simfl.deploy.logs import tell
from simfl.errors import FileError
from simfl.storage import is_used, write_atomically

if TYPE_CHECKING:  # a process that waits has no use for what reads studies
    from simfl.deploy.study import Study

STAGE_FILE = "stage.json"
DONE: Final = "finished"
ENDED: Final = (DONE, "stopped", "failed", "interrupted")
TOLD_EVERY = 10  # trees
QUIET = 30.0  # seconds after which a tree is told in any case
SAVED_EVERY = 1.0  # seconds
RECENT = 20  # trees that the pace is taken from


class Stage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """stage.json: how far a training has come at one site."""

    run: str
    study: str
    stage: str
    job: str = ""  # FLARE's number
    tree: int = 0  # finished trees
    n_trees: int = 0
    begun: float = 0.0
    changed: float = 0.0
    seconds_per_tree: float = 0.0
    fact: str = ""  # why it ended

    @property
    def ended(self) -> bool:
        """Whether nothing more happens by itself."""
        return self.stage in ENDED


def stage_of(study: Study, run: str, stage: str, job: str = "") -> Stage:
    """Of a training of this study that begins."""
    return Stage(run=run, study=study.name, stage=stage, job=job, n_trees=study.params().n_trees)


def facts_of(record: TreeRecord) -> str:
    """A tree's first metric (none where the hub sees none) and its builder."""
    metrics = [f"{name} {value:.4f}" for name, value in (record.validation or record.train).items()][:1]
    built = [] if record.builder == EVERYBODY else [f"built by {record.builder}"]
    return ", ".join([*metrics, *built])


class Pace:
    """How long a tree takes lately, and all that are left."""

    def __init__(self, n_trees: int) -> None:
        self.n_trees = n_trees
        self._times: deque[tuple[int, float]] = deque(maxlen=RECENT + 1)

    def tree(self, n_done: int, now: float) -> None:
        """So many trees are finished at this time."""
        self._times.append((n_done, now))

    @property
    def seconds_per_tree(self) -> float:
        """0 while it cannot be told."""
        if len(self._times) < 2:
            return 0.0
        (first, begun), (last, now) = self._times[0], self._times[-1]
        return (now - begun) / max(last - first, 1)

    def words(self) -> str:
        """What is left, for people.

        >>> pace = Pace(100)
        >>> pace.tree(9, 30.0); pace.tree(10, 32.0)
        >>> pace.words()
        '2 s per tree, at most 3 min left'
        """
        each = self.seconds_per_tree
        if not each:
            return ""
        left = each * (self.n_trees - self._times[-1][0])
        return f"{duration(each)} per tree, at most {duration(left)} left" if left else f"{duration(each)} per tree"


class Course:
    """Tells the events of a training, and keeps stage.json."""

    def __init__(self, folder: Path, stage: Stage) -> None:
        now = time.time()
        before = read_stage(folder)
        begun = before.begun if before and before.run == stage.run else now
        self.folder, self.stage = folder, msgspec.structs.replace(stage, begun=begun, changed=now)
        self._pace = Pace(stage.n_trees)
        self._told = self._saved = 0.0
        self._absent: list[str] = []
        self._save()

    def begin_pace(self) -> None:
        """Time that passed until now, such as that of a loss, says nothing about the pace."""
        self._pace = Pace(self.stage.n_trees)

    def enter(self, stage: str, text: str = "") -> None:
        """A stage begins. It is said unless it continues."""
        if stage != self.stage.stage:
            self._change(stage=stage)
            tell("stage", text or stage)

    def rounds(self, n_rounds: int, facts: str = "", absent: Sequence[str] = ()) -> None:
        """Tell that n rounds are finished. Not every tree is worth a line."""
        n_done = min(n_rounds, self.stage.n_trees)
        if n_done <= self.stage.tree:
            return
        now = time.time()
        self._pace.tree(n_done, now)
        changed, self._absent = list(absent) != self._absent, list(absent)
        whole = n_done % TOLD_EVERY == 0 or n_done in (1, self.stage.n_trees)
        if whole or changed or now - self._told > QUIET:
            self._told = now
            without = f"without {', '.join(absent)}" if absent else ""
            parts = [f"tree {n_done} of {self.stage.n_trees}", facts, self._pace.words(), without]
            tell("tree", ", ".join(part for part in parts if part))
        self.stage = msgspec.structs.replace(
            self.stage, tree=n_done, changed=now, seconds_per_tree=self._pace.seconds_per_tree
        )
        if now - self._saved > SAVED_EVERY:
            self._save()

    def end(self, stage: str, text: str, fact: str = "") -> None:
        """The training ends here: finished, stopped or failed."""
        self._change(stage=stage, fact=fact)
        tell("ended", text)

    def _change(self, **facts: str) -> None:
        self.stage = msgspec.structs.replace(self.stage, changed=time.time(), **facts)
        self._save()

    def _save(self) -> None:
        self._saved = time.time()
        with contextlib.suppress(FileError):  # a disk that is full: the training says so where it matters
            write_atomically(self.folder / STAGE_FILE, msgspec.json.encode(self.stage))


def read_stage(folder: Path) -> Stage | None:
    """What stage.json of a run's folder says. Left behind by a site that was killed: "interrupted"."""
    try:
        stage = msgspec.json.decode((folder / STAGE_FILE).read_bytes(), type=Stage)
    except (OSError, msgspec.DecodeError):
        return None
    if not stage.ended and not is_used(folder):
        return msgspec.structs.replace(stage, stage="interrupted", fact=f"while {stage.stage}")
    return stage


def read_stages(runs: Path) -> list[Stage]:
    """All trainings of this folder `runs`, the last one first."""
    found = [read_stage(folder) for folder in runs.glob("*") if folder.is_dir()]
    return sorted((stage for stage in found if stage), key=lambda stage: -stage.begun)
