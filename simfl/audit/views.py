"""What a curious role sees of a victim's rows, as plain data: the only input of the attacks.

Everything here is computed with the functions that parties really use (hashing, search, drawing, fixed-point sums), so
that an attack gets what would really be sent. Under `matching="shared"` all parties and the hub see codes; under
`"blind"` the hub sees tokens (which are equal, in a private order) and a party sees only which foreign rows its own
rows point at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simfl.arrays import AnyArray, Doubles, Floats, Ints, Longs, Mask
from simfl.preprocessing.lsh import HashFamily
from simfl.preprocessing.scaling import Scale
from simfl.preprocessing.similarity import most_similar
from simfl.privacy.exact import from_ints, resolution
from simfl.privacy.words import FORMS, split, to_words
from simfl.training.gradients import most_uses, sum_onto_similar
from simfl.training.losses import Loss

TINY = 1e-9
ROUNDING = 1e-4  # of sums in fixed point


@dataclass(frozen=True)
class Prior:
    """What an attacker knows before any message: its own rows, on their own scale (mean 0, deviation 1)."""

    mean: Doubles
    deviation: Doubles  # zero where a column does not vary
    rows: Doubles

    @classmethod
    def of(cls, X: Doubles) -> Prior:
        """The prior from the attacker's rows. Missing values (NaN) become the mean."""
        known = np.where(np.isnan(X).all(axis=0), 0.0, X)  # a column without any value has no mean
        mean, deviation = np.nanmean(known, axis=0), np.nanstd(known, axis=0)
        deviation[deviation <= TINY * np.maximum(np.abs(mean), 1.0)] = 0.0
        return cls(mean, deviation, cls(mean, deviation, X[:0]).standard(X))

    @property
    def varies(self) -> AnyArray:
        """The columns in which there is something to guess."""
        return self.deviation > 0

    def standard(self, X: Doubles) -> Doubles:
        """Rows on this scale; missing values become 0, the mean."""
        return np.nan_to_num((X - self.mean) / np.where(self.deviation > 0, self.deviation, np.inf))


@dataclass(frozen=True)
class Hashing:
    """The hash functions, known to everybody who has their seed: floor((directions . row + offsets) / width)."""

    directions: Doubles
    offsets: Doubles
    width: float

    @classmethod
    def of(cls, family: HashFamily, scale: Scale) -> Hashing:
        """The functions on unscaled rows: the common scale is moved into the directions."""
        directions = family.directions / scale.deviation
        return cls(directions, family.offsets - directions @ scale.mean, family.bucket_width)

    def on(self, prior: Prior) -> Hashing:
        """The same functions of rows on the attacker's scale."""
        return Hashing(self.directions * prior.deviation, self.offsets + self.directions @ prior.mean, self.width)

    def codes(self, rows: Doubles) -> Ints:
        """The hash values of rows."""
        return np.floor((rows @ self.directions.T + self.offsets) / self.width).astype(np.int32)


@dataclass(frozen=True)
class CodesView:
    """Shared matching: every row's hash values, and the functions they came from."""

    values: Ints
    hashing: Hashing


@dataclass(frozen=True)
class TokensView:
    """Blind matching, at the hub: which hash values are equal. The numbers mean nothing; the order is private."""

    values: Ints
    width: float  # of a bucket, in deviations of the data

    @classmethod
    def of(cls, codes: Ints, width: float, rng: np.random.Generator) -> tuple[TokensView, Longs]:
        """The tokens, and the private order: the row at each place."""
        order = rng.permutation(len(codes))
        values = np.empty_like(codes)
        for column in range(codes.shape[1]):
            known, place = np.unique(codes[:, column], return_inverse=True)
            values[:, column] = rng.permutation(len(known)).astype(np.int32)[place]
        return cls(values[order], width), order


@dataclass(frozen=True)
class PointersView:
    """At a party: the foreign rows that its own rows point at."""

    ids: Ints  # (own rows, k)
    n_rows: int  # of the party that is pointed at

    @classmethod
    def of(cls, own: Ints, foreign: Ints, k: int, *, seed: int, n_jobs: int | None) -> PointersView:
        """What a party with these codes learns of another's rows."""
        return cls(most_similar(own, foreign, k=k, seed=seed, n_jobs=n_jobs)[0], len(foreign))


@dataclass(frozen=True)
class RowSumsView:
    """At the builder: the first round's sums onto its rows, in fixed point, and the start value behind them.

    They are as precise as they can be: where the recipe rounds them at random, a builder learns less.
    """

    gradients: Longs  # (rows of the builder, outputs)
    hessians: Longs
    exponents: tuple[int, int]
    loss: Loss
    base_score: Doubles
    weighted: bool = False  # rows count more or less: a sum tells the weight of its rows, not their number

    @classmethod
    def of(
        cls, similar: Ints, y: Floats, n_rows: int, loss: Loss, base_score: Doubles, weight: Floats | None = None
    ) -> RowSumsView:
        """The sums of foreign rows: `similar` is the builder's row that the gradient of each one goes to."""
        margin = np.tile(loss.margin(base_score).astype(np.float32), (len(y), 1))
        g, h = loss.gradients(margin, y, weight)
        uses = most_uses(similar[:, None], n_rows) * (1.0 if weight is None else float(weight.max()))
        exact = FORMS[8]
        for_G, for_H = (resolution([bound * uses], exact.gradient_bits) for bound in loss.bounds(margin, y))
        landed = sum_onto_similar(similar[:, None], g, h, n_rows, seed=0)  # one similar row: nothing is drawn
        G, H = (part.reshape(n_rows, -1) for part in split(to_words(*landed, (for_G, for_H), exact), exact))
        return cls(G, H, (for_G, for_H), loss, base_score, weight is not None)

    def _first(self) -> tuple[list[float], list[float]]:
        """Of a row's first gradient, and hessian (of the first output): that of label 0, and what a label of 1 adds."""
        margin = np.tile(self.loss.margin(self.base_score).astype(np.float32), (2, 1))
        g, h = (
            each[:, 0].astype(np.float64) for each in self.loss.gradients(margin, np.arange(2, dtype=np.float32), None)
        )
        return [g[0], g[1] - g[0]], [h[0], h[1] - h[0]]

    def members(self) -> Longs | Doubles:
        """The number of foreign rows in each sum, or their weight: both sums are linear in it, and in the labels."""
        G, H = from_ints(self.gradients, self.exponents[0])[:, 0], from_ints(self.hessians, self.exponents[1])[:, 0]
        (g, dg), (h, dh) = self._first()
        found = np.asarray((H * dg - G * dh) / (h * dg - g * dh))
        return np.maximum(found, 0.0) if self.weighted else np.rint(found).astype(np.int64)

    def label_totals(self) -> Doubles:
        """Per sum: the members of each class (or their weight), or (for numbers) the total of their labels."""
        G, n = from_ints(self.gradients, self.exponents[0]), self.members()[:, None]
        if self.loss.is_multi:
            return np.asarray(n * self.loss.predicted(self.loss.margin(self.base_score)[None]) - G)
        (g, dg), _ = self._first()
        total = (G - n * g) / dg
        return np.hstack([n - total, total]) if self.loss.classifies else total

    def is_pure(self) -> Mask:
        """Per sum of classes: whether it reveals the label of each member, because all have the same."""
        most, members = self.label_totals().max(axis=1), self.members()
        return np.asarray(most >= (1 - ROUNDING) * members if self.weighted else np.rint(most) == members)


def seed_of(*parts: int) -> int:
    """One seed from several numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])
