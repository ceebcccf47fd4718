"""Trees grown together over the wire: masks change no bit, the hub sees random numbers, and a resume ends the same."""

import random
import zlib
from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace
from scipy import stats

import simfl
from simfl import hub, wire
from simfl import messages as msg
from simfl.callbacks import Callback
from simfl.errors import DataError, FewRowsWarning, ParameterError, PartyLost, ProtocolError
from simfl.hub.joint import Decided, open_joint_journal
from simfl.privacy.additive import Covers, add, from_words, of_stream, subtract, to_words
from tests.unsafe import Killed, Unsafe
from tests.wire import Between, Recorder, grow_together, joint_sessions, model_bits, parties, rows

# Few rows: little noise on counts, so that trees grow.
STUDY = {"n_trees": 6, "max_depth": 3, "random_state": 5, "learning_rate": 0.4, "min_group": 3}


@pytest.fixture(autouse=True, scope="module")
def little_noise():
    """On counts: what is tested here is not about them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simfl.joint.setting.COUNT_EPSILON", 0.5)
        yield


FIRST_OF_BATCH = (0, 1, 2, 4)
SIZES = (60, 50, 40)


def recorder(*sizes, **given):
    return Recorder(joint_sessions(parties(*sizes or SIZES), **given))


@cache
def plain():
    """The model of a run that hides nothing."""
    return grow_together(recorder(), **STUDY)[1]


# --- one process -----------------------------------------------------------------------------------------------------


def test_masks_change_no_bit_of_the_model():
    grown, model = grow_together(recorder(), **STUDY | {"masked": True})
    assert model_bits(model) == model_bits(plain())
    assert [r.train for r in model.history] == [r.train for r in plain().history]
    assert len(grown.history) == model.n_trees == 6


def test_a_door_of_one_process_gives_the_model_with_its_account():
    model = simfl.train(parties(*SIZES), recipe="joint", masked=True, **STUDY)
    again = simfl.train(parties(*SIZES), recipe="joint", **STUDY)
    assert model_bits(model) == model_bits(again)
    assert model.n_trees == len(model.history) == 6
    assert all(record.bytes > 0 and record.seconds > 0 and record.train for record in model.history)
    assert {*model.traffic} == {"p0", "p1", "p2"}


def test_a_training_on_too_few_rows_says_so(recwarn):
    few = {"recipe": "joint", "n_trees": 1, "random_state": 0}
    with pytest.warns(FewRowsWarning, match=r"^200 rows to train on are few.*min_group.*recipe='similar'"):
        simfl.train(parties(100, 100), callbacks=[], **few)
    recwarn.clear()
    simfl.train(parties(100, 100), callbacks=[], min_group=5, **few)
    assert not [told for told in recwarn if told.category is FewRowsWarning]


def test_a_preparation_of_joint_is_used_and_kept(tmp_path):
    ready = simfl.prepare(parties(*SIZES), recipe="joint", random_state=5)
    train = {name: value for name, value in STUDY.items() if name != "random_state"}
    model = simfl.train(ready, **train)
    ready.save(tmp_path / "ready")
    kept = simfl.Preparation.load(tmp_path / "ready", parties(*SIZES))
    assert model_bits(simfl.train(kept, **train)) == model_bits(model)
    assert model_bits(simfl.train(ready, **train, masked=True)) == model_bits(model)
    with pytest.raises(ParameterError, match="prepared with recipe='joint'"):
        simfl.train(ready, recipe="similar")


def test_a_training_continues_from_an_earlier_model():
    first = simfl.train(parties(*SIZES), recipe="joint", **STUDY)
    both = simfl.train(parties(*SIZES), recipe="joint", init_model=first, masked=True, **STUDY)
    assert both.n_trees == 12
    assert [record.round for record in both.history] == list(range(12))
    assert both.history[-1].train["logloss"] < first.history[-1].train["logloss"]


def test_one_party_alone_and_other_objectives():
    alone = simfl.train(parties(80), recipe="joint", masked=True, **STUDY)
    assert model_bits(alone) == model_bits(simfl.train(parties(80), recipe="joint", **STUDY))
    X, _ = rows(90, 0)
    several = [simfl.Party(n, X[i::2], np.digitize(X[i::2, 0], [-0.5, 0.5])) for i, n in enumerate("ab")]
    model = simfl.train(several, recipe="joint", objective="multi:softprob", masked=True, **STUDY)
    assert model.predict_proba(X).shape == (90, 3)
    numbers = [simfl.Party(n, X[i::2], X[i::2, 0] * 3) for i, n in enumerate("ab")]
    assert simfl.train(numbers, recipe="joint", objective="reg:squarederror", **STUDY).classes is None


def test_estimators_and_baselines_take_the_recipe():
    X, y = rows(150, 0)
    sites = np.arange(150) % 3
    fitted = simfl.SimFLClassifier(**STUDY | {"recipe": "joint"}).fit(X, y, parties=sites)
    assert fitted.model_.n_trees == 6
    assert fitted.score(X, y) > 0.6
    given = {"recipe": "joint", **STUDY}
    tfl = simfl.baselines.tfl(parties(*SIZES), **given)
    assert {record.builder for record in tfl.history} == {"p0", "p1", "p2"}
    assert simfl.baselines.all_in(parties(*SIZES), **given).n_trees == 6


def test_early_stopping_watches_totals_that_the_hub_does_not_see():
    study = STUDY | {"n_trees": 60, "learning_rate": 0.9, "validation_fraction": 0.3, "early_stopping_rounds": 2}
    grown, model = grow_together(recorder(), **study | {"masked": True})
    best = min(range(len(model.history)), key=lambda n: model.history[n].validation["logloss"])
    assert model.n_trees == best + 1 < len(model.history) < 60
    assert all(record.train == record.validation == {} for record in grown.history)


def test_a_callback_sees_what_the_hub_sees_and_stops_after_a_batch():
    class Stop(Callback):
        def __init__(self):
            self.seen = []

        def after_tree(self, record):
            self.seen.append(record)
            return record.round == 1

    for masked in (False, True):
        stop = Stop()
        _, model = grow_together(recorder(), callbacks=[stop], **STUDY | {"masked": masked})
        assert model.n_trees == 2
        assert all(bool(record.train) != masked for record in stop.seen)


# --- what the hub sees -----------------------------------------------------------------------------------------------


def addends(transport):
    """What the parties added, in the order in which it came: a reader's comes along with what it announces."""
    replies = [reply.addend if isinstance(reply, msg.Announced) else reply for _, _, reply in transport.log]
    return [reply for reply in replies if isinstance(reply, msg.Addend)]


