"""Whole trainings, step by step: who divides the rows, who follows, who comes late, and rows of every kind."""

import dataclasses

import numpy as np
import pytest
import xgboost as xgb
from scipy import sparse

from simfl.data.schema import Column, Schema
from simfl.errors import DataError, ProtocolError
from simfl.joint import setting
from simfl.joint.cuts import cell_counts
from simfl.joint.machine import Labelled, Machine, Mine
from simfl.model.xgboost_document import to_booster, write
from simfl.training.losses import in_xgboost, loss_named
from tests.joint.machines import divided, labels, machines, plan, run, step, table, total_of, until

OBJECTIVES = ["binary:logistic", "reg:squarederror", "multi:softprob"]
WORDS = [1, 2, 3, 4]


@pytest.fixture
def fine(monkeypatch):
    """Gradients are rounded to as many bits as there is room for."""
    monkeypatch.setattr(setting, "MEAN_BITS", 30)


def trees_of(machine):
    return [tree for trees in machine.growing.rounds for tree in trees]


def assert_same(a, b, atol=0.0):
    assert len(a) == len(b) > 0
    for own, other in zip(a, b, strict=True):
        for part in ("feature", "threshold", "default_left", "level_set", "goes_right"):
            np.testing.assert_array_equal(getattr(own, part), getattr(other, part))
        np.testing.assert_allclose(own.value, other.value, rtol=0, atol=atol)


def two(X, y, **params):
    """Two parties."""
    return machines(plan(X.shape[1], 2, **params), divided(X, y, 2))


# --- who holds the rows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_without_noise_it_does_not_matter_how_the_rows_are_divided(objective, fine):
    """All have the cut points of the first (they are counted with noise) and the same seeds."""
    X = table(1200, 4)
    y = labels(X, objective)
    first = run(machines(plan(4, 1, objective=objective, min_group=1), [(X, y)]), words=WORDS)
    for n_parties, seed in ((2, 0), (5, 1)):
        other = plan(4, n_parties, objective=objective, base_score=first.base_score, min_group=1)
        rows = divided(X, y, n_parties, seed=seed)
        mine = [Machine(other, Mine(Labelled(*own), None, b"%d" % i), first.agreed) for i, own in enumerate(rows)]
        ours = run(mine, words=WORDS)
        assert ours.n_rounds == first.n_rounds
        n_outputs = len(first.growing.rounds[0])
        assert_same(trees_of(ours)[:n_outputs], trees_of(first)[:n_outputs], atol=1e-6)
        ours, theirs = ([next(iter(m[0].values())) for m in one.metrics()] for one in (mine[0], first))
        np.testing.assert_allclose(ours, theirs, atol=2e-3)  # later, rounding decides between splits that gain alike


def test_twice_the_same_is_the_same_to_the_last_bit():
    X = table(900, 4, missing=0.1)
    y = labels(X)
    a, b = (two(X, y, n_trees=16) for _ in range(2))
    while not a[0].finished:
        assert step(a) == step(b)
        assert a[0].step == b[0].step
        assert len({machine.digest() for machine in (*a, *b)}) == 1
    assert_same(trees_of(a[0]), trees_of(b[1]))


def test_other_secrets_give_other_questions():
    X = table(300, 4)
    y = labels(X)
    a = two(X, y)
    b = [Machine(m.plan, dataclasses.replace(m.mine, secret=b"another one")) for m in a]
    for mine in (a, b):
        until(mine, "level 0, counts")
    assert a[0].growing._batch.seed != b[0].growing._batch.seed


# --- who follows and who comes late ----------------------------------------------------------------------------------


def same_model(a, b):
    assert_same(trees_of(a), trees_of(b))
    np.testing.assert_array_equal(a.growing.weights.matrix, b.growing.weights.matrix)
    np.testing.assert_array_equal(a.growing.gains, b.growing.gains)


def questions(machine):
    level = machine.growing._batch.level
    return [level.tree, level.node, level.slot_start, level.feature, level.cell_start, level.cell_of_bin]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_all_parties_take_the_same_steps(objective):
    X = table(900, 4, missing=0.1)
    first, second = mine = two(X, labels(X, objective), objective=objective, learning_rate=0.4)
    while not first.finished:
        assert (first.step, first.reader, first.digest()) == (second.step, second.reader, second.digest())
        step(mine)
    same_model(first, second)
    assert first.metrics() == second.metrics()


