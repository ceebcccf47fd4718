"""What submitter and hub say to each other: orders, questions about a training or about everything, and results."""

from __future__ import annotations

import base64

import msgspec

from simfl import messages as msg
from simfl.callbacks import TreeRecord
from simfl.deploy.study import Study

RESULTS = ("model.ubj", "history.json", "run.json")
ORDER_FILE = "order.json"  # in the submitter's run folder
SEALED = "model.sealed"  # in the place of model.ubj, where the hub sees nothing
PIECE = 512 * 1024  # bytes of a result per answer to the submitter
MOST_RECORDS = 200  # trees per answer to the submitter


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the submitter orders: a study, under a name that stays the same when it is resumed."""

    run: str
    study: str
    seed: int
    receiver: msg.SignedKey | None = None  # the submitter's key, for a model that the hub does not get to see

    def to_text(self) -> str:
        """The order as an argument in a job's configuration, where FLARE would interpret braces."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()

    @classmethod
    def from_text(cls, text: str) -> Order:
        """The order that `to_text` wrote."""
        return msgspec.json.decode(base64.urlsafe_b64decode(text), type=cls)


def results_of(study: Study) -> tuple[str, ...]:
    """The files that a training of this study leaves at the hub."""
    params = study.params()[1]
    blind = params.recipe == "joint" and params.hub_sees == "nothing" and params.masked is not False
    return (SEALED, *RESULTS[1:]) if blind else RESULTS


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
    time: float = 0.0  # by the hub's clock


class Piece(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A piece of a result file."""

    size: int  # of the whole file
    data: bytes
