"""Masked trainings: the same model to the last bit, and nothing but random numbers at the hub."""

import numpy as np
import pytest
from scipy import stats

import simfl
from simfl import hub, wire
from simfl import messages as msg
from simfl.errors import PrivacyError
from simfl.params import prepare_params, train_params
from tests.wire import Between, Recorder, bits, metrics, model_bits, recorded, sessions, train

TARGETS = {
    "binary:logistic": lambda X: (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int),
    "multi:softprob": lambda X: np.digitize(X[:, 0], [-0.7, 0.1, 0.9]),
    "reg:squarederror": lambda X: 1e4 * X[:, 0] + X[:, 1] ** 2,
}


def parties(*sizes, objective="binary:logistic", d=6):
    members = []
    for i, n in enumerate(sizes):
        X = (np.random.default_rng(i).normal(size=(n, d)) * 10.0 ** np.arange(-3, d - 3)).astype(np.float32)
        members.append(simfl.Party(f"p{i}", X, TARGETS[objective](X / 10.0 ** np.arange(-3, d - 3))))
    return members


def run(members, masked=True, **more):
    seen = recorded(members, secret=0)
    rematch = 0 if more.get("recipe") == "paper" else 3
    params = {"n_trees": 6, "max_depth": 3, "rematch": rematch, "random_state": 0} | more
    return seen, train(seen, masked=masked, **params)


@pytest.mark.parametrize("objective", TARGETS)
@pytest.mark.parametrize("more", [{}, {"recipe": "paper"}, {"validation_fraction": 0.2}])
def test_masks_change_no_bit_of_the_model_nor_of_the_metrics(objective, more):
    members = parties(70, 50, 60, objective=objective)
    one, other = (run(members, masked, objective=objective, **more)[1] for masked in (True, False))
    assert bits(one) == bits(other)
    assert metrics(one) == metrics(other)
    assert all(record.train for record in one.history)


def test_two_parties_can_mask_too():
    members = parties(70, 50)
    assert bits(run(members, True)[1]) == bits(run(members, False)[1])


def test_masks_are_switched_on_by_one_parameter():
    members = parties(60, 50, 40)
    model = simfl.train(members, masked=True, n_trees=4, random_state=0)
    plain = simfl.train(members, n_trees=4, random_state=0)
    assert model_bits(model) == model_bits(plain)
    assert "LabelSums" in model.traffic["p0"]["sent"]
    ready = simfl.prepare(members, masked=True, random_state=0)
    assert model_bits(simfl.train(ready, n_trees=4)) == model_bits(plain)


# --- what the hub sees -----------------------------------------------------------------------------------------------


def vectors(seen):
    """All numbers that parties summed, as words, by kind; also the totals that go to a builder."""
    found = {}
    for _, message, reply in seen.log:
        if isinstance(reply, msg.RowSums):
            found.setdefault("rows", []).append(reply.sums)
        if isinstance(message, msg.Grow):
            found.setdefault("to the builder", []).append(message.sums)
        if isinstance(reply, msg.LeafSums):
            found.setdefault("leaves", []).extend([*reply.gradients, *reply.hessians])
        if isinstance(reply, msg.FeatureSums):
            found.setdefault("features", []).append(reply.sums)
        if isinstance(reply, msg.LabelSums):
            found.setdefault("labels", []).append(reply.sums)
        scores = getattr(reply, "scores", None)
        if scores is not None:
            found.setdefault("scores", []).append(scores)
    return {kind: np.frombuffer(b"".join(a.data for a in arrays), dtype=np.uint16) for kind, arrays in found.items()}


@pytest.mark.parametrize("sizes", [(300, 200, 250), (300, 250)])
def test_every_masked_number_that_the_hub_sees_is_uniform_and_differs_between_runs(sizes):
    members = parties(*sizes)
    one, other = (vectors(run(members)[0]) for _ in range(2))
    assert set(one) == {"rows", "to the builder", "leaves", "features", "labels", "scores"}
    for kind, words in one.items():
        assert stats.kstest((words + 0.5) / 2.0**16, "uniform").pvalue > 1e-5, kind
        assert (words[: len(other[kind])] == other[kind][: len(words)]).mean() < 0.05, kind
    plain = vectors_unmasked(run(members, masked=False)[0])
    assert stats.kstest((plain + 0.5) / 2.0**16, "uniform").pvalue < 1e-5  # the test can tell


