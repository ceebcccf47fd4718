"""A hub that makes up trees, changes them, or uses them where they do not belong."""

import random
from functools import cache

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from msgspec.structs import replace

from simfl import messages as msg
from simfl import wire
from simfl.errors import PartyLost, PrivacyError, ProtocolError
from simfl.hub.journal import Grew, open_journal
from simfl.party.signing import Content, Signing
from simfl.transport.local import LocalTransport
from tests.adversary.lying import NAMES, STUDY, halted, refuses, sessions
from tests.privacy.authority import Project
from tests.wire import Recorder, bits, train

PROJECT = Project()
STUDIES = {
    "similar": {},
    "builder's values": {"leaf_values": "builder", "extra_depth": 0},
    "classes": {"objective": "multi:softprob"},
    "classes, builder's values": {"objective": "multi:softprob", "leaf_values": "builder"},
}
VALUED = STUDIES["builder's values"]


@cache
def identity(name, renewed=0):
    return PROJECT.identity(name)


def signing(name, run="r", project=PROJECT, **more):
    return Signing(identity(name) if project is PROJECT and not more else project.identity(name, **more), name, run)


def stump(feature=0, threshold=0.25):
    """A tree of the hub's own: one split."""
    return msg.TreeStructure(
        n_nodes=3,
        inner=b"\x80",
        feature=wire.pack(np.array([feature], dtype=np.uint8)),
        threshold=wire.pack(np.array([threshold], dtype=np.float32)),
        default_left=b"\x00",
    )


# --- honest runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", STUDIES)
def test_an_honest_run_with_certificates_gives_the_same_bits(case):
    study = STUDY | STUDIES[case]
    signed, plain = Recorder(sessions(identity, **study)), Recorder(sessions(**study))
    assert bits(train(signed, **study)) == bits(train(plain, **study))
    grown = [reply for _, _, reply in signed.log if isinstance(reply, msg.Grown)]
    assert all(len(reply.signed) == len(reply.trees) for reply in grown)
    shown = [own.builder for reply in grown for own in reply.signed if own.certificate]
    assert sorted(shown) == sorted(NAMES)  # once each
    assert b"signed" not in plain.bytes  # without certificates not even the word


def test_keys_of_kits_sign_trees():
    key = rsa.generate_private_key(65537, 2048)  # as FLARE makes them
    builder, reader = Signing(PROJECT.identity("p1", key), "p1", "r"), signing("p0")
    tree = Content(stump(), None)
    (signed,) = builder.sign(3, [tree])
    reader.check([signed], [tree])
    with pytest.raises(PrivacyError, match="not by its certificate"):
        reader.check([signed], [Content(stump(threshold=0.26), None)])


# --- leaf sums over trees that the hub chooses -----------------------------------------------------------------------


def resigned(question, by, number=None, tree=None):
    """The question over a tree that somebody else signed."""
    tree = tree or question.trees[0]
    signed = by.sign(question.round if number is None else number, [Content(tree, None)])
    return replace(question, trees=[tree], signed=signed)


def about(question, **changed):
    return replace(question, signed=[replace(question.signed[0], **changed)])


LIES = {
    "made up, with the signature of another tree": (
        lambda q: replace(q, trees=[stump()]),
        "the signature is not by its certificate",
    ),
    "unsigned": (lambda q: replace(q, trees=[stump()], signed=[]), "a tree is signed by its builder"),
    "signed by the hub's own certificate": (
        lambda q: resigned(q, signing("p1", role="hub"), tree=stump()),
        "that of a hub, not of a party",
    ),
    "signed under another root": (
        lambda q: resigned(q, signing("p1", project=Project()), tree=stump()),
        "not issued by the root",
    ),
    "signed with a certificate that has expired": (  # nobody can tell when it was signed
        lambda q: resigned(q, signing("p1", days=(-30, -1))),
        "its certificate is not valid today",
    ),
    "signed by another party": (lambda q: resigned(q, signing("p2"), tree=stump()), "by 'p1', whose turn it was"),
    "signed by the receiver": (lambda q: resigned(q, signing("p0"), tree=stump()), "by 'p1', whose turn it was"),
    "signed by a stranger": (lambda q: resigned(q, signing("mole"), tree=stump()), "by 'p1', whose turn it was"),
    "of another run": (lambda q: resigned(q, signing("p1", "other")), "the signature is not by its certificate"),
    "of another round": (lambda q: resigned(q, signing("p1"), q.round + 3), "signed for it, not for"),
    "of another round, renamed": (
        lambda q: about(resigned(q, signing("p1"), q.round + 3), round=q.round),
        "the signature is not by its certificate",
    ),
    "of another party, renamed": (
        lambda q: about(resigned(q, signing("p2")), builder="p1"),
        "its certificate is of 'p2'",
    ),
    "with another threshold": (
        lambda q: replace(q, trees=[replace(q.trees[0], threshold=moved(q.trees[0].threshold))]),
        "the signature is not by its certificate",
    ),
    "under another feature": (
        lambda q: replace(q, trees=[replace(q.trees[0], feature=moved(q.trees[0].feature, 1))]),
        "the signature is not by its certificate",
    ),
    "with another's certificate": (
        lambda q: about(q, certificate=identity("p2").encoded),
        "its certificate is of 'p2'",
    ),
    "without a certificate": (lambda q: about(q, certificate=None), "its certificate was not sent"),
}


