# mypy: allow-untyped-defs, allow-untyped-calls
"""The similarity search itself, compiled with Numba: tiles, bitmaps and the k best rows of each query.

`similarity` explains the method and calls these kernels from many threads. They have plain loops instead of NumPy's
functions: each of those would be compiled, too, and the first training after an install waits for it. Numba keeps
compiled kernels by their file: after a change in `_vectors` or `splitmix`, delete this folder's `__pycache__`.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from simfl.preprocessing._vectors import LANES, count, equal_bits, lowest_bit, n_bits, n_equal, reaching
from simfl.preprocessing.splitmix import below, row_token

BOUNDED_BLOCK = 512  # queries that share one random subset; bounded search
TILE_WORDS = 32  # small enough that the bitmaps of a tile stay in the second-level cache
TILE = 64 * TILE_WORDS
NO_CLASS = 255  # padding beyond the last candidate: equal to no class

# A pair's rank is one number: 8 bits of count, 25 of random priority, 31 of the candidate's row.
_COUNT_SHIFT = np.uint64(56)
_ROW_MASK = np.uint64(2**31 - 1)


class QueryBlock(NamedTuple):
    """Rows that look for similar ones."""

    codes: Any  # (rows, hashes padded to whole vectors)
    tokens: Any


class CandidateBlock(NamedTuple):
    """Rows that can be found."""

    rows: Any  # the number that each is reported under
    codes: Any
    tokens: Any
    tiles: Any  # (hashes, rows padded to whole tiles): the class of each code


class Classes(NamedTuple):
    """The buckets of a hash that share a bitmap form a class."""

    n: Any  # per hash
    offsets: Any  # per hash and bucket: where in a tile the bitmap of its class starts, in words


def tile_size(n_rows: int) -> int:
    """How many candidates a tile has: whole vectors, spread evenly over as few tiles as it takes."""
    per_vector = 64 * LANES
    n_vectors = max(-(-n_rows // per_vector), 1)
    n_tiles = -(-n_vectors * per_vector // TILE)
    return -(-n_vectors // n_tiles) * per_vector


def padded(n_rows: int) -> int:
    """The number of rows, filled up to whole tiles."""
    return -(-n_rows // tile_size(n_rows)) * tile_size(n_rows)


def compare_all(queries, candidates, k):
    """The k best rows of each query and their counts, all pairs at once in NumPy: for tables of few rows."""
    equal = np.zeros((queries.tokens.size, candidates.tokens.size), dtype=np.uint8)
    for query, candidate in zip(queries.codes.T, np.ascontiguousarray(candidates.codes.T), strict=True):
        equal += (query[:, None] == candidate).view(np.uint8)
    ranks = _priority.py_func(queries.tokens[:, None], candidates.tokens, candidates.rows.astype(np.uint64))
    ranks |= equal.astype(np.uint64) << _COUNT_SHIFT
    best = np.partition(ranks, ranks.shape[1] - k)[:, -k:]
    return _unpacked(np.sort(best)[:, ::-1], queries.tokens)


def compare_bounded(queries, candidates, classes, k, n_chosen, draw_key, first_block):
    """`compare_block` for several blocks of queries, each with its own random subset of the candidates."""
    chosen, found = np.empty(n_chosen, dtype=np.int32), []
    tiles = np.full((classes.n.size, padded(n_chosen)), np.uint8(NO_CLASS), dtype=np.uint8)
    for start in range(0, queries.tokens.size, BOUNDED_BLOCK):
        _draw_rows(candidates.tokens.size, draw_key, first_block + start // BOUNDED_BLOCK, chosen)
        _fill_tiles(candidates.tiles, chosen, tiles)
        some = slice(start, start + BOUNDED_BLOCK)
        subset = CandidateBlock(chosen, candidates.codes[chosen], candidates.tokens[chosen], tiles)
        found.append(compare_block(QueryBlock(queries.codes[some], queries.tokens[some]), subset, classes, k, 0))
    rows, counts = zip(*found, strict=True)
    return np.concatenate(rows), np.concatenate(counts)


def compare_block(queries, candidates, classes, k, first_tile):
    """The k best rows of each query and their counts."""
    n, tile = queries.tokens.size, tile_size(candidates.rows.size)
    picks, ranks = np.empty((n, classes.n.size), dtype=np.uint32), np.zeros((n, k), dtype=np.uint64)
    _pick_bitmaps(queries.codes, classes.offsets, picks)
    bitmaps, masks = _words(int(classes.n.sum()), TILE_WORDS).ravel(), _words(n, tile // 64)
    hits, floors, guesses = np.empty(n, dtype=np.uint32), np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    _compare(queries, candidates, classes.n, first_tile, picks, bitmaps, masks, hits, floors, guesses, ranks)
    return _unpacked(ranks, queries.tokens)


def _words(n, width):
    """Room for n rows of words, from the start of a cache line on: vectors that lie across two take longer to load."""
    room = np.empty(n * width + LANES, dtype=np.uint64)
    start = -room.ctypes.data // 8 % LANES
    return room[start : start + n * width].reshape(n, width)


def _unpacked(ranks, query_tokens):
    rows = (ranks ^ query_tokens[:, None]) & _ROW_MASK
    return rows.astype(np.int32), (ranks >> _COUNT_SHIFT).astype(np.uint8)


# --- compiled --------------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def fill_classes(codes, class_of, classes):
    """The class of every code, hash by hash."""
    for i in range(codes.shape[0]):
        for h in range(class_of.shape[0]):
            classes[h, i] = class_of[h, codes[i, h]]


@njit(nogil=True, cache=True)
def _fill_tiles(classes, rows, tiles):
    for h in range(classes.shape[0]):
        for i in range(rows.size):
            tiles[h, i] = classes[h, rows[i]]


@njit(nogil=True, cache=True)
def _draw_rows(n_all, draw_key, block, drawn):
    """A random subset: one row from each of `drawn.size` equal stretches of all rows.

    Stretches instead of free draws: distinct rows, in time that does not depend on n_all. The random turn
    makes every row equally likely, although the stretches differ in length by one.
    """
    key = row_token(draw_key, block)
    turn = below(row_token(key, 0), n_all)
    for i in range(drawn.size):
        first, end = np.uint64(i * n_all // drawn.size), np.uint64((i + 1) * n_all // drawn.size)
        drawn[i] = (first + below(row_token(key, i + 1), end - first) + turn) % np.uint64(n_all)


@njit(nogil=True, cache=True)
def _pick_bitmaps(query_codes, offsets, picks):
    """Per query and hash, where in a tile the bitmap of its class is, in words."""
    for q in range(picks.shape[0]):
        for h in range(picks.shape[1]):
            picks[q, h] = offsets[h, query_codes[q, h]]


@njit(nogil=True, cache=True)
def _compare(queries, candidates, n_classes, first_tile, picks, bitmaps, masks, hits, floors, guesses, ranks):
    """The k best of each query, tile by tile. What it calls is inlined: each would be compiled twice otherwise."""
    tile = 64 * masks.shape[1]
    n_tiles = candidates.tiles.shape[1] // tile
    for turn in range(n_tiles + 1):
        # First the tile nearest to the queries; again, for queries that passed over candidates there; then by turns
        # those to its left and right.
        step = turn - 1 if turn else 0
        away = (step + 1) // 2 if step % 2 else -(step // 2)
        first = (first_tile + away) % n_tiles * tile
        if turn != 1:
            _draw_bitmaps(candidates.tiles, first, masks.shape[1], n_classes, bitmaps)
        if turn == 0:
            n_hits = _guess_floors(bitmaps, picks, ranks.shape[1], masks, floors, guesses, hits)
        else:
            n_asked = _bad_guesses(floors, guesses, ranks, hits) if turn == 1 else _everybody(hits)
            n_hits = _filter(bitmaps, picks, n_asked, floors, masks, hits)
        _rank(queries, candidates, n_hits, hits, masks, first, ranks, floors)


@njit(nogil=True, cache=True, inline="always")
def _draw_bitmaps(tiles, first, n_words, n_classes, bitmaps):
    """Per hash and class, one bit for each candidate of the tile."""
    bitmap = 0
    for h in range(n_classes.size):
        for c in range(n_classes[h]):
            for word in range(n_words):
                bitmaps[bitmap * TILE_WORDS + word] = equal_bits(tiles, h * tiles.shape[1] + first + 64 * word, c)
            bitmap += 1


@njit(nogil=True, cache=True, inline="always")
def _guess_floors(bitmaps, picks, k, masks, floors, guesses, hits):
    """The count of each query's k-th best candidate of the tile, going by classes, and who reaches it."""
    n_digits = 5 if picks.shape[1] < 32 else 6 if picks.shape[1] < 64 else 8
    n_words = masks.shape[1]
    # These are new here, not handed in: LLVM makes vector code of the loops only where no other array can overlap.
    planes = np.empty((n_digits, n_words), dtype=np.uint64)
    level, above = np.empty(n_words, dtype=np.uint64), np.empty(n_words, dtype=np.uint64)
    for q in range(hits.size):
        count(bitmaps, picks, q, planes)
        # Digit by digit from the highest: `level` has all digits of the k-th best so far, `above` is better.
        for word in range(n_words):
            level[word], above[word] = ~np.uint64(0), np.uint64(0)
        wanted, floor = k, 0
        for digit in range(n_digits - 1, -1, -1):
            n_with = 0
            for word in range(n_words):
                n_with += n_bits(level[word] & planes[digit, word])
            if n_with >= wanted:
                floor |= 1 << digit
                for word in range(n_words):
                    level[word] &= planes[digit, word]
            else:
                wanted -= n_with
                for word in range(n_words):
                    above[word] |= level[word] & planes[digit, word]
                    level[word] &= ~planes[digit, word]
        floors[q], guesses[q], hits[q] = floor, floor, q
        for word in range(n_words):
            masks[q, word] = level[word] | above[word]
    return hits.size


