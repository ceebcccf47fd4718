"""Trees are signed by their builder: a hub cannot make one up, change one, or use one for another round or run.

The signature is by the key of the kit's certificate, and so it holds after restarts and new key exchanges. The hub only
passes signatures on, and keeps them in its journal for those who come later. Without certificates nothing is signed.
Whose turn it was is checked in `terms.py`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from simfl import messages as msg
from simfl.errors import PrivacyError
from simfl.privacy.keys import Identity, certified_key, check_signature, doubt, sign_content

_encoder = msgspec.msgpack.Encoder()


class Content(NamedTuple):
    """What a builder answers for: a tree, and its leaf values where the recipe takes the builder's."""

    tree: msg.TreeStructure
    values: msg.Array | None


class Signing:
    """One party's part, from one start of a training to the next."""

    def __init__(self, identity: Identity, name: str, run: str) -> None:
        self.identity, self.name, self.run = identity, name, run
        self._keys: dict[str, Any] = {}  # of builders, from certificates that were checked
        self._certificate: bytes | None = identity.encoded  # None when it was sent

    def sign(self, number: int, grown: Sequence[Content]) -> list[msg.Signed]:
        """Sign the trees that this party grew in a round, each for its place among them."""
        signed = []
        for place, own in enumerate(grown):
            signature = sign_content(self.identity, self.name, self._content(number, self.name, place, own))
            signed.append(msg.Signed(number, self.name, signature, self._certificate))
            self._certificate = None
        return signed

    def check(self, signed: Sequence[msg.Signed | None], grown: Sequence[Content]) -> None:
        """Refuse the trees of a round unless each is signed by the builder that it names."""
        for place, tree in enumerate(grown):
            own = signed[place] if place < len(signed) else None
            if own is None:
                raise PrivacyError(
                    f"Party {self.name!r} refuses: a tree is signed by its builder, and this one is not. "
                    "It sends nothing. Ask the other parties, not over the hub, whether their kits are of this project."
                )
            content = self._content(own.round, own.builder, place, tree)
            check_signature(self._key_of(own), own.builder, content, own.signature, "tree")

    def _key_of(self, signed: msg.Signed) -> Any:
        name, shown = signed.builder, signed.certificate
        if shown is not None:
            self._keys[name] = certified_key(self.identity, name, shown, "tree")
        if name not in self._keys:
            raise doubt(name, "tree", "its certificate was not sent")
        return self._keys[name]

    def _content(self, number: int, builder: str, place: int, grown: Content) -> bytes:
        return _encoder.encode(("simfl tree", self.run, number, builder, place, *grown))
