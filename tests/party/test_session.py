"""A session answers what its table accepts, when it accepts it, and refuses everything else in one sentence."""

import numpy as np
import pytest

import simfl
from simfl import hub
from simfl import messages as msg
from simfl.errors import DataError, ProtocolError
from simfl.params import prepare_params, train_params
from simfl.party.phases import ACCEPTS, Phase
from simfl.party.session import Session
from simfl.privacy.tokens import secret_of
from simfl.transport.local import LocalTransport

SECRET = secret_of(7)


def party(name="a", n=30, seed=0):
    X = np.random.default_rng(seed).normal(size=(n, 4)).astype(np.float32)
    return simfl.Party(name, X, (X[:, 0] + X[:, 1] > 0).astype(int))


def new_session():
    return Session(party(), secret=SECRET)


class Listening:
    """A session whose questions are written down."""

    def __init__(self, session):
        self.session, self.name, self.n_jobs, self.questions = session, session.name, 1, []

    def handle(self, message):
        self.questions.append(message)
        return self.session.handle(message)


@pytest.fixture(scope="module", params=["shared", "blind"])
def questions(request):
    """All that a party is asked in one run, in order, but for keys, which are new in every run."""
    first = Listening(new_session())
    others = [Listening(Session(party(name, 25, seed), secret=SECRET)) for seed, name in enumerate("bc", 1)]
    transport = LocalTransport([first, *others], 1)
    prepared = hub.prepare(transport, prepare_params(matching=request.param, random_state=0))
    hub.train(transport, prepared, train_params(n_trees=5, max_depth=2, rematch=3))
    return [q for q in first.questions if not isinstance(q, msg.DrawKey | msg.TakeKeys)]


def after(questions):
    session = new_session()
    for question in questions:
        session.handle(question)
    return session


def test_every_state_but_two_occurs_in_a_plain_run(questions):
    session, states = new_session(), set()
    for question in questions:
        states.add(session.phase)
        session.handle(question)
    assert states == set(Phase) - {Phase.EXCHANGING, Phase.TOGETHER}
    assert session.phase is Phase.READY


def test_what_the_table_does_not_accept_is_refused_and_changes_nothing(questions):
    kinds = {type(question): question for question in questions}
    session, seen = new_session(), set()
    for number, question in enumerate(questions):
        if session.phase not in seen:
            seen.add(session.phase)
            for kind, other in kinds.items():
                if kind not in ACCEPTS[session.phase]:
                    probed = after(questions[:number])
                    with pytest.raises(ProtocolError, match=f"Party 'a' was asked for {kind.__name__} "):
                        probed.handle(other)
                    assert probed.phase is session.phase
        session.handle(question)
    assert len(seen) == 5


def test_every_message_of_the_hub_is_in_the_table_but_those_of_the_deployment():
    accepted = {kind for kinds in ACCEPTS.values() for kind in kinds}
    assert set(msg.Request.__args__) - accepted == {msg.Greet, msg.TakeModel}
    assert accepted == set(Session._answers)


def test_a_reply_is_no_question():
    with pytest.raises(ProtocolError, match="was asked for Matched before the handshake"):
        new_session().handle(msg.Matched(equal_hashes={}, most_uses=0))


def test_keys_that_were_drawn_must_be_taken_or_drawn_again(questions):
    session = after(questions[:1])
    session.handle(msg.DrawKey())
    assert session.phase is Phase.EXCHANGING
    with pytest.raises(ProtocolError, match="SumPerLeaf while keys were being exchanged"):
        session.handle(msg.SumPerLeaf(round=0, trees=[], exponents=(0, 0)))
    session.handle(msg.DrawKey())
    with pytest.raises(ProtocolError, match="under a key that it did not draw"):
        session.handle(msg.TakeKeys(keys={"a": msg.SignedKey(key=bytes(32))}, first="a", sealed=None))


def test_labels_that_are_not_numbers_are_refused_before_the_long_search():
    member = simfl.Party("a", np.zeros((3, 2)), ["low", "high", "low"])
    session = Session(member)
    session.handle(msg.Describe(version=msg.VERSION, validation_fraction=0.0, seed=0))
    with pytest.raises(DataError, match="Party 'a' has labels that are not numbers"):
        session.handle(msg.DescribeLabels(objective="reg:squarederror"))


def test_another_version_of_the_protocol_is_refused():
    with pytest.raises(ProtocolError, match=f"speaks version {msg.VERSION} .* the hub 99"):
        new_session().handle(msg.Describe(version=99, validation_fraction=0.0, seed=0))


def test_a_training_ends_when_the_hub_starts_again_with_the_others(questions):
    number = next(i for i, q in enumerate(questions) if isinstance(q, msg.SumOntoRows | msg.Grow))
    session = after(questions[: number + 1])
    assert session.phase is Phase.TRAINING
    session.handle(msg.DrawKey())
    with pytest.raises(ProtocolError, match="Grow while keys"):
        session.handle(next(q for q in questions if isinstance(q, msg.Grow)))


def test_a_party_is_data_that_no_session_changes(questions):
    member = party()
    before = (member.rows.X.tobytes(), member.rows.y.tobytes(), member.schema)
    session = Session(member, secret=SECRET)
    for question in questions:
        session.handle(question)
    assert (member.rows.X.tobytes(), member.rows.y.tobytes(), member.schema) == before
    assert set(vars(member)) == {"name", "rows", "schema", "declared", "validation"}


def test_two_sessions_of_one_party_do_not_know_of_each_other(questions):
    member = party()
    one, two = Session(member, secret=SECRET), Session(member, secret=SECRET)
    for question in questions:
        one.handle(question)
    assert two.phase is Phase.NEW
    assert two.similar.rows == {}
