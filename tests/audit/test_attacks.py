import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import truncnorm

from simfl.audit import attacks, attributes
from simfl.audit.coverage import LINEAR
from simfl.audit.views import CodesView, Hashing, PointersView, Prior, RowSumsView, TokensView
from simfl.training.losses import loss_named
from simfl.training.trees import LEAF, Tree, children


def population(n=400, d=6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 3.0


def hashing(n_hashes, d, width, seed=1):
    rng = np.random.default_rng(seed)
    return Hashing(rng.normal(size=(n_hashes, d)), rng.uniform(0, width, n_hashes), width)


def split(X):
    prior = Prior.of(X[::2])
    return prior, X[1::2], prior.standard(X[1::2])


# --- hash values -----------------------------------------------------------------------------------------------------


def test_as_many_narrow_buckets_as_features_give_the_row_itself():
    prior, X, truth = split(population())
    h = hashing(6, 6, 1e-4)
    estimate = attacks.rows_from_codes(CodesView(h.codes(X), h), prior)
    assert np.abs(estimate - truth).max() < 0.02


def test_useless_codes_give_the_prior_mean():
    prior, X, _ = split(population())
    h = hashing(6, 6, 1e7)
    h = Hashing(h.directions, h.offsets - 5e6, h.width)  # no bucket ends near the rows
    estimate = attacks.rows_from_codes(CodesView(h.codes(X), h), prior)
    assert np.abs(estimate).max() < 1e-3


def test_one_hash_gives_the_truncated_mean_along_its_direction():
    rng = np.random.default_rng(3)
    prior = Prior.of(rng.normal(size=(40_000, 2)))
    h = Hashing(np.array([[1.0, 0.0]]), np.array([0.0]), 1.0)  # bucket 0: the first feature is from 0 to 1
    estimate = attacks.rows_from_codes(CodesView(np.array([[0]], dtype=np.int32), h), prior)
    np.testing.assert_allclose(estimate[0], [truncnorm.mean(0, 1), 0.0], atol=0.02)


def test_more_hashes_tell_more():
    prior, X, truth = split(population())
    found = []
    for n_hashes in (1, 3, 5):
        h = hashing(n_hashes, 6, 2.0)
        estimate = attacks.rows_from_codes(CodesView(h.codes(X), h), prior)
        found.append(attributes.explained(estimate, truth, prior.varies))
    assert 0 < found[0] < found[1] < found[2]


def test_a_constant_column_does_no_harm():
    X = np.hstack([population(), np.full((400, 1), 7.0)])
    prior, rows, truth = split(X)
    h = hashing(7, 7, 1e-4)
    estimate = attacks.rows_from_codes(CodesView(h.codes(rows), h), prior)
    assert prior.varies.tolist() == [True] * 6 + [False]
    assert np.abs(estimate - truth).max() < 0.02


@settings(deadline=None)
@given(low=st.floats(-6, 6), width=st.floats(1e-2, 8), deviation=st.floats(0.1, 10))
def test_truncated_moments_are_scipys(low, width, deviation):
    mean, variance = attacks.truncated_moments(np.array([low]), np.array([low + width]), np.array([deviation]))
    peer = truncnorm(low / deviation, (low + width) / deviation, scale=deviation)
    np.testing.assert_allclose(mean, peer.mean(), rtol=1e-3, atol=1e-3 * deviation)
    np.testing.assert_allclose(variance, peer.var(), rtol=2e-2, atol=1e-5 * deviation**2)


def test_truncated_moments_stay_in_their_bucket_far_out():
    low = np.array([50.0, -60.0, 1e6])
    mean, variance = attacks.truncated_moments(low, low + 1, np.ones(3))
    assert ((low <= mean) & (mean <= low + 1) & (variance > 0) & np.isfinite(variance)).all()


def test_members_are_those_whose_code_is_in_the_table():
    table = np.array([[1, 2], [3, 4]], dtype=np.int32)
    known = np.array([[3, 4], [1, 4], [1, 2]], dtype=np.int32)
    assert attacks.members_from_codes(table, known).tolist() == [True, False, True]


def test_one_unknown_number_lies_in_the_interval_that_the_buckets_leave():
    prior, X, truth = split(population())
    known = attacks.precision(prior)
    h = hashing(2, 6, 1e-3)
    found, _ = attacks.number_from_codes(CodesView(h.codes(X), h), prior, truth, 4, known)
    assert np.abs(found - truth[:, 4]).max() < 0.02


def test_without_codes_the_other_attributes_are_all_there_is():
    prior, X, truth = split(population())
    known = attacks.precision(prior)
    wide = Hashing(np.ones((1, 6)), np.array([-5e6]), 1e7)
    found, expected = attacks.number_from_codes(CodesView(wide.codes(X), wide), prior, truth, 4, known)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    slope = np.linalg.lstsq(np.delete(prior.rows, 4, axis=1), prior.rows[:, 4], rcond=None)[0]
    assert np.corrcoef(expected, np.delete(truth, 4, axis=1) @ slope)[0, 1] > 0.99


def test_the_unknown_attribute_itself_is_not_read():
    prior, X, truth = split(population())
    h = hashing(3, 6, 1.0)
    view, known = CodesView(h.codes(X), h), attacks.precision(prior)
    blanked = truth.copy()
    blanked[:, 2] = 99.0
    before, after = (attacks.number_from_codes(view, prior, rows, 2, known)[0] for rows in (truth, blanked))
    np.testing.assert_allclose(before, after, atol=1e-6)


def test_one_unknown_category_is_the_setting_whose_code_fits():
    rng = np.random.default_rng(5)
    X = np.hstack([np.eye(4)[rng.integers(0, 4, 300)], rng.normal(size=(300, 3))])
    prior, rows, truth = split(X)
    columns = np.arange(4)
    options = np.unique(prior.rows[:, columns].round(9), axis=0)
    h = hashing(6, 7, 0.05)
    with_codes, without = attacks.category_from_codes(
        CodesView(h.codes(rows), h), prior, truth, columns, options, attacks.precision(prior)
    )
    right = [(np.abs(options[p] - truth[:, columns]) < 1e-6).all(axis=1).mean() for p in (with_codes, without)]
    assert right[0] == 1.0
    assert right[1] < 0.5  # the categories are independent of all else


# --- tokens ----------------------------------------------------------------------------------------------------------


def test_the_share_of_equal_hash_values_gives_the_distance():
    h = hashing(20_000, 3, 2.0)
    a, b = np.zeros((1, 3)), np.array([[1.0, 1.0, 0.5]])
    agreement = (h.codes(a) == h.codes(b)).mean(axis=1)
    np.testing.assert_allclose(attacks.collision_distance(agreement, 2.0), 1.5, rtol=0.03)


def test_the_map_depends_on_equality_alone():
    h = hashing(12, 6, 4.0)
    codes = h.codes(population(120))
    tokens, order = TokensView.of(codes, 4.0, np.random.default_rng(0))
    plain, blind = attacks.token_map(TokensView(codes, 4.0), 2), attacks.token_map(tokens, 2)
    np.testing.assert_allclose(np.abs(plain[order]), np.abs(blind), atol=1e-6)


def skewed_line(n=500, d=5, seed=0):
    """Rows along one axis with a long tail, and a little noise."""
    rng = np.random.default_rng(seed)
    return rng.exponential(size=(n, 1)) * np.arange(1, d + 1) + 0.1 * rng.normal(size=(n, d))


def test_a_hub_with_a_sample_finds_the_main_axis_of_skewed_rows():
    prior, _, truth = split(skewed_line())
    codes = hashing(30, 5, 1.0).codes(truth)
    tokens, order = TokensView.of(codes, 1.0, np.random.default_rng(0))
    estimate = attacks.rows_from_tokens(tokens, prior)
    assert attributes.explained(estimate, truth[order], prior.varies) > 0.5


@pytest.mark.parametrize("codes", [np.zeros((150, 5)), np.tile(np.arange(150), (5, 1)).T])
def test_tokens_that_are_all_equal_or_all_different_say_nothing(codes):
    prior, _, truth = split(skewed_line())
    estimate = attacks.rows_from_tokens(TokensView(codes.astype(np.int32), 1.0), prior)
    assert abs(attributes.explained(estimate, truth[:150], prior.varies)) < 0.1


def test_buckets_so_wide_that_all_tokens_are_equal_give_the_mean():
    prior, _, _ = split(skewed_line())
    estimate = attacks.rows_from_tokens(TokensView(np.zeros((150, 5), dtype=np.int32), 1e9), prior)
    np.testing.assert_array_equal(estimate, 0.0)


def test_a_hub_without_a_sample_only_guesses():
    prior, _, truth = split(skewed_line())
    blank = Prior(prior.mean, prior.deviation, np.random.default_rng(1).normal(size=prior.rows.shape))
    codes = hashing(30, 5, 1.0).codes(truth)
    tokens, order = TokensView.of(codes, 1.0, np.random.default_rng(0))
    estimate = attacks.rows_from_tokens(tokens, blank)
    assert abs(attributes.explained(estimate, truth[order], prior.varies)) < 0.2


# --- neighbour ids ---------------------------------------------------------------------------------------------------


def test_the_centre_is_the_mean_of_the_rows_that_point_there():
    view = PointersView(np.array([[0, 1], [0, 2], [2, 0]], dtype=np.int32), n_rows=4)
    found = attacks.centres(view, np.array([[3.0], [6.0], [0.0]]))
    assert found.means[:, 0].tolist() == [3.0, 3.0, 3.0, 0.0]
    assert found.counts.tolist() == [3.0, 1.0, 2.0, 0.0]


def test_where_nobody_points_the_guess_is_the_mean():
    found = attacks.PointedAt(np.array([[9.0], [9.0]]), np.array([0.0, 3.0]))
    assert attacks.shrunk(found, 1.0)[:, 0].tolist() == [0.0, 6.75]
    assert attacks.shrunk(found, 0.0)[:, 0].tolist() == [0.0, 9.0]


def test_the_rehearsal_finds_how_far_a_mean_can_be_trusted():
    rng = np.random.default_rng(0)
    truth, counts = rng.normal(size=(4000, 2)), rng.integers(1, 6, 4000).astype(float)
    noise = rng.normal(size=(4000, 2)) * np.sqrt(2.0 / counts)[:, None]
    assert 1.5 < attacks.rehearsed_doubt(attacks.PointedAt(truth + noise, counts), truth) < 2.7


# --- leaves ----------------------------------------------------------------------------------------------------------


def test_rows_in_the_same_leaves_stand_for_each_other():
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 4, 400)
    rows = np.array([[-2.0], [-1.0], [1.0], [2.0]])[kind] + 0.1 * rng.normal(size=(400, 1))
    prior, truth = Prior.of(rows[:200]), Prior.of(rows[:200]).standard(rows[200:])
    leaves = np.column_stack([kind, kind]).astype(np.int32)
    estimate = attacks.rows_from_leaves(leaves[:200], leaves[200:], prior)
    assert attributes.explained(estimate, truth, prior.varies) > 0.95
    useless = np.zeros((200, 2), dtype=np.int32)
    estimate = attacks.rows_from_leaves(useless, useless, prior)
    assert abs(attributes.explained(estimate, truth, prior.varies)) < 0.1


