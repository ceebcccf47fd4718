"""A hub that lies, as a FLARE server runs it: the real endpoint, which asks the victim more than an honest hub would.

It trains honestly. Around some of its questions to the victim it sends a lie, and writes down what came back. So one
run tells many lies, and its model shows whether any of them changed something at a party.
"""

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from simfl import messages as msg
from simfl import wire
from simfl.deploy.endpoints import HubEndpoint
from simfl.errors import PartyLost, SimFLError
from simfl.privacy.keys import Identity, Keys, sign_key
from simfl.transport import flare

VICTIM, LOST = "north", "west"
ANSWERS = "answers.json"  # in the folder of the hub's kit
MISSED = "missed.json"  # beside it: per party, a question that needed a call of FLARE's
BINARY = "binary:logistic"


@dataclass(frozen=True)
class Lie:
    """What is asked around the n-th honest question of a kind, made from that one; and the rule that forbids it."""

    name: str
    kind: type
    rule: str
    make: Any  # (the honest question, the liar) -> question
    number: int = 0
    after: bool = False  # the honest question is answered first
    where: Any = bool  # which questions count


def before(name, kind, rule, number=0, **changes):
    """A lie that changes some fields of the honest question."""
    return Lie(name, kind, rule, lambda question, _: replace(question, **changes), number)


def again(name, kind, rule, make):
    """A lie about a question that is answered already."""
    return Lie(name, kind, rule, make, after=True)


def of_start(name, rule, **changes):
    """A lie about the parameters of a training."""
    return Lie(name, msg.Start, rule, lambda question, _: replace(question, params=replace(question.params, **changes)))


def _passed(question, liar):
    """The same builder's next turn, without a tree in between."""
    return replace(_other_step(question, liar), round=question.round + 3, previous=[])


def _made_up(question, _):
    """A tree of the hub's own: one split."""
    made_up = msg.TreeStructure(
        n_nodes=3,
        inner=b"\x80",
        feature=msg.Array("u1", (1,), b"\x00"),
        threshold=msg.Array("f4", (1,), b"\x00\x00\x00\x3f"),
        default_left=b"\x00",
    )
    return replace(question, trees=[made_up])


def _other_step(question, _):
    return replace(question, mask=replace(question.mask, step=question.mask.step + 1000))


def _fewer(question, _):
    return replace(question, mask=replace(question.mask, parties=[VICTIM, "south"]))


def _own_similar(question, _):
    return replace(question, similar={VICTIM: next(iter(question.similar.values()), msg.Array("u1", (1, 1), b"\x00"))})


def _one_column(question, _):
    """A scale on which one of the twelve columns counts."""
    deviation = wire.unpack(question.deviation, "f8", (12,)) * 1e4
    deviation[0] /= 1e4
    return replace(question, deviation=wire.pack(deviation))


def _as_party(name):
    """The hub's own key, signed with the hub's certificate, under this name."""

    def make(question, liar):
        own = sign_key(liar.identity, name, Keys(name).public, liar.run)
        return replace(question, keys=question.keys | {name: own})

    return make


def _unsigned(question, _):
    return replace(question, keys=question.keys | {LOST: msg.SignedKey(key=Keys(LOST).public)})


def _old_round(question, liar):
    """The question that was answered before the loss was claimed, now over those who are left."""
    old = liar.last[msg.SumOntoRows]
    return replace(old, mask=msg.Masking(step=question.mask.step, parties=question.mask.parties))


def _weaker(question, _):
    return replace(question, study=question.study.replace("[parameters]", "[parameters]\nmasked = false"))


ANOTHER, ONCE = "is not the one that it has approved", "is answered once"
LIES = [
    Lie("2: before the handshake", msg.Greet, "before the handshake", lambda *_: msg.DescribeLabels(objective=BINARY)),
    Lie("2: masks off", msg.Greet, ANOTHER, _weaker),
    before("2: an empty study", msg.Greet, ANOTHER, study="name = 'x'"),
    again("2: a second, weaker study", msg.Greet, "joined another study or run", _weaker),
    before("3: other rows aside", msg.Describe, "the study sets 0 of the rows aside", validation_fraction=0.5),
    before("3: another seed", msg.Describe, "random_state is 5", seed=6),
    Lie("1: the hub as a party", msg.TakeKeys, "parties of the study only", _as_party("localhost")),
    Lie("1: the hub as west", msg.TakeKeys, "its certificate is of 'localhost'", _as_party(LOST)),
    Lie("1: a key that nobody signed", msg.TakeKeys, "it is not signed", _unsigned),
    before("8: features without masks", msg.SumFeatures, "without masks", mask=None),
    Lie("8: features of fewer", msg.SumFeatures, "over exactly those who exchanged keys", _fewer),
    before("5: hash values as they are", msg.Hash, "matching = blind", seed=1),
    before("5: 255 hash values", msg.Hash, "the study has 11 hash values per row", n_hashes=255),
    again("5: one column alone", msg.Hash, "hashed in one way", _one_column),
    again("5: a second way", msg.Hash, "hashed in one way", lambda q, _: replace(q, bucket_width=1e-4)),
    before("5: leaves as they are", msg.HashByTrees, "matching = blind", blind=False),
    Lie("8: similar to itself", msg.TakeSimilar, "those of other parties", _own_similar),
    before("9: classes that nobody has", msg.SumLabels, "its own log says why", classes=[77, 88]),
    Lie("8: labels of fewer", msg.SumLabels, "over exactly those who exchanged keys", _fewer),
    of_start("7: smaller groups", "min_group = 5, not 1", min_group=1),
    of_start("6: the builder's values", "the recipe decides where leaf values come from", leaf_values="builder"),
    again("7: a round again", msg.SumOntoRows, ONCE, _other_step),
    Lie("8: a turn that nobody lost", msg.SumOntoRows, "over fewer parties than the one before", _passed, after=True),
    again("4: a tree of the hub's own", msg.SumPerLeaf, ONCE, _made_up),
    again("4: the same tree again", msg.SumPerLeaf, ONCE, _other_step),
    Lie("8: leaves of fewer", msg.SumPerLeaf, "over exactly those who exchanged keys", _fewer, 1),
]