def test_who_comes_late_has_the_same_model_and_the_same_next_question():
    X = table(900, 4, missing=0.1)
    y = labels(X)
    mine = two(X, y, n_trees=6, learning_rate=0.4)
    until(mine, "batch 2, start")
    assert len(mine[0].kept) == 6  # moments, counts on two grids, labels, two batches
    late = machines(mine[0].plan, divided(X, y, 2))
    for machine in late:
        machine.resume(mine[0].kept)
        same_model(machine, mine[0])
        assert machine.step == mine[0].step
    np.testing.assert_array_equal(late[0].growing.own.train.margin, mine[0].growing.own.train.margin)
    for one, other in zip(total_of(mine), total_of(late), strict=True):
        np.testing.assert_array_equal(one[:4], other[:4])  # the seed, and the sizes of gradients
    for group in (mine, late):
        until(group, "level 1, sums")
    for one, other in zip(questions(mine[0]), questions(late[1]), strict=True):
        np.testing.assert_array_equal(one, other)
    assert_same(trees_of(run(mine)), trees_of(run(late)))
    assert len({machine.digest() for machine in late}) == 1
    assert [scores[0] for scores in late[0].metrics()] == [pytest.approx(scores[0]) for scores in mine[0].metrics()]


def test_a_batch_that_is_grown_again_by_others_asks_other_questions():
    """So that nobody learns the rows of who is missing from the difference of two answers."""
    X = table(900, 4)
    y = labels(X)
    rows = divided(X, y, 3)
    mine = machines(plan(4, 3), rows)
    until(mine, "batch 1, start")
    again = {}
    for names in (("party 0", "party 1", "party 2"), ("party 0", "party 2")):
        fewer = dataclasses.replace(mine[0].plan, parties=names)
        own = [Machine(fewer, mine[int(name[-1])].mine) for name in names]
        for machine in own:
            machine.resume(mine[0].kept)
        until(own, "level 1, counts")
        again[len(names)] = own[0]
    until(mine, "level 1, counts")
    for one, other in zip(questions(mine[0]), questions(again[3]), strict=True):
        np.testing.assert_array_equal(one, other)
    assert mine[0].growing._batch.seed != again[2].growing._batch.seed


@pytest.mark.parametrize("words", ["per cell of the grid", "level 0, counts", "level 0, sums"])
def test_other_questions_get_other_noise(words):
    """A party that changes its part of a seed (or of the moments) must not get the same noise on another question."""
    X = table(900, 4)
    sent = []
    for change in (0, 1):
        mine = two(X, labels(X))
        until(mine, "moments" if "cell" in words else "start")
        total = total_of(mine)
        total[0] = total[0] + np.array(change, total[0].dtype)
        for machine in mine:
            machine.apply(machine.read(total))
        until(mine, words)
        machine = mine[1]._agreement or mine[1].growing
        exact = cell_counts(machine.X, machine._grid) if "cell" in words else None
        sent.append(machine._key(machine.step) if exact is None else machine.contribution()[0].view(np.int32) - exact)
    assert np.any(sent[0] != sent[1])


def test_kept_decisions_of_another_training_are_refused():
    X = table(300, 4)
    mine = two(X, labels(X))
    run(mine)
    wider = machines(plan(5, 2), divided(table(300, 5), labels(X), 2))[0]
    with pytest.raises(ProtocolError, match="bytes where"):
        wider.resume(mine[0].kept)


# --- the length of a training ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_trees", "rate", "n_batches"), [(1, 0.1, 1), (7, 0.25, 4), (8, 0.2, 4), (3, 0.8, 3)])
def test_there_are_as_many_trees_as_asked_for_in_batches_that_grow(n_trees, rate, n_batches):
    X = table(300, 3)
    machine = run(two(X, labels(X), n_trees=n_trees, learning_rate=rate))
    assert machine.n_rounds == n_trees == len(machine.metrics())
    assert len(machine.growing.batches) == n_batches  # 1, 1, 2, ... and never a step beyond 0.8


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_metrics_are_those_of_the_model(objective):
    X = table(600, 3)
    y, loss = labels(X, objective), loss_named(objective)
    mine = machines(plan(3, 2, objective=objective), divided(X[200:], y[200:], 2), Labelled(X[:200], y[:200]))
    machine = run(mine)
    margins = margins_of(machine, X)
    for own, found in ((slice(200, None), machine.metrics()[-1][0]), (slice(200), machine.metrics()[-1][1])):
        wanted = loss.finish(loss.metric_sums(margins[own], y[own], None), len(y[own]))
        assert found == pytest.approx(wanted, rel=1e-5)