# --- sums ------------------------------------------------------------------------------------------------------------

OBJECTIVES = {
    "binary:logistic": (np.array([0, 1, 1, 0, 1]), np.array([0.6])),
    "multi:softprob": (np.array([0, 1, 2, 0, 2]), np.array([0.2, -0.5, 0.3])),
    "reg:squarederror": (np.array([1.5, -2.0, 7.25, 0.0, 3.0]), np.array([2.0])),
    "count:poisson": (np.array([1.0, 0.0, 7.0, 2.0, 2.0]), np.array([2.4])),
    "reg:gamma": (np.array([1.5, 0.25, 7.25, 2.0, 3.0]), np.array([2.8])),
    "reg:tweedie": (np.array([1.5, 0.0, 7.25, 0.0, 3.0]), np.array([2.35])),
}
SETTINGS = [(objective, {}) for objective in OBJECTIVES]
SETTINGS += [("binary:logistic", {"scale_pos_weight": 7.0}), ("reg:tweedie", {"tweedie_variance_power": 1.9})]


def test_all_objectives_that_are_linear_in_the_label_are_tried():
    assert {*OBJECTIVES} == {*LINEAR}


@pytest.mark.parametrize(("objective", "settings"), SETTINGS)
def test_who_is_alone_in_a_sum_has_no_secret(objective, settings):
    (y, base), loss = OBJECTIVES[objective], loss_named(objective, settings)
    alone = np.array([4, 2, 0, 3, 1], dtype=np.int32)
    view = RowSumsView.of(alone, y.astype(np.float32), 6, loss, base)
    assert view.members().tolist() == [1, 1, 1, 1, 1, 0]
    width = 3 if loss.is_multi else 2 if loss.classifies else 1
    found = attacks.labels_from_sums(view, alone, np.full((5, width), 1 / width))
    if loss.classifies:
        np.testing.assert_allclose(found[np.arange(5), y], 1.0, atol=1e-6)
    else:
        np.testing.assert_allclose(found[:, 0], y, atol=1e-4)


