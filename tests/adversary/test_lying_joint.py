"""A hub that lies while trees are grown together: what a party that approved the study refuses, with the rule named."""

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

import simfl
from simfl import hub, wire
from simfl import messages as msg
from simfl.callbacks import Callback
from simfl.errors import PrivacyError, ProtocolError
from simfl.hub.handshake import agree_on_masks
from simfl.hub.joint import BeganTogether, Decided, open_joint_journal
from simfl.params import PrivateParams, train_params
from simfl.party import Session
from simfl.party.terms import Terms
from simfl.privacy import boxes
from simfl.privacy.additive import add
from simfl.privacy.certificates import SUBMITTER
from simfl.privacy.keys import sign_key
from simfl.privacy.tokens import secret_of
from tests.adversary.lying import Reached
from tests.privacy.authority import Project
from tests.wire import Between, Recorder, grow_together, rows

NAMES = ("p0", "p1", "p2")
STUDY = {"recipe": "joint", "n_trees": 4, "max_depth": 3, "learning_rate": 0.4, "min_group": 3, "random_state": 5}
STUDY |= {"masked": True}


def terms_of(**study):
    return Terms(NAMES, train_params(**study))


def sessions(project=None, **study):
    """Three parties that approved the study."""
    members = [simfl.Party(name, *rows(60 - 10 * i, i)) for i, name in enumerate(NAMES)]
    return [
        Session(
            member,
            secret=secret_of(0),
            terms=terms_of(**study),
            run="r",
            identity=project and project.identity(member.name),
        )
        for member in members
    ]


def halted(kind, number=0, who=0, project=None, where=lambda message: True, **changed):
    """A party as it is when it is about to be asked for the n-th time for this kind, that question, and all others."""
    study, left, caught = STUDY | changed, iter([False] * number + [True]), []

    def wait(message):
        if isinstance(message, kind) and where(message) and next(left, False):
            caught.append(message)
            raise Reached
        return message

    all_of = sessions(project, **study)
    seen = Recorder([Between(s, question=wait) if place == who else s for place, s in enumerate(all_of)])
    try:
        grow_together(seen, **study)
    except Reached:
        return all_of[who], caught[0], seen
    raise AssertionError(f"no {kind.__name__} number {number} was asked for")


def refuses(session, question, rule, error=PrivacyError):
    """The question is refused with its rule, and the party stays where it was."""
    phase = session.phase
    with pytest.raises(error, match=rule):
        session.handle(question)
    assert session.phase is phase


def with_next_to_no_noise(params):
    """The parameters of the study, and a guarantee that is none: trees would be drawn, and sums hardly hidden."""
    return PrivateParams(**{name: getattr(params, name) for name in params.__struct_fields__}, epsilon=1e6, rows=150)


def with_announced(message):
    return message.result is not None and message.result.announced is not None


def with_total(message):
    return message.result is not None and message.result.total is not None


@pytest.mark.parametrize("changed", [{}, {"masked": False}, {"min_group": 1}], ids=str)
def test_an_honest_run_breaks_no_rule(changed):
    project = Project() if "masked" in changed else None  # else the model's receiver would have to sign, too
    seen = Recorder(sessions(project, **STUDY | changed))
    _, model = grow_together(seen, **STUDY | changed)
    assert model.n_trees == 4


# --- another recipe --------------------------------------------------------------------------------------------------


def test_what_other_recipes_ask_is_refused():
    session, start, _ = halted(msg.StartTogether)
    for question in (
        msg.SumFeatures(),
        msg.SumLabels(objective="binary:logistic", classes=[0, 1]),
        msg.Start(params=start.params, seed=0, classes=[0, 1], base_margin=[0.0], remember=0),
        msg.Recall(round=0),
    ):
        refuses(session, question, "the study's recipe is joint")


def test_cuts_are_not_agreed_on_apart_from_the_training():
    session, start, _ = halted(msg.StartTogether)
    refuses(session, msgspec.structs.replace(start, cuts_only=True), "agrees on its cuts when its training begins")


