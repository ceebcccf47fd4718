"""Similar rows: for each row of one party, the rows of another that share the most hash values with it.

This is an exact nearest-neighbour search in Hamming distance over small categories. The paper looks only at
rows that share a bucket. With the handful of buckets its tables have, that is nearly every row, so we compare
all pairs, but 512 pairs at a time:

1. Candidates are cut into tiles of up to 2048. Per tile, each bucket of each hash gets a bitmap of the rows in it.
2. A query picks its bitmap of each hash and adds these up, bit position by bit position, with a carry-save
   adder (`_reaching`): one vector register holds one binary digit of 512 counts. The counters start so that
   they overflow at the count of the query's k-th best row so far. The overflow alone says who matters.
3. The few who matter are looked at one by one (`_rank`).

Step 3 stays short because queries and candidates are sorted by their first hashes and a query starts with the
tile nearest to it, where counting bits tells how many equal hash values the k-th best has at least.

Ties are drawn at random: every pair has a pseudo-random priority, made of a token of the query row and one of
the candidate row. Rows are looked at in the order of their tokens. So the result is a function of rows and tokens
alone, whatever the blocks and threads, and whatever the order in which the rows are given.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numba  # type: ignore[import-untyped,unused-ignore]
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]
from numba import types
from numba.core import cgutils  # type: ignore[import-untyped,unused-ignore]
from numba.extending import intrinsic  # type: ignore[import-untyped,unused-ignore]
from numpy.typing import NDArray

from simfl.params import MAX_HASHES, cores

Progress = Callable[[int, int], None]
Tokens = NDArray[np.uint64]
Block = Callable[[], int]  # compares some queries, returns how many
Function = TypeVar("Function", bound=Callable[..., Any])

BLOCK = 1024  # queries that share the bitmaps of a tile; exact search
BOUNDED_BLOCK = 512  # queries that share one random subset; bounded search
_BLOCKS_PER_CALL = 16  # of bounded search: between calls progress is told and an interrupt is heard

_LANES = 8  # 64-bit words per vector
_TILE_WORDS = 32  # small enough that the bitmaps of a tile stay in the second-level cache
_TILE = 64 * _TILE_WORDS
_COMPARED = 32  # codes per comparison of two rows
_MAX_SPAN = 2**16  # of bucket numbers; beyond that they are numbered anew
_NO_CLASS = 255  # padding beyond the last candidate: equal to no class
_MAX_BITMAPS = 8192  # per tile, so that a tile stays in the second-level cache
_FALSE_EQUALS = 0.005  # share of pairs that may share a class without sharing a bucket, per hash
_CLASS_COUNTS = (5, 7, 11, 17, 31, 61, 127, 251)  # prime: a regular gap between bucket numbers does no harm
_SAMPLE = 4096  # rows that the number of classes is chosen by

# A pair's rank is one number: 8 bits of count, 25 of random priority, 31 of the candidate's row.
_COUNT_SHIFT = np.uint64(56)
_ROW_MASK = np.uint64(2**31 - 1)


def most_similar(
    queries: NDArray[Any],
    candidates: NDArray[Any],
    k: int = 1,
    seed: int = 0,
    *,
    n_jobs: int | None = None,
    progress: Progress | None = None,
    max_candidates: int | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """For each query row the k candidate rows with the most equal hash values, and how many are equal.

    Both arrays hold integer bucket numbers, one row per row of the data and one column per hash. Rows come in
    falling order of count; among equal counts every candidate is equally likely, decided by `seed`.

    `max_candidates` bounds the search: each block of 512 queries looks at its own random subset of that many
    candidates. `n_jobs` is the number of threads (None: all cores). `progress(done, total)` is called as
    query rows get done.

    >>> rows, counts = most_similar(np.array([[1, 2, 3]]), np.array([[1, 0, 0], [1, 2, 0], [0, 0, 0]]), k=2)
    >>> rows.tolist(), counts.tolist()
    ([[1, 0]], [[2, 1]])
    """
    _check_codes([queries, candidates])
    if seed < 0:
        raise ValueError(f"seed is {seed}; give a number from 0 up.")
    keys = np.random.SeedSequence(seed).generate_state(3, np.uint64).tolist()
    return most_similar_by_token(
        queries,
        candidates,
        row_tokens(keys[0], len(queries)),
        row_tokens(keys[1], len(candidates)),
        k,
        draw_key=keys[2],
        n_jobs=n_jobs,
        progress=progress,
        max_candidates=max_candidates,
    )


def row_tokens(key: int, n_rows: int) -> Tokens:
    """One pseudo-random token per row number (SplitMix64); different keys give unrelated tokens."""
    tokens = np.arange(1, n_rows + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    tokens += np.uint64(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        tokens = (tokens ^ (tokens >> np.uint64(shift))) * np.uint64(factor)
    return tokens ^ (tokens >> np.uint64(31))


def most_similar_by_token(
    queries: NDArray[Any],
    candidates: NDArray[Any],
    query_tokens: Tokens,
    candidate_tokens: Tokens,
    k: int = 1,
    *,
    draw_key: int = 0,
    n_jobs: int | None = None,
    progress: Progress | None = None,
    max_candidates: int | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """`most_similar` with the tokens given: among equal counts the pair of tokens decides.

    Who gives the rows in another order, with their tokens, finds the same rows.
    """
    hashed = Hashed([queries, candidates])
    asking, found = hashed.asking(0, query_tokens), hashed.found(1, candidate_tokens, max_candidates)
    return hashed.compare(asking, found, k, draw_key=draw_key, n_jobs=n_jobs, progress=progress)


def _check_codes(tables: Sequence[NDArray[Any]]) -> None:
    for codes in tables:
        if not isinstance(codes, np.ndarray) or not np.issubdtype(codes.dtype, np.integer):
            found = getattr(codes, "dtype", type(codes).__name__)
            raise TypeError(f"Hash values of type {found} were given; give a NumPy array of integer bucket numbers.")
        if codes.ndim != 2:
            raise ValueError(f"Hash values with {codes.ndim} dimensions were given; give 2: rows and hashes.")
    widths = {codes.shape[1] for codes in tables}
    if len(widths) > 1:
        raise ValueError(f"Rows with {sorted(widths)} hashes were given; hash all of them with the same functions.")
    if not 1 <= min(widths) <= MAX_HASHES:
        raise ValueError(f"The codes have {min(widths)} hashes; use 1 to {MAX_HASHES}.")


def _check_numbers(k: int, n_jobs: int | None, max_candidates: int | None, n_candidates: int) -> None:
    if n_candidates == 0:
        raise ValueError("There are no candidates; leave out the party without rows.")
    if k < 1:
        raise ValueError(f"k is {k}; ask for at least 1 row.")
    if n_jobs is not None and n_jobs < 1:
        raise ValueError(f"n_jobs is {n_jobs}; give at least 1 thread, or None for all cores.")
    if max_candidates is not None and max_candidates < min(k, n_candidates):
        raise ValueError(f"max_candidates is {max_candidates}, fewer than k = {k}; raise it to at least k.")


# ------------------------------------------------------------------------------------------------- the tables


@dataclass(frozen=True)
class _Side:
    """One table's rows, ready to be compared: bucket numbers from 0 for each hash, as bytes where they fit."""

    order: NDArray[np.int32]  # the given row at each place of the order of tokens
    codes: NDArray[Any]  # (rows, hashes padded to whole vectors), uint8 or uint32
    tokens: Tokens

    @functools.cached_property
    def by_first_hashes(self) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
        """The rows in an order in which like ones stand together, and the keys of that order."""
        keys = np.zeros(len(self.codes), dtype=np.uint64)
        for h in range(min(8, self.codes.shape[1])):
            keys = (keys << np.uint64(8)) | (self.codes[:, h] & 255).astype(np.uint64)
        order = np.argsort(keys)
        return order.astype(np.int32), keys[order]


