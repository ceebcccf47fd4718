"""How fast the similarity search is, beside a plain kernel, FAISS and the machine's limit.

`python -m benchmarks.search` compares on one core, in CPU seconds, so that a busy machine disturbs little.
The programs take turns and the medians count. `--parties 10` times the whole preparation on all cores:
every party's rows against those of each other party. FAISS takes part if it is installed (`faiss-cpu`).

The plain kernel counts equal bytes, hash by hash, for blocks of 4096 candidates, and keeps the k best (the
first of equals). The bare loop does nothing but compare: its bytes per second are the limit of that way.
"""

import argparse
import importlib.util
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.repeats import Turns, in_turn, with_quartiles
from simfl.preprocessing.similarity import most_similar

Codes = NDArray[np.uint8]
SHAPES = {"SUSY-like": (18, 17), "HIGGS-like": (28, 27)}  # features, hashes
BLOCK = 4096


def make_codes(n_rows: int, n_features: int, n_hashes: int, seed: int = 0) -> Codes:
    """Codes of correlated, partly skewed features, hashed as the similar recipe does."""
    rng = np.random.default_rng(seed)
    mixing = np.eye(n_features) + 0.35 * np.random.default_rng(1).normal(size=(n_features, n_features))
    rows = rng.normal(size=(n_rows, n_features)) @ mixing
    rows[:, ::3] = np.exp(0.4 * rows[:, ::3])
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    width = 0.5 * np.sqrt(n_features)
    directions = np.random.default_rng(2).normal(size=(n_features, n_hashes))
    buckets = np.floor(rows @ directions / width)
    codes: Codes = np.clip(buckets + 128, 0, 255).astype(np.uint8)
    return codes


@numba.njit(nogil=True)
def add_equal(sums: Any, a: Any, b: Any, c: Any, d: Any, query: Any) -> None:
    qa, qb, qc, qd = query[0], query[1], query[2], query[3]
    for j in range(sums.size):
        sums[j] += np.uint8(a[j] == qa) + np.uint8(b[j] == qb) + np.uint8(c[j] == qc) + np.uint8(d[j] == qd)


@numba.njit(nogil=True)
def count_block(query: Any, tile: Any, sums: Any) -> None:
    n_hashes = tile.shape[0]
    sums[:] = 0
    for h in range(0, n_hashes - 3, 4):
        add_equal(sums, tile[h], tile[h + 1], tile[h + 2], tile[h + 3], query[h : h + 4])
    for h in range(n_hashes - n_hashes % 4, n_hashes):
        code = query[h]
        row = tile[h]
        for j in range(sums.size):
            sums[j] += np.uint8(row[j] == code)


@numba.njit(nogil=True)
def keep_best(sums: Any, first: Any, rows: Any, counts: Any) -> None:
    last = counts.size - 1
    for j in range(sums.size):
        if sums[j] > counts[last]:
            at = last
            while at > 0 and counts[at - 1] < sums[j]:
                counts[at], rows[at] = counts[at - 1], rows[at - 1]
                at -= 1
            counts[at], rows[at] = sums[j], first + j


@numba.njit(nogil=True)
def plain(queries: Any, blocks: Any, k: Any) -> Any:
    """The plain kernel: `blocks` is (blocks, hashes, 4096)."""
    rows = np.zeros((queries.shape[0], k), dtype=np.int32)
    counts = np.zeros((queries.shape[0], k), dtype=np.uint8)
    sums = np.empty(blocks.shape[2], dtype=np.uint8)
    for block in range(blocks.shape[0]):
        for q in range(queries.shape[0]):
            count_block(queries[q], blocks[block], sums)
            if sums.max() > counts[q, k - 1]:
                keep_best(sums, block * sums.size, rows[q], counts[q])
    return rows, counts


@numba.njit(nogil=True)
def bare(queries: Any, blocks: Any, k: Any) -> Any:
    """Only the comparison of bytes."""
    total = 0
    sums = np.empty(blocks.shape[2], dtype=np.uint8)
    for block in range(blocks.shape[0]):
        for q in range(queries.shape[0]):
            count_block(queries[q], blocks[block], sums)
            total += sums[0]
    return total


def in_blocks(candidates: Codes) -> Codes:
    """Hash-major blocks of 4096; what is left over is dropped (from all programs)."""
    return np.ascontiguousarray(candidates.reshape(-1, BLOCK, candidates.shape[1]).transpose(0, 2, 1))


