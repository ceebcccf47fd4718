"""The only exit for sums. What a party sums passes here before it leaves: noise, fixed point, mask, in this order.

What was really done to them is noted here, in `shown`: see `privacy/observed.py`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np

from simfl import messages as msg
from simfl import wire
from simfl.arrays import Doubles, Longs
from simfl.errors import PrivacyError, ProtocolError
from simfl.privacy import discrete
from simfl.privacy.additive import Covers, Parts, add
from simfl.privacy.exact import to_leaf_ints, to_wide
from simfl.privacy.ledger import Account
from simfl.privacy.masks import Masks, told
from simfl.privacy.tokens import derive
from simfl.privacy.words import FORMS, Extremes, Form, Words, can_be, from_bytes, most_steps, split, to_words
from simfl.training.gradients import Landed

Pair = tuple[Doubles, Doubles]  # sums of gradients and of hessians


@dataclass(frozen=True)
class Noise:
    """Noise for trees that are grown together. `key` is drawn once in a run: nothing is sent twice with other noise."""

    key: bytes = field(repr=False)
    epsilon: float
    n_steps: int  # that the noise was made for


@dataclass
class Sealing:
    """One party's exit. `masks` come with the keys, `noise` or `n_parties` with a training."""

    who: str
    must_mask: bool = False  # refuse to send sums that are not masked
    one_budget: bool = False  # all trainings of this session share the noise budget: they are one run
    masks: Masks | None = None
    noise: Noise | None = None  # of trees grown together with epsilon
    n_parties: int = 1  # whose sums onto rows and per leaf are added up
    account: Account | None = None  # between machines: what was released stays on the disk
    spent: set[str] = field(default_factory=set)  # what was released; without an account
    shown: Counter[str] = field(default_factory=Counter)  # what this party really did to what it sent

    def begin(self, noise: Noise | None) -> None:
        """Trees are grown together. In one run with another training, what was released before still counts."""
        self.noise, self.spent = noise, self.spent if self.one_budget else set()

    def check(self, mask: msg.Masking | None) -> None:
        """Refuse masks that are not over those who exchanged keys, before anything is done for the question."""
        masks = self._masks(mask)
        if mask is not None and masks is not None:
            masks.check_parties(mask)

    def small(self, values: Sequence[float], mask: msg.Masking | None, purpose: str, said: bytes) -> msg.SmallSums:
        """A few sums whose size nobody knows beforehand. `said`: what all parties must have been told alike."""
        masks = self._masks(mask)
        drawn = None if mask is None or masks is None else masks.draw_wide(mask, purpose, said, len(values))
        self._note(drawn)
        if drawn is None:
            return wire.pack(np.array(values, dtype=np.float64))
        return wire.pack_wide([v + m for v, m in zip(to_wide(values), drawn, strict=True)])

    def onto_rows(self, landed: Landed, question: msg.SumOntoRows, said: bytes) -> msg.Array:
        """Gradients and hessians summed onto the rows of the builder."""
        sums = landed.sums
        words = to_words(sums, landed.tokens, question.exponents, FORMS[question.word_bytes], self.n_parties)
        drawn = self._row_masks(len(words), question.builder, question, said)
        self._note(drawn)
        return wire.pack_words(words if drawn is None else words + drawn, question.word_bytes, sums.shape[:-1])

    def opened(
        self, question: msg.Grow, builder: str, shape: tuple[int, ...], said: bytes
    ) -> tuple[Longs, Longs] | None:
        """What the others summed onto this builder's rows, without its masks. None if they sent nothing."""
        if question.sums is None:
            return None
        form = FORMS[question.word_bytes]
        words = from_bytes(wire.bytes_of(question.sums, f"u{form.n_bytes}", shape), form.n_bytes)
        drawn = self._row_masks(len(words), builder, question, said)
        G, H = split(words if drawn is None else words + drawn, form)  # which removes the last ones
        self._check_possible(G, H, form)
        return G.reshape(shape), H.reshape(shape)

    def _check_possible(self, G: Longs, H: Longs, form: Form) -> None:
        """Every other party cuts its sums off, so that all together fit."""
        most = [(self.n_parties - 1) * steps for steps in most_steps(form, self.n_parties)]
        found = Extremes(int(G.min(initial=0)), int(G.max(initial=0)), int(H.max(initial=0)))
        if not can_be(found, most):
            raise ProtocolError(
                f"{self.who} received sums onto its rows that are not possible. Somebody sends false sums, and "
                "masks hide who. Have every party check its labels and weights."
            )

    def per_leaf(self, sums: Sequence[Pair], question: msg.SumPerLeaf, said: bytes) -> msg.LeafSums:
        """Gradients and hessians summed per leaf of each tree."""
        ints = [to_leaf_ints(pair[part], question.exponents[part], self.n_parties) for part in (0, 1) for pair in sums]
        packed = [wire.pack(values) for values in self._masked_leaves(ints, question, said)]
        return msg.LeafSums(round=question.round, gradients=packed[: len(sums)], hessians=packed[len(sums) :])

    def together(self, parts: Parts, mask: msg.Masking | None, covers: Covers | None) -> Parts:
        """A vector for trees that are grown together: check words and masks, which cancel in the total.

        They do so only among parties that are in the same state.
        """
        masks = self._masks(mask)
        if mask is None or masks is None:
            return parts
        if covers is None:
            raise ProtocolError(f"{self.who} was asked for masked sums before keys were exchanged.")
        covers.use(mask.step)
        made = covers.with_checks(parts, mask.step, first=masks.own == mask.parties[0])
        if masks.streams or mask.parties != [masks.own]:  # one party alone has the cover only
            made = add([made, masks.draw_parts(mask, "together", covers.state, made)])
        return made

    def noisy_together(self, parts: Parts, number: int, state: bytes) -> Parts:
        """The same with noise, where the study has epsilon. `state`: of all that was decided before.

        A step has one vector and one noise, now and after every restart. Another vector is not sent: the difference
        of two with the same noise would be exact, and two noises would count twice.
        """
        noise = self.noise
        if noise is None:
            return parts
        key, own = _noise_of_step(noise.key, parts, number, state)
        with self._releases() as spent:
            if number >= noise.n_steps or any(known.startswith(f"step {number} ") and known != own for known in spent):
                raise PrivacyError(
                    f"{self.who} was asked for sums that it has sent before, from another table or after other trees, "
                    "or for more than epsilon was counted for. It sends nothing."
                )
            spent.add(own)
        drawn = discrete.draw(key, sum(part.size for part in parts)).view(np.uint64)
        return add([parts, np.split(drawn, np.cumsum([part.size for part in parts])[:-1])])

    def check_resumed(self, parts: Parts, number: int, state: bytes) -> None:
        """Refuse to continue from sums that this party did not send: what its rows have left would be wrong.

        In one process there is nothing to continue from but what this program has sent itself.
        """
        noise = self.noise
        if noise is None or not self.one_budget:
            return
        _, own = _noise_of_step(noise.key, parts, number, state)
        with self._releases() as spent:
            if own not in spent:
                raise PrivacyError(
                    f"{self.who} was asked to continue from other sums than those that it has sent: from another "
                    "table, or after other trees. It sends nothing. Put the table back, or start a new training."
                )

    def _releases(self) -> AbstractContextManager[set[str]]:
        """What this run has released: on the disk, or of this session."""
        return self.account.releases() if self.account else nullcontext(self.spent)

    def note_together(self, mask: msg.Masking | None) -> None:
        """Note that such a vector leaves."""
        self._note(mask)

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

    def _row_masks(self, n: int, builder: str, question: msg.SumOntoRows | msg.Grow, said: bytes) -> Words | None:
        """Draw this party's masks for n words of gradients and hessians summed onto the rows of a builder."""
        mask = question.mask
        masks = self._masks(mask)
        if masks is None or mask is None:
            return None
        if builder not in mask.parties:
            raise PrivacyError(
                f"{self.who} was asked for sums that their builder {builder!r} has no part in. It sends nothing."
            )
        said = told(said, question.round, question.exponents, question.word_bytes)
        return masks.draw_words(mask, f"rows of {builder}", said, n, FORMS[question.word_bytes])

    def _masked_leaves(self, sums: Sequence[Longs], question: msg.SumPerLeaf, said: bytes) -> Sequence[Longs]:
        mask = question.mask
        masks = self._masks(mask)
        if masks is None or mask is None:
            self._note(None)
            return sums
        together = np.concatenate(sums).view(np.uint64)
        said = told(said, question.round, question.exponents, question.trees)
        drawn = masks.draw(mask, "leaves", said, len(together), np.uint64)
        self._note(drawn)
        hidden = (together + drawn).view(np.int64)
        return np.split(hidden, np.cumsum([len(v) for v in sums])[:-1])

    def _note(self, mask: object | None) -> None:
        """Note that sums leave: whether with masks on them, and with noise in them."""
        exact = "exact sums" if self.noise is None else f"epsilon {self.noise.epsilon:g}"
        self.shown.update(["plain sums" if mask is None else "masked sums", exact])


def _noise_of_step(secret: bytes, parts: Parts, number: int, state: bytes) -> tuple[bytes, str]:
    """The key of the noise of one vector in one step, and what is written down of it: others can tell nothing by it."""
    key = derive(secret, "noise", number, state, [hashlib.blake2b(part.tobytes()).digest() for part in parts])
    return key, f"step {number} {derive(key, 'digest')[:16].hex()}"
