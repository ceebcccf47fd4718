"""One colour per method, in the report, in the pictures of the documentation and in the README.

A colour has a shade for light and one for dark ground. The page of the report knows them by number (`--c1`, ...); the
pictures have a light ground.
"""

from typing import Final

from simfl.report.words import JOINT

_SHADES: Final = {  # light ground, dark ground
    "c1": ("#0b67b8", "#5aaef5"),
    "c2": ("#c4500a", "#f58b4c"),
    "c3": ("#6b7280", "#a3adbb"),
    "c4": ("#11805a", "#45c796"),
    "c5": ("#8c4a9e", "#c992d8"),
    "c6": ("#a47a00", "#e0b83f"),
}
_NUMBERS: Final = {"SimFL": "c1", JOINT: "c5", "SOLO": "c2", "TFL": "c3", "ALL-IN": "c4", "paper": "c6"}

ON_PAGE: Final = {method: f"var(--{number})" for method, number in _NUMBERS.items()}
ON_PAPER: Final = {method: _SHADES[number][0] for method, number in _NUMBERS.items()}


def css(ground: int) -> str:
    """The colours as variables of a style sheet; `ground` 0: light, 1: dark.

    >>> css(0)[:27]
    '--c1: #0b67b8; --c2: #c4500'
    """
    return " ".join(f"--{number}: {shades[ground]};" for number, shades in _SHADES.items())
