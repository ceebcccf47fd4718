"""Keys between parties: a pair of parties agrees on a key that the hub, which carries the messages, cannot know.

Every party draws an X25519 key pair for a training; the hub passes on the public halves. Where parties have an
identity, they sign their public keys with the key of their certificate and check each other's certificates against the
root of the project: a key that the hub made itself is refused. Without identities nobody can tell.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from simfl.errors import FileError, PrivacyError
from simfl.messages import SignedKey
from simfl.privacy.certificates import REVOKED, is_revoked, name_of, read_revoked, role_of
from simfl.privacy.tokens import derive

_NONCE_BYTES = 12


@dataclass
class Keys:
    """One party's key pair, and the key that it shares with each party it exchanged keys with."""

    own: str
    private: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate, repr=False)
    pairs: dict[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def public(self) -> bytes:
        """The half of the key pair that everybody may see."""
        return self.private.public_key().public_bytes_raw()

    def exchange(self, others: Mapping[str, bytes]) -> None:
        """Agree with each of the others on a key, from their public keys."""
        self.pairs = {other: self._agree(other, public) for other, public in others.items() if other != self.own}

    def _agree(self, other: str, public: bytes) -> bytes:
        try:
            common = self.private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise PrivacyError(f"The public key of party {other!r} is not valid: no key can be agreed on.") from None
        both = sorted([(self.own, self.public), (other, public)])
        return HKDF(hashes.SHA256(), 32, salt=None, info=repr(("simfl pair", both)).encode()).derive(common)

    def seal(self, other: str, content: bytes) -> bytes:
        """Encrypt for one other party."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + ChaCha20Poly1305(derive(self.pairs[other], "seal")).encrypt(nonce, content, self.own.encode())

    def open(self, other: str, sealed: bytes) -> bytes:
        """Decrypt what another party has sealed."""
        try:
            cipher = ChaCha20Poly1305(derive(self.pairs[other], "seal"))
            return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], other.encode())
        except (InvalidTag, ValueError, KeyError):
            raise PrivacyError(
                f"What party {other!r} sealed for {self.own!r} cannot be opened: it was changed on the way, or the hub "
                "passed on other keys. Start again; if it stays so, do not trust the hub."
            ) from None


# --- identities ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Identity:
    """What a site proves its name with: a certificate, its private key, and the root that all sites trust."""

    certificate: x509.Certificate
    private_key: Any = field(repr=False)
    root: x509.Certificate
    revoked: x509.CertificateRevocationList | None = None  # certificates that do not count any more

    @classmethod
    def read(cls, certificate: Path, private_key: Path, root: Path) -> Identity:
        """From the files of a site's kit (PEM). The list of revoked certificates is beside them."""
        try:
            known = x509.load_pem_x509_certificate(root.read_bytes())
            listed = certificate.with_name(REVOKED)
            return cls(
                x509.load_pem_x509_certificate(certificate.read_bytes()),
                serialization.load_pem_private_key(private_key.read_bytes(), password=None),
                known,
                read_revoked(listed, known) if listed.exists() else None,
            )
        except FileError:
            raise
        except (OSError, ValueError, TypeError) as error:
            raise FileError(f"The certificate {certificate}, its key or the root cannot be read: {error}.") from None


def sign(identity: Identity, name: str, public: bytes, run: str = "") -> tuple[bytes, bytes]:
    """A signature of a public key for one run under this name, and the certificate (PEM) that it is checked with."""
    content, key = _signed(run, name, public), identity.private_key
    if isinstance(key, rsa.RSAPrivateKey):
        signature = key.sign(content, _PSS, hashes.SHA256())
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        signature = key.sign(content, ec.ECDSA(hashes.SHA256()))
    else:
        raise PrivacyError(f"The private key of {name!r} is neither RSA nor of an elliptic curve: it cannot sign.")
    return signature, identity.certificate.public_bytes(serialization.Encoding.PEM)


def verify(identity: Identity, name: str, signed: SignedKey, run: str = "") -> None:
    """Refuse a public key unless a party of this name signed it for this run, with a certificate of the same root."""
    public, signature, certificate = signed.key, signed.signature, signed.certificate
    if signature is None or certificate is None:
        raise _doubt(name, "it is not signed")
    try:
        known = x509.load_pem_x509_certificate(certificate)
    except ValueError:
        raise _doubt(name, "its certificate cannot be read") from None
    try:
        known.verify_directly_issued_by(identity.root)
    except (ValueError, TypeError, InvalidSignature):
        raise _doubt(name, "its certificate was not issued by the root of this project") from None
    now = datetime.datetime.now(datetime.UTC)
    if not known.not_valid_before_utc <= now <= known.not_valid_after_utc:
        raise _doubt(name, "its certificate is not valid today")
    if name_of(known.subject) != name:
        raise _doubt(name, f"its certificate is of {name_of(known.subject)!r}")
    if role_of(known) != "party":
        raise _doubt(name, f"its certificate is that of a {role_of(known) or 'stranger'}, not of a party")
    if identity.revoked is not None and is_revoked(known, identity.revoked):
        raise _doubt(name, "its certificate is revoked")
    _check_signature(known.public_key(), name, _signed(run, name, public), signature)


def _check_signature(key: Any, name: str, content: bytes, signature: bytes) -> None:
    try:
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, content, _PSS, hashes.SHA256())
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
        else:
            raise InvalidSignature
    except InvalidSignature:
        raise _doubt(name, "the signature is not by its certificate") from None


_PSS = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


def _signed(run: str, name: str, public: bytes) -> bytes:
    return repr(("simfl public key", run, name, public)).encode()


def _doubt(name: str, fact: str) -> PrivacyError:
    return PrivacyError(
        f"The public key that the hub passed on as that of party {name!r} is refused: {fact}. "
        "Ask that party, not over the hub, whether its kit is of this project."
    )
