"""A small certificate authority, as a project's provisioning makes one."""

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from simfl.privacy.keys import Identity
from simfl.storage import private_folder, write_atomically


def name_of(text, role=None):
    names = [x509.NameAttribute(x509.NameOID.COMMON_NAME, text)]
    return x509.Name(names + ([x509.NameAttribute(x509.NameOID.UNSTRUCTURED_NAME, role)] if role else []))


def certificate(subject, key, issuer, issuer_key, days=(-1, 30), role=None):
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        issuer_name=name_of(issuer),
        subject_name=name_of(subject, role),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now + datetime.timedelta(days=days[0]),
        not_valid_after=now + datetime.timedelta(days=days[1]),
    )
    return builder.sign(issuer_key, hashes.SHA256())


class Project:
    """The authority: its root, and the identities that it gives out."""

    def __init__(self, name="project"):
        self.name, self.key = name, ec.generate_private_key(ec.SECP256R1())
        self.root = certificate(name, self.key, name, self.key)

    def identity(self, name, key=None, role="party", revoked=(), **more):
        key = key or ec.generate_private_key(ec.SECP256R1())
        listed = self.revocations(revoked) if revoked else None
        return Identity(certificate(name, key, self.name, self.key, role=role, **more), key, self.root, listed)

    def write_kit(self, name, folder, role="party"):
        """The files of a site's identity, as its kit has them."""
        made, pem = self.identity(name, role=role), serialization.Encoding.PEM
        key = made.private_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        files = {
            "client.crt": made.certificate.public_bytes(pem),
            "client.key": key,
            "rootCA.pem": self.root.public_bytes(pem),
        }
        private_folder(folder)
        for file, content in files.items():
            write_atomically(folder / file, content, private=True)

    def revocations(self, certificates):
        """The signed list of these certificates."""
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateRevocationListBuilder(
            issuer_name=self.root.subject, last_update=now, next_update=now + datetime.timedelta(days=30)
        )
        for one in certificates:
            gone = x509.RevokedCertificateBuilder(one.serial_number, now).build()
            builder = builder.add_revoked_certificate(gone)
        return builder.sign(self.key, hashes.SHA256())
