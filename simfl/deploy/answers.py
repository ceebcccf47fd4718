"""What the submitter asks, what a hub answers, and what the hub's lasting process keeps of the parties.

Nothing here, nor in what it imports, loads a table or a tree: that process runs for months, a training in one of its
own, and `simfl status` is asked often.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import msgspec

from simfl.callbacks import TreeRecord
from simfl.deploy.course import Stage

STATUS, READY = "simfl_status", "simfl_ready"  # commands of the submitter to the hub's own process
CONNECTIONS = "connections.json"  # in the hub's kit: what it knows of the parties
PARTY_FILE = "SIMFL_PARTY_FILE"  # the environment variable that says where a party's party.toml is
PIECE = 512 * 1024  # bytes of a result per answer to the submitter
MOST_BYTES = 2**32  # of a result: a hub that lies does not fill the submitter's memory without end
MOST_RECORDS = 200  # trees per answer to the submitter
STALE = 25.0  # seconds: a site reports every ten, and one that is this late is not connected


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """A party, as the hub sees it. Versions and expiry are what the party says of itself."""

    name: str
    connected: bool = False
    left: bool = False  # it said goodbye
    since: float = 0.0  # it is connected, or not any more
    heard: float = 0.0
    versions: dict[str, str] = {}
    expires: float = 0.0  # its certificate


class HubStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the hub answers to `simfl status`."""

    time: float  # by the hub's clock
    since: float
    versions: dict[str, str]
    expires: float  # its certificate
    parties: list[Connection] = []
    trainings: list[Stage] = []


# --- of a training ----------------------------------------------------------------------------------------------------


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What the submitter asks: the status with the trees from `since` on, or a piece of a result file."""

    since: int = 0
    file: str = ""
    at: int = 0  # where the piece begins
    collected: bool = False  # the submitter needs nothing more
    stop: bool = False  # end the training; what is finished is kept


class Status(msgspec.Struct, kw_only=True, tag=True):
    """How the training is going."""

    stage: str = "starting"
    error: str = ""
    records: list[TreeRecord] = []
    connected: list[str] = []
    without_model: list[str] = []  # parties that have not received the model
    waiting: list[str] = []  # parties that have been asked some time ago and have not answered yet
    left: list[str] = []  # parties whose operators have stopped them
    time: float = 0.0  # by the hub's clock


class Piece(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A piece of a result file."""

    size: Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)]  # of the whole file
    data: bytes


# --- of the hub itself ------------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    """The packages that must fit together."""
    return {name: version(name) for name in ("simfl", "xgboost", "numpy", "nvflare")}


def read_connections(kit: Path, *, alive: bool) -> list[Connection]:
    """What the hub of this kit knows of the parties; of a hub that does not run, nobody is connected."""
    try:
        known = msgspec.json.decode((kit / CONNECTIONS).read_bytes(), type=list[Connection])
    except (OSError, msgspec.DecodeError):
        return []
    return [msgspec.structs.replace(party, connected=party.connected and alive) for party in known]
