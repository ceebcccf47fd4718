"""A hub that lies where a party knows only its own part: what follows from that part holds, the rest is bounded."""

import numpy as np
import pytest
from msgspec.structs import replace

import simfl
from simfl import messages as msg
from simfl import wire
from simfl.errors import PartyLost, ProtocolError
from simfl.party import Session
from simfl.party.terms import MOST_SUMS, Terms
from simfl.privacy.tokens import secret_of
from simfl.privacy.words import FORMS, from_bytes, to_bytes
from simfl.transport.local import LocalTransport
from tests.adversary.lying import NAMES, STUDY, halted, keys_with, refuses, terms_of, whole_run
from tests.wire import rows, train

# --- a false scale ---------------------------------------------------------------------------------------------------


def scaled(question, factors):
    """The question with these columns' deviations multiplied."""
    deviation = wire.unpack(question.deviation, "f8", (6,)).copy()
    for column, factor in factors.items():
        deviation[column] *= factor
    return replace(question, deviation=wire.pack(deviation))


@pytest.mark.parametrize("matching", ["blind", "shared"])
@pytest.mark.parametrize(
    ("factors", "rule"),
    [
        ({0: 1e-3}, "more than 100 times"),
        (dict.fromkeys(range(1, 6), 1e3), r"leaves 1 of 6 columns, for 5 hash values \(L < d\)"),
        ({5: 1e3}, r"leaves 5 of 6 columns, for 5 hash values \(L < d\)"),
        ({0: 0.0}, "a deviation is above zero"),
        ({0: -1.0}, "a deviation is above zero"),
    ],
)
def test_no_column_is_made_to_count_alone(matching, factors, rule):
    session, question = halted(msg.Hash, matching=matching)
    refuses(session, scaled(question, factors), rule)
    refuses(session, question, "rows are hashed in one way")  # another refusal would tell more of this party's rows


def test_columns_without_a_scale_stay_as_they_are():
    session, question = halted(msg.Hash, recipe="paper", rematch=0)
    refuses(session, scaled(question, {0: 0.5}), "the recipe leaves features on their own scale")
    session, question = halted(msg.Hash, recipe="paper", rematch=0)
    refuses(session, replace(question, mean=wire.pack(np.ones(6))), "the recipe leaves features on their own scale")


def test_a_scale_of_other_parties_that_differ_is_accepted():
    """A party whose rows are few and spread otherwise, with a column that does not vary and a rare category."""
    frames = [table(n, seed, spread) for n, seed, spread in ((300, 0, 1.0), (40, 1, 20.0), (300, 2, 0.1))]
    schema = simfl.Party("all", *joined(frames)).schema
    members = [simfl.Party(name, frame, y, schema=schema) for name, (frame, y) in zip(NAMES, frames, strict=True)]
    terms = terms_of(**STUDY)
    parties = [Session(member, secret=secret_of(0), terms=terms, run="r") for member in members]
    assert len(train(LocalTransport(parties), **STUDY).rounds) == STUDY["n_trees"]


def table(n, seed, spread):
    import pandas as pd

    rng = np.random.default_rng(seed)
    wide = rng.normal(size=n) * spread
    columns = {"wide": wide, "same": np.full(n, float(seed)), "age": rng.normal(60, 9, n)}
    columns["ward"] = np.where(rng.random(n) < 0.02 + (seed == 1) * 0.5, "rare", "often")
    return pd.DataFrame(columns), (wide > 0).astype(int)


def joined(frames):
    import pandas as pd

    return pd.concat([frame for frame, _ in frames]), np.concatenate([y for _, y in frames])


# --- rounds on the same gradients ------------------------------------------------------------------------------------


def later(question, parties, rounds=3):
    """The same builder's next turn, without a new tree, over these parties."""
    return replace(question, round=question.round + rounds, previous=[], mask=msg.Masking(step=99, parties=parties))


def test_a_turn_does_not_pass_while_nobody_is_lost():
    session, question = halted(msg.SumOntoRows, 1)
    session.handle(question)
    refuses(session, later(question, question.mask.parties), "over fewer parties than the one before")


def test_a_turn_passes_once_per_lost_party():
    session, question = halted(msg.SumOntoRows)
    _, start = halted(msg.Start)
    session.handle(question)

    def lose(*present):
        session.handle(keys_with(session, *present[1:]))
        session.handle(replace(start, n_parties=len(present)))
        return later(question, list(present), 3 * session.rules.starts)

    session.handle(lose("p0", "p1"))
    refuses(session, lose("p0", "p1"), "over fewer parties than the one before")
    refuses(session, lose("p0", "p2"), "over fewer parties than the one before")
    refuses(session, lose("p0", "p1", "p2"), "over fewer parties than the one before")


