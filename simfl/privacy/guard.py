"""The paper's condition on the number of hashes (Theorem 1).

L hash values are L conditions on the d unknown values of a row. While L < d, infinitely many rows fit them. For an
attacker who knows k values of a row already, only d - k are unknown, so L must then be below d - k; values that follow
from others count as known. The condition is necessary, not sufficient: the rows that fit may all lie close to the true
one.
"""

from collections.abc import Sequence

from simfl.errors import PrivacyError
from simfl.params import SearchParams, guarded_columns

MOST_HASHES = 40  # the paper's own choice is min(40, d - 1)


def default_hashes(n_features: int) -> int:
    """The paper's number of hashes for this number of features.

    >>> default_hashes(123), default_hashes(8)
    (40, 7)
    """
    return min(MOST_HASHES, n_features - 1)


def n_hashes_of(params: SearchParams, n_features: int) -> int:
    """The number of hash values per row: the given one, or the paper's."""
    return params.n_hashes or max(default_hashes(guarded_columns(params, n_features)), 1)


def check_hashes(n_hashes: int, n_features: int, known_features: int | None = 0) -> None:
    """Refuse a number of hashes from which a row could be solved for, unless the caller insists (None)."""
    if known_features is None or n_hashes < n_features - known_features:
        return
    most = n_features - known_features - 1
    known = f" of which {known_features} are known or follow from others" if known_features else ""
    step = f"Use n_hashes={most} or fewer" if most >= 1 else "Use n_neighbors=0 (no hashing at all)"
    raise PrivacyError(
        f"n_hashes={n_hashes} with {n_features} features{known} breaks the paper's condition L < d: the hash values "
        f"could be solved for the row. {step}, or accept it, in one process, with known_features=None."
    )


def about_two_parties(parties: Sequence[str], min_group: int) -> str | None:
    """What two parties should know about their sums; None for more parties.

    >>> about_two_parties(["north", "south", "west"], min_group=1)
    """
    if len(parties) != 2:
        return None
    a, b = parties
    facts = "a sum of one row gives its label away" if min_group < 2 else f"each sum holds {min_group} rows or more"
    advice = " Set min_group=5, or add a third party." if min_group < 2 else " A third party would hide whose they are."
    return (
        f"With two parties, {a!r} and {b!r}, the total of the others is the sum of one party: {a!r} sees the exact "
        f"sums of {b!r}, and the reverse ({facts}).{advice}"
    )