def test_trees_are_not_grown_together_in_another_study():
    _, start, _ = halted(msg.StartTogether)
    study = {"n_trees": 4, "random_state": 5, "masked": True}
    session = sessions(**study)[0]
    session.handle(msg.Describe(version=msg.VERSION, validation_fraction=0.0, seed=5))
    refuses(session, start, "the study's recipe is similar")


# --- the start -------------------------------------------------------------------------------------------------------

TREE = msg.AdoptedTree(values=wire.pack(np.zeros(1, np.float32)), structure=None)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda q: replace(q, params=replace(q.params, min_group=1)), "the study has min_group = 3, not 1"),
        (lambda q: replace(q, params=replace(q.params, n_trees=5000)), "the study has n_trees = 4"),
        (lambda q: replace(q, params=replace(q.params, label_spread=1.0)), "this objective has no unit of labels"),
        (lambda q: replace(q, params=with_next_to_no_noise(q.params)), "the study has no epsilon"),
        (lambda q: replace(q, parties=["p0", "p1"]), "sums are over those who exchanged keys"),
        (lambda q: replace(q, parties=["p0"]), r"at least 2 parties take part \(min_parties\)"),
        (lambda q: replace(q, parties=["p2", "p1", "p0"]), "parties are in the study's order"),
        (lambda q: replace(q, parties=["p0", "p1", "p9"]), "parties are in the study's order"),
        (lambda q: replace(q, masked=False), "the study's sums are masked"),
        (lambda q: replace(q, warm_start=[TREE]), "a study begins from nothing"),
        (lambda q: replace(q, base_score=[0.5]), "a study begins from nothing"),
    ],
)
def test_a_start_that_is_not_the_study_is_refused(change, rule):
    session, start, _ = halted(msg.StartTogether)
    refuses(session, change(start), rule)


def test_a_training_starts_alike_and_not_too_often():
    session, start, _ = halted(msg.StartTogether)
    session.handle(start)
    refuses(session, replace(start, classes=[1, 0]), "a training starts alike")
    for _ in range(29):
        session.handle(start)
    refuses(session, start, "starts again at most 30 times")


def test_what_was_decided_stays_decided():
    session, _, seen = halted(msg.SendModel)
    (start,) = {wire.encode(q): q for q in seen.questions(msg.StartTogether)}.values()
    refuses(session, start, "what was decided before stays decided")
    refuses(session, msg.Add(step=1000), "the result of a step comes with the next question")  # of the same training


def test_starts_one_after_the_other_take_back_one_batch_at_most():
    all_of, journal = sessions(**STUDY), open_joint_journal()
    grow_together(seen := Recorder(all_of), journal=journal, **STUDY)
    (start,) = {wire.encode(q): q for q in seen.questions(msg.StartTogether)}.values()
    kept = [entry.result for entry in journal.entries if isinstance(entry, Decided)]
    for _ in range(2):
        all_of[0].handle(replace(start, kept=kept[:-1]))
    refuses(all_of[0], replace(start, kept=kept[:-2]), "what was decided before stays decided")
    all_of[0].handle(replace(start, kept=kept))


# --- one step after the other ----------------------------------------------------------------------------------------


def test_a_step_is_answered_once_and_the_same_again():
    session, question, _ = halted(msg.Add, 5)
    reply = session.handle(question)
    assert session.handle(question) == reply
    other = replace(question, result=replace(question.result, exchange=b"other"))
    refuses(session, other, f"step {question.step} is answered once")
    refuses(session, replace(question, step=question.step - 1), "is answered once")
    refuses(session, replace(question, step=question.step + 1, result=None), "comes with the next question")


def test_a_cover_is_never_used_twice_even_after_a_new_start():
    session, question, seen = halted(msg.Add, 5)
    session.handle(question)
    (start,) = {wire.encode(q): q for q in seen.questions(msg.StartTogether)}.values()
    session.rules.decided = []
    session.handle(start)
    refuses(session, msg.Add(step=0), "was used before|same masks twice|earlier step")
    session.handle(msg.Add(step=question.step + 1))


