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

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from simfl.arrays import Codes, Ints, Mask
from simfl.params import MAX_HASHES, cores
from simfl.preprocessing import _kernels as kernels
from simfl.preprocessing._kernels import BOUNDED_BLOCK, CandidateBlock, Classes, QueryBlock
from simfl.preprocessing._vectors import COMPARED
from simfl.preprocessing.splitmix import RowTokens, row_tokens

Progress = Callable[[int, int], None]
Keys = NDArray[np.uint64]
Found = tuple[Ints, NDArray[np.uint8]]  # for each query the rows found, and how many hash values are equal
Work = tuple[int, Callable[[], None]]  # for how many queries, and their search

BLOCK = 1024  # queries that share the bitmaps of a tile; exact search
_BLOCKS_PER_CALL = 16  # between calls, progress is reported and an interrupt is noticed
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
    """A table's rows, ready to look for similar ones."""

    block: QueryBlock

    @cached_property
    def by_likeness(self) -> tuple[QueryBlock, Keys]:
        """The same in an order in which similar rows are adjacent, and the keys of that order."""
        order, keys = _by_likeness(self.block.codes)
        return QueryBlock(*(array[order] for array in self.block)), keys


@dataclass(frozen=True)
class Candidates:
    """A table's rows, ready to be found. All of them: in the order of `keys`; a subset for each block: of tokens."""

    block: CandidateBlock
    keys: Keys
    subset: int | None  # how many a block of queries is compared with; None: all

    @property
    def in_tiles(self) -> bool:
        """Whether all of them are compared, tile by tile."""
        return self.subset is None and self.block.tiles is not None


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
        return Queries(QueryBlock(order, self._codes(self.tables[table], order, padding=0), tokens[order]))

    def all_queries(self, tokens: Sequence[RowTokens]) -> Queries:
        """The rows of all tables as queries, one table after the other."""
        together = np.concatenate(tokens)
        order = np.argsort(together).astype(np.int32)
        codes = self._codes(np.concatenate(self.tables), order, padding=0)
        return Queries(QueryBlock(order, codes, together[order]))

    def candidates(self, table: int, tokens: RowTokens, max_candidates: int | None = None) -> Candidates:
        """The rows of a table as candidates: all of them, or a random subset for each block of queries."""
        order = np.argsort(tokens).astype(np.int32)
        codes, tokens, n = self._codes(self.tables[table], order, padding=1), tokens[order], len(order)
        rows, keys, width = np.arange(n, dtype=np.int32), np.empty(0, np.uint64), n
        subset = None if max_candidates is None or max_candidates >= n else max_candidates
        if not subset and self.n_rows <= _FEW_ROWS:
            return Candidates(CandidateBlock(order, rows, codes, tokens, None), keys, subset)
        if not subset:
            rows, keys = _by_likeness(codes)
            codes, tokens, width = codes[rows], tokens[rows], kernels.padded(n)
        tiles = np.full((len(self.lows), width), kernels.NO_CLASS, dtype=np.uint8)
        kernels.fill_classes(codes, self.class_of, tiles)
        return Candidates(CandidateBlock(order, rows, codes, tokens, tiles), keys, subset)

    def _codes(self, table: Codes, order: Ints, padding: int) -> Codes:
        """Bucket numbers from 0 for each hash, as bytes where they fit, padded to whole vectors."""
        # The padding differs between queries and candidates, so that it never counts as equal.
        width = -(-len(self.lows) // COMPARED) * COMPARED
        codes = np.full((len(order), width), padding, dtype=self.dtype)
        own = codes[:, : len(self.lows)]
        np.subtract(table[order], self.lows, out=own, dtype=np.int64, casting="unsafe")
        return codes

    def compare(
        self,
        queries: Queries,
        candidates: Candidates,
        k: int,
        *,
        asking: Mask | None = None,
        draw_key: int = 0,
        n_jobs: int | None = None,
        progress: Progress | None = None,
    ) -> Found:
        """For each query the k most similar candidates, and how many hash values are equal.

        `asking`: of the given queries, which ones are compared, where candidates are `in_tiles`; zeros for the others.
        """
        _check_numbers(k, n_jobs, candidates)
        n, n_jobs, k = len(queries.block.order), n_jobs or cores(), min(k, len(candidates.block.order))
        found = kernels.Found(np.zeros((n, k), dtype=np.int32), np.zeros((n, k), dtype=np.uint8))
        total = n if asking is None else int(asking.sum())
        if candidates.in_tiles:
            work = self._in_tiles(queries, candidates, asking, found, n_jobs)
        elif candidates.subset:
            work = self._bounded(queries, candidates, found, draw_key)
        else:
            work = iter([(n, partial(kernels.compare_all, queries.block, candidates.block, found))])
        with closing(_run(work, n_jobs)) as results:
            for done in accumulate(results):
                if progress is not None:
                    progress(done, total)
        return found.rows, found.counts

    def _in_tiles(
        self, queries: Queries, candidates: Candidates, asking: Mask | None, found: kernels.Found, n_jobs: int
    ) -> Iterator[Work]:
        """Blocks of similar queries, each to be compared with all candidates, the most similar first."""
        block, keys = queries.by_likeness
        places = np.arange(len(keys), dtype=np.int32)
        if asking is not None:
            places = places[asking[block.order]]
        size = max(1, min(BLOCK, -(-len(places) // (4 * n_jobs)))) if n_jobs > 1 else BLOCK
        begins = np.arange(0, len(places), size)
        middles = keys[places[(begins + np.minimum(begins + size, len(places))) // 2]]
        after, n = np.searchsorted(candidates.keys, middles), len(candidates.keys)
        tiles = np.minimum(after, n - 1) // kernels.tile_size(n)  # the nearest one
        stretch = max(1, min(_BLOCKS_PER_CALL, len(begins) // (4 * n_jobs) if n_jobs > 1 else len(begins)))
        for first in range(0, len(begins), stretch):
            some, nearest = places[first * size : (first + stretch) * size], tiles[first : first + stretch]
            search = partial(kernels.compare_blocks, block, some, size, nearest, candidates.block, self.classes, found)
            yield len(some), search

    def _bounded(self, queries: Queries, candidates: Candidates, found: kernels.Found, draw_key: int) -> Iterator[Work]:
        """Blocks of neighbouring queries, each to be compared with a random subset of its own."""
        everybody, stretch = np.arange(len(queries.block.order), dtype=np.int32), _BLOCKS_PER_CALL * BOUNDED_BLOCK
        for start in range(0, len(everybody), stretch):
            places = everybody[start : start + stretch]
            search = partial(kernels.compare_bounded, queries.block, places, candidates.block, self.classes)
            yield len(places), partial(search, candidates.subset, np.uint64(draw_key), start // BOUNDED_BLOCK, found)


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
    n_candidates, subset = len(candidates.block.order), candidates.subset
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


def _run(works: Iterator[Work], n_jobs: int) -> Generator[int, None, None]:
    """For how many queries, as they finish on threads. Closing it waits for the searches under way only."""
    if n_jobs == 1:
        for n, search in works:
            search()
            yield n
        return
    pool = ThreadPoolExecutor(n_jobs)
    waiting: dict[Future[None], int] = {}
    try:
        for n, search in works:
            waiting[pool.submit(search)] = n
            if len(waiting) >= 2 * n_jobs:
                yield from _finished(waiting, wait(waiting, return_when=FIRST_COMPLETED).done)
        yield from _finished(waiting, as_completed(list(waiting)))
    finally:
        pool.shutdown(cancel_futures=True)


def _finished(waiting: dict[Future[None], int], done: Iterable[Future[None]]) -> Iterator[int]:
    for future in done:
        future.result()
        yield waiting.pop(future)
