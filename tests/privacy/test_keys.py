"""Keys that the hub cannot know, and identities that it cannot forge."""

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from msgspec.structs import replace

from simfl.errors import FileError, PrivacyError
from simfl.messages import SignedKey
from simfl.privacy.keys import Identity, Keys, sign_key, verify_key
from tests.privacy.authority import Project


def signed(identity, name="north", key=b"public", run="r"):
    return sign_key(identity, name, key, run)


def exchanged(*names):
    keys = {name: Keys(name) for name in names}
    for own in keys.values():
        own.exchange({name: k.public for name, k in keys.items()})
    return keys


def test_every_pair_has_a_key_of_its_own():
    keys = exchanged("a", "b", "c")
    assert keys["a"].pairs["b"] == keys["b"].pairs["a"]
    assert len({k for own in keys.values() for k in own.pairs.values()}) == 3
    assert exchanged("a", "b")["a"].pairs["b"] != keys["a"].pairs["b"]


def test_only_the_addressee_opens_what_was_sealed():
    keys = exchanged("a", "b", "c")
    sealed = keys["a"].seal("b", b"x" * 32)
    assert keys["b"].open("a", sealed) == b"x" * 32
    assert b"x" * 8 not in sealed
    for reader, sender, content in (("c", "a", sealed), ("b", "a", sealed[:-1] + b"?"), ("b", "a", b"")):
        with pytest.raises(PrivacyError, match="cannot be opened"):
            keys[reader].open(sender, content)


def test_a_key_put_in_between_gives_other_keys():
    a, b, hub = Keys("a"), Keys("b"), Keys("b")
    a.exchange({"b": hub.public})
    b.exchange({"a": a.public})
    with pytest.raises(PrivacyError):
        b.open("a", a.seal("b", b"secret"))


def test_rubbish_is_not_a_public_key():
    with pytest.raises(PrivacyError, match="'b' is not valid"):
        Keys("a").exchange({"b": b"short"})


@pytest.mark.parametrize("kind", ["elliptic", "rsa"])
def test_a_signed_key_is_accepted(kind):
    key = rsa.generate_private_key(65537, 2048) if kind == "rsa" else None
    project = Project()
    identity = project.identity("north", key)
    assert verify_key(project.identity("reader"), "north", signed(identity), "r") is None  # raises if not


def test_a_key_that_the_party_did_not_sign_is_refused():
    project, other = Project(), Project()
    north = project.identity("north")
    good, old = signed(north), project.identity("north", days=(-9, -2))
    bad = {
        "is not signed": ("north", SignedKey(key=b"public"), "r"),
        "not by its certificate": ("north", replace(good, key=b"changed"), "r"),
        "signature is not by": ("north", good, "another run"),
        "is of 'north'": ("south", good, "r"),
        "not issued by the root": ("north", signed(other.identity("north")), "r"),
        "cannot be read": ("north", replace(good, certificate=b"rubbish"), "r"),
        "not valid today": ("north", signed(old), "r"),
        "that of a hub, not of a party": ("north", signed(project.identity("north", role="hub")), "r"),
        "that of a submitter": ("north", signed(project.identity("north", role="submitter")), "r"),
        "that of a stranger": ("north", signed(project.identity("north", role=None)), "r"),
    }
    for fact, given in bad.items():
        with pytest.raises(PrivacyError, match=fact):
            verify_key(project.identity("reader"), *given)


def test_an_identity_is_read_from_a_kit(tmp_path):
    project = Project()
    identity = project.identity("north")
    files = [tmp_path / n for n in ("client.crt", "client.key", "rootCA.pem")]
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    files[0].write_bytes(identity.certificate.public_bytes(pem))
    files[1].write_bytes(identity.private_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    files[2].write_bytes(project.root.public_bytes(pem))
    read = Identity.read(*files)
    verify_key(read, "north", signed(read), "r")
    assert "private" not in repr(read)
    files[1].write_bytes(b"")
    with pytest.raises(FileError, match=r"client\.crt"):
        Identity.read(*files)


def test_a_revoked_certificate_is_refused():
    project = Project()
    north = project.identity("north")
    reader = project.identity("reader", revoked=[north.certificate])
    with pytest.raises(PrivacyError, match="is revoked"):
        verify_key(reader, "north", signed(north), "r")
    assert verify_key(reader, "north", signed(project.identity("north")), "r") is None  # a new one counts