def test_early_stopping_ends_where_validation_rows_say_so(fine):
    X = table(400, 3)
    noise = np.random.default_rng(5).integers(0, 2, 400).astype(np.float32)
    params = {"n_trees": 60, "early_stopping_rounds": 5, "learning_rate": 0.4, "min_group": 1}
    machine = run(machines(plan(3, 2, **params), divided(X, noise, 2), Labelled(table(200, 3, 1), noise[:200])))
    losses = [validation["logloss"] for _, validation in machine.metrics()]
    assert machine.n_rounds < 60
    assert machine.growing.best_round == np.argmin(losses)
    assert 5 <= machine.n_rounds - 1 - np.argmin(losses) <= 6  # a batch is finished before it is looked at


def test_a_given_start_is_not_asked_for():
    X = table(300, 3)
    given = np.array([0.3])
    mine = two(X, labels(X), base_score=given)
    names = []
    while not mine[0].finished:
        names.append(mine[0].step)
        step(mine)
    assert "labels" not in names
    assert mine[0].base_score is given


def test_a_training_goes_on_from_a_model():
    X = table(600, 3)
    y = labels(X)
    first = run(two(X, y))
    warm = two(X, y, earlier=first.growing.rounds, base_score=first.base_score)
    until(warm, "batch 0, start")
    for machine, (margins, _) in zip(warm, divided(margins_of(first, X), y, 2), strict=True):
        np.testing.assert_allclose(machine.growing.own.train.margin, margins, atol=1e-6)
    run(warm)
    assert warm[0].metrics()[-1][0]["logloss"] < first.metrics()[-1][0]["logloss"]


# --- rows of every kind ----------------------------------------------------------------------------------------------


def margins_of(machine, X):
    """What XGBoost predicts with the trees, written as its own model."""
    columns = tuple(
        Column(name=str(j), kind="category" if levels else "number", levels=tuple(map(str, range(levels))))
        for j, levels in enumerate(machine.plan.n_levels)
    )
    rounds = [*machine.plan.earlier, *machine.growing.rounds]
    document = write(rounds, machine.base_score, in_xgboost(machine.plan.params), Schema(columns))
    kinds = ["c" if levels else "q" for levels in machine.plan.n_levels]
    rows = xgb.DMatrix(
        X, feature_types=kinds, enable_categorical=True, nthread=1, feature_names=[c.name for c in columns]
    )
    return to_booster(document).predict(rows, output_margin=True).reshape(X.shape[0], -1)


def assert_xgboost_agrees(mine):
    """The margins of every party's rows, from their places in the trees, are what XGBoost predicts for them."""
    for machine in mine:
        own = machine.growing.own.train.margin
        np.testing.assert_allclose(margins_of(machine, machine.mine.rows.X), own, atol=2e-6)
    return trees_of(mine[0])


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("missing", [0.0, 0.15])
@pytest.mark.parametrize("guard", [1, 30])
def test_xgboost_predicts_what_the_rows_have(objective, missing, guard):
    X = table(900, 4, missing=missing)
    mine = two(X, labels(X, objective), objective=objective, min_group=guard)
    run(mine)
    assert any(tree.n_leaves > 1 for tree in assert_xgboost_agrees(mine))


def with_categories(n_levels, n=1500, missing=0.1):
    rng = np.random.default_rng(0)
    X = table(n, 3)
    X[:, 1] = np.minimum(rng.exponential(n_levels / 4, n), n_levels - 1).astype(int)
    X[rng.random(n) < missing, 1] = np.nan
    y = (X[:, 0] + 2 * np.sin(5 * np.nan_to_num(X[:, 1], nan=2)) + rng.normal(0, 0.3, n) > 0).astype(np.float32)
    return X, y


