"""The similarity search: exact, fair among equals, and the same whatever the blocks and threads."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from simfl.preprocessing import similarity
from simfl.preprocessing._kernels import BOUNDED_BLOCK, TILE
from simfl.preprocessing.similarity import HashIndex, most_similar, order_by_likeness
from simfl.preprocessing.splitmix import row_tokens


@pytest.fixture(autouse=True, scope="module", params=["compiled", "few rows"])
def both_ways(request):
    """Tables of few rows are compared in NumPy: all of this must hold for both ways."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(similarity, "_FEW_ROWS", 0 if request.param == "compiled" else 2000)
        yield


def codes(seed, n_rows, n_hashes, n_buckets):
    return np.random.default_rng(seed).integers(0, n_buckets, (n_rows, n_hashes))


def count_equal(queries, candidates):
    """The oracle: the full table of counts, by NumPy alone."""
    pairs_of_columns = zip(queries.T, candidates.T, strict=True)
    return sum(np.equal.outer(a, b).astype(np.int64) for a, b in pairs_of_columns)


def priorities(query_tokens, candidate_tokens):
    """The rule for ties, written again: mixed tokens first, then the token's place in an order turned by the query."""
    pair = query_tokens[:, None] ^ candidate_tokens[None]
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        pair = (pair ^ (pair >> np.uint64(33))) * np.uint64(factor)
    place = np.argsort(np.argsort(candidate_tokens)).astype(np.uint64)[None] ^ query_tokens[:, None]
    return (pair >> np.uint64(39) << np.uint64(31)) | (place & np.uint64(2**31 - 1))


def best_by_hand(queries, candidates, k, query_tokens, candidate_tokens):
    counts = count_equal(queries, candidates)
    order = np.lexsort((priorities(query_tokens, candidate_tokens), counts), axis=1)[:, ::-1][:, :k]
    return order, np.take_along_axis(counts, order, axis=1)


def most_similar_by_token(queries, candidates, query_tokens, candidate_tokens, k, max_candidates=None):
    index = HashIndex([queries, candidates])
    return index.compare(index.queries(0, query_tokens), index.candidates(1, candidate_tokens, max_candidates), k)


def check_against_oracle(queries, candidates, k):
    tokens = row_tokens(1, len(queries)), row_tokens(2, len(candidates))
    rows, counts = most_similar_by_token(queries, candidates, *tokens, k)
    expected_rows, expected_counts = best_by_hand(queries, candidates, k, *tokens)
    np.testing.assert_array_equal(counts, expected_counts)
    np.testing.assert_array_equal(rows, expected_rows)
    assert rows.dtype == np.int32
    assert counts.dtype == np.uint8


def test_a_worked_example():
    queries = np.array([[1, 2, 3], [9, 9, 9]])
    candidates = np.array([[1, 0, 0], [1, 2, 0], [0, 9, 9], [1, 2, 3]])
    rows, counts = most_similar(queries, candidates, k=2)
    assert rows[0].tolist() == [3, 1]
    assert counts[0].tolist() == [3, 2]
    assert (rows[1, 0], counts[1].tolist()) == (2, [2, 0])


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    n_queries=st.integers(1, 80),
    n_candidates=st.sampled_from([1, 2, 63, 64, 65, 500, TILE - 1, TILE, TILE + 1, 3 * TILE + 7]),
    n_hashes=st.sampled_from([1, 2, 7, 8, 9, 17, 27, 31, 32, 33, 40, 100, 255]),
    n_buckets=st.sampled_from([1, 2, 5, 14, 40, 300, 5000]),
    k=st.sampled_from([1, 2, 20, 64, 150]),
)
def test_the_result_is_the_oracles(seed, n_queries, n_candidates, n_hashes, n_buckets, k):
    queries = codes(seed, n_queries, n_hashes, n_buckets)
    candidates = codes(seed + 1, n_candidates, n_hashes, n_buckets)
    check_against_oracle(queries, candidates, k)


@pytest.mark.parametrize("n_hashes", [17, 27])
def test_buckets_of_projections_give_the_oracles_result(n_hashes):
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(n_hashes + 1, n_hashes))
    sides = [rng.normal(size=(n, n_hashes + 1)) @ directions for n in (300, 5000)]
    buckets = [np.floor(side / (0.5 * np.sqrt(n_hashes + 1))).astype(np.int16) for side in sides]
    check_against_oracle(*buckets, k=20)


