"""A hub that tells parties different things, so that a masked total is one party's alone: then masks do not cancel."""

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace

import simfl
from simfl import messages as msg
from simfl import wire
from simfl.errors import ProtocolError
from simfl.hub.asking import small_total
from simfl.party import Session
from simfl.privacy.tokens import secret_of
from tests.adversary.lying import NAMES, STUDY, Reached, sessions, terms_of
from tests.wire import Between, Recorder, train


def replies(kind, lie, members=None, skipped=0, **changed):
    """What all parties reply to the n-th question of this kind. The lie changes all questions to p1 and p2."""
    study = STUDY | changed
    first, *others = members or sessions(**study)
    found, left = {}, dict.fromkeys(NAMES, skipped)

    def keep(name):
        def look(reply):
            if isinstance(reply, kind):
                left[name] -= 1
                if left[name] < 0:
                    found[name] = reply
            if len(found) == len(NAMES):
                raise Reached
            return reply

        return look

    lied_to = [Between(other, question=lie, reply=keep(other.name)) for other in others]
    with pytest.raises((Reached, ProtocolError)):  # a builder may find out first, and refuse
        train(Recorder([Between(first, reply=keep("p0")), *lied_to]), **study)
    return first, found


def leaf_totals(found):
    arrays = [reply.hessians[0] for reply in found.values()]
    return sum(wire.unpack(array, "i8", (None,)).view(np.uint64) for array in arrays).view(np.int64)


def own_leaf_sums(session, question):
    training = session.training
    return np.ldexp(np.bincount(training.train.leaves[0], weights=training.h[:, 0]), -question.exponents[1])


def test_totals_are_right_where_all_are_told_the_same():
    seen = []
    session, found = replies(msg.LeafSums, lambda message: seen.append(message) or message)
    question = next(message for message in seen if isinstance(message, msg.SumPerLeaf))
    total = np.ldexp(leaf_totals(found).astype(float), question.exponents[1])
    assert 0 < total.sum() <= 0.25 * 150
    assert len(total) == len(own_leaf_sums(session, question))


def coarse(message):
    """Digits so coarse that nothing is left of a party's leaf sums."""
    return replace(message, exponents=(900, 900)) if isinstance(message, msg.SumPerLeaf) else message


def saturated(message):
    """A start value at which a party's hessians are all zero."""
    return replace(message, base_margin=[1e9]) if isinstance(message, msg.Start) else message


def ruined(message):
    """Leaf values after which a party's hessians are all zero."""
    previous = getattr(message, "previous", None)
    if not previous:
        return message
    large = [wire.pack(np.full(tree.values.shape, 1e9, dtype=np.float32)) for tree in previous]
    return replace(message, previous=[replace(t, values=v) for t, v in zip(previous, large, strict=True)])


@pytest.mark.parametrize(("lie", "skipped"), [(coarse, 0), (saturated, 0), (ruined, 1)])
def test_leaf_sums_of_one_party_stay_hidden(lie, skipped):
    seen = []
    session, found = replies(msg.LeafSums, lambda m: seen.append(m) or lie(m), skipped=skipped)
    question = next((message for message in seen if isinstance(message, msg.SumPerLeaf)), None)
    hidden = len(found) < len(NAMES) or not np.isclose(leaf_totals(found), own_leaf_sums(session, question)).any()
    assert hidden


def test_label_sums_of_one_party_stay_hidden():
    """Classes in another place, and made-up ones where the true ones belong."""

    def lie(message):
        return replace(message, classes=[7, 8, *message.classes]) if isinstance(message, msg.SumLabels) else message

    def longer(message):
        return replace(message, classes=[*message.classes, 7, 8]) if isinstance(message, msg.SumLabels) else message

    several = {"objective": "multi:softprob"}  # of two classes a party knows how many there are
    members = sessions(**STUDY | several)
    _, found = replies(msg.LabelSums, lie, [Between(members[0], question=longer), *members[1:]], **several)
    total = small_total({name: reply.sums for name, reply in found.items()}, 5, masked=True)
    assert len(found) == len(NAMES)
    assert total[:2] != np.bincount(members[0].split.training.y).tolist()


def test_feature_sums_of_one_party_stay_hidden():
    """Levels in another place: a study that declares no columns leaves them to the hub."""

    rng = np.random.default_rng(0)
    wards = [rng.choice(list(levels), 40) for levels in ("ab", "ac", "bc")]
    frames = [pd.DataFrame({"x": rng.normal(size=40), "ward": ward}) for ward in wards]
    members = [simfl.Party(name, frame, rng.integers(0, 2, 40)) for name, frame in zip(NAMES, frames, strict=True)]
    opened = [Session(own, secret=secret_of(0), terms=terms_of(**STUDY), run="r") for own in members]

    def settled(order):
        def lie(message):
            if not isinstance(message, msg.Settle):
                return message
            columns = [replace(c, levels=order) if c.levels else c for c in message.columns]
            return replace(message, columns=columns)

        return lie

    first = Between(opened[0], question=settled(("a", "b", "c", "y", "z")))
    _, found = replies(msg.FeatureSums, settled(("y", "z", "a", "b", "c")), [first, *opened[1:]])
    total = small_total({name: reply.sums for name, reply in found.items()}, 18, masked=True)
    counts = frames[0].ward.value_counts()
    assert total[7:9] != [counts["a"], counts["b"]]
