"""Similar rows: for each row of one party, the rows of another that share the most hash values with it.

This is an exact nearest-neighbour search in Hamming distance over small categories. The paper looks only at
rows that share a bucket. With the handful of buckets its tables have, that is nearly every row, so we compare
all pairs, but 512 pairs at a time:

1. Candidates are cut into tiles of up to 2048. Per tile, each bucket of each hash gets a bitmap of the rows in it.
2. A query picks its bitmap of each hash and adds these up, bit position by bit position, with a carry-save
   adder (`_vectors.reaching`): one vector register holds one binary digit of 512 counts. The counters start so that
   they overflow at the count of the query's k-th best row so far. The overflow alone says who matters.
3. The few who matter are looked at one by one (`_kernels._rank`).

Tables of few rows are compared in NumPy, pair by pair: their search takes less time than the compilation of the above.

Step 3 stays short because queries and candidates are sorted by their first hashes and a query starts with the
tile nearest to it, where counting bits gives a lower bound on the equal hash values of the k-th best.

Ties are drawn at random: every pair has a pseudo-random priority, made of a token of the query row and one of
the candidate row. Rows are looked at in the order of their tokens. So the result is a function of rows and tokens
alone, whatever the blocks and threads, and whatever the order in which the rows are given.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simfl.arrays import Codes, Ints
from simfl.params import MAX_HASHES, cores
from simfl.preprocessing import _kernels as kernels
from simfl.preprocessing._kernels import BOUNDED_BLOCK, CandidateBlock, Classes, QueryBlock
from simfl.preprocessing._vectors import COMPARED
from simfl.preprocessing.splitmix import RowTokens, row_tokens

Progress = Callable[[int, int], None]
Keys = NDArray[np.uint64]
Found = tuple[Ints, NDArray[np.uint8]]  # for each query the rows found, and how many hash values are equal
Block = tuple[Any, Callable[[], Found]]  # the places of some queries, and their search

BLOCK = 1024  # queries that share the bitmaps of a tile; exact search
_BLOCKS_PER_CALL = 16  # of bounded search: between calls, progress is reported and an interrupt is noticed
_MAX_SPAN = 2**16  # of bucket numbers; beyond that they are numbered again
_SAMPLE = 4096  # rows that the number of classes is chosen by
_FEW_ROWS = 1000  # of all tables together: nothing is compiled for them, NumPy compares all pairs

_MAX_BITMAPS = 8192  # per tile, so that a tile stays in the second-level cache
_FALSE_EQUALS = 0.005  # share of pairs that may share a class without sharing a bucket, per hash
_CLASS_COUNTS = (5, 7, 11, 17, 31, 61, 127, 251)  # prime: a regular gap between bucket numbers does no harm


def most_similar(
    queries: Codes,
    candidates: Codes,
    k: int = 1,
    seed: int = 0,
    *,
    n_jobs: int | None = None,
    progress: Progress | None = None,
    max_candidates: int | None = None,
) -> Found:
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
    index = HashIndex([queries, candidates])
    if seed < 0:
        raise ValueError(f"seed is {seed}; give a number from 0 up.")
    keys = np.random.SeedSequence(seed).generate_state(3, np.uint64).tolist()
    searching = index.queries(0, row_tokens(keys[0], len(queries)))
    searched = index.candidates(1, row_tokens(keys[1], len(candidates)), max_candidates)
    return index.compare(searching, searched, k, draw_key=keys[2], n_jobs=n_jobs, progress=progress)


def order_by_likeness(hashes: Codes) -> Ints:
    """The rows in an order in which those that share their first hash values are adjacent.

    >>> order_by_likeness(np.array([[7, 1], [5, 2], [7, 0]]))
    array([1, 2, 0], dtype=int32)
    """
    return _by_likeness(hashes - hashes.min(axis=0))[0]


def _by_likeness(codes: Codes) -> tuple[Ints, Keys]:
    """That order, by the last byte of each of the first eight codes, and the keys in that order."""
    keys = np.zeros(len(codes), dtype=np.uint64)
    for column in codes.T[:8]:
        keys = (keys << np.uint64(8)) | (column & 255).astype(np.uint64)
    order = np.argsort(keys, kind="stable")
    return order.astype(np.int32), keys[order]


# --- the tables ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Queries:
    """A table's rows, ready to look for similar ones, in the order of their tokens."""

    order: Ints  # the given row at each place
    block: QueryBlock

    def at(self, places: Any) -> QueryBlock:
        """Some of the rows."""
        return QueryBlock(self.block.codes[places], self.block.tokens[places])

    @cached_property
    def by_likeness(self) -> tuple[Ints, Keys]:
        """The places in an order in which similar rows are adjacent, and the keys of that order."""
        return _by_likeness(self.block.codes)


