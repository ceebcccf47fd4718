"""The hub asks, adds up and gives out; rows and labels stay at the parties, and nothing here imports them.

`preparation` is stage 1, `training` stage 2: its loop, with one round in `round`. `state` is all that a training is,
changed by the entries of its `journal` alone.
"""

from simfl.hub.handshake import MaskSteps, check_same_form, describe, description_request, fresh_seed
from simfl.hub.labels import Labels, agree_on_labels, check_labels
from simfl.hub.matching import recall
from simfl.hub.preparation import Prepared, prepare
from simfl.hub.training import Recovery, Training, train

__all__ = [
    "Labels",
    "MaskSteps",
    "Prepared",
    "Recovery",
    "Training",
    "agree_on_labels",
    "check_labels",
    "check_same_form",
    "describe",
    "description_request",
    "fresh_seed",
    "prepare",
    "recall",
    "train",
]
