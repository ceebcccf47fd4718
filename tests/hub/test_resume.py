"""A training that was interrupted ends with the same model; one that lost a party goes on without it."""

import random
from functools import cache
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

import simfl
from simfl import hub
from simfl import messages as msg
from simfl import model as models
from simfl.errors import DataError, FileError, PartyLost
from simfl.hub.joint import BeganTogether, JointEntry, open_joint_journal
from simfl.hub.journal import Began, Entry, Grew, Rematched, open_journal
from simfl.params import prepare_params, train_params
from simfl.storage import Journal
from simfl.training.losses import in_xgboost
from tests import unsafe
from tests.unsafe import Killed
from tests.wire import bits, metrics, sessions, train, under_training

PARAMS = {"n_trees": 14, "max_depth": 3, "random_state": 3, "rematch": 4}
TARGETS = {
    "binary:logistic": lambda X: (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int),
    "multi:softprob": lambda X: np.digitize(X[:, 0], [-0.5, 0.5]),
    "reg:squarederror": lambda X: X[:, 0] * 3 + X[:, 1] ** 2,
}


def members(objective="binary:logistic", sizes=(60, 50, 40)):
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=(n, 5)).astype(np.float32) for n in sizes]
    return [simfl.Party(f"p{i}", X, TARGETS[objective](X)) for i, X in enumerate(tables)]


class Unsafe(unsafe.Unsafe):
    """Between machines parties keep the secret beside their similar rows."""

    def __init__(self, parties, kill_after=10**9, folder=None):
        super().__init__(sessions(parties, secret=3, folder=folder), kill_after)


def run(transport, journal=None, **params):
    """What the hub's end does: both stages, the second from where the journal ends."""
    return train(transport, journal, **PARAMS | params)


@cache
def whole(case="similar"):
    """A training that nothing interrupts."""
    params = CASES[case]
    return run(Unsafe(members(params.get("objective", "binary:logistic"))), **params)


CASES = {
    "similar": {},
    "paper": {"recipe": "paper"},
    "subsample": {"subsample": 0.7, "colsample_bytree": 0.6},
    "early stopping": {"validation_fraction": 0.3, "early_stopping_rounds": 2, "n_trees": 40, "learning_rate": 0.9},
    "classes": {"objective": "multi:softprob", "n_trees": 9},
    "numbers": {"objective": "reg:squarederror"},
}


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "searched again"])
@pytest.mark.parametrize("case", CASES)
def test_a_training_killed_again_and_again_ends_with_the_same_model(case, kept, tmp_path):
    params = CASES[case]
    people = members(params.get("objective", "binary:logistic"))
    moments = random.Random(case)
    kills = 0
    while kills < 30:
        transport = Unsafe(people, kill_after=moments.randint(8, 40), folder=tmp_path if kept else None)
        journal = open_journal(tmp_path / "journal")
        try:
            training = run(transport, journal, **params)
            break
        except Killed:
            journal._file.close()  # as it is when nobody closes it
            kills += 1
    assert 0 < kills < 30
    assert bits(training) == bits(whole(case))
    assert metrics(training) == metrics(whole(case))


def test_a_journal_changes_nothing(tmp_path):
    assert bits(run(Unsafe(members()), open_journal(tmp_path / "journal"))) == bits(whole())


def test_a_lost_party_ends_a_training_that_needs_all():
    transport = Unsafe(members())
    transport.cut_off = {"p1": (20, 10**6)}
    with pytest.raises(PartyLost, match="'p1'"):
        run(transport)


def test_the_others_go_on_without_a_lost_party_and_it_comes_back():
    transport, journal = Unsafe(members()), open_journal()
    transport.cut_off = {"p1": (24, 40)}
    training = run(transport, journal, min_parties=2, n_trees=20)
    missed = training.missed["p1"]
    assert list(training.missed) == ["p1"]
    assert missed == list(range(missed[0], missed[-1] + 1))  # one gap
    assert missed[0] > 0
    assert missed[-1] < len(training.rounds) - 1
    assert [r.round for r in training.history if "p1" in r.absent] == missed
    builders = [r.builder for r in training.history]
    assert all(builders[number] != "p1" for number in missed)
    assert "p1" in builders[missed[-1] + 1 :]
    assert len(training.rounds) == 20


