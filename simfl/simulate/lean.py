"""A lean start for a command on a small table: XGBoost without scikit-learn, and without threads.

XGBoost imports scikit-learn for its own estimators, wherever it is installed: that takes three times as long as XGBoost
itself. And it starts threads, whatever it is asked for, to look for NaN among the labels; where all cores are busy
already, they wait for each other longer than the work takes.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

THREADS = "OMP_NUM_THREADS"


@contextmanager
def one_thread() -> Iterator[None]:
    """What is imported in this block for the first time, and processes that begin in it, use one thread if not told."""
    before = os.environ.get(THREADS)
    os.environ.setdefault(THREADS, "1")
    try:
        yield
    finally:
        if before is None:
            del os.environ[THREADS]


def import_xgboost() -> None:
    """Import XGBoost as if scikit-learn were not installed, unless one of the two is there already.

    Only for a process that is ours alone: its XGBoost has no estimators. scikit-learn itself stays at hand.
    """
    if "xgboost" in sys.modules or "sklearn" in sys.modules:
        return
    sys.modules["sklearn"] = None  # type: ignore[assignment] # Python's word for "not to be found"
    try:
        import xgboost  # noqa: F401
    finally:
        del sys.modules["sklearn"]
