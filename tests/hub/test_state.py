"""The state of a training is what its journal says, entry by entry."""

import numpy as np
import pytest

from simfl import wire
from simfl.callbacks import TreeRecord
from simfl.errors import FileError
from simfl.hub.journal import Began, Grew, Rematched, Scored, Stopped, open_journal
from simfl.hub.state import Events, State
from simfl.messages import VERSION
from simfl.params import train_params
from simfl.training.trees import Tree, children
from simfl.transport.base import Traffic


def stump(value):
    feature = np.array([0, -1, -1], dtype=np.int32)
    values = np.array([0, -value, value], dtype=np.float32)
    return Tree(feature, np.zeros(3, np.float32), np.zeros(3, bool), children(feature), values)


def grew(number, *absent, builder="a"):
    trees = [wire.adopted(stump(number + 1.0))]
    return Grew(
        round=number, turn=2 * number, builder=builder, absent=list(absent), gains=[1.0], adopted=trees, trees=trees
    )


def scored(number, value=0.5, *absent):
    facts = {"validation": {"logloss": value}, "bytes": 1, "seconds": 0.1, "absent": list(absent)}
    return Scored(record=TreeRecord(round=number, builder="a", train={}, **facts))


def began(**params):
    return Began(params=train_params(**params), seed=1, classes=[0, 1], base_score=[0.5], protocol=VERSION)


def state_after(*entries):
    state = State(n_features=1)
    for entry in entries:
        state.apply(entry)
    return state


def test_a_round_brings_trees_gains_and_the_next_turn():
    state = state_after(began(), grew(0), scored(0), grew(1))
    assert [trees[0].value.tolist() for trees in state.rounds] == [[0, -1, 1], [0, -2, 2]]
    assert state.next_turn == 3
    assert len(state.history) == 1
    assert np.sum(state.gains) == 2
    assert state.moved == 3  # by one and by two


def test_the_rounds_that_a_party_missed_are_listed():
    assert state_after(grew(0), grew(1, "b"), scored(0), grew(2, "b", "c")).missed == {"b": [1, 2], "c": [2]}


def test_early_stopping_follows_from_the_scores():
    entries = [began(early_stopping_rounds=2)]
    for number, value in enumerate((0.6, 0.4, 0.5, 0.45)):
        entries += [grew(number), scored(number, value)]
    assert not state_after(*entries[:-2]).stopped
    state = state_after(*entries)
    assert state.stopped
    assert state.best_round == 1


def test_a_loss_without_a_partys_rows_is_not_compared_with_one_over_all():
    entries = [began(early_stopping_rounds=2)]
    for number, value in enumerate((0.3, 0.6, 0.5, 0.4)):  # worse without b, and falling
        absent = ["b"] if number else []
        entries += [grew(number, *absent), scored(number, value, *absent)]
    state = state_after(*entries)
    assert not state.stopped
    assert state.best_round == 3


def test_a_callbacks_stop_is_an_event():
    assert state_after(began(), Stopped()).stopped


def test_the_last_rematch_counts():
    one, two = (Rematched(round=n, parties=["a"], most_uses={"a": n}) for n in (2, 4))
    assert state_after(one, two).matched == two


@pytest.mark.parametrize(
    "entries",
    [[grew(0), grew(0)], [grew(1)], [grew(0), scored(0), scored(0)], [scored(1)], [began(), began()]],
    ids=["a round twice", "a round is missing", "a score twice", "a score is missing", "two beginnings"],
)
def test_an_entry_that_is_out_of_order_is_refused(entries):
    with pytest.raises(FileError, match="not in order"):
        state_after(*entries)


def test_live_and_replayed_lead_to_the_same_state(tmp_path):
    live = State(n_features=1)
    events = Events(open_journal(tmp_path / "journal"), live, [], Traffic())
    for entry in (began(early_stopping_rounds=3), grew(0), grew(1, "b")):
        events.record(entry)
    events.score({"logloss": 0.4}, {"logloss": 0.3})
    events.journal.close()
    replayed = State(n_features=1)
    Events(open_journal(tmp_path / "journal"), replayed, [], Traffic())
    for name in ("began", "history", "last", "matched", "best_round", "stopped", "missed"):
        assert getattr(live, name) == getattr(replayed, name)
    for mine, theirs in zip(live.rounds, replayed.rounds, strict=True):
        assert mine[0].value.tobytes() == theirs[0].value.tobytes()
