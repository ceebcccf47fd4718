"""What parties who join later need reaches them sealed and signed: the hub only keeps it.

It is encrypted with a key from the parties' secret and signed with the certificate of the party that sealed it, where
it has one. Run, step and keys are part of both: nothing fits another place. Where nothing is masked, nothing is
encrypted.
"""

import hashlib
import secrets
import zlib
from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from simfl import messages as msg
from simfl.errors import PrivacyError
from simfl.privacy.keys import Identity, certified_key, check_signature, doubt, sign_content

_NONCE_BYTES = 12
MOST_BYTES = 2**28  # of what is kept: a small message must not fill the memory
KeyOf = Callable[[bytes, int], bytes]  # exchange, step -> the parties' key


class Keeping:
    """One party's part. Without `key_of` nothing is encrypted."""

    def __init__(self, name: str, run: str, identity: Identity | None, key_of: KeyOf | None) -> None:
        self.name, self.run, self.identity, self.key_of = name, run, identity, key_of

    def seal(self, exchange: bytes, step: int, decision: bytes) -> msg.Kept:
        """Seal and sign a decision."""
        sealed = zlib.compress(decision)
        if self.key_of:
            nonce = secrets.token_bytes(_NONCE_BYTES)
            cipher = ChaCha20Poly1305(self.key_of(exchange, step))
            sealed = nonce + cipher.encrypt(nonce, sealed, self._place(exchange, step))
        kept = msg.Kept(step=step, exchange=exchange, by=self.name, sealed=sealed)
        if self.identity is None:
            return kept
        signature = sign_content(self.identity, self.name, self._content(kept))
        return msg.Kept(
            step=step, exchange=exchange, by=self.name, sealed=sealed, signature=signature,
            certificate=self.identity.encoded,
        )  # fmt: skip

    def open(self, kept: msg.Kept) -> bytes:
        """The decision, if a party of this run has sealed it."""
        if self.identity is not None:
            self._check_signature(self.identity, kept)
        content = kept.sealed
        try:
            if self.key_of:
                cipher = ChaCha20Poly1305(self.key_of(kept.exchange, kept.step))
                nonce, content = content[:_NONCE_BYTES], content[_NONCE_BYTES:]
                content = cipher.decrypt(nonce, content, self._place(kept.exchange, kept.step))
            return _expanded(content)
        except (InvalidTag, ValueError, zlib.error):
            raise PrivacyError(
                f"What {kept.by!r} has kept of step {kept.step} cannot be opened by {self.name!r}: it was changed on "
                "the way, or belongs to another step or run. Retry; if it happens again, do not trust the hub."
            ) from None

    def _check_signature(self, identity: Identity, kept: msg.Kept) -> None:
        if kept.certificate is None or kept.signature is None:
            raise doubt(kept.by, "record", "it is not signed, or its certificate was not sent")
        key = certified_key(identity, kept.by, kept.certificate, "record")
        check_signature(key, kept.by, self._content(kept), kept.signature, "record")

    def _place(self, exchange: bytes, step: int) -> bytes:
        return repr((self.run, exchange, step)).encode()

    def _content(self, kept: msg.Kept) -> bytes:
        digest = hashlib.sha256(kept.sealed).digest()
        return repr(("simfl kept", self.run, kept.by, kept.exchange, kept.step, digest)).encode()


def _expanded(content: bytes) -> bytes:
    """What was compressed, if it is not larger than any decision can be."""
    whole = zlib.decompressobj()
    decision = whole.decompress(content, MOST_BYTES)
    if not whole.eof:
        raise ValueError("larger than a decision, or cut off")
    return decision
