"""Finished trees as bytes: what those need who join a training later."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from simfl.arrays import AnyArray, Floats, Ints, Mask
from simfl.errors import DataError, ProtocolError
from simfl.joint.level import MISSING, N_BINS
from simfl.training.trees import LEAF, Tree, children


class FinishedTree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tree with its values, and what each of its splits has gained. Numbers are little-endian bytes."""

    feature: bytes  # int32 per node, breadth first; -1 at a leaf
    threshold: bytes  # float32
    default_left: bytes  # one byte per node
    value: bytes  # float32
    gain: bytes  # float32
    goes_right: bytes  # per split of a category one bit per bin


_decoder = msgspec.msgpack.Decoder(list[FinishedTree])


def encode(trees: Sequence[tuple[Tree, Floats]]) -> bytes:
    """The trees of a batch, with what their splits have gained, as bytes."""
    return msgspec.msgpack.encode([pack_tree(tree, gain) for tree, gain in trees])


def decode(data: bytes, n_levels: Ints) -> list[tuple[Tree, Floats]]:
    """From bytes; refuses anything else."""
    try:
        found = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ProtocolError("The trees that were finished before cannot be read.") from None
    return [unpack_tree(tree, n_levels) for tree in found]


def numbers(data: bytes, dtype: Any, n: int) -> AnyArray:
    """An array of n numbers."""
    found = np.dtype(dtype).newbyteorder("<")
    if len(data) != n * found.itemsize:
        raise ProtocolError(f"{len(data)} bytes arrived where {n * found.itemsize} belong.")
    return np.frombuffer(data, found).astype(dtype)


def refuse_too_large(tree: Tree) -> None:
    """Raise where a leaf value is no number that a model can hold."""
    if not np.isfinite(tree.value).all():
        raise DataError(
            "A leaf value is larger than any number that a model can hold: the training diverges. Lower learning_rate."
        )


def pack_tree(tree: Tree, gain: Floats) -> FinishedTree:
    """A tree and what its splits have gained."""
    return FinishedTree(
        feature=tree.feature.astype("<i4").tobytes(),
        threshold=tree.threshold.astype("<f4").tobytes(),
        default_left=tree.default_left.astype(np.uint8).tobytes(),
        value=tree.value.astype("<f4").tobytes(),
        gain=gain.astype("<f4").tobytes(),
        goes_right=_packed_sets(tree),
    )


def _packed_sets(tree: Tree) -> bytes:
    """In order of nodes; sets of splits that were pruned are left out."""
    if tree.level_set is None or tree.goes_right is None:
        return b""
    own = tree.goes_right[tree.level_set[tree.level_set >= 0], :MISSING]
    bins = np.zeros((len(own), N_BINS), bool)
    bins[:, : own.shape[1]] = own
    return np.packbits(bins, axis=1).tobytes()


def levels_of_bins(bins: Mask, n_levels: Ints) -> Mask:
    """Per set and level whether it goes right: the last bin stands for all levels from there on.

    `n_levels` are those of each set's column: levels that a column does not have are in no set.
    """
    level = np.arange(n_levels.max(initial=0))
    levels: Mask = bins[:, np.minimum(level, MISSING - 1)] & (level < n_levels[:, None])
    return levels


def unpack_tree(message: FinishedTree, n_levels: Ints) -> tuple[Tree, Floats]:
    """The tree and the gain of each of its splits. What is not a tree on these columns is refused."""
    n = len(message.feature) // 4
    feature: Ints = numbers(message.feature, np.int32, n)
    left = children(feature)
    inner = feature != LEAF
    if n == 0 or n != 2 * inner.sum() + 1 or (feature < LEAF).any() or (left[inner] <= np.flatnonzero(inner)).any():
        raise ProtocolError("A tree was finished before whose nodes do not form one.")
    if feature.max() >= len(n_levels):
        raise ProtocolError("A tree was finished before that splits a column that nobody has.")
    threshold, value, gain = (numbers(part, np.float32, n) for part in (message.threshold, message.value, message.gain))
    if not all(np.isfinite(part).all() for part in (threshold, value, gain)) or (gain < 0).any():
        raise ProtocolError("A tree was finished before with numbers that are not possible.")
    by_level = inner & (n_levels[feature] > 0)
    tree = Tree(
        feature=feature,
        threshold=np.where(inner & ~by_level, threshold, np.float32(0)),
        default_left=numbers(message.default_left, np.uint8, n).astype(bool) & inner,
        left=left,
        value=np.where(inner, np.float32(0), value),
        **_unpacked_sets(message.goes_right, by_level, n_levels[feature[by_level]]),
    )
    return tree, np.where(inner, gain, np.float32(0))


def _unpacked_sets(data: bytes, by_level: Mask, n_levels: Ints) -> dict[str, AnyArray]:
    packed = numbers(data, np.uint8, len(n_levels) * N_BINS // 8).reshape(-1, N_BINS // 8)
    return level_sets(np.unpackbits(packed, axis=1).astype(bool), by_level, n_levels)


def level_sets(goes_right: Mask, by_level: Mask, n_levels: Ints) -> dict[str, AnyArray]:
    """The splits of categories as a tree has them; nothing for a tree without such splits."""
    if not by_level.any():
        return {}
    number = np.where(by_level, np.cumsum(by_level) - 1, -1).astype(np.int32)
    return {"level_set": number, "goes_right": levels_of_bins(goes_right, n_levels)}
