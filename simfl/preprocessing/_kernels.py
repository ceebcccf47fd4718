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
    """Rows that look for similar ones, in the order of their tokens."""

    order: Any  # the given row at each place
    codes: Any  # (rows, hashes padded to whole vectors)
    tokens: Any


class CandidateBlock(NamedTuple):
    """Rows that can be found."""

    order: Any  # the given row at each place in the order of tokens
    rows: Any  # the place of each of those that are searched
    codes: Any
    tokens: Any
    tiles: Any  # (hashes, rows padded to whole tiles): the class of each code


class Classes(NamedTuple):
    """The buckets of a hash that share a bitmap form a class."""

    n: Any  # per hash
    offsets: Any  # per hash and bucket: where in a tile the bitmap of its class starts, in words


class Found(NamedTuple):
    """What is filled in, for all given queries."""

    rows: Any  # (queries, k): the given rows of the best candidates
    counts: Any  # how many hash values are equal


class _Room(NamedTuple):
    """Arrays that queries are compared in."""

    bitmaps: Any  # of one tile
    masks: Any  # per query of a block: a bit for each candidate of the tile
    hits: Any  # the queries of a block that are to be looked at
    guesses: Any
    picks: Any  # per query and hash: where in a tile the bitmap of its class is, in words
    floors: Any  # per query: the count of the k-th best so far
    ranks: Any  # per query: the k best so far


