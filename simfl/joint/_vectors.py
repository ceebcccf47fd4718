# mypy: allow-untyped-defs, allow-untyped-calls
"""A few operations that Numba has no words for, spelled out for LLVM: portable, for any machine."""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]
from numba import types
from numba.core import cgutils  # type: ignore[import-untyped,unused-ignore]
from numba.extending import intrinsic  # type: ignore[import-untyped,unused-ignore]

TILE = 64  # rows
BITS = 8  # cells of one mask

_INDEX = ir.IntType(32)
_WORD = ir.IntType(64)
_BYTE = ir.IntType(8)
_PAIR = ir.VectorType(_WORD, 2)
_SUMS = ir.VectorType(_WORD, BITS)
_MASKS = ir.VectorType(_BYTE, TILE)


def _operation(function: Any) -> Any:
    """A function that gives the types of an operation and emits its code, as the operation itself."""
    return intrinsic(function)


def _address(context, builder, kind, array, offset):
    return builder.gep(context.make_array(kind)(context, builder, array).data, [offset])


@_operation
def add_row(typing, cells, offset, packed):
    """cells[offset] += packed and cells[offset + 1] += 1, as one operation."""

    def generate(context, builder, signature, args):
        place = builder.bitcast(_address(context, builder, signature.args[0], *args[:2]), _PAIR.as_pointer())
        row = builder.insert_element(ir.Constant(_PAIR, [0, 1]), args[2], _INDEX(0))
        builder.store(builder.add(builder.load(place, align=8), row), place, align=8)
        return context.get_dummy_value()

    return types.void(cells, types.uint64, types.int64), generate


def _splat(builder, value, n):
    """A vector of n equal values."""
    single = builder.insert_element(ir.Constant(ir.VectorType(value.type, n), ir.Undefined), value, _INDEX(0))
    return builder.shuffle_vector(single, single, ir.Constant(ir.VectorType(_INDEX, n), [0] * n))


@_operation
def add_masked(typing, bins, at, n, features, lookup, masks, sums, cells, offset):
    """Complete the masks of the first n rows of a tile by four slots, then cells[offset + bit] += sum for each bit.

    `features` are those of the four slots, whose lookups follow each other. One loop does both: adding keeps the
    vector units busy while the bytes are looked up.
    """

    def generate(context, builder, signature, args):
        pairs = zip(signature.args, args, strict=True)
        bins, at, n, features, lookup, masks, sums, cells, offset = (
            _address(context, builder, kind, arg, _WORD(0)) if isinstance(kind, types.Array) else arg
            for kind, arg in pairs
        )
        columns = [builder.gep(bins, [builder.extract_value(features, k)]) for k in range(4)]
        place = builder.bitcast(builder.gep(cells, [offset]), _SUMS.as_pointer())
        total = cgutils.alloca_once_value(builder, builder.load(place, align=8))
        with cgutils.for_range(builder, n) as loop:
            row, value = (builder.load(builder.gep(array, [loop.index])) for array in (at, sums))
            mask = builder.load(builder.gep(masks, [loop.index]))
            for k, column in enumerate(columns):
                found = builder.zext(builder.load(builder.gep(column, [row])), _WORD)
                mask = builder.or_(mask, builder.load(builder.gep(lookup, [builder.add(found, _WORD(256 * k))])))
            builder.store(mask, builder.gep(masks, [loop.index]))
            chosen = builder.sext(builder.bitcast(mask, ir.VectorType(ir.IntType(1), BITS)), _SUMS)
            added = builder.and_(chosen, _splat(builder, value, BITS))
            builder.store(builder.add(builder.load(total), added), total)
        builder.store(builder.load(total), place, align=8)
        return context.get_dummy_value()

    four = types.UniTuple(types.uint64, 4)
    return types.void(bins, at, types.int64, four, lookup, masks, sums, cells, types.uint64), generate


@_operation
def count_masks(typing, masks, cells, offset):
    """cells[offset + bit] += how many of the masks of a tile have the bit."""

    def generate(context, builder, signature, args):
        loaded = builder.bitcast(_address(context, builder, signature.args[0], args[0], _WORD(0)), _MASKS.as_pointer())
        loaded = builder.load(loaded, align=1)
        for bit in range(BITS):
            wanted = ir.Constant(_MASKS, [1 << bit] * TILE)
            rows = builder.bitcast(builder.icmp_unsigned("==", builder.and_(loaded, wanted), wanted), _WORD)
            at = builder.add(args[2], _WORD(bit))
            place = _address(context, builder, signature.args[1], args[1], at)
            builder.store(builder.add(builder.load(place), builder.ctpop(rows)), place)
        return context.get_dummy_value()

    return types.void(masks, cells, types.uint64), generate