def one_hot(codes: Codes, low: Codes, span: Codes) -> Codes:
    """Each hash as one set bit among as many as it has buckets; Hamming distance = 2 * unequal hashes."""
    ends = np.cumsum(span.astype(int) + 1)
    bits = np.zeros((len(codes), -(-int(ends[-1]) // 64) * 64), dtype=np.uint8)
    places = codes - low + np.concatenate([[0], ends[:-1]])
    np.put_along_axis(bits, places, 1, axis=1)
    return np.packbits(bits, axis=1)


def faiss_search(queries: Codes, candidates: Codes, k: int) -> Callable[[], Any] | None:
    if importlib.util.find_spec("faiss") is None:
        return None
    import faiss  # type: ignore[import-not-found,import-untyped,unused-ignore]

    faiss.omp_set_num_threads(1)
    both = np.concatenate([queries, candidates])
    low, span = both.min(axis=0), both.max(axis=0) - both.min(axis=0)
    coded = [one_hot(side, low, span) for side in (queries, candidates)]
    index = faiss.IndexBinaryFlat(8 * coded[0].shape[1])
    index.add(coded[1])
    return lambda: index.search(coded[0], k)


def compare(shape: str, n_rows: int, k: int, repeats: int) -> dict[str, Any]:
    """Pairs per second on one core of each program; the slow ones get fewer queries."""
    n_rows = -(-n_rows // BLOCK) * BLOCK
    queries, candidates = (make_codes(n_rows, *SHAPES[shape], seed) for seed in (0, 1))
    few = queries[: max(256, n_rows // 50)]
    blocks = in_blocks(candidates)
    programs: dict[str, tuple[int, Callable[[], Any] | None]] = {
        "simfl": (len(queries), lambda: most_similar(queries, candidates, k, n_jobs=1)),
        "plain": (len(few), lambda: plain(few, blocks, k)),
        "bare": (len(few), lambda: bare(few, blocks, k)),
        "faiss": (len(few), faiss_search(few, candidates, k)),
    }
    works = {name: run for name, (_, run) in programs.items() if run is not None}
    in_turn(works, 1)  # compiles
    turns, _ = in_turn(works, repeats, time.process_time)
    check_equal_counts(few, queries, candidates, blocks, k)
    per_query = Turns({name: [s / programs[name][0] for s in seconds] for name, seconds in turns.seconds.items()})
    return {
        "shape": shape,
        "rows": n_rows,
        "hashes": SHAPES[shape][1],
        "k": k,
        "pairs_per_second": {name: n_rows / median for name, median in per_query.medians().items()},
        "faster_by": {name: per_query.over(name, "simfl") for name in works if name != "simfl"},
    }


def check_equal_counts(few: Codes, queries: Codes, candidates: Codes, blocks: Codes, k: int) -> None:
    ours = most_similar(queries[: len(few)], candidates, k)[1]
    if not np.array_equal(ours, plain(few, blocks, k)[1]):
        raise RuntimeError("The search and the plain kernel disagree; the times mean nothing.")


def prepare_parties(shape: str, n_rows: int, n_parties: int, **options: Any) -> dict[str, Any]:
    """Seconds for every party's rows against those of each other party, on all cores."""
    parties = [make_codes(n_rows, *SHAPES[shape], seed) for seed in range(n_parties)]
    most_similar(parties[0][:100], parties[1][:100])  # compile
    start, cpu_start = time.perf_counter(), time.process_time()
    for a, b in itertools.permutations(parties, 2):
        most_similar(a, b, **options)
    seconds = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu_start}
    return {"shape": shape, "rows": n_rows, "parties": n_parties} | options | seconds


def comparison_table(results: list[dict[str, Any]]) -> Table:
    table = Table("codes", "program", "pairs/s", "bytes/s", "simfl is faster by", title="One core")
    for result in results:
        rates = result["pairs_per_second"]
        for name, rate in rates.items():
            faster = with_quartiles(result["faster_by"].get(name, 1.0), 1)
            table.add_row(result["shape"], name, f"{rate:.3g}", f"{rate * result['hashes']:.3g}", faster)
    return table


def parties_table(results: list[dict[str, Any]]) -> Table:
    columns = ("shape", "parties", "rows", "max_candidates", "k", "seconds", "cpu_seconds")
    table = Table(*columns, title="Preparation, all cores")
    for result in results:
        values = (result[column] for column in columns)
        table.add_row(*(f"{value:.1f}" if isinstance(value, float) else str(value) for value in values))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of the similarity search.")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of each party")
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--parties", type=int, help="time the whole preparation of so many parties instead")
    parser.add_argument("--max-candidates", type=int, help="with --parties: the bounded search")
    parser.add_argument("--json", type=Path, metavar="OUT")
    args = parser.parse_args()
    if args.parties:
        options = {"k": args.k, "max_candidates": args.max_candidates}
        results = [prepare_parties(shape, args.rows, args.parties, **options) for shape in SHAPES]
    else:
        results = [compare(shape, args.rows, args.k, args.repeats) for shape in SHAPES]
    Console().print(parties_table(results) if args.parties else comparison_table(results))
    if args.json:
        args.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
