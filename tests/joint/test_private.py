"""Joint with epsilon: nothing but noisy sums leaves, and a row moves them by no more than the noise was made for."""

import math
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace
from scipy import stats

pytest.importorskip("dp_accounting")

import simfl
from simfl import messages as msg
from simfl import wire
from simfl.data.schema import Schema
from simfl.errors import DataError, FileError, ParameterError, PartyLost, PrivacyError
from simfl.hub.joint import Decided, open_joint_journal
from simfl.joint import private_rule
from simfl.joint.private import Filter, _shortened
from simfl.party import sealing
from simfl.party.joint_rows import model_of
from simfl.privacy.discrete import VARIANCE
from simfl.training.losses import loss_named
from tests.joint.machines import total_of
from tests.wire import Recorder, grow_together, joint_sessions, lose, model_bits, rows

SCHEMA = Schema.from_toml({f"x{j}": {"low": -3, "high": 3} for j in range(6)})
STUDY = {"recipe": "joint", "epsilon": 2.0, "rows": 150, "n_trees": 6, "max_depth": 2, "random_state": 5}
SIZES = (60, 50, 40)
LOOKS = 2  # steps before the first batch: counts, and sums per column


def parties(*sizes, without=None, **more):
    """`without`: one row of the first party is left out."""
    found = [simfl.Party(f"p{i}", *rows(n, i), schema=SCHEMA, **more) for i, n in enumerate(sizes or SIZES)]
    if without is not None:
        X, y = rows(sizes[0] if sizes else SIZES[0], 0)
        kept = np.arange(len(y)) != without
        found[0] = simfl.Party("p0", X[kept], y[kept], schema=SCHEMA)
    return found


def trained(members=None, **given):
    """A recorded run: transport, sessions, model."""
    transport = Recorder(joint_sessions(members or parties()))
    _, model = grow_together(transport, **STUDY | given)
    return transport, list(transport.handlers.values()), model


def machines_of(sessions):
    return [session.together.machine for session in sessions]


@pytest.fixture(autouse=True)
def lockstep(monkeypatch):
    """Few trees in a step, so that the few trees of a test take several; returns what sets another number."""
    use = partial(monkeypatch.setattr, private_rule, "LOCKSTEP")
    use(2)
    return use


@pytest.fixture
def silent(monkeypatch):
    """Without noise: what it hides can be compared."""
    monkeypatch.setattr(sealing.discrete, "draw", lambda key, n: np.zeros(n, np.int64))


# --- what a row can change -------------------------------------------------------------------------------------------


def test_a_filter_never_gives_a_row_more_than_the_noise_was_made_for():
    rng, longest = np.random.default_rng(0), 5000.3
    kept, used = Filter(200, longest), np.zeros(200, np.int64)
    for n in (1, 3, 7) * 20:
        vectors = rng.normal(size=(200, 4)) * rng.choice([1.0, 300.0, 1e5], 200)[:, None]
        whole = kept.take(vectors, n)
        used += n * (whole**2).sum(axis=1)
        assert (np.abs(whole) <= np.abs(vectors)).all()
        assert (used <= longest**2).all()
    assert (used > 0.99 * longest**2).sum() > 50  # it does bind


def test_adding_a_row_moves_all_sums_together_by_no_more_than_the_length(silent, lockstep):
    """Step by step, with the same totals read before: what epsilon is about. The others' sums stay the same."""
    lockstep(5)
    _, sessions, _ = trained(n_trees=40)
    decisions = sessions[0].together.machine.kept
    longest = sessions[0].together.machine.budget.longest
    for without in (0, 17, 59):
        machines = []
        for members in (parties(), parties(without=without)):
            transport = Recorder(joint_sessions(members))
            grow_together(transport, **STUDY | {"n_trees": 40})
            session = transport.handlers["p0"]
            machines.append(session._machine(session.together.start))
        squared = 0
        for decision in decisions:
            (one,), (other,) = (machine.contribution() for machine in machines)
            moved = (one - other).view(np.int64)
            assert (moved != 0).sum() <= 2 * 6  # one leaf of each tree: one per column, then five
            squared += int((moved.astype(object) ** 2).sum())
            for machine in machines:
                machine.apply(decision)
        assert 0 < squared <= longest**2


