"""What a table has spent of its privacy: kept on its party's disk, over all runs and restarts.

One ledger is the account of one table. Whoever renames the file, edits a cell, appends rows or learns another column
still has the same rows to protect, so none of that begins a new account; every entry says which file it was for. Only
the party's own people begin one, by naming another ledger.

A run is charged in full before its first noisy sum can leave: a crash may count too much, never too little. When it is
resumed it is not charged again; what it has released (`Account.releases`) is on the disk, too, and still counts.
Runs are composed as dp-accounting composes Gaussian mechanisms: with multipliers z_i of their noise they are one with
1 / z**2 = sum of 1 / z_i**2. That is less than the sum of their epsilons.
"""

from __future__ import annotations

import hashlib
import math
import shlex
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from simfl.errors import FileError, PrivacyError
from simfl.params import Params, is_private
from simfl.privacy.guarantee import epsilon_of, multiplier
from simfl.storage import locked, require_private_file, write_atomically

_FIRST = "simfl ledger 1"
_ROUNDING = 1 + 1e-9  # a run that takes exactly what is left still fits
Positive = Annotated[float, Meta(gt=0)]


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run costs: all that it releases is one mechanism, whose noise is in units of what a row can change."""

    multiplier: Positive
    epsilon: Positive  # as the study states it
    delta: Positive
    rows: Annotated[int, Meta(ge=1)] = 1  # of a person, whom the run protects; 1: it protects rows


class TableFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Which file an entry was for. It does not decide which account is charged."""

    data: str
    label: str | None
    content: str  # a digest


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run that was charged."""

    run: str
    date: str
    study: str  # its digest
    event: Event
    table: TableFacts


@dataclass(frozen=True)
class Limit:
    """`epsilon_total` and `delta_total` of a party. Without an epsilon, runs are written down and not limited."""

    epsilon: float | None
    delta: float


@dataclass(frozen=True)
class Ledger:
    """The account of one table."""

    path: Path
    who: str
    limit: Limit

    def check(self, run: str, study: str, event: Event) -> None:
        """Refuse a run that would spend more than is left. A run that was charged before costs nothing."""
        entries = self.entries()
        known = [entry for entry in entries if entry.run == run]
        if known:
            self._refuse_other(known[0], study, event)
        elif self.limit.epsilon is not None:
            together = [*(entry.event for entry in entries), event]
            if _precision(together) > _ROUNDING / multiplier(self.limit.epsilon, self.limit.delta) ** 2:
                raise PrivacyError(
                    self._exceeded(entries, event), public="epsilon_total of this party would be exceeded"
                )

    def charge(self, run: str, study: str, event: Event, table: TableFacts) -> None:
        """Write a run down, once, if it fits. It is on the disk when this returns."""
        with locked(self.path):
            self.check(run, study, event)
            entries = self.entries()
            if run not in {entry.run for entry in entries}:
                date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                entries.append(Entry(run=run, date=date, study=study, event=event, table=table))
                for path in (self.path, self._copy):
                    write_atomically(path, _to_bytes(entries), private=True)

    def spent(self) -> float:
        """The epsilon of all runs together, at the delta of the limit."""
        return self.epsilon_of(entry.event for entry in self.entries())

    def left(self) -> float:
        """The epsilon that one more run may have, at the same delta."""
        if self.limit.epsilon is None:
            return math.inf
        rest = 1 / multiplier(self.limit.epsilon, self.limit.delta) ** 2 - _precision(e.event for e in self.entries())
        return epsilon_of(1 / math.sqrt(rest), self.limit.delta) if rest > 0 else 0.0

    def epsilon_of(self, events: Iterable[Event]) -> float:
        """The epsilon of these events together, at the delta of the limit."""
        precision = _precision(events)
        return epsilon_of(1 / math.sqrt(precision), self.limit.delta) if precision else 0.0

    def entries(self) -> list[Entry]:
        """All runs so far. Every charge is in both files before a sum leaves: the longer one has them all."""
        if self._copy.exists() and not self.path.exists():
            raise FileError(f"The ledger {self.path} is gone, its copy is there. Run: {self._repair(self._copy)}")
        both = [self._read(path) if path.exists() else [] for path in (self.path, self._copy)]
        shorter, longer = sorted(both, key=len)
        if longer[: len(shorter)] != shorter:
            raise FileError(f"{self.path} and its copy {self._copy} are not of one ledger. Keep the right one of them.")
        return longer

    @property
    def _copy(self) -> Path:
        return self.path.with_name(f"{self.path.name}.copy")

    def _read(self, path: Path) -> list[Entry]:
        require_private_file(path)
        try:
            return _from_bytes(path.read_bytes())
        except OSError as error:
            raise FileError(f"The ledger {path} cannot be read: {error.strerror}.") from None
        except (ValueError, msgspec.MsgspecError):
            other = self._copy if path == self.path else self.path
            raise FileError(f"The ledger {path} is damaged. If {other} is whole, run: {self._repair(other)}") from None

    def _repair(self, source: Path) -> str:
        target = self._copy if source == self.path else self.path
        return f"cp -p {shlex.quote(str(source))} {shlex.quote(str(target))}"

    def _refuse_other(self, known: Entry, study: str, event: Event) -> None:
        then = known.event  # its noise follows from the study: another accountant may round it differently
        if (known.study, then.epsilon, then.delta) != (study, event.epsilon, event.delta):
            fact = f"{self.who} has charged the run {known.run!r} for another study"
            raise PrivacyError(f"{fact} (digest {known.study}). Start a new training.", public=f"{fact}.")

    def _exceeded(self, entries: list[Entry], event: Event) -> str:
        total, delta = self.limit.epsilon, self.limit.delta
        asked, together = self.epsilon_of([event]), self.epsilon_of([*(entry.event for entry in entries), event])
        return (
            f"{self.who} has spent epsilon {self.spent():.4g} on this table in {len(entries)} runs (delta {delta:g}). "
            f"The study asks for {asked:.4g}, together {together:.4g}; epsilon_total is {total:g}, so a study with up "
            f"to {self.left():.4g} would fit. Agree on less, or raise epsilon_total in party.toml. The runs are in "
            f"{self.path}. If the table has changed altogether, give it a ledger of its own."
        )


@dataclass(frozen=True)
class Account:
    """One run's part in a ledger. `file`: what the run has released, in its folder."""

    ledger: Ledger
    run: str
    study: str
    table: TableFacts
    file: Path

    def charge(self, event: Event) -> None:
        """The run begins, or is resumed. Without the record of its releases, all of them count as made."""
        if any(entry.run == self.run for entry in self.ledger.entries()):
            self._read()
        elif not self.file.exists():
            write_atomically(self.file, b"[]", private=True)
        self.ledger.charge(self.run, self.study, event, self.table)

    @contextmanager
    def releases(self) -> Iterator[set[str]]:
        """What was released; what is added is on the disk after."""
        with locked(self.file):
            released = self._read()
            yield released
            write_atomically(self.file, msgspec.json.encode(sorted(released)), private=True)

    def _read(self) -> set[str]:
        try:
            return msgspec.json.decode(self.file.read_bytes(), type=set[str])
        except (OSError, ValueError, msgspec.MsgspecError):
            raise FileError(
                f"{self.file} is missing or damaged, so all that the run {self.run!r} may release counts as released. "
                "Start a new training."
            ) from None