@pytest.mark.parametrize(("objective", "settings"), SETTINGS)
def test_sums_of_several_rows_tell_how_many_they_are_and_the_total_of_their_labels(objective, settings):
    (y, base), loss = OBJECTIVES[objective], loss_named(objective, settings)
    view = RowSumsView.of(np.array([0, 0, 0, 2, 2], np.int32), y.astype(np.float32), 3, loss, base)
    assert view.members().tolist() == [3, 0, 2]
    label = np.eye(int(y.max()) + 1)[y.astype(int)] if loss.classifies else y[:, None]
    expected = [label[:3].sum(axis=0), 0 * label[0], label[3:].sum(axis=0)]
    np.testing.assert_allclose(view.label_totals(), expected, atol=1e-4)


@pytest.mark.parametrize(("objective", "settings"), SETTINGS)
def test_the_weight_of_a_row_hides_no_label(objective, settings):
    (y, base), loss = OBJECTIVES[objective], loss_named(objective, settings)
    alone, weight = np.array([4, 2, 0, 3, 1], dtype=np.int32), np.array([0.5, 3, 1, 0.25, 7], dtype=np.float32)
    view = RowSumsView.of(alone, y.astype(np.float32), 6, loss, base, weight)
    np.testing.assert_allclose(view.members(), [1, 7, 3, 0.25, 0.5, 0], rtol=1e-4)
    width = 3 if loss.is_multi else 2 if loss.classifies else 1
    found = attacks.labels_from_sums(view, alone, np.full((5, width), 1 / width))
    people = attacks.labels_of_known_people(view, alone[:, None], np.full((5, width), 1 / width))
    if loss.classifies:
        assert view.is_pure()[:5].all()
        np.testing.assert_allclose(found[np.arange(5), y], 1.0, atol=1e-3)
        assert (people.argmax(axis=1) == y).all()
    else:
        np.testing.assert_allclose(found[:, 0], y, rtol=1e-3, atol=1e-3)