def seen_words(transport):
    """All words that parties sent, all totals that the hub computed, and the totals without a reader, as bytes."""
    results = [q.result for p, q, _ in transport.log if p == "p0" and isinstance(q, msg.Add | msg.Read) and q.result]
    sent = [part.data for addend in addends(transport) for part in addend.parts]
    totals = [part.data for result in results for part in result.total or []]
    others = [part.data for question in transport.questions(msg.Read) for part in question.others]
    return [b"".join(part) for part in (sent, totals, others)]


def is_random(data):
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    return stats.chisquare(counts).pvalue > 1e-6


def test_the_hub_adds_random_numbers_to_random_totals():
    seen = recorder()
    grow_together(seen, **STUDY | {"masked": True})
    sent, totals, others = seen_words(seen)
    assert min(len(sent), len(totals)) > 10_000
    assert others
    assert all(is_random(data) for data in (sent, totals, others))
    open_one = recorder()
    grow_together(open_one, **STUDY)
    assert not any(is_random(data) for data in seen_words(open_one))


def test_the_numbers_of_a_reader_never_leave_it():
    seen = recorder()
    grow_together(seen, **STUDY | {"masked": True})
    read = [(party, question.step) for party, question, _ in seen.log if isinstance(question, msg.Read)]
    assert len(read) > 6
    for reader, step in read:
        sent = {p: r for p, _, r in seen.log if isinstance(r, msg.Addend) and r.step == step}
        assert {*sent} == {"p0", "p1", "p2"} - {reader}
        assert all(addend.reader == reader and addend.parts for addend in sent.values())


@pytest.mark.parametrize("ways", [{"masked": True}, {}], ids=str)
def test_without_counts_a_reader_is_known_when_the_step_has_begun(ways):
    seen = recorder()
    grow_together(seen, **STUDY | {"min_group": 1} | ways)
    assert all(addend.next_reader is None for addend in addends(seen))
    assert all(not a.parts for p, _, a in seen.log if isinstance(a, msg.Addend) and a.reader == p)
    assert seen.questions(msg.Read)


def test_equal_totals_and_decisions_look_different_in_every_run():
    runs = []
    for _ in range(2):
        seen = recorder()
        grow_together(seen, **STUDY | {"masked": True})
        runs.append(seen)
    for one, other in zip(*(seen.questions(msg.Add) for seen in runs), strict=True):
        if one.result and one.result.total:
            pairs = zip(one.result.total, other.result.total, strict=True)
            assert all(a.data != b.data for a, b in pairs)
        if one.result and one.result.announced:
            assert one.result.announced.sealed != other.result.announced.sealed
    places = {(number, addend.step): addend.digest for number, seen in enumerate(runs) for addend in addends(seen)}
    assert len({*places.values()}) == len(places)  # the same at all parties, in no other step or run


