"""Keys that are made at the sites, requests, certificates with a role, and revocation. Real certificates throughout."""

import contextlib
import json
import shutil
import ssl

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

pytest.importorskip("nvflare")

from simfl.cli.app import app
from simfl.deploy.authority import SITE_BITS, Authority, new_key, pem, sites_of, write_request
from simfl.deploy.kits import accept, check_kit, join, open_authority, provision, revoke, sign_requests
from simfl.deploy.program import refuse_revoked
from simfl.deploy.study import read_study, write_examples
from simfl.errors import EngineError, FileError, StudyError
from simfl.privacy.certificates import REVOKED, fingerprint, is_revoked, name_of, read_revoked, role_of

SITES = ("hub", "submitter", "north", "south")


class Place:
    """The folders of everybody: each site's kit, the requests on their way, and the authority."""

    def __init__(self, folder):
        write_examples(folder)
        self.path, self.kits = folder / "study.toml", folder / "kits"
        self.study, self.authority, self.requests = read_study(self.path), folder / "authority", folder / "requests"
        self.requests.mkdir()

    def join(self, *names):
        for name in names:
            (self.requests / f"{name}.csr").write_bytes(join(self.study, name, self.kits / name))

    def sign(self, renew=()):
        return sign_requests(self.study, self.authority, self.requests, renew)

    def accept(self, *names):
        for name in names:
            accept(self.study, name, self.kits / name, (self.requests / f"{name}.pem").read_bytes())

    def certificate(self, name):
        stem = "server" if name == "hub" else "client"
        return x509.load_pem_x509_certificate((self.kits / name / "startup" / f"{stem}.crt").read_bytes())

    def new_key(self, name):
        (self.kits / name / "startup" / "client.key").unlink()
        self.join(name)


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    place = Place(tmp_path_factory.mktemp("joined"))
    place.join(*SITES)
    assert place.sign().refused == []
    place.accept(*SITES)
    return place


@pytest.fixture
def place(joined, tmp_path):
    """Everybody has joined; a copy that a test may spoil."""
    copy = Place(tmp_path)
    for name in ("kits", "authority", "requests"):
        shutil.copytree(joined.path.parent / name, tmp_path / name, dirs_exist_ok=True)
    return copy


def test_everybody_who_joined_can_start(joined):
    for name in SITES:
        check_kit(joined.kits / name)


def test_the_authority_sees_no_private_key_of_a_site(joined):
    seen = [path for folder in (joined.authority, joined.requests) for path in folder.rglob("*") if path.is_file()]
    assert [path.name for path in seen if b"PRIVATE KEY" in path.read_bytes()] == ["root.key"]


def test_a_certificate_names_the_role_in_both_ways_of_provisioning(joined, tmp_path):
    roles = {"hub": "hub", "submitter": "submitter", "north": "party", "south": "party"}
    assert {name: role_of(joined.certificate(name)) for name in SITES} == roles
    here = Place(tmp_path)
    provision(here.study, here.kits)
    assert {name: role_of(here.certificate(name)) for name in SITES} == roles


def test_a_certificate_without_one_known_role_has_none(joined):
    root = x509.load_pem_x509_certificate((joined.kits / "north" / "startup" / "rootCA.pem").read_bytes())
    assert role_of(root) == ""


def test_the_role_follows_from_the_study_and_not_from_the_request(joined, tmp_path):
    authority, site = Authority(tmp_path / "a" / "s", "s"), sites_of(joined.study)["north"]
    key = new_key(SITE_BITS)
    names = [(x509.NameOID.COMMON_NAME, "north"), (x509.NameOID.UNSTRUCTURED_NAME, "submitter")]
    wish = x509.Name([x509.NameAttribute(*name) for name in names])
    request = x509.CertificateSigningRequestBuilder().subject_name(wish).sign(key, hashes.SHA256())
    assert role_of(authority.sign(site, pem(request))) == "party"


def test_a_request_under_another_name_is_refused(place):
    shutil.copy(place.requests / "south.csr", place.requests / "north.csr")
    (problem,) = place.sign().refused
    assert "request for 'north' names 'south'" in problem