def test_in_a_mixed_sum_the_heavy_row_decides():
    y, weight = np.array([1, 0, 0], dtype=np.float32), np.array([98, 1, 1], dtype=np.float32)
    groups = np.zeros(3, np.int32)
    view = RowSumsView.of(groups, y, 1, loss_named("binary:logistic"), np.array([0.3]), weight)
    found = attacks.labels_from_sums(view, groups, np.full((3, 2), 0.5))
    np.testing.assert_allclose(found[:, 1], 0.98, atol=1e-3)
    assert not view.is_pure().any()


def test_in_a_mixed_sum_the_shares_remain():
    y = np.array([1, 1, 0, 0], dtype=np.float32)
    groups = np.array([0, 0, 0, 1], dtype=np.int32)
    view = RowSumsView.of(groups, y, 2, loss_named("binary:logistic"), np.array([0.3]))
    found = attacks.labels_from_sums(view, groups, np.full((4, 2), 0.5))
    np.testing.assert_allclose(found[:, 1], [2 / 3, 2 / 3, 2 / 3, 0.0], atol=1e-4)
    assert view.is_pure().tolist() == [False, True]


def test_a_belief_decides_who_in_a_mixed_sum_has_which_label():
    y = np.array([1, 0], dtype=np.float32)
    groups = np.zeros(2, dtype=np.int32)
    view = RowSumsView.of(groups, y, 1, loss_named("binary:logistic"), np.array([0.5]))
    found = attacks.labels_from_sums(view, groups, np.array([[0.1, 0.9], [0.2, 0.8]]))
    assert found[0, 1] > 0.5 > found[1, 1]
    np.testing.assert_allclose(found.sum(axis=0), [1, 1], atol=1e-3)


def test_a_known_person_is_in_one_of_the_sums_that_have_members():
    y = np.array([1, 1, 0], dtype=np.float32)
    view = RowSumsView.of(np.array([0, 0, 2], dtype=np.int32), y, 3, loss_named("binary:logistic"), np.array([0.5]))
    candidates = np.array([[0, 1], [1, 2], [1, 1]], dtype=np.int32)
    own = np.array([[0.5, 0.5], [0.5, 0.5], [0.4, 0.6]])
    found = attacks.labels_of_known_people(view, candidates, own)
    np.testing.assert_allclose(found, [[0, 1], [1, 0], [0.4, 0.6]], atol=1e-6)


# --- trees -----------------------------------------------------------------------------------------------------------


def stump():
    feature = np.array([0, LEAF, LEAF], dtype=np.int32)
    threshold = np.array([1.0, 0, 0], dtype=np.float32)
    return Tree(feature, threshold, np.zeros(3, dtype=bool), children(feature), np.zeros(3, dtype=np.float32))


