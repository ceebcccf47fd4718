"""SimFL: gradient-boosted trees across organisations that cannot pool their rows.

The public names are loaded when they are first used, so that `import simfl` and `simfl --help` take no time.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simfl import baselines, datasets, partition
    from simfl.callbacks import Callback
    from simfl.data.table import survival_bounds
    from simfl.errors import SimFLError
    from simfl.estimator import SimFLClassifier, SimFLRegressor, SimFLSurvival
    from simfl.federation import Preparation, prepare, train
    from simfl.model import Model, load
    from simfl.party import Party

__all__ = ["Callback", "Model", "Party", "Preparation", "SimFLClassifier", "SimFLError", "SimFLRegressor"]
__all__ += ["SimFLSurvival", "baselines", "datasets", "load", "partition", "prepare", "survival_bounds", "train"]
__version__ = "0.1.0"

_HOMES = {"Callback": "callbacks", "SimFLError": "errors", "Model": "model", "load": "model", "Party": "party"}
_HOMES |= {"SimFLClassifier": "estimator", "SimFLRegressor": "estimator", "SimFLSurvival": "estimator"}
_HOMES |= {"survival_bounds": "data.table"}
_HOMES |= {"Preparation": "federation", "prepare": "federation", "train": "federation"}

if not TYPE_CHECKING:  # a type checker would take every name for one of ours

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            found = getattr(import_module(f"simfl.{_HOMES[name]}"), name)
        elif not name.startswith("_") and find_spec(f"simfl.{name}"):  # a module, as `simfl.errors`
            found = import_module(f"simfl.{name}")
        else:
            raise AttributeError(f"module 'simfl' has no attribute {name!r}")
        return globals().setdefault(name, found)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
