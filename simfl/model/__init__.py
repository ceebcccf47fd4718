"""The model: a plain XGBoost booster, and how it came about."""

from simfl.model.model import Model, adopt, build, check_target, dissect, load

__all__ = ["Model", "adopt", "build", "check_target", "dissect", "load"]
