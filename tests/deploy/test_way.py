"""The way to the hub: every obstacle has a sentence of its own."""

import contextlib
import socket
import ssl
import threading

import msgspec
import pytest

pytest.importorskip("nvflare")

from simfl.deploy import way
from simfl.deploy.kits import provision, revoke
from simfl.deploy.processes import free_port
from simfl.deploy.study import Engine, parse_study
from simfl.deploy.way import NotYet, await_hub, hub_of, try_way
from simfl.errors import EngineError
from tests.deploy.waiting import LONG

STUDY = parse_study('name = "ward"\n[[party]]\nname = "north"\n[[party]]\nname = "south"')


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    study = msgspec.structs.replace(STUDY, engine=Engine(port=free_port()))
    return provision(study, tmp_path_factory.mktemp("kits"))


@pytest.fixture(autouse=True)
def on_a_busy_machine(monkeypatch):
    monkeypatch.setattr(way, "SECONDS", LONG)


@contextlib.contextmanager
def answering(port, startup, stem, *, refuse=False):
    """A TLS server with this certificate, as the hub is one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(startup / f"{stem}.crt", startup / f"{stem}.key")
    context.load_verify_locations(startup / "rootCA.pem")
    if refuse:
        context.load_verify_locations(startup / "revoked.crl")
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("localhost", port)) as listening:

        def serve():
            with contextlib.suppress(OSError):
                raw, _ = listening.accept()
                with raw, context.wrap_socket(raw, server_side=True) as connection:
                    connection.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
    thread.join(5)


def test_a_hub_that_does_not_listen_is_waited_for_with_a_word(kits, monkeypatch):
    monkeypatch.setattr(way, "PAUSE", 0.05)
    port, said = hub_of(kits["north"])[1], []
    with pytest.raises(NotYet, match=f"nothing listens at localhost:{port} \\(connection refused\\)"):
        try_way(kits["north"])
    waiting = threading.Thread(target=await_hub, args=(kits["north"], lambda *event: said.append(event)), daemon=True)
    waiting.start()
    while not said:
        waiting.join(0.05)
    with answering(port, kits["hub"] / "startup", "server"):
        waiting.join(LONG)
    assert not waiting.is_alive()
    assert said[0][0] == "waiting"
    assert said[0][1].startswith(f"waiting for the hub at localhost:{port}: nothing listens")


def test_a_name_that_nobody_knows_is_said(kits, monkeypatch):
    monkeypatch.setattr(way, "hub_of", lambda kit: ("hub.invalid", 8002))
    with pytest.raises(NotYet, match=r"the name 'hub\.invalid' is not known on this machine"):
        try_way(kits["north"])


def test_another_party_is_not_taken_for_the_hub(kits):
    with (
        answering(hub_of(kits["north"])[1], kits["south"] / "startup", "client"),
        pytest.raises(EngineError, match="is 'south', and not the hub of this study"),
    ):
        try_way(kits["north"])


def test_a_hub_of_another_study_is_refused(kits, tmp_path):
    others = provision(STUDY, tmp_path)
    with (
        answering(hub_of(kits["north"])[1], others["hub"] / "startup", "server"),
        pytest.raises(EngineError, match=r"not the hub of this study, or a clock is wrong: .* clock says 20"),
    ):
        try_way(kits["north"])


def test_a_certificate_that_the_hub_refuses_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(way, "REFUSES", LONG)
    study = msgspec.structs.replace(STUDY, engine=Engine(port=free_port()))
    kits = provision(study, tmp_path)
    revoke(study, tmp_path, "north")
    with (
        answering(study.engine.port, kits["hub"] / "startup", "server", refuse=True),
        pytest.raises(EngineError, match=r"refuses the certificate of .*north \(.*revoked.*\)\. It may be revoked"),
    ):
        try_way(kits["north"])


@pytest.mark.parametrize(("days", "said"), [(-1, "is valid from .* Set the clock"), (361, "expired on .* Renew it")])
def test_a_clock_outside_the_certificate_is_said(kits, monkeypatch, days, said):
    from datetime import UTC, datetime, timedelta

    class Clock(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.now(UTC) + timedelta(days=days)

    monkeypatch.setattr(way, "datetime", Clock)
    with (
        answering(hub_of(kits["north"])[1], kits["hub"] / "startup", "server"),
        pytest.raises(EngineError, match=said),
    ):
        try_way(kits["north"])
