"""Trees that are drawn at random, from a seed and from what the study declares: no row has a part in them.

Every node takes a column, uniformly or in proportion to given weights, and one of its declared cut points that still
divide the node's box, uniformly. A category sends each of its levels left or right at random. Missing values go either
way. A tree is full: all its leaves are at the same depth, unless no column divides a node any further.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from simfl.arrays import AnyArray, Floats
from simfl.training.trees import LEAF, Tree, children

NUMBERS_DEPTH, LEVELS_DEPTH = 2, 5  # of a tree that splits one column only
TRIES = 8  # columns that a node tries before all are looked through


@dataclass(frozen=True)
class Columns:
    """What is declared: per column its cut points, and the number of its levels (0 for numbers)."""

    points: Sequence[Floats]
    n_levels: AnyArray
    weights: Sequence[int] | None = None  # how often each is drawn, in proportion; None: all alike

    def can_divide(self, j: int) -> bool:
        """Whether a column can divide anything."""
        return len(self.points[j]) > 0 or bool(self.n_levels[j] > 1)


class _Chances:
    """Columns, and how often each is drawn."""

    def __init__(self, columns: Columns, among: Iterable[int]) -> None:
        self.among = list(among)
        self.running = [*accumulate(1 if columns.weights is None else columns.weights[j] for j in self.among)]

    def draw(self, rng: _Random) -> int:
        return self.among[bisect_right(self.running, rng.below(self.running[-1]))]


@dataclass
class _Node:
    """A node and its box: per column the cut points (first and end), or the levels, that are still in it."""

    depth: int
    inside: dict[int, AnyArray] = field(default_factory=dict)


class _Random:
    """Random numbers that are the same on every machine."""

    def __init__(self, seed: bytes) -> None:
        self._raw = np.random.PCG64(int.from_bytes(seed, "little"))

    def below(self, n: int) -> int:
        return int(self._raw.random_raw()) * n >> 64

    def bits(self, n: int) -> AnyArray:
        words = np.asarray(self._raw.random_raw(-(-n // 64)), dtype="<u8")
        return np.unpackbits(words.view(np.uint8), count=n).astype(bool)


_Split = tuple[
    int, AnyArray | int, AnyArray, AnyArray
]  # column, cut or levels that go right, and what is in the children


def draw(columns: Columns, depth: int, seed: object) -> Tree:
    """A tree without values. `seed`: whatever it depends on."""
    chances = _Chances(columns, filter(columns.can_divide, range(len(columns.points))))

    def split(node: _Node, rng: _Random) -> _Split | None:
        j = _column(node, columns, chances, rng) if chances.among else None
        return None if j is None else _split(node, columns, j, rng)

    return _grown(columns, depth, seed, split)


def draw_alone(columns: Columns, j: int, seed: object) -> Tree:
    """A tree that splits one column only, always in the middle: four cells of numbers, or every level a leaf.

    A category with more levels than leaves has adjacent ones together.
    """
    depth = LEVELS_DEPTH if columns.n_levels[j] else NUMBERS_DEPTH

    def split(node: _Node, _: _Random) -> _Split | None:
        return _split(node, columns, j, None) if _divides(node, columns, j) else None

    return _grown(columns, depth, seed, split)


def _grown(columns: Columns, depth: int, seed: object, choose: Callable[[_Node, _Random], _Split | None]) -> Tree:
    rng = _Random(hashlib.blake2b(repr(seed).encode(), digest_size=16).digest())
    nodes, splits = [_Node(0)], []
    for node in nodes:  # the list grows while it is read: breadth first
        split = choose(node, rng) if node.depth < depth else None
        splits.append(split)
        if split is not None:
            j, _, left, right = split
            nodes += [_Node(node.depth + 1, {**node.inside, j: part}) for part in (left, right)]
    return _tree(columns, splits, rng)


def _split(node: _Node, columns: Columns, j: int, rng: _Random | None) -> _Split:
    """One that divides the node: at random, or in the middle."""
    inside = _inside(node, columns, j)
    if not columns.n_levels[j]:
        first, end = inside.tolist()
        cut = first + (rng.below(end - first) if rng else (end - first) // 2)
        return j, cut, np.array([first, cut]), np.array([cut + 1, end])
    n_levels = int(columns.n_levels[j])
    right = rng.bits(n_levels) if rng else np.isin(np.arange(n_levels), inside[len(inside) // 2 :])
    while rng and not 0 < right[inside].sum() < len(inside):
        right = rng.bits(len(right))
    return j, right, inside[~right[inside]], inside[right[inside]]


def _column(node: _Node, columns: Columns, chances: _Chances, rng: _Random) -> int | None:
    """One of those that divide the node. A few are tried before all are looked through."""
    for _ in range(TRIES):
        j = chances.draw(rng)
        if _divides(node, columns, j):
            return j
    left = [j for j in chances.among if _divides(node, columns, j)]
    return _Chances(columns, left).draw(rng) if left else None


def _inside(node: _Node, columns: Columns, j: int) -> AnyArray:
    n_levels = int(columns.n_levels[j])
    found = node.inside.get(j)
    return found if found is not None else np.arange(n_levels) if n_levels else np.array([0, len(columns.points[j])])


def _divides(node: _Node, columns: Columns, j: int) -> bool:
    inside = _inside(node, columns, j)
    return len(inside) > 1 if columns.n_levels[j] else bool(inside[1] > inside[0])


def _tree(columns: Columns, splits: list[_Split | None], rng: _Random) -> Tree:
    feature = np.array([LEAF if split is None else split[0] for split in splits], dtype=np.int32)
    threshold = np.zeros(len(splits), np.float32)
    level_set = np.full(len(splits), -1, np.int32)
    sets: list[AnyArray] = []
    for node, split in enumerate(splits):
        if split is None:
            continue
        j, by, *_ = split
        if isinstance(by, int):
            threshold[node] = columns.points[j][by]
        else:
            level_set[node] = len(sets)
            sets.append(by)
    by_level = {}
    if sets:
        goes_right = np.zeros((len(sets), int(columns.n_levels.max())), bool)
        for number, right in enumerate(sets):
            goes_right[number, : len(right)] = right
        by_level = {"level_set": level_set, "goes_right": goes_right}
    return Tree(
        feature=feature,
        threshold=threshold,
        default_left=rng.bits(len(splits)) & (feature != LEAF),
        left=children(feature),
        value=np.zeros(len(splits), np.float32),
        **by_level,
    )
