"""What a reader decides from a total reaches the other parties sealed and signed: the hub only passes it on.

It is encrypted with a key from the parties' secret and signed with the reader's certificate, where it has one. Run,
step and keys are part of both: nothing fits another place. Where nothing is masked, nothing is encrypted.
"""

import hashlib
import secrets
import zlib
from collections.abc import Callable
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from simfl import messages as msg
from simfl.errors import PrivacyError
from simfl.privacy.keys import Identity, certified_key, check_signature, doubt, sign_content

_NONCE_BYTES = 12
MOST_BYTES = 2**28  # of a decision: a small message must not fill the memory
KeyOf = Callable[[bytes, int], bytes]  # exchange, step -> the parties' key


def _expanded(content: bytes) -> bytes:
    """What was compressed, if it is not larger than any decision can be."""
    whole = zlib.decompressobj()
    decision = whole.decompress(content, MOST_BYTES)
    if not whole.eof:
        raise ValueError("larger than a decision, or cut off")
    return decision


class Announcing:
    """One party's part, from one start to the next. Without `key_of` decisions travel as they are."""

    def __init__(self, name: str, run: str, identity: Identity | None, key_of: KeyOf | None) -> None:
        self.name, self.run, self.identity, self.key_of = name, run, identity, key_of
        self._keys: dict[str, Any] = {}  # of readers, from certificates that were checked
        self._was_sent = False  # the certificate

    def announce(self, exchange: bytes, step: int, decision: bytes, *, for_later: bool = False) -> msg.Announcement:
        """Seal and sign a decision. The certificate is with the first one, and with those `for_later`."""
        sealed = zlib.compress(decision)
        if self.key_of:
            nonce = secrets.token_bytes(_NONCE_BYTES)
            cipher = ChaCha20Poly1305(self.key_of(exchange, step))
            sealed = nonce + cipher.encrypt(nonce, sealed, self._place(exchange, step))
        if self.identity is None:
            return msg.Announcement(sealed=sealed)
        signature = sign_content(self.identity, self.name, self._content(self.name, exchange, step, sealed))
        certificate = self.identity.encoded if for_later or not self._was_sent else None
        self._was_sent = self._was_sent or not for_later
        return msg.Announcement(sealed=sealed, signature=signature, certificate=certificate)

    def open(self, result: msg.Result, announced: msg.Announcement, reader: str) -> bytes:
        """The decision of this reader, if it is the one that announced it."""
        if self.identity is not None:
            self._check_signature(self.identity, result, announced, reader)
        content = announced.sealed
        try:
            if self.key_of:
                cipher = ChaCha20Poly1305(self.key_of(result.exchange, result.step))
                nonce, content = content[:_NONCE_BYTES], content[_NONCE_BYTES:]
                content = cipher.decrypt(nonce, content, self._place(result.exchange, result.step))
            return _expanded(content)
        except (InvalidTag, ValueError, zlib.error):
            raise PrivacyError(
                f"What {reader!r} announced in step {result.step} cannot be opened by {self.name!r}: it was changed on "
                "the way, or belongs to another step or run. Start again; if it stays so, do not trust the hub."
            ) from None

    def _check_signature(
        self, identity: Identity, result: msg.Result, announced: msg.Announcement, reader: str
    ) -> None:
        if announced.certificate is not None:
            self._keys[reader] = certified_key(identity, reader, announced.certificate, "announcement")
        if reader not in self._keys or announced.signature is None:
            raise doubt(reader, "announcement", "it is not signed, or its certificate was not sent")
        content = self._content(reader, result.exchange, result.step, announced.sealed)
        check_signature(self._keys[reader], reader, content, announced.signature, "announcement")

    def _place(self, exchange: bytes, step: int) -> bytes:
        return repr((self.run, exchange, step)).encode()

    def _content(self, reader: str, exchange: bytes, step: int, sealed: bytes) -> bytes:
        digest = hashlib.sha256(sealed).digest()
        return repr(("simfl announcement", self.run, reader, exchange, step, digest)).encode()
