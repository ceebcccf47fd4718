"""Functions that only kernels call: `@part` instead of `@njit`.

Numba makes no door to Python for them and keeps no copy of them on disk, since their code is in the kernels that call
them. That spares a quarter of the time to compile. From Python call `name.py_func`: the compiled one
has no door, and calling it ends the process.
"""

from typing import Any

from numba import njit

from simfl.preprocessing import splitmix

_WITHOUT_A_DOOR: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
part: Any = njit(nogil=True, **_WITHOUT_A_DOOR)

# One copy each for all kernels. As they are, they would be copied into the text of a kernel at every call.
mix, row_token, below = (
    part(getattr(own, "py_func", own)) for own in (splitmix.mix, splitmix.row_token, splitmix.below)
)
