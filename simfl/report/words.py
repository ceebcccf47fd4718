"""Names and numbers in words, the same in the terminal and in the report."""

from typing import Final

EVERYBODY: Final = "all parties"
METHODS: Final = {
    "SimFL": "SimFL (together)",
    "SOLO": "SOLO (alone)",
    "TFL": "TFL (in turns)",
    "ALL-IN": "ALL-IN (pooled)",
}
METRICS: Final = {"logloss": "log loss", "error": "error", "auc": "AUC", "rmse": "root mean square error"}


def amount(n_bytes: float) -> str:
    """Bytes in words.

    >>> amount(1_234_567)
    '1.2 MB'
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes:.0f} B"


def model_name(method: str, party: str | None) -> str:
    """A method, and the party whose model it is where each has one.

    >>> model_name("SOLO", "north"), model_name("SimFL", None)
    ('SOLO north', 'SimFL')
    """
    return f"{method} {party}" if party else method


def trained_on(method: str, party: str | None) -> str:
    """Whose rows a model was trained on."""
    return party or ("all, pooled" if method == "ALL-IN" else EVERYBODY)
