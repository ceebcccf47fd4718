"""The array types of the package under short names, the smallest one for a range of numbers, kept and freed memory."""

import ctypes
import math
import mmap
import sys
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]
Doubles: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int32]
Longs: TypeAlias = npt.NDArray[np.int64]
Codes: TypeAlias = npt.NDArray[Any]  # bucket numbers: uint8 where they fit
Mask: TypeAlias = npt.NDArray[np.bool_]
AnyArray: TypeAlias = npt.NDArray[Any]
Table: TypeAlias = Any  # the rows of a party: a float32 array, or scipy's CSR

_LARGE = 2**17  # bytes


def read_only(values: AnyArray) -> AnyArray:
    """The same array, not to be written to. Numba compiles a kernel once for such and once for other arrays.

    Arrays out of messages are read-only, others of the same kind are not: kernels that take both get this.
    """
    view = values.view()
    view.flags.writeable = False
    return view


def lasting(values: AnyArray) -> AnyArray:
    """A copy that is kept for long, in pages of its own where it is large.

    The allocator puts arrays of some megabytes among the temporary ones and cannot give back what is freed around them.
    """
    if values.nbytes < _LARGE or not hasattr(mmap, "MAP_ANONYMOUS"):
        return values.copy()
    pages = mmap.mmap(-1, values.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    kept: AnyArray = np.frombuffer(pages, dtype=values.dtype, count=math.prod(values.shape)).reshape(values.shape)
    kept[...] = values
    return kept


def give_back() -> None:
    """Return freed memory to the system: glibc keeps it, up to the peak of every thread. Elsewhere nothing happens."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def smallest_type(n_values: int) -> Any:
    """The smallest unsigned type that holds the numbers below `n_values`.

    >>> smallest_type(256), smallest_type(257)
    (<class 'numpy.uint8'>, <class 'numpy.uint16'>)
    """
    return np.uint8 if n_values <= 2**8 else np.uint16 if n_values <= 2**16 else np.uint32