def test_who_comes_back_has_the_margins_of_the_others_model():
    transport, journal = Unsafe(members()), open_journal()
    transport.cut_off = {"p1": (24, 40)}
    kept = {}

    class Look(simfl.Callback):
        def after_tree(self, record):
            running = under_training(transport.handlers["p1"])
            if running is not None:  # it ends with the last tree
                kept[record.round] = running.train.margin.copy()

    training = run(transport, journal, callbacks=[Look()], min_parties=2, n_trees=20)
    party = members()[1]
    last = max(kept)
    assert "p1" not in training.history[last].absent
    about = models.About(classes=[0, 1], history=[], traffic={})
    model = models.build(training.rounds[: last + 1], training.labels.base_score, in_xgboost(training.params), 5, about)
    assert np.allclose(model.margins(party.rows.X), kept[last][:, 0], atol=1e-5)


def test_similar_rows_are_found_again_when_somebody_is_back():
    transport, journal = Unsafe(members()), open_journal()
    transport.cut_off = {"p1": (26, 42)}
    run(transport, journal, min_parties=2, n_trees=20)
    rematches = [entry.parties for entry in journal.entries if isinstance(entry, Rematched)]
    assert ["p0", "p2"] in rematches
    assert rematches[-1] == ["p0", "p1", "p2"]


def test_too_few_parties_stop_cleanly_and_the_trees_are_kept(tmp_path):
    transport = Unsafe(members())
    transport.cut_off = {"p1": (24, 10**6), "p2": (38, 10**6)}
    journal = open_journal(tmp_path / "journal")
    with pytest.raises(PartyLost, match="'p2'"):
        run(transport, journal, min_parties=2)
    n = len([e for e in journal.entries if isinstance(e, Grew)])
    assert n > 3
    journal.close()
    training = run(Unsafe(members()), open_journal(tmp_path / "journal"), min_parties=2)  # all are back
    assert len(training.rounds) == PARAMS["n_trees"]


def test_a_stopped_training_whose_party_returns_gives_the_same_model(tmp_path):
    transport = Unsafe(members())
    transport.cut_off = {"p1": (25, 10**6)}
    with pytest.raises(PartyLost):
        run(transport, open_journal(tmp_path / "journal"))
    assert bits(run(Unsafe(members()), open_journal(tmp_path / "journal"))) == bits(whole())


def test_a_party_whose_labels_changed_is_not_resumed(tmp_path):
    transport = Unsafe(members(), kill_after=30)
    with pytest.raises(Killed):
        run(transport, open_journal(tmp_path / "journal"))
    people = members()
    people[0].rows.y[:5] ^= 1
    with pytest.raises(DataError, match="without --resume"):
        run(Unsafe(people), open_journal(tmp_path / "journal"))


def test_kept_similar_rows_of_another_table_are_refused(tmp_path):
    run(Unsafe(members(), folder=tmp_path), n_trees=1)
    people = members()
    people[0].rows.X[0, 0] += 1
    party = sessions(people, folder=tmp_path)[0]
    party.handle(msg.Describe(version=msg.VERSION, validation_fraction=0.0, seed=3))
    with pytest.raises(OSError, match="is not the one"):
        party.handle(msg.Recall(round=0))


class Rejoining(Unsafe):
    """p2 is lost in round 1; p1 is lost in the round of a rematch; then both return at once."""

    step = 0

    def ask_all(self, messages):
        question = next(iter(messages.values()), None)  # a builder that is alone asks nobody
        if isinstance(question, msg.SumOntoRows):
            for step, number, lost in ((0, 1, "p2"), (1, 2, "p1")):
                if self.step == step and question.round >= number:
                    self.step += 1
                    raise PartyLost([lost], "cut off.")
        return super().ask_all(messages)

    def returned(self):
        return ["p1", "p2"] if self.step == 2 and self.parties == ["p0"] else []


