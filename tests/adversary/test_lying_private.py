"""A hub that lies in a study with epsilon: a party counts nothing for it, and keeps its noise."""

import zlib

import numpy as np
import pytest
from msgspec.structs import replace

pytest.importorskip("dp_accounting")

import simfl
from simfl import messages as msg
from simfl.data.schema import Schema
from simfl.errors import PartyLost, PrivacyError
from simfl.hub.joint import Decided, open_joint_journal
from simfl.params import train_params
from simfl.party import Session
from simfl.party.terms import Terms
from simfl.privacy.tokens import secret_of
from tests.wire import Recorder, grow_together, lose, rows

NAMES = ("p0", "p1", "p2")
SCHEMA = Schema.from_toml({f"x{j}": {"low": -3, "high": 3} for j in range(6)})
STUDY = {"recipe": "joint", "epsilon": 2.0, "rows": 150, "n_trees": 20, "max_depth": 2, "masked": True}
STUDY |= {"random_state": 5}


def party(place=0, seed=0, folder=None, **given):
    terms = Terms(NAMES, train_params(**STUDY | given), schema=SCHEMA)
    member = simfl.Party(NAMES[place], *rows(50, seed or place), schema=SCHEMA)
    return Session(member, secret=secret_of(0), terms=terms, run="r", folder=folder)


@pytest.fixture
def run():
    """A run as it was asked for, and its first party."""
    sessions = [party(place) for place in range(3)]
    seen = Recorder(sessions)
    grow_together(seen, **STUDY)
    return sessions[0], seen


def refuses(session, question, rule):
    with pytest.raises(PrivacyError, match=rule):
        session.handle(question)


def test_rows_are_not_counted_and_classes_not_asked_for():
    question = msg.Describe(version=msg.VERSION, validation_fraction=0.0, seed=5)
    refuses(party(), question, "rows are counted unless the study has epsilon")
    session = party()
    assert session.handle(replace(question, private=True)).n_rows == 0
    refuses(session, msg.DescribeLabels(objective="binary:logistic"), "the study declares the classes")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"parties": ["p0", "p1"]}, "with epsilon all parties take part: their noise is needed"),
        ({"classes": [0, 5]}, "the classes are those of the study"),
        ({"masked": False}, "the study's sums are masked"),
    ],
)
def test_a_start_with_less_noise_or_other_classes_is_refused(run, change, rule):
    session, seen = run
    refuses(session, replace(seen.questions(msg.StartTogether)[0], **change), rule)


@pytest.mark.parametrize("change", [{"epsilon": 50.0}, {"colluding": 0}, {"rows": 10}, {"max_rows_per_person": 1}])
def test_other_noise_than_the_studys_is_refused(run, change):
    session, seen = run
    start = seen.questions(msg.StartTogether)[0]
    (name, value), *_ = change.items()
    refuses(session, replace(start, params=replace(start.params, **change)), f"the study has {name} = .*, not {value}")


def test_a_training_that_starts_again_has_no_second_answer(run):
    session, seen = run
    refuses(session, seen.questions(msg.StartTogether)[0], "what was decided before stays decided")
    assert len(session.sealing.spent) == 4


def test_what_follows_from_other_totals_is_not_sent(run):
    """Whoever colludes with the hub cannot have a party answer a step a second time, after other trees."""
    session, seen = run
    machine = session._machine(seen.questions(msg.StartTogether)[0])
    words = bytearray(machine.read(machine.contribution()))
    machine.apply(bytes(words))  # a total without the others and without noise
    with pytest.raises(PrivacyError, match="sent before, from another table or after other trees"):
        session.sealing.noisy_together(machine.contribution(), 1, machine.digest())


# --- a new job: the party knows what is on its disk, and nothing else ------------------------------------------------


@pytest.fixture
def half_way(tmp_path):
    """A training that lost a party, without masks: the same party in a new job, how it starts, and what was sent."""
    sessions = [party(place, folder=tmp_path if place == 0 else None, masked=False) for place in range(3)]
    journal, seen = open_joint_journal(), Recorder([*sessions[:2], lose(sessions[2], after=3)])
    with pytest.raises(PartyLost):
        grow_together(seen, journal, min_parties=1, **STUDY | {"masked": False})
    kept = [entry.result for entry in journal.entries if isinstance(entry, Decided)]
    start = replace(seen.questions(msg.StartTogether)[0], kept=kept)

    def new_job(seed=0):
        again = party(seed=seed, folder=tmp_path, masked=False)
        again.sealing.spent = sessions[0].sealing.spent
        again.handle(seen.questions(msg.Describe)[0])
        return again

    sent = [reply for name, _, reply in seen.log if name == "p0" and isinstance(reply, msg.Addend)]
    return new_job, start, sent


def told_otherwise(result, change):
    """What a party that colludes announces in the place of a total."""
    words = np.frombuffer(zlib.decompress(result.announced.sealed), "<u8")
    return replace(result, announced=msg.Announcement(sealed=zlib.compress(change(words).astype("<u8").tobytes())))


def test_a_new_job_goes_on_from_what_was_sent(half_way):
    new_job, start, sent = half_way
    again = new_job()
    again.handle(start)
    reply = again.handle(msg.Add(step=0, result=None))
    assert reply.parts == sent[len(start.kept)].parts  # to the last bit, noise and all
    assert reply.parts != sent[0].parts
    assert len(again.sealing.spent) == len(sent)


@pytest.mark.parametrize("number", [0, 1])
def test_a_new_job_does_not_go_on_after_other_trees(half_way, number):
    """What rows have left follows from the trees before: other trees would give back what was used."""
    new_job, start, _ = half_way
    kept = [*start.kept]
    kept[number] = told_otherwise(kept[number], lambda words: words + np.uint64(1 << 30))
    more = [told_otherwise(kept[-1], lambda words: np.zeros(2 * 10 * 4, np.uint64))]  # of the third step
    refuses(new_job(), replace(start, kept=kept + more), "other sums than those that it has sent")


def test_a_new_job_does_not_skip_steps_that_were_never_sent(half_way):
    new_job, start, _ = half_way
    more = [told_otherwise(start.kept[-1], lambda words: np.zeros(2 * 10 * 4, np.uint64))] * 2
    refuses(new_job(), replace(start, kept=start.kept + more), "other sums than those that it has sent")


def test_a_new_job_does_not_go_on_with_an_edited_table(half_way):
    new_job, start, _ = half_way
    refuses(new_job(seed=9), start, "other sums than those that it has sent")