def moved(array, by=0.001):
    values = np.frombuffer(array.data, dtype=f"<{array.dtype}").copy()
    values[0] = values[0] + by
    return wire.pack(values.astype(f"<{array.dtype}"))


@pytest.mark.parametrize("lie", LIES)
def test_leaf_sums_are_over_trees_that_their_builder_signed(lie):
    make, rule = LIES[lie]
    session, question = halted(msg.SumPerLeaf, 1, identity)
    assert question.signed[0].builder == "p1"
    refuses(session, make(question), rule)
    assert isinstance(session.handle(question), msg.LeafSums)  # the genuine one is answered


def test_row_4_of_the_table_gets_no_sums_at_all():
    session, question = halted(msg.SumPerLeaf, 1, identity)
    for n in range(95):  # a threshold between any two rows, of any feature
        refuses(session, replace(question, trees=[stump(n % 6, -2 + n / 24)]), "not by its certificate")
        refuses(session, replace(question, trees=[stump(n % 6, -2 + n / 24)], signed=[]), "signed by its builder")


def test_trees_of_several_classes_stay_in_their_places():
    session, question = halted(msg.SumPerLeaf, 0, identity, objective="multi:softprob")
    trees, signed = question.trees, question.signed
    assert len(trees) == len(signed) == 2
    refuses(session, replace(question, trees=trees[::-1], signed=signed[::-1]), "certificate")
    refuses(session, replace(question, trees=trees[:1], signed=signed[:1]), "a round has 2 trees, not 1")
    refuses(session, replace(question, signed=signed[:1]), "by 'p0', whose turn it was")
    refuses(session, replace(question, trees=trees * 3, signed=signed * 3), "a round has 2 trees, not 6")
    session.handle(question)


# --- trees that become part of the model -----------------------------------------------------------------------------


def revalued(tree):
    return replace(tree, values=moved(tree.values, 0.5))


FALSE_TREES = {
    "made up": (lambda t: replace(t, structure=stump(), values=wire.pack(np.zeros(2, np.float32))), "not by its cert"),
    "unsigned": (lambda t: replace(t, signed=None), "a tree is signed by its builder"),
    "with other values": (revalued, "the signature is not by its certificate"),
    "of another builder": (lambda t: replace(t, signed=replace(t.signed, builder="p2")), "whose turn it was"),
    "of another round": (lambda t: replace(t, signed=replace(t.signed, round=t.signed.round + 3)), "not by its cert"),
}


@pytest.mark.parametrize("false", FALSE_TREES)
@pytest.mark.parametrize(
    ("kind", "number"), [(msg.SumOntoRows, 1), (msg.Grow, 1), (msg.HashByTrees, 0), (msg.Finish, 0)]
)
def test_adopted_trees_are_signed_with_their_values(kind, number, false):
    lie, rule = FALSE_TREES[false]
    session, question = halted(kind, number, identity, **VALUED | {"n_trees": 8, "rematch": 4})
    (tree,) = question.previous
    if false == "of another builder" and tree.signed.builder == "p2":
        lie = lambda t: replace(t, signed=replace(t.signed, builder="p1"))  # noqa: E731
    refuses(session, replace(question, previous=[lie(tree)]), rule)


def replayed(**study):
    """p0 after a start, and the rounds that an honest hub would replay."""
    journal, study = open_journal(), STUDY | study
    train(LocalTransport(sessions(identity, **study)), journal, **study)
    session, start = halted(msg.Start, 0, identity, **study)
    session.handle(start)
    return session, [entry.adopted for entry in journal.of(Grew)]


@pytest.mark.parametrize("study", [{}, VALUED], ids=["exact values", "builder's values"])
def test_replayed_trees_are_those_that_were_signed(study):
    session, rounds = replayed(**study)
    for false, (lie, rule) in FALSE_TREES.items():
        if false == "with other values" and not study:
            continue  # exact values are the hub's: docs/privacy.md
        session, _ = replayed(**study)
        refuses(session, msg.Replay(rounds=[rounds[0], [lie(t) for t in rounds[1]]]), rule)


