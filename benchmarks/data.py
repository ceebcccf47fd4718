"""The data sets of the benchmarks, from the folder named by SIMFL_DATA.

A file of LIBSVM itself, where it lies there, goes before our own copies and samples: so the paper's six data sets can
be had whole. Their addresses all begin with https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/ (see
`LIBSVM`). No checksums are published for them: rows and columns are checked after reading, and every page of results
names the SHA-256 of the files it came from.
"""

from __future__ import annotations

import bz2
import hashlib
import io
import lzma
import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.datasets import load_svmlight_file

from simfl.data.files import read

NAMES = ("a9a", "cod-rna", "ijcnn1", "SUSY", "HIGGS")
MORE = ("bank", "pendigits", "housing")  # a table with categories, ten classes, a number to predict
PAPER_NAMES = ("a9a", "cod-rna", "real-sim", "ijcnn1", "SUSY", "HIGGS")
_DENSE = {"cod-rna": "cod-rna_train", "ijcnn1": "ijcnn1_train", "SUSY": "susy_30k", "HIGGS": "higgs_46k"}


@dataclass(frozen=True)
class LibsvmFile:
    """A file as LIBSVM offers it: its names there, the paper's rows of it and its columns."""

    names: tuple[str, ...]
    n_rows: int
    n_features: int
    dense: bool = True


LIBSVM = {
    "a9a": LibsvmFile(("a9a",), 32_561, 123, dense=False),
    "cod-rna": LibsvmFile(("cod-rna",), 59_535, 8),
    "real-sim": LibsvmFile(("real-sim", "real-sim.bz2"), 72_309, 20_958, dense=False),
    "ijcnn1": LibsvmFile(("ijcnn1", "ijcnn1.bz2"), 49_990, 22),
    "SUSY": LibsvmFile(("SUSY", "SUSY.bz2", "SUSY.xz"), 1_000_000, 18),
    "HIGGS": LibsvmFile(("HIGGS", "HIGGS.bz2", "HIGGS.xz"), 1_000_000, 28),
}


@dataclass(frozen=True)
class Source:
    """What a data set was read from, and how that compares with the paper's."""

    files: tuple[Path, ...]
    remark: str

    def digest(self) -> str:
        """The beginning of the SHA-256 over the files."""
        total = hashlib.sha256()
        for path in self.files:
            total.update(path.read_bytes())
        return total.hexdigest()[:16]


def folder() -> Path:
    """Where the data lies."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("SIMFL_DATA", default))


def source(name: str) -> Source:
    """Which files `load` reads for a data set."""
    where = folder()
    for candidate in LIBSVM[name].names:
        if (where / candidate).is_file():
            return Source((where / candidate,), "LIBSVM's file, as in the paper")
    if name == "a9a":
        return Source((where / "a9a_train_X.npz", where / "a9a_train_y.npy"), "as in the paper")
    if name == "real-sim":
        files = (f"reuters_{part}_{what}" for part in ("train", "test") for what in ("X.npz", "y.npy"))
        return Source(tuple(where / f for f in files), "STAND-IN: Reuters, 11,069 x 8,315 text, instead of real-sim")
    sample = {
        "SUSY": "SAMPLE of 30,000 rows; the paper has 1,000,000",
        "HIGGS": "SAMPLE of 46,239 rows; the paper has 1,000,000",
    }
    return Source((where / f"{_DENSE[name]}.npz",), sample.get(name, "as in the paper"))


def load(name: str) -> tuple[Any, np.ndarray]:
    """Rows and 0/1 labels of a data set."""
    found = source(name)
    try:
        if found.files[0].name in LIBSVM[name].names:
            X, y = read_libsvm(found.files[0], LIBSVM[name])
        elif name == "a9a":
            X, y = sparse.load_npz(found.files[0]).tocsr(), np.load(found.files[1])
        elif name == "real-sim":
            X = sparse.vstack([sparse.load_npz(found.files[0]), sparse.load_npz(found.files[2])]).tocsr()
            y = np.concatenate([np.load(found.files[1]), np.load(found.files[3])])
        else:
            stored = np.load(found.files[0])
            X, y = stored["X"], stored["y"]
    except FileNotFoundError as error:
        raise SystemExit(
            f"{name} is not at {folder()}: set SIMFL_DATA to the folder that holds it ({error})."
        ) from None
    return X, (y > 0).astype(np.int64)


def load_with_objective(name: str) -> tuple[Any, np.ndarray, str]:
    """Rows, labels and objective of any of these and of `MORE`. Bank marketing is a frame, with text as categories.

    Its column `duration` is left out: it is known only after the call whose outcome is to be predicted.
    """
    if name == "bank":
        found = read(folder() / "bank-full.csv", "y", drop=["duration"])
        return found.X, (np.asarray(found.y) == "yes").astype(np.int64), "binary:logistic"
    if name in MORE:
        stored = np.load(folder() / f"{'california_housing' if name == 'housing' else name}.npz")
        return stored["X"], stored["y"], "reg:squarederror" if name == "housing" else "multi:softprob"
    return *load(name), "binary:logistic"


def take(X: Any, rows: np.ndarray) -> Any:
    """Some rows of an array, a sparse matrix or a frame."""
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]


def read_libsvm(path: Path, expected: LibsvmFile) -> tuple[Any, np.ndarray]:
    """The first rows of a LIBSVM file, packed or not; refuses a file of another shape."""
    opened = {".bz2": bz2.open, ".xz": lzma.open}.get(path.suffix, open)
    with opened(path, "rb") as file:
        head = io.BytesIO(b"".join(islice(file, expected.n_rows)))
    X, y = load_svmlight_file(head, dtype=np.float32)
    if X.shape[0] != expected.n_rows or X.shape[1] > expected.n_features:
        raise SystemExit(
            f"{path} holds {X.shape[0]} rows and {X.shape[1]} columns, {expected.n_rows} and {expected.n_features} "
            "were expected: it is not the file that it should be, or only a part of it. Download it again."
        )
    X = sparse.csr_matrix((X.data, X.indices, X.indptr), shape=(X.shape[0], expected.n_features))
    return (X.toarray() if expected.dense else X), (y > y.min()).astype(np.int64)


def split(y: np.ndarray, seed: int, share: float = 0.25) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers for training and for the held-out part."""
    order = np.random.default_rng(seed).permutation(len(y))
    cut = round(share * len(y))
    return order[cut:], order[:cut]
