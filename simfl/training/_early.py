# mypy: allow-untyped-defs, allow-untyped-calls
"""Rows that are in no order of memory, asked for before they are read: Numba has no word for it."""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]
from numba import types
from numba.extending import intrinsic  # type: ignore[import-untyped,unused-ignore]

_INDEX = ir.IntType(32)
_POINTER = ir.IntType(8).as_pointer()


def _operation(function: Any) -> Any:
    """A function that gives the types of an operation and emits its code, as the operation itself."""
    return intrinsic(function)


@_operation
def fetch_early(typing, array, offset):
    """Ask for the cache line of array[offset], which is read soon. Changes nothing."""

    def generate(context, builder, signature, args):
        kinds = [_POINTER, _INDEX, _INDEX, _INDEX]
        fetch = builder.module.declare_intrinsic("llvm.prefetch", kinds[:1], ir.FunctionType(ir.VoidType(), kinds))
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        place = builder.bitcast(builder.gep(data, [args[1]]), _POINTER)
        builder.call(fetch, [place, _INDEX(0), _INDEX(3), _INDEX(1)])  # to read; keep it near; data
        return context.get_dummy_value()

    return types.void(array, types.uint64), generate