def test_no_total_makes_a_vector_longer(silent):
    """Who colludes chooses totals: of nothing over nothing no leaf value follows that no number is."""
    _, sessions, _ = trained(reg_lambda=0.0, n_trees=12)
    machine = sessions[0]._machine(sessions[0].together.start)
    squared = np.zeros(len(machine.mine.rows.y))
    while not machine.finished:
        n_times = {"counts": len(machine._leaves)}.get(machine._stage, len(machine._batch))
        squared += n_times * (machine._vectors.astype(float) ** 2).sum(axis=1)
        machine.apply(machine.read([np.zeros(machine._n_words, np.uint64)]))
    assert (squared <= machine.budget.longest**2).all()
    assert all(np.isfinite(tree.value).all() for trees in machine.rounds for tree in trees)


def test_a_filter_gives_nothing_to_what_is_no_number():
    kept = Filter(3, 5000.3)
    whole = kept.take(np.array([[np.nan, 1.0], [np.inf, 1.0], [3.0, 4.0]]), 2)
    assert whole.tolist() == [[0, 0], [0, 0], [3, 4]]
    assert kept.left.tolist() == [25_003_000, 25_003_000, 25_002_950]


@pytest.mark.parametrize("objective", ["binary:logistic", "multi:softprob"])
def test_the_vector_of_a_row_does_not_depend_on_its_neighbours(objective):
    """To the last bit: arithmetic on several rows at once must not round a row by its place."""
    rng, loss = np.random.default_rng(0), loss_named(objective)
    n, outputs = 1003, 1 if objective == "binary:logistic" else 9
    margin, y = (
        rng.normal(0, 3, (n, outputs)).astype(np.float32),
        rng.integers(0, max(outputs, 2), n).astype(np.float32),
    )
    weight = rng.random(n).astype(np.float32)

    def vectors(rows):
        g, h = loss.gradients(margin[rows], y[rows], weight[rows])
        both = _shortened(np.concatenate([g, 0.5 * h], axis=1).astype(np.float64), 0.7 * weight[rows])
        return Filter(len(rows), 900.0).take(3000.0 * both, 2)

    everybody = vectors(np.arange(n))
    for gone in (0, 1, 500, 1002):
        kept = np.arange(n)[np.arange(n) != gone]
        assert np.array_equal(vectors(kept), everybody[kept])
    assert np.array_equal(np.concatenate([vectors(np.array([i])) for i in range(50)]), everybody[:50])


def test_a_row_that_adds_nothing_costs_nothing_and_warns_of_nothing():
    filtered = Filter(3, 100.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):  # the second time the last row has nothing left
            taken = filtered.take(np.array([[0.0], [3.0], [1e9]]), 1)
            assert taken[:2, 0].tolist() == [0, 3]
    assert filtered.left.tolist() == [10_000, 9_982, 0]
    assert taken[2, 0] == 0


def test_a_vector_is_shortened_in_its_own_direction_and_by_its_weight():
    vectors = np.array([[0.3, 0.4], [-0.6, 0.8], [0.0, 0.0], [3.0, 4.0]])
    found = _shortened(vectors, 0.7 * np.array([1.0, 1.0, 1.0, 10.0]))
    assert found == pytest.approx(np.array([[0.3, 0.4], [-0.42, 0.56], [0.0, 0.0], [3.0, 4.0]]))


def test_no_row_is_left_out_before_the_last_tree(lockstep):
    lockstep(5)
    _, sessions, _ = trained(n_trees=60)
    machine = sessions[0].together.machine
    assert machine._filter.left.min() > 0


