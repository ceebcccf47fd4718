"""Trees grown together, at a party: its vectors go out masked, and what follows from their totals is checked.

What is summed and what a total means is the business of a machine (`simfl/joint/machine.py`). Here is who may see it,
and in which order: every step is answered once, its result arrives with the next question, and it is the total itself
where all read, or the announcement of the one reader whose turn it is. The reader is asked last: its own vector stays
with it, and its part of the next step leaves with its announcement.
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
from simfl.party.announcing import Announcing
from simfl.party.sealing import Sealing
from simfl.privacy import boxes
from simfl.privacy.additive import Covers, Parts, add, from_words, keyed_digest, same_form, subtract, to_words
from simfl.privacy.certificates import SUBMITTER
from simfl.privacy.keys import Identity, verify_key


class Step(NamedTuple):
    """The step that this party is in: who reads its total (None: all), and this party's vector, as it is added."""

    number: int
    reader: str | None
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
        self.announcing = Announcing(member.name, member.run, member.identity, key_of)
        facts = ["trees", "grown together"]
        facts += ["drawn trees"] if is_private(start.params) else [f"min_group {start.params.min_group}"]
        sealing.shown.update(facts)
        self.now: Step | None = None
        self._answered: tuple[msg.Request, msg.Reply] | None = None  # the last question, and what was replied
        self.told = 0  # rounds whose metrics the hub has
        self._resume([self._announced(result, result.reader) for result in start.kept])

    def _resume(self, decisions: list[bytes]) -> None:
        """Take on what was decided before. With epsilon only after the very sums that this party has sent."""
        machine = self.machine
        if not isinstance(machine, PrivateMachine):
            machine.resume(decisions)
            return
        for number, decision in enumerate(decisions):
            self.sealing.check_resumed(to_words(machine.contribution()), number, machine.digest())
            machine.apply(decision)

    def add(self, question: msg.Add) -> msg.Reply:
        """Take what followed from the last step, and contribute to the next."""
        return self._known(question) or self._answer(question, self._add(question))

    def _add(self, question: msg.Add) -> msg.Addend:
        self._refuse_unless(self._is_new(question.step), f"step {question.step} is answered once")
        announced = self._take(question.result)
        self._enter(question.step)
        return self._addend(keep=question.result is not None and self.machine.keeps, announced=announced)

    def read(self, question: msg.Read) -> msg.Reply:
        """Read the total of a step, as its reader; follow what was decided, and contribute to the next."""
        return self._known(question) or self._answer(question, self._read(question))

    def _read(self, question: msg.Read) -> msg.Announced:
        step, exchange = question.step, self.member.exchange
        if question.result is not None:
            self._refuse_unless(self._is_new(step), f"step {step} is answered once")
            next_reader = self._name(self.machine.next_reader)
            self._refuse_unless(next_reader == self.member.name, f"step {step} is read by {next_reader or 'all'}")
            self._take(question.result)
            self._enter(step)
        now = self.now
        if now is None or now.number != step:
            raise self._refusal(f"step {step} is not the one that is being added")
        self._refuse_unless(
            now.reader == self.member.name, f"the total of step {step} is read by {now.reader or 'all'}"
        )
        decision = self.machine.read(self._completed(question.others, now))
        announcement = self.announcing.announce(exchange, step, decision)
        self.machine.apply(decision)
        self._enter(step + 1)
        return msg.Announced(step=step, announcement=announcement, addend=self._addend(keep=self.machine.keeps))

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
        reader = None if machine.finished else self._name(machine.reader)
        if covers is not None:
            covers.state = machine.digest()
        parts = [] if machine.finished else to_words(machine.contribution())
        parts = self.sealing.noisy_together(parts, len(machine.kept), machine.digest()) if parts else []
        own = self.sealing.together(parts, self._mask(step), covers) if parts else []
        if own and covers is not None and reader is None and self._is_first:
            own = add([own, covers.cover(step, own)])
        self.now = Step(step, reader, own)

    def _addend(self, *, keep: bool, announced: msg.Announcement | None = None) -> msg.Addend:
        """What this party sends in the step that it is in. What it reads itself stays here."""
        machine, member, now = self.machine, self.member, self.now
        if now is None:
            raise self._refusal("nothing was asked yet")
        sent = [] if now.reader == member.name else now.own
        if sent:
            self.sealing.note_together(self._mask(now.number))
        return msg.Addend(
            step=now.number,
            parts=wire.pack_parts(sent),
            exchange=member.exchange,
            digest=keyed_digest(member.key("digest", member.exchange, now.number), machine.digest()),
            name=machine.step,
            n_trees=machine.n_rounds,
            reader=now.reader,
            next_reader=None if machine.finished else self._name(machine.next_reader),
            keep=keep,
            announced=announced,
            finished=machine.finished,
            metrics=[] if self.masked else self._new_metrics(),
            shown=dict(self.sealing.shown) if machine.finished else {},
        )

    def _mask(self, step: int) -> msg.Masking | None:
        return msg.Masking(step=step, parties=self.parties) if self.masked else None

    def _name(self, number: int | None) -> str | None:
        return None if number is None else self.parties[number]

    @property
    def _is_first(self) -> bool:
        return self.parties[0] == self.member.name

    def _new_metrics(self) -> list[Metrics]:
        found = self.machine.metrics(self.told)
        self.told += len(found)
        return found

    # --- what follows from a step ------------------------------------------------------------------------------------

    def _known(self, question: msg.Add | msg.Read) -> msg.Reply | None:
        """The answer, where the same was asked before."""
        return self._answered[1] if self._answered and self._answered[0] == question else None

    def _answer(self, question: msg.Add | msg.Read, reply: msg.Reply) -> msg.Reply:
        self._answered = question, reply
        return reply

    def _is_new(self, step: int) -> bool:
        return self.now is None or step > self.now.number

    def _take(self, result: msg.Result | None) -> msg.Announcement | None:
        """Apply what followed from the last step. Returns what is to be kept, where nobody announced it."""
        now = self.now
        if now is None or result is None:
            self._refuse_unless(now is None and result is None, "the result of a step comes with the next question")
            return None
        self._refuse_unless(
            now.reader != self.member.name, f"step {now.number} is read by this party, who announces it"
        )
        belongs = (result.step, result.exchange) == (now.number, self.member.exchange)
        self._refuse_unless(belongs, f"what is passed on follows from step {now.number}")
        decision = self._total(result, now) if now.reader is None else self._announced(result, now.reader)
        self.machine.apply(decision)
        if now.reader is None and self._is_first and self.machine.keeps:
            return self.announcing.announce(result.exchange, now.number, decision, for_later=True)
        return None

    def _announced(self, result: msg.Result, reader: str | None) -> bytes:
        """What the reader of a step decided."""
        if reader is None or result.announced is None or result.reader != reader:
            raise self._refusal(f"step {result.step} is read by {reader or 'one party'}, who announces what follows")
        return self.announcing.open(result, result.announced, reader)

    def _total(self, result: msg.Result, now: Step) -> bytes:
        """What follows from a total that all read."""
        if result.total is None or result.reader is not None:
            raise self._refusal(f"the total of step {result.step} is read by all")
        total, covers = self._unpacked(result.total, now), self.member.covers
        if covers is not None:
            total = subtract(total, covers.cover(now.number, total))
        return self.machine.read(self._checked(total, now))

    def _completed(self, others: Sequence[msg.Array], now: Step) -> Parts:
        """The total of a step that this party reads: its own vector, which nobody has seen, makes the masks cancel."""
        return self._checked(add([self._unpacked(others, now), now.own]), now)

    def _unpacked(self, arrays: Sequence[msg.Array], now: Step) -> Parts:
        total = wire.unpack_parts(arrays)
        self._refuse_unless(same_form(total, now.own), f"the total of step {now.number} has the form of what was added")
        return total

    def _checked(self, total: Parts, now: Step) -> Parts:
        """A total without its check words, if they fit."""
        covers = self.member.covers
        return from_words(covers.without_checks(total, now.number) if covers else total)

    def _refuse_unless(self, holds: bool, rule: str) -> None:
        if not holds:
            raise self._refusal(rule)

    def _refusal(self, rule: str) -> PrivacyError:
        return PrivacyError(f"Party {self.member.name!r} refuses: {rule}. It sends nothing.")
