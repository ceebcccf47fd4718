from itertools import islice

from simfl.training.schedule import everybody, proportional, round_robin


def test_round_robin_gives_each_its_turn():
    assert list(islice(round_robin([5, 1, 9]), 4)) == [[0], [1], [2], [0]]


def test_turns_follow_the_rows():
    turns = [builder for (builder,) in islice(proportional([600, 300, 100]), 1000)]
    assert [turns.count(i) for i in range(3)] == [600, 300, 100]
    assert turns[:10].count(0) in (5, 6)


def test_a_tiny_party_gets_its_turn_too():
    assert [1] in islice(proportional([999, 1]), 1000)


def test_all_at_once():
    assert list(islice(everybody([5, 1, 9]), 2)) == [[0, 1, 2], [0, 1, 2]]