def test_trees_follow_from_the_seed_and_from_noisy_totals_alone():
    _, sessions, model = trained()
    machine = sessions[0].together.machine
    other = [simfl.Party(p.name, -2 * p.rows.X + 1, 1 - p.rows.y, schema=SCHEMA) for p in parties()]
    _, others, another = trained(other)
    strange = others[0]._machine(others[0].together.start)
    strange.resume(machine.kept)  # other rows, the same totals
    assert model_bits(model_of(strange, others[0].together.start, others[0].split)) == model_bits(model)
    assert model_bits(another) != model_bits(model)


def test_the_first_step_finds_the_columns_that_matter_and_the_start():
    X, _ = rows(4000, 0)
    y = (X[:, 3] > 1).astype(int)
    _, sessions, _ = trained([simfl.Party("p0", X, y, schema=SCHEMA)], epsilon=8.0, rows=4000, n_trees=100)
    machine = sessions[0].together.machine
    weights = machine.columns.weights
    assert weights[3] > 4 * max(weights[:3] + weights[4:])
    assert machine.base_score[0] == pytest.approx(y.mean(), abs=0.03)
    _, given, _ = trained([simfl.Party("p0", X, y, schema=SCHEMA)], base_score=0.2)
    assert given[0].together.machine.base_score[0] == 0.2


# --- what leaves -----------------------------------------------------------------------------------------------------


def told(log):
    """All messages, without the numbers that carry noise and what follows from them: how many come next, too."""

    def blank(message):
        if isinstance(message, msg.Addend):
            return replace(
                message, parts=[replace(p, shape=(), data=b"") for p in message.parts], digest=b"", announced=None
            )
        if isinstance(message, msg.Add) and message.result:
            total = [replace(p, shape=(), data=b"") for p in message.result.total]
            return replace(message, result=replace(message.result, total=total))
        return b"" if isinstance(message, msg.SealedModel) else message

    return [(party, blank(question), blank(reply)) for party, question, reply in log]


def test_two_tables_that_differ_in_a_row_differ_in_noisy_sums_only():
    for masked in (False, True):
        logs = [trained(parties(without=w), masked=masked)[0].log for w in (None, 3)]
        kept = [[entry for entry in told(log) if not isinstance(entry[1], msg.DrawKey | msg.TakeKeys)] for log in logs]
        if masked:  # every exchange of keys is new
            kept = [
                [(p, type(q), replace(r, exchange=b"") if isinstance(r, msg.Addend) else type(r)) for p, q, r in log]
                for log in kept
            ]
        assert kept[0] == kept[1]


def test_only_these_questions_are_asked():
    transport, *_ = trained(masked=True)
    asked = {type(question) for _, question, _ in transport.log}
    assert asked == {msg.Describe, msg.DrawKey, msg.TakeKeys, msg.StartTogether, msg.Add, msg.SendModel}
    described = transport.replies(msg.Description).values()
    assert {(d.n_rows, d.n_validation_rows) for d in described} == {(0, 0)}
    sizes = {tuple(p.shape) for p in transport.log[-3][2].parts} if hasattr(transport.log[-3][2], "parts") else set()
    assert sizes <= {(2 * 2 * 4,), (1,)}  # two trees of four leaves, and a check word


def test_one_batch_differs_by_no_more_than_a_row(silent):
    sums = []  # of the first step: later ones follow from it
    for without in (None, 20):
        transport, sessions, _ = trained(parties(without=without), n_trees=2)
        first = next(reply for party, _, reply in transport.log if party == "p0" and isinstance(reply, msg.Addend))
        sums.append(wire.unpack_parts(first.parts)[0].view(np.int64))
    moved = sums[0] - sums[1]
    assert 0 < math.sqrt((moved.astype(float) ** 2).sum()) <= sessions[0].together.machine.budget.longest