def test_a_request_that_is_damaged_or_of_a_weak_key_is_refused(joined, tmp_path):
    authority, site = Authority(tmp_path / "a" / "s", "s"), sites_of(joined.study)["north"]
    with pytest.raises(EngineError, match="damaged"):
        authority.sign(site, b"nonsense")
    with pytest.raises(EngineError, match="2048 bits"):
        authority.sign(site, write_request(site, ec.generate_private_key(ec.SECP256R1())))


def test_signing_again_changes_nothing(place):
    before = (place.requests / "north.pem").read_bytes()
    place.sign()
    assert (place.requests / "north.pem").read_bytes() == before


def test_a_second_key_under_a_known_name_needs_a_word_of_its_people(place):
    place.new_key("north")
    (problem,) = place.sign().refused
    assert "--renew north" in problem
    assert place.sign(renew=["north"]).refused == []
    place.accept("north")
    check_kit(place.kits / "north")


def test_what_came_back_for_another_key_is_refused(place):
    with pytest.raises(FileError, match="not for 'north' and the key in"):
        accept(place.study, "north", place.kits / "north", (place.requests / "south.pem").read_bytes())
    with pytest.raises(FileError, match="damaged"):
        accept(place.study, "north", place.kits / "north", b"nonsense")


def test_another_root_is_refused(place, tmp_path):
    other = Authority(tmp_path / "other" / "s", place.study.name)
    site = sites_of(place.study)["north"]
    other.sign(site, (place.requests / "north.csr").read_bytes())
    with pytest.raises(FileError, match="another root"):
        accept(place.study, "north", place.kits / "north", other.signed("north"))


def test_a_kit_without_a_certificate_does_not_start(tmp_path):
    place = Place(tmp_path)
    place.join("north")
    with pytest.raises(FileError, match="no certificate yet"):
        check_kit(place.kits / "north")
    with pytest.raises(StudyError, match="'nobody' has no part"):
        place.join("nobody")


# --- revocation ------------------------------------------------------------------------------------------------------


def revoked_list(place, name):
    startup = place.kits / name / "startup"
    return read_revoked(startup / REVOKED, x509.load_pem_x509_certificate((startup / "rootCA.pem").read_bytes()))


def test_a_revoked_site_is_on_the_signed_list_of_every_kit(place):
    assert not is_revoked(place.certificate("north"), revoked_list(place, "south"))
    revoke(place.study, place.authority, "north")
    (problem,) = place.sign().refused
    assert "'north' is revoked" in problem
    place.accept("hub", "south", "submitter")
    assert is_revoked(place.certificate("north"), revoked_list(place, "south"))
    assert not is_revoked(place.certificate("south"), revoked_list(place, "south"))


def test_a_revoked_site_does_not_start_until_it_has_a_new_key(place):
    revoke(place.study, place.authority, "north")
    accept(place.study, "north", place.kits / "north", open_authority(place.study, place.authority).signed("north"))
    with pytest.raises(FileError, match="is revoked"):
        check_kit(place.kits / "north")
    assert "key of 'north' is revoked" in place.sign(renew=["north"]).refused[0]  # the same key again
    old = place.certificate("north")
    place.new_key("north")
    place.sign(renew=["north"])
    place.accept("north")
    check_kit(place.kits / "north")
    assert is_revoked(old, revoked_list(place, "north"))


def test_a_kit_never_goes_back_to_an_older_list(place):
    before = (place.requests / "south.pem").read_bytes()
    revoke(place.study, place.authority, "north")
    place.sign()
    place.accept("south")
    with pytest.raises(FileError, match="older"):
        accept(place.study, "south", place.kits / "south", before)


def test_a_list_that_is_not_the_roots_is_refused(place, tmp_path):
    other = Authority(tmp_path / "other" / "s", place.study.name)
    (place.kits / "north" / "startup" / REVOKED).write_bytes(pem(other.revoked))
    with pytest.raises(FileError, match="not signed by the root"):
        check_kit(place.kits / "north")
    (place.kits / "north" / "startup" / REVOKED).unlink()
    with pytest.raises(FileError, match="missing or damaged"):
        check_kit(place.kits / "north")


