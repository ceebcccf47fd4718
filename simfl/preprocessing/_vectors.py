# mypy: allow-untyped-defs, allow-untyped-calls
"""Vector operations of the similarity search, spelled out for LLVM.

The compiler does not turn these loops into vector code by itself: it cannot rule out that the many arrays overlap. So
we write the vector operations, LLVM's portable ones; each machine gets its own instructions. Every operation is a
function that returns its types and a `generate` that emits its code.
"""

import contextlib
import functools
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]
from numba import types
from numba.core import cgutils  # type: ignore[import-untyped,unused-ignore]
from numba.extending import intrinsic  # type: ignore[import-untyped,unused-ignore]

LANES = 8  # 64-bit words per vector
COMPARED = 32  # codes per comparison of two rows

_WORD = ir.IntType(64)
_VECTOR = ir.VectorType(_WORD, LANES)
_ZEROS = ir.Constant(_VECTOR, None)


def _operation(function: Any) -> Any:
    """A function that gives the types of an operation and emits its code, as the operation itself."""
    return intrinsic(function)


def _number(value):
    return ir.Constant(_WORD, value)


class _Array:
    """A contiguous array that an operation was given."""

    def __init__(self, context, builder, kind, value):
        self.builder = builder
        self.struct = context.make_array(kind)(context, builder, value)
        self.item = context.get_data_type(kind.dtype)

    @property
    def width(self):
        """The second dimension."""
        return self.builder.extract_value(self.struct.shape, 1)

    def address(self, offset, item):
        """Pointer to the item at a flat offset."""
        return self.builder.bitcast(self.builder.gep(self.struct.data, [offset]), item.as_pointer())


def _operands(context, builder, signature, args):
    """The arguments of an operation, arrays with their addresses."""
    pairs = zip(signature.args, args, strict=True)
    return [_Array(context, builder, kind, arg) if isinstance(kind, types.Array) else arg for kind, arg in pairs]


def _variable(builder, start):
    """A variable; LLVM keeps it in a register."""
    with builder.goto_entry_block():
        variable = builder.alloca(start.type)
    builder.store(start, variable)
    return variable


def _splat(builder, value, n):
    """A vector of n equal values."""
    index = ir.IntType(32)
    single = builder.insert_element(ir.Constant(ir.VectorType(value.type, n), ir.Undefined), value, index(0))
    return builder.shuffle_vector(single, single, ir.Constant(ir.VectorType(index, n), [0] * n))


# --- words and codes -------------------------------------------------------------------------------------------------


@_operation
def n_bits(typing, word):
    """How many bits are set."""
    return types.int64(types.uint64), lambda context, builder, signature, args: builder.ctpop(args[0])


@_operation
def lowest_bit(typing, word):
    """The place of the lowest bit that is set."""

    def generate(context, builder, signature, args):
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.int64(types.uint64), generate


@_operation
def equal_bits(typing, codes, offset, code):
    """A word whose bits say which of the 64 bytes from the offset on equal the code."""

    def generate(context, builder, signature, args):
        codes, offset, code = _operands(context, builder, signature, args)
        loaded = builder.load(codes.address(offset, ir.VectorType(ir.IntType(8), 64)), align=1)
        wanted = _splat(builder, builder.trunc(code, ir.IntType(8)), 64)
        return builder.bitcast(builder.icmp_unsigned("==", loaded, wanted), _WORD)

    return types.uint64(codes, types.int64, types.int64), generate


@_operation
def n_equal(typing, queries, q, candidates, at):
    """In how many places two rows are equal."""

    def generate(context, builder, signature, args):
        queries, q, candidates, at = _operands(context, builder, signature, args)
        width, vector = queries.width, ir.VectorType(queries.item, COMPARED)
        total = _variable(builder, _number(0))
        with cgutils.for_range_slice(builder, _number(0), width, _number(COMPARED), _WORD) as (h, _):
            query, candidate = (
                builder.load(array.address(builder.add(builder.mul(row, width), h), vector), align=1)
                for array, row in ((queries, q), (candidates, at))
            )
            equal = builder.bitcast(builder.icmp_unsigned("==", query, candidate), ir.IntType(COMPARED))
            found = builder.zext(builder.ctpop(equal), _WORD)
            builder.store(builder.add(builder.load(total), found), total)
        return builder.load(total)

    return types.uint64(queries, types.int64, candidates, types.int64), generate


# --- counting with binary digits -------------------------------------------------------------------------------------


def _add_bits(builder, digits, bits):
    """Add bits to binary counters, lane by lane: digits[0] holds the ones, digits[1] the twos, ..."""
    digits = list(digits)
    for place, digit in enumerate(digits):
        carries = []
        while bits:
            a, b = bits[0], bits[1] if len(bits) > 1 else None
            bits = bits[2:]
            if b is None:
                carries.append(builder.and_(digit, a))
                digit = builder.xor(digit, a)
            else:
                either = builder.or_(digit, a)
                carries.append(builder.or_(builder.and_(digit, a), builder.and_(b, either)))
                digit = builder.xor(builder.xor(digit, a), b)
        digits[place], bits = digit, carries
    return digits