# --- the noise -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
def test_the_total_carries_the_noise_of_all_parties_through_the_real_protocol(masked, lockstep):
    lockstep(64)
    _, sessions, _ = trained(n_trees=64, max_depth=5, epsilon=4.0, masked=masked)
    kept = sessions[1].together.machine.kept
    total = np.frombuffer(kept[LOOKS], "<u8")
    fresh = [session._machine(session.together.start) for session in sessions]
    for machine in fresh:
        machine.resume(kept[:LOOKS])
    noise = (total - total_of(fresh)[0]).view(np.int64)
    assert len(noise) > 2000
    assert stats.kstest(noise / math.sqrt(3 * VARIANCE), "norm").pvalue > 1e-6
    assert abs(noise.astype(float).var() / (3 * VARIANCE) - 1) < 6 * math.sqrt(2 / len(noise))


def test_shared_noise_is_the_noise_of_one_and_hides_less_for_each():
    """Two of three parties collude: each adds all of it. None does: together they have the noise of one."""
    machine = partial(lambda **given: machines_of(trained(masked=True, **given)[1])[0])
    alone, together = machine(colluding=2), machine(colluding=0)
    assert together.units == pytest.approx(math.sqrt(3) * alone.units)
    assert machine(colluding=None).units == alone.units


def test_masks_and_noise_are_uniform_to_the_hub(lockstep):
    lockstep(64)
    transport, sessions, _ = trained(n_trees=128, max_depth=5, masked=True)
    sent = [wire.unpack_parts(r.parts)[0] for _, _, r in transport.log if isinstance(r, msg.Addend) and r.parts]
    totals = [wire.unpack_parts(q.result.total)[0] for _, q, _ in transport.log if isinstance(q, msg.Add) and q.result]
    for vectors in (sent, totals[::3]):
        drawn = np.concatenate(vectors).view(np.uint8)
        assert len(drawn) > 30_000
        assert stats.chisquare(np.bincount(drawn, minlength=256)).pvalue > 1e-6
    read = np.frombuffer(sessions[0].together.machine.kept[LOOKS], "<u8")
    assert stats.chisquare(np.bincount(read.view(np.uint8), minlength=256)).pvalue < 1e-6  # the test can fail


def test_every_party_has_the_same_model_and_masks_change_no_form():
    _, sessions, model = trained(masked=True)
    assert [model_bits(session.model) for session in sessions] == [model_bits(model)] * 3
    assert (model.epsilon, model.delta) == (2.0, 1e-5)
    assert "adding or removing any one row" in model.guarantee
    assert [record.train for record in model.history] == [{}] * 6


def test_a_second_training_has_other_noise():
    one, other = (simfl.train(parties(), **STUDY) for _ in range(2))
    assert model_bits(one) != model_bits(other)


# --- a resumed run ---------------------------------------------------------------------------------------------------


def test_a_resumed_run_sends_the_same_bits_again(tmp_path):
    study = STUDY | {"masked": True}
    journal = open_joint_journal()
    first = joint_sessions(parties(), folder=tmp_path)
    broken = Recorder([*first[:2], lose(first[2], 2)])
    with pytest.raises(PartyLost):
        grow_together(broken, journal, min_parties=1, **study)  # fewer parties would have less noise
    spent = [set(session.sealing.spent) for session in first]
    assert len(spent[0]) == 3
    assert len([entry for entry in journal.entries if isinstance(entry, Decided)]) == 1  # two steps are taken again
    again = joint_sessions(parties(), folder=tmp_path)
    for session, own in zip(again, spent, strict=True):
        session.sealing.one_budget, session.sealing.spent = True, set(own)
    grow_together(Recorder(again), journal, **study)
    assert again[0].sealing.spent > spent[0]  # both were released before: they have the same noise
    assert len(again[0].sealing.spent) == LOOKS + 3
    assert again[0].together.machine.kept[1] == first[0].together.machine.kept[1]