def test_kits_that_were_made_in_one_place_learn_of_it_at_once(tmp_path):
    place = Place(tmp_path)
    provision(place.study, place.kits)
    revoke(place.study, place.kits, "north")
    assert is_revoked(place.certificate("north"), revoked_list(place, "south"))
    assert set(provision(place.study, place.kits)) == {"hub", "submitter", "south"}
    assert set(provision(place.study, place.kits, ["north"])) == set(SITES)
    check_kit(place.kits / "north")
    with pytest.raises(EngineError, match="no certificate of nobody to revoke"):
        revoke(place.study, place.kits, "nobody")


def handshake(client, server):
    """A TLS handshake in memory between two contexts."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    for end in ends * 3:
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()


@pytest.mark.parametrize("lost", ["north", "hub"])
def test_hub_and_party_refuse_a_revoked_certificate_in_the_handshake(place, monkeypatch, lost):
    from nvflare.fuel.f3.drivers import net_utils, tcp_driver

    def context(name, *, server):
        monkeypatch.setattr(tcp_driver, "get_ssl_context", net_utils.get_ssl_context)
        startup, stem = place.kits / name / "startup", "server" if server else "client"
        refuse_revoked(startup / REVOKED)
        files = {f"{stem}_cert": startup / f"{stem}.crt", f"{stem}_key": startup / f"{stem}.key"}
        params = {"scheme": "stcp", "ca_cert": startup / "rootCA.pem"} | files
        return tcp_driver.get_ssl_context({key: str(value) for key, value in params.items()}, server)

    listening = context("hub", server=True)  # as long as the hub runs
    handshake(context("north", server=False), listening)
    revoke(place.study, place.authority, lost)
    place.sign()
    kept = "hub" if lost == "north" else "north"
    place.accept(kept)  # the other has not heard of it, or does not want to
    with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        handshake(context("north", server=False), listening)


def test_an_authority_without_its_key_makes_no_new_root(place):
    (place.authority / ".authority" / place.study.name / "root.key").unlink()
    with pytest.raises(FileError, match="Put it back"):
        place.sign()


def test_a_hub_that_moves_gets_a_certificate_of_its_new_host(tmp_path):
    place = Place(tmp_path)
    provision(place.study, place.kits)
    before = place.certificate("north")
    moved = msgspec.structs.replace(place.study, engine=msgspec.structs.replace(place.study.engine, host="new.org"))
    provision(moved, place.kits)
    assert name_of(place.certificate("hub").subject) == "new.org"
    assert place.certificate("north") == before


def test_a_host_may_be_longer_than_a_name_in_a_certificate(tmp_path):
    place, host = Place(tmp_path), "a" * 60 + ".example.org"
    place.study = msgspec.structs.replace(place.study, engine=msgspec.structs.replace(place.study.engine, host=host))
    provision(place.study, place.kits)
    names = place.certificate("hub").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [host]
    service = json.loads((place.kits / "north" / "startup" / "fed_client.json").read_text())["servers"][0]
    assert service["service"]["target"] == f"{host}:8002"
    assert service["identity"] == host[:64]


# --- the commands ----------------------------------------------------------------------------------------------------


def test_three_commands_make_a_kit(tmp_path):
    place = Place(tmp_path)
    study, run = str(place.path), CliRunner().invoke
    first = run(app, ["join", study, "--name", "north"])
    assert first.exit_code == 0, first.output
    shutil.copy(place.kits / "north" / "north.csr", place.requests)
    signing = ["provision", study, "--requests", str(place.requests), "--out", str(place.authority)]
    second = run(app, signing)
    third = run(app, ["join", study, "--name", "north", "--signed", str(place.requests / "north.pem")])
    assert (second.exit_code, third.exit_code) == (0, 0)
    check_kit(place.kits / "north")
    shown = fingerprint(place.certificate("north").public_key())
    assert shown in first.output  # for two people to compare
    assert shown in second.output
    fourth = run(app, [*signing, "--revoke", "north"])
    assert "north is revoked" in fourth.output
    assert "Not signed: The key of 'north' is revoked" in fourth.output


def test_making_all_keys_in_one_place_says_that_it_is_for_trying_out(tmp_path):
    place = Place(tmp_path)
    result = CliRunner().invoke(app, ["provision", str(place.path)])
    assert "for trying out" in result.output
