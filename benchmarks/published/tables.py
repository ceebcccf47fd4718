"""The published tables' data: who holds which training rows, and the rows that everybody is tested on.

Every split here was made by the publication, or follows its text; nothing about it was chosen by us. Files are read
from `published/` below SIMFL_DATA; a file that is missing is named, and its table is left out of the page.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.model_selection import train_test_split

import simfl
from benchmarks.data import Source, folder, load, source, split

ALL = "all"  # test rows that belong to no single party
UNIFED = {"default_credit": ("guest", "host_1"), "student": ("guest", "host"), "breast": ("guest", "host")}
IID = ("a9a", "cod-rna", "ijcnn1")
HEART, HEART_WHOLE, BRCA = "heart", "heart, all columns", "brca"
_HEART_SEED, _HEART_SHARE = 43, 0.66  # FLamby's
_HEART_DROPPED, _HEART_DUMMIES = ["slope", "ca", "thal"], ["cp", "restecg"]
_HEART_FILES = {"cleveland": "cleveland", "budapest": "hungarian", "zurich-basel": "switzerland", "long-beach": "va"}
_N_BRCA = 6


@dataclass(frozen=True)
class Study:
    """Training rows by party, test rows by centre (`ALL` where the publication has one test table)."""

    train: Mapping[str, tuple[Any, np.ndarray]]
    test: Mapping[str, tuple[Any, np.ndarray]]
    objective: str

    def parties(self) -> list[simfl.Party]:
        """The parties with their rows."""
        return [simfl.Party(name, X, y) for name, (X, y) in self.train.items()]


class MissingDataError(Exception):
    """A file of a published table is not there."""


def study(data: str, clients: int = 0, seed: int = 0) -> Study:
    """A table by its name. `clients` and `seed` matter where rows are dealt out at random."""
    if data in IID:
        return _dealt_out(data, clients, seed)
    return _read(data)


@functools.lru_cache(2)
def _read(data: str) -> Study:
    if data in UNIFED:
        return _unifed(data)
    return {HEART: _heart, HEART_WHOLE: _heart_whole, BRCA: _brca}[data]()


def _file(*parts: str) -> Path:
    path = folder().joinpath("published", *parts)
    if not path.exists():
        raise MissingDataError(f"{path.name} is not at {path.parent}: set SIMFL_DATA to the folder that holds it")
    return path


def missing(data: str) -> str | None:
    """Why a table cannot be measured; None: it can."""
    try:
        study(data, 2, 0)
    except (MissingDataError, SystemExit) as error:
        return str(error)
    return None


def origin(data: str) -> Source:
    """The files of a table, and what they are."""
    if data == "a9a":
        files = (*source(data).files, *(folder() / f"a9a_test_{what}" for what in ("X.npz", "y.npy")))
        return Source(files, "LIBSVM's a9a and a9a.t together")
    if data in IID:
        return Source(source(data).files, "LIBSVM's training file")
    if data in UNIFED:
        names = [f"{data}_homo_{part}.csv.gz" for part in (*UNIFED[data], "test")]
        return Source(tuple(folder() / "published" / "unified" / name for name in names), "UCI, in UniFed's split")
    if data == BRCA:
        names = ["brca.csv", "train_test_split.csv"]
        return Source(tuple(folder() / "published" / "brca" / name for name in names), "TCGA, as FLamby has it")
    if data == HEART:
        files = tuple(folder() / "published" / "heart" / f"{name}.csv" for name in _HEART_FILES.values())
        return Source(files, "UCI, the source's files")
    home = Path(simfl.__file__).parent / "datasets" / "heart"
    return Source(tuple(sorted(home.glob("*.csv"))), "UCI, comes with the package")


# --- UniFed ----------------------------------------------------------------------------------------------------------


def _unifed(data: str) -> Study:
    def rows(part: str) -> tuple[pd.DataFrame, np.ndarray]:
        frame = pd.read_csv(_file("unified", f"{data}_homo_{part}.csv.gz"))
        columns = sorted((c for c in frame.columns if c not in ("id", "y")), key=lambda name: int(name[1:]))
        return frame[columns].astype(np.float32), frame["y"].to_numpy()

    objective = "reg:squarederror" if data == "student" else "binary:logistic"
    return Study({part: rows(part) for part in UNIFED[data]}, {ALL: rows("test")}, objective)


# --- FLamby ----------------------------------------------------------------------------------------------------------


def _heart() -> Study:
    """FLamby's preprocessing: three columns and all incomplete rows dropped, two categories as 0/1 columns.

    From the source's files: there a cholesterol of 0 is a value, in those of the package it is missing.
    """
    kept = {}
    for name, file in _HEART_FILES.items():
        table = pd.read_csv(_file("heart", f"{file}.csv")).drop(columns=_HEART_DROPPED).dropna()
        kept[name] = table.drop(columns="num").assign(**{simfl.datasets.LABEL: table["num"] > 0})
    whole = pd.get_dummies(pd.concat(kept, names=["centre", "row"]), columns=_HEART_DUMMIES, drop_first=True)
    return _split_heart({name: whole.loc[name].astype(np.float32) for name in kept})


def _heart_whole() -> Study:
    """Every patient and every column, missing values as they are: what a user would do."""
    return _split_heart(simfl.datasets.heart())


def _split_heart(tables: Mapping[str, pd.DataFrame]) -> Study:
    """FLamby's split of each centre: two thirds to train on, by classes where both have more than two patients."""
    train, test = {}, {}
    for name, table in tables.items():
        y = table[simfl.datasets.LABEL].to_numpy().astype(np.int64)
        X = table.drop(columns=simfl.datasets.LABEL)
        classes = y if min(np.bincount(y, minlength=2)) > 2 else None
        inside, outside = train_test_split(
            np.arange(len(y)),
            train_size=_HEART_SHARE,
            test_size=1 - _HEART_SHARE,
            random_state=_HEART_SEED,
            stratify=classes,
        )
        train[name], test[name] = (X.iloc[np.sort(inside)], y[np.sort(inside)]), (X.iloc[outside], y[outside])
    return Study(train, test, "binary:logistic")