def test_a_leaf_is_described_by_the_attackers_rows_in_it():
    X = np.array([[0.0, 1.0], [0.5, 3.0], [2.0, 10.0]], dtype=np.float32)
    prior = Prior.of(X.astype(float))
    typical, share = attacks.rows_from_tree(stump(), X, prior)
    np.testing.assert_allclose(typical, [prior.rows[:2].mean(axis=0), prior.rows[2]])
    np.testing.assert_allclose(share, [2.5 / 4, 1.5 / 4])


def test_an_empty_leaf_is_described_by_its_box():
    X = np.array([[0.0, 1.0], [0.5, 3.0], [0.9, 5.0]], dtype=np.float32)
    prior = Prior.of(X.astype(float))
    typical, _ = attacks.rows_from_tree(stump(), X, prior)
    edge = (1.0 - prior.mean[0]) / prior.deviation[0]
    np.testing.assert_allclose(typical[1], [(edge + prior.rows[:, 0].max()) / 2, 0.0], rtol=1e-5)


def test_the_first_trees_leaf_values_tell_how_many_rows_are_in_each_leaf():
    base, rate, reg_lambda = 0.3712, 0.1, 1.0
    n, ones = np.array([17, 123, 1, 60]), np.array([5, 100, 1, 0])
    values = (rate * (ones - n * base) / (n * base * (1 - base) + reg_lambda)).astype(np.float32)
    assert attacks.counts_from_leaf_values(values, base, rate, reg_lambda, most=200).tolist() == n.tolist()


def test_an_unclear_leaf_value_is_not_read():
    half = np.array([0.0], dtype=np.float32)  # with p = 1/2 every balanced leaf has the value 0
    assert attacks.counts_from_leaf_values(half, 0.5, 0.1, 1.0, most=10).tolist() == [0]


def test_thresholds_that_are_values_are_counted_once():
    X = np.array([[1.0], [5.0]], dtype=np.float32)
    columns, hit = attacks.revealed_values([stump(), stump()], X)
    assert (columns.tolist(), hit.tolist()) == ([0], [True])
    assert attacks.revealed_values([stump()], X + 1)[1].tolist() == [False]


# --- how right an estimate is ----------------------------------------------------------------------------------------


def test_a_category_is_right_or_wrong_and_a_number_is_close_or_not():
    X = np.array([[1.0, 0, 0, 0.1], [0, 1, 0, 0.7], [0, 0, 1, 0.3], [1, 0, 0, 0.9]])
    prior = Prior.of(X)
    known = attributes.attributes_of(prior, attributes.one_hot_groups(X))
    assert [a.columns.tolist() for a in known] == [[0, 1, 2], [3]]
    truth = prior.standard(X)
    assert attributes.share_right(truth, truth, known).tolist() == [1.0] * 4
    near = truth + np.array([0.1, -0.1, 0.1, 0.6])
    assert attributes.share_right(near, truth, known).tolist() == [0.5] * 4
    mean = attributes.decide_categories(np.zeros((1, 4)), known) * prior.deviation + prior.mean
    np.testing.assert_allclose(mean[0, :3], [1, 0, 0], atol=1e-6)  # the most common category


def test_rows_of_categories_are_found_by_searching_for_what_fits():
    rng = np.random.default_rng(0)
    X = np.hstack([np.eye(5)[rng.integers(0, 5, 400)] for _ in range(4)])
    prior, rows, truth = split(X)
    known = attributes.attributes_of(prior, attributes.one_hot_groups(X))
    assert len(known) == 4
    h = hashing(15, 20, 0.5)
    view = CodesView(h.codes(rows), h)
    plain = attacks.rows_from_codes(view, prior)
    found = attacks.refined_rows(view, prior, [plain], known)
    before, after = (attributes.share_right(e, truth, known).mean() for e in (plain, found))
    assert after > max(before, 0.95)


def test_searching_on_useless_codes_gives_the_most_common_categories():
    rng = np.random.default_rng(0)
    X = np.eye(3)[rng.choice(3, 300, p=[0.6, 0.3, 0.1])]
    prior, rows, truth = split(X)
    known = attributes.attributes_of(prior, attributes.one_hot_groups(X))
    wide = Hashing(np.ones((1, 3)), np.array([-5e6]), 1e7)
    found = attacks.refined_rows(CodesView(wide.codes(rows), wide), prior, [truth], known)
    common = attributes.decide_categories(np.zeros_like(truth), known)
    np.testing.assert_array_equal(found, common)


def test_guessing_the_mean_explains_nothing_and_the_truth_everything():
    truth = np.random.default_rng(0).normal(size=(50, 3))
    columns = np.ones(3, dtype=bool)
    assert attributes.explained(0 * truth, truth, columns) == 0.0
    assert attributes.explained(truth, truth, columns) == 1.0