def test_a_step_is_not_sent_again_from_another_table(tmp_path):
    first = joint_sessions(parties(), folder=tmp_path)
    grow_together(Recorder(first), **STUDY)
    again = joint_sessions(parties(without=3), folder=tmp_path)
    again[0].sealing.one_budget, again[0].sealing.spent = True, first[0].sealing.spent
    with pytest.raises(PrivacyError, match="asked for sums that it has sent before, from another table"):
        grow_together(Recorder(again), **STUDY)


@pytest.mark.parametrize("kept", [b"", b"short", bytes(64)])
def test_a_damaged_key_of_the_noise_is_refused(tmp_path, kept):
    """From no key the noise would follow from the sums alone: whoever guesses them could take it off."""
    first = joint_sessions(parties(), folder=tmp_path)
    grow_together(Recorder(first), **STUDY)
    key = tmp_path / "p1" / "noise.key"
    key.write_bytes(kept)
    with pytest.raises(FileError, match=r"noise\.key is damaged.*Start a new training"):
        grow_together(Recorder(joint_sessions(parties(), folder=tmp_path)), **STUDY)
    key.write_bytes(bytes(32))
    key.chmod(0o644)
    with pytest.raises(FileError, match="Other users of this machine can read"):
        grow_together(Recorder(joint_sessions(parties(), folder=tmp_path)), **STUDY)


def test_no_more_steps_are_sent_than_epsilon_was_counted_for():
    _, sessions, _ = trained()
    exit_ = sessions[0].sealing
    with pytest.raises(PrivacyError, match="more than epsilon was counted for"):
        exit_.noisy_together([np.zeros(4, np.uint64)], 5, b"")


# --- what must be declared -------------------------------------------------------------------------------------------

TABLE = rows(60, 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rows": None}, "set rows to about as many"),
        ({"validation_fraction": 0.2}, "validation_fraction=0.2 is not available: with epsilon no metrics"),
        ({"early_stopping_rounds": 3}, "early_stopping_rounds=3 is not available"),
        ({"subsample": 0.5}, "every row counts in every tree"),
        ({"min_group": 5}, "min_group=5 is not available: with epsilon trees are drawn at random"),
        ({"objective": "reg:squarederror"}, "gradients with a bound"),
        ({"objective": "multi:softprob"}, r"set classes = \[...\]"),
        ({"classes": [1, 1]}, "give two different ones"),
        ({"colluding": 3, "masked": True}, "with 3 parties at most 2"),
        ({"colluding": 1}, "which needs masks"),
        ({"max_depth": 40}, "more sums than epsilon was counted for"),
        ({"epsilon": 1e-4, "n_trees": 600}, "epsilon leaves too little for 600 trees"),
        ({"epsilon": None}, "is a parameter of recipe='joint' with epsilon only"),
    ],
)
def test_what_would_tell_something_is_refused(given, said):
    with pytest.raises(ParameterError, match=said):
        simfl.train(parties(), **STUDY | given)


def test_a_column_without_a_range_is_refused_by_name():
    some = Schema.from_toml({"x0": {"low": -3, "high": 3}, "x1": "boolean", "x2": "number"})
    party = simfl.Party("north", np.c_[TABLE[0][:, 0], TABLE[1], TABLE[0][:, 2]], TABLE[1], schema=some)
    with pytest.raises(
        DataError, match=r"'north' has the column 'x2' without a range.*x2 = \{ low = ..., high = ... \}"
    ):
        simfl.train([party], **STUDY)


def test_a_frame_that_suggests_its_own_levels_is_refused():
    frame = pd.DataFrame({"ward": ["a", "b"] * 30})
    with pytest.raises(DataError, match="nobody has declared"):
        simfl.train([simfl.Party("north", frame, TABLE[1])], **STUDY)


def test_rows_that_were_read_through_a_schema_of_their_own_are_refused():
    frame = pd.DataFrame({"ward": ["a", "b"] * 30})
    read = simfl.Party("north", frame, TABLE[1])
    with pytest.raises(DataError, match="nobody has declared"):
        simfl.train([read.part("north", np.arange(60))], **STUDY)


