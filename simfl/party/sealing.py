"""The only exit for sums. What a party sums passes here before it leaves: noise, fixed point, mask, in this order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from simfl import messages as msg
from simfl import wire
from simfl.arrays import Doubles, Ints, Longs
from simfl.errors import PrivacyError, ProtocolError
from simfl.privacy.exact import ROW_BITS, fold, int_type, to_leaf_ints, to_row_ints, to_wide
from simfl.privacy.masks import Masks
from simfl.privacy.noise import Noise, add_noise

Pair = tuple[Doubles, Doubles]  # sums of gradients and of hessians


@dataclass
class Sealing:
    """One party's exit. `masks` come with the keys, `noise` and `n_parties` with a training."""

    who: str
    must_mask: bool = False  # refuse to send sums that are not masked
    one_budget: bool = False  # all trainings of this session share the noise budget: they are one run
    masks: Masks | None = None
    noise: Noise | None = None
    n_parties: int = 1
    spent: dict[str, Fraction] = field(default_factory=dict)  # of the noise budget, by kind of sums

    def begin(self, noise: Noise | None, n_parties: int) -> None:
        """A training begins. In one run with another, what was released before still counts."""
        self.noise, self.n_parties, self.spent = noise, n_parties, self.spent if self.one_budget else {}

    def small(self, values: Sequence[float], mask: msg.Masking | None, purpose: str) -> msg.WideSums:
        """A few sums whose size nobody knows beforehand."""
        wide = to_wide(values)
        masks = self._masks(mask)
        if mask is not None and masks is not None:
            wide = [v + m for v, m in zip(wide, masks.draw_wide(mask, purpose, len(wide)), strict=True)]
        return wire.pack_wide(wide)

    def onto_rows(self, sums: Pair, builder: str, question: msg.SumOntoRows) -> tuple[msg.Array, msg.Array]:
        """Gradients and hessians summed onto the rows of a builder."""
        if self.noise:
            self._release("rows", Fraction(1, self.noise.most_rows), self.noise.row)
            sums = _noisy(sums, self.noise.row)
        bits = (ROW_BITS, question.hessian_bits)
        ints = [
            to_row_ints(values, exponent, n, self.n_parties)
            for values, exponent, n in zip(sums, question.exponents, bits, strict=True)
        ]
        G, H = self._masked_rows(ints, builder, question.mask)
        return wire.pack(G), wire.pack(H, int_type(question.hessian_bits))

    def opened(self, question: msg.Grow, builder: str, shape: tuple[int, ...]) -> list[Ints] | None:
        """What the others summed onto this builder's rows, without its masks. None if they sent nothing."""
        if question.gradients is None or question.hessians is None:
            return None
        both = zip((question.gradients, question.hessians), (ROW_BITS, question.hessian_bits), strict=True)
        sums = [wire.unpack(array, int_type(bits), shape) for array, bits in both]
        G, H = self._masked_rows(sums, builder, question.mask)
        H = fold(H, question.hessian_bits)
        return [fold(G, ROW_BITS), np.maximum(H, 0) if self.noise else H]  # noise can make a hessian negative

    def per_leaf(self, sums: Sequence[Pair], n_outputs: int, question: msg.SumPerLeaf) -> msg.LeafSums:
        """Gradients and hessians summed per leaf of each tree."""
        if self.noise:
            self._release("leaves", Fraction(len(sums), n_outputs * self.noise.most_leaves), self.noise.leaf)
            sums = [_noisy(pair, self.noise.leaf) for pair in sums]
        ints = [to_leaf_ints(pair[part], question.exponents[part], self.n_parties) for part in (0, 1) for pair in sums]
        packed = [wire.pack(values) for values in self._masked_leaves(ints, question.mask)]
        return msg.LeafSums(round=question.round, gradients=packed[: len(sums)], hessians=packed[len(sums) :])

    def _masks(self, mask: msg.Masking | None) -> Masks | None:
        """The masks to use; None where sums are to be sent as they are."""
        if mask is None:
            if self.must_mask:
                raise PrivacyError(
                    f"{self.who} was asked for sums without masks, and masks were agreed on. It sends nothing."
                )
            return None
        if self.masks is None:
            raise ProtocolError(f"{self.who} was asked for masked sums before keys were exchanged.")
        return self.masks

    def _masked_rows(self, sums: Sequence[Ints], builder: str, mask: msg.Masking | None) -> list[Ints]:
        """Sums onto the rows of a builder with this party's masks added; at the builder that removes the last ones."""
        masks = self._masks(mask)
        if masks is None or mask is None:
            return list(sums)
        if builder not in mask.parties:
            raise PrivacyError(
                f"{self.who} was asked for sums that their builder {builder!r} has no part in. It sends nothing."
            )
        drawn = masks.draw(mask, f"rows of {builder}", 2 * sums[0].size).reshape(2, *sums[0].shape)
        return [(s.view(np.uint32) + m).view(np.int32) for s, m in zip(sums, drawn, strict=True)]

    def _masked_leaves(self, sums: Sequence[Longs], mask: msg.Masking | None) -> Sequence[Longs]:
        masks = self._masks(mask)
        if masks is None or mask is None:
            return sums
        together = np.concatenate(sums).view(np.uint64)
        hidden = (together + masks.draw(mask, "leaves", len(together), np.uint64)).view(np.int64)
        return np.split(hidden, np.cumsum([len(v) for v in sums])[:-1])

    def _release(self, kind: str, share: Fraction, deviations: tuple[float, float]) -> None:
        """Count what is sent against what the noise was made for. Sums that have no share of it are not sent."""
        if not all(deviations):
            raise PrivacyError(f"{self.who} was asked for sums that epsilon leaves no noise for. It sends nothing.")
        if self.spent.get(kind, 0) + share > 1:
            raise PrivacyError(f"{self.who} was asked for more sums than epsilon was counted for. It sends nothing.")
        self.spent[kind] = self.spent.get(kind, Fraction()) + share


def _noisy(sums: Pair, deviations: tuple[float, float]) -> Pair:
    return add_noise(sums[0], deviations[0]), add_noise(sums[1], deviations[1])
