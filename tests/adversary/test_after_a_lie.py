"""A refused question changes nothing: the honest one that follows is answered as if there had been no lie."""

import numpy as np
import pytest
from msgspec.structs import replace

import simfl
from simfl import messages as msg
from simfl import wire
from simfl.errors import SimFLError
from simfl.party import Session
from simfl.training.losses import settings_of
from tests.adversary.lying import NAMES, STUDY, halted, keys_with, refuses, sessions, terms_of
from tests.adversary.test_signed_trees import VALUED, identity, stump
from tests.wire import Between, Recorder, bits, rows, train


def unsigned(question):
    return replace(question, previous=[replace(t, structure=stump(), signed=None) for t in question.previous])


def cut_short(question):
    values = wire.pack(np.zeros(1, np.float32))
    return replace(question, previous=[replace(t, values=values) for t in question.previous])


def other_masks(question):
    return replace(question, mask=replace(question.mask, parties=question.mask.parties[:-1]))


def no_masks(question):
    return replace(question, mask=None)


def next_turn(question):
    return replace(question, round=question.round + 1)


LIES = [
    *((kind, lie) for kind in (msg.SumOntoRows, msg.Grow) for lie in (unsigned, cut_short, other_masks, no_masks)),
    *((kind, next_turn) for kind in (msg.SumOntoRows, msg.Grow, msg.SumPerLeaf)),
    *((kind, lie) for kind in (msg.SumPerLeaf, msg.Finish) for lie in (other_masks, no_masks)),
    *((msg.HashByTrees, lie) for lie in (unsigned, cut_short)),
    (msg.Finish, unsigned),
]


@pytest.mark.parametrize("changed", [{}, VALUED], ids=["exact values", "builder's values"])
@pytest.mark.parametrize(("kind", "lie"), LIES, ids=lambda part: part.__name__)
def test_an_honest_question_is_answered_after_a_lie(kind, lie, changed):
    """Every question of this kind is a lie first. The model must be that of an honest run."""
    study, refused = STUDY | {"n_trees": 8} | changed, []
    honest = bits(train(Recorder(sessions(identity, **study)), **study))

    def lie_first(session):
        def ask(message):
            false = lie(message) if isinstance(message, kind) else message
            if false != message:
                with pytest.raises(SimFLError):
                    session.handle(false)
                refused.append(false)
            return message

        return Between(session, question=ask)

    assert bits(train(Recorder([lie_first(s) for s in sessions(identity, **study)]), **study)) == honest
    assert refused or (kind is msg.SumPerLeaf and changed)


def test_a_lie_is_no_way_to_more_rounds():
    """What was really adopted counts, also where the question was refused afterwards."""
    session, question = halted(msg.SumOntoRows, 1, identity, **VALUED)
    adopted = session.rules.n_adopted
    session.sealing.masks.last["rows of " + question.builder] = 10**6  # refused late, after the trees were adopted
    with pytest.raises(SimFLError):
        session.handle(question)
    assert session.rules.n_adopted == adopted + 1 == len(session.training._adopted)


def test_keys_that_were_refused_are_not_used():
    """Else the sums of all parties, and then of all but one, would differ by that one's."""
    parties = [simfl.Party(name, *rows(60, i)) for i, name in enumerate(NAMES)]
    session = Session(parties[0], terms=terms_of(**STUDY), run="r")  # the parties' secret comes with the keys
    session.handle(msg.Describe(version=msg.VERSION, validation_fraction=0.0, seed=5))
    session.handle(keys_with(session, "p1", "p2"))
    train = session.rules.terms.params
    mask = msg.Masking(step=0, parties=[*NAMES])
    question = msg.SumLabels(objective=train.objective, settings=settings_of(train), classes=[0, 1], mask=mask)
    session.handle(question)
    with pytest.raises(SimFLError, match="cannot be opened"):
        session.handle(replace(keys_with(session, "p1"), first="p1", sealed=bytes(50)))
    fewer = replace(question, mask=msg.Masking(step=1, parties=["p0", "p1"]))
    refuses(session, fewer, "over exactly those who exchanged keys")
