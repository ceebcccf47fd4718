"""The authority of a study: its root, the certificates that it has issued, and those that it has revoked.

It signs requests, and never sees the private key of a site. What a certificate says (name, role, host) follows from the
study, not from the request. Whoever has this folder can let anybody in.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from simfl.errors import EngineError, FileError
from simfl.privacy.certificates import REVOKED, SUBMITTER, is_revoked, name_of, read_revoked
from simfl.storage import private_folder, write_atomically

if TYPE_CHECKING:
    from simfl.deploy.study import Study

ROOT_DAYS = 3650
SITE_DAYS = 360
ROOT_BITS = 3072
SITE_BITS = 2048  # for less than a year; FLARE takes RSA keys only
LONGEST_NAME = 64  # of an X.509 common name


@dataclass(frozen=True)
class Site:
    """Somebody with a kit: the name of the kit, the name in the certificate, the role and the host to be reached at."""

    name: str
    subject: str
    role: str
    host: str

    @property
    def stem(self) -> str:
        """What FLARE calls this site's key and certificate, without the suffix."""
        return "server" if self.role == "hub" else "client"


def sites_of(study: Study) -> dict[str, Site]:
    """Everybody who has a kit in this study, by name."""
    host = study.engine.host
    sites = [Site("hub", host[:LONGEST_NAME], "hub", host), Site("submitter", SUBMITTER, "submitter", SUBMITTER)]
    sites += [Site(party, party, "party", party) for party in study.parties]
    return {site.name: site for site in sites}


