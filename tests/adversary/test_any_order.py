"""Any sequence of recorded and slightly changed messages: a session with terms answers along its table, or refuses."""

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from simfl import messages as msg
from simfl import wire
from simfl.errors import SimFLError
from simfl.party.phases import ACCEPTS
from simfl.privacy.keys import Keys
from tests.adversary.lying import NAMES, STUDY, sessions, whole_run

IN_ROUNDS = (msg.SumOntoRows, msg.Grow, msg.SumPerLeaf)
STUDIES = [
    {},
    {"matching": "shared"},
    {"max_depth": 0},
]
NUMBERS = st.sampled_from([0, 1, 2, 3, 7, 255, 2**20])
_recorded = {}


def recorded(number):
    """All that p0 is asked in an honest run of this study."""
    if number not in _recorded:
        seen = whole_run(**STUDIES[number])
        _recorded[number] = [question for party, question, _ in seen.log if party == "p0"]
    return _recorded[number]


def changed(draw, value):
    """Something of the same type that a hub could send instead."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw(st.sampled_from([value + 1, max(value - 1, 0)]) | NUMBERS)
    if isinstance(value, float):
        return draw(st.sampled_from([0.0, -value, value * 2, 1e-9, 1e300]))
    if isinstance(value, str):
        return draw(st.sampled_from([*NAMES, "hub", ""]))
    if isinstance(value, bytes):
        return draw(st.sampled_from([b"", value[:-1], value[::-1], bytes(len(value))]))
    if isinstance(value, list | tuple):
        some = [*value[:-1]], [*value, *value], [*value[::-1]]
        return type(value)(draw(st.sampled_from(some))) if value else value
    if isinstance(value, dict):
        left = dict(list(value.items())[1:])
        return (
            draw(st.sampled_from([left, value | dict.fromkeys(NAMES, next(iter(value.values())))])) if value else value
        )
    if isinstance(value, msgspec.Struct) and value.__struct_fields__:
        field = draw(st.sampled_from(value.__struct_fields__))
        return replace(value, **{field: changed(draw, getattr(value, field))})
    return value


def inside(draw, value):
    """Change the value, or something in it."""
    if isinstance(value, list | tuple) and value and draw(st.booleans()):
        place = draw(st.integers(0, len(value) - 1))
        return type(value)([inside(draw, v) if n == place else v for n, v in enumerate(value)])
    if isinstance(value, dict) and value and draw(st.booleans()):
        key = draw(st.sampled_from(sorted(value)))
        return value | {key: inside(draw, value[key])}
    if isinstance(value, msgspec.Struct) and value.__struct_fields__ and draw(st.booleans()):
        field = draw(st.sampled_from(value.__struct_fields__))
        return replace(value, **{field: inside(draw, getattr(value, field))})
    return changed(draw, value)


class AnyOrder(RuleBasedStateMachine):
    """A hub without manners before one session."""

    @initialize(study=st.integers(0, len(STUDIES) - 1), begin=st.integers(0, 60))
    def open(self, study, begin):
        self.session = sessions(**STUDY | STUDIES[study])[0]
        self.questions, self.given = recorded(study), {}
        self.at = 0
        for _ in range(begin):
            self.next_one()

    def ask(self, question):
        try:  # as it would arrive
            question = wire.decode(wire.encode(question))
        except SimFLError:
            return None
        before = self.session.phase
        try:
            reply = self.session.handle(question)
        except SimFLError:
            assert self.session.phase is before
            return None
        assert self.session.phase is ACCEPTS[before][type(question)]
        if isinstance(question, IN_ROUNDS):
            answer = (wire.encode(question), wire.encode(reply))
            assert self.given.setdefault((question.round, type(question)), answer) == answer
        return reply

    @rule()
    def next_one(self):
        """The honest next question; keys are new in every run."""
        if self.at < len(self.questions):
            question, self.at = self.questions[self.at], self.at + 1
            if isinstance(question, msg.TakeKeys):
                self.take_keys(sorted(question.keys))
            else:
                self.ask(question)

    @rule(data=st.data())
    def any_one(self, data):
        self.ask(data.draw(st.sampled_from(self.questions)))

    @rule(data=st.data())
    def again(self, data):
        """What was asked lately once more, or slightly changed."""
        question = self.questions[max(self.at - data.draw(st.integers(1, 3)), 0)]
        self.ask(inside(data.draw, question) if data.draw(st.booleans()) else question)

    @rule(data=st.data())
    def changed_one(self, data):
        self.ask(inside(data.draw, data.draw(st.sampled_from(self.questions))))

    @rule(names=st.lists(st.sampled_from([*NAMES, "hub"]), unique=True))
    def take_keys(self, names):
        drawn = self.ask(msg.DrawKey())
        keys = {name: msg.SignedKey(key=Keys(name).public) for name in names if name != "p0"}
        if drawn is not None:
            keys["p0"] = drawn.public
        self.ask(msg.TakeKeys(keys=keys, first=names[0] if names else "", sealed=None))

    @invariant()
    def masks_are_over_parties_of_the_study(self):
        session = getattr(self, "session", None)
        if session is not None and session.sealing.masks is not None:
            assert {session.name, *session.sealing.masks.streams} == {*session.rules.exchanged} <= {*NAMES}


AnyOrder.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
class TestAnyOrder(AnyOrder.TestCase):
    """Runs the machine."""