def test_a_training_ends_over_the_same_parties_or_fewer():
    """Its metrics over all, over all but one, over all but another: the differences would be those of one party."""
    session, question = halted(msg.Finish)
    _, start = halted(msg.Start)

    def end(*present):
        session.handle(keys_with(session, *present[1:]))
        session.handle(replace(start, n_parties=len(present)))
        return replace(question, previous=[], mask=msg.Masking(step=99, parties=list(present)))

    session.handle(question)
    session.handle(end("p0", "p1", "p2"))
    session.handle(end("p0", "p1"))
    refuses(session, end("p0", "p2"), "or fewer")
    refuses(session, end("p0", "p1", "p2"), "or fewer")


class Losing(LocalTransport):
    """Loses parties at some questions, and gets them back as soon as it asks."""

    def __init__(self, parties, losses):
        super().__init__(parties)
        self.losses, self.asked = losses, 0

    def ask_all(self, messages):
        replies = super().ask_all(messages)
        if any(isinstance(message, msg.SumOntoRows) for message in messages.values()):
            self.asked += 1
            if (lost := self.losses.get(self.asked)) in messages:
                raise PartyLost([lost], "cut off.")
        return replies

    def returned(self):
        return [party for party in self.handlers if party not in self.parties]


def test_an_honest_hub_that_loses_parties_breaks_no_rule():
    names = (*NAMES, "p3")
    study = STUDY | {"n_trees": 8}
    terms = Terms(names, terms_of(**study).params)
    members = [simfl.Party(name, *rows(40, i)) for i, name in enumerate(names)]
    parties = [Session(member, secret=secret_of(0), terms=terms, run="r") for member in members]
    training = train(Losing(parties, {2: "p3", 3: "p1", 8: "p3"}), min_parties=2, **study)
    assert len(training.rounds) == 8
    assert training.missed.keys() == {"p1", "p3"}


# --- sizes and turns -------------------------------------------------------------------------------------------------


def deep(n_splits):
    """A tree that splits off one leaf after the other."""
    bits = np.ones(2 * n_splits + 1, dtype=np.uint8)
    bits[2::2] = 0
    bits[-2:] = 0
    return msg.TreeStructure(
        n_nodes=2 * n_splits + 1,
        inner=np.packbits(bits).tobytes(),
        feature=wire.pack(np.zeros(n_splits, dtype=np.uint8)),
        threshold=wire.pack(np.arange(n_splits, dtype=np.float32)),
        default_left=bytes(-(-n_splits // 8)),
    )


def test_no_tree_has_more_leaves_than_a_party_has_rows():
    session, question = halted(msg.SumPerLeaf, max_depth=0)
    refuses(session, replace(question, trees=[deep(60)]), "no tree is larger than the study allows")  # p0 has 60 rows
    assert whole_run(max_depth=0).replies(msg.Finished).keys() == {*NAMES}


def test_a_party_has_as_many_rows_as_at_first():
    session, question = halted(msg.TakeSimilar, 1)
    refuses(session, replace(question, n_rows=question.n_rows | {"p1": 51}), "as many rows as before")


def test_nobody_makes_a_party_allocate_more_than_a_message_holds():
    session, question = halted(msg.TakeSimilar)
    many = MOST_SUMS // 8 + 1
    refuses(session, replace(question, n_rows=question.n_rows | {"p1": many}), "no sums are larger than")


# --- sums that cannot be ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("false", [("gradients", 1), ("gradients", -1), ("hessians", -1)], ids=str)
def test_masked_sums_that_cannot_be_are_not_built_on(false):
    """A hub or another party adds to what only the builder can read."""
    session, question = halted(msg.Grow)
    G, H = session.sealing.opened(question, "p0", (60, 1), session.training._said)
    session.sealing.masks.last.clear()  # that was only a look
    form, (part, sign) = FORMS[question.word_bytes], false
    wanted_G, wanted_H = (sign * (2**form.gradient_bits - 1), H) if part == "gradients" else (G, sign)
    added = ((wanted_G - G) << form.hessian_bits) + (wanted_H - H)
    words = from_bytes(question.sums.data, form.n_bytes) + added.ravel().view(np.uint64)
    sums = replace(question.sums, data=to_bytes(words, form.n_bytes))
    with pytest.raises(ProtocolError, match=r"sums onto its rows that are not possible.*masks hide who"):
        session.handle(replace(question, sums=sums))
