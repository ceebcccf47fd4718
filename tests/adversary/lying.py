"""A hub that follows the protocol up to a point, and then asks what it likes: sessions with terms, halted in a run."""

import pytest

import simfl
from simfl import messages as msg
from simfl import wire
from simfl.errors import PrivacyError
from simfl.party import Session
from simfl.party.terms import Terms
from simfl.privacy.keys import Keys
from simfl.privacy.tokens import secret_of
from tests.wire import Between, Recorder, rows, settled, train

NAMES = ("p0", "p1", "p2")
STUDY = {"n_trees": 6, "max_depth": 3, "rematch": 3, "random_state": 5, "masked": True}


class Reached(Exception):  # noqa: N818 - the run is where the test wants it
    """The question that a test waits for is about to be asked."""


def terms_of(**study):
    return Terms(NAMES, settled(**study))


def sessions(identity=None, folder=None, **study):
    """Three parties that approved the study. `identity`: the certificate of each, by its name."""
    terms = terms_of(**study)
    members = [simfl.Party(name, *rows(60 - 10 * i, i)) for i, name in enumerate(NAMES)]
    given = {"secret": secret_of(0), "terms": terms, "run": "r", "folder": folder}
    return [Session(member, identity=identity and identity(member.name), **given) for member in members]


def whole_run(**changed):
    """The transport of an honest run, with all that was asked and answered."""
    study = STUDY | changed
    seen = Recorder(sessions(**study))
    train(seen, **study)
    return seen


def halted(kind, number=0, identity=None, **changed):
    """p0 as it is when it is about to be asked for the n-th time for this kind, and that question."""
    study, left, caught = STUDY | changed, iter([False] * number + [True]), []

    def wait(message):
        if isinstance(message, kind) and next(left, False):
            caught.append(message)
            raise Reached
        return message

    first, *others = sessions(identity, **study)
    try:
        train(Recorder([Between(first, question=wait), *others]), **study)
    except Reached:
        return first, caught[0]
    raise AssertionError(f"no {kind.__name__} number {number} was asked for")


def refuses(session, question, rule):
    """The question is refused with its rule, for privacy and not by accident, and changes nothing."""
    phase = session.phase
    with pytest.raises(PrivacyError, match=rule) as refused:
        session.handle(wire.decode(wire.encode(question)))
    assert "It sends nothing" in str(refused.value)
    assert session.phase is phase


def keys_with(session, *others):
    """Let the session exchange keys with these, as the hub says they are the only ones."""
    own = session.handle(msg.DrawKey()).public
    keys = {session.name: own} | {other: msg.SignedKey(key=Keys(other).public) for other in others}
    return msg.TakeKeys(keys=keys, first=session.name, sealed=None)