def test_replayed_trees_come_once_and_in_their_order():
    for order in ((0, 0), (1, 0), (0, 2, 1)):
        session, rounds = replayed()
        refuses(session, msg.Replay(rounds=[rounds[n] for n in order]), "are adopted in their turn")
    session, rounds = replayed()
    assert isinstance(session.handle(msg.Replay(rounds=rounds)), msg.Done)


def test_replayed_trees_are_those_that_were_adopted_before():
    """Other leaf values, start after start, would be as many questions about the rows: metrics are sums of them."""
    session, rounds = replayed()
    session.handle(msg.Replay(rounds=rounds[:4]))
    _, start = halted(msg.Start, 0, identity)
    session.handle(start)
    refuses(session, msg.Replay(rounds=[rounds[0], [revalued(t) for t in rounds[1]]]), "adopted stay as they are")
    refuses(session, msg.Replay(rounds=[rounds[0], rounds[2]]), "adopted stay as they are")
    assert isinstance(session.handle(msg.Replay(rounds=rounds)), msg.Done)


def test_a_signature_comes_with_its_tree():
    """Values of one tree cannot be adopted as those of another round."""
    session, question = halted(msg.SumOntoRows, 1, identity)
    (signed,) = signing("p0").sign(question.round, [Content(stump(), None)])
    (tree,) = question.previous
    assert tree.structure is None
    refuses(session, replace(question, previous=[replace(tree, signed=signed)]), "a signature comes with its tree")


def test_a_hub_refuses_signatures_for_other_trees():
    study = STUDY | {"n_trees": 2}
    members = sessions(identity, **study)
    grow = members[0].handle
    members[0].handle = lambda m: spoilt(grow(m))
    with pytest.raises(ProtocolError, match="'p0' sent an invalid message: signatures of other trees"):
        train(LocalTransport(members), **study)


def spoilt(reply):
    return replace(reply, signed=[replace(reply.signed[0], builder="p1")]) if isinstance(reply, msg.Grown) else reply


# --- interruptions ---------------------------------------------------------------------------------------------------


class Losing(LocalTransport):
    """Loses p1 at the n-th question; it is back some questions later. At another one the hub is killed."""

    def __init__(self, handlers, lost_at=10**9, back_at=10**9, stop_at=10**9):
        super().__init__(handlers, 1)
        self.asked, self.span, self.stop_at = 0, (lost_at, back_at), stop_at

    def ask_all(self, messages):
        self.asked += 1
        if self.asked >= self.stop_at:
            raise KeyboardInterrupt
        if "p1" in messages and self.span[0] <= self.asked < self.span[1]:
            raise PartyLost(["p1"], "cut off.")
        return super().ask_all(messages)

    def returned(self):
        return ["p1"] if "p1" not in self.parties and self.asked >= self.span[1] else []


@pytest.mark.parametrize("case", STUDIES)
def test_a_killed_training_continues_with_signed_trees(case, tmp_path):
    study = STUDY | {"n_trees": 12} | STUDIES[case]
    untouched = Losing(sessions(identity, **study))
    whole, dice = bits(train(untouched, **study)), random.Random(case)
    for job in range(3):  # new sessions each, as a new job has, and renewed certificates
        stop_at = dice.randint(2 * untouched.asked // 3, untouched.asked - 1) if job < 2 else 10**9
        transport = Losing(sessions(lambda name, n=job: identity(name, n), **study), stop_at=stop_at)
        journal = open_journal(tmp_path / "journal")
        try:
            training = train(transport, journal, **study)
        except KeyboardInterrupt:
            journal._file.close()
    assert all(tree.signed.round == entry.turn for entry in journal.of(Grew) for tree in entry.adopted)
    certificates = {tree.signed.certificate for entry in journal.of(Grew) for tree in entry.adopted} - {None}
    assert len(certificates) > 3  # of several jobs
    assert bits(training) == whole


@pytest.mark.parametrize("case", STUDIES)
@pytest.mark.parametrize("lost_at", [18, 21, 22, 23])
def test_who_was_lost_and_comes_back_adopts_signed_trees(case, lost_at):
    study = STUDY | {"n_trees": 12} | STUDIES[case]
    transport, journal = Losing(sessions(identity, **study), lost_at, lost_at + 14), open_journal()
    training = train(transport, journal, min_parties=2, **study)
    assert len(training.rounds) == 12
    assert all(tree.signed for entry in journal.of(Grew) for tree in entry.adopted)


def test_trees_of_a_revoked_builder_are_not_replayed():
    _, rounds = replayed()
    session, start = halted(msg.Start, 0, identity)
    session.identity = PROJECT.identity("p0", revoked=[identity("p1").certificate])
    session.handle(start)
    refuses(session, msg.Replay(rounds=rounds), "is revoked")
