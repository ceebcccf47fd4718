"""What happens around the main loop: progress at a terminal, and whatever users hook in.

A callback is called when a training begins, after every tree, and at the end. It can stop the training by returning
True from `after_tree`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from simfl.errors import ParameterError
from simfl.params import Params

logger = logging.getLogger("simfl")  # the one logger of the package
logger.addHandler(logging.NullHandler())


COMPILING = "compiling for this machine: only the first training after an install waits for it"
EVERYBODY = "all"  # the builder of a tree that all parties grew together


class TreeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One boosting round: who built, the metrics over all parties after it, its bytes and seconds."""

    round: int
    builder: str
    train: dict[str, float]
    validation: dict[str, float]
    bytes: int
    seconds: float
    absent: list[str] = []  # parties that took no part in it


def duration(seconds: float) -> str:
    """Seconds in words that a person would use.

    >>> duration(0.042), duration(8.2), duration(150), duration(7200), duration(3 * 86400)
    ('0.042 s', '8.2 s', '2.5 min', '2 h', '3 days')
    """
    for size, word in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {word}" if seconds < 100 * size else f"{seconds / size:.0f} {word}"
    return f"{seconds:.2g} s" if seconds < 100 else f"{seconds:.0f} s"


class Callback:
    """Override what you need."""

    def before_training(self, parties: Sequence[str], params: Params) -> None:
        """A training begins."""

    def after_tree(self, record: TreeRecord) -> bool | None:
        """A round is finished. Return True to stop."""
        return None

    def after_training(self, history: Sequence[TreeRecord]) -> None:
        """The training is over."""


def _bar(*facts: ProgressColumn, shown: bool = True) -> Progress:
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), *facts, TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown)


class ProgressBar(Callback):
    """A progress bar with the builder and the metric."""

    def __init__(self) -> None:
        self.progress = _bar(MofNCompleteColumn(), TextColumn("trees  {task.fields[facts]}"))

    def before_training(self, parties: Sequence[str], params: Params) -> None:
        self.progress.start()
        self.task = self.progress.add_task("training", total=params.n_trees, facts="")

    def after_tree(self, record: TreeRecord) -> None:
        metrics = record.validation or record.train
        facts = "".join(f"{name} {value:.4f}  " for name, value in list(metrics.items())[:1])
        self.progress.update(self.task, advance=1, facts=f"{facts}built by {record.builder}")

    def after_training(self, history: Sequence[TreeRecord]) -> None:
        self.progress.stop()


class LogLines(Callback):
    """A line per round to the logger `simfl`."""

    def after_tree(self, record: TreeRecord) -> None:
        metrics = {f"train {name}": value for name, value in record.train.items()}
        metrics |= {f"validation {name}": value for name, value in record.validation.items()}
        text = ", ".join(f"{name} {value:.5f}" for name, value in metrics.items())
        logger.info("[%d] %s (built by %s)", record.round, text, record.builder)


class SearchBar:
    """A progress bar over the search for similar rows, at a terminal; silence elsewhere."""

    def __init__(self, total: int, *, shown: bool | None = None) -> None:
        self.progress = _bar(shown=sys.stderr.isatty() if shown is None else shown)
        self.task = self.progress.add_task("finding similar rows", total=total)

    def __enter__(self) -> SearchBar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def listener(self) -> Callable[[int, int], None]:
        """Takes the progress of one party's searches, one after the other: rows done, rows in all."""
        before = 0

        def listen(done: int, total: int) -> None:
            nonlocal before
            self.progress.advance(self.task, done - before)
            before = done if done < total else 0

        return listen


@contextmanager
def telling_of_compilation(tell: Callable[[], None] | None = None) -> Iterator[None]:
    """While this lasts, say so once if Numba compiles: the first training after an install does, for some seconds.

    Later ones find the machine code in Numba's cache. `tell`: how to say it; by default a line at a terminal.
    """
    from numba.core import event

    class Listener(event.Listener):  # type: ignore[misc,unused-ignore]
        told = False

        def on_start(self, event: Any) -> None:
            if not self.told:
                self.told = True
                tell() if tell else _tell_of_compilation()

        def on_end(self, event: Any) -> None:
            """Nothing is said when it is over: the progress bar continues."""

    with event.install_listener("numba:compile", Listener()):
        yield


def _tell_of_compilation() -> None:
    logger.info(COMPILING)
    if sys.stderr.isatty():
        Console(stderr=True).print(COMPILING, style="dim", highlight=False)


def checked_callbacks(callbacks: Any) -> list[Callback]:
    """The callbacks as a list; refuses what is none."""
    given = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    for callback in given:
        if not isinstance(callback, Callback):
            raise ParameterError(f"callbacks has {callback!r}, which is no simfl.Callback. Give a list of them.")
    return given


def default_callbacks(verbose: int | None = None) -> list[Callback]:
    """A progress bar at a terminal, silence elsewhere, or as `verbose` says."""
    if verbose is None:
        return [ProgressBar()] if sys.stderr.isatty() else []
    shown: dict[int, list[Callback]] = {0: [], 1: [ProgressBar()], 2: [LogLines()]}
    if verbose not in shown:
        raise ParameterError(f"verbose={verbose!r} is not possible: 0 shows nothing, 1 a bar, 2 a line per tree.")
    return shown[verbose]
