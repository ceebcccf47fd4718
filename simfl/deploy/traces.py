"""What a run leaves on disks, where, and until when: the table of the documentation, and of the page for the file.

Nothing expires by itself. `simfl forget RUN` removes what a run left at one place (`forget.py`); logs, the ledger and
the record of what was forgotten stay. A test compares this table with the files of real runs.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

Place = Literal["party", "hub", "submitter"]
FORGET = "until `simfl forget RUN`"
ROTATED = "six files of 5 MB at most, then the oldest goes; not by `simfl forget`"
BY_HAND = "until somebody removes it; not by `simfl forget`"


class Kept(NamedTuple):
    """One kind of file. `files` are patterns, relative to the folder of party.toml, to the kit, or to the study."""

    place: Place
    files: tuple[str, ...]
    holds: str
    until: str = FORGET

    def covers(self, path: str) -> bool:
        """Whether a file, named relative to its place, is of this kind."""
        return any(fnmatchcase(path, pattern) for pattern in self.files)


KEPT = (
    Kept("party", ("runs/*/study.toml",), "the study as it was approved"),
    Kept(
        "party",
        ("runs/*/journal", "runs/*/journal.damaged-*"),
        "time, kind, size and protections of every message sent",
    ),
    Kept(
        "party",
        ("runs/*/similar-*.npz",),
        "numbers of own rows, and of rows of others that resemble them; the parties' secret",
    ),
    Kept(
        "party",
        ("runs/*/together.key",),
        "the parties' secret, if they have one, and this party's own (joint recipe)",
    ),
    Kept(
        "party",
        ("runs/*/noise.key",),
        "the key behind the run's noise: with it, noise can be taken off what was sent (joint recipe with epsilon)",
    ),
    Kept(
        "party",
        ("runs/*/released.json", "runs/*/released.json.lock"),
        "which noisy sums were released, as digests (with epsilon)",
    ),
    Kept("party", ("runs/*/stage.json", "runs/*/pid"), "how far the training has come, for `simfl runs`"),
    Kept("party", ("runs/*/model.ubj",), "the model"),
    Kept(
        "party",
        ("runs/*/history.json", "runs/*/run.json", "runs/*/report.html"),
        "the course of the training, and what this party gains from it",
    ),
    Kept("party", ("kit/JOB/*",), "FLARE's copy of the job"),
    Kept(
        "party",
        ("kit/log.txt*", "kit/flare.txt*"),
        "the log of the process, with what went wrong in this party's own words; FLARE's own log",
        ROTATED,
    ),
    Kept("party", ("runs/*/figures.json",), "counts, bytes and seconds per kind of message"),
    Kept("party", ("kit/refusals.txt",), "when this party refused something", BY_HAND),
    Kept("party", ("kit/pid",), "the number of the process that runs", "until it ends"),
    Kept("party", ("kit/audit.log",), "FLARE's list of commands, with the names of runs", BY_HAND),
    Kept(
        "party", ("ledger", "ledger.*"), "what the table has spent with epsilon", "for ever: it protects the same rows"
    ),
    Kept(
        "party",
        ("forgotten", "forgotten.lock"),
        "which runs were forgotten: when, and digests of their files",
        "for ever",
    ),
    Kept(
        "hub",
        ("runs/*/journal", "runs/*/journal.damaged-*"),
        "the trees (joint recipe: nothing readable), metrics, who was there",
    ),
    Kept("hub", ("runs/*/stage.json", "runs/*/pid"), "how far the training has come, for `simfl runs`"),
    Kept("hub", ("runs/*/prepared.json",), "columns, rows per party, and sums per column"),
    Kept("hub", ("runs/*/model.ubj", "runs/*/model.sealed"), "the model (joint recipe: sealed for the submitter)"),
    Kept("hub", ("runs/*/history.json", "runs/*/run.json", "runs/*/report.html"), "the course of the training"),
    Kept("hub", ("runs/*/figures.json",), "counts, bytes and seconds per kind of message; who was there"),
    Kept("hub", ("kit/refusals.txt",), "when a training ended with a refusal", BY_HAND),
    Kept("hub", ("kit/JOB/*", "kit/store/jobs/*"), "FLARE's copy of the job, with the study"),
    Kept("hub", ("kit/log.txt*", "kit/flare.txt*"), "the log of the process, and FLARE's own", ROTATED),
    Kept("hub", ("kit/pid",), "the number of the process that runs", "until it ends"),
    Kept("hub", ("kit/connections.json",), "the parties: since when connected, versions, expiry", BY_HAND),
    Kept("hub", ("kit/audit.log",), "FLARE's list of commands, with the names of runs", BY_HAND),
    Kept("hub", ("forgotten", "forgotten.lock"), "which runs were forgotten", "for ever"),
    Kept("submitter", ("runs/*/study.toml", "runs/*/order.json", "runs/*/began"), "the study, and what a resume needs"),
    Kept("submitter", ("runs/*/stage.json", "runs/*/pid"), "how far the training has come, for `simfl runs`"),
    Kept("submitter", ("runs/*/log.txt*", "runs/*/flare.txt*"), "the log of the training, and FLARE's own"),
    Kept("submitter", ("runs/*/receiver.key", "runs/*/model.sealed"), "the sealed model and its key (joint recipe)"),
    Kept("submitter", ("runs/*/model.ubj",), "the model"),
    Kept("submitter", ("runs/*/history.json", "runs/*/run.json", "runs/*/report.html"), "the course of the training"),
    Kept("submitter", ("runs/*/federation/*",), "kits and files of all (only with `--local-processes`, to try it out)"),
    Kept("submitter", ("forgotten", "forgotten.lock"), "which runs were forgotten", "for ever"),
)
