"""Trees grown together, at a party: its vectors go out masked, and what follows from their totals is taken on.

What is summed and what a total means is the business of a machine (`simfl/joint/machine.py`). Here is who may see it,
and in which order: every step is answered once, and its total arrives with the next question. All parties read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from simfl import messages as msg
from simfl import wire
from simfl.errors import PrivacyError
from simfl.joint.machine import Machine, Metrics
from simfl.joint.private import PrivateMachine
from simfl.params import is_private
from simfl.party.keeping import Keeping
from simfl.party.sealing import Sealing
from simfl.privacy import boxes
from simfl.privacy.additive import Covers, Parts, add, from_words, keyed_digest, same_form, subtract, to_words
from simfl.privacy.certificates import SUBMITTER
from simfl.privacy.keys import Identity, verify_key


class Step(NamedTuple):
    """The step that this party is in, and its vector, as it is added."""

    number: int
    own: Parts


@dataclass
class Membership:
    """Who this party is in a run, and what it shares with the others."""

    name: str
    run: str
    secret: bytes = field(repr=False)
    identity: Identity | None = None
    covers: Covers | None = None  # of the last exchange of keys; None where nothing is masked

    @property
    def exchange(self) -> bytes:
        """The keys under which vectors are masked."""
        return self.covers.exchange if self.covers else b""

    def key(self, purpose: str, exchange: bytes, step: int) -> bytes:
        """A key of all parties for one step."""
        return Covers(self.secret, exchange).key(purpose, step)


class GrowingTogether:
    """One party's part, from one start to the next."""

    def __init__(
        self, start: msg.StartTogether, member: Membership, sealing: Sealing, machine: Machine | PrivateMachine
    ) -> None:
        self.start, self.member, self.sealing, self.machine = start, member, sealing, machine
        self.parties, self.masked = start.parties, start.masked
        key_of = partial(member.key, "decision") if start.masked else None
        self.keeping = Keeping(member.name, member.run, member.identity, key_of)
        facts = ["trees", "grown together"]
        facts += ["drawn trees"] if is_private(start.params) else [f"min_group {start.params.min_group}"]
        sealing.shown.update(facts)
        self.now: Step | None = None
        self._answered: tuple[msg.Add, msg.Addend] | None = None  # the last question, and what was replied
        self.told = 0  # rounds whose metrics the hub has
        self._resume([self.keeping.open(kept) for kept in start.kept])

    def _resume(self, decisions: list[bytes]) -> None:
        """Take on what was decided before. With epsilon only after the very sums that this party has sent."""
        machine = self.machine
        if not isinstance(machine, PrivateMachine):
            machine.resume(decisions)
            return
        for number, decision in enumerate(decisions):
            self.sealing.check_resumed(to_words(machine.contribution()), number, machine.digest())
            machine.apply(decision)

    def add(self, question: msg.Add) -> msg.Addend:
        """Take on what followed from the last step, and contribute to the next."""
        if self._answered and self._answered[0] == question:
            return self._answered[1]
        is_new = self.now is None or question.step > self.now.number
        self._refuse_unless(is_new, f"step {question.step} is answered once")
        kept = self._take(question.total)
        self._enter(question.step)
        reply = self._addend(keep=question.total is not None and self.machine.keeps, kept=kept)
        self._answered = question, reply
        return reply

    def send_model(self, question: msg.SendModel, model: bytes) -> msg.SealedModel:
        """The model's file, for its receiver alone."""
        receiver = question.receiver
        if receiver is None:
            self._refuse_unless(not self.masked, "sums are masked, so the hub gets no model: it is for its submitter")
            return msg.SealedModel(sealed=model)
        if self.member.identity is not None:
            verify_key(self.member.identity, SUBMITTER, receiver, self.member.run, "submitter")
        signed = boxes.signed(model, self.member.name, self.member.run, self.member.identity)
        return msg.SealedModel(sealed=boxes.close(receiver.key, signed))

    # --- what leaves -------------------------------------------------------------------------------------------------

    def _enter(self, step: int) -> None:
        """Work out this party's part of a step."""
        machine, covers = self.machine, self.member.covers
        if covers is not None:
            covers.state = machine.digest()
        parts = [] if machine.finished else to_words(machine.contribution())
        parts = self.sealing.noisy_together(parts, len(machine.kept), machine.digest()) if parts else []
        own = self.sealing.together(parts, self._mask(step), covers) if parts else []
        if own and covers is not None and self._is_first:
            own = add([own, covers.cover(step, own)])
        self.now = Step(step, own)

    def _addend(self, *, keep: bool, kept: msg.Kept | None) -> msg.Addend:
        """What this party sends in the step that it is in."""
        machine, member, now = self.machine, self.member, self.now
        if now is None:
            raise self._refusal("nothing was asked yet")
        if now.own:
            self.sealing.note_together(self._mask(now.number))
        return msg.Addend(
            step=now.number,
            parts=wire.pack_parts(now.own),
            exchange=member.exchange,
            digest=keyed_digest(member.key("digest", member.exchange, now.number), machine.digest()),
            name=machine.step,
            n_trees=machine.n_rounds,
            keep=keep,
            kept=kept,
            finished=machine.finished,
            metrics=[] if self.masked else self._new_metrics(),
            shown=dict(self.sealing.shown) if machine.finished else {},
        )

    def _mask(self, step: int) -> msg.Masking | None:
        return msg.Masking(step=step, parties=self.parties) if self.masked else None

    @property
    def _is_first(self) -> bool:
        return self.parties[0] == self.member.name

    def _new_metrics(self) -> list[Metrics]:
        found = self.machine.metrics(self.told)
        self.told += len(found)
        return found

    # --- what follows from a step ------------------------------------------------------------------------------------

    def _take(self, total: msg.Total | None) -> msg.Kept | None:
        """Take on the total of the last step. Returns what is to be kept of it, sealed by the first party."""
        now = self.now
        if now is None or total is None:
            self._refuse_unless(now is None and total is None, "the total of a step comes with the next question")
            return None
        belongs = (total.step, total.exchange) == (now.number, self.member.exchange)
        self._refuse_unless(belongs, f"what is passed on is the total of step {now.number}")
        self.machine.apply(self.machine.read(self._opened(total.parts, now)))
        if self._is_first and self.machine.keeps:
            return self.keeping.seal(total.exchange, now.number, self.machine.kept[-1])
        return None

    def _opened(self, arrays: Sequence[msg.Array], now: Step) -> Parts:
        """A total without its cover and its check words, if they fit."""
        total, covers = wire.unpack_parts(arrays), self.member.covers
        self._refuse_unless(same_form(total, now.own), f"the total of step {now.number} has the form of what was added")
        if covers is not None:
            total = subtract(total, covers.cover(now.number, total))
        return from_words(covers.without_checks(total, now.number) if covers else total)

    def _refuse_unless(self, holds: bool, rule: str) -> None:
        if not holds:
            raise self._refusal(rule)

    def _refusal(self, rule: str) -> PrivacyError:
        return PrivacyError(f"Party {self.member.name!r} refuses: {rule}. It sends nothing.")