def test_a_result_belongs_to_its_step_and_its_keys():
    session, question, seen = halted(msg.Add, where=with_announced)
    rule = f"what is passed on follows from step {question.result.step}"
    earlier = [
        q.result for q in seen.questions(msg.Add) if q.result is not None and q.result.step < question.result.step
    ]
    refuses(session, replace(question, result=earlier[-1]), rule)
    refuses(session, replace(question, result=replace(question.result, exchange=b"e")), rule)
    session.handle(question)


def test_a_changed_total_is_refused():
    session, question, _ = halted(msg.Add, 3, where=with_total)
    total = question.result.total
    part = wire.unpack(total[0], total[0].dtype, total[0].shape).copy()
    part.flat[0] += 1
    changed = [wire.pack(part), *total[1:]]
    refuses(session, replace(question, result=replace(question.result, total=changed)), "does not fit its check words")
    shorter = replace(question, result=replace(question.result, total=total[:-1]))
    refuses(session, shorter, "has the form of what was added")
    none = replace(question, result=replace(question.result, total=None))
    refuses(session, none, "is read by all")
    named = replace(question, result=replace(question.result, reader="p1"))
    refuses(session, named, "is read by all")
    session.handle(question)


def test_another_decision_is_refused():
    # Without noise, so that every tree has several levels.
    session, question, seen = halted(msg.Add, 1, who=1, where=with_announced, min_group=1)
    announced = question.result.announced
    for sealed in (
        announced.sealed[:-1] + bytes([announced.sealed[-1] ^ 1]),
        b"",
        bytes(100),
        next(q.result.announced.sealed for q in seen.questions(msg.Add) if with_announced(q)),  # of an earlier step
    ):
        changed = replace(question, result=replace(question.result, announced=msg.Announcement(sealed=sealed)))
        refuses(session, changed, "cannot be opened by 'p1'")
    refuses(session, replace(question, result=replace(question.result, announced=None)), "who announces what follows")
    refuses(session, replace(question, result=replace(question.result, reader="p2")), "is read by")
    session.handle(question)


def test_a_reader_follows_its_own_decision_only():
    session, question, _ = halted(msg.Read)
    reply = session.handle(question)
    assert reply.addend.step == question.step + 1
    for sealed in (reply.announcement, session.together.announcing.announce(b"", question.step, b"other")):
        result = msg.Result(step=question.step, exchange=reply.addend.exchange, reader="p0", announced=sealed)
        refuses(session, msg.Add(step=question.step + 1, result=result), "is answered once")
        refuses(session, msg.Add(step=question.step + 2, result=result), "follows from step")


def test_a_decision_against_the_rules_is_refused_although_it_is_sealed():
    """A reader that lies: it has the keys, and the others check what it announces."""
    session, question, _ = halted(msg.Add, who=1, where=with_announced)
    sealed = session.together.announcing.announce(question.result.exchange, question.result.step, b"\x81nonsense")
    changed = replace(question, result=replace(question.result, announced=sealed))
    refuses(session, changed, "announced", error=ProtocolError)


# --- the reader ------------------------------------------------------------------------------------------------------


def changed(parts):
    part = wire.unpack(parts[0], parts[0].dtype, parts[0].shape).copy()
    part[0] += 1
    return [wire.pack(part), *parts[1:]]


def test_only_the_reader_reads():
    session, question, seen = halted(msg.Read)
    other = seen.handlers["p1"]
    refuses(other, question, "is answered once")
    refuses(other, replace(question, result=None), "the total of step 6 is read by p0")
    refuses(other, replace(question, step=question.step + 1), "is read by all")
    refuses(session, replace(question, result=None), "is not the one that is being added")
    refuses(session, replace(question, step=question.step - 1), "is answered once")
    refuses(session, msg.Add(step=question.step, result=changed_total(question.result)), "does not fit its check words")
    assert session.handle(question).addend.parts


