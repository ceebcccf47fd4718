"""Certificates: who their owner is in a study, and whether they still count.

The root of a study signs a certificate for every site, which names the site and its role: party, hub or submitter. It
also signs the list of the certificates that it has revoked.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from simfl.errors import FileError

ROLES: Final = ("party", "hub", "submitter")
SUBMITTER: Final = "submitter@simfl.org"  # FLARE requires an address; nothing is ever sent to it
REVOKED: Final = "revoked.crl"  # in the `startup` folder of every kit


def role_of(certificate: x509.Certificate) -> str:
    """The role that the root gave to the owner: "party", "hub" or "submitter"; "" if it gave none."""
    found = [str(a.value) for a in certificate.subject.get_attributes_for_oid(x509.NameOID.UNSTRUCTURED_NAME)]
    return found[0] if len(found) == 1 and found[0] in ROLES else ""


def name_of(subject: x509.Name) -> str:
    """The one common name of a certificate's or a request's owner; "" if there is not exactly one."""
    found = [str(a.value) for a in subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    return found[0] if len(found) == 1 else ""


def read_revoked(path: Path, root: x509.Certificate) -> x509.CertificateRevocationList:
    """The list of revoked certificates in this file, if the root has signed it."""
    try:
        revoked = x509.load_pem_x509_crl(path.read_bytes())
    except (OSError, ValueError):
        raise FileError(
            f"The list of revoked certificates, {path}, is missing or damaged. Ask who runs `simfl provision` for it."
        ) from None
    return check_revoked(revoked, root, path)


def check_revoked(
    revoked: x509.CertificateRevocationList, root: x509.Certificate, where: Path
) -> x509.CertificateRevocationList:
    """Refuse a list that the root has not signed."""
    if revoked.issuer != root.subject or not revoked.is_signature_valid(root.public_key()):  # type: ignore[arg-type]
        raise FileError(
            f"The list of revoked certificates in {where} is not signed by the root of this study. "
            "Ask who runs `simfl provision` for it."
        )
    return revoked


def is_revoked(certificate: x509.Certificate, revoked: x509.CertificateRevocationList) -> bool:
    """Whether the root has revoked this certificate."""
    return revoked.get_revoked_certificate_by_serial_number(certificate.serial_number) is not None


def fingerprint(public_key: Any) -> str:
    """A short text that stands for a public key, for two people to compare over the telephone."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    digest = hashlib.sha256(public_key.public_bytes(serialization.Encoding.DER, form)).hexdigest()
    return " ".join(digest[at : at + 4] for at in range(0, 32, 4))


def expiry_of(kit: Path) -> float:
    """When the certificate of a kit expires, in seconds since 1970; 0 if it has none."""
    for stem in ("server", "client"):
        with contextlib.suppress(OSError, ValueError):
            certificate = x509.load_pem_x509_certificate((kit / "startup" / f"{stem}.crt").read_bytes())
            return certificate.not_valid_after_utc.timestamp()
    return 0.0
