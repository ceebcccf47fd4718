"""Messages as bytes, arrays and trees as parts of messages, and back. What does not fit is refused."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import numpy as np

from simfl.arrays import AnyArray, smallest_type
from simfl.errors import ProtocolError
from simfl.messages import AdoptedTree, Array, DType, Message, Reply, Request, TreeStructure
from simfl.privacy.exact import WIDE_BYTES, from_three_bytes, to_three_bytes, wide_from_bytes, wide_to_bytes
from simfl.training.trees import LEAF, Tree, children

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Request | Reply] = msgspec.msgpack.Decoder(Request | Reply)
R = TypeVar("R", bound=Message)


def encode(message: Request | Reply) -> bytes:
    """The bytes that travel."""
    return _encoder.encode(message)


def decode(data: bytes) -> Request | Reply:
    """The message behind the bytes; whatever is not one is refused."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"{len(data)} bytes arrived that are not a SimFL message: {error}.") from None


def expect(kind: type[R], message: Message, sender: str) -> R:
    """The message, if it is of the expected kind."""
    if not isinstance(message, kind):
        raise ProtocolError(f"{sender!r} sent {type(message).__name__} where {kind.__name__} belongs.")
    return message


def pack(values: AnyArray, dtype: DType | None = None) -> Array:
    """An array, ready to travel, in its own type or in three bytes of its four (i3).

    >>> unpack(pack(np.array([1, 2], dtype=np.int32)), "i4", (2,))
    array([1, 2], dtype=int32)
    """
    little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    if dtype == "i3":
        return Array("i3", little.shape, to_three_bytes(little.ravel()).tobytes())
    kind: Any = little.dtype.str[1:]
    return Array(kind, little.shape, little.tobytes())


def unpack(array: Array, dtype: str, shape: tuple[int | None, ...]) -> AnyArray:
    """The array behind the bytes, if it has the expected type and shape (None: any length)."""
    found = array.shape
    fits = found == shape or (
        len(found) == len(shape) and all(w in (None, s) for s, w in zip(found, shape, strict=True))
    )
    size = int(array.dtype[1]) * math.prod(found)
    if array.dtype != dtype or not fits or min(found, default=0) < 0 or size != len(array.data):
        raise ProtocolError(
            f"An array of type {array.dtype}, shape {found} and {len(array.data)} bytes arrived "
            f"where type {dtype} and shape {shape} belong."
        )
    try:
        if dtype == "i3":
            return from_three_bytes(np.frombuffer(array.data, dtype=np.uint8)).reshape(array.shape)
        values = np.frombuffer(array.data, dtype=f"<{dtype}").reshape(array.shape)
    except (ValueError, OverflowError):  # no bytes at all, and a shape of zero times far too many
        raise ProtocolError(f"An array of the impossible shape {array.shape} arrived.") from None
    if dtype[0] == "f" and not np.isfinite(values).all():
        raise ProtocolError(f"An array of shape {array.shape} arrived with numbers that are NaN or infinite.")
    return values


def pack_wide(numbers: Sequence[int]) -> Array:
    """Wide numbers, ready to travel: a row of eight words each."""
    return Array("u8", (len(numbers), WIDE_BYTES // 8), wide_to_bytes(numbers))


def unpack_wide(array: Array, n: int) -> list[int]:
    """The n wide numbers behind a message's sums."""
    if array.dtype != "u8" or array.shape != (n, WIDE_BYTES // 8) or len(array.data) != n * WIDE_BYTES:
        raise ProtocolError(f"Sums of shape {array.shape} arrived where {n} wide numbers belong.")
    return wide_from_bytes(array.data)


def tree_to_message(tree: Tree) -> TreeStructure:
    """The structure of a tree: five bytes and a few bits per split, where there are no more than 256 features."""
    inner = tree.feature != LEAF
    return TreeStructure(
        n_nodes=len(inner),
        inner=np.packbits(inner).tobytes(),
        feature=pack(_smallest(tree.feature[inner])),
        threshold=pack(tree.threshold[inner]),
        default_left=np.packbits(tree.default_left[inner]).tobytes(),
        **_levels_to_message(tree),
    )


def adopted(tree: Tree) -> AdoptedTree:
    """A finished tree with structure and values."""
    return AdoptedTree(values=pack(tree.value[tree.leaves]), structure=tree_to_message(tree))


def tree_of(finished: AdoptedTree, n_features: int) -> Tree:
    """The tree behind a finished tree that carries its structure."""
    if finished.structure is None:
        raise ProtocolError("Leaf values arrived without the tree that they belong to.")
    tree = tree_from_message(finished.structure, n_features)
    return tree.with_leaf_values(unpack(finished.values, "f4", (tree.n_leaves,)))


def _smallest(numbers: AnyArray) -> AnyArray:
    return numbers.astype(smallest_type(int(numbers.max(initial=0)) + 1))


def _levels_to_message(tree: Tree) -> dict[str, Any]:
    if tree.level_set is None or tree.goes_right is None:
        return {}
    sets = tree.level_set[tree.feature != LEAF]
    used = tree.goes_right[sets[sets >= 0]]  # in the order of the splits
    return {"by_level": np.packbits(sets >= 0).tobytes(), "goes_right": pack(np.packbits(used, axis=1))}


@lru_cache(maxsize=64)  # in one process all parties get the same trees
def tree_from_message(message: TreeStructure, n_features: int) -> Tree:
    """The tree behind a message, if it is a tree: every node but the first has one parent, which comes before it."""
    n, n_splits = message.n_nodes, message.n_nodes // 2
    inner = _bits(message.inner, n)
    kind = message.feature.dtype
    split_feature = unpack(message.feature, kind if kind in ("u1", "u2") else "u4", (n_splits,))
    split_threshold = unpack(message.threshold, "f4", (n_splits,))
    before = np.concatenate([[0], np.cumsum(inner)[:-1]])
    if (
        n % 2 == 0
        or int(inner.sum()) != n_splits
        or (np.arange(n) > 2 * before).any()
        or (split_feature >= n_features).any()
        or np.isnan(split_threshold).any()
    ):
        raise ProtocolError(f"A tree of {n} nodes arrived that is not a tree over {n_features} features.")
    feature = np.full(n, LEAF, dtype=np.int32)
    threshold = np.zeros(n, dtype=np.float32)
    default_left = np.zeros(n, dtype=bool)
    feature[inner], threshold[inner] = split_feature, split_threshold
    default_left[inner] = _bits(message.default_left, n_splits)
    tree = Tree(feature, threshold, default_left, children(feature), np.zeros(n, dtype=np.float32))
    return replace(tree, **_levels_from_message(message, inner, n_splits))


def _levels_from_message(message: TreeStructure, inner: AnyArray, n_splits: int) -> dict[str, Any]:
    if message.goes_right is None:
        return {}
    by_level = _bits(message.by_level, n_splits)
    sets = unpack(message.goes_right, "u1", (int(by_level.sum()), None))
    level_set = np.full(len(inner), -1, dtype=np.int32)
    level_set[inner] = np.where(by_level, np.cumsum(by_level) - 1, -1)
    return {"level_set": level_set, "goes_right": np.unpackbits(sets, axis=1).astype(bool)}


def _bits(data: bytes, n: int) -> AnyArray:
    if n < 0 or len(data) != -(-n // 8):
        raise ProtocolError(f"{len(data)} bytes arrived where {n} bits belong.")
    return np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=n).astype(bool)