def event_of(params: Params) -> Event | None:
    """What a training with these parameters costs; None without noise."""
    if not is_private(params):
        return None
    return Event(
        multiplier=multiplier(params.epsilon, params.delta),
        epsilon=params.epsilon,
        delta=params.delta,
        rows=params.max_rows_per_person or 1,
    )


def _precision(events: Iterable[Event]) -> float:
    """1 / z**2 of these events together."""
    return math.fsum(event.multiplier**-2 for event in events)


# --- the file: one line per entry, each with a digest of itself and all before ----------------------------------------


def _to_bytes(entries: Iterable[Entry]) -> bytes:
    lines = [_FIRST]
    for entry in entries:
        text = msgspec.json.encode(entry).decode()
        lines.append(f"{_chained(lines[-1], text)} {text}")
    return "".join(f"{line}\n" for line in lines).encode()


def _from_bytes(data: bytes) -> list[Entry]:
    """The entries; ValueError where a line is not the one that was written."""
    first, *lines, end = data.decode().split("\n")
    if first != _FIRST or end:
        raise ValueError("not a whole ledger")
    entries = []
    for before, line in zip([first, *lines], lines, strict=False):
        digest, _, text = line.partition(" ")
        if digest != _chained(before, text):
            raise ValueError("a changed line")
        entries.append(msgspec.json.decode(text, type=Entry))
    return entries


def _chained(before: str, text: str) -> str:
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()[:16]