@dataclass(frozen=True)
class Candidates:
    """A table's rows, ready to be found. All of them: in the order of `keys`; a subset for each block: of tokens."""

    order: Ints  # the given row at each place in the order of tokens
    block: CandidateBlock
    keys: Keys
    subset: int | None  # how many a block of queries is compared with; None: all


class HashIndex:
    """Hash values of several tables, numbered alike once; then each table can be compared with each.

    A hash has as many bitmaps as it has classes; buckets share one if they are equal modulo that number. Counts over
    bitmaps are upper bounds: they decide who is looked at, the buckets decide who is kept.
    """

    def __init__(self, tables: Sequence[Codes]) -> None:
        _check_codes(tables)
        self.tables = [np.ascontiguousarray(codes) for codes in tables]
        self.lows, spans = _spans(self.tables)
        if any(codes.dtype == np.uint64 for codes in self.tables) or spans.max() >= _MAX_SPAN:
            self.tables = _number(self.tables)
            self.lows, spans = _spans(self.tables)
        self.spans = spans.astype(np.int64) + 1
        self.dtype = np.uint8 if spans.max() < 256 else np.uint32
        self.n_rows = sum(map(len, self.tables))

    @cached_property
    def n_classes(self) -> NDArray[np.int64]:
        """How many classes each hash has."""
        step, most = 1 + self.n_rows // _SAMPLE, _MAX_BITMAPS // len(self.lows)
        sample = np.concatenate([codes[::step].astype(np.int64) - self.lows for codes in self.tables])
        columns = zip(sample.T, self.spans.tolist(), strict=True)
        return np.array([_n_classes(column, span, min(span, most)) for column, span in columns])

    @cached_property
    def class_of(self) -> NDArray[np.uint8]:
        """The class of each bucket, per hash."""
        return (np.arange(self.spans.max()) % self.n_classes[:, None]).astype(np.uint8)

    @cached_property
    def classes(self) -> Classes:
        """Where the bitmap of each bucket is."""
        first_bitmap = (np.cumsum(self.n_classes) - self.n_classes)[:, None]
        return Classes(self.n_classes, (self.class_of + first_bitmap) * kernels.TILE_WORDS)

    def queries(self, table: int, tokens: RowTokens) -> Queries:
        """The rows of a table as queries."""
        order = np.argsort(tokens).astype(np.int32)
        return Queries(order, QueryBlock(self._codes(table, order, padding=0), tokens[order]))

    def candidates(self, table: int, tokens: RowTokens, max_candidates: int | None = None) -> Candidates:
        """The rows of a table as candidates: all of them, or a random subset for each block of queries."""
        order = np.argsort(tokens).astype(np.int32)
        codes, tokens, n = self._codes(table, order, padding=1), tokens[order], len(order)
        rows, keys, width = np.arange(n, dtype=np.int32), np.empty(0, np.uint64), n
        subset = None if max_candidates is None or max_candidates >= n else max_candidates
        if not subset and self.n_rows <= _FEW_ROWS:
            return Candidates(order, CandidateBlock(rows, codes, tokens, None), keys, subset)
        if not subset:
            rows, keys = _by_likeness(codes)
            codes, tokens, width = codes[rows], tokens[rows], kernels.padded(n)
        tiles = np.full((len(self.lows), width), kernels.NO_CLASS, dtype=np.uint8)
        kernels.fill_classes(codes, self.class_of, tiles)
        return Candidates(order, CandidateBlock(rows, codes, tokens, tiles), keys, subset)

    def _codes(self, table: int, order: Ints, padding: int) -> Codes:
        """Bucket numbers from 0 for each hash, as bytes where they fit, padded to whole vectors."""
        # The padding differs between queries and candidates, so that it never counts as equal.
        width = -(-len(self.lows) // COMPARED) * COMPARED
        codes = np.full((len(order), width), padding, dtype=self.dtype)
        own = codes[:, : len(self.lows)]
        np.subtract(self.tables[table][order], self.lows, out=own, dtype=np.int64, casting="unsafe")
        return codes

    def compare(
        self,
        queries: Queries,
        candidates: Candidates,
        k: int,
        *,
        draw_key: int = 0,
        n_jobs: int | None = None,
        progress: Progress | None = None,
    ) -> Found:
        """For each query the k most similar candidates, and how many hash values are equal."""
        _check_numbers(k, n_jobs, candidates)
        n_jobs, k = n_jobs or cores(), min(k, len(candidates.order))
        blocks = self._blocks(queries, candidates, k, draw_key, n_jobs)
        rows = np.empty((len(queries.order), k), dtype=np.int32)
        counts, done = np.empty(rows.shape, dtype=np.uint8), 0
        with closing(_run(blocks, n_jobs)) as results:
            for places, (found, equal) in results:
                given = queries.order[places]
                rows[given], counts[given] = candidates.order[found], equal
                done += len(given)
                if progress is not None:
                    progress(done, len(rows))
        return rows, counts

    def _blocks(self, queries: Queries, candidates: Candidates, k: int, draw_key: int, n_jobs: int) -> Iterator[Block]:
        if candidates.subset:
            return self._bounded_blocks(queries, candidates, k, draw_key)
        if candidates.block.tiles is not None:
            return self._exact_blocks(queries, candidates, k, n_jobs)
        return iter([(slice(None), partial(kernels.compare_all, queries.block, candidates.block, k))])

    def _exact_blocks(self, queries: Queries, candidates: Candidates, k: int, n_jobs: int) -> Iterator[Block]:
        """Blocks of similar queries, each to be compared with all candidates, the most similar first."""
        order, keys = queries.by_likeness
        size = max(1, min(BLOCK, -(-len(order) // (4 * n_jobs)))) if n_jobs > 1 else BLOCK
        for start in range(0, len(order), size):
            places = order[start : start + size]
            middle = int(np.searchsorted(candidates.keys, keys[start + len(places) // 2]))
            tile = middle // kernels.tile_size(len(candidates.order))
            yield places, partial(kernels.compare_block, queries.at(places), candidates.block, self.classes, k, tile)

    def _bounded_blocks(self, queries: Queries, candidates: Candidates, k: int, draw_key: int) -> Iterator[Block]:
        """Blocks of neighbouring queries, each to be compared with a random subset of its own."""
        stretch = _BLOCKS_PER_CALL * BOUNDED_BLOCK
        for start in range(0, len(queries.order), stretch):
            places = slice(start, start + stretch)
            search = partial(kernels.compare_bounded, queries.at(places), candidates.block, self.classes, k)
            yield places, partial(search, candidates.subset, np.uint64(draw_key), start // BOUNDED_BLOCK)


def _check_codes(tables: Sequence[Codes]) -> None:
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


def _check_numbers(k: int, n_jobs: int | None, candidates: Candidates) -> None:
    n_candidates, subset = len(candidates.order), candidates.subset
    if n_candidates == 0:
        raise ValueError("There are no candidates; leave out the party without rows.")
    if k < 1:
        raise ValueError(f"k is {k}; ask for at least 1 row.")
    if n_jobs is not None and n_jobs < 1:
        raise ValueError(f"n_jobs is {n_jobs}; give at least 1 thread, or None for all cores.")
    if subset is not None and subset < min(k, n_candidates):
        raise ValueError(f"max_candidates is {subset}, fewer than k = {k}; raise it to at least k.")


def _spans(tables: Sequence[Codes]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """The lowest value of each hash, and how far the highest is from it."""
    filled = [codes for codes in tables if len(codes)] or [np.zeros((1, tables[0].shape[1]), dtype=np.int64)]
    lows = np.min([codes.min(axis=0).astype(np.int64) for codes in filled], axis=0)
    highs = np.max([codes.max(axis=0).astype(np.int64) for codes in filled], axis=0)
    return lows, highs.astype(np.uint64) - lows.astype(np.uint64)


def _n_classes(codes: NDArray[np.int64], span: int, most: int) -> int:
    """The fewest classes under which hardly any pair looks equal that is not: less to draw, less to cache."""
    shares = np.bincount(codes, minlength=span) / max(len(codes), 1)
    for n in _CLASS_COUNTS:
        if n >= most:
            break
        alike = np.bincount(np.arange(span) % n, weights=shares)
        if alike @ alike - shares @ shares < _FALSE_EQUALS:
            return n
    return min(most, _CLASS_COUNTS[-1])


def _number(tables: Sequence[Codes]) -> list[Codes]:
    """Distinct values of all tables as 0, 1, ..., for hash values that are far apart."""
    kinds = {codes.dtype for codes in tables}
    mixed = np.dtype(np.uint64) in kinds and any(kind.kind == "i" for kind in kinds)  # together: floats
    together = np.concatenate([codes.astype(object) if mixed else codes for codes in tables])
    numbers = [np.unique(column, return_inverse=True)[1].reshape(-1) for column in together.T]
    return np.split(np.stack(numbers, axis=1).astype(np.uint32), np.cumsum([len(codes) for codes in tables])[:-1])


# --- the threads -----------------------------------------------------------------------------------------------------


def _run(blocks: Iterator[Block], n_jobs: int) -> Generator[tuple[Any, Found], None, None]:
    """What the blocks find, as they finish on threads. Closing it waits for the blocks under way only."""
    if n_jobs == 1:
        for places, search in blocks:
            yield places, search()
        return
    pool = ThreadPoolExecutor(n_jobs)
    waiting: dict[Future[Found], Any] = {}
    try:
        for places, search in blocks:
            waiting[pool.submit(search)] = places
            if len(waiting) >= 2 * n_jobs:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(future), future.result()
        for future in as_completed(waiting):
            yield waiting[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)
