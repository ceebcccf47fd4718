"""A party: the only home of its rows and labels.

`party` is the data, `session` its part in one run: the door that messages pass. Behind it are `similar` (stage 1) and
`training` (stage 2); every sum leaves through `sealing`.
"""

from simfl.party.party import Party, Rows, Split
from simfl.party.session import Session

__all__ = ["Party", "Rows", "Session", "Split"]
