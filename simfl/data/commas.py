"""Numbers as some countries write them ("37,5", "1.100,50") or group them ("40,000"), and how to read them as numbers.

As text they would silently become categories, or classes where they are labels.
"""

import re
from collections.abc import Iterable
from typing import Final

_DECIMALS = re.compile(r"(?=.*\d)[-+]?(\d{1,3}(\.\d{3})+|\d*)(,\d+)?([eE][-+]?\d+)?")
_THOUSANDS = re.compile(r"[-+]?([1-9]\d{0,2}(,\d{3})+|\d+)(\.\d+)?")
_OTHERS: Final = 0.1  # the share of texts among numbers that may be something else
_MOST_SHOWN: Final = 3


def with_commas(texts: Iterable[str]) -> str:
    r"""That these texts are numbers with a comma, and how to read them; empty if they are not.

    A few may be something else ("unknown"): one word, or a tenth of them.

    >>> with_commas(["0,5", "1,25", "unknown"]).split(":")[-1]
    ' pandas.read_csv(file, sep=";", decimal=",", na_values=[\'unknown\']).'
    >>> with_commas(["a,b", "1,2"])
    ''
    """
    found = sorted({text.strip() for text in texts})
    decimals, thousands = ([t for t in found if p.fullmatch(t)] for p in (_DECIMALS, _THOUSANDS))
    numbers = max(decimals, thousands, key=len)
    example = next((number for number in numbers if "," in number), None)
    others = sorted(set(found) - set(numbers))
    if example is None or not _are_few(others, len(numbers)):
        return ""
    as_decimals, as_thousands = _reading_decimals(found, others), f'pandas.read_csv(file, thousands=","{_but(others)})'
    start = f"numbers with a comma ({example!r})"
    if len(decimals) == len(thousands):
        return (
            f"{start}: thousands or decimals? Write them without, or with a point, or read the table in Python: "
            f"{as_thousands} or {as_decimals}."
        )
    if numbers is thousands:
        return f"{start} between thousands. Write them without, or read the table in Python: {as_thousands}."
    return f"{start}. Write them with a point, or read the table in Python: {as_decimals}."


def _are_few(others: list[str], n_numbers: int) -> bool:
    a_word = len(others) == 1 and n_numbers > 1 and not re.search(r"\d", others[0])
    return a_word or len(others) <= _OTHERS * (n_numbers + len(others))


def _reading_decimals(found: list[str], others: list[str]) -> str:
    grouped = ', thousands="."' if any("." in text for text in found if text not in others) else ""
    return f'pandas.read_csv(file, sep=";", decimal=","{grouped}{_but(others)})'


def _but(others: list[str]) -> str:
    return f", na_values={others[:_MOST_SHOWN]}" if others else ""
