"""The model: a plain XGBoost booster, and how it came about."""

from simfl.model.model import (
    About,
    Model,
    build,
    check_target,
    from_booster,
    from_bytes,
    load,
    predictions,
    warm_start,
    with_account,
)
from simfl.model.xgboost_document import WarmStart

__all__ = [
    "About",
    "Model",
    "WarmStart",
    "build",
    "check_target",
    "from_booster",
    "from_bytes",
    "load",
    "predictions",
    "warm_start",
    "with_account",
]
