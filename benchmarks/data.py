"""The data sets of the benchmarks, from the folder named by SIMFL_DATA or ../shared/data beside the project."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

NAMES = ("a9a", "cod-rna", "ijcnn1", "SUSY", "HIGGS")
_DENSE = {"cod-rna": "cod-rna_train", "ijcnn1": "ijcnn1_train", "SUSY": "susy_30k", "HIGGS": "higgs_46k"}


def folder() -> Path:
    """Where the data lies."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("SIMFL_DATA", default))


def load(name: str) -> tuple[Any, np.ndarray]:
    """Rows and 0/1 labels of a data set."""
    where = folder()
    try:
        if name == "a9a":
            X, y = sparse.load_npz(where / "a9a_train_X.npz").tocsr(), np.load(where / "a9a_train_y.npy")
        else:
            stored = np.load(where / f"{_DENSE[name]}.npz")
            X, y = stored["X"], stored["y"]
    except FileNotFoundError as error:
        raise SystemExit(f"{name} is not at {where}: set SIMFL_DATA to the folder that holds it ({error}).") from None
    return X, (y > 0).astype(np.int64)


def split(y: np.ndarray, seed: int, share: float = 0.25) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers for training and for the held-out part."""
    order = np.random.default_rng(seed).permutation(len(y))
    cut = round(share * len(y))
    return order[cut:], order[:cut]
