"""Keys between parties: a pair of parties agrees on a key that the hub, which carries the messages, cannot know.

Every party draws an X25519 key pair for a training; the hub passes on the public halves. Where parties have an
identity, they sign their public keys with the key of their certificate and check each other's certificates against the
root of the project: a key that the hub made itself is refused. Without identities nobody can tell. With the same key a
builder signs its trees (`party/signing.py`).
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

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


OF_A_KIT: Final = ("client.crt", "client.key", "rootCA.pem")  # certificate, private key and root, in its startup/


class Issued(NamedTuple):
    """What a certificate of the root says."""

    name: str
    role: str
    first: datetime.datetime  # from when on it is valid
    last: datetime.datetime
    is_revoked: bool
    key: Any


@dataclass(frozen=True)
class Identity:
    """What a site proves its name with: a certificate, its private key, and the root that all sites trust."""

    certificate: x509.Certificate
    private_key: Any = field(repr=False)
    root: x509.Certificate
    revoked: x509.CertificateRevocationList | None = None  # certificates that do not count any more
    issued: dict[bytes, Issued] = field(default_factory=dict, repr=False, compare=False)  # those seen so far

    @property
    def encoded(self) -> bytes:
        """The certificate, as it travels."""
        return self.certificate.public_bytes(serialization.Encoding.DER)

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


def sign_key(identity: Identity, name: str, public: bytes, run: str) -> SignedKey:
    """A public key, signed for one run under this name, with the certificate that it is checked with."""
    signature = sign_content(identity, name, _key_content(run, name, public))
    return SignedKey(key=public, signature=signature, certificate=identity.encoded)


def sign_content(identity: Identity, name: str, content: bytes) -> bytes:
    """A signature by the certificate's private key."""
    key = identity.private_key
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(content, _PSS, hashes.SHA256())
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(content, ec.ECDSA(hashes.SHA256()))
    raise PrivacyError(f"The private key of {name!r} is neither RSA nor of an elliptic curve: it cannot sign.")


def verify_key(identity: Identity, name: str, signed: SignedKey, run: str, role: str = "party") -> None:
    """Refuse a public key unless who has this name and role signed it for this run, with a certificate of the root."""
    public, signature, certificate = signed.key, signed.signature, signed.certificate
    if signature is None or certificate is None:
        raise doubt(name, "public key", "it is not signed")
    known = certified_key(identity, name, certificate, "public key", role)
    check_signature(known, name, _key_content(run, name, public), signature, "public key")


def certified_key(identity: Identity, name: str, certificate: bytes, what: str, role: str = "party") -> Any:
    """The key of a certificate, if it is one of this name and role, of the same root, and counts today."""
    known = identity.issued.get(certificate) or _issued(identity, name, certificate, what)
    now = datetime.datetime.now(datetime.UTC)
    if not known.first <= now <= known.last:
        raise doubt(name, what, "its certificate is not valid today")
    if known.name != name:
        raise doubt(name, what, f"its certificate is of {known.name!r}")
    if known.role != role:
        raise doubt(name, what, f"its certificate is that of a {known.role or 'stranger'}, not of a {role}")
    if known.is_revoked:
        raise doubt(name, what, "its certificate is revoked")
    return known.key


def _issued(identity: Identity, name: str, certificate: bytes, what: str) -> Issued:
    """A certificate, if the root has issued it. It is remembered: the same ones come with every exchange of keys."""
    try:
        known = x509.load_der_x509_certificate(certificate)
    except ValueError:
        raise doubt(name, what, "its certificate cannot be read") from None
    try:
        known.verify_directly_issued_by(identity.root)
    except (ValueError, TypeError, InvalidSignature):
        raise doubt(name, what, "its certificate was not issued by the root of this project") from None
    subject, role, key = name_of(known.subject), role_of(known), known.public_key()
    lost = identity.revoked is not None and is_revoked(known, identity.revoked)
    found = Issued(subject, role, known.not_valid_before_utc, known.not_valid_after_utc, lost, key)
    identity.issued[certificate] = found
    return found


def check_signature(key: Any, name: str, content: bytes, signature: bytes, what: str) -> None:
    """Refuse what this key did not sign."""
    try:
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, content, _PSS, hashes.SHA256())
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
        else:
            raise InvalidSignature
    except InvalidSignature:
        raise doubt(name, what, "the signature is not by its certificate") from None


_PSS = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


def _key_content(run: str, name: str, public: bytes) -> bytes:
    return repr(("simfl public key", run, name, public)).encode()


def doubt(name: str, what: str, fact: str) -> PrivacyError:
    """Something that the hub passed on is not what it says."""
    return PrivacyError(
        f"The {what} that the hub passed on as that of party {name!r} is refused: {fact}. It sends nothing. "
        "Ask that party, not over the hub, whether its kit is of this project."
    )
