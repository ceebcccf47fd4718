"""A box that anybody can close and only one receiver can open: for the model, which passes through the hub.

The receiver draws an X25519 key pair and hands out the public half, signed with its certificate where it has one. Who
closes a box draws a key pair for this box alone. So that the hub cannot close one of its own, what is inside is signed
by the party that it comes from.
"""

import hashlib
from collections.abc import Sequence

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from simfl.errors import PrivacyError
from simfl.privacy.keys import Identity, certified_key, check_signature, doubt, sign_content

KEY_BYTES = 32


class _Parcel(msgspec.Struct, frozen=True, array_like=True):
    sender: str
    content: bytes
    signature: bytes | None = None
    certificate: bytes | None = None


def new_key() -> bytes:
    """A private key."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_half(key: bytes) -> bytes:
    """The half of a key that everybody may see."""
    return X25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()


def close(receiver: bytes, content: bytes) -> bytes:
    """Close a box for who has the private half of this key.

    >>> key = new_key()
    >>> open_box(key, close(public_half(key), b"the model"))
    b'the model'
    """
    try:
        once = X25519PrivateKey.generate()
        common = once.exchange(X25519PublicKey.from_public_bytes(receiver))
    except ValueError:
        raise PrivacyError("The public key of the model's receiver is not valid. It sends nothing.") from None
    own = once.public_key().public_bytes_raw()
    return own + _cipher(common, own, receiver).encrypt(bytes(12), content, None)  # a key of its own: no nonce needed


def open_box(key: bytes, box: bytes) -> bytes:
    """What is in a box that was closed for this key."""
    own, content = box[:KEY_BYTES], box[KEY_BYTES:]
    try:
        common = X25519PrivateKey.from_private_bytes(key).exchange(X25519PublicKey.from_public_bytes(own))
        return _cipher(common, own, public_half(key)).decrypt(bytes(12), content, None)
    except (InvalidTag, ValueError):
        raise PrivacyError(
            "The sealed model cannot be opened: it was changed on the way, or closed for another key. Fetch it again "
            "with `simfl train --resume`."
        ) from None


def signed(content: bytes, sender: str, run: str, identity: Identity | None) -> bytes:
    """What goes into a box: the content with its sender's signature, where it has a certificate."""
    parcel = _Parcel(sender, content)
    if identity is not None:
        signature = sign_content(identity, sender, _vouched(run, parcel))
        parcel = _Parcel(sender, content, signature, identity.encoded)
    return msgspec.msgpack.encode(parcel)


def content_of(data: bytes, parties: Sequence[str] = (), run: str = "", identity: Identity | None = None) -> bytes:
    """The content, if a party of the study signed it for this run. Who has no certificate cannot check that."""
    try:
        parcel = msgspec.msgpack.decode(data, type=_Parcel)
    except msgspec.DecodeError:
        raise PrivacyError("What was sealed is no model of a party. Do not trust the hub.") from None
    if identity is None:
        return parcel.content
    name, signature, certificate = parcel.sender, parcel.signature, parcel.certificate
    if name not in parties:
        raise doubt(name, "model", "it is no party of the study")
    if signature is None or certificate is None:
        raise doubt(name, "model", "it is not signed")
    check_signature(
        certified_key(identity, name, certificate, "model"), name, _vouched(run, parcel), signature, "model"
    )
    return parcel.content


def _vouched(run: str, parcel: _Parcel) -> bytes:
    return repr(("simfl model", run, parcel.sender, hashlib.sha256(parcel.content).hexdigest())).encode()


def _cipher(common: bytes, own: bytes, receiver: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(HKDF(hashes.SHA256(), 32, salt=None, info=b"simfl box" + own + receiver).derive(common))