@njit(nogil=True, cache=True, inline="always")
def _bad_guesses(floors, guesses, ranks, hits):
    """List the queries whose k-th best falls short of the guess. They start again."""
    n_hits = 0
    for q in range(hits.size):
        if floors[q] < guesses[q]:
            for i in range(ranks.shape[1]):
                ranks[q, i] = 0
            hits[n_hits] = q
            n_hits += 1
    return n_hits


@njit(nogil=True, cache=True, inline="always")
def _everybody(hits):
    for q in range(hits.size):
        hits[q] = q
    return hits.size


@njit(nogil=True, cache=True, inline="always")
def _filter(bitmaps, picks, n_asked, floors, masks, hits):
    """Of the listed queries, keep those that have candidates at or above their floor in this tile."""
    n_hits = 0
    for i in range(n_asked):
        q = hits[i]
        hits[n_hits] = q
        n_hits += reaching(bitmaps, picks, q, floors[q], masks)
    return n_hits


@njit(nogil=True, cache=True, inline="always")
def _rank(queries, candidates, n_hits, hits, masks, first, ranks, floors):
    """Look at the candidates in the masks one by one and keep the best."""
    last = ranks.shape[1] - 1
    for i in range(n_hits):
        q = hits[i]
        for word in range(masks.shape[1]):
            bits = masks[q, word]
            while bits != 0:
                at = first + 64 * word + lowest_bit(bits)
                bits &= bits - np.uint64(1)
                if at >= candidates.rows.size:  # padding
                    break
                equal = n_equal(queries.codes, q, candidates.codes, at)
                priority = _priority(queries.tokens[q], candidates.tokens[at], np.uint64(candidates.rows[at]))
                rank = (equal << _COUNT_SHIFT) | priority
                if rank > ranks[q, last]:
                    _insert(ranks, q, rank)
        floors[q] = np.int64(ranks[q, last] >> _COUNT_SHIFT)


@njit(nogil=True, cache=True, inline="always")
def _priority(query_token, token, row):
    """Who comes first among equal counts: 25 bits of MurmurHash3's finaliser of the tokens, then the row.

    The row is there to be read back. The query's token turns its order, so that no row wins more often.
    """
    pair = query_token ^ token
    pair = (pair ^ (pair >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    pair = (pair ^ (pair >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return (pair >> np.uint64(39) << np.uint64(31)) | ((query_token ^ row) & _ROW_MASK)


@njit(nogil=True, cache=True, inline="always")
def _insert(ranks, q, rank):
    """Put a rank in its place in a query's falling order; the last one drops out."""
    at = ranks.shape[1] - 1
    while at > 0 and ranks[q, at - 1] < rank:
        ranks[q, at] = ranks[q, at - 1]
        at -= 1
    ranks[q, at] = rank
