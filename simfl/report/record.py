"""What is known of a run, as one JSON file: `run.json` in the run's folder.

Whoever runs a training writes it (a simulation, the hub, a party); the report only reads it. Every part but the first
few may be missing: a run between machines has no pooled model, a run that is going on has no scores.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import msgspec

from simfl.callbacks import Callback, TreeRecord
from simfl.errors import FileError
from simfl.params import Params, settings
from simfl.privacy.observed import Protection
from simfl.storage import write_atomically

FILE = "run.json"
FORMAT = 1
SECONDS_BETWEEN = 1.0  # two writings of a run that is going on
Status = Literal["running", "finished", "stopped"]


class PartyFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a party. `dropped` says when and why it left the run early."""

    name: str
    n_rows: int
    n_held_out: int = 0
    dropped: str | None = None


class Score(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A metric of one model on some held-out rows. `party` is None for a model that all share."""

    method: str
    party: str | None
    rows: str | None  # whose held-out rows; None: everybody's
    metric: str
    value: float


class Gain(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a party gains over being alone: positive is better. `low` and `high` bound it with 95 % confidence:
    by resampling the held-out rows or, where there are several splits, over splits.
    """

    party: str
    rows: str | None  # whose held-out rows: its own, or everybody's (None)
    metric: str
    alone: float
    together: float
    gain: float
    low: float
    high: float
    n_rows: int
    adjusted: bool = False  # whether the shared model's start value was fitted to the party's own rows
    continued: bool = False  # whether the shared model was continued on them (Model.continued)


class Curve(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A metric against the number of trees."""

    method: str
    party: str | None
    rows: str | None
    metric: str
    trees: list[int]
    values: list[float]


class Points(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of an ROC or of a calibration picture; `weights` are the rows behind each point."""

    method: str
    party: str | None
    x: list[float]
    y: list[float]
    weights: list[int] = []


class Similarity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How alike the similar rows are, and how many of a party's rows resemble one and the same row at most."""

    n_hashes: int
    bucket_width: float | None
    n_neighbors: int
    equal_hashes: dict[str, dict[str, float]]  # party -> other party -> mean number of equal hash values
    most_uses: dict[str, int]


class Exchange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One question to a party and its answer."""

    party: str
    kind: str
    begin: float  # seconds since the run began
    seconds: float


class AuditResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an attack on this party's own data found."""

    attack: str
    value: str
    meaning: str
    passed: bool | None = None


class Importance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much a feature matters: gain over all splits, mean absolute SHAP value, number of splits."""

    feature: str
    gain: float | None
    shap: float | None
    splits: int


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run."""

    title: str
    status: Status
    started: str  # ISO 8601
    seconds: float
    objective: str
    n_trees: int
    parties: list[PartyFacts]
    format: int = FORMAT
    command: str | None = None
    metric: str | None = None  # the one that the headline speaks of
    n_splits: int = 1  # into training and held-out rows, over which gains and scores are means
    gains: list[Gain] = []
    scores: list[Score] = []
    history: list[TreeRecord] = []
    curves: list[Curve] = []
    roc: list[Points] = []
    calibration: list[Points] = []
    similarity: Similarity | None = None
    traffic: dict[str, dict[str, dict[str, int]]] = {}
    timeline: list[Exchange] = []
    protections: list[Protection] = []
    guarantee: str | None = None  # of differential privacy, in words to quote
    audit: list[AuditResult] = []
    importance: list[Importance] = []
    settings: dict[str, Any] = {}
    versions: dict[str, str] = {}
    notes: list[str] = []

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write `run.json` into a folder, which is created if need be. All of it or nothing."""
        path = Path(folder) / FILE
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"The folder {folder} cannot be created: {error.strerror}.") from None
        write_atomically(path, msgspec.json.format(msgspec.json.encode(self)) + b"\n")
        return path

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> RunRecord:
        """Read `run.json` from a run's folder (or the file itself)."""
        path = Path(folder) / FILE if Path(folder).is_dir() else Path(folder)
        try:
            found = msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise FileError(f"There is no run at {folder}: {path} cannot be read ({error.strerror}).") from None
        except msgspec.DecodeError as error:
            raise FileError(f"{path} is not the record of a run: {error}.") from None
        if found.format > FORMAT:
            raise FileError(f"{path} was written by a newer version of simfl. Install that version to read it.")
        return found


def time_of(seconds: float) -> str:
    """A time of `time.time` as the record keeps it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """The versions of what it ran on."""
    found = {"Python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    return {name: version(name) for name in ("simfl", "xgboost", "numpy", "numba")} | found


class Recorder(Callback):
    """Writes what is known so far into a run's folder, at most once a second."""

    def __init__(self, folder: Path, title: str, parties: Sequence[PartyFacts], command: str | None = None) -> None:
        self.folder, self.title, self.parties, self.command = folder, title, list(parties), command
        self.written = 0.0

    def before_training(self, parties: Sequence[str], params: Params) -> None:
        self.begun = time.time()
        self.record = RunRecord(
            title=self.title,
            command=self.command,
            status="running",
            started=time_of(self.begun),
            seconds=0.0,
            objective=params.objective,
            n_trees=params.n_trees,
            parties=self.parties,
            settings=settings(params),
            versions=versions(),
        )
        self.record.save(self.folder)

    def after_tree(self, record: TreeRecord) -> None:
        history = [*self.record.history, record]
        self.record = msgspec.structs.replace(self.record, history=history, seconds=time.time() - self.begun)
        if time.monotonic() - self.written >= SECONDS_BETWEEN:
            self.record.save(self.folder)
            self.written = time.monotonic()

    def after_training(self, history: Sequence[TreeRecord]) -> None:
        status, seconds = "finished" if len(history) >= self.record.n_trees else "stopped", time.time() - self.begun
        msgspec.structs.replace(self.record, status=status, history=list(history), seconds=seconds).save(self.folder)
