"""The way from a site to the hub: its name, its port, TLS, the clock. Tried before FLARE is, whose errors say less."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from simfl.callbacks import duration
from simfl.errors import EngineError
from simfl.privacy.certificates import name_of, role_of

SECONDS = 5.0  # for an answer
REFUSES = 1.0  # seconds within which a hub refuses a certificate
PAUSE = 2.0  # between two tries
REMIND = 60.0  # seconds after which waiting is told again


class NotYet(Exception):  # noqa: N818 - the hub may come
    """The hub cannot be reached now."""


def hub_of(kit: Path) -> tuple[str, int]:
    """Host and port of the hub, as this kit names them."""
    startup = kit / "startup"
    for name in ("fed_client.json", "fed_server.json", "fed_admin.json"):
        if (startup / name).exists():
            config = json.loads((startup / name).read_text())
            if name == "fed_admin.json":
                admin = config["admin"]
                return str(admin["host"]), int(admin["port"])
            host, _, port = config["servers"][0]["service"]["target"].rpartition(":")
            return host, int(port)
    raise EngineError(f"{kit} is not a kit. `simfl join` makes one.")


def try_way(kit: Path) -> None:
    """Go the way to the hub once. `NotYet`: it cannot be reached now; `EngineError`: waiting would not help."""
    host, port = hub_of(kit)
    where = f"{host}:{port}"
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NotYet(f"the name {host!r} is not known on this machine ({error.strerror or error})") from None
    try:
        raw = socket.create_connection((str(addresses[0][4][0]), port), SECONDS)
    except TimeoutError:
        raise NotYet(f"no answer from {where}: is its firewall open for this machine?") from None
    except OSError as error:
        raise NotYet(f"nothing listens at {where} ({(error.strerror or str(error)).lower()})") from None
    with raw:
        _try_tls(raw, kit, where)


def _try_tls(raw: socket.socket, kit: Path, where: str) -> None:
    startup = kit / "startup"
    _check_clock(x509.load_pem_x509_certificate((startup / "client.crt").read_bytes()), kit)
    context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
    context.check_hostname = False  # the certificate says hub; FLARE compares its name
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    try:
        with _greeted(context, raw, where) as connection:
            _check_hub(connection, where)
            connection.settimeout(REFUSES)
            connection.recv(1)  # a refusal of our certificate comes with the first read
    except ssl.SSLCertVerificationError as error:
        raise EngineError(
            f"What answers at {where} is not the hub of this study, or a clock is wrong: {error.verify_message}. This "
            f"machine's clock says {_now()}."
        ) from None
    except TimeoutError:
        return  # let in: the hub waits for us to speak
    except ssl.SSLError as error:
        raise EngineError(
            f"The hub at {where} refuses the certificate of {kit} ({_reason(error)}). It may be revoked, expired, or "
            "of another study: ask whoever runs `simfl provision`."
        ) from None
    except OSError as error:
        raise NotYet(f"the connection to {where} broke ({(error.strerror or str(error)).lower()})") from None


def _greeted(context: ssl.SSLContext, raw: socket.socket, where: str) -> ssl.SSLSocket:
    try:
        return context.wrap_socket(raw)
    except TimeoutError:
        raise NotYet(f"{where} takes connections, but does not answer: is its machine overloaded?") from None


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "TLS").replace("_", " ").lower()


def _check_hub(connection: ssl.SSLSocket, where: str) -> None:
    found = x509.load_der_x509_certificate(connection.getpeercert(binary_form=True) or b"")
    if role_of(found) != "hub":
        raise EngineError(f"What answers at {where} is {name_of(found.subject)!r}, and not the hub of this study.")


def _check_clock(certificate: x509.Certificate, kit: Path) -> None:
    now = datetime.now(UTC)
    if now < certificate.not_valid_before_utc:
        raise EngineError(
            f"This machine's clock says {_now()}, but the certificate of {kit} is valid from "
            f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on. Set the clock."
        )
    if now > certificate.not_valid_after_utc:
        raise EngineError(
            f"The certificate of {kit} expired on {certificate.not_valid_after_utc:%Y-%m-%d}. Renew it: `simfl join` "
            f"writes the request again, `simfl provision ... --renew` signs it. (This machine's clock says {_now()}.)"
        )


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def await_hub(kit: Path, tell: Callable[[str, str], None]) -> None:
    """Wait until the way to the hub is clear, and say what is in it."""
    begun = said_at = time.monotonic()
    said = ""
    while True:
        try:
            try_way(kit)
            return
        except NotYet as obstacle:
            now, host_port = time.monotonic(), ":".join(map(str, hub_of(kit)))
            if str(obstacle) != said:
                tell("waiting", f"waiting for the hub at {host_port}: {obstacle}")
                said, said_at = str(obstacle), now
            elif now - said_at > REMIND:
                tell("waiting", f"still waiting for the hub at {host_port}, for {duration(now - begun)}: {obstacle}")
                said_at = now
        time.sleep(PAUSE)