@pytest.mark.parametrize("n_levels", [1, 2, 7, 40, 255, 300])
@pytest.mark.parametrize("guard", [1, 30])
def test_categories_of_any_number_of_levels(n_levels, guard):
    X, y = with_categories(n_levels)
    mine = two(X, y, levels=[0, n_levels, 0], min_group=guard, n_trees=8)
    run(mine)
    trees = assert_xgboost_agrees(mine)
    assert any((tree.feature == 1).any() for tree in trees) == (n_levels > 1)
    assert all(tree.goes_right is None or tree.goes_right.shape[1] == n_levels for tree in trees)


def test_categories_that_are_pruned_leave_no_sets_behind(fine):
    X, y = with_categories(6)
    mine = two(X, y, levels=[0, 6, 0], max_depth=2, gamma=3.0, n_trees=8, min_group=1)
    run(mine)
    for tree in assert_xgboost_agrees(mine):
        n_sets = 0 if tree.goes_right is None else len(tree.goes_right)
        assert n_sets == (tree.feature == 1).sum()


def test_sparse_rows_are_as_dense_ones_with_missing_values():
    X = table(900, 6, missing=0.6)
    y = labels(X)
    stored = sparse.csr_matrix(np.nan_to_num(X))
    assert stored.nnz == (~np.isnan(X)).sum()
    dense, thin = run(two(X, y)), two(stored, y)
    assert_same(trees_of(run(thin)), trees_of(dense))
    assert_xgboost_agrees(thin)


def test_weights_of_zero_are_as_rows_that_are_not_there(fine):
    X = table(900, 4)
    y = labels(X)
    weight = np.ones(900, np.float32)
    weight[::3] = 0
    all_rows = machines(plan(4, 1, min_group=1), [(X, y, weight)])
    kept = weight > 0
    first = run(all_rows)
    own = Mine(Labelled(X[kept], y[kept], weight[kept]), None, b"party 0")
    fewer = run([Machine(first.plan, own, first.agreed)])
    assert_same(trees_of(fewer), trees_of(first), atol=1e-6)


@pytest.mark.parametrize(
    "column",
    [np.full(400, 7.0), np.full(400, np.nan), np.where(np.arange(400) % 2, 7.0, np.nan), np.arange(400) == 3],
    ids=["constant", "missing", "constant or missing", "one row differs"],
)
@pytest.mark.parametrize("guard", [1, 30])
def test_columns_that_say_little(column, guard):
    X = table(400, 3)
    y = labels(X)
    X[:, 1] = column
    mine = two(X, y, min_group=guard)
    run(mine)
    assert_xgboost_agrees(mine)


def test_columns_that_say_nothing_at_all():
    X = np.full((100, 2), 3, np.float32)
    y = (np.arange(100) % 4 == 0).astype(np.float32)
    mine = two(X, y)
    run(mine)
    assert all(tree.n_leaves == 1 for tree in assert_xgboost_agrees(mine))


@pytest.mark.parametrize("guard", [1, 30])
def test_parties_of_two_rows(guard):
    X = table(200, 3)
    y = labels(X)
    rows = [(X[:2], y[:2]), (X[2:4], y[2:4]), (X[4:], y[4:])]
    mine = machines(plan(3, 3, min_group=guard), rows)
    run(mine)
    assert_xgboost_agrees(mine)


def test_two_rows_in_all():
    X = table(2, 3)
    mine = machines(plan(3, 2), [(X[:1], np.zeros(1, np.float32)), (X[1:], np.ones(1, np.float32))])
    run(mine)
    assert all(tree.n_leaves == 1 for tree in trees_of(mine[0]))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_noise_on_the_sums_of_a_few_rows_is_no_lie_of_the_reader(n):
    X = table(2 * n, 3)
    for seed in range(5):
        mine = machines(plan(3, 2, n_trees=24), divided(X, np.arange(2 * n).astype(np.float32) % 2, 2, seed=seed))
        assert len(trees_of(run(mine))) == 24


def test_a_total_has_room_for_all_rows():
    mine = machines(plan(1, 2), divided(table(50, 1), np.zeros(50, np.float32), 2))
    until(mine, "start")
    few = mine[0].growing.setting
    assert [dataclasses.replace(few, n_rows=n).bits for n in (50, 2**26 - 1, 2**27)] == [4, 4, 2]