def test_a_preparation_that_has_counted_and_an_earlier_model_are_refused():
    ready = simfl.prepare(parties(), recipe="joint")
    with pytest.raises(ParameterError, match="prepared without epsilon"):
        simfl.train(ready, **{k: v for k, v in STUDY.items() if k != "recipe"})
    with pytest.raises(ParameterError, match="begins from nothing"):
        simfl.train(parties(), init_model=simfl.train(parties(), **STUDY), **STUDY)


def test_a_heavy_row_has_no_more_than_others():
    X, y = TABLE
    weight = np.where(np.arange(60) == 7, 1e6, 1.0)
    _, sessions, _ = trained([simfl.Party("p0", X, y, sample_weight=weight, schema=SCHEMA)])
    left = sessions[0].together.machine._filter.left
    assert (left >= 0).all()
    assert left[7] < 0.01 * sessions[0].together.machine.budget.longest ** 2


def test_other_classes_are_refused():
    X, y = TABLE
    with pytest.raises(DataError, match="class"):
        simfl.train([simfl.Party("north", X, y + 5, schema=SCHEMA)], **STUDY)


# --- persons ---------------------------------------------------------------------------------------------------------


def test_rows_of_a_person_beyond_the_limit_are_left_out():
    X, y = TABLE
    person = np.repeat(np.arange(12), 5)
    limited = {"max_rows_per_person": 2}
    _, sessions, model = trained([simfl.Party("p0", X, y, schema=SCHEMA, person=person)], **limited)
    machine = sessions[0].together.machine
    kept = np.arange(60) % 5 < 2
    assert np.array_equal(machine.mine.rows.X, X[kept])
    _, others, _ = trained([simfl.Party("p0", X[kept], y[kept], schema=SCHEMA)])
    assert machine.budget.longest == pytest.approx(others[0].together.machine.budget.longest / 2)
    assert "all rows of any one person (at most 2 at the party)" in model.guarantee


def test_a_party_that_does_not_know_whose_rows_it_has_is_refused():
    with pytest.raises(DataError, match=r"person = \"patient\""):
        simfl.train(parties(), **STUDY, max_rows_per_person=1)


# --- it learns -------------------------------------------------------------------------------------------------------


def test_categories_booleans_missing_values_and_several_classes():
    rng = np.random.default_rng(0)
    n = 3000
    frame = pd.DataFrame(
        {"age": rng.normal(50, 10, n), "ward": rng.choice(list("abcd"), n), "smoker": rng.random(n) < 0.5}
    )
    label = np.where(frame.ward.isin(["a", "c"]), np.where(frame.smoker, "ill", "fair"), "well")
    frame.loc[rng.random(n) < 0.1, "age"] = np.nan
    schema = Schema.from_toml({"age": {"cuts": [30, 40, 50, 60]}, "ward": list("abcd"), "smoker": "boolean"})
    members = [simfl.Party(f"p{i}", frame[i::3], label[i::3], schema=schema) for i in range(3)]
    study = {"recipe": "joint", "epsilon": 8.0, "rows": n, "classes": ["fair", "ill", "well"], "random_state": 0}
    model = simfl.train(members, objective="multi:softprob", masked=True, **study)
    assert (model.predict(frame) == label).mean() > 0.9


def test_more_epsilon_learns_more():
    X, y = rows(4000, 0)
    members = [simfl.Party(f"p{i}", X[i::2], y[i::2], schema=SCHEMA) for i in range(2)]
    held, truth = rows(4000, 9)
    study = {"recipe": "joint", "rows": 4000, "random_state": 1}
    share = [(simfl.train(members, epsilon=e, **study).predict(held) == truth).mean() for e in (0.02, 8.0)]
    assert share[1] > max(share[0], 0.7)