def tile_size(n_rows: int) -> int:
    """How many candidates a tile has: whole vectors, spread evenly over as few tiles as it takes."""
    per_vector = 64 * LANES
    n_vectors = max(-(-n_rows // per_vector), 1)
    n_tiles = -(-n_vectors * per_vector // TILE)
    return -(-n_vectors // n_tiles) * per_vector


def padded(n_rows: int) -> int:
    """The number of rows, filled up to whole tiles."""
    return -(-n_rows // tile_size(n_rows)) * tile_size(n_rows)


def compare_all(queries, candidates, found):
    """The best rows of each query and their counts, all pairs at once in NumPy: for tables of few rows."""
    k = found.rows.shape[1]
    equal = np.zeros((queries.tokens.size, candidates.tokens.size), dtype=np.uint8)
    for query, candidate in zip(queries.codes.T, np.ascontiguousarray(candidates.codes.T), strict=True):
        equal += (query[:, None] == candidate).view(np.uint8)
    ranks = _priority.py_func(queries.tokens[:, None], candidates.tokens, candidates.rows.astype(np.uint64))
    ranks |= equal.astype(np.uint64) << _COUNT_SHIFT
    best = np.sort(np.partition(ranks, ranks.shape[1] - k)[:, -k:])[:, ::-1]
    found.rows[queries.order] = candidates.order[((best ^ queries.tokens[:, None]) & _ROW_MASK).astype(np.int32)]
    found.counts[queries.order] = best >> _COUNT_SHIFT


def compare_bounded(queries, places, candidates, classes, n_chosen, draw_key, first_block, found):
    """The best rows of the queries at these places; each block of them looks at its own random subset."""
    chosen, first = np.empty(n_chosen, dtype=np.int32), np.zeros(1, dtype=np.int64)
    tiles = np.full((classes.n.size, padded(n_chosen)), np.uint8(NO_CLASS), dtype=np.uint8)
    room = _room(BOUNDED_BLOCK, BOUNDED_BLOCK, n_chosen, classes, found)
    for number, start in enumerate(range(0, places.size, BOUNDED_BLOCK), first_block):
        _draw_rows(candidates.tokens.size, draw_key, number, chosen)
        _fill_tiles(candidates.tiles, chosen, tiles)
        codes, tokens = candidates.codes[chosen], candidates.tokens[chosen]
        subset = CandidateBlock(candidates.order, chosen, codes, tokens, tiles)
        _compare(queries, places[start : start + BOUNDED_BLOCK], first, subset, classes, room, found)


def compare_blocks(queries, places, size, first_tiles, candidates, classes, found):
    """The best rows of the queries at these places, in blocks of one size; each begins with the tile that is given."""
    room = _room(places.size, size, candidates.rows.size, classes, found)
    _compare(queries, places, first_tiles, candidates, classes, room, found)


def _room(n, block, n_candidates, classes, found):
    """Room for n queries."""
    return _Room(
        bitmaps=_words(int(classes.n.sum()), TILE_WORDS).ravel(),
        masks=_words(block, tile_size(n_candidates) // 64),
        hits=np.empty(block, dtype=np.uint32),
        guesses=np.empty(block, dtype=np.int64),
        picks=np.empty((n, classes.n.size), dtype=np.uint32),
        floors=np.empty(n, dtype=np.int64),
        ranks=np.empty((n, found.rows.shape[1]), dtype=np.uint64),
    )


def _words(n, width):
    """Room for n rows of words, from the start of a cache line on: vectors that lie across two take longer to load."""
    room = np.empty(n * width + LANES, dtype=np.uint64)
    start = -room.ctypes.data // 8 % LANES
    return room[start : start + n * width].reshape(n, width)


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
def _compare(queries, places, first_tiles, candidates, classes, room, found):
    """The k best of each query: first from the tile nearest to its block of queries, then from the other tiles.

    These come by turns from the left and the right. The bitmaps of a tile are drawn once for all blocks. What this
    calls is inlined: each would be compiled twice otherwise.
    """
    size, tile = room.hits.size, 64 * room.masks.shape[1]
    n_tiles, middle = candidates.tiles.shape[1] // tile, first_tiles[first_tiles.size // 2]
    _begin(queries.codes, places, classes.offsets, room)
    for others in range(2):
        for step in range(n_tiles):
            at = (middle + ((step + 1) // 2 if step % 2 else -(step // 2))) % n_tiles
            drawn = False
            for block in range(first_tiles.size):
                if (first_tiles[block] == at) == others:
                    continue
                if not drawn:
                    _draw_bitmaps(candidates.tiles, at * tile, tile // 64, classes.n, room.bitmaps)
                drawn = True
                begin, end = block * size, min((block + 1) * size, places.size)
                for turn in range(2 - others):  # again for queries that passed over candidates
                    if not others and turn == 0:
                        n_hits = _guess_floors(room, begin, end)
                    else:
                        n_asked = _everybody(room.hits, end - begin) if others else _bad_guesses(room, begin, end)
                        n_hits = _filter(room, begin, n_asked)
                    _rank(queries, places, candidates, room, begin, n_hits, at * tile)
    _write(queries, places, candidates.order, room.ranks, found)


@njit(nogil=True, cache=True, inline="always")
def _begin(query_codes, places, offsets, room):
    """The bitmaps of each query. Nobody is found yet."""
    for q in range(places.size):
        for h in range(room.picks.shape[1]):
            room.picks[q, h] = offsets[h, query_codes[places[q], h]]
        room.floors[q] = 0
        for i in range(room.ranks.shape[1]):
            room.ranks[q, i] = 0


@njit(nogil=True, cache=True, inline="always")
def _write(queries, places, order, ranks, found):
    """What was found, under the numbers of the given rows."""
    for q in range(places.size):
        place = places[q]
        for i in range(ranks.shape[1]):
            found.rows[queries.order[place], i] = order[(ranks[q, i] ^ queries.tokens[place]) & _ROW_MASK]
            found.counts[queries.order[place], i] = ranks[q, i] >> _COUNT_SHIFT


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
def _guess_floors(room, begin, end):
    """The count of each query's k-th best candidate of the tile, going by classes, and who reaches it."""
    picks, masks = room.picks, room.masks
    n_digits = 5 if picks.shape[1] < 32 else 6 if picks.shape[1] < 64 else 8
    n_words = masks.shape[1]
    # These are new here, not handed in: LLVM makes vector code of the loops only where no other array can overlap.
    planes = np.empty((n_digits, n_words), dtype=np.uint64)
    level, above = np.empty(n_words, dtype=np.uint64), np.empty(n_words, dtype=np.uint64)
    for q in range(end - begin):
        count(room.bitmaps, picks, begin + q, planes)
        # Digit by digit from the highest: `level` has all digits of the k-th best so far, `above` is better.
        for word in range(n_words):
            level[word], above[word] = ~np.uint64(0), np.uint64(0)
        wanted, floor = room.ranks.shape[1], 0
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
        room.floors[begin + q], room.guesses[q], room.hits[q] = floor, floor, q
        for word in range(n_words):
            masks[q, word] = level[word] | above[word]
    return end - begin


@njit(nogil=True, cache=True, inline="always")
def _bad_guesses(room, begin, end):
    """List the queries whose k-th best falls short of the guess. They start again."""
    n_hits = 0
    for q in range(end - begin):
        if room.floors[begin + q] < room.guesses[q]:
            for i in range(room.ranks.shape[1]):
                room.ranks[begin + q, i] = 0
            room.hits[n_hits] = q
            n_hits += 1
    return n_hits


@njit(nogil=True, cache=True, inline="always")
def _everybody(hits, n):
    for q in range(n):
        hits[q] = q
    return n


@njit(nogil=True, cache=True, inline="always")
def _filter(room, begin, n_asked):
    """Of the listed queries, keep those that have candidates at or above their floor in this tile."""
    n_hits, hits = 0, room.hits
    for i in range(n_asked):
        own = hits[i]
        hits[n_hits] = own
        q = np.uint64(begin + own)
        n_hits += reaching(room.bitmaps, room.picks, q, room.floors[q], room.masks, own)
    return n_hits


@njit(nogil=True, cache=True, inline="always")
def _rank(queries, places, candidates, room, begin, n_hits, first):
    """Look at the candidates in the masks one by one and keep the best."""
    masks, ranks = room.masks, room.ranks
    last = ranks.shape[1] - 1
    for i in range(n_hits):
        own = room.hits[i]
        q = np.uint64(begin + own)  # unsigned: Numba tests signed ones for a count from the end
        place = np.uint64(places[q])
        for word in range(masks.shape[1]):
            bits = masks[own, word]
            while bits != 0:
                at = first + 64 * word + lowest_bit(bits)
                bits &= bits - np.uint64(1)
                if at >= candidates.rows.size:  # padding
                    break
                equal = n_equal(queries.codes, place, candidates.codes, at)
                priority = _priority(queries.tokens[place], candidates.tokens[at], np.uint64(candidates.rows[at]))
                rank = (equal << _COUNT_SHIFT) | priority
                if rank > ranks[q, last]:
                    _insert(ranks, q, rank)
        room.floors[q] = np.int64(ranks[q, last] >> _COUNT_SHIFT)


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
