"""What the submitter orders of the hub, and which files come of it."""

from __future__ import annotations

import base64

import msgspec

from simfl import messages as msg
from simfl.deploy.study import Study

RESULTS = ("model.ubj", "history.json", "run.json")
ORDER_FILE = "order.json"  # in the submitter's run folder
SEALED = "model.sealed"  # in the place of model.ubj, where the hub sees nothing


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


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """order.json in the submitter's run folder: what `--resume` needs."""

    run: str
    seed: int
    local: bool
    finished: bool = False


def results_of(study: Study) -> tuple[str, ...]:
    """The files that a training of this study leaves at the hub."""
    params = study.params()
    blind = params.recipe == "joint" and params.masked is not False
    return (SEALED, *RESULTS[1:]) if blind else RESULTS
