"""The recipes that look for similar rows: the paper's own, and the stronger form."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta

from simfl.params.tree import BINS, Count, TreeParams

Matching = Literal["blind", "shared"]
MAX_HASHES: Final = 255  # a count of equal hash values must fit one byte
BUILDER_BINS: Final = 128  # of a builder's features with the similar recipe: see `builder_bins`
COARSE_BINS: Final = 64
MANY_ROWS: Final = 50_000  # per party: with more, most of the time of a deep tree goes into the histograms of its nodes


class SearchParams(TreeParams, frozen=True, kw_only=True):
    """Stage 1 of both: what decides which rows of different parties resemble each other."""

    scale: ClassVar[Literal["standard", "none"]] = "standard"  # features before hashing: by common mean and deviation
    # A row is compared with so many rows of each other party, drawn again for every block of rows: the search grows
    # with the rows and not with their square. 0: with all.
    max_candidates: ClassVar[int] = 10_000

    n_hashes: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_HASHES)] | None,
        "hash functions (the paper's L); None: min(40, features - 1 - known_features)",
    ] = None
    bucket_width: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        "width of a hash bucket (the paper's r); None: similar: half the root mean square row norm, paper: 4",
    ] = None
    hash_law: Annotated[
        Literal["gaussian", "cauchy"], "law of the hash directions: 2-stable (L2 distance) or 1-stable (L1)"
    ] = "gaussian"
    n_neighbors: Annotated[
        Count,
        "similar rows kept per row and other party; 0: none, so that parties only take turns (TFL); None: similar 5, "
        "paper 1",
    ] = 5
    known_features: Annotated[
        Count | None,
        "features that an attacker may already know of a row, or that follow from others (one-hot): n_hashes must be "
        "below features - known; None: any n_hashes, also where Theorem 1 of the paper does not hold",
    ] = 0
    matching: Annotated[
        Matching,
        "who finds the similar rows: the hub, from keyed names that mean nothing to it (blind), or every party, from "
        "the hash values of all (shared); None: similar blind, paper shared",
    ] = "blind"

    @property
    def rematch(self) -> int:
        """After how many trees similar rows are found again; 0: never."""
        return 0


class SimilarParams(SearchParams, frozen=True, kw_only=True, tag="similar"):
    """The paper's idea, stronger."""

    rematch: Annotated[
        Count,
        "similar: find the similar rows again, by the leaves they fall into, after n trees and then each time the "
        "number of trees has doubled; 0: never",
    ] = 50


class PaperParams(SearchParams, frozen=True, kw_only=True, tag="paper"):
    """The algorithm as published, for reproduction."""

    scale: ClassVar[Literal["standard", "none"]] = "none"
    max_candidates: ClassVar[int] = 0

    n_neighbors: Count = 1
    bucket_width: Annotated[float, Meta(gt=0)] | None = 4.0
    matching: Matching = "shared"
    leaf_values: Literal["global", "builder"] = "builder"
    extra_depth: Count = 0


def search_of(params: TreeParams) -> SearchParams:
    """What decides which rows resemble each other; of a recipe that looks for none, a search that finds none."""
    return params if isinstance(params, SearchParams) else PaperParams(n_neighbors=0)


def guarded_columns(params: TreeParams, n_features: int) -> int:
    """The number of columns that no attacker is assumed to know: there must be fewer hash values."""
    return n_features - (search_of(params).known_features or 0)


def builder_bins(params: TreeParams, n_parties: int, n_rows: int) -> int:
    """How many bins a builder's features get where `max_bin` leaves it open.

    The search for the best split costs nodes times bins. Every party has cut points of its own, so that the trees
    together see as many as one party's fine bins (docs/recipes.md).
    """
    if n_parties == 1 or not isinstance(params, SimilarParams):
        return BINS
    return COARSE_BINS if n_rows > MANY_ROWS * n_parties else BUILDER_BINS
