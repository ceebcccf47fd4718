"""Messages as bytes, arrays and trees as parts of messages, and back. What does not fit is refused."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np

from simfl.arrays import AnyArray, smallest_type
from simfl.errors import ProtocolError
from simfl.messages import AdoptedTree, Array, DType, Message, Reply, Request, TreeStructure
from simfl.privacy.additive import Parts, check_form
from simfl.privacy.exact import WIDE_BYTES, wide_from_bytes, wide_to_bytes
from simfl.privacy.words import Words, from_bytes, to_bytes
from simfl.training.trees import LEAF, Tree, children

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Request | Reply] = msgspec.msgpack.Decoder(Request | Reply)
_DTYPES = {kind: np.dtype(f"<{kind}") for kind in get_args(DType) if int(kind[1]) in (1, 2, 4, 8)}
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


def pack(values: AnyArray) -> Array:
    """An array, ready to travel, in its own type.

    >>> unpack(pack(np.array([1, 2], dtype=np.int32)), "i4", (2,))
    array([1, 2], dtype=int32)
    """
    if values.dtype.str[0] == ">":
        values = values.astype(values.dtype.newbyteorder("<"))
    kind: Any = values.dtype.str[1:]
    return Array(kind, values.shape, values.tobytes())


def pack_words(words: Words, n_bytes: int, shape: tuple[int, ...]) -> Array:
    """The low bytes of words, ready to travel.

    >>> unpack(pack_words(np.array([5, 2**24 + 6], dtype=np.uint64), 3, (2,)), "u3", (2,))
    array([5, 6], dtype=uint64)
    """
    kind: Any = f"u{n_bytes}"
    return Array(kind, shape, to_bytes(words, n_bytes))


def bytes_of(array: Array, dtype: str, shape: tuple[int | None, ...]) -> bytes:
    """The bytes of an array, if it has the expected type and shape (None: any length)."""
    found, data = array.shape, array.data
    fits = array.dtype == dtype and (found == shape or _fits(found, shape))
    if not fits or int(dtype[1]) * math.prod(found) != len(data):
        raise ProtocolError(
            f"An array of type {array.dtype}, shape {found} and {len(data)} bytes arrived "
            f"where type {dtype} and shape {shape} belong."
        )
    return data


def unpack(array: Array, dtype: str, shape: tuple[int | None, ...]) -> AnyArray:
    """The array behind the bytes, if it has the expected type and shape (None: any length)."""
    found, data = array.shape, bytes_of(array, dtype, shape)
    try:
        if dtype not in _DTYPES:
            return from_bytes(data, int(dtype[1])).reshape(found)
        values = np.frombuffer(data, dtype=_DTYPES[dtype])
        values = values if len(found) == 1 else values.reshape(found)
    except (ValueError, OverflowError):  # no bytes at all, and a shape of zero times far too many
        raise ProtocolError(f"An array of the impossible shape {found} arrived.") from None
    if dtype[0] == "f" and 0 in np.isfinite(values).tobytes():  # as .all(), in a third of the time
        raise ProtocolError(f"An array of shape {found} arrived with numbers that are NaN or infinite.")
    return values


def _fits(found: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    pairs = zip(found, shape, strict=False)
    return len(found) == len(shape) and all(n >= 0 if wanted is None else n == wanted for n, wanted in pairs)


def pack_wide(numbers: Sequence[int]) -> Array:
    """Wide numbers, ready to travel: a row of eight words each."""
    return Array("u8", (len(numbers), WIDE_BYTES // 8), wide_to_bytes(numbers))


def unpack_wide(array: Array, n: int) -> list[int]:
    """The n wide numbers behind a message's sums."""
    if array.dtype != "u8" or array.shape != (n, WIDE_BYTES // 8) or len(array.data) != n * WIDE_BYTES:
        raise ProtocolError(f"Sums of shape {array.shape} arrived where {n} wide numbers belong.")
    return wide_from_bytes(array.data)


def pack_parts(parts: Parts) -> list[Array]:
    """A vector that is to be added, ready to travel."""
    return [pack(part) for part in parts]


def unpack_parts(arrays: Sequence[Array]) -> Parts:
    """The vector behind a message's parts, if it can be added."""
    parts = [unpack(a, a.dtype, (None,) * len(a.shape)) for a in arrays]
    check_form(parts)
    return parts


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
    before = np.cumsum(inner) - inner  # splits before each node
    if (
        n % 2 == 0
        or np.count_nonzero(inner) != n_splits
        or (np.arange(n) > 2 * before).any()
        or (split_feature >= n_features).any()
    ):
        raise ProtocolError(f"A tree of {n} nodes arrived that is not a tree over {n_features} features.")
    feature = np.full(n, LEAF, dtype=np.int32)
    threshold = np.zeros(n, dtype=np.float32)
    default_left = np.zeros(n, dtype=bool)
    feature[inner], threshold[inner] = split_feature, split_threshold
    default_left[inner] = _bits(message.default_left, n_splits)
    levels = _levels_from_message(message, inner, n_splits)
    return Tree(feature, threshold, default_left, children(feature), np.zeros(n, dtype=np.float32), **levels)


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
