"""A party: the only home of its rows and labels."""

from simfl.party.party import Party, Rows

__all__ = ["Party", "Rows"]
