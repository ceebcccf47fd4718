"""Names and numbers in words, the same in the terminal and in the report."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
EVERYBODY: Final = "all parties"
JOINT: Final = "SimFL joint"
METHODS: Final = {  # in the order of all tables and legends
    "SOLO": "SOLO (alone)",
    "TFL": "TFL (in turns)",
    "SimFL": "SimFL (together)",
    JOINT: "SimFL joint (grown together)",
    "ALL-IN": "ALL-IN (pooled)",
}


class Names(dict[str, str]):
    """Names of metrics. One with a number behind an @ is called as without; one that is not listed keeps its own."""

    def __missing__(self, metric: str) -> str:
        return self.get(metric.split("@")[0], metric)


METRICS: Final = Names(
    {
        "logloss": "log loss",
        "error": "error",
        "auc": "AUC",
        "rmse": "root mean square error",
        "mae": "mean absolute error",
        "quantile": "quantile loss",
        "mphe": "mean pseudo-Huber error",
        "gamma-deviance": "gamma deviance",
        **dict.fromkeys(("poisson-nloglik", "tweedie-nloglik", "aft-nloglik"), "negative log likelihood"),
        "c-index": "C-index",
    }
)
SHORT: Final = Names({**METRICS, "rmse": "RMSE", "mae": "MAE"})  # for heads of columns
RISING: Final = ("auc", "c-index")  # more is better


def amount(n_bytes: float) -> str:
    """Bytes in words.

    >>> amount(1_234_567)
    '1.2 MB'
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes:.0f} B"


def decimals(values: Sequence[float]) -> int:
    """How many decimals numbers of this size are shown with; the infinite ones have no size.

    >>> decimals([0.41, 0.5]), decimals([63.75, math.inf]), decimals([1234.5])
    (3, 2, 0)
    """
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0)
    return max(0, 4 - len(str(int(largest))))


def date(text: str) -> str:
    """A time of the record, as people write it; what is no time stays as it is.

    >>> date("2026-11-17T02:47:05+00:00")
    '17 November 2026, 02:47 UTC'
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    zone = moment.tzname() or ""
    return f"{moment.day} {MONTHS[moment.month - 1]} {moment.year}, {moment:%H:%M} {zone}".rstrip()


def stopping_rule(settings: Mapping[str, Any]) -> str | None:
    """How every method of a comparison stopped; None: after all its rounds."""
    patience = settings.get("early_stopping_rounds")
    if not patience:
        return None
    return (
        f"All methods stop by the same rule: {settings['validation_fraction']:.0%} of each party's training rows are "
        f"set aside to watch (SOLO: its own), and the best round is kept once {patience} more bring nothing. The "
        "held-out rows have no part in it."
    )


def model_name(method: str, party: str | None) -> str:
    """A method, and the party whose model it is where each has one.

    >>> model_name("SOLO", "north"), model_name("SimFL", None)
    ('SOLO north', 'SimFL')
    """
    return f"{method} {party}" if party else method


def trained_on(method: str, party: str | None) -> str:
    """Whose rows a model was trained on."""
    return party or ("all, pooled" if method == "ALL-IN" else EVERYBODY)