class Authority:
    """The root and its certificates, in a private folder. Opened for the first time, it makes the root."""

    def __init__(self, folder: Path, study: str) -> None:
        self.folder = private_folder(folder)
        private_folder(folder.parent)
        private_folder(folder / "issued")
        if not (folder / "root.crt").exists():
            self._make_root(study)
        try:
            self.root = x509.load_pem_x509_certificate((folder / "root.crt").read_bytes())
        except (OSError, ValueError) as error:
            raise FileError(f"The root in {folder} cannot be read: {error}. Put root.crt back.") from None
        self.key = read_key(folder / "root.key", "Put it back")
        self.revoked = read_revoked(folder / REVOKED, self.root)

    def _make_root(self, study: str) -> None:
        from nvflare.lighter.utils import Identity, generate_cert

        self.key = new_key(ROOT_BITS)
        name = Identity(study)
        self.root = generate_cert(
            name, name, self.key, self.key.public_key(), valid_days=ROOT_DAYS, ca=True, not_valid_before=_start()
        )
        write_atomically(self.folder / "root.key", key_text(self.key), private=True)
        self._write_revoked([], 1)
        write_atomically(self.folder / "root.crt", pem(self.root), private=True)  # last: now there is a root

    def issued(self, name: str) -> list[x509.Certificate]:
        """All certificates that this site ever had, the newest last."""
        path = self._file(name)
        return x509.load_pem_x509_certificates(path.read_bytes()) if path.exists() else []

    def has_lost(self, name: str) -> bool:
        """Whether this site's newest certificate is revoked."""
        return any(is_revoked(certificate, self.revoked) for certificate in self.issued(name)[-1:])

    def sign(self, site: Site, request: bytes, *, renew: bool = False) -> x509.Certificate:
        """The certificate for a request: the one that this site has for this key and name, or a new one.

        A site that has, or had, a certificate of another key gets a new one with `renew` only.
        """
        key, issued = _read_request(request, site).public_key(), self.issued(site.name)
        of_key = [certificate for certificate in issued if certificate.public_key() == key]
        if any(is_revoked(certificate, self.revoked) for certificate in of_key):
            raise EngineError(f"The key of {site.name!r} is revoked. Remove it there and run `simfl join` again.")
        known = bool(issued) and issued[-1].public_key() == key
        if known and name_of(issued[-1].subject) == site.subject and not renew:
            return issued[-1]
        if issued and not known and not renew:
            raise EngineError(
                f"{site.name!r} has or had a certificate of another key. If its people confirm by telephone that the "
                f"new key is theirs, add --renew {site.name}."
            )
        certificate = self._issue(site, key)
        write_atomically(self._file(site.name), b"".join(map(pem, [*issued, certificate])), private=True)
        return certificate

    def revoke(self, name: str) -> None:
        """Revoke every certificate that this site ever had."""
        issued = self.issued(name)
        if not issued:
            raise EngineError(f"There is no certificate of {name} to revoke. Known are: {self._known()}.")
        now = datetime.datetime.now(datetime.UTC)
        lost = [certificate.serial_number for certificate in issued if not is_revoked(certificate, self.revoked)]
        new = [x509.RevokedCertificateBuilder(number, now).build() for number in lost]
        self._write_revoked([*self.revoked, *new], number_of(self.revoked) + 1)
        self.revoked = read_revoked(self.folder / REVOKED, self.root)

    def _known(self) -> str:
        return ", ".join(sorted(path.stem for path in (self.folder / "issued").glob("*.pem"))) or "none"

    def signed(self, name: str) -> bytes:
        """What a site needs beside its own key, in one text: its certificate, the root, the list of the revoked."""
        return pem(self.issued(name)[-1]) + pem(self.root) + pem(self.revoked)

    def _file(self, name: str) -> Path:
        return self.folder / "issued" / f"{name}.pem"

    def _issue(self, site: Site, public_key: object) -> x509.Certificate:
        from nvflare.lighter.utils import Identity, generate_cert

        now = _start()
        end = min(now + datetime.timedelta(days=SITE_DAYS), self.root.not_valid_after_utc)
        certificate: x509.Certificate = generate_cert(
            Identity(site.subject, "simfl", site.role),
            Identity(name_of(self.root.subject)),
            self.key,
            public_key,
            server_default_host=site.host,
            not_valid_before=now,
            not_valid_after=end,
        )
        return certificate

    def _write_revoked(self, entries: list[x509.RevokedCertificate], number: int) -> None:
        """Sign the list. It is valid as long as the root: OpenSSL refuses everybody once a list is out of date."""
        builder = (
            x509.CertificateRevocationListBuilder(revoked_certificates=entries)
            .issuer_name(self.root.subject)
            .last_update(_start())
            .next_update(self.root.not_valid_after_utc)
            .add_extension(x509.CRLNumber(number), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        write_atomically(self.folder / REVOKED, pem(builder.sign(self.key, hashes.SHA256())), private=True)


def _start() -> datetime.datetime:
    """From when on something is valid: an hour ago, because the clocks of the sites differ."""
    return datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)


def _read_request(text: bytes, site: Site) -> x509.CertificateSigningRequest:
    """A request, if it is sound and of this site."""
    try:
        asked = x509.load_pem_x509_csr(text)
        sound = asked.is_signature_valid
    except ValueError:
        sound = False
    if not sound:
        raise EngineError(f"The request of {site.name!r} is damaged. Run `simfl join` again at that site.")
    if name_of(asked.subject) != site.subject:
        raise EngineError(
            f"The request for {site.name!r} names {name_of(asked.subject)!r}, not {site.subject!r}. "
            "Run `simfl join` again at that site, with this study."
        )
    key = asked.public_key()
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size < SITE_BITS:
        raise EngineError(
            f"The key of {site.name!r} is not an RSA key of at least {SITE_BITS} bits. "
            "Remove it there and run `simfl join` again."
        )
    return asked


def write_request(site: Site, key: rsa.RSAPrivateKey) -> bytes:
    """A request (CSR) for a certificate of this key."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, site.subject)])
    return pem(x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256()))


def number_of(revoked: x509.CertificateRevocationList) -> int:
    """The number of a list of revoked certificates: a later list has a higher one."""
    return revoked.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number


def new_key(bits: int) -> rsa.RSAPrivateKey:
    """A fresh private key."""
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


def read_key(path: Path, remedy: str) -> rsa.RSAPrivateKey:
    """The private key in a file; `remedy` is what to do if there is none."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError):
        key = None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise FileError(f"{path} is missing, or is no RSA key without a password. {remedy}.")
    return key


def key_text(key: rsa.RSAPrivateKey) -> bytes:
    """A private key as PEM."""
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def pem(
    item: x509.Certificate | x509.CertificateRevocationList | x509.CertificateSigningRequest,
) -> bytes:
    """As PEM."""
    return item.public_bytes(serialization.Encoding.PEM)