def _emit_adder(builder, counters, load, n_hashes):
    """Add one bitmap per hash to the counters: first the odd ones, then eight at a time."""

    def add(first, n):
        bits = [load(builder.add(first, _number(i))) for i in range(n)]
        digits = _add_bits(builder, [builder.load(counter) for counter in counters], bits)
        for counter, digit in zip(counters, digits, strict=True):
            builder.store(digit, counter)

    odd = builder.and_(n_hashes, _number(7))
    eights = builder.append_basic_block("eights")
    choice = builder.switch(odd, eights)
    for n in range(1, 8):
        with builder.goto_block(builder.append_basic_block("odd")):
            choice.add_case(n, builder.block)
            add(_number(0), n)
            builder.branch(eights)
    builder.position_at_end(eights)
    with cgutils.for_range_slice(builder, odd, n_hashes, _number(8), _WORD) as (first, _):
        add(first, 8)


def _emit_cases(builder, n_hashes):
    """Code for each number of binary digits that the counts can need; fewer digits are faster."""
    few = builder.icmp_unsigned("<", n_hashes, _number(32))
    with builder.if_else(few) as (few_hashes, more_hashes):
        with few_hashes:
            yield 5
        with more_hashes:
            some = builder.icmp_unsigned("<", n_hashes, _number(64))
            with builder.if_else(some) as (some_hashes, many_hashes):
                with some_hashes:
                    yield 6
                with many_hashes:
                    yield 8


@contextlib.contextmanager
def _emit_sums(builder, bitmaps, picks, q, n_words, start):
    """Code that adds up query q's bitmaps of one tile, vector by vector, from the start values of the digits.

    The body runs once per vector: it gets the vector's first word and the counters, one per digit.
    """
    n_hashes = picks.width
    first_pick = builder.mul(q, n_hashes)
    counters = [_variable(builder, digit) for digit in start]
    with cgutils.for_range_slice(builder, _number(0), n_words, _number(LANES), _WORD) as (word, _):

        def load(h):
            pick = builder.load(picks.address(builder.add(first_pick, h), ir.IntType(32)))
            return builder.load(bitmaps.address(builder.add(builder.zext(pick, _WORD), word), _VECTOR), align=8)

        for counter, digit in zip(counters, start, strict=True):
            builder.store(digit, counter)
        _emit_adder(builder, counters, load, n_hashes)
        yield word, counters


@_operation
def reaching(typing, bitmaps, picks, q, floor, masks, at):
    """Set the mask at a place: whose bits in the bitmaps that query q picks sum to the floor or more. Is there one?"""

    def generate(context, builder, signature, args):
        bitmaps, picks, q, floor, masks, at = _operands(context, builder, signature, args)
        n_words, anybody = masks.width, _variable(builder, _ZEROS)
        first_word = builder.mul(at, n_words)
        for n_digits in _emit_cases(builder, picks.width):
            # One more digit for the overflow: adding the floor or more to the start reaches it.
            start = builder.sub(_number(1 << n_digits), floor)
            bits = [builder.and_(builder.lshr(start, _number(i)), _number(1)) for i in range(n_digits + 1)]
            digits = [_splat(builder, builder.neg(bit), LANES) for bit in bits]
            with _emit_sums(builder, bitmaps, picks, q, n_words, digits) as (word, counters):
                overflow = builder.load(counters[-1])
                builder.store(overflow, masks.address(builder.add(first_word, word), _VECTOR), align=8)
                builder.store(builder.or_(builder.load(anybody), overflow), anybody)
        lanes = [builder.extract_element(builder.load(anybody), ir.IntType(32)(lane)) for lane in range(LANES)]
        return builder.icmp_unsigned("!=", functools.reduce(builder.or_, lanes), _number(0))

    return types.boolean(bitmaps, picks, types.int64, types.int64, masks, types.int64), generate


@_operation
def count(typing, bitmaps, picks, q, planes):
    """The digits of the counts of all candidates of the tile, for query q: planes[0] holds the ones, ..."""

    def generate(context, builder, signature, args):
        bitmaps, picks, q, planes = _operands(context, builder, signature, args)
        n_words = planes.width
        for n_digits in _emit_cases(builder, picks.width):
            with _emit_sums(builder, bitmaps, picks, q, n_words, [_ZEROS] * n_digits) as (word, counters):
                for digit, counter in enumerate(counters):
                    at = builder.add(word, builder.mul(n_words, _number(digit)))
                    builder.store(builder.load(counter), planes.address(at, _VECTOR), align=8)
        return context.get_dummy_value()

    return types.void(bitmaps, picks, types.int64, planes), generate
