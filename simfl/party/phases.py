"""What a party may be asked when: one table. Whatever it does not have is refused."""

from enum import Enum
from typing import Final

from simfl import messages as msg


class Phase(Enum):
    """Where a session stands, in words for a refusal."""

    NEW = "before the handshake"
    READY = "before a training began"
    EXCHANGING = "while keys were being exchanged"
    SEARCHING = "while similar rows were being searched"
    TRAINING = "during a training"
    REMATCHING = "while similar rows were being searched during a training"
    TOGETHER = "while trees were being grown together"


# From each phase: what is accepted, and the phase that it leads to. What belongs before a training is accepted at any
# time after the handshake, and ends whatever was under way: the hub has lost a party and starts again with the others.
_BEFORE: Final[dict[type, Phase]] = {
    msg.Describe: Phase.READY,
    msg.Settle: Phase.READY,
    msg.DrawKey: Phase.EXCHANGING,
    msg.SumFeatures: Phase.READY,
    msg.Hash: Phase.SEARCHING,
    msg.Recall: Phase.READY,
    msg.DescribeLabels: Phase.READY,
    msg.SumLabels: Phase.READY,
    msg.Start: Phase.TRAINING,
    msg.StartTogether: Phase.TOGETHER,
}
ACCEPTS: Final[dict[Phase, dict[type, Phase]]] = {
    Phase.NEW: {msg.Describe: Phase.READY},
    Phase.READY: _BEFORE,
    Phase.EXCHANGING: {**_BEFORE, msg.TakeKeys: Phase.READY},
    Phase.SEARCHING: {**_BEFORE, msg.Match: Phase.READY, msg.TakeSimilar: Phase.READY},
    Phase.TRAINING: {
        **_BEFORE,
        msg.Replay: Phase.TRAINING,
        msg.Recall: Phase.TRAINING,
        msg.HashByTrees: Phase.REMATCHING,
        msg.SumOntoRows: Phase.TRAINING,
        msg.Grow: Phase.TRAINING,
        msg.SumPerLeaf: Phase.TRAINING,
        msg.Finish: Phase.READY,
    },
    Phase.REMATCHING: {**_BEFORE, msg.Match: Phase.TRAINING, msg.TakeSimilar: Phase.TRAINING},
    Phase.TOGETHER: {
        **_BEFORE,
        msg.Add: Phase.TOGETHER,
        msg.SendModel: Phase.TOGETHER,
    },
}
