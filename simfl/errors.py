"""Every error SimFL raises on purpose, and every warning. Each names the party, the fact and the next step.

They are also the built-in errors that scikit-learn and pandas users catch already: bad data and bad parameters are
`ValueError`, an unknown parameter is a `TypeError`, an unreadable file is an `OSError`.
"""

import difflib
import warnings
from collections.abc import Callable, Sequence
from typing import Any


class SimFLError(Exception):
    """The base of all errors raised by SimFL.

    Its text is for the one in whose process it occurs. `public` is what a party lets others know of it: never a value
    of its table, a path, or another library's words.
    """

    hidden_as: str | None = "something went wrong (its own log says what)"  # None: the text has nothing to hide

    def __init__(self, text: str = "", *, public: str | None = None) -> None:
        super().__init__(text)
        self._public = public

    @property
    def public(self) -> str:
        """What others may know."""
        return self._public or self.hidden_as or str(self)


class DataError(SimFLError, ValueError):
    """A party's table cannot be used as it is."""

    hidden_as = "its table cannot be used (its own log says why)"


class ParameterError(SimFLError, ValueError):
    """A parameter is out of its range."""

    hidden_as = None


class UnknownParameterError(ParameterError, TypeError):
    """A parameter of that name does not exist."""


class SimFLWarning(UserWarning):
    """The base of all warnings that SimFL gives: the work continues."""


class FewRowsWarning(SimFLWarning):
    """There are too few rows for the recipe."""


class UnseenLevelWarning(SimFLWarning):
    """Levels of a category that the schema does not know. They count as missing."""


class PrivacyWarning(SimFLWarning):
    """The run continues as it was asked to, and reveals more than its user may expect."""


class PrivacyError(ParameterError):
    """A protection would not hold (unsafe parameters, missing masks, a forged key or certificate): nothing is sent."""


class ProtocolError(SimFLError):
    """A message does not fit the state of the run, or is not a message at all."""

    hidden_as = None


class MissingExtraError(SimFLError, ImportError):
    """A package is missing that comes with an extra of simfl."""


class FileError(SimFLError, OSError):
    """A file is missing, unreadable or not what it should be."""

    hidden_as = "a file cannot be used (its own log says which)"


class StudyError(SimFLError, ValueError):
    """A study file or a party file has a value that is not possible."""

    hidden_as = "its files and the study do not fit (its own log says how)"


class TrainingStopped(SimFLError):  # noqa: N818 - somebody wanted it
    """Somebody has ended the training. What is finished is kept."""

    hidden_as = None


class PartyLost(SimFLError):  # noqa: N818 - it is what happened, not a fault of ours
    """Parties have not answered for as long as the study's patience."""

    def __init__(self, parties: list[str], why: str) -> None:
        self.parties = parties
        super().__init__(f"No answer from {', '.join(repr(p) for p in parties)}: {why}")

    @property
    def word(self) -> str:
        """What happened to them, for a log."""
        return "is lost"


class PartyLeft(PartyLost):
    """Parties have said goodbye."""

    def __init__(self, parties: list[str]) -> None:
        super().__init__(parties, "stopped by its operator.")

    @property
    def word(self) -> str:
        """What happened to them, for a log."""
        return "has left"


class EngineError(SimFLError):
    """NVIDIA FLARE is missing, cannot be reached or refuses what it was asked."""


def tell_warnings(tell: Callable[[str, type[Warning]], None]) -> None:
    """Have every text of a SimFL warning told once, as a sentence and with its kind.

    Others are shown as before, with file and line. What warnings are shown, ignored, or raised as errors stays as it
    is. `warnings.catch_warnings` ends it.
    """
    original, told = warnings.showwarning, set()

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if not issubclass(category, SimFLWarning):
            original(message, category, *place, **more)
        elif str(message) not in told:
            told.add(str(message))
            tell(str(message), category)

    warnings.showwarning = show


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """What to say of a word that does not exist: the nearest one that does, or all of them.

    >>> did_you_mean("max_deph", ["gamma", "max_depth"]), did_you_mean("x", ["a", "b"])
    ("Did you mean 'max_depth'?", 'Known are: a, b.')
    """
    near = difflib.get_close_matches(word, known, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Known are: {', '.join(known)}."
