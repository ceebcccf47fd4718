"""The paper's own numbers: Tables 2, 3 and 4. Its figures are printed without numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Errors:
    """A row of Table 2 or 3: test errors in percent."""

    simfl: float
    lowest: float
    highest: float
    tfl: float
    solo_a: float
    solo_b: float
    all_in: float


THETA_80 = {
    "a9a": Errors(17.0, 16.7, 17.2, 23.1, 19.1, 22.0, 15.1),
    "cod-rna": Errors(6.5, 6.3, 6.7, 7.5, 9.6, 8.2, 6.13),
    "real-sim": Errors(8.3, 8.2, 8.4, 10.1, 11.8, 14.4, 6.5),
    "ijcnn1": Errors(4.5, 4.5, 4.6, 4.7, 5.9, 4.9, 3.7),
    "SUSY": Errors(23.3, 23.1, 23.4, 32.6, 25.4, 32.8, 21.38),
    "HIGGS": Errors(30.9, 30.8, 31.0, 36.1, 37.1, 35.6, 29.4),
}
BALANCED = {
    "a9a": Errors(15.1, 14.9, 15.2, 15.6, 15.5, 15.9, 15.1),
    "cod-rna": Errors(6.0, 5.9, 6.1, 6.3, 6.4, 6.7, 6.1),
    "real-sim": Errors(7.1, 6.9, 7.2, 7.4, 8.4, 7.9, 6.5),
    "ijcnn1": Errors(3.6, 3.5, 3.7, 3.8, 3.8, 4.2, 3.7),
    "SUSY": Errors(19.6, 19.4, 19.9, 20.2, 20.1, 20.1, 20.0),
    "HIGGS": Errors(29.3, 29.2, 29.5, 31.4, 30.2, 30.5, 29.3),
}


@dataclass(frozen=True)
class Efficiency:
    """A row of Table 4: seconds on a GPU, megabytes per tree, megabytes of preparation per party."""

    all_in: float
    solo: float
    training: float
    preparation: float
    tree_mb: float
    preparation_mb: float


EFFICIENCY = {
    "a9a": Efficiency(21.6, 15.2, 17.2, 135, 0.28, 10.4),
    "cod-rna": Efficiency(24.7, 16.3, 17.9, 189, 0.49, 4.3),
    "real-sim": Efficiency(69.5, 32.4, 34.5, 380, 0.6, 23.1),
    "ijcnn1": Efficiency(29.3, 15.7, 17.4, 228, 0.42, 8.4),
    "SUSY": Efficiency(204.1, 34.6, 43.1, 963, 8.0, 136),
    "HIGGS": Efficiency(226.6, 39.8, 44.8, 996, 8.0, 216),
}
