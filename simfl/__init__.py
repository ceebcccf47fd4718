"""SimFL: gradient-boosted trees across organisations that cannot pool their rows."""

from simfl import baselines, partition
from simfl.callbacks import Callback
from simfl.errors import SimFLError
from simfl.estimator import SimFLClassifier, SimFLRegressor
from simfl.federation import Preparation, prepare, train
from simfl.model import Model, load
from simfl.party import Party

__all__ = [
    "Callback",
    "Model",
    "Party",
    "Preparation",
    "SimFLClassifier",
    "SimFLError",
    "SimFLRegressor",
    "baselines",
    "load",
    "partition",
    "prepare",
    "train",
]
__version__ = "0.1.0"