def numbers_of(model):
    """The thresholds and leaf values of a model, as they would stand in a message."""
    trees = model_bits(model)["learner"]["gradient_booster"]["model"]["trees"]
    return {np.float32(v).tobytes() for tree in trees for v in tree["split_conditions"] if abs(v) > 1e-3}


def test_the_hub_never_holds_a_threshold_or_a_leaf_value():
    seen = recorder()
    _, model = grow_together(seen, **STUDY | {"masked": True})
    numbers = numbers_of(model)
    assert len(numbers) > 20
    found = [number for number in numbers if number in seen.bytes]
    assert len(found) <= 1  # by chance: a few hundred thousand places, 2**32 patterns
    shown = recorder()
    grow_together(shown, **STUDY)
    sealed = [reply.announcement.sealed for _, _, reply in shown.log if isinstance(reply, msg.Announced)]
    decided = b"".join(zlib.decompress(content) for content in sealed)
    assert all(number in decided for number in numbers)


def test_each_party_reads_in_turn():
    seen = recorder()
    grow_together(seen, **STUDY | {"masked": True})
    readers = [party for party, question, _ in seen.log if isinstance(question, msg.Read)]
    assert list(dict.fromkeys(readers)) == ["p0", "p1", "p2"]


# --- check words and covers ------------------------------------------------------------------------------------------


def vector(seed=0):
    rng = np.random.default_rng(seed)
    words = [rng.integers(-(2 ** (8 * size - 3)), 2 ** (8 * size - 3), 50, dtype=f"i{size}") for size in (1, 2, 4)]
    seeds = rng.integers(0, 2**64, 50, dtype=np.uint64)  # the only words that may overflow
    return [*(part.view(f"u{part.itemsize}") for part in words), seeds, *to_words([rng.normal(size=5)])]


def test_totals_without_cover_and_checks_are_the_sum():
    covers = Covers(b"s" * 32, b"exchange")
    sent = [covers.with_checks(vector(seed), 7, first=seed == 0) for seed in range(3)]
    total = add([add(sent), covers.cover(7, sent[0])])
    opened = covers.without_checks(subtract(total, covers.cover(7, total)), 7)
    wanted = add([vector(seed) for seed in range(3)])
    assert all((a == b).all() for a, b in zip(opened, wanted, strict=True))
    assert from_words(opened)[-1] == pytest.approx(sum(from_words(vector(seed))[-1] for seed in range(3)))


@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("step", [7, 8])
def test_a_changed_total_does_not_fit_its_check_words(part, step):
    covers = Covers(b"s" * 32, b"exchange")
    total = add([covers.with_checks(vector(seed), 7, first=seed == 0) for seed in range(3)])
    changed = [p.copy() for p in total]
    if step == 7:
        changed[part].flat[3] += 1
    with pytest.raises(simfl.errors.PrivacyError, match="does not fit its check words"):
        covers.without_checks(changed, step)
    doubled = add([total, total])  # a multiple of the whole does not fit either
    with pytest.raises(simfl.errors.PrivacyError, match="does not fit its check words"):
        covers.without_checks(doubled, 7)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_changed_highest_bit_does_not_fit_either(part):
    covers = Covers(b"s" * 32, b"exchange")
    for step in range(100):
        total = covers.with_checks(vector(), step, first=True)
        total[part] = total[part] ^ np.array(
            [0] * 3 + [1 << 8 * total[part].itemsize - 1] + [0] * 46, total[part].dtype
        )
        with pytest.raises(simfl.errors.PrivacyError, match="does not fit its check words"):
            covers.without_checks(total, step)


def test_a_stream_fills_every_part():
    like = vector()
    parts = of_stream(bytes(range(256)) * 10, like)
    assert [(p.dtype, p.shape) for p in parts] == [(p.dtype, p.shape) for p in like]


# --- states that differ ----------------------------------------------------------------------------------------------


def test_a_party_in_another_state_ends_the_training_with_step_and_name():
    def change(reply):
        other = isinstance(reply, msg.Addend) and reply.step == 5
        return replace(reply, digest=b"x" * 8) if other else reply

    first, second, third = joint_sessions(parties(*SIZES))
    with pytest.raises(ProtocolError, match=r"'p0' and 'p1' differ in 'digest' in step 5 \(batch 0, level 0, counts\)"):
        grow_together(Recorder([first, Between(second, reply=change), third]), **STUDY)


