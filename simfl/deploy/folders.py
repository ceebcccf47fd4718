"""The folder of a run, from which an interrupted training continues."""

import re
import secrets
import shutil
from datetime import datetime
from pathlib import Path

import msgspec

from simfl.deploy.forget import refuse_forgotten
from simfl.deploy.orders import ORDER_FILE, RunInfo
from simfl.deploy.study import Study
from simfl.errors import FileError, ProtocolError, StudyError
from simfl.storage import private_folder, write_atomically

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


def open_run_folder(parent: Path, run: str) -> Path:
    """The folder of a run, new or as an earlier job left it. Who owns it calls `remove_partial_files`."""
    if not RUN_NAME.fullmatch(run):
        raise ProtocolError(f"A training cannot be called {run!r}.")
    refuse_forgotten(parent, run)
    folder = parent / "runs" / run
    private_folder(folder)
    return folder


def remove_partial_files(folder: Path) -> None:
    """Remove what a kill left half written. Only unfinished files have a name that begins with a dot."""
    for left in folder.glob(".*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


# --- the submitter's --------------------------------------------------------------------------------------------------


def begin_run(study_path: Path, study: Study, out: Path | None, local: bool) -> tuple[Path, RunInfo]:
    """A new run folder."""
    now = f"{study.name}-{datetime.now():%Y%m%d-%H%M%S}"
    folder = (out or _runs(study_path) / now).resolve()
    if (folder / ORDER_FILE).exists():
        raise FileError(f"{folder} holds a training already. Use --resume to continue it, or another --out.")
    folder.mkdir(parents=True, exist_ok=True)
    seed = study.parameters.get("random_state")
    seed = secrets.randbits(62) if seed is None else seed
    info = RunInfo(run=f"{now}-{secrets.token_hex(2)}", seed=seed, local=local)
    write_atomically(folder / "study.toml", study_path.read_bytes())
    write_atomically(folder / ORDER_FILE, msgspec.json.encode(info))
    return folder, info


def latest_run(study_path: Path, study: Study, out: Path | None) -> tuple[Path, RunInfo]:
    """The run folder to resume: the one given, or the study's latest."""
    begun = re.compile(re.escape(study.name) + r"-\d{8}-\d{6}")  # not those of a study whose name begins alike
    found = [out.resolve()] if out else [f for f in _runs(study_path).glob("*") if begun.fullmatch(f.name)]
    found = [folder for folder in found if (folder / ORDER_FILE).exists()]
    found.sort(key=lambda folder: ((folder / "study.toml").stat().st_mtime_ns, folder.name))  # as they began
    if not found:
        raise FileError(f"There is no training to resume in {out or _runs(study_path)}. Leave out --resume.")
    folder = found[-1]
    if (folder / "study.toml").read_bytes() != study_path.read_bytes():
        raise StudyError(
            f"{study_path} has changed since {folder} began. Put it back (a copy is {folder / 'study.toml'}), or start "
            "a new training without --resume."
        )
    return folder, msgspec.json.decode((folder / ORDER_FILE).read_bytes(), type=RunInfo)


def _runs(study_path: Path) -> Path:
    return study_path.resolve().parent / "runs"