def test_parties_that_return_in_the_round_of_a_rematch_are_matched_again():
    transport, journal = Rejoining(members(sizes=(24, 20, 18))), open_journal()
    training = run(transport, journal, min_parties=1, n_trees=8, max_depth=2, rematch=2)
    assert len(training.rounds) == 8
    assert [entry.parties for entry in journal.of(Rematched)][-1] == ["p0", "p1", "p2"]


@pytest.mark.parametrize("present", [["p0", "p1", "p2"], ["p0", "p1"]])
def test_changed_parameters_are_noticed_also_when_a_party_is_absent(present, tmp_path):
    people = members()
    transport = Unsafe(people, folder=tmp_path)
    prepared = hub.prepare(transport, train_params(**PARAMS))
    transport.left = 20
    with pytest.raises(Killed):
        hub.train(transport, prepared, train_params(**PARAMS), recovery=recovery(tmp_path))
    again = Unsafe(people, folder=tmp_path)
    hub.describe(again, prepared.params, prepared.seed, prepared.schema)
    assert hub.recall(again, again.parties, 0)
    again.parties, again.cut_off = present, {"p2": (0, 10**6)} if len(present) == 2 else {}
    changed = train_params(**PARAMS | {"learning_rate": 0.9, "max_depth": 2})
    with pytest.raises(DataError, match=r"other parameters \(learning_rate, max_depth\)|max_depth, learning_rate"):
        hub.train(again, prepared, changed, recovery=recovery(tmp_path))


@pytest.mark.parametrize(
    ("kind", "beginning", "opened"), [(Entry, Began, open_journal), (JointEntry, BeganTogether, open_joint_journal)]
)
@pytest.mark.parametrize("other", [msg.VERSION - 1, msg.VERSION + 1])
def test_a_training_that_another_protocol_began_is_not_resumed(kind, beginning, opened, other, tmp_path):
    known = {"params": train_params(), "classes": [0, 1], "seed": 0, "base_score": [0.5], "protocol": other}
    journal = Journal(kind, tmp_path / "journal")
    journal.append(beginning(**{n: value for n, value in known.items() if n in beginning.__struct_fields__}))
    journal.close()
    data = (tmp_path / "journal").read_bytes()
    with pytest.raises(
        FileError, match=rf"begun with version {other} of the protocol, and this is version {msg.VERSION}: .*new"
    ):
        opened(tmp_path / "journal")
    assert (tmp_path / "journal").read_bytes() == data


def test_the_journal_says_which_protocol_began_it(tmp_path):
    run(Unsafe(members()), open_journal(tmp_path / "journal"), n_trees=1)
    [began] = open_journal(tmp_path / "journal").of(Began)
    assert began.protocol == msg.VERSION


def recovery(folder):
    return hub.Recovery(open_journal(folder / "journal"), min_parties=2)


def test_levels_that_only_an_absent_party_has_keep_their_numbers(tmp_path):
    def party(name, levels, seed):
        rng = np.random.default_rng(seed)
        ward = rng.choice(levels, 60)
        return simfl.Party(name, pd.DataFrame({"ward": ward, "x": rng.normal(size=60)}), np.isin(ward, ["b", "d"]) * 1)

    people = [party("p0", ["b", "c"], 1), party("p1", ["a", "b", "d"], 2), party("p2", ["c", "d"], 3)]
    params, later = prepare_params(n_neighbors=0, random_state=0), train_params(n_trees=8, max_depth=3, random_state=0)
    transport = Unsafe(people)
    prepared = hub.prepare(transport, params)
    transport.left = 22
    with pytest.raises(Killed):
        hub.train(transport, prepared, later, recovery=recovery(tmp_path))
    again = Unsafe([people[0], people[2]])
    hub.describe(again, params, prepared.seed, prepared.schema)
    training = hub.train(again, prepared, later, recovery=recovery(tmp_path))
    losses = [record.train["logloss"] for record in training.history]
    assert all(after < before for before, after in pairwise(losses))
    levels = {session.split.schema.columns[0].levels for session in again.handlers.values()}
    assert levels == {("a", "b", "c", "d")}
