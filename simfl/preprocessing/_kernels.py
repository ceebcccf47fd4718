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

_MAX_BITMAPS = 8192  # per tile, so that a tile stays in the second-level cache
_FALSE_EQUALS = 0.005  # share of pairs that may share a class without sharing a bucket, per hash
_CLASS_COUNTS = (5, 7, 11, 17, 31, 61, 127, 251)  # prime: a regular gap between bucket numbers does no harm

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


@njit(nogil=True, cache=True)
def tile_size(n_rows):
    """How many candidates a tile has: whole vectors, spread evenly over as few tiles as it takes."""
    per_vector = 64 * LANES
    n_vectors = max((n_rows + per_vector - 1) // per_vector, 1)
    n_tiles = (n_vectors * per_vector + TILE - 1) // TILE
    return (n_vectors + n_tiles - 1) // n_tiles * per_vector


@njit(nogil=True, cache=True)
def padded(n_rows):
    """The number of rows, filled up to whole tiles."""
    tile = tile_size(n_rows)
    return (n_rows + tile - 1) // tile * tile


@njit(nogil=True, cache=True)
def widen(codes, lows, highs):
    """Extend the range of each hash to these codes."""
    for i in range(codes.shape[0]):
        for h in range(codes.shape[1]):
            value = np.int64(codes[i, h])
            lows[h], highs[h] = min(lows[h], value), max(highs[h], value)


@njit(nogil=True, cache=True)
def fill_codes(table, order, lows, codes):
    """Bucket numbers from 0, in this order of the rows."""
    for i in range(order.size):
        for h in range(lows.size):
            codes[i, h] = np.int64(table[order[i], h]) - lows[h]


@njit(nogil=True, cache=True)
def fill_classes(codes, class_of, classes):
    """The class of every code, hash by hash."""
    for i in range(codes.shape[0]):
        for h in range(class_of.shape[0]):
            classes[h, i] = class_of[h, codes[i, h]]


@njit(nogil=True, cache=True)
def choose_classes(sample, spans, n_classes, class_of):
    """The fewest classes under which hardly any pair looks equal that is not: less to draw, less to cache."""
    most = _MAX_BITMAPS // spans.size
    for h in range(spans.size):
        shares = np.zeros(spans[h])
        for i in range(sample.shape[0]):
            shares[sample[i, h]] += 1.0 / sample.shape[0]
        n_classes[h] = _n_classes(shares, min(spans[h], most))
        for value in range(spans[h]):
            class_of[h, value] = value % n_classes[h]


@njit(nogil=True, cache=True)
def _n_classes(shares, most):
    for n_classes in _CLASS_COUNTS:
        if n_classes >= most:
            break
        alike = np.zeros(n_classes)
        for value in range(shares.size):
            alike[value % n_classes] += shares[value]
        look_equal, are_equal = 0.0, 0.0
        for share in alike:
            look_equal += share * share
        for share in shares:
            are_equal += share * share
        if look_equal - are_equal < _FALSE_EQUALS:
            return n_classes
    return min(most, _CLASS_COUNTS[-1])


@njit(nogil=True, cache=True)
def _fill_tiles(classes, rows, tiles):
    for h in range(classes.shape[0]):
        for i in range(rows.size):
            tiles[h, i] = classes[h, rows[i]]


@njit(nogil=True, cache=True)
def _draw_rows(n_all, key, drawn):
    """A random subset: one row from each of `drawn.size` equal stretches of all rows.

    Stretches instead of free draws: distinct rows, in time that does not depend on n_all. The random turn
    makes every row equally likely, although the stretches differ in length by one.
    """
    turn = below(row_token(key, 0), n_all)
    for i in range(drawn.size):
        first, end = np.uint64(i * n_all // drawn.size), np.uint64((i + 1) * n_all // drawn.size)
        drawn[i] = (first + below(row_token(key, i + 1), end - first) + turn) % np.uint64(n_all)


@njit(nogil=True, cache=True)
def compare_bounded(queries, candidates, classes, k, n_chosen, draw_key, first_block):
    """`compare_block` for several blocks of queries, each with its own random subset of the candidates."""
    n_queries = queries.tokens.size
    rows, counts = np.empty((n_queries, k), dtype=np.int32), np.empty((n_queries, k), dtype=np.uint8)
    chosen = np.empty(n_chosen, dtype=np.int32)
    codes = np.empty((n_chosen, candidates.codes.shape[1]), dtype=candidates.codes.dtype)
    tokens = np.empty(n_chosen, dtype=np.uint64)
    tiles = np.full((classes.n.size, padded(n_chosen)), np.uint8(NO_CLASS), dtype=np.uint8)
    for start in range(0, n_queries, BOUNDED_BLOCK):
        end = min(start + BOUNDED_BLOCK, n_queries)
        _draw_rows(candidates.tokens.size, row_token(draw_key, first_block + start // BOUNDED_BLOCK), chosen)
        for i in range(n_chosen):
            codes[i], tokens[i] = candidates.codes[chosen[i]], candidates.tokens[chosen[i]]
        _fill_tiles(candidates.tiles, chosen, tiles)
        block = QueryBlock(queries.codes[start:end], queries.tokens[start:end])
        subset = CandidateBlock(chosen, codes, tokens, tiles)
        rows[start:end], counts[start:end] = compare_block(block, subset, classes, k, 0)
    return rows, counts


@njit(nogil=True, cache=True)
def compare_block(queries, candidates, classes, k, first_tile):
    """The k best rows of each query and their counts."""
    n_queries = queries.tokens.size
    tile = tile_size(candidates.rows.size)
    n_tiles = candidates.tiles.shape[1] // tile
    picks = _bitmap_offsets(queries.codes, classes.offsets)
    n_bitmaps = 0
    for n in classes.n:
        n_bitmaps += n
    bitmaps = np.empty(n_bitmaps * TILE_WORDS, dtype=np.uint64)
    masks = np.empty((n_queries, tile // 64), dtype=np.uint64)
    hits = np.empty(n_queries, dtype=np.uint32)
    ranks = np.zeros((n_queries, k), dtype=np.uint64)
    floors = np.zeros(n_queries, dtype=np.int64)
    for step in range(n_tiles):
        # First the tile nearest to the queries, then by turns to its left and right.
        away = (step + 1) // 2 if step % 2 else -(step // 2)
        first = (first_tile + away) % n_tiles * tile
        _draw_bitmaps(candidates.tiles, first, tile // 64, classes.n, bitmaps)
        if step == 0:
            n_hits = _guess_floors(bitmaps, picks, k, masks, floors, hits)
            guesses = floors.copy()
        else:
            n_hits = _filter(bitmaps, picks, floors, masks, hits)
        _rank(queries, candidates, hits[:n_hits], masks, first, ranks, floors)
        if step == 0:
            n_hits = _undo_bad_guesses(bitmaps, picks, floors, guesses, masks, hits, ranks)
            _rank(queries, candidates, hits[:n_hits], masks, first, ranks, floors)
    return _unpack(ranks, queries.tokens)


@njit(nogil=True, cache=True)
def _unpack(ranks, query_tokens):
    rows = np.empty(ranks.shape, dtype=np.int32)
    counts = np.empty(ranks.shape, dtype=np.uint8)
    for q in range(ranks.shape[0]):
        for i in range(ranks.shape[1]):
            rows[q, i] = (ranks[q, i] ^ query_tokens[q]) & _ROW_MASK
            counts[q, i] = ranks[q, i] >> _COUNT_SHIFT
    return rows, counts


@njit(nogil=True, cache=True)
def _bitmap_offsets(query_codes, offsets):
    """Per query and hash, where in a tile the bitmap of its class is, in words."""
    picks = np.empty((query_codes.shape[0], offsets.shape[0]), dtype=np.uint32)
    for q in range(query_codes.shape[0]):
        for h in range(offsets.shape[0]):
            picks[q, h] = offsets[h, query_codes[q, h]]
    return picks


@njit(nogil=True, cache=True)
def _draw_bitmaps(tiles, first, n_words, n_classes, bitmaps):
    """Per hash and class, one bit for each candidate of the tile."""
    bitmap = 0
    for h in range(n_classes.size):
        for c in range(n_classes[h]):
            for word in range(n_words):
                bitmaps[bitmap * TILE_WORDS + word] = equal_bits(tiles, h * tiles.shape[1] + first + 64 * word, c)
            bitmap += 1


@njit(nogil=True, cache=True)
def _guess_floors(bitmaps, picks, k, masks, floors, hits):
    """The count of each query's k-th best candidate of the tile, going by classes, and who reaches it."""
    n_digits = 5 if picks.shape[1] < 32 else 6 if picks.shape[1] < 64 else 8
    n_words = masks.shape[1]
    planes = np.empty((n_digits, n_words), dtype=np.uint64)
    level, above = np.empty(n_words, dtype=np.uint64), np.empty(n_words, dtype=np.uint64)
    for q in range(floors.size):
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
        floors[q], hits[q] = floor, q
        for word in range(n_words):
            masks[q, word] = level[word] | above[word]
    return floors.size


@njit(nogil=True, cache=True)
def _undo_bad_guesses(bitmaps, picks, floors, guesses, masks, hits, ranks):
    """Start again the queries whose k-th best falls short of the guess: they passed over candidates."""
    n_hits = 0
    for q in range(floors.size):
        if floors[q] < guesses[q]:
            for i in range(ranks.shape[1]):
                ranks[q, i] = 0
            reaching(bitmaps, picks, q, floors[q], masks)
            hits[n_hits] = q
            n_hits += 1
    return n_hits


@njit(nogil=True, cache=True)
def _filter(bitmaps, picks, floors, masks, hits):
    """List the queries that have candidates at or above their floor in this tile."""
    n_hits = 0
    for q in range(floors.size):
        hits[n_hits] = q
        n_hits += reaching(bitmaps, picks, q, floors[q], masks)
    return n_hits


@njit(nogil=True, cache=True)
def _rank(queries, candidates, hits, masks, first, ranks, floors):
    """Look at the candidates in the masks one by one and keep the best."""
    last = ranks.shape[1] - 1
    for q in hits:
        for word in range(masks.shape[1]):
            bits = masks[q, word]
            while bits != 0:
                at = first + 64 * word + lowest_bit(bits)
                bits &= bits - np.uint64(1)
                if at >= candidates.rows.size:  # padding
                    break
                equal = n_equal(queries.codes, q, candidates.codes, at)
                priority = _priority(queries.tokens[q], candidates.tokens[at], candidates.rows[at])
                rank = (equal << _COUNT_SHIFT) | priority
                if rank > ranks[q, last]:
                    _insert(ranks, q, rank)
        floors[q] = np.int64(ranks[q, last] >> _COUNT_SHIFT)


@njit(nogil=True, cache=True)
def _priority(query_token, token, row):
    """Who comes first among equal counts: 25 bits of MurmurHash3's finaliser of the tokens, then the row.

    The row is there to be read back. The query's token turns its order, so that no row wins more often.
    """
    pair = query_token ^ token
    pair = (pair ^ (pair >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    pair = (pair ^ (pair >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return (pair >> np.uint64(39) << np.uint64(31)) | ((query_token ^ np.uint64(row)) & _ROW_MASK)


@njit(nogil=True, cache=True)
def _insert(ranks, q, rank):
    """Put a rank in its place in a query's falling order; the last one drops out."""
    at = ranks.shape[1] - 1
    while at > 0 and ranks[q, at - 1] < rank:
        ranks[q, at] = ranks[q, at - 1]
        at -= 1
    ranks[q, at] = rank
