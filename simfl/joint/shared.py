"""Parties of one process: what all of them would work out alike is worked out once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
KEPT = 16  # results: no party is further behind than a step


class Shared:
    """Results by what they follow from. Whoever asks first computes; the others wait for it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._known: OrderedDict[Any, Any] = OrderedDict()

    def once(self, key: Any, work: Callable[[], T], still_holds: Callable[[T], bool] = lambda _: True) -> T:
        """The result of `work`, for everybody who has the same key, as long as it still holds."""
        with self._lock:
            if key not in self._known or not still_holds(self._known[key]):
                self._known[key] = work()
                while len(self._known) > KEPT:
                    self._known.popitem(last=False)
            result: T = self._known[key]
            return result