def changed_alike(change):
    """A training in which all parties send the same wrong thing: each addend is changed on its way."""

    def reply(message):
        if isinstance(message, msg.Announced):
            return replace(message, addend=change(message.addend))
        return change(message) if isinstance(message, msg.Addend) else message

    return grow_together(Recorder([Between(s, reply=reply) for s in joint_sessions(parties(*SIZES))]), **STUDY)


def test_metrics_of_trees_that_are_not_there_are_refused_with_their_senders_and_the_next_step():
    def more(addend):
        return replace(addend, metrics=[*addend.metrics, ({}, {})])

    with pytest.raises(
        ProtocolError,
        match=r"Parties 'p0', 'p1', 'p2' sent .* metrics of 1 trees, where 0 are finished\. .*`simfl train --resume`",
    ):
        changed_alike(more)


def test_another_reader_than_announced_is_refused_with_its_senders_and_the_next_step():
    def other(addend):
        return replace(addend, next_reader="p2") if addend.next_reader not in (None, "p2") else addend

    with pytest.raises(
        ProtocolError,
        match=r"Parties 'p0', 'p1'.* sent .* step \d+ .* is read by p[01], announced was 'p2'\. .*--resume`",
    ):
        changed_alike(other)


# --- dropouts and resume ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ways", [{"masked": True}, {}], ids=str)
def test_a_training_killed_again_and_again_ends_with_the_same_model(ways, tmp_path):
    moments, kills = random.Random(4), 0
    while kills < 30:
        handlers = joint_sessions(parties(*SIZES), secret=None if ways else 3, folder=tmp_path)
        transport = Unsafe(handlers, kill_after=moments.randint(12, 30))
        journal = open_joint_journal(tmp_path / "journal")
        try:
            _, model = grow_together(transport, journal, **STUDY | ways)
            break
        except Killed:
            journal._file.close()
            kills += 1
    assert 1 < kills < 30
    assert model_bits(model) == model_bits(plain())


def lost_and_found(first, last, **ways):
    transport = Unsafe(joint_sessions(parties(*SIZES)))
    transport.cut_off = {"p1": (first, last)}
    journal = open_joint_journal()
    grown, model = grow_together(transport, journal, min_parties=2, **STUDY | ways)
    return transport, journal, grown, model


@pytest.mark.parametrize("ways", [{"masked": True}, {}], ids=str)
def test_a_batch_in_which_a_party_was_lost_is_grown_by_the_others(ways):
    for first in range(12, 40, 5):
        transport, journal, grown, model = lost_and_found(first, 10**9, **ways)
        assert transport.parties == ["p0", "p2"]
        assert model.n_trees == 6
        missed = grown.missed["p1"]
        assert missed == list(range(missed[0], 6))
        assert missed[0] in FIRST_OF_BATCH  # whole batches
        decided = [entry for entry in journal.entries if isinstance(entry, Decided)]
        assert [entry.absent for entry in decided if entry.n_trees > missed[0]] == [["p1"]] * sum(
            first >= missed[0] for first in FIRST_OF_BATCH
        )


def test_a_party_that_is_back_takes_part_from_the_next_batch():
    transport, _, grown, model = lost_and_found(20, 30, masked=True)
    assert transport.parties == ["p0", "p1", "p2"]
    assert 0 < len(grown.missed["p1"]) < 6
    assert model.n_trees == 6


def test_a_lost_party_ends_a_training_that_needs_all():
    transport = Unsafe(joint_sessions(parties(*SIZES)))
    transport.cut_off = {"p1": (25, 10**9)}
    with pytest.raises(PartyLost):
        grow_together(transport, **STUDY | {"masked": True})


def test_a_journal_of_other_parameters_is_refused(tmp_path):
    journal = open_joint_journal(tmp_path / "journal")
    grow_together(Unsafe(joint_sessions(parties(*SIZES))), journal, **STUDY)
    with pytest.raises(DataError, match="began with other parameters or labels"):
        grow_together(Unsafe(joint_sessions(parties(*SIZES))), journal, **STUDY | {"max_depth": 4})


def test_the_journal_holds_no_number_of_a_tree(tmp_path):
    journal = open_joint_journal(tmp_path / "journal")
    _, model = grow_together(recorder(), journal, **STUDY | {"masked": True})
    journal.close()
    written = (tmp_path / "journal").read_bytes()
    assert not [number for number in numbers_of(model) if number in written]
    assert hub.open_joint_journal(tmp_path / "journal").entries[-1].record.train == {}
    assert wire.decode(wire.encode(msg.Add(step=0))) == msg.Add(step=0)
