"""What a party contributes to a step: vectors that are added up over all parties."""

from typing import Any

import numpy as np

from simfl.arrays import AnyArray
from simfl.errors import ProtocolError

Parts = list[AnyArray]  # unsigned words, whose total is modulo their size, or float64: sums of any size


def shaped(total: Parts, wanted: list[tuple[Any, int]]) -> Parts:
    """The parts of a total, if they have the form of what was contributed."""
    if [(part.dtype, part.shape) for part in total] != [(np.dtype(dtype), (n,)) for dtype, n in wanted]:
        raise ProtocolError("The total of this step has another form than what this party contributed.")
    return total