def changed_total(result):
    return replace(result, total=changed(result.total))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda others, own: changed(others), "does not fit its check words"),
        (lambda others, own: own, "does not fit its check words|has the form"),
        (lambda others, own: others[:1], "has the form of what was added"),
        (lambda others, own: [], "has the form of what was added"),
    ],
)
def test_a_reader_reads_one_total_of_all_others_once(change, rule):
    session, question, seen = halted(msg.Read)
    one = next(reply for party, q, reply in reversed(seen.log) if isinstance(q, msg.Add) and party == "p1")
    refuses(session, replace(question, others=change(question.others, one.parts)), rule)
    refuses(session, question, "is answered once")  # no second try


def test_a_total_is_read_once():
    session, question, _ = halted(msg.Read)
    reply = session.handle(question)
    assert session.handle(question) == reply
    refuses(session, replace(question, others=changed(question.others)), "is answered once")
    refuses(session, replace(question, result=None), "is not the one that is being added")


def test_a_reader_that_is_asked_like_the_others_keeps_its_numbers():
    session, question, _ = halted(msg.Read)
    reply = session.handle(msg.Add(step=question.step, result=question.result))
    assert reply.reader == "p0"
    assert reply.parts == []
    assert session.handle(replace(question, result=None)).announcement.sealed


def test_totals_that_all_read_are_not_read_by_one():
    session, question, _ = halted(msg.Add, 1)
    parts = session.handle(question).parts
    refuses(session, msg.Read(step=question.step, others=parts), f"the total of step {question.step} is read by all")


# --- parties in different states -------------------------------------------------------------------------------------


class StopAfterTwo(Callback):
    def after_tree(self, record):
        return record.round == 1


def grown_by(all_of, present, entries, prepared):
    """The first batch, grown by those who are present; returns what was kept."""
    transport, journal = Recorder(all_of), open_joint_journal()
    transport.parties = list(present)
    for entry in entries:
        journal.append(entry)
    key = msg.SignedKey(key=boxes.public_half(boxes.new_key()))
    params = train_params(**STUDY)
    recovery = hub.Recovery(journal, min_parties=2)
    order, callbacks = hub.JointOrder(key), [StopAfterTwo()]
    with pytest.raises(PrivacyError, match="when its training is finished"):
        hub.train_together(transport, prepared, params, order, callbacks=callbacks, recovery=recovery)
    return transport, [entry for entry in journal.entries if isinstance(entry, BeganTogether | Decided)]


def test_parties_that_were_told_different_batches_add_up_to_nothing():
    """A hub that gives one party the batch of three, another that of two, and overlooks that their digests differ."""
    all_of = sessions(**STUDY)
    prepared = hub.prepare(Recorder(all_of), train_params(**STUDY))
    _, of_three = grown_by(all_of, NAMES, [], prepared)
    transport, of_two = grown_by(all_of, NAMES[:2], of_three[:-1], prepared)
    assert len(of_three) == len(of_two)
    agree_on_masks(transport, train_params(**STUDY), n_parties=3)
    start, replies = transport.questions(msg.StartTogether)[-1], []
    for session, entries in zip(all_of[:2], (of_three, of_two), strict=True):
        session.handle(replace(start, kept=[entry.result for entry in entries[1:]]))
        replies.append(session.handle(msg.Add(step=0)))
    assert replies[0].digest != replies[1].digest
    total = wire.pack_parts(add([wire.unpack_parts(reply.parts) for reply in replies]))
    result = msg.Result(step=0, exchange=replies[0].exchange, total=total)
    for session in all_of[:2]:
        refuses(session, msg.Add(step=1, result=result), "does not fit its check words")


# --- signatures ------------------------------------------------------------------------------------------------------


def signed_run():
    """The first announcement to a party: of four batches it reads one itself, and a batch may end at its root."""
    return halted(msg.Add, who=1, project=Project(), where=with_announced, n_trees=8)


