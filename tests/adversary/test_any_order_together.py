"""Any sequence of messages while trees are grown together: a session answers along its table, once, or refuses."""

import contextlib

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from simfl import messages as msg
from simfl import wire
from simfl.errors import SimFLError
from simfl.party.phases import ACCEPTS
from tests.adversary import test_lying_private as private
from tests.adversary.lying import NAMES, Reached, keys_with
from tests.adversary.test_any_order import inside
from tests.adversary.test_lying_joint import STUDY, sessions
from tests.wire import Between, Recorder, grow_together

STUDIES = [{}, {"masked": False}, {"objective": "reg:squarederror"}, {"epsilon": 2.0}]
STEPS = msg.Add | msg.Read


def opened(study):
    """Three parties, and the study that they approved."""
    if "epsilon" in study:
        pytest.importorskip("dp_accounting")
        return [private.party(place) for place in range(3)], private.STUDY
    return sessions(**STUDY | study), STUDY | study


class AnyOrder(RuleBasedStateMachine):
    """An honest run up to some step; from there on a hub without manners before one session."""

    @initialize(study=st.sampled_from(STUDIES), begin=st.integers(0, 14), who=st.integers(0, 2))
    def open(self, study, begin, who):
        members, params = opened(study)
        self.session, self.given, left = members[who], {}, iter(range(begin))
        for one in members:  # the same run every time
            one.private = one.noise_key = one.name.encode().ljust(32)

        def wait(message):
            self.next = message
            if isinstance(message, STEPS) and next(left, None) is None:
                raise Reached
            return message

        seen = Recorder([Between(one, question=wait) if one is self.session else one for one in members])
        with contextlib.suppress(Reached):  # a short run is over before
            grow_together(seen, **params)
        self.questions = [question for party, question, _ in seen.log if party == NAMES[who]]
        self.start = next(q for q in self.questions if isinstance(q, msg.StartTogether))

    def ask(self, question):
        try:  # as it would arrive
            question = wire.decode(wire.encode(question))
        except SimFLError:
            return
        before = self.session.phase
        try:
            reply = self.session.handle(question)
        except SimFLError:
            assert self.session.phase is before
            return
        assert self.session.phase is ACCEPTS[before][type(question)]
        if isinstance(question, STEPS):
            answer = (wire.encode(question), wire.encode(reply))
            exchange = reply.exchange if isinstance(reply, msg.Addend) else reply.addend.exchange
            known = self.given.setdefault((exchange, question.step, type(question)), answer)
            assert known == answer

    @rule()
    def next_one(self):
        self.ask(self.next)

    @rule(data=st.data())
    def changed_next(self, data):
        self.ask(inside(data.draw, self.next))

    @rule(data=st.data())
    def any_one(self, data):
        self.ask(data.draw(st.sampled_from(self.questions)))

    @rule(data=st.data())
    def changed_one(self, data):
        self.ask(inside(data.draw, data.draw(st.sampled_from(self.questions))))

    @rule(step=st.integers(0, 40))
    def first_step(self, step):
        """As after a start."""
        self.ask(msg.Add(step=step))

    @rule(data=st.data())
    def changed_start(self, data):
        self.ask(inside(data.draw, self.start))

    @rule(others=st.lists(st.sampled_from([*NAMES, "hub"]), unique=True))
    def take_keys(self, others):
        try:
            self.ask(keys_with(self.session, *(name for name in others if name != self.session.name)))
        except SimFLError:
            return


AnyOrder.TestCase.settings = settings(
    max_examples=30, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
class TestAnyOrder(AnyOrder.TestCase):
    """Runs the machine."""
