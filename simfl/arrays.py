"""The array types of the package, under short names."""

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
