"""The hub asks, adds up and gives out; rows and labels stay at the parties, and nothing here imports them.

`preparation` is stage 1, `training` stage 2: its loop, with one round in `round`. `state` is all that a training is,
changed by the entries of its `journal` alone.
"""

from simfl.hub.handshake import MaskSteps, check_same_form, describe, description_request, fresh_seed
from simfl.hub.joint import GrownTogether, JointOrder, agree_on_cuts, open_joint_journal, train_together
from simfl.hub.labels import Labels, agree_on_labels, check_labels
from simfl.hub.matching import recall
from simfl.hub.preparation import Prepared, prepare
from simfl.hub.presence import Recovery
from simfl.hub.training import Training, train

__all__ = [
    "GrownTogether",
    "JointOrder",
    "Labels",
    "MaskSteps",
    "Prepared",
    "Recovery",
    "Training",
    "agree_on_cuts",
    "agree_on_labels",
    "check_labels",
    "check_same_form",
    "describe",
    "description_request",
    "fresh_seed",
    "open_joint_journal",
    "prepare",
    "recall",
    "train",
    "train_together",
]