# In a study without a rematch, in which the loss of a party is claimed when its round is half over.
LIES_AFTER_A_LOSS = [Lie("8: the round over fewer", msg.Grow, ONCE, _old_round, 1)]


# In a study whose trees are grown together. The first party is the victim; the second reads the second batch.
def of_together(name, rule, **changes):
    """A lie about the parameters of such a training."""
    make = lambda question, _: replace(question, params=replace(question.params, **changes))  # noqa: E731
    return Lie(name, msg.StartTogether, rule, make)


def _with_total(question):
    return question.result is not None and question.result.total is not None


def _with_decision(question):
    return question.result is not None and question.result.announced is not None


def _other_total(question, _):
    array, *others = question.result.total
    data = bytes([array.data[0] ^ 1]) + array.data[1:]
    return replace(
        question, result=replace(question.result, total=[msg.Array(array.dtype, array.shape, data), *others])
    )


def _other_decision(question, _):
    announced = question.result.announced
    sealed = announced.sealed[:-1] + bytes([announced.sealed[-1] ^ 1])
    return replace(question, result=replace(question.result, announced=replace(announced, sealed=sealed)))


def _own_decision(question, _):
    """Not sealed with the parties' secret, and signed by nobody."""
    return replace(question, result=replace(question.result, announced=msg.Announcement(sealed=bytes(100))))


def _reader(question, _):
    """Somebody else's total, of nobody's numbers."""
    return msg.Read(step=question.step, others=[], result=question.result)


ADD = msg.Add
JOINT_LIES = [
    of_together("groups of one", "the study has min_group = 5, not 1", min_group=1),
    Lie("without masks", msg.StartTogether, "sums are masked", lambda q, _: replace(q, masked=False)),
    Lie(
        "another recipe",
        msg.StartTogether,
        "the study's recipe is joint",
        lambda *_: msg.SumLabels(objective="binary:logistic", classes=[0, 1]),
    ),
    Lie("a changed total", ADD, "does not fit its check words", _other_total, 2, where=_with_total),
    Lie("a step again", ADD, "is answered once", _other_total, 3, after=True, where=_with_total),
    Lie(
        "a decision that was changed",
        ADD,
        "the signature is not by its certificate",
        _other_decision,
        0,
        False,
        _with_decision,
    ),
    Lie("a decision of the hub", ADD, "it is not signed", _own_decision, 1, where=_with_decision),
    Lie("the total for another reader", ADD, "is read by", _reader, 2, where=_with_decision),
    Lie("the model for the hub", ADD, "the hub does not get the model", lambda *_: msg.SendModel(receiver=None), 9),
]


class Liar:
    """Stands before the transport of a job."""

    def __init__(self, transport, identity, run, lies, claims_loss):
        self.honest, self.transport, self.identity, self.run = transport.ask_all, transport, identity, run
        self.lies, self.claims_loss = lies, claims_loss
        self.seen, self.last, self.answers = Counter(), {}, {}

    def ask_all(self, messages):
        question = messages.get(VICTIM)
        self._lie(question, after=False)
        replies = self.honest(messages)
        self._lie(question, after=True)
        ways = {(lie.kind, lie.where) for lie in self.lies if lie.kind is type(question) and lie.where(question)}
        self.seen.update(ways)
        self.last[type(question)] = question
        if self.claims_loss and LOST in messages and isinstance(question, msg.SumOntoRows):
            self.claims_loss = False
            raise PartyLost([LOST], "the hub says so.")
        return replies

    def _lie(self, question, *, after):
        told = [lie for lie in self.lies if lie.kind is type(question) and lie.after == after and lie.where(question)]
        for lie in told:
            if lie.number == self.seen[lie.kind, lie.where]:
                self.answers[lie.name] = self._ask(lie.make(question, self))

    def _ask(self, question):
        """What came back: a refusal, or an answer in full."""
        try:
            reply = self.honest({VICTIM: question})[VICTIM]
        except SimFLError as error:
            return f"refused: {error}"
        if isinstance(reply, msg.Greeting) and reply.problems:
            return f"refused: {reply.problems}"
        return f"answered: {wire.encode(reply)!r}"


class LyingHub(HubEndpoint):
    """The hub's end of a job, with a liar in between."""

    def conduct(self, transport: flare.FlareTransport, folder: Any) -> None:
        """Train, and lie."""
        kit = folder / "startup"
        identity = Identity.read(kit / "server.crt", kit / "server.key", kit / "rootCA.pem")
        lost = self.study.parameters.get("rematch") == 0
        joint = self.study.parameters.get("recipe") == "joint"
        lies = LIES_AFTER_A_LOSS if lost else JOINT_LIES if joint else LIES
        liar = Liar(transport, identity, self.run, lies, lost)
        transport.ask_all = liar.ask_all
        try:
            super().conduct(transport, folder)
        finally:
            (folder / ANSWERS).write_text(json.dumps(liar.answers))
            (folder / MISSED).write_text(json.dumps({name: site.missed for name, site in transport.sites.items()}))
