"""What was published, with its sources."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.published.measure import MEAN, POOLED
from benchmarks.published.tables import BRCA, HEART

UNIFED_SOURCE = "UniFed, arXiv 2207.10308, horizontal GBDT; settings from its `paper_experiments`"
FLAMBY_SOURCE = (
    "FLamby, arXiv 2210.04620; the means over its seeds 42 to 46, from `flamby/results` of its repository "
    "(100 local updates per round)"
)
FLOWER_SOURCE = (
    "Flower's reproduction of FedXGBllr (arXiv 2304.07537): `baselines/hfedxgboost`, README, Tables 1 and 2. The "
    "figures of the paper itself were not at hand"
)


@dataclass(frozen=True)
class Figures:
    """One published line: a method's scores by where they were measured."""

    method: str
    scores: dict[str, float]
    federated: bool = True  # False: trained on pooled rows


@dataclass(frozen=True)
class Publication:
    """The published lines of one table; the best federated one is what we are held against."""

    lines: tuple[Figures, ...]
    source: str
    lower_is_better: bool = False
    digits: int = 4
    centres: tuple[str, ...] = field(default=())

    def best(self, where: str) -> Figures:
        """The best federated line."""
        federated = [line for line in self.lines if line.federated and where in line.scores]
        return (min if self.lower_is_better else max)(federated, key=lambda line: line.scores[where])


HOSPITALS = ("cleveland", "budapest", "zurich-basel", "long-beach")
HEART_TESTED = dict(zip(HOSPITALS, (104, 89, 16, 45), strict=True))  # test patients of each
REGIONS = tuple(f"region {number}" for number in range(6))


def _centres(names: tuple[str, ...], *values: float) -> dict[str, float]:
    """Scores of the centres in order, then of the pooled test rows; the mean of the centres is computed."""
    own = dict(zip(names, values[:-1], strict=True))
    return own | {MEAN: round(sum(own.values()) / len(own), 3), POOLED: values[-1]}


def _hospitals(*values: float) -> dict[str, float]:
    return _centres(HOSPITALS, *values)


def _regions(*values: float) -> dict[str, float]:
    return _centres(REGIONS, *values)


_BEST = "UniFed's best framework"
PUBLISHED: dict[str, Publication] = {
    "default_credit": Publication((Figures(_BEST, {POOLED: 0.7772}),), UNIFED_SOURCE),
    "student": Publication((Figures(_BEST, {POOLED: 22.56}),), UNIFED_SOURCE, lower_is_better=True, digits=2),
    "breast": Publication((Figures(_BEST, {POOLED: 1.0}),), UNIFED_SOURCE),
    HEART: Publication(
        (
            Figures("FLamby, FedYogi", _hospitals(0.760, 0.753, 0.738, 0.676, 0.779)),
            Figures("FLamby, Cyclic", _hospitals(0.758, 0.762, 0.712, 0.640, 0.785)),
            Figures("FLamby, FedAvg", _hospitals(0.731, 0.719, 0.650, 0.640, 0.748)),
            Figures("FLamby, pooled", _hospitals(0.783, 0.764, 0.750, 0.644, 0.795), federated=False),
        ),
        FLAMBY_SOURCE,
        digits=3,
        centres=HOSPITALS,
    ),
    BRCA: Publication(
        (
            Figures("FLamby, FedAdam", _regions(0.849, 0.655, 0.881, 0.604, 0.902, 1.000, 0.842)),
            Figures("FLamby, FedAvg", _regions(0.745, 0.627, 0.691, 0.675, 0.787, 0.867, 0.735)),
            Figures("FLamby, pooled", _regions(0.773, 0.582, 0.706, 0.629, 0.766, 0.600, 0.704), federated=False),
        ),
        FLAMBY_SOURCE,
        digits=3,
        centres=REGIONS,
    ),
}
# Accuracy by the number of clients, and of XGBoost on all rows.
FEDXGBLLR = {
    "a9a": ({2: 0.844, 5: 0.842, 10: 0.837}, 0.849),
    "cod-rna": ({2: 0.964, 5: 0.962, 10: 0.950}, 0.973),
    "ijcnn1": ({2: 0.980, 5: 0.9728, 10: 0.968}, 0.987),
}
FEDXGBLLR_ROWS = {"a9a": (48_842, 48_842), "cod-rna": (59_535, 429_030), "ijcnn1": (49_990, 126_701)}  # ours, theirs
# Maddock et al., arXiv 2210.02910: AUC on Give Me Some Credit (150,000 rows), depth 4, from their replication data.
MADDOCK = {"random trees": {0.1: 0.807, 0.5: 0.839, 1.0: 0.846}, "histograms": {0.1: 0.659, 0.5: 0.752, 1.0: 0.780}}
MADDOCK_PLAIN = 0.861
# TimberStrike, arXiv 2506.07605: reconstructed values in percent, lowest and highest over the depths 3 to 8, from the
# tables of its repository (`paper_visualization`). Stroke: three clients, unless five are named. The range that its
# abstract gives, 73.05 to 95.63, is from the lowest of all columns to the highest of the most important ones.
TIMBERSTRIKE = {
    "diabetes": {
        "Flower, cyclic": (54.5, 62.7),
        "Flower, bagging": (56.6, 64.8),
        "NVFlare, pooled statistics": (64.4, 67.9),
        "FedXGBllr": (65.9, 68.2),
        "FedTree": (71.7, 73.4),
        "all of these, most important columns alone": (71.7, 88.6),
    },
    "stroke": {
        "Flower, cyclic": (73.1, 83.3),
        "Flower, bagging": (76.0, 82.6),
        "NVFlare, pooled statistics": (82.1, 86.9),
        "FedXGBllr": (84.3, 87.5),
        "FedTree": (84.9, 87.6),
        "FedTree, 5 clients": (84.0, 86.0),
        "all of these, most important columns alone": (83.6, 95.6),
    },
}
