"""The submitter's connection to the hub: submit a FLARE job, ask how it is going, abort it.

Nothing here, nor in what it imports, loads a table or a tree: `simfl status` is asked often.
"""

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from simfl.deploy.answers import READY, STATUS, HubStatus, Piece, Question, Status
from simfl.deploy.course import DONE
from simfl.deploy.way import NotYet, try_way
from simfl.errors import EngineError, FileError
from simfl.privacy.certificates import SUBMITTER
from simfl.storage import require_private
from simfl.transport.lifetime import PROGRESS

WAITING = ("SUBMITTED", "APPROVED")  # FLARE's words for a job that it has yet to start, also after its own restart

NO_SESSION = ("ERROR_SERVER_CONNECTION", "ERROR_INACTIVE_SESSION", "ERROR_AUTHENTICATION")  # FLARE's words as well
CUT = "the hub did not answer in time, or has forgotten this session"


class HubLost(EngineError):  # noqa: N818 - it is what happened
    """The hub is gone, or the connection to it."""


def submitter_kit(study_path: Path, given: Path | None) -> Path:
    """The submitter's kit: the one given, or the one beside the study."""
    kit = (given or study_path.parent / "kits" / "submitter").resolve()
    if not (kit / "startup" / "fed_admin.json").exists():
        raise FileError(
            f"There is no submitter's kit at {kit}. Give --kit; `simfl join {study_path} --name submitter` makes one. "
            f"To try things out, `simfl provision {study_path}` makes all kits, and --local-processes needs none."
        )
    return kit


def _obstacle(kit: Path) -> str:
    """What is in the way to the hub, in plainer words than FLARE's."""
    try:
        try_way(kit)
    except (NotYet, EngineError) as obstacle:
        return str(obstacle).rstrip(".")
    return ""


def _is_cut(error: Exception) -> bool:
    """Whether FLARE got no answer in time, or one of a hub that was started meanwhile: a new session is needed."""
    from nvflare.fuel.flare_api.api_spec import AuthenticationError, NoConnection, SessionClosed

    return isinstance(error, (NoConnection, SessionClosed, AuthenticationError, TimeoutError))


class Submitter:
    """A session with the hub."""

    def __init__(self, kit: Path) -> None:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        from simfl.deploy.goodbye import hear_of_hub

        require_private(kit / "startup", kit)
        self.kit = kit
        self.gone = ""  # what became of the hub
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                self.session = new_secure_session(SUBMITTER, str(kit), timeout=60.0)
        except Exception as error:  # noqa: BLE001 - FLARE raises many kinds
            raise HubLost(f"The hub cannot be reached with the kit {kit}: {_obstacle(kit) or error}.") from None
        hear_of_hub(self.session.api.get_cell(), self._hub_gone)

    def _hub_gone(self, goodbye: bool) -> None:
        self.gone = "the hub was stopped by its operator" if goodbye else "the connection to the hub broke"

    def close(self) -> None:
        """End the session."""
        with contextlib.suppress(Exception):
            self.session.close()

    def heard(self) -> dict[str, float]:
        """The parties that the hub knows, and when it last heard from each."""
        known = self._do(self.session.get_connected_client_list)
        return {client.name: float(client.last_connect_time) for client in known}

    def hub(self) -> HubStatus:
        """What the hub knows of parties and trainings."""
        found: HubStatus = _as(HubStatus, self._command(STATUS))
        return found

    def ready(self, job: str) -> bool:
        """Whether the hub's end of this job answers questions yet."""
        return bool(self._command(f"{READY} {job}").get("ready"))

    def runs(self, job: str) -> bool:
        """Whether the hub runs this job, or is about to. FLARE alone says so of a job that ended with its hub, too."""
        if self._command(f"{READY} {job}").get("runs"):
            return True
        try:
            return self.status(job) in WAITING
        except HubLost:
            raise
        except EngineError:  # FLARE does not know it any more
            return False

    def job_of(self, run: str) -> str:
        """The last job of a training at the hub, unless it has ended without a model; "" if there is none."""
        known = self.hub().trainings
        return next((s.job for s in known if s.run == run and (s.stage == DONE or not s.ended)), "")

    def submit(self, folder: Path) -> str:
        """Start the job in this folder; returns its id."""
        job: str = self._do(self.session.submit_job, str(folder))
        return job

    def status(self, job: str) -> str:
        """FLARE's word for the state of the job."""
        return str(self._do(self.session.get_job_status, job))

    def ask(self, job: str, question: Question) -> Status | Piece | None:
        """Ask the hub about a running training; None while it is not running."""
        self._check()
        try:
            answer = self.session.do_app_command(job, PROGRESS, msgspec.to_builtins(question))
        except Exception:  # noqa: BLE001 - not yet or no longer: the status says which
            return None
        found: Status | Piece = _as(Status | Piece, answer)
        return found

    def abort(self, job: str) -> None:
        """End a job now, if there is a hub."""
        with contextlib.suppress(Exception):
            self._check()
            self.session.abort_job(job)

    def _command(self, command: str) -> dict[str, Any]:
        """One of our own commands to the hub's process."""
        reply = self._do(self.session.do_command, command)
        data = reply.get("data", ())
        found = [item["data"] for item in data if isinstance(item, dict) and item.get("type") == "dict"]
        if not found and reply.get("status") in NO_SESSION:
            self._check()
            raise HubLost(CUT)
        if not found:
            raise EngineError(f"The hub did not answer: {reply.get('details') or reply.get('status')}.")
        return dict(found[0])

    def _check(self) -> None:
        """Ask nothing of a hub that is gone: FLARE would wait for an answer."""
        if self.gone:
            raise HubLost(self.gone)

    def _do(self, command: Callable[..., Any], *args: Any) -> Any:
        self._check()
        try:
            return command(*args)
        except Exception as error:  # noqa: BLE001 - FLARE raises many kinds
            self._check()
            if obstacle := _obstacle(self.kit):
                raise HubLost(f"the hub is lost: {obstacle}") from None
            if _is_cut(error):  # and the hub answers again
                raise HubLost(CUT) from None
            raise EngineError(f"The hub refused, or the connection broke: {error}.") from None


def _as(kind: Any, answer: Any) -> Any:
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise EngineError(
            f"The hub answers in a form that is not known here ({error}). Install the same version of simfl everywhere."
        ) from None