def _brca() -> Study:
    """Six regions; a label is the lower and upper bound of the time of death."""
    patients, folds = pd.read_csv(_file("brca", "brca.csv")), pd.read_csv(_file("brca", "train_test_split.csv"))
    columns = [name for name in patients.columns if name not in ("pid", "E", "T")]

    def rows(fold: str) -> tuple[pd.DataFrame, np.ndarray]:
        own = patients[patients["pid"].isin(folds.loc[folds["fold2"] == fold, "pid"])]
        return own[columns].astype(np.float32), simfl.survival_bounds(own["T"], own["E"])

    regions = {f"region {number}": number for number in range(_N_BRCA)}
    return Study(
        {name: rows(f"train_{number}") for name, number in regions.items()},
        {name: rows(f"test_{number}") for name, number in regions.items()},
        "survival:aft",
    )


# --- FedXGBllr -------------------------------------------------------------------------------------------------------


@functools.lru_cache(1)
def _loaded(data: str) -> tuple[Any, np.ndarray]:
    """All rows; of a9a those that LIBSVM sets aside too, as in the reproduction."""
    X, y = load(data)
    if data != "a9a":
        return X, y
    more = (folder() / "a9a_test_X.npz", folder() / "a9a_test_y.npy")
    if not all(path.exists() for path in more):
        raise MissingDataError(f"{more[0].name} is not at {folder()}: set SIMFL_DATA to the folder that holds it")
    return sparse.vstack([X, sparse.load_npz(more[0])]).tocsr(), np.concatenate([y, np.load(more[1]) > 0])


def _dealt_out(data: str, clients: int, seed: int) -> Study:
    """A quarter to test on, the rest dealt out at random in equal parts."""
    X, y = _loaded(data)
    inside, outside = split(y, seed)
    parts = np.array_split(inside, clients)
    train = {f"client {number}": (X[part], y[part]) for number, part in enumerate(parts)}
    return Study(train, {ALL: (X[outside], y[outside])}, "binary:logistic")