@pytest.mark.parametrize("size", [1e-2, 1e15])
def test_labels_of_any_size(size, fine):
    X = table(600, 3)
    y = labels(X, "reg:squarederror")
    a = run(two(X, y, objective="reg:squarederror", min_group=1))
    b = run(two(X, (y * size).astype(np.float32), objective="reg:squarederror", min_group=1))
    one, other = trees_of(a)[0], trees_of(b)[0]  # later ones draw other cuts: their seed depends on what was decided
    np.testing.assert_array_equal(one.feature, other.feature)
    np.testing.assert_allclose(other.value, one.value * size, rtol=1e-3, atol=1e-4 * size)


def test_a_perfect_fit_ends_in_trees_of_one_leaf():
    X = np.repeat([[0.0], [1.0]], 200, axis=0).astype(np.float32)
    mine = two(X, X[:, 0], objective="reg:squarederror", learning_rate=1.0, reg_lambda=0.0, n_trees=8)
    trees = trees_of(run(mine))
    assert trees[0].n_leaves == 2
    assert trees[-1].n_leaves == 1


@pytest.mark.parametrize("changed", [{}, {"reg_lambda": 0.0, "min_child_weight": 0.0}])
def test_noise_on_gradients_that_are_all_zero_is_nothing(changed):
    """Every label is the start value already: there is nothing to learn, and nothing to hide."""
    X = table(600, 4)
    trees = trees_of(run(two(X, np.full(600, 3.5), objective="reg:squarederror", min_group=30, **changed)))
    assert all(np.abs(tree.value).max() < 1e-30 for tree in trees)


def test_a_training_that_diverges_says_so():
    X = table(600, 4)
    with pytest.raises(DataError, match="diverges"):
        run(two(X, X[:, 0], objective="reg:squarederror", learning_rate=1e6, n_trees=60))


@pytest.mark.parametrize("parameter", ["subsample", "colsample_bytree"])
def test_samples_of_rows_and_columns(parameter):
    X = table(900, 6)
    mine = two(X, labels(X), **{parameter: 0.5})
    run(mine)
    assert_xgboost_agrees(mine)
    for tree in trees_of(mine[0]):
        columns = set(tree.feature[tree.feature >= 0].tolist())
        assert parameter != "colsample_bytree" or len(columns) <= 3


def test_constraints_hold_in_the_model():
    X = table(1500, 3)
    mine = two(X, labels(X), n_trees=16, monotone_constraints=[1, 0, 0], interaction_constraints=[[0], [1, 2]])
    machine = run(mine)
    rng = np.random.default_rng(1)
    for _ in range(20):
        line = np.tile(rng.normal(size=3), (50, 1)).astype(np.float32)
        line[:, 0] = np.linspace(-3, 3, 50)
        assert (np.diff(margins_of(machine, line)[:, 0]) >= -1e-5).all()
    for tree in trees_of(machine):
        for node in np.flatnonzero(tree.feature >= 0):
            below = {int(tree.feature[c]) for c in (tree.left[node], tree.left[node] + 1)} - {-1}
            assert below <= ({0} if tree.feature[node] == 0 else {1, 2})


# --- totals that cannot be -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300, -1.0])
def test_moments_and_labels_that_cannot_be(value):
    X = table(100, 3)
    for words, rule in (("moments", "moments"), ("labels", "label sums")):
        mine = two(X, labels(X))
        until(mine, words)
        (total,) = total_of(mine)
        total[0] = value
        with pytest.raises(ProtocolError, match=rule):
            mine[0].apply(mine[0].read([total]))


def test_sizes_of_gradients_below_ones_own_are_refused():
    """Finer steps would make the noise on sums smaller than this party's rows need."""
    X = table(100, 3)
    mine = two(X, labels(X))
    until(mine, "start")
    words, sums = total_of(mine)
    sums[0] = mine[0].contribution()[1][0] * 0.99
    with pytest.raises(ProtocolError, match="smaller than this party's"):
        mine[0].apply(mine[0].read([words, sums]))


def test_totals_of_another_form_are_refused():
    X = table(100, 3)
    for words in ("moments", "rows per cell", "labels", "start", "counts", "sums"):
        mine = two(X, labels(X))
        until(mine, words)
        total = total_of(mine)
        for false in (total[1:], [*total, total[0]], [part[1:] for part in total], [p.astype(np.int8) for p in total]):
            with pytest.raises(ProtocolError, match="another form"):
                mine[0].read(false)