def test_an_announcement_is_signed_by_its_reader():
    session, question, _ = signed_run()
    announced = question.result.announced
    for changed, rule in (
        (replace(announced, signature=None), "it is not signed"),
        (replace(announced, signature=announced.signature[:-1] + b"x"), "the signature is not by its certificate"),
        (replace(announced, certificate=Project().identity("p0").encoded), "was not issued by the root"),
    ):
        refuses(session, replace(question, result=replace(question.result, announced=changed)), rule)
    session.handle(question)


def test_a_party_cannot_speak_for_the_reader():
    """Another party has the secret, too; it does not have the reader's certificate."""
    session, question, seen = signed_run()
    forger = seen.handlers["p2"].together.announcing
    forged = forger.announce(question.result.exchange, question.result.step, b"forged")
    changed = replace(question, result=replace(question.result, announced=forged))
    refuses(session, changed, "its certificate is of 'p2'|not by its certificate")


# --- the model -------------------------------------------------------------------------------------------------------


def receiver(identity=None, name=SUBMITTER, run="r"):
    public = boxes.public_half(boxes.new_key())
    own = sign_key(identity, name, public, run) if identity else msg.SignedKey(key=public)
    return msg.SendModel(receiver=own)


def test_the_model_goes_to_the_submitter_alone():
    project = Project()
    all_of = sessions(project, **STUDY)

    def stop(message):
        if isinstance(message, msg.SendModel):
            raise Reached
        return message

    with pytest.raises(Reached):
        grow_together(Recorder([Between(all_of[0], question=stop), *all_of[1:]]), **STUDY)
    session = all_of[0]
    refuses(session, msg.SendModel(receiver=None), "the hub does not get the model")
    refuses(session, receiver(), "it is not signed")
    refuses(session, receiver(project.identity("hub", role="hub"), "hub"), "not by its certificate|is of 'hub'")
    refuses(session, receiver(project.identity(SUBMITTER, role="hub")), "that of a hub, not of a submitter")
    refuses(session, receiver(project.identity(SUBMITTER, role="party")), "not of a submitter")
    refuses(session, receiver(Project().identity(SUBMITTER, role="submitter")), "was not issued by the root")
    refuses(session, receiver(project.identity(SUBMITTER, role="submitter"), run="other"), "not by its certificate")
    reply = session.handle(receiver(project.identity(SUBMITTER, role="submitter")))
    assert isinstance(reply, msg.SealedModel)
    assert msgspec.msgpack.encode(reply)


def test_the_hub_gets_the_model_where_nothing_is_masked():
    session, question, _ = halted(msg.SendModel, masked=False)
    assert session.handle(question).sealed[:1] == b"{"


@pytest.mark.parametrize("number", [1, 7])
def test_a_party_signs_no_model_before_its_training_is_finished(number):
    session, _, _ = halted(msg.Add, number)
    refuses(session, receiver(), "the model goes out when its training is finished")


# --- parties that lie ------------------------------------------------------------------------------------------------


def test_a_party_that_sends_another_form_is_named():
    def shorten(reply):
        return replace(reply, parts=reply.parts[:-1]) if isinstance(reply, msg.Addend) and reply.step == 3 else reply

    first, second, third = sessions(**STUDY)
    with pytest.raises(ProtocolError, match=r"Party 'p1' sent an invalid message: numbers of another form"):
        grow_together(Recorder([first, Between(second, reply=shorten), third]), **STUDY)


def test_a_party_that_changes_what_it_masked_is_found_out():
    def change(reply):
        if not isinstance(reply, msg.Addend) or reply.step != 3:
            return reply
        part = wire.unpack(reply.parts[0], reply.parts[0].dtype, reply.parts[0].shape).copy()
        part.flat[0] += 1
        return replace(reply, parts=[wire.pack(part), *reply.parts[1:]])

    first, second, third = sessions(**STUDY)
    with pytest.raises(PrivacyError, match="does not fit its check words"):
        grow_together(Recorder([first, Between(second, reply=change), third]), **STUDY)
