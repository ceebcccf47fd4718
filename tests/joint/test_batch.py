"""Readers that lie: every false announcement is refused by everybody else, and the error names the rule."""

import copy

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simfl.errors import ProtocolError
from simfl.joint import decisions, setting
from simfl.joint.grown import grown_tree
from simfl.joint.level import MISSING
from simfl.training.trees import LEAF
from tests.joint.machines import cut_points, divided, growing_on, joint, labels, step, table, total_of, until

LEVELS = [0, 5, 0, 0]  # the second column is a category


@pytest.fixture(autouse=True, scope="module")
def little_noise():
    """On counts: what is tested here is not about them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simfl.joint.setting.COUNT_EPSILON", 0.5)
        yield


@pytest.fixture(scope="module")
def parties():
    """Two parties in the middle of a batch: numbers, missing values and a category."""
    return started()


def started(**given):
    X = table(600, 4, missing=0.1)
    X[:, 1] = np.random.default_rng(0).integers(0, 5, 600)
    X[::9, 1] = np.nan
    y = (labels(X[:, [0, 2, 3]]) + np.isin(X[:, 1], [1, 4]) > 0.5).astype(np.float32)
    params = {"n_trees": 4, "learning_rate": 0.4, "max_depth": 3, "min_group": 10}
    params = joint(**params | given)
    cuts = cut_points(X, levels=LEVELS)
    return growing_on(cuts, params, divided(X, y, 2), [0.5])


@pytest.fixture
def middle(parties):
    """Both parties, who wait for the splits of level 1, and what the reader found."""
    return at(parties, "level 1, sums")


@pytest.fixture
def end(parties):
    """Both parties, who wait for the last splits and the finished trees."""
    return at(parties, "level 4, sums")


def at(parties, words, batch=2):
    """In the first batch of two trees, if nothing else is said."""
    mine = copy.deepcopy(parties)
    until(mine, f"batch {batch}, {words}")
    reader = mine[0].reader
    decision = decisions.decode(mine[reader].read(total_of(mine)))
    return mine[1 - reader], decision


def arrays(decision):
    """The parts of a decision, to be changed."""
    kinds = {"slot": "<i4", "left": "<u8", "n_cuts": "<u2", "runners_up": "<i4"}
    return {name: np.frombuffer(getattr(decision, name), kind).copy() for name, kind in kinds.items()}


def first_split(found):
    return int(np.flatnonzero(found["slot"] >= 0)[0])


def changed(decision, **parts):
    raw = {name: part.tobytes() if isinstance(part, np.ndarray) else part for name, part in parts.items()}
    return decisions.encode(msgspec.structs.replace(decision, **raw))


def cuts_of(cell_of_bin):
    return np.flatnonzero(np.diff(cell_of_bin)).tolist()


def refuses(party, decision, rule):
    with pytest.raises(ProtocolError, match=rule):
        copy.deepcopy(party).apply(decision)


def test_the_truth_is_not_refused(middle, end):
    for party, decision in (middle, end):
        copy.deepcopy(party).apply(decisions.encode(decision))


# --- splits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", ["another node's", "none at all", "beyond the last", "far below"])
def test_a_split_that_was_not_asked_about(middle, slot):
    party, decision = middle
    level, found = party._batch.level, arrays(decision)
    node = first_split(found)
    other = {
        "another node's": level.slot_start[node + 1],
        "beyond the last": len(level.feature),
        "none at all": -2,
        "far below": -(2**31),
    }[slot]
    found["slot"][node] = other
    if other < 0:  # nothing is asked about its children
        found["n_cuts"], found["runners_up"] = found["n_cuts"][2:], found["runners_up"][4:]
    refuses(party, changed(decision, **found), "not asked about in its node")


@pytest.mark.parametrize("left", ["nothing", "everything", "a cell too many"])
def test_a_split_that_sends_all_rows_to_one_side(middle, left):
    party, decision = middle
    found, level = arrays(decision), party._batch.level
    node = first_split(found)
    full = 2 ** int(np.diff(level.cell_start)[found["slot"][node]]) - 1
    found["left"][node] = {"nothing": 0, "everything": full, "a cell too many": 1 | (full + 1)}[left]
    refuses(party, changed(decision, **found), "all rows to one side")


def test_cells_that_go_left_in_a_node_that_is_not_split(middle):
    party, decision = middle
    found = arrays(decision)
    found["slot"][first_split(found)] = -1
    found["n_cuts"], found["runners_up"] = found["n_cuts"][2:], found["runners_up"][4:]
    refuses(party, changed(decision, **found), "all rows to one side")


def test_numbers_that_are_not_divided_by_a_cut(middle):
    party, decision = middle
    found, level = arrays(decision), party._batch.level
    of_numbers = [j != 1 for j in level.feature]
    ordered = [len(np.unique(own[:MISSING])) for own in level.cell_of_bin]
    node = np.repeat(np.arange(level.n_nodes), np.diff(level.slot_start))
    s = next(s for s in range(len(ordered)) if of_numbers[s] and ordered[s] >= 3 and found["slot"][node[s]] >= 0)
    found["slot"][node[s]], found["left"][node[s]] = s, 0b010
    refuses(party, changed(decision, **found), "not a cut")


def test_a_category_without_a_level_that_goes_right(middle):
    """XGBoost could not read such a model."""
    party, decision = middle
    found, level = arrays(decision), party._batch.level
    node = np.repeat(np.arange(level.n_nodes), np.diff(level.slot_start))
    own = [s for s in np.flatnonzero(level.feature == 1) if found["slot"][node[s]] >= 0]
    own = [s for s in own if level.cell_of_bin[s, MISSING] not in level.cell_of_bin[s, :5]]
    found["slot"][node[own[0]]] = own[0]
    found["left"][node[own[0]]] = np.bitwise_or.reduce(1 << level.cell_of_bin[own[0], :5].astype(np.uint64))
    refuses(party, changed(decision, **found), "no level goes right")


# --- what is asked next ----------------------------------------------------------------------------------------------


def test_more_open_nodes_than_the_study_allows(monkeypatch):
    monkeypatch.setattr(setting, "MANY_NODES", 1)
    party, decision = at(started(), "level 0, sums")
    n_cuts = arrays(decision)["n_cuts"]
    assert (n_cuts > 0).sum() == 2  # one in each tree
    n_cuts[:] = 4
    refuses(party, changed(decision, n_cuts=n_cuts), "more open nodes")


def test_a_level_deeper_than_the_study_allows(end):
    party, decision = end
    n_cuts = arrays(decision)["n_cuts"]
    assert not n_cuts.any()
    assert len(n_cuts)
    n_cuts[0] = 4
    refuses(party, changed(decision, n_cuts=n_cuts), "more open nodes")


def test_more_cuts_of_a_node_than_the_study_allows(middle):
    party, decision = middle
    found = arrays(decision)
    found["n_cuts"][0] = party.setting.most_cuts + 1
    refuses(party, changed(decision, **found), "more cuts of a node")


@pytest.mark.parametrize("column", [-7, 1, 4, 2**31 - 1])
@pytest.mark.parametrize("cut", [-1, 254, 255, 2**31 - 1])
def test_a_runner_up_that_was_not_asked_about(middle, column, cut):
    party, decision = middle
    found, level = arrays(decision), party._batch.level
    if column == 1 and cut == 254:  # the last cut of all: of a node that was not asked about it
        asked = {(int(j), b) for j, t in zip(level.feature, level.cell_of_bin, strict=True) for b in cuts_of(t)}
        cut = next(b for b in range(254) if (1, b) not in asked)
    found["runners_up"][:2] = column, cut
    refuses(party, changed(decision, **found), "runner-up that was not asked about")


def test_a_runner_up_of_a_column_that_was_asked_about_elsewhere(middle):
    """Else the reader would choose a question, which nobody may do alone."""
    party, decision = middle
    found, level = arrays(decision), party._batch.level
    node = first_split(found)
    own = slice(level.slot_start[node], level.slot_start[node + 1])
    asked = {(j, b) for j, t in zip(level.feature[own], level.cell_of_bin[own], strict=True) for b in cuts_of(t)}
    anywhere = {(j, b) for j, t in zip(level.feature, level.cell_of_bin, strict=True) for b in cuts_of(t)}
    assert anywhere > asked
    for column, cut in anywhere - asked:
        found["runners_up"][:2] = column, cut
        refuses(party, changed(decision, **found), "runner-up that was not asked about")


def test_finished_trees_before_the_last_level(parties):
    party, decision = at(parties, "level 1, sums")
    _, last = at(parties, "level 4, sums")
    refuses(party, changed(decision, trees=last.trees), "not the last one")


# --- finished trees --------------------------------------------------------------------------------------------------


def tree_with(tree, **parts):
    """A finished tree with changed numbers: for each part a function of the array."""
    kinds = {
        "feature": "<i4",
        "threshold": "<f4",
        "default_left": "u1",
        "value": "<f4",
        "gain": "<f4",
        "goes_right": "u1",
    }
    new = {}
    for name, change in parts.items():
        array = np.frombuffer(getattr(tree, name), kinds[name]).copy()
        change(array)
        new[name] = array.tobytes()
    return msgspec.structs.replace(tree, **new)


def feature_of(tree):
    return np.frombuffer(tree.feature, "<i4")


def put(place, value):
    def change(array):
        array[place] = value

    return change


def lies(tree):
    feature = feature_of(tree)
    leaf, inner = int(np.flatnonzero(feature == LEAF)[0]), int(np.flatnonzero(np.isin(feature, [0, 2, 3]))[0])
    grown = "not the one that was grown"
    return {
        "another column": ({"feature": put(inner, {0: 2, 2: 3, 3: 0}[int(feature[inner])])}, grown),
        "another threshold": ({"threshold": put(inner, 0.123)}, grown),
        "another default": ({"default_left": lambda a: a.__setitem__(inner, 1 - a[inner])}, grown),
        "other levels": ({"goes_right": lambda a: np.bitwise_xor(a, 255, out=a)}, grown),
        "a column that nobody has": ({"feature": put(inner, 4)}, "nobody has"),
        "a negative column": ({"feature": put(inner, -2)}, "do not form one"),
        "a split too many": ({"feature": put(leaf, 0)}, "do not form one"),
        "a value that is not finite": ({"value": put(leaf, np.nan)}, "not possible"),
        "an infinite value": ({"value": put(leaf, np.inf)}, "not possible"),
        "a huge value": ({"value": put(leaf, 1e30)}, "leaf value"),
        "a value beyond all gradients": ({"value": put(leaf, -601.0)}, "leaf value"),
        "an infinite threshold": ({"threshold": put(inner, np.inf)}, "not possible"),
        "a gain that is not finite": ({"gain": put(inner, np.nan)}, "not possible"),
        "a negative gain": ({"gain": put(inner, -1.0)}, "not possible"),
    }


LIES = [
    "another column", "another threshold", "another default", "other levels", "a column that nobody has",
    "a negative column", "a split too many", "a value that is not finite", "an infinite value", "a huge value",
    "a value beyond all gradients", "an infinite threshold", "a gain that is not finite", "a negative gain",
]  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_finished_tree_that_is_not_the_grown_one(end, lie):
    party, decision = end
    number = next(n for n, tree in enumerate(decision.trees) if (feature_of(tree) == 1).any())
    change, rule = lies(decision.trees[number])[lie]
    trees = [tree_with(tree, **change) if n == number else tree for n, tree in enumerate(decision.trees)]
    refuses(party, changed(decision, trees=trees), rule)


def test_numbers_at_places_that_do_not_count_change_nothing(end):
    """Thresholds of leaves and values of inner nodes are not read: they cannot carry anything into the model."""
    party, decision = end
    first, *others = decision.trees
    leaf, inner = feature_of(first) == LEAF, feature_of(first) != LEAF
    same = tree_with(first, threshold=put(leaf, 7.0), default_left=put(leaf, 1), value=put(inner, 7.0))
    a, b = copy.deepcopy(party), copy.deepcopy(party)
    a.apply(decisions.encode(decision))
    b.apply(changed(decision, trees=[same, *others]))
    for name in ("threshold", "default_left", "value"):
        np.testing.assert_array_equal(getattr(a.rounds[0][0], name), getattr(b.rounds[0][0], name))


@pytest.mark.parametrize("n", [0, 1, 3])
def test_another_number_of_finished_trees(end, n):
    party, decision = end
    trees = (decision.trees * 2)[:n]
    refuses(party, changed(decision, trees=trees), f"{n} finished trees where 2 belong")
    fresh = copy.deepcopy(party)
    with pytest.raises(ProtocolError, match=f"{n} finished trees where 2 belong"):
        fresh.replay(changed(decision, trees=trees))


def test_a_kept_batch_beyond_the_last_tree():
    _, decision = at(started(n_trees=1), "level 4, sums", batch=0)
    fresh = started(n_trees=1)[0]
    fresh.replay(decisions.encode(decision))
    with pytest.raises(ProtocolError, match="1 finished trees where 0 belong"):
        fresh.replay(decisions.encode(decision))


def test_a_tree_that_was_not_pruned():
    """Trees are grown two levels deeper and pruned: who does not prune gets a larger model than the study allows."""
    mine = started(max_depth=2, min_child_weight=0.1)
    party, decision = at(mine, "level 3, sums")
    reader = copy.deepcopy(party)
    reader.apply(decisions.encode(decision))
    assert max(tree.n_leaves for tree in (reader.rounds[0][0], reader.rounds[1][0])) <= 4
    batch = copy.deepcopy(party)._batch
    batch.split(decision)
    whole = grown_tree(batch.nodes, 0, party.setting.cuts)
    assert whole.n_leaves > 4
    trees = [decisions.pack_tree(whole, np.zeros(len(whole.feature))), decision.trees[1]]
    refuses(party, changed(decision, trees=trees), "more leaves than the study allows")


# --- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["slot", "left", "n_cuts", "runners_up"])
def test_truncated_numbers(middle, part):
    party, decision = middle
    refuses(party, changed(decision, **{part: getattr(decision, part)[:-1]}), "bytes where")


SOME = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def survives(party, data):
    """Whatever is announced: it is refused by a rule, or it is a decision like any other."""
    mine = copy.deepcopy(party)
    try:
        mine.apply(data)
    except ProtocolError:
        return
    mine.contribution()


@SOME
@given(data=st.binary(max_size=300))
def test_random_bytes(end, data):
    refuses(end[0], data, "The reader announced")


@SOME
@given(data=st.data())
def test_a_flipped_byte_or_a_cut_off_end(middle, end, data):
    for party, decision in (middle, end):
        raw = bytearray(decisions.encode(decision))
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] ^= data.draw(st.integers(0, 255))
        survives(party, bytes(raw))
        survives(party, bytes(raw[:place]))


@SOME
@given(data=st.data())
def test_random_numbers_in_every_part_of_a_decision(middle, data):
    party, decision = middle
    name = data.draw(st.sampled_from(["slot", "left", "n_cuts", "runners_up"]))
    part = arrays(decision)[name]
    place = data.draw(st.integers(0, len(part) - 1))
    limits = np.iinfo(part.dtype)
    part[place] = data.draw(st.integers(int(limits.min), int(limits.max)))
    survives(party, changed(decision, **{name: part}))


@SOME
@given(seed=st.integers(0, 2**32), size=st.integers(-1, 1))
def test_random_totals_of_counts_and_of_a_start(parties, seed, size):
    rng = np.random.default_rng(seed)
    fresh = copy.deepcopy(parties[0])
    n = 32 + 8 * fresh._n_sums
    survives(fresh, rng.bytes(n + size))
    step(mine := copy.deepcopy(parties))
    survives(mine[0], rng.bytes(mine[0]._batch.level.n_cells + size))


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_gradients_that_cannot_be(parties, value):
    mine = copy.deepcopy(parties)
    words, floats = total_of(mine)
    floats[0] = value
    refuses(mine[0], mine[0].read([words, floats]), "not finite")
