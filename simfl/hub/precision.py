"""How finely sums travel: the exponents of fixed-point numbers, from the bounds that every party announces."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from simfl import messages as msg
from simfl.privacy.exact import FINE_ENOUGH, LEAF_BITS, ROW_BITS, SHORT_BITS, resolution
from simfl.privacy.noise import REACH, Noise
from simfl.training.groups import SPREAD

Exponents = tuple[int, int]  # of gradients and of hessians: their resolution as powers of two


class RowPrecision(NamedTuple):
    """The exponents of sums onto rows, and the bits of their hessians."""

    exponents: Exponents
    hessian_bits: msg.RowBits


@dataclass(frozen=True)
class Precision:
    """The bounds that the parties announced, and the noise that comes on top."""

    started: Mapping[str, msg.Started]
    min_group: int = 1
    noise: Noise | None = None

    def onto_rows(self, most_uses: Mapping[str, int]) -> RowPrecision:
        """Sums onto rows are bounded by how many rows resemble the same row."""
        more = SPREAD * self.min_group if self.min_group > 1 else 1
        sizes = [(s, more * most_uses.get(party, 0)) for party, s in self.started.items()]
        far = self.noise.row if self.noise else (0.0, 0.0)
        gradients = [s.gradient * uses + REACH * far[0] for s, uses in sizes]
        hessians = [s.hessian * uses + REACH * far[1] for s, uses in sizes]
        largest = max(s.hessian for s in self.started.values())
        short = math.ldexp(1.0, resolution(hessians, SHORT_BITS)) <= FINE_ENOUGH * largest
        bits: msg.RowBits = 23 if short else 31
        return RowPrecision((resolution(gradients, ROW_BITS), resolution(hessians, bits)), bits)

    @property
    def per_leaf(self) -> Exponents:
        """Sums per leaf are bounded by the sums over all rows."""
        far = self.noise.leaf if self.noise else (0.0, 0.0)
        return (
            resolution((s.total_gradient + REACH * far[0] for s in self.started.values()), LEAF_BITS),
            resolution((s.total_hessian + REACH * far[1] for s in self.started.values()), LEAF_BITS),
        )

    @property
    def least_hessian(self) -> float:
        """The deviation of the noise in a leaf's total: anything below cannot be told from zero."""
        return self.noise.leaf[1] * math.sqrt(len(self.started)) if self.noise else -math.inf