@dataclass(frozen=True)
class _Candidates(_Side):
    """Rows to be found. All of them: by their first hashes; a subset for each block: by their tokens."""

    rows: NDArray[np.int32]  # the place in the order of tokens of each row
    keys: NDArray[np.uint64]
    classes: NDArray[np.uint8]  # (hashes, rows padded to whole tiles)
    subset: int | None  # how many a block of queries is compared with; None: all


class Hashed:
    """Hash values of several tables, numbered alike once; then each table can be compared with each.

    A hash has as many bitmaps as it has classes; buckets share one if they are equal modulo that number. Counts over
    bitmaps are upper bounds: they decide who is looked at, the buckets decide who is kept.
    """

    def __init__(self, tables: Sequence[NDArray[Any]]) -> None:
        _check_codes(tables)
        self.tables = [np.ascontiguousarray(codes) for codes in tables]
        if any(codes.dtype == np.uint64 for codes in self.tables) or np.max(_spans(self.tables)[1]) >= _MAX_SPAN:
            self.tables = _number(self.tables)
        self.lows, spans = _spans(self.tables)
        self.dtype = np.uint8 if spans.max() < 256 else np.uint32
        self.n_classes = np.empty(len(spans), dtype=np.int64)
        self.class_of = np.zeros((len(spans), int(spans.max()) + 1), dtype=np.uint8)
        step = 1 + sum(map(len, self.tables)) // _SAMPLE
        sample = np.concatenate([codes[::step].astype(np.int64) - self.lows for codes in self.tables])
        _choose_classes(sample, spans.astype(np.int64) + 1, self.n_classes, self.class_of)
        self.offsets = (self.class_of + (np.cumsum(self.n_classes) - self.n_classes)[:, None]) * _TILE_WORDS

    def asking(self, table: int, tokens: Tokens) -> _Side:
        """The rows of a table as queries."""
        order = np.argsort(tokens).astype(np.int32)
        return _Side(order, self._codes(table, order, padding=0), tokens[order])

    def found(self, table: int, tokens: Tokens, max_candidates: int | None = None) -> _Candidates:
        """The rows of a table as candidates: all of them, or a random subset for each block of queries."""
        order = np.argsort(tokens).astype(np.int32)
        side = _Side(order, self._codes(table, order, padding=1), tokens[order])
        n = len(order)
        subset = None if max_candidates is None or max_candidates >= n else max_candidates
        rows, keys = (np.arange(n, dtype=np.int32), np.empty(0, np.uint64)) if subset else side.by_first_hashes
        codes, tokens = (side.codes, side.tokens) if subset else (side.codes[rows], side.tokens[rows])
        classes = np.full((len(self.lows), n if subset else _padded(n)), _NO_CLASS, dtype=np.uint8)
        _fill_classes(codes, self.class_of, classes)
        return _Candidates(order, codes, tokens, rows, keys, classes, subset)

    def _codes(self, table: int, order: NDArray[np.int32], padding: int) -> NDArray[Any]:
        # The padding differs between the sides, so that it never counts as equal.
        width = -(-len(self.lows) // _COMPARED) * _COMPARED
        codes = np.full((len(order), width), padding, dtype=self.dtype)
        _fill_codes(self.tables[table], order, self.lows, codes)
        return codes

    def compare(
        self,
        asking: _Side,
        found: _Candidates,
        k: int,
        *,
        draw_key: int = 0,
        n_jobs: int | None = None,
        progress: Progress | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """For each row that asks the k most similar ones, and how many hash values are equal."""
        n_queries, n_candidates = len(asking.order), len(found.order)
        _check_numbers(k, n_jobs, found.subset, n_candidates)
        n_jobs = n_jobs or cores()
        rows = np.empty((n_queries, min(k, n_candidates)), dtype=np.int32)
        counts = np.empty(rows.shape, dtype=np.uint8)
        search = _Search(self, asking, found, rows, counts)
        blocks = search.bounded_blocks(found.subset, draw_key) if found.subset else search.exact_blocks(n_jobs)
        _run(blocks, n_jobs, n_queries, progress)
        # From the order of tokens to the given one, on both sides.
        given_rows, given_counts = np.empty_like(rows), np.empty_like(counts)
        given_rows[asking.order], given_counts[asking.order] = np.take(found.order, rows), counts
        return given_rows, given_counts


def _spans(tables: Sequence[NDArray[Any]]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """The lowest value of each hash, and how far the highest is from it."""
    lows, highs = np.full(tables[0].shape[1], 2**63 - 1), np.full(tables[0].shape[1], -(2**63))
    for codes in tables:
        _widen(codes, lows, highs)
    empty = highs < lows  # no row at all
    lows[empty] = highs[empty] = 0
    return lows, highs.astype(np.uint64) - lows.astype(np.uint64)


def _number(tables: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Distinct values of all tables as 0, 1, ..., for hash values that are far apart."""
    kinds = {codes.dtype for codes in tables}
    mixed = np.dtype(np.uint64) in kinds and any(kind.kind == "i" for kind in kinds)  # together: floats
    together = np.concatenate([codes.astype(object) if mixed else codes for codes in tables])
    numbers = [np.unique(column, return_inverse=True)[1].reshape(-1) for column in together.T]
    return np.split(np.stack(numbers, axis=1).astype(np.uint32), np.cumsum([len(codes) for codes in tables])[:-1])


# ------------------------------------------------------------------------------------------------- the blocks


@dataclass(frozen=True)
class _Search:
    """One comparison of two tables, and the arrays that each block of queries fills in."""

    hashed: Hashed
    asking: _Side
    found: _Candidates
    rows: NDArray[np.int32]
    counts: NDArray[np.uint8]

    def exact_blocks(self, n_jobs: int) -> Iterator[Block]:
        """Blocks of alike queries, each to be compared with all candidates, the most alike first."""
        order, keys = self.asking.by_first_hashes
        size = max(1, min(BLOCK, -(-len(order) // (4 * n_jobs)))) if n_jobs > 1 else BLOCK
        for start in range(0, len(order), size):
            block = order[start : start + size]
            middle = int(np.searchsorted(self.found.keys, keys[start + len(block) // 2]))
            yield self._exact(block, middle // _tile_size(len(self.found.order)))

    def bounded_blocks(self, n_chosen: int, draw_key: int) -> Iterator[Block]:
        """Blocks of neighbouring queries, each to be compared with a random subset of its own."""
        stretch = _BLOCKS_PER_CALL * BOUNDED_BLOCK
        for start in range(0, len(self.rows), stretch):
            yield self._bounded(start, min(start + stretch, len(self.rows)), n_chosen, draw_key)

    def _exact(self, queries: NDArray[np.int32], first_tile: int) -> Block:
        def run() -> int:
            self.rows[queries], self.counts[queries] = _compare_block(
                self.asking.codes[queries],
                self.asking.tokens[queries],
                self.found.rows,
                self.found.codes,
                self.found.tokens,
                self.found.classes,
                self.hashed.n_classes,
                self.hashed.offsets,
                first_tile,
                self.rows.shape[1],
            )
            return len(queries)

        return run

    def _bounded(self, start: int, end: int, n_chosen: int, draw_key: int) -> Block:
        def run() -> int:
            _compare_bounded(
                self.asking.codes,
                self.asking.tokens,
                self.found.codes,
                self.found.tokens,
                self.found.classes,
                self.hashed.n_classes,
                self.hashed.offsets,
                n_chosen,
                np.uint64(draw_key),
                start,
                end,
                self.rows,
                self.counts,
            )
            return end - start

        return run


def _run(blocks: Iterator[Block], n_jobs: int, total: int, progress: Progress | None) -> None:
    """Run blocks on threads. An interrupt, or an error in `progress`, stops after the blocks under way."""
    done = 0
    if n_jobs == 1:
        for block in blocks:
            done += block()
            if progress is not None:
                progress(done, total)
        return
    pool = ThreadPoolExecutor(n_jobs)
    try:
        for future in _finished(pool, blocks, 2 * n_jobs):
            done += future.result()
            if progress is not None:
                progress(done, total)
    finally:
        pool.shutdown(cancel_futures=True)


def _finished(pool: ThreadPoolExecutor, blocks: Iterator[Block], ahead: int) -> Iterator[Future[int]]:
    """Futures of the blocks as they finish, never more than `ahead` waiting."""
    waiting: set[Future[int]] = set()
    for block in blocks:
        waiting.add(pool.submit(block))
        if len(waiting) >= ahead:
            finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from finished
    while waiting:
        finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        yield from finished


# ------------------------------------------------------------------------------------------------ the kernels


def _kernel(function: Function) -> Function:
    """Compiled at the first call, kept on disk, free of the interpreter lock."""
    return cast(Function, numba.njit(nogil=True, cache=True)(function))


@_kernel
def _tile_size(n_rows: Any) -> Any:
    """How many candidates a tile has: whole vectors, spread evenly over as few tiles as it takes."""
    per_vector = 64 * _LANES
    n_vectors = max((n_rows + per_vector - 1) // per_vector, 1)
    n_tiles = (n_vectors * per_vector + _TILE - 1) // _TILE
    return (n_vectors + n_tiles - 1) // n_tiles * per_vector


@_kernel
def _padded(n_rows: Any) -> Any:
    """So many rows, filled up to whole tiles."""
    tile = _tile_size(n_rows)
    return (n_rows + tile - 1) // tile * tile


@_kernel
def _widen(codes: Any, lows: Any, highs: Any) -> None:
    for i in range(codes.shape[0]):
        for h in range(codes.shape[1]):
            value = np.int64(codes[i, h])
            lows[h], highs[h] = min(lows[h], value), max(highs[h], value)


@_kernel
def _fill_codes(table: Any, order: Any, lows: Any, codes: Any) -> None:
    """Bucket numbers from 0, in this order of the rows."""
    for i in range(order.size):
        for h in range(lows.size):
            codes[i, h] = np.int64(table[order[i], h]) - lows[h]


@_kernel
def _fill_classes(codes: Any, class_of: Any, classes: Any) -> None:
    for i in range(codes.shape[0]):
        for h in range(class_of.shape[0]):
            classes[h, i] = class_of[h, codes[i, h]]


@_kernel
def _choose_classes(sample: Any, spans: Any, n_classes: Any, class_of: Any) -> None:
    """The fewest classes under which hardly a pair looks equal that is not: less to draw, less to cache."""
    most = _MAX_BITMAPS // spans.size
    for h in range(spans.size):
        shares = np.zeros(spans[h])
        for i in range(sample.shape[0]):
            shares[sample[i, h]] += 1.0 / sample.shape[0]
        n_classes[h] = _n_classes(shares, min(spans[h], most))
        for value in range(spans[h]):
            class_of[h, value] = value % n_classes[h]


@_kernel
def _n_classes(shares: Any, most: Any) -> Any:
    for n_classes in _CLASS_COUNTS:
        if n_classes >= most:
            break
        alike = np.zeros(n_classes)
        for value in range(shares.size):
            alike[value % n_classes] += shares[value]
        if (alike * alike).sum() - (shares * shares).sum() < _FALSE_EQUALS:
            return n_classes
    return min(most, _CLASS_COUNTS[-1])


@_kernel
def _fill_tiles(classes: Any, rows: Any, tiles: Any) -> None:
    for h in range(classes.shape[0]):
        for i in range(rows.size):
            tiles[h, i] = classes[h, rows[i]]


@_kernel
def _token(key: Any, row: Any) -> Any:
    """One of `row_tokens`."""
    token = np.uint64(row + 1) * np.uint64(0x9E3779B97F4A7C15) + key
    token = (token ^ (token >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    token = (token ^ (token >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return token ^ (token >> np.uint64(31))


@_kernel
def _draw_rows(n_all: Any, key: Any, drawn: Any) -> None:
    """A random subset: one row from each of `drawn.size` equal stretches of all rows.

    Stretches instead of free draws: distinct rows, in time that does not depend on n_all. The random turn
    makes every row equally likely although the stretches differ in length by one.
    """
    turn = (_token(key, 0) >> np.uint64(32)) * np.uint64(n_all) >> np.uint64(32)
    for i in range(drawn.size):
        first, end = np.uint64(i * n_all // drawn.size), np.uint64((i + 1) * n_all // drawn.size)
        row = first + ((_token(key, i + 1) >> np.uint64(32)) * (end - first) >> np.uint64(32))
        drawn[i] = (row + turn) % np.uint64(n_all)


@_kernel
def _compare_bounded(
    query_codes: Any,
    query_tokens: Any,
    candidate_codes: Any,
    candidate_tokens: Any,
    classes: Any,
    n_classes: Any,
    offsets: Any,
    n_chosen: Any,
    draw_key: Any,
    first: Any,
    last: Any,
    rows: Any,
    counts: Any,
) -> None:
    """Compare the queries from `first` to `last`, block by block, each block with its own random candidates."""
    chosen = np.empty(n_chosen, dtype=np.int32)
    codes = np.empty((n_chosen, candidate_codes.shape[1]), dtype=candidate_codes.dtype)
    tokens = np.empty(n_chosen, dtype=np.uint64)
    tiles = np.full((classes.shape[0], _padded(n_chosen)), np.uint8(_NO_CLASS), dtype=np.uint8)
    for start in range(first, last, BOUNDED_BLOCK):
        end = min(start + BOUNDED_BLOCK, last)
        _draw_rows(candidate_tokens.size, _token(draw_key, start // BOUNDED_BLOCK), chosen)
        for i in range(n_chosen):
            codes[i], tokens[i] = candidate_codes[chosen[i]], candidate_tokens[chosen[i]]
        _fill_tiles(classes, chosen, tiles)
        rows[start:end], counts[start:end] = _compare_block(
            query_codes[start:end],
            query_tokens[start:end],
            chosen,
            codes,
            tokens,
            tiles,
            n_classes,
            offsets,
            0,
            rows.shape[1],
        )


@_kernel
def _compare_block(
    query_codes: Any,
    query_tokens: Any,
    rows: Any,
    codes: Any,
    tokens: Any,
    tiles: Any,
    n_classes: Any,
    offsets: Any,
    first_tile: Any,
    k: Any,
) -> Any:
    """The k best rows of each query and their counts."""
    n_queries = query_tokens.size
    tile = _tile_size(rows.size)
    n_tiles = tiles.shape[1] // tile
    picks = _bitmap_offsets(query_codes, offsets)
    bitmaps = np.empty(n_classes.sum() * _TILE_WORDS, dtype=np.uint64)
    masks = np.empty((n_queries, tile // 64), dtype=np.uint64)
    hits = np.empty(n_queries, dtype=np.uint32)
    ranks = np.zeros((n_queries, k), dtype=np.uint64)
    floors = np.zeros(n_queries, dtype=np.int64)
    for step in range(n_tiles):
        # First the tile nearest to the queries, then by turns to its left and right.
        away = (step + 1) // 2 if step % 2 else -(step // 2)
        first = (first_tile + away) % n_tiles * tile
        _draw_bitmaps(tiles, first, tile // 64, n_classes, bitmaps)
        if step == 0:
            n_hits = _guess_floors(bitmaps, picks, k, masks, floors, hits)
            guesses = floors.copy()
        else:
            n_hits = _filter(bitmaps, picks, floors, masks, hits)
        _rank(query_codes, query_tokens, rows, codes, tokens, hits[:n_hits], masks, first, ranks, floors)
        if step == 0:
            n_hits = _undo_bad_guesses(bitmaps, picks, floors, guesses, masks, hits, ranks)
            _rank(query_codes, query_tokens, rows, codes, tokens, hits[:n_hits], masks, first, ranks, floors)
    return _unpack(ranks, query_tokens)


@_kernel
def _unpack(ranks: Any, query_tokens: Any) -> Any:
    rows = np.empty(ranks.shape, dtype=np.int32)
    counts = np.empty(ranks.shape, dtype=np.uint8)
    for q in range(ranks.shape[0]):
        for i in range(ranks.shape[1]):
            rows[q, i] = (ranks[q, i] ^ query_tokens[q]) & _ROW_MASK
            counts[q, i] = ranks[q, i] >> _COUNT_SHIFT
    return rows, counts


@_kernel
def _bitmap_offsets(query_codes: Any, offsets: Any) -> Any:
    """Per query and hash, where in a tile the bitmap of its class is, in words."""
    picks = np.empty((query_codes.shape[0], offsets.shape[0]), dtype=np.uint32)
    for q in range(query_codes.shape[0]):
        for h in range(offsets.shape[0]):
            picks[q, h] = offsets[h, query_codes[q, h]]
    return picks


@_kernel
def _draw_bitmaps(tiles: Any, first: Any, n_words: Any, n_classes: Any, bitmaps: Any) -> None:
    """Per hash and class, one bit for each candidate of the tile."""
    bitmap = 0
    for h in range(n_classes.size):
        for c in range(n_classes[h]):
            for word in range(n_words):
                bitmaps[bitmap * _TILE_WORDS + word] = _equal_bits(tiles, h * tiles.shape[1] + first + 64 * word, c)
            bitmap += 1


@_kernel
def _guess_floors(bitmaps: Any, picks: Any, k: Any, masks: Any, floors: Any, hits: Any) -> Any:
    """The count of each query's k-th best candidate of the tile, going by classes, and who reaches it."""
    n_digits = 5 if picks.shape[1] < 32 else 6 if picks.shape[1] < 64 else 8
    n_words = masks.shape[1]
    planes = np.empty((n_digits, n_words), dtype=np.uint64)
    level, above = np.empty(n_words, dtype=np.uint64), np.empty(n_words, dtype=np.uint64)
    for q in range(floors.size):
        _count(bitmaps, picks, q, planes)
        # Digit by digit from the highest: `level` has all digits of the k-th best so far, `above` is better.
        level[:] = ~np.uint64(0)
        above[:] = 0
        wanted, floor = k, 0
        for digit in range(n_digits - 1, -1, -1):
            n_with = 0
            for word in range(n_words):
                n_with += _n_bits(level[word] & planes[digit, word])
            if n_with >= wanted:
                floor |= 1 << digit
                for word in range(n_words):
                    level[word] &= planes[digit, word]
            else:
                wanted -= n_with
                for word in range(n_words):
                    above[word] |= level[word] & planes[digit, word]
                    level[word] &= ~planes[digit, word]
        floors[q], hits[q] = floor, q
        for word in range(n_words):
            masks[q, word] = level[word] | above[word]
    return floors.size


@_kernel
def _undo_bad_guesses(
    bitmaps: Any,
    picks: Any,
    floors: Any,
    guesses: Any,
    masks: Any,
    hits: Any,
    ranks: Any,
) -> Any:
    """Start again the queries whose k-th best falls short of the guess: they passed over candidates."""
    n_hits = 0
    for q in range(floors.size):
        if floors[q] < guesses[q]:
            ranks[q] = 0
            _reaching(bitmaps, picks, q, floors[q], masks)
            hits[n_hits] = q
            n_hits += 1
    return n_hits


@_kernel
def _filter(bitmaps: Any, picks: Any, floors: Any, masks: Any, hits: Any) -> Any:
    """List the queries that have candidates at or above their floor in this tile."""
    n_hits = 0
    for q in range(floors.size):
        hits[n_hits] = q
        n_hits += _reaching(bitmaps, picks, q, floors[q], masks)
    return n_hits


@_kernel
def _rank(
    query_codes: Any,
    query_tokens: Any,
    rows: Any,
    codes: Any,
    tokens: Any,
    hits: Any,
    masks: Any,
    first: Any,
    ranks: Any,
    floors: Any,
) -> None:
    """Look at the candidates in the masks one by one and keep the best."""
    last = ranks.shape[1] - 1
    for q in hits:
        for word in range(masks.shape[1]):
            bits = masks[q, word]
            while bits != 0:
                at = first + 64 * word + _lowest_bit(bits)
                bits &= bits - np.uint64(1)
                if at >= rows.size:  # padding
                    break
                rank = (_n_equal(query_codes, q, codes, at) << _COUNT_SHIFT) | _priority(
                    query_tokens[q], tokens[at], rows[at]
                )
                if rank > ranks[q, last]:
                    _insert(ranks, q, rank)
        floors[q] = np.int64(ranks[q, last] >> _COUNT_SHIFT)


@_kernel
def _priority(query_token: Any, token: Any, row: Any) -> Any:
    """Who comes first among equal counts: 25 bits of MurmurHash3's finaliser of the tokens, then the row.

    The row is there to be read back. The query's token turns its order, so that no row wins more often.
    """
    pair = query_token ^ token
    pair = (pair ^ (pair >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    pair = (pair ^ (pair >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return (pair >> np.uint64(39) << np.uint64(31)) | ((query_token ^ np.uint64(row)) & _ROW_MASK)


@_kernel
def _insert(ranks: Any, q: Any, rank: Any) -> None:
    """Put a rank in its place in a query's falling order; the last one drops out."""
    at = ranks.shape[1] - 1
    while at > 0 and ranks[q, at - 1] < rank:
        ranks[q, at] = ranks[q, at - 1]
        at -= 1
    ranks[q, at] = rank


# ------------------------------------------------------------------------------ vectors, spelled out for LLVM
#
# The compiler does not turn these loops into vector code by itself: it cannot rule out that the many arrays
# overlap. So we write the vector operations, LLVM's portable ones; each machine gets its own instructions.


def _operation(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that gives the types of an operation and writes its code, as the operation itself."""
    return cast(Callable[..., Any], intrinsic(function))


_WORD = ir.IntType(64)
_VECTOR = ir.VectorType(_WORD, _LANES)


def _number_of(value: int) -> Any:
    return ir.Constant(_WORD, value)


def _address(context: Any, builder: Any, array_type: Any, array: Any, offset: Any, pointer_to: Any) -> Any:
    """Pointer to the element at a flat offset of a contiguous array."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), pointer_to.as_pointer())


def _width(context: Any, builder: Any, array_type: Any, array: Any) -> Any:
    """The second dimension of an array."""
    return builder.extract_value(context.make_array(array_type)(context, builder, array).shape, 1)


def _slot(builder: Any, start: Any) -> Any:
    """A variable; LLVM keeps it in a register."""
    with builder.goto_entry_block():
        slot = builder.alloca(start.type)
    builder.store(start, slot)
    return slot


def _splat(builder: Any, value: Any, n: int) -> Any:
    vector = ir.VectorType(value.type, n)
    index = ir.IntType(32)
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), value, index(0))
    return builder.shuffle_vector(single, single, ir.Constant(ir.VectorType(index, n), [0] * n))


@_operation
def _n_bits(typing: Any, word: Any) -> Any:
    return types.int64(types.uint64), lambda context, builder, signature, args: builder.ctpop(args[0])


@_operation
def _lowest_bit(typing: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.int64(types.uint64), generate


@_operation
def _equal_bits(typing: Any, codes: Any, offset: Any, code: Any) -> Any:
    """A word whose bits say which of the 64 bytes from the offset on equal the code."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bytes64 = ir.VectorType(ir.IntType(8), 64)
        loaded = builder.load(_address(context, builder, codes, args[0], args[1], bytes64), align=1)
        wanted = _splat(builder, builder.trunc(args[2], ir.IntType(8)), 64)
        return builder.bitcast(builder.icmp_unsigned("==", loaded, wanted), _WORD)

    return types.uint64(codes, types.int64, types.int64), generate


@_operation
def _n_equal(typing: Any, queries: Any, q: Any, candidates: Any, at: Any) -> Any:
    """In how many places two rows are equal."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(context.get_data_type(queries.dtype), _COMPARED)
        width = _width(context, builder, queries, args[0])
        total = _slot(builder, _number_of(0))
        with cgutils.for_range_slice(builder, _number_of(0), width, _number_of(_COMPARED), _WORD) as (h, _):
            query, candidate = (
                builder.load(
                    _address(
                        context,
                        builder,
                        array,
                        args[i],
                        builder.add(builder.mul(args[i + 1], width), h),
                        vector,
                    ),
                    align=1,
                )
                for i, array in ((0, queries), (2, candidates))
            )
            equal = builder.icmp_unsigned("==", query, candidate)
            n_equal = builder.ctpop(builder.bitcast(equal, ir.IntType(_COMPARED)))
            builder.store(builder.add(builder.load(total), builder.zext(n_equal, _WORD)), total)
        return builder.load(total)

    return types.uint64(queries, types.int64, candidates, types.int64), generate


def _add_bits(builder: Any, digits: list[Any], bits: list[Any]) -> list[Any]:
    """Add bits to binary counters, lane by lane: digits[0] holds the ones, digits[1] the twos, ..."""
    digits = list(digits)
    for place, digit in enumerate(digits):
        carries = []
        while bits:
            a, b = bits[0], bits[1] if len(bits) > 1 else None
            bits = bits[2:]
            if b is None:
                carries.append(builder.and_(digit, a))
                digit = builder.xor(digit, a)
            else:
                either = builder.or_(digit, a)
                carries.append(builder.or_(builder.and_(digit, a), builder.and_(b, either)))
                digit = builder.xor(builder.xor(digit, a), b)
        digits[place], bits = digit, carries
    return digits


def _emit_adder(builder: Any, slots: list[Any], load: Callable[[Any], Any], n_hashes: Any) -> None:
    """Add one bitmap per hash to the counters in the slots: first the odd ones, then eight at a time."""

    def add(first: Any, n: int) -> None:
        bits = [load(builder.add(first, _number_of(i))) for i in range(n)]
        digits = _add_bits(builder, [builder.load(slot) for slot in slots], bits)
        for slot, digit in zip(slots, digits, strict=True):
            builder.store(digit, slot)

    odd = builder.and_(n_hashes, _number_of(7))
    eights = builder.append_basic_block("eights")
    choice = builder.switch(odd, eights)
    for n in range(1, 8):
        with builder.goto_block(builder.append_basic_block("odd")):
            choice.add_case(n, builder.block)
            add(_number_of(0), n)
            builder.branch(eights)
    builder.position_at_end(eights)
    with cgutils.for_range_slice(builder, odd, n_hashes, _number_of(8), _WORD) as (first, _):
        add(first, 8)


def _emit_cases(builder: Any, n_hashes: Any) -> Iterator[int]:
    """Code for each number of binary digits that counts of so many hashes can need; fewer digits are faster."""
    few = builder.icmp_unsigned("<", n_hashes, _number_of(32))
    with builder.if_else(few) as (few_hashes, more_hashes):
        with few_hashes:
            yield 5
        with more_hashes:
            some = builder.icmp_unsigned("<", n_hashes, _number_of(64))
            with builder.if_else(some) as (some_hashes, many_hashes):
                with some_hashes:
                    yield 6
                with many_hashes:
                    yield 8


@_operation
def _reaching(typing: Any, bitmaps: Any, picks: Any, q: Any, floor: Any, masks: Any) -> Any:
    """Set query q's mask: whose bits in the bitmaps it picks sum to at least the floor. Is it anybody?"""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        n_hashes = _width(context, builder, picks, args[1])
        anybody = _slot(builder, ir.Constant(_VECTOR, None))
        for n_digits in _emit_cases(builder, n_hashes):
            _emit_tile(context, builder, (bitmaps, picks, masks), args, n_hashes, n_digits, anybody)
        return builder.icmp_unsigned("!=", _any(builder, builder.load(anybody)), _number_of(0))

    return types.boolean(bitmaps, picks, types.int64, types.int64, masks), generate


def _any(builder: Any, vector: Any) -> Any:
    parts = [builder.extract_element(vector, ir.IntType(32)(lane)) for lane in range(_LANES)]
    return functools.reduce(builder.or_, parts)


def _emit_tile(
    context: Any,
    builder: Any,
    arrays: Any,
    args: Any,
    n_hashes: Any,
    n_digits: int,
    anybody: Any,
) -> None:
    """Code for one query and one tile, with counters of so many digits and one for the overflow."""
    bitmaps, picks, masks = arrays
    n_words = _width(context, builder, masks, args[4])
    first_word = builder.mul(args[2], n_words)
    start = builder.sub(_number_of(1 << n_digits), args[3])  # adding the floor or more overflows
    places = [builder.and_(builder.lshr(start, _number_of(i)), _number_of(1)) for i in range(n_digits + 1)]
    digits = [_splat(builder, builder.neg(place), _LANES) for place in places]
    with _emit_sums(context, builder, (bitmaps, picks), args, n_hashes, n_words, digits) as (word, slots):
        overflow = builder.load(slots[-1])
        at = builder.add(first_word, word)
        builder.store(overflow, _address(context, builder, masks, args[4], at, _VECTOR), align=8)
        builder.store(builder.or_(builder.load(anybody), overflow), anybody)


@_operation
def _count(typing: Any, bitmaps: Any, picks: Any, q: Any, planes: Any) -> Any:
    """The digits of the counts of all candidates of the tile, for query q: planes[0] holds the ones, ..."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        n_hashes = _width(context, builder, picks, args[1])
        n_words = _width(context, builder, planes, args[3])
        for n_digits in _emit_cases(builder, n_hashes):
            zeros = [ir.Constant(_VECTOR, None)] * n_digits
            with _emit_sums(context, builder, (bitmaps, picks), args, n_hashes, n_words, zeros) as (word, slots):
                for number, slot in enumerate(slots):
                    at = builder.add(word, builder.mul(n_words, _number_of(number)))
                    target = _address(context, builder, planes, args[3], at, _VECTOR)
                    builder.store(builder.load(slot), target, align=8)
        return context.get_dummy_value()

    return types.void(bitmaps, picks, types.int64, planes), generate


@contextlib.contextmanager
def _emit_sums(
    context: Any, builder: Any, arrays: Any, args: Any, n_hashes: Any, n_words: Any, start: list[Any]
) -> Iterator[tuple[Any, list[Any]]]:
    """Code that adds up query q's bitmaps of one tile, vector by vector; what follows finds the digits in the slots."""
    bitmaps, picks = arrays
    first_pick = builder.mul(args[2], n_hashes)
    slots = [_slot(builder, digit) for digit in start]
    with cgutils.for_range_slice(builder, _number_of(0), n_words, _number_of(_LANES), _WORD) as (word, _):

        def load(h: Any) -> Any:
            at = builder.add(first_pick, h)
            pick = builder.load(_address(context, builder, picks, args[1], at, ir.IntType(32)))
            offset = builder.add(builder.zext(pick, _WORD), word)
            return builder.load(_address(context, builder, bitmaps, args[0], offset, _VECTOR), align=8)

        for slot, digit in zip(slots, start, strict=True):
            builder.store(digit, slot)
        _emit_adder(builder, slots, load, n_hashes)
        yield word, slots