def vectors_unmasked(seen):
    arrays = [r.sums for _, _, r in seen.log if isinstance(r, msg.RowSums)]
    return np.frombuffer(b"".join(a.data for a in arrays), dtype=np.uint16)


def test_masks_cost_no_bytes_where_the_rows_are():
    members = parties(300, 200, 250)
    masked, plain = (run(members, masked)[0] for masked in (True, False))

    def size(seen, kind):
        return sum(len(wire.encode(r)) for _, _, r in seen.log if isinstance(r, kind))

    assert size(masked, msg.LeafSums) == size(plain, msg.LeafSums)
    replies = sum(isinstance(r, msg.RowSums) for _, _, r in masked.log)
    assert size(masked, msg.RowSums) - size(plain, msg.RowSums) < 450 * replies  # the metrics: six wide numbers


def test_the_builder_gets_only_the_total_of_the_others():
    members = parties(60, 50, 40)
    seen, _ = run(members, matching="shared")  # sums stand in the order of the rows
    plain, _ = run(members, masked=False, matching="shared")
    exponents = next(m.exponents for _, m, _ in seen.log if isinstance(m, msg.SumOntoRows))
    assert exponents == next(m.exponents for _, m, _ in plain.log if isinstance(m, msg.SumOntoRows))
    sent, truth = (
        [wire.unpack(r.sums, "u3", (60, 1)) for _, _, r in w.log if isinstance(r, msg.RowSums) and r.round == 0]
        for w in (seen, plain)
    )
    assert all(word < 2**24 for word in (*sent[0], *truth[0]))
    for hidden in sent:  # its masks with the builder and with the third party are both in it
        assert not any((hidden == t).mean() > 0.1 for t in truth)
    both, true = (sum(words) % 2**24 for words in (sent, truth))
    assert (both == true).mean() < 0.1  # the builder's own masks are still to be undone


# --- a party that drops out ------------------------------------------------------------------------------------------


def test_a_step_is_redone_among_those_present_with_new_masks():
    members, moments = parties(60, 50, 40), iter([True])

    def lost_once(message):
        if isinstance(message, msg.SumPerLeaf) and message.round == 2 and next(moments, False):
            raise ConnectionError("p2 is gone")
        return message

    *others, last = sessions(members, secret=0)
    seen = Recorder([*others, Between(last, question=lost_once)])
    prepared = hub.prepare(seen, prepare_params(random_state=0, masked=True))
    params = train_params(n_trees=6, max_depth=3, masked=True, rematch=0)
    with pytest.raises(ConnectionError):
        hub.train(seen, prepared, params)
    first = [r for _, _, r in seen.log if isinstance(r, msg.LeafSums)]
    seen.log.clear()
    again = hub.train(seen, prepared, params)
    second = [r for _, _, r in seen.log if isinstance(r, msg.LeafSums)]
    assert first[0].gradients[0].data != second[0].gradients[0].data  # the same sums under new masks
    assert bits(again) == bits(run(members, masked=False, rematch=0)[1])
    seen.parties = ["p0", "p1"]  # the third does not come back
    prepared = hub.prepare(seen, prepare_params(random_state=0, masked=True))
    assert len(hub.train(seen, prepared, params).rounds) == 6


# --- what a party refuses --------------------------------------------------------------------------------------------


def test_a_party_never_sums_alone_nor_twice():
    party = run(parties(60, 50))[0].handlers["p0"]
    with pytest.raises(PrivacyError, match="over exactly those who exchanged keys"):
        party.handle(msg.SumFeatures(mask=msg.Masking(step=99, parties=["p0"])))
    party.handle(msg.SumFeatures(mask=msg.Masking(step=99, parties=["p0", "p1"])))
    with pytest.raises(PrivacyError, match="same masks twice"):
        party.handle(msg.SumFeatures(mask=msg.Masking(step=99, parties=["p0", "p1"])))
