"""Who takes part in a training: it survives the loss of parties, and counts those in again that are back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from simfl.callbacks import logger
from simfl.errors import PartyLost
from simfl.storage import Journal
from simfl.transport.base import Transport

E = TypeVar("E")


@dataclass(frozen=True)
class Recovery(Generic[E]):
    """How a training survives: where it is written down, and with how few parties it continues (None: with all)."""

    journal: Journal[E]
    min_parties: int | None = None

    def leave_out(self, lost: PartyLost, transport: Transport) -> None:
        """Continue without the lost parties; where too few are left, the loss ends the training."""
        transport.parties = [party for party in transport.parties if party not in lost.parties]
        if self.min_parties is None or len(transport.parties) < max(self.min_parties, 1):
            raise lost
        left = ", ".join(transport.parties)
        text = f"{', '.join(lost.parties)} {lost.word}; continuing with {left}"
        logger.warning("%s", text, extra={"event": "lost"})


def welcome_back(transport: Transport, parties: Sequence[str]) -> bool:
    """Count those of the parties in again that were lost and answer now."""
    back = transport.returned()
    if back:
        present = (*transport.parties, *back)
        transport.parties = [party for party in parties if party in present]
        logger.info("%s is back and takes part again", ", ".join(back), extra={"event": "back"})
    return bool(back)
