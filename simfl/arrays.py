"""The array types of the package under short names, and the smallest one that holds a range of numbers."""

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


def read_only(values: AnyArray) -> AnyArray:
    """The same array, not to be written to. Numba compiles a kernel once for such and once for other arrays.

    Arrays out of messages are read-only, others of the same kind are not: kernels that take both get this.
    """
    view = values.view()
    view.flags.writeable = False
    return view


def smallest_type(n_values: int) -> Any:
    """The smallest unsigned type that holds the numbers below `n_values`.

    >>> smallest_type(256), smallest_type(257)
    (<class 'numpy.uint8'>, <class 'numpy.uint16'>)
    """
    return np.uint8 if n_values <= 2**8 else np.uint16 if n_values <= 2**16 else np.uint32
