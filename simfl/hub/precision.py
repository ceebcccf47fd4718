"""How finely sums travel: the exponents of fixed-point numbers, from the bounds that every party announces.

One party's bound decides about the digits of all. So a bound must be possible for the rows that the party has, and it
must leave the other parties their digits. What arrives later is compared with what was announced.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simfl import messages as msg
from simfl.errors import DataError
from simfl.hub.asking import refuse_unless
from simfl.params import MAX_WEIGHT, Params
from simfl.privacy.exact import LEAF_BITS, power_above, resolution
from simfl.privacy.words import FORMS
from simfl.training.groups import SPREAD
from simfl.training.losses import GROWTH, loss_of, only_finds_splits

FINE_ENOUGH = 2.0**-10  # of the largest hessian of a row: the coarsest grid of hessians rounded to the nearest
VISIBLE = (2.0**-4, 2.0**-2)  # of an ordinary row's gradient and hessian: the coarsest grids for rounding at random
DEVIATIONS = 2  # of the number of rows that are drawn onto one row, above its mean
COARSEST = 0.25  # of a party's largest gradient: with coarser digits next to nothing is left of its sums
RAREST = 1e-6  # no class is rarer: a leaf of one class alone then moves the margin by up to its inverse
ROUNDING = 1.001  # leaf values are float32

Exponents = tuple[int, int]  # of gradients and of hessians: their resolution as powers of two


class RowPrecision(NamedTuple):
    """The exponents of sums onto rows, and the bytes of a word that has both."""

    exponents: Exponents
    word_bytes: msg.WordBytes


@dataclass(frozen=True)
class Precision:
    """The bounds that the parties announced.

    `ordinary`: a row's gradient and hessian that must stay visible where sums onto rows are rounded at random. None:
    they are not.
    """

    started: Mapping[str, msg.Started]
    min_group: int = 1
    ordinary: tuple[float, float] | None = None
    neighbors: Mapping[str, int] = field(default_factory=dict)  # per party: of how many rows each of its rows draws one

    def onto_rows(self, most_uses: Mapping[str, int]) -> RowPrecision:
        """Sums onto rows are bounded by how many rows resemble the same row."""
        more = SPREAD * self.min_group if self.min_group > 1 else 1
        uses = {party: more * most_uses.get(party, 0) for party in self.started}
        exact = self._exact(uses)
        return self._short({party: self._drawn(n, self.neighbors.get(party, 1)) for party, n in uses.items()}) or exact

    def _exact(self, uses: Mapping[str, float]) -> RowPrecision:
        """Rounded to the nearest: gradients in four bytes, hessians in three where that is fine enough."""
        gradients, hessians = self._row_bounds(uses)
        exponent = resolution(gradients, FORMS[8].gradient_bits)
        self._check_digits(dict(zip(self.started, gradients, strict=True)), exponent)
        largest = max(s.hessian for s in self.started.values())
        fine = math.ldexp(1.0, resolution(hessians, FORMS[7].hessian_bits)) <= FINE_ENOUGH * largest
        word: msg.WordBytes = 7 if fine else 8
        return RowPrecision((exponent, resolution(hessians, FORMS[word].hessian_bits)), word)

    def _short(self, uses: Mapping[str, float]) -> RowPrecision | None:
        """Rounded at random, in the fewest bytes in which ordinary rows stay visible."""
        if self.ordinary is None:
            return None
        gradients, hessians = self._row_bounds(uses)
        short: tuple[msg.WordBytes, ...] = (3, 4)
        for word in short:
            exponents = resolution(gradients, FORMS[word].gradient_bits), resolution(hessians, FORMS[word].hessian_bits)
            coarsest = (share * size for share, size in zip(VISIBLE, self.ordinary, strict=True))
            if all(math.ldexp(1.0, unit) <= most for unit, most in zip(exponents, coarsest, strict=True)):
                return RowPrecision(exponents, word)
        return None

    def _row_bounds(self, uses: Mapping[str, float]) -> tuple[list[float], list[float]]:
        """Per party: how large its sums of gradients and of hessians onto a row can be."""
        sizes = [(s, uses[party]) for party, s in self.started.items()]
        return [s.gradient * n for s, n in sizes], [s.hessian * n for s, n in sizes]

    def _drawn(self, uses: float, neighbors: int) -> float:
        """How many of the rows that resemble a row are drawn onto it for one tree, as a rule. More are cut off."""
        if self.min_group > 1:  # small groups are joined whatever was drawn
            return uses
        mean = uses / neighbors
        return min(uses, mean + DEVIATIONS * math.sqrt(mean))

    def _check_digits(self, bounds: Mapping[str, float], exponent: int) -> None:
        """Refuse a party's bound beside which another party's gradients would be rounded away."""
        each = {party: s.gradient for party, s in self.started.items() if s.gradient}
        least, most = min(each, key=each.__getitem__, default=""), max(bounds, key=bounds.__getitem__)
        if each and math.ldexp(1.0, exponent) > COARSEST * each[least]:
            raise DataError(
                f"Party {most!r} announced sums of gradients of up to {bounds[most]:g}: beside them, the gradients of "
                f"party {least!r}, of up to {each[least]:g}, would be lost. Check the labels and weights of {most!r}."
            )

    @cached_property  # asked for by every party's sums of every tree
    def per_leaf(self) -> Exponents:
        """Sums per leaf are bounded by the sums over all rows."""
        gradients, hessians = zip(*self._leaf_bounds.values(), strict=True)
        return resolution(gradients, LEAF_BITS), resolution(hessians, LEAF_BITS)

    # --- what can be -------------------------------------------------------------------------------------------------

    @cached_property
    def _leaf_bounds(self) -> dict[str, tuple[float, float]]:
        """Per party: how large its sums of gradients and of hessians in a leaf can be."""
        return {party: (s.total_gradient, s.total_hessian) for party, s in self.started.items()}

    def check_leaf_sums(self, lowest: Sequence[int], highest: Sequence[int], parties: Sequence[str]) -> None:
        """Refuse sums of these parties beyond what they announced: the extremes of gradients and of hessians."""
        most_gradient, most_hessian = map(sum, zip(*(self._leaf_bounds[party] for party in parties), strict=True))
        unit = self.per_leaf
        largest = math.ldexp(max(highest[0], -lowest[0]), unit[0])
        least, most = math.ldexp(lowest[1], unit[1]), math.ldexp(highest[1], unit[1])
        refuse_unless(largest <= most_gradient, f"gradients in a leaf of {largest:g}, announced were {most_gradient:g}")
        refuse_unless(most <= most_hessian, f"hessians in a leaf of {most:g}, announced were {most_hessian:g}")
        refuse_unless(least >= 0, f"hessians in a leaf of {least:g}")

    def most_leaf_value(self, params: Params, moved: float) -> float:
        """How large a leaf value can be that a builder found by itself, after trees that moved margins so far.

        Of squared errors it is a mean of residuals: none is larger than at the start and what the trees added. This
        bound is wider. `start` has `GROWTH` in it and is a quotient of powers of two (8 to 32 times the largest
        residual), and counts `GROWTH` times until the trees have moved margins by as much. For sums are rounded: where
        weights differ by many powers of ten, the hessians of light rows become zero before their gradients do, and an
        honest value is more than a mean. A liar can use that room, and what its trees move counts as moved for the next
        one: values can double with every tree. What is refused is a jump.

        Else it is gradients over hessians: no more than all gradients over `reg_lambda`, nor than the rarest class
        allows.
        """
        bounds = self.started.values()
        gradient, hessian = loss_of(params).limits
        if math.isinf(gradient) and math.isfinite(hessian):
            start = max(s.gradient / s.hessian if s.hessian else 0.0 for s in bounds)
            step = max(GROWTH * start, start + moved)
        else:
            total = sum(s.total_gradient for s in bounds)
            step = min(1 / RAREST, total / params.reg_lambda if params.reg_lambda else math.inf)
        return ROUNDING * params.learning_rate * min(step, params.max_delta_step or math.inf)


def ordinary(started: Mapping[str, msg.Started], rows: Mapping[str, int], params: Params) -> tuple[float, float] | None:
    """The gradient and the hessian of an ordinary row of the party whose rows weigh least, about.

    None where sums onto rows must be exact: leaf values are found from them, or nobody knows what is ordinary.
    """
    loss = loss_of(params)
    if loss.ordinary is None or not only_finds_splits(params):
        return None
    limit = loss.limits[0]
    weights = [min(s.gradient, s.total_gradient / max(rows[party], 1)) / limit for party, s in started.items()]
    least = min((weight for weight in weights if weight), default=0.0)
    return loss.ordinary[0] * least, loss.ordinary[1] * least


def neighbors_of(rows: Mapping[str, int], n_neighbors: int) -> dict[str, int]:
    """Of how many similar rows each of a party's rows draws one: of fewer where another party has fewer rows.

    >>> neighbors_of({"a": 3, "b": 1000, "c": 50}, n_neighbors=5)
    {'a': 5, 'b': 3, 'c': 3}
    """
    others = {party: [n for other, n in rows.items() if other != party] for party in rows}
    return {party: max(min([n_neighbors, *sizes]), 1) for party, sizes in others.items()}


def check_bounds(reply: msg.Started, n_rows: int, params: Params) -> None:
    """Refuse impossible bounds: they follow from the objective, the number of rows and the largest weight."""
    bounds = (reply.gradient, reply.hessian, reply.total_gradient, reply.total_hessian)
    powers = all(bound == 0 or math.frexp(bound)[0] == 0.5 for bound in bounds)
    refuse_unless(min(bounds) >= 0 and powers, f"the bounds {bounds}")
    limits, largest = loss_of(params).limits, float(np.finfo(np.float32).max)
    most = [power_above(MAX_WEIGHT * (GROWTH * largest if math.isinf(limit) else limit)) for limit in limits]
    for bound, total, limit in zip(bounds[:2], bounds[2:], most, strict=True):
        refuse_unless(bound <= limit, f"a bound of {bound:g} for one row, where {limit:g} is possible")
        refuse_unless(
            bound <= total <= power_above(n_rows * bound), f"a bound of {total:g} for {n_rows} rows of up to {bound:g}"
        )
    gradient, hessian = limits
    if math.isfinite(gradient * hessian):  # bounded for a weight of one: both follow from the largest weight
        one, other = reply.gradient * hessian, reply.hessian * gradient
        fits = one <= 2 * other and other <= 2 * one  # powers of two above what they are
        refuse_unless(fits, f"bounds of {reply.gradient:g} and {reply.hessian:g} that do not belong together")