@settings(max_examples=30)
@given(
    dtypes=st.tuples(*[st.sampled_from(["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])] * 2),
    seed=st.integers(0, 2**32),
    few=st.booleans(),
)
def test_every_integer_type_over_its_whole_range_is_exact(dtypes, seed, few):
    rng = np.random.default_rng(seed)
    queries, candidates = (
        rng.integers(np.iinfo(t).min, np.iinfo(t).max, (n, 5), dtype=t, endpoint=True)
        for t, n in zip(dtypes, (20, 60), strict=True)
    )
    for side, t in ((queries, dtypes[0]), (candidates, dtypes[1])):
        side[::2] = rng.integers(0, 3, side[::2].shape)
        side[1, 0], side[2, 1] = np.iinfo(t).min, np.iinfo(t).max
    if few:
        queries, candidates = queries[:, 2:] % 3, candidates[:, 2:] % 3
    counts = count_equal(queries.astype(object), candidates.astype(object))
    expected = -np.sort(-counts, axis=1)[:, :4]
    np.testing.assert_array_equal(most_similar(queries, candidates, k=4)[1], expected)


def test_more_buckets_than_two_bytes_hold_are_exact():
    candidates = np.stack([np.arange(70_000), np.arange(70_000) * 64, np.arange(70_000) * -(2**40)], axis=1)
    wanted = np.array([0, 1, 255, 256, 65_535, 65_536, 69_999])
    rows, counts = most_similar(candidates[wanted], candidates)
    assert rows[:, 0].tolist() == wanted.tolist()
    assert (counts == 3).all()


def test_buckets_that_share_a_bitmap_are_not_taken_for_equal():
    # 9000 buckets of which hardly two are equal: most of what the bitmaps count is not there.
    queries, candidates = codes(0, 60, 100, 9000), codes(1, 3000, 100, 9000)
    candidates[::100, :2] = queries[:30, :2]
    check_against_oracle(queries, candidates, k=20)


@pytest.mark.parametrize("n_candidates", [512, TILE, 2 * TILE])
def test_queries_beyond_all_candidates_find_the_oracles_rows(n_candidates):
    queries, candidates = codes(0, 60, 9, 6), codes(1, n_candidates, 9, 6)
    queries[:, 0] += 6  # in the order of likeness they come after the last tile, which is full
    check_against_oracle(queries, candidates, k=5)


def test_identical_rows_find_each_other():
    rows = np.unique(codes(0, 5000, 20, 12), axis=0)
    order = np.random.default_rng(1).permutation(len(rows))
    found, counts = most_similar(rows[order], rows)
    np.testing.assert_array_equal(found[:, 0], order)
    assert (counts == 20).all()


@pytest.mark.parametrize("n_candidates", [50, 3000])
def test_every_tied_row_is_equally_likely(n_candidates):
    # One hash; every fifth candidate ties. Queries are many draws from the same urn.
    candidates = (np.arange(n_candidates) % 5)[:, None]
    queries = np.zeros((40 * n_candidates, 1), dtype=np.int64)
    for k, seed in ((1, 0), (3, 1)):
        rows, counts = most_similar(queries, candidates, k, seed=seed)
        assert (counts == 1).all()
        hits = np.bincount(rows.ravel(), minlength=n_candidates)
        assert hits[candidates[:, 0] != 0].sum() == 0
        assert stats.chisquare(hits[candidates[:, 0] == 0]).pvalue > 1e-4


def test_ties_of_one_query_say_nothing_about_the_next():
    candidates = np.zeros((10, 3), dtype=np.int8)
    first = most_similar(np.zeros((40_000, 3), dtype=np.int8), candidates)[0][:, 0]
    for step in (1, 2, 1024):
        pairs = np.bincount(first[:-step] * 10 + first[step:], minlength=100)
        assert stats.chisquare(pairs).pvalue > 1e-4
    other_seed = most_similar(np.zeros((40_000, 3), dtype=np.int8), candidates, seed=1)[0][:, 0]
    assert stats.chisquare(np.bincount(first * 10 + other_seed, minlength=100)).pvalue > 1e-4


def test_neighbours_in_the_order_are_drawn_without_preference():
    rows = most_similar(np.zeros((30_000, 1), dtype=np.int8), np.zeros((6, 1), dtype=np.int8), k=3)[0]
    orders = np.unique(rows @ [36, 6, 1], return_counts=True)[1]
    assert len(orders) == 6 * 5 * 4
    assert stats.chisquare(orders).pvalue > 1e-4


def test_threads_and_blocks_change_nothing(monkeypatch):
    queries, candidates = codes(0, 700, 9, 6), codes(1, 5000, 9, 6)
    expected = most_similar(queries, candidates, 7, n_jobs=1)
    for block, n_jobs in ((1024, 3), (100, 2), (1, 2), (333, 1)):
        monkeypatch.setattr(similarity, "BLOCK", block)
        for got, want in zip(most_similar(queries, candidates, 7, n_jobs=n_jobs), expected, strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("k", [3, 12])
def test_all_tables_at_once_find_what_each_pair_finds(monkeypatch, k):
    monkeypatch.setattr(similarity, "_FEW_ROWS", 0)
    sizes = (300, 2500, 700)
    tables, tokens = [codes(n, n, 20, 6) for n in sizes], [row_tokens(n, n) for n in sizes]
    index = HashIndex(tables)
    everybody = index.all_queries(tokens)
    for j, own in enumerate(tokens):
        candidates = index.candidates(j, own)
        found = index.compare(everybody, candidates, k, asking=np.repeat(np.arange(3) != j, sizes), n_jobs=1)
        parts = [np.split(array, np.cumsum(sizes)) for array in found]
        for i in range(3):
            expected = index.compare(index.queries(i, tokens[i]), candidates, k) if i != j else (0, 0)
            for part, want in zip(parts, expected, strict=True):
                np.testing.assert_array_equal(part[i], want)


def test_another_order_of_the_candidates_changes_only_the_numbers():
    queries, candidates = codes(0, 50, 6, 5), codes(1, 3000, 6, 5)
    order = np.random.default_rng(2).permutation(3000)
    tokens = row_tokens(1, 50), row_tokens(2, 3000)
    rows, counts = most_similar_by_token(queries, candidates, *tokens, 5)
    moved, same = most_similar_by_token(queries, candidates[order], tokens[0], tokens[1][order], 5)
    np.testing.assert_array_equal(order[moved], rows)
    np.testing.assert_array_equal(same, counts)


@pytest.mark.parametrize("max_candidates", [None, 200])
def test_rows_given_in_another_order_find_the_same_rows(max_candidates):
    # Many thousand ties per query: also those that the random priorities leave open must not go by the order.
    queries, candidates = codes(0, 1500, 2, 3), codes(1, 6000, 2, 3)
    tokens = row_tokens(1, 1500), row_tokens(2, 6000)
    rows, counts = most_similar_by_token(queries, candidates, *tokens, 5, max_candidates=max_candidates)
    rng = np.random.default_rng(2)
    one, other = rng.permutation(1500), rng.permutation(6000)
    moved, same = most_similar_by_token(
        queries[one], candidates[other], tokens[0][one], tokens[1][other], 5, max_candidates=max_candidates
    )
    np.testing.assert_array_equal(other[moved], rows[one])
    np.testing.assert_array_equal(same, counts[one])


def test_similar_rows_are_adjacent():
    hashes = np.random.default_rng(0).integers(-3, 3, (500, 4))
    ordered = hashes[order_by_likeness(hashes)]
    assert (np.diff(ordered[:, 0]) >= 0).all()
    assert 1 + (np.diff(ordered, axis=0) != 0).any(axis=1).sum() == len(np.unique(hashes, axis=0))


def test_k_beyond_the_candidates_returns_them_all():
    rows, counts = most_similar(codes(0, 4, 3, 4), codes(1, 6, 3, 4), k=64)
    assert rows.shape == counts.shape == (4, 6)
    np.testing.assert_array_equal(np.sort(rows, axis=1), np.tile(np.arange(6), (4, 1)))


def test_one_row_and_no_query():
    assert most_similar(np.array([[5]]), np.array([[7]]))[0].tolist() == [[0]]
    rows, counts = most_similar(np.empty((0, 4), dtype=np.int32), codes(0, 9, 4, 3), k=2)
    assert rows.shape == counts.shape == (0, 2)


def test_views_and_fortran_order_are_taken_as_they_are():
    queries, candidates = codes(0, 60, 8, 5), codes(1, 900, 8, 5)
    expected = most_similar(queries[::2, ::2], candidates[::3, ::2], 3)
    got = most_similar(np.asfortranarray(queries[::2, ::2]), candidates[::3, ::2].copy(), 3)
    np.testing.assert_array_equal(got, expected)


def test_bounded_search_returns_distinct_rows_with_their_true_counts():
    queries, candidates = codes(0, 1000, 9, 6), codes(1, 4000, 9, 6)
    rows, counts = most_similar(queries, candidates, 20, max_candidates=300)
    assert all(len(set(found)) == 20 for found in rows.tolist())
    np.testing.assert_array_equal((queries[:, None] == candidates[rows]).sum(axis=2), counts)
    assert (np.diff(counts.astype(int), axis=1) <= 0).all()


def test_bounded_search_gives_each_block_its_own_candidates_and_reaches_all():
    # Everything ties and k is the whole subset, so the rows found are the subset.
    block = BOUNDED_BLOCK
    queries, candidates = np.zeros((block * 200, 1), dtype=np.int8), np.zeros((1000, 1), dtype=np.int8)
    tokens = np.sort(row_tokens(1, len(queries))), row_tokens(2, 1000)  # blocks follow the order of the tokens
    rows, _ = most_similar_by_token(queries, candidates, *tokens, 70, max_candidates=70)
    subsets = [set(rows[start].tolist()) for start in range(0, len(rows), block)]
    assert subsets[0] == set(rows[block - 1].tolist())
    assert len({frozenset(subset) for subset in subsets}) == 200
    hits = np.bincount([row for subset in subsets for row in subset], minlength=1000)
    assert (hits > 0).all()
    assert stats.chisquare(hits).pvalue > 1e-4


def test_bounded_search_does_not_depend_on_threads():
    queries, candidates = codes(0, 2000, 9, 6), codes(1, 3000, 9, 6)
    results = [most_similar(queries, candidates, 5, max_candidates=500, n_jobs=n)[0] for n in (1, 3)]
    np.testing.assert_array_equal(*results)


def test_a_bound_above_the_candidates_is_the_exact_search():
    queries, candidates = codes(0, 300, 9, 6), codes(1, 900, 9, 6)
    exact = most_similar(queries, candidates, 5)
    np.testing.assert_array_equal(most_similar(queries, candidates, 5, max_candidates=900), exact)


def test_progress_counts_up_to_all_queries():
    seen = []
    most_similar(codes(0, 3000, 4, 5), codes(1, 50, 4, 5), progress=lambda *numbers: seen.append(numbers))
    done = [d for d, _ in seen]
    assert done == sorted(set(done))
    assert seen[-1] == (3000, 3000)
    assert len(seen) > 2


def test_an_interrupt_stops_the_search_and_leaves_no_thread():
    calls = []

    def stop(done, total):
        calls.append(done)
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        most_similar(codes(0, 20_000, 4, 5), codes(1, 5000, 4, 5), n_jobs=2, progress=stop)
    assert len(calls) == 1
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"k": 0}, ValueError, "k is 0"),
        ({"n_jobs": 0}, ValueError, "n_jobs is 0"),
        ({"seed": -1}, ValueError, "seed is -1"),
        ({"k": 3, "max_candidates": 2}, ValueError, "raise it to at least k"),
        ({"candidates": np.zeros((0, 3), dtype=int)}, ValueError, "no candidates"),
        ({"candidates": np.zeros((5, 4), dtype=int)}, ValueError, r"\[3, 4\] hashes"),
        ({"candidates": np.zeros(5, dtype=int)}, ValueError, "1 dimensions"),
        ({"candidates": np.zeros((5, 3))}, TypeError, "float64"),
        ({"queries": [[1, 2, 3]]}, TypeError, "list"),
        (dict.fromkeys(("queries", "candidates"), np.zeros((5, 0), dtype=int)), ValueError, "0 hashes"),
        (dict.fromkeys(("queries", "candidates"), np.zeros((5, 256), dtype=int)), ValueError, "256 hashes"),
    ],
)
def test_bad_arguments_say_what_is_wrong(change, error, message):
    arguments = {"queries": np.zeros((5, 3), dtype=int), "candidates": np.zeros((5, 3), dtype=int)} | change
    with pytest.raises(error, match=message):
        most_similar(**arguments)
